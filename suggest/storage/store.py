"""The contract of a store of studies; `tests/contract/store_contract.py` tests every implementation against it.

Blocking and thread-safe. Every write is one transaction: complete when it returns, absent when it raises. Reading needs
no lease and sees what is committed.

Raises:
    Unavailable: try again. Nothing changed, unless the connection broke: then take the study again and read it.
    StoreBroken: the store cannot be used until a person repairs it.
    NotOwner: of writes; the study was taken over or deleted since `lease` was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from suggest.curves import TrialCurve
from suggest.study import Direction, Study, StudyName
from suggest.trial import Measurement, Trial, TrialBatch, TrialState

MAX_METRICS = 64  # metrics of a trial that `latest_measurements` returns
TRIALS_PER_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write one study. Every write repeats the whole lease, so an outdated one changes nothing.

    The nonce is random, because a database that was restored to an earlier state gives the same epochs again.
    `instance` identifies the database server that gave the lease; "" if there is no server.
    """

    name: StudyName
    uid: str
    epoch: int
    nonce: str
    instance: str = ""


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study, and the arguments of its CreateStudy, by which a repeated call is recognized."""

    study: Study
    request_id: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class StudyContents:
    """The contents from which an engine is built: all trials, and the measurements of the open ones.

    A deleted trial appears as a cancelled one.
    """

    study: Study
    trials: Sequence[Trial]
    measurements: Sequence[tuple[int, Measurement]]


@dataclass(frozen=True, slots=True)
class Addition:
    """A trial that was added, not handed out, with its measurements.

    `request_id` is unique in the study; None for a trial that is not added by a request of its own.
    """

    trial: Trial
    request_id: str | None
    measurements: Sequence[Measurement] = ()


class Counts(NamedTuple):
    """Numbers of studies, trials and measurements, for example in a namespace."""

    studies: int = 0
    trials: int = 0
    measurements: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def minus(self, other: Counts) -> Counts:
        return Counts(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


class Observed(NamedTuple):
    """A line of a trial's log in Katib, with all texts as they were sent. `time_us` is the parsed time stamp."""

    time_us: int
    time_stamp: str
    metric: str
    value: str


class ObservationLog(Protocol):
    """The reports of trials of Katib's clients, by trial name. They belong to no study, so writing needs no lease."""

    def report(self, trial: str, lines: Sequence[Observed]) -> None:
        """Append lines to the log of a trial."""

    def read(self, trial: str, *, metric: str, first_us: int | None, last_us: int | None) -> list[Observed]:
        """Return lines by time, those with equal times in the order of the reports. An empty metric means all."""

    def first_values(self, trials: Sequence[str], metric: str, count: int) -> dict[str, list[str]]:
        """Return the first `count` values of a metric for each of these trials that has reported it."""

    def delete(self, trial: str) -> None:
        """Delete the log of a trial. A trial without reports is not an error."""


class PageSessions(Protocol):
    """Sessions of people who are signed in to the page of a server, by the hash of their ids. They belong to no study.

    What is sealed in a session is opaque to the store. Times are in seconds since the epoch.
    """

    def find(self, key: str) -> tuple[bytes, float] | None:
        """Return what is sealed in the session, and when it was used last."""

    def begin(self, key: str, sealed: bytes, used_s: float, *, oldest_s: float, most: int) -> None:
        """Add a session. Delete those last used before `oldest_s`, and the longest unused so that `most` are left."""

    def use(self, key: str, used_s: float) -> None:
        """Store the time of the last use. A session that has ended is not an error."""

    def end(self, key: str) -> None:
        """Delete a session. One that has ended is not an error."""


class StudyStore(Protocol):
    @property
    def observations(self) -> ObservationLog: ...

    @property
    def page_sessions(self) -> PageSessions: ...

    # Studies

    def insert_study(self, record: StudyRecord) -> bool:
        """Insert a study. Return False, having written nothing, if the name is taken."""

    def study(self, name: StudyName) -> StudyRecord | None: ...

    def studies(
        self, namespace: str | None, *, labels: Mapping[str, str], after: StudyName | None, limit: int
    ) -> list[Study]:
        """Return studies ordered by namespace and study name. A `namespace` of None means all namespaces."""

    def update_study(self, lease: Lease, study: Study) -> None:
        """Write the study's spec, labels and past spaces."""

    def delete_study(self, lease: Lease) -> None:
        """Delete the study with all its trials and measurements, and release the lease."""

    def counts(self, namespace: str) -> Counts:
        """Count what the namespace contains, including deleted trials. Slow for large namespaces."""

    # Ownership

    def take(self, name: StudyName, *, uid: str, address: str) -> Lease:
        """Become the study's only writer until `release` or the end of this process.

        A study whose owner has died can be taken soon afterwards.

        Raises:
            NotOwner: another process holds the study; with the address of that process.
            NotFound: the study does not exist (any more).
        """

    def still_held(self, lease: Lease) -> bool:
        """Return False if another process may have taken the study meanwhile, even if it has written nothing yet.

        For replies that write nothing. Usually the answer is known without asking the database.
        """

    def release(self, lease: Lease) -> None:
        """Release the study. An outdated lease is not an error."""

    # Trials

    def contents(self, name: StudyName) -> StudyContents: ...

    def curves(self, name: StudyName, metric: str) -> Iterator[TrialCurve]:
        """Yield the learning curves of succeeded and pruned trials that reported the metric, by trial number."""

    def hand_out(self, lease: Lease, trials: Sequence[Trial], *, queued: int = 0) -> None:
        """Insert these running trials; `queued` of them exist as queued trials and are replaced."""

    def requeue(self, lease: Lease, numbers: Sequence[int]) -> None:
        """Set these running trials to queued; everything else stays."""

    def add_trial(
        self, lease: Lease, trial: Trial, *, request_id: str, measurements: Sequence[Measurement]
    ) -> None: ...

    def add_trials(self, lease: Lease, additions: Sequence[Addition]) -> None:
        """Add all trials or none."""

    def add_batch(self, lease: Lease, batch: TrialBatch) -> None:
        """Add all trials or none."""

    def add_measurements(self, lease: Lease, number: int, measurements: Sequence[Measurement]) -> None:
        """Add measurements, none of which may be stored already."""

    def finish_trial(self, lease: Lease, trial: Trial, measurements: Sequence[Measurement]) -> None:
        """Replace an open trial with this finished one, and add its last measurements, none of them stored already."""

    def reopen_trials(self, lease: Lease, numbers: Sequence[int]) -> None:
        """Set these failed trials to running and remove their outcomes, all or none."""

    def relabel_trial(self, lease: Lease, number: int, labels: Mapping[str, str]) -> None: ...

    def delete_trial(self, lease: Lease, number: int) -> None:
        """Hide the trial from all reads and remove its measurements. The number of the trial stays taken."""

    def trial(self, name: StudyName, number: int) -> Trial | None: ...

    def trial_added_by(self, name: StudyName, request_id: str) -> Trial | None:
        """Return the trial that AddTrial created for this request, even if the trial was deleted since."""

    def numbers_added_by(self, name: StudyName, request_ids: Sequence[str]) -> dict[str, int]:
        """Return the trial numbers of those requests that created a trial, even if the trial was deleted since."""

    def trials(
        self, name: StudyName, *, states: Sequence[TrialState], client_id: str, after: int, limit: int
    ) -> list[Trial]:
        """Return trials with numbers above `after`, in order. No states and no `client_id` mean all."""

    def trial_counts(self, names: Sequence[StudyName]) -> dict[StudyName, dict[TrialState, int]]:
        """Count the trials of each state in these studies. Reads a row for each trial."""

    def best_trial(self, name: StudyName, direction: Direction) -> Trial | None:
        """Return the succeeded trial with the best value; of several, the one with the lowest number."""

    def measurements(
        self, name: StudyName, number: int | None, *, after: int, limit: int
    ) -> list[tuple[int, int, Measurement]]:
        """Return tuples (position, trial, measurement) with positions above `after`, in the order of the reports.

        A `number` of None means all trials.
        """

    def latest_measurements(
        self, name: StudyName, number: int | None, *, after: int, limit: int
    ) -> list[tuple[int, int, Measurement]]:
        """Like `measurements`, but only the last step of each metric in each trial's newest attempt.

        Ordered by trial and metric, with at most MAX_METRICS metrics of a trial. `after` is -1 for the first page. The
        work is bounded, however many measurements there are.
        """

    def close(self) -> None:
        """Release all studies and close the store."""


def pages_of_trials(store: StudyStore, name: StudyName, states: Sequence[TrialState]) -> Iterator[list[Trial]]:
    """Yield the trials in these states page by page: a large study's trials must not all be in memory at once."""
    after = -1
    while page := store.trials(name, states=states, client_id="", after=after, limit=TRIALS_PER_PAGE):
        yield page
        after = page[-1].number
