"""Run trials of an experiment again, outside of its search: `tuner confirm`, `tuner reproduce`.

The reruns are trials of an experiment of their own, whose file is derived from that of the search.
So they survive a kill, and are listed, stopped, resumed and deleted as all others, and the search
never learns of them. The same command again continues that experiment, or has its result.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.app import query
from controller.app.experiment_file import ExperimentFile
from controller.app.workspace import ReadableWorkspace
from controller.core.model import MOST_SEEDS, Experiment, ExperimentState
from controller.phrases import command, quantity
from controller.report import confirmation, ranking
from controller.report.confirmation import Confirmation, confirmation_name
from controller.report.record import ExperimentRecord
from controller.runtime.launch import derived_seed
from controller.spec import file_text, read
from controller.spec.yaml_text import MAX_BYTES
from suggest.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from suggest.space import Assignment
from suggest.trial import Trial, TrialState

Json = dict[str, Any]

# Keys of spec that say how to search, or what follows a search.
_OF_SEARCHES = frozenset(
    ("pruning", "fidelity", "final", "confirm", "learnFrom", "prior", "rerun", "suspend")
)


@dataclass(frozen=True, slots=True)
class Reruns:
    """The file of the experiment with the reruns, and the search that it is derived from."""

    file: ExperimentFile
    search: Experiment


async def asked_by_file(workspace: ReadableWorkspace, search: Experiment) -> Reruns | None:
    """Return the reruns that `spec.confirm` asks for; None before the search has succeeded.

    Raises as `confirming`.
    """
    rule = search.spec.confirm
    if rule is None or search.state is not ExperimentState.SUCCEEDED:
        return None
    named = search.name, search.namespace
    return await confirming(workspace, *named, top=rule.top, seeds=rule.seeds)


async def confirming(
    workspace: ReadableWorkspace, name: str, namespace: str | None, *, top: int, seeds: int
) -> Reruns:
    """Return the experiment that reruns the best `top` trials, each with `seeds` new seeds.

    Raises NotFound, InvalidArgument, FailedPrecondition.
    """
    if top < 1:
        raise InvalidArgument.at("--top", f"{top} is too few; use 1 or more")
    refuse_number("--seeds", seeds, least=2)
    record = ranking.ranked(await query.look_up(workspace, name, namespace))
    search = record.experiment
    if search.spec.rerun is not None:
        more = str(min(4 * seeds, MOST_SEEDS))
        again = command("confirm", search.spec.rerun.experiment, "--seeds", more)
        raise FailedPrecondition(
            f"{name} has reruns of {search.spec.rerun.experiment}, and the best of these had the "
            f"best seeds; for more seeds, delete {name} and run: {again}"
        )
    if search.spec.further:
        one = command("reproduce", f"{name}/N")
        raise FailedPrecondition(
            f"{name} has several objectives, and its best trials are a front that no single value "
            f"orders; run one trial of it again: {one}"
        )
    chosen = _best(record, top)
    if not chosen:
        done = "satisfied its constraints" if search.spec.criteria.constraints else "succeeded"
        raise FailedPrecondition(f"no trial of {name} has {done}, so there is none to confirm")
    new = [derived_seed(search.uid, "confirm", k) for k in range(seeds)]
    reruns = derived(search, confirmation_name(search.name), chosen, new)
    refuse_others(workspace, reruns)
    return reruns


def refuse_number(flag: str, count: int, *, least: int) -> None:
    """Raise InvalidArgument if a trial cannot run again so many times."""
    if count < least:
        raise InvalidArgument.at(flag, f"{count} is too few; use {least} or more")
    if count > MOST_SEEDS:
        raise InvalidArgument.at(flag, f"{count} is too many; use at most {MOST_SEEDS}")


def _best(record: ExperimentRecord, top: int) -> list[Trial]:
    """Return the best trials of a ranked record, each of its points once."""
    criteria = record.experiment.spec.criteria
    points: list[Assignment] = []
    chosen = []
    for entry in record.trials:
        trial = entry.trial
        is_candidate = entry.state is TrialState.SUCCEEDED and criteria.violation(trial) == 0
        if is_candidate and trial.value is not None and trial.parameters not in points:
            points.append(trial.parameters)
            chosen.append(trial)
    return chosen[:top]


def derived(
    search: Experiment,
    name: str,
    trials: Sequence[Trial],
    seeds: Sequence[int],
    *,
    directory: str = "",
    changes: Json | None = None,
) -> Reruns:
    """Return an experiment that runs each trial's point with each seed, and nothing else.

    changes: of `spec.trial`. Raises FailedPrecondition for a search whose trials need more than its
    file, and for more reruns than a file can have.
    """
    for trial in trials:
        if trial.parent is not None:
            raise FailedPrecondition(
                f"trial {trial.number} of {search.name} continued from the checkpoint of trial "
                f"{trial.parent}, so its parameters alone do not give its value again"
            )
    document: Json = dict(search.spec.document)
    spec: Json = {key: value for key, value in document["spec"].items() if key not in _OF_SEARCHES}
    points = [dict(trial.parameters) for trial in trials]
    fidelity = search.spec.fidelity
    if fidelity is not None:
        # Reruns are complete trials.
        level = fidelity.levels[-1]
        value = int(level) if level.is_integer() else level
        fixed = {"type": "choice", "values": [value]}
        spec["parameters"] = {**spec["parameters"], fidelity.parameter: fixed}
        points = [{**point, fidelity.parameter: value} for point in points]
    for key in ("objective", "objectives"):
        if key in spec:
            spec[key] = _without_target(spec[key])
    count = len(trials) * len(seeds)
    # Estimated, because the file is written and read again in one go.
    size = len(json.dumps(points)) * len(seeds) + len(json.dumps(document))
    if size > MAX_BYTES:
        raise FailedPrecondition(
            f"the file of {name}, with {quantity(count, 'rerun')}, would have {size / 1e6:.1f} MB, "
            f"and one has at most {MAX_BYTES / 1e6:.0f} MB; run fewer trials again, or each with "
            "fewer seeds"
        )
    spec |= {
        "initial": points * len(seeds),
        "rerun": {
            "experiment": search.name,
            "trials": [trial.number for trial in trials],
            "seeds": [*seeds],
        },
        "algorithm": {"name": "random"},
        "budget": {"trials": count, "failedTrials": "none"},
        "parallelism": min(search.spec.parallelism, count),
        "trial": {**spec["trial"], **(changes or {})},
    }
    metadata = {**document["metadata"], "name": name}
    text = file_text({**document, "metadata": metadata, "spec": spec})
    made = read(f"# {name}, made from {search.name}\n{text}", source=name, is_file=False)
    return Reruns(ExperimentFile(made, Path(directory or search.directory)), search)


def refuse_others(workspace: ReadableWorkspace, reruns: Reruns) -> None:
    """Raise AlreadyExists if the experiment of this name has other reruns, or is not of reruns."""
    spec = reruns.file.document.spec
    with workspace.opened() as experiments:
        known = experiments.experiment(spec.namespace, spec.name)
    if known is None or known.spec.rerun == spec.rerun:
        return
    found = known.spec.rerun
    has = "is no experiment of reruns"
    if found is not None:
        which = "trial" if len(found.trials) == 1 else "trials"
        numbers = ", ".join(map(str, found.trials))
        each = quantity(len(found.seeds), "seed")
        has = f"has reruns of {which} {numbers} of {found.experiment}, with {each}"
    raise AlreadyExists(
        f"{spec.name} {has}; to run others, first delete it: {command('delete', spec.name)}"
    )


def _without_target(objective: Any) -> Any:  # of one, or of a list
    if isinstance(objective, list):
        return [_without_target(each) for each in objective]
    return {key: value for key, value in objective.items() if key != "target"}


async def confirmed(
    workspace: ReadableWorkspace, name: str, namespace: str | None
) -> Confirmation | None:
    """Return how the confirmed trials of an experiment compare; None if none was confirmed."""
    search = await query.look_up(workspace, name, namespace)
    return await confirmation_of(workspace, search)


async def confirmation_of(
    workspace: ReadableWorkspace, search: ExperimentRecord
) -> Confirmation | None:
    experiment = search.experiment
    name = confirmation_name(experiment.name)
    try:
        reruns = await query.look_up(workspace, name, experiment.namespace)
    except NotFound:
        return None
    rerun = reruns.experiment.spec.rerun
    if rerun is None or rerun.experiment != experiment.name:
        return None
    return confirmation.Confirmation.of(search, reruns)
