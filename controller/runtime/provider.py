"""What a runtime is to the rest of the program: its traits, what its files may say,
its launches, its connection.

A runtime is one provider, registered under a name (`controller.runtime.registry`), and the class
that implements `controller.runtime.protocol.Runtime`. Code that needs something of the place where
trials run asks the provider; nobody compares names. Methods without an implementation here are what
a runtime must have; the others say "nothing to add".

A provider raises errors of `suggest.errors`, whose messages people see: InvalidArgument for the
file and the configuration, PermissionDenied if a right is missing. RuntimeLost says that the
runtime cannot be reached now.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from controller.core.attempt import ObjectRecord
from controller.core.model import Attempt, AttemptKey, Experiment, ExperimentSpec
from controller.core.quota_use import QuotaReport
from controller.core.runtime_traits import RuntimeTraits
from controller.folders import AttemptFolders, ExperimentFolders
from controller.runtime.protocol import Launch, Runtime
from suggest.errors import InvalidArgument, Problem
from suggest.space import Assignment
from suggest.trial import Trial

# Builds the launch of the newest of a trial's attempts, whose folders exist.
LaunchBuilder: TypeAlias = Callable[[Experiment, Trial, Sequence[Attempt], AttemptFolders], Launch]


class ObjectRecords(Protocol):
    """What a runtime keeps of the objects of one experiment's attempts, in the controller's store.

    Writes are durable when they return. Methods raise Unavailable and StoreBroken.
    """

    def load(self) -> Mapping[AttemptKey, ObjectRecord]:
        """Return the records of the attempts that have not ended."""

    def save(self, key: AttemptKey, record: ObjectRecord) -> None:
        """Store or replace the record of an attempt; `stopped` follows from its cause."""

    def delete(self, key: AttemptKey) -> None:
        """Delete the record of an attempt that has none any more."""


class RuntimeConnection:
    """One experiment's connection to its runtime. The caller closes it; trials keep running.

    context: the context that is stored with the experiment, which finds its trials again; "" if
    there are no contexts.
    """

    def __init__(self, runtime: Runtime, context: str = "") -> None:
        self.runtime = runtime
        self.context = context

    async def check(self) -> None:
        """Raise what would prevent the trials of a new experiment from running. Creates nothing."""

    async def close(self) -> None:
        await self.runtime.close()


class RuntimeProvider(ABC):
    """One runtime, for all experiments, without a state of its own.

    `folders` are those of the experiment, which need not exist yet.
    """

    traits: RuntimeTraits

    @abstractmethod
    async def connect(
        self, experiment: Experiment, folders: ExperimentFolders, records: ObjectRecords
    ) -> RuntimeConnection:
        """Connect to the runtime of an experiment, which may not be stored yet. Sends nothing.

        `records` is for runtimes that make an object for each attempt.
        `experiment.context` is the stored context, or the requested one; "" is the current one.
        """

    @abstractmethod
    def launch_builder(self, experiment: Experiment, folders: ExperimentFolders) -> LaunchBuilder:
        """Return the builder of one controller's launches. Reads this machine's files for trials.

        Raises FailedPrecondition if such a file is gone. For what the builder raises
        see `controller.runtime.launch`.
        """

    async def discard(  # noqa: B027 - a default that does nothing
        self, experiment: Experiment, folders: ExperimentFolders
    ) -> None:
        """Delete what the runtime still has of a deleted experiment whose attempts were removed.

        Raises FailedPrecondition if another state directory runs it now.
        """

    def left_behind(self, experiment: Experiment) -> str:
        """Describe what a delete that sends nothing to the runtime leaves; "" if nothing.

        The text says how to delete it.
        """
        return ""

    # What a file may say

    def problems(self, spec: ExperimentSpec, directory: Path) -> Iterable[Problem]:
        """Return what the file may not say on this runtime, wherever it runs.

        `directory` is the file's folder.
        """
        return ()

    def obstacles(self, spec: ExperimentSpec, directory: Path) -> Iterable[Problem]:
        """Return why this machine cannot run the file.

        The reasons are those for which `run` refuses it before it creates anything.
        """
        return ()

    def warnings(self, spec: ExperimentSpec) -> Iterable[Problem]:
        """Return warnings about values that are seldom intended."""
        return ()

    def namespace_of(self, context: str | None) -> str:
        """Return the namespace of experiments whose file has none."""
        return "default"

    # Questions of single commands

    async def findings(self, request: CheckupRequest) -> AsyncIterator[Finding]:
        """Yield what `tuner doctor` finds, as soon as it is known."""
        for finding in _NO_FINDINGS:
            yield finding

    async def quotas(self, experiment: Experiment) -> QuotaReport | None:
        """Return the quotas of the experiment's namespace; None if the runtime has no quotas."""
        return None

    def dry_run(self, spec: ExperimentSpec, directory: Path) -> DryRun:
        """Return the objects that the runtime would be sent.

        Raises InvalidArgument if it is sent none.
        """
        raise _no_dry_run()

    async def dry_run_on_server(
        self, spec: ExperimentSpec, directory: Path, context: str | None
    ) -> ServerVerdicts:
        """Have the runtime's server check these objects.

        Creates nothing. Raises InvalidArgument like `dry_run`.
        """
        raise _no_dry_run()

    async def recover(
        self,
        name: str,
        *,
        context: str | None,
        namespace: str | None,
        print_line: Callable[[str], None],
    ) -> RecoveredExperiment:
        """Find what the runtime still has of an experiment whose database is lost.

        Raises:
            NotFound: There is no such experiment.
            FailedPrecondition: There are several of that name, a controller still runs it, or it
            has ended.
        """
        raise InvalidArgument.at(
            "--from-cluster", "this runtime keeps no experiments; restore the database instead"
        )


def _no_dry_run() -> InvalidArgument:
    return InvalidArgument.at(
        "--dry-run",
        "shows the objects for a cluster, and trials run on this machine; check the file with "
        "validate",
    )


# The values of the answers


class Level(enum.Enum):
    """How a check ended. The value is the word that people see."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a check: what, the outcome, the cure. rights: a permission is missing."""

    level: Level
    subject: str
    detail: str
    rights: bool = False


_NO_FINDINGS: tuple[Finding, ...] = ()


def ok(subject: str, detail: str) -> Finding:
    return Finding(Level.OK, subject, detail)


def warn(subject: str, detail: str) -> Finding:
    return Finding(Level.WARN, subject, detail)


def fail(subject: str, detail: str, *, rights: bool = False) -> Finding:
    return Finding(Level.FAIL, subject, detail, rights)


@dataclass(frozen=True, slots=True)
class CheckupRequest:
    """What `tuner doctor` asks a runtime.

    spec: the experiment whose needs are checked as well, if a file was named; `directory` is the
    file's folder.
    is_named: the runtime was named, by the file or a flag, so it must work.
    """

    spec: ExperimentSpec | None = None
    directory: Path = Path()
    context: str | None = None
    namespace: str | None = None
    is_named: bool = False


@dataclass(frozen=True, slots=True)
class DryRun:
    """The objects that would be sent: those of trial 0, and of the final stage if there is one.

    parameters: those of the trial.
    """

    parameters: Assignment
    trial: Sequence[Mapping[str, Any]]  # Any: an object in the form of the cluster's API
    final: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class ServerVerdicts:
    """A server's verdicts on what it would get: a line per object, and for what could never run."""

    lines: Sequence[str]
    refused: bool = False
    not_allowed: bool = False


@dataclass(frozen=True, slots=True)
class RecoveredExperiment:
    """What a runtime still has of an experiment.

    document: its stored document.
    trials: the parameters and attempt numbers of each trial.
    """

    uid: str
    context: str
    document: Mapping[str, object]
    trials: Mapping[int, tuple[Assignment, Sequence[int]]]

    @property
    def lost(self) -> list[int]:
        numbers = range(max(self.trials, default=-1) + 1)
        return [number for number in numbers if number not in self.trials]
