"""What is read of experiments and of who controls each, wherever they are.

A state directory on this machine is one implementation (`local_experiments`), a cluster's
controller another (`cluster_workspace`). Nothing here assumes files or a database.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from controller.core.model import (
    FINAL,
    UID_LENGTH,
    Attempt,
    AttemptState,
    Event,
    Experiment,
    TrialOrFinal,
    Uid,
)
from controller.phrases import command
from controller.runtime.processes import suspended
from suggest.errors import FailedPrecondition, NotFound, did_you_mean

if TYPE_CHECKING:
    from controller.folders import ExperimentFolders
    from suggest.replies import StudySummary
    from suggest.study import Direction, StudyName


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_BASE32 = _LETTERS + "234567"


def new_uid() -> Uid:
    """Return a random uid that is a DNS label, because names of objects on a cluster contain it."""
    others = (secrets.choice(_BASE32) for _ in range(UID_LENGTH - 1))
    return "".join([secrets.choice(_LETTERS), *others])


class ControlledElsewhere(FailedPrecondition):
    """Another process controls the experiment."""

    reason = "HELD"


class Changed(FailedPrecondition):
    """The file under this name describes another experiment."""

    reason = "CHANGED"


class Revisable(Changed):
    """The file has only changes that `resume` accepts."""


class Extensible(Changed):
    """The file has more initial points, and otherwise only changes that `resume` accepts."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that controls an experiment."""

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        found = f"process {self.pid} on {self.host} since {self.since}"
        if self.host == os.uname().nodename and suspended(self.pid):  # by Ctrl-Z, for example
            return f"{found}, which is suspended (kill -CONT {self.pid} continues it)"
        return found


class ControllerLease(Protocol):
    """The right to control one experiment.

    It ends with `release` or with the process that holds it.
    """

    def release(self) -> None: ...

    def discard(self) -> None:
        """Release the lease, and remove what was prepared for an unrecorded experiment."""


class Trouble(Protocol):
    def read(self, *, controlled: bool) -> str:
        """Return the running controller's trouble, or why the last one ended; "" if unknown."""


class ReadableLog(Protocol):
    """The log of an attempt, which may grow. Methods raise NotFound if there is none."""

    def begins_at(self, tail: int) -> int:
        """Return the offset of the last `tail` lines."""

    def read(self, offset: int) -> tuple[int, bytes]:
        """Return the next bytes that spec.trial.logLimit has kept, and their offset.

        Returns no bytes at the end.
        """


@dataclass(frozen=True, slots=True)
class Overview:
    """What a list shows of an experiment, without its trials.

    final: all attempts of its final stages.
    """

    summary: StudySummary
    holder: Holder | None
    trouble: str
    final: Sequence[Attempt] = ()


# Returns what one client of each study has done, with the best trial in the given direction.
Summarize: TypeAlias = (
    "Callable[[Mapping[StudyName, str], Mapping[StudyName, Direction]], "
    "Awaitable[Mapping[StudyName, StudySummary]]]"
)


@dataclass(frozen=True, slots=True)
class NeverRan:
    """An experiment that somebody has created, and that was not accepted, or not yet."""

    namespace: str
    name: str
    state: str
    reason: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} is {self.state}: {self.reason}"


class ReadableExperiments(Protocol):
    """What verbs that change nothing read: a state directory, or a cluster's controller.

    poll_s: how often to look for news.

    Methods raise Unavailable (try again) and StoreBroken (a person is needed).
    """

    @property
    def poll_s(self) -> float: ...

    def holder(self, uid: Uid) -> Holder | None:
        """Return the process that controls the experiment now, or None, without disturbing it."""

    def named(self, name: str) -> Sequence[Experiment]:
        """Return the experiments of this name, one for each namespace that has it, oldest first."""

    def experiment(self, namespace: str, name: str) -> Experiment | None: ...

    def names(self, namespace: str | None) -> Sequence[str]:
        """Return the names of all experiments, of one namespace or of all."""

    def attempts(self, uid: Uid, trial: TrialOrFinal | None = None) -> Sequence[Attempt]:
        """Return the attempts of the experiment, or of one trial; by trial, oldest first."""

    def in_namespace(self, namespace: str | None) -> Sequence[Experiment]:
        """Return the experiments of a namespace, by name or by age; None: of all, if readable."""

    def never_ran(self) -> Sequence[NeverRan]:
        """Return those that the last list could not have."""

    async def overviews(
        self, listed: Sequence[Experiment], summarize: Summarize | None
    ) -> Mapping[Uid, Overview]:
        """Return the overviews of a list's experiments, except of those whose trials must be read.

        summarize: reads the studies of all of them at once; None: that is not possible.

        The number of requests and statements does not grow with the list.
        """

    def events(self, uid: Uid, trial: TrialOrFinal | None = None) -> Sequence[Event]: ...

    def trouble(self, uid: Uid) -> Trouble: ...

    def tenant_budget(self, namespace: str) -> str:
        """Return what is used of the TenantBudget of a namespace that was read; "": it has none."""

    def log(self, uid: Uid, attempt: Attempt) -> ReadableLog: ...

    def folders(self, uid: Uid) -> ExperimentFolders | None:
        """Return the folders of the experiment; None if they are not on this machine."""


def find(experiments: ReadableExperiments, name: str, namespace: str | None) -> Experiment:
    """Find an experiment by name. Without a namespace, only one namespace may have that name.

    Raises NotFound, and FailedPrecondition if several namespaces have it.
    """
    if namespace is not None:
        found = experiments.experiment(namespace, name)
        if found is None:
            raise NotFound(
                f"there is no experiment {name} in {namespace}{_hint(name, experiments, namespace)}"
            )
        return found
    having = experiments.named(name)
    if not having:
        raise NotFound(f"there is no experiment {name}{_hint(name, experiments, None)}")
    if len(having) > 1:
        places = ", ".join(experiment.namespace for experiment in having)
        raise FailedPrecondition(
            f"several namespaces have an experiment {name} ({places}); choose one with -n"
        )
    return having[0]


def _hint(name: str, experiments: ReadableExperiments, namespace: str | None) -> str:
    return (
        cure_for_trial(name)
        or did_you_mean(name, experiments.names(namespace))
        or f"; see {command('get', 'experiments')}"
    )


def cure_for_trial(name: str) -> str:
    """Return what to do if a trial was named in place of an experiment; "" if none was."""
    if name.count("/") != 1:
        return ""
    of, _, _ = name.partition("/")
    see = command("describe", name)
    return f": it is a trial; name the experiment, {of}, or see the trial: {see}"


def final_attempts(
    experiments: ReadableExperiments,
    experiment: Experiment,
    known: Sequence[Attempt] | None = None,
) -> list[Attempt]:
    """Return the attempts of the final stage since the search last ended, oldest first.

    known: all attempts of final stages, if they have been read.
    """
    if experiment.final is None:
        return []
    attempts = experiments.attempts(experiment.uid, FINAL) if known is None else known
    return [attempt for attempt in attempts if attempt.number >= experiment.final.first]


def final_has_failed(experiments: ReadableExperiments, experiment: Experiment) -> bool:
    """Return whether the final stage of a finished experiment failed for good."""
    if not experiment.state.finished:
        return False
    attempts = final_attempts(experiments, experiment)
    return bool(attempts) and attempts[-1].state is AttemptState.FAILED
