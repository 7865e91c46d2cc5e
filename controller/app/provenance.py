"""The `provenance.json` of an attempt, for people: the file, the code,
the versions, the place and the time.

git runs while everything else starts, and again before an attempt if its last answer is old: code
may change during a search. If it is missing, its part is left out. `tuner reproduce` reads it back.
"""

from __future__ import annotations

import asyncio
import hashlib
import platform
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from controller.app.surroundings import GitState, gpus, packages_of, store_packages
from controller.core.model import FINAL, Attempt, Experiment, SecretRef, attempt_name
from controller.folders import AttemptFolders, ExperimentFolders
from controller.runtime.launch import checkpoint_suffix, fidelity, trial_seed
from controller.runtime.protocol import Launch
from controller.runtime.provider import LaunchBuilder
from controller.runtime.registry import traits_of
from controller.spec import redacted
from suggest.distribution import VERSION
from suggest.errors import Unavailable
from suggest.trial import Trial

# How old the record of the code may be when an attempt begins: this, or longer where git is slow.
READ_AGAIN_S = 1.0
_TIMES_AS_LONG = 20


@dataclass(slots=True)
class AttemptLauncher:
    """The `controller.loop.Launcher` of this machine.

    Creates an attempt's folder with its records, and its launch. git: reads the checkout.
    """

    folders: ExperimentFolders
    source: str  # the file's name, as the person gave it
    text: str
    seed: Callable[[], int | None]
    build: LaunchBuilder
    git: Callable[[], Awaitable[GitState]] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)  # of each attempt, beside its own
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._session = {
            "file": self.source,
            "fileSha256": hashlib.sha256(self.text.encode()).hexdigest(),
            "tuner": VERSION,
            "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
            "host": platform.node(),
        }

    _session: dict[str, object] = field(init=False)
    # What is read when the first attempt starts: git, packages and GPUs.
    _surroundings: dict[str, object] | None = field(init=False, default=None)
    _read_again_s: float = field(init=False, default=0.0)

    async def __call__(
        self, experiment: Experiment, trial: Trial, attempts: Sequence[Attempt]
    ) -> Launch:
        attempt = attempts[-1]
        folders = self.folders.attempt(
            attempt.trial, attempt.number, apart=checkpoint_suffix(experiment, attempt)
        )
        starts_over = ""
        if not traits_of(experiment.spec.runtime).in_containers and attempt.trial is not FINAL:
            await self._inherit(trial, folders)
            starts_over = _starts_over(experiment, trial, attempt, folders)
        launched = self.build(experiment, trial, attempts, folders)
        if self._surroundings is None or self.monotonic() >= self._read_again_s:
            self._surroundings = await self._read_surroundings(experiment, launched)
        self._record(experiment, trial, attempt, folders, launched, self._surroundings)
        env = {**launched.env, **self.variables}
        return replace(launched, starts_over=starts_over, env=env)

    async def _inherit(self, trial: Trial, folders: AttemptFolders) -> None:
        """Copy the checkpoint of the trial's parent in a thread, because it may be large."""
        if trial.parent is None:
            return
        try:
            await asyncio.to_thread(folders.inherit, self.folders.checkpoint(trial.parent))
        except OSError as error:
            raise Unavailable(
                f"{folders.checkpoint}: the checkpoint of trial {trial.parent} cannot be copied: "
                f"{error.strerror or error}; nothing is lost; free some space to continue"
            ) from error

    def _record(
        self,
        experiment: Experiment,
        trial: Trial,
        attempt: Attempt,
        folders: AttemptFolders,
        launched: Launch,
        surroundings: Mapping[str, object],
    ) -> None:
        template = experiment.spec.template_of(attempt.trial)
        parameters = {**trial.parameters, **fidelity(experiment, attempt)}
        recorded = {}
        for name, value in template.env.items():
            if isinstance(value, SecretRef):
                recorded[name] = f"[secret {value.name}/{value.key}]"
            # A variable that mentions an inactive parameter was left out.
            elif name in launched.env:
                recorded[name] = launched.env[name]
        provenance = {
            "experiment": experiment.name,
            "namespace": experiment.namespace,
            "uid": experiment.uid,
            "trial": trial.number,
            "attempt": attempt.number,
            "name": attempt_name(experiment.name, experiment.uid, attempt.trial, attempt.number),
            **({"stage": "final"} if attempt.trial is FINAL else {}),
            "revision": experiment.revision,
            **self._session,
            **surroundings,
            **({} if (seed := self.seed()) is None else {"seed": seed}),
            "trialSeed": trial_seed(experiment, trial.number),
            "command": list(launched.command),
            "environment": redacted(recorded),
            "workingDirectory": str(launched.working_directory),
            "parameters": parameters,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        try:
            folders.prepare(
                parameters=parameters, provenance=provenance, form=template.parameters_file
            )
        except OSError as error:
            raise Unavailable(
                f"{folders.root}: {error.strerror}; nothing is lost; free some space to continue"
            ) from error

    async def _read_surroundings(
        self, experiment: Experiment, launched: Launch
    ) -> dict[str, object]:
        """Store the changes of the checkout and the list of packages; return their records.

        On a cluster, the image has the packages. What cannot be stored is left out, because no
        trial needs it.
        """
        root = self.folders.root
        began_s = self.monotonic()
        git = GitState() if self.git is None else await self.git()
        now_s = self.monotonic()
        self._read_again_s = now_s + max(READ_AGAIN_S, _TIMES_AS_LONG * (now_s - began_s))
        found: dict[str, object] = {}
        with suppress(OSError):
            if git.record:
                found["git"] = git.stored_in(root)
            if not traits_of(experiment.spec.runtime).in_containers:
                packages = packages_of(launched.command, launched.env.get("PATH", ""))
                if name := store_packages(packages, root):
                    found["packages"] = name
                if models := gpus():
                    found["gpus"] = models
        return found


def _starts_over(
    experiment: Experiment, trial: Trial, attempt: Attempt, folders: AttemptFolders
) -> str:
    """Return why the attempt has no checkpoint, though it should continue from one.

    Returns "" if it has one or needs none.
    """
    fidelity = experiment.spec.fidelity
    if folders.has_checkpoint:
        return ""
    if trial.rungs and fidelity is not None:
        return (
            f"TUNER_CHECKPOINT_DIR is empty after {fidelity.parameter} {trial.rungs[-1].fidelity:g}"
        )
    if trial.parent is not None and attempt.number == 1:
        return f"trial {trial.parent} left nothing in TUNER_CHECKPOINT_DIR"
    return ""
