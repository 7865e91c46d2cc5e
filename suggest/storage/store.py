"""The contract of a store of studies; `tests/contract/store_contract.py` tests every implementation against it.

Blocking and thread-safe. Every write is one transaction: complete when it returns, absent when it raises.
Raises Unavailable (try again; nothing changed, unless the connection broke: take the study again, then look),
StoreBroken, and for writes NotOwner: the study was taken over or deleted since `lease` was given.
Reading needs no lease and sees what is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from suggest.curves import TrialCurve
from suggest.study import Direction, Study, StudyName
from suggest.trial import Measurement, Trial, TrialState

MAX_METRICS = 64  # of a trial, where only the latest value of each is asked for


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write one study: every write repeats all of it, so an outdated one changes nothing.

    The nonce is random: a database that was restored to an earlier state gives the same epochs again. `instance`: of
    the database server that gave it; "" where there is none.
    """

    name: StudyName
    uid: str
    epoch: int
    nonce: str
    instance: str = ""


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study, and what CreateStudy was told: by these a repetition is recognised."""

    study: Study
    request_id: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class StudyContents:
    """What an engine begins with: all trials, and the measurements of the open ones. A deleted trial is here as
    a cancelled one."""

    study: Study
    trials: Sequence[Trial]
    measurements: Sequence[tuple[int, Measurement]]


@dataclass(frozen=True, slots=True)
class Addition:
    """A trial that nobody handed out, with its measurements. `request_id` tells it from others of the study."""

    trial: Trial
    request_id: str
    measurements: Sequence[Measurement] = ()


class Counts(NamedTuple):
    """How much there is in a namespace."""

    studies: int = 0
    trials: int = 0
    measurements: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def minus(self, other: Counts) -> Counts:
        return Counts(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


class Observed(NamedTuple):
    """A line of a trial's log in Katib: all texts as they were sent. time_us: what the time stamp says."""

    time_us: int
    time_stamp: str
    metric: str
    value: str


class ObservationLog(Protocol):
    """What trials of Katib's clients report, by the trials' names. It belongs to no study and needs no lease."""

    def report(self, trial: str, lines: Sequence[Observed]) -> None: ...

    def read(self, trial: str, *, metric: str, first_us: int | None, last_us: int | None) -> list[Observed]:
        """By time, and where that is the same in the order of the reports; metric: "" means all."""

    def first_values(self, trials: Sequence[str], metric: str, count: int) -> dict[str, list[str]]:
        """The first so many values of the metric, of each of these trials that has reported it."""

    def delete(self, trial: str) -> None:
        """A trial that has reported nothing is not an error."""


class StudyStore(Protocol):
    @property
    def observations(self) -> ObservationLog: ...

    # Studies

    def insert_study(self, record: StudyRecord) -> bool:
        """False if the name is taken; then nothing was written."""

    def study(self, name: StudyName) -> StudyRecord | None: ...

    def studies(
        self, namespace: str | None, *, labels: Mapping[str, str], after: StudyName | None, limit: int
    ) -> list[Study]:
        """Ordered by namespace and study; None means all namespaces."""

    def update_study(self, lease: Lease, study: Study) -> None:
        """Writes its spec, its labels, and what its space was before."""

    def delete_study(self, lease: Lease) -> None:
        """With all its trials and measurements; releases the lease."""

    def counts(self, namespace: str) -> Counts:
        """How much of it the namespace takes; a deleted trial counts. Slow where there is much."""

    # Ownership

    def take(self, name: StudyName, *, uid: str, address: str) -> Lease:
        """Become the study's only writer, soon after its last one has died, and until release() or death.

        Raises NotOwner with the holder's address; NotFound if there is no such study (any more).
        """

    def still_held(self, lease: Lease) -> bool:
        """False if another may have taken the study meanwhile, though nobody has written since.

        For answers that write nothing; usually known without asking the database.
        """

    def release(self, lease: Lease) -> None:
        """Give it back; an outdated lease is not an error."""

    # Trials

    def contents(self, name: StudyName) -> StudyContents: ...

    def curves(self, name: StudyName, metric: str) -> Iterator[TrialCurve]:
        """Of the succeeded and the pruned trials, those that have one of the metric, in the order of their numbers."""

    def hand_out(self, lease: Lease, trials: Sequence[Trial], *, queued: int = 0) -> None:
        """Insert these running trials; one that is there as queued becomes this. `queued`: how many of them are."""

    def requeue(self, lease: Lease, numbers: Sequence[int]) -> None:
        """These running trials are queued from now on, and keep all else."""

    def add_trial(
        self, lease: Lease, trial: Trial, *, request_id: str, measurements: Sequence[Measurement]
    ) -> None: ...

    def add_trials(self, lease: Lease, additions: Sequence[Addition]) -> None:
        """All or none."""

    def add_measurements(self, lease: Lease, number: int, measurements: Sequence[Measurement]) -> None:
        """None of them is known yet."""

    def finish_trial(self, lease: Lease, trial: Trial, measurements: Sequence[Measurement]) -> None:
        """An open trial becomes this finished one, and gets these last measurements (none of them known yet)."""

    def reopen_trials(self, lease: Lease, numbers: Sequence[int]) -> None:
        """All or none: these failed trials become running ones, without the outcome that they had."""

    def relabel_trial(self, lease: Lease, number: int, labels: Mapping[str, str]) -> None: ...

    def delete_trial(self, lease: Lease, number: int) -> None:
        """Hide it from all reading, and remove its measurements; its number stays taken."""

    def trial(self, name: StudyName, number: int) -> Trial | None: ...

    def trial_added_by(self, name: StudyName, request_id: str) -> Trial | None:
        """The trial that AddTrial made for this request; found even if it was deleted since."""

    def numbers_added_by(self, name: StudyName, request_ids: Sequence[str]) -> dict[str, int]:
        """Those of these requests for which there is a trial, even if it was deleted since."""

    def trials(
        self, name: StudyName, *, states: Sequence[TrialState], client_id: str, after: int, limit: int
    ) -> list[Trial]:
        """Numbers above `after`, in order; no states and no client_id mean all."""

    def trial_counts(self, names: Sequence[StudyName]) -> dict[StudyName, dict[TrialState, int]]:
        """How many trials of each state these studies have; reads a row for each trial of theirs."""

    def best_trial(self, name: StudyName, direction: Direction) -> Trial | None:
        """The best value among the succeeded; of equals the first."""

    def measurements(
        self, name: StudyName, number: int | None, *, after: int, limit: int
    ) -> list[tuple[int, int, Measurement]]:
        """(position, trial, measurement), positions above `after`, in the order of the reports; None: all trials."""

    def latest_measurements(
        self, name: StudyName, number: int | None, *, after: int, limit: int
    ) -> list[tuple[int, int, Measurement]]:
        """The same, of each trial's newest attempt the last step of each metric, of MAX_METRICS at most: by trial and
        metric. `after` is -1 at first. Bounded work, however many measurements there are."""

    def close(self) -> None:
        """Release everything held."""
