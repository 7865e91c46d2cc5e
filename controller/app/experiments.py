"""Where experiments are kept and who controls each: the interface that admission needs of a store of experiments.

A state directory on this machine is one implementation (`local_experiments`); nothing here assumes files or a database.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from controller.core.model import FINAL, Attempt, AttemptState, Event, Experiment, Revision, TrialOrFinal, Uid
from controller.phrases import command
from suggest.errors import FailedPrecondition, NotFound

if TYPE_CHECKING:
    from controller.experiment_store import Changes


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_BASE32 = _LETTERS + "234567"
UID_LENGTH = 16


def new_uid() -> Uid:
    """Random, and a DNS label: it is in the names of objects on a cluster."""
    return secrets.choice(_LETTERS) + "".join(secrets.choice(_BASE32) for _ in range(UID_LENGTH - 1))


class Held(FailedPrecondition):
    """Another process controls the experiment."""

    reason = "HELD"


class Changed(FailedPrecondition):
    """Another file under the same name."""

    reason = "CHANGED"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that controls an experiment."""

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class ControllerLease(Protocol):
    """The right to control one experiment. Ends with `release`, or with the process that has it."""

    def release(self) -> None: ...

    def discard(self) -> None:
        """Release it, and remove what was prepared for an experiment that was not recorded."""


class Experiments(Protocol):
    """A store of experiments with at most one controller for each.

    Every write is atomic and durable when it returns. Raises Unavailable (try again) and StoreBroken (a person is
    needed).
    """

    def lease(self, uid: Uid, name: str) -> ControllerLease:
        """The lease of the experiment, which need not be recorded yet. Raises Held."""

    def holder(self, uid: Uid) -> Holder | None:
        """The process that controls it now. Does not disturb that process."""

    def revision_source(self, uid: Uid, number: int) -> str:
        """Where people find the text of a revision."""

    def experiments(self) -> Sequence[Experiment]: ...

    def experiment(self, namespace: str, name: str) -> Experiment | None: ...

    def create_experiment(self, experiment: Experiment, revision: Revision) -> None:
        """Raises AlreadyExists: the namespace has an experiment of that name."""

    def add_revision(self, experiment: Experiment, revision: Revision, event: Event) -> Experiment:
        """The experiment under its new revision; both are stored together."""

    def revisions(self, uid: Uid) -> Sequence[Revision]:
        """Oldest first."""

    def attempts(self, uid: Uid, trial: TrialOrFinal | None = None) -> Sequence[Attempt]:
        """Of the experiment, or of one of its trials; by trial, oldest first."""

    def save(self, uid: Uid, changes: Changes) -> None: ...

    def request_stop(self, uid: Uid, *, wanted: bool = True) -> None: ...


def find(experiments: Experiments, name: str, namespace: str | None) -> Experiment:
    """By name; without a namespace in any, if only one has it. Raises NotFound; FailedPrecondition: in several."""
    if namespace is not None:
        found = experiments.experiment(namespace, name)
        if found is None:
            raise NotFound(f"there is no experiment {name} in {namespace}; see {command('get', 'experiments')}")
        return found
    having = [experiment for experiment in experiments.experiments() if experiment.name == name]
    if not having:
        raise NotFound(f"there is no experiment {name}; see {command('get', 'experiments')}")
    if len(having) > 1:
        places = ", ".join(experiment.namespace for experiment in having)
        raise FailedPrecondition(f"several namespaces have an experiment {name} ({places}); choose one with -n")
    return having[0]


def final_attempts(experiments: Experiments, experiment: Experiment) -> list[Attempt]:
    """Attempts of the final stage since the search last ended, oldest first."""
    if experiment.final is None:
        return []
    return [each for each in experiments.attempts(experiment.uid, FINAL) if each.number >= experiment.final.first]


def final_has_failed(experiments: Experiments, experiment: Experiment) -> bool:
    """Whether the final stage of a finished experiment failed for good."""
    attempts = final_attempts(experiments, experiment)
    return experiment.state.finished and bool(attempts) and attempts[-1].state is AttemptState.FAILED
