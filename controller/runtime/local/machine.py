"""Check what an experiment needs on this machine for local trials:
GPUs, cores, a folder. Starts nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from controller.core.model import FINAL, ExperimentSpec, TrialTemplate
from controller.runtime.local import gpus
from controller.runtime.processes import cores
from suggest.errors import Problem

CROWDED = 4  # busy processes per core, more than waiting for disks and networks explains
_GPU = "spec.trial.resources.gpu"
_DEVICES = "spec.trial.devices"
_DIRECTORY = "spec.trial.workingDir"
_PARALLELISM = "spec.parallelism"


def warnings(spec: ExperimentSpec) -> Iterator[Problem]:
    yield from _only_in_the_image(spec.trial)
    # Trials that need GPUs wait for them.
    if not spec.trial.resources.gpu:
        yield from _crowded(spec)


def _only_in_the_image(trial: TrialTemplate) -> Iterator[Problem]:
    """Yield a warning if the program of a file written for a cluster is not on this machine."""
    for place, word in enumerate(trial.command[:2] if trial.image else ()):
        if "${" in word:
            continue
        if word.startswith("/"):
            # Not Path.exists, which raises for a name that is too long
            # or in a folder that must not be read.
            is_here = os.path.exists(word)  # noqa: PTH110
        else:
            is_here = (
                place > 0 or "/" in word or shutil.which(word, path=_search_path(trial)) is not None
            )
        if not is_here:
            yield Problem(
                "",
                f"{word} of the command is not on this machine, and trials here do not run in the "
                f"image; run on a "
                "cluster: --runtime kubernetes, or write a path of this machine",
            )


def _search_path(trial: TrialTemplate) -> str | None:
    """Return the PATH that the file gives its trials; None for that of this process."""
    path = trial.env.get("PATH")
    return path if isinstance(path, str) else None


def _crowded(spec: ExperimentSpec) -> Iterator[Problem]:
    cpu = spec.trial.resources.cpu or 1.0
    cpu_of_trial = cpu * spec.trial.workers
    at_once = min(spec.parallelism, spec.budget.trials or spec.parallelism)
    count = cores()
    fits = max(1, int(count / cpu_of_trial))
    if at_once * cpu_of_trial <= CROWDED * count or at_once <= fits:
        return
    asks = f" of {cpu_of_trial:g} cores each" if cpu_of_trial != 1 else ""
    yield Problem(
        _PARALLELISM,
        f"{at_once} trials at a time{asks} on {count} core{'s' if count > 1 else ''}: they would "
        f"slow each other down and may exhaust the memory; lower it: --set {_PARALLELISM}={fits}",
    )


def refused(spec: ExperimentSpec, directory: Path) -> list[Problem]:
    """Return what `run` refuses before it creates anything. For missing GPUs it pauses instead."""
    if not (spec.trial.devices or spec.trial.working_dir):
        return []
    return [
        problem for problem in obstacles(spec, directory) if problem.path in (_DEVICES, _DIRECTORY)
    ]


def obstacles(spec: ExperimentSpec, directory: Path) -> Iterator[Problem]:
    """Yield what prevents trials from running. `directory` is the file's folder."""
    if spec.trial.working_dir and not Path(directory, spec.trial.working_dir).is_dir():
        folder = Path(directory, spec.trial.working_dir)
        yield Problem(_DIRECTORY, f"{folder} is not a folder; create it, or name another")
    asking = [
        template for template in (spec.trial, spec.template_of(FINAL)) if template.resources.gpu
    ]
    if not asking:
        return
    unavailable = gpus.unavailable(os.environ, spec.trial.devices)
    available = gpus.pool(os.environ)
    if unavailable:
        have = ", ".join(device.id for device in available) or "none"
        yield Problem(
            _DEVICES,
            f"this machine does not offer {', '.join(unavailable)}; {gpus.source(os.environ)} "
            f"{have}: name some of "
            f"these, or set {gpus.POOL}",
        )
        return
    for template in asking:
        if message := _too_few(
            template, len(gpus.pool(os.environ, spec.trial.devices)), gpus.source(os.environ)
        ):
            yield Problem(
                _GPU if template is spec.trial else _GPU.replace("trial", "final"), message
            )
            return


def _too_few(template: TrialTemplate, count: int, source: str) -> str:
    """Return a message if there are too few GPUs, otherwise "".

    `source` says where the `count` of GPUs comes from.
    """
    gpu = template.resources.gpu
    if gpus.slots(count, gpu) >= template.workers:
        return ""
    per_worker = f" for each of {template.workers} workers" if template.workers > 1 else ""
    asks = f"a trial asks for {gpu:g} {'GPU' if gpu <= 1 else 'GPUs'}{per_worker}"
    if template.devices:
        return f"{asks}, and {_DEVICES} names {count}; name more, or lower this"
    if count:
        return f"{asks}, and {source} {count}; lower it"
    remedy = f"name some in {gpus.POOL}" if gpus.LISTED in source else "name some there"
    return f"{asks}, and {source} none; {remedy}, or set gpu: 0 to train without"
