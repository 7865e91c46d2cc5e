"""The values that a store of studies takes and returns.

Imports no SQL; the store itself is in `sql_store`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from suggest.study import Study, StudyName
from suggest.trial import Measurement, Trial

MAX_METRICS = 64  # metrics of a trial that `latest_measurements` returns


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write one study.

    Every write repeats the whole lease, so an outdated one changes nothing.

    The nonce is random, because a database that was restored to an earlier
    state gives the same epochs again. `instance` identifies the database server
    that gave the lease; "" if there is no server.
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
    """What an engine is built from: all trials, and the measurements of the open ones.

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
    """A line of a trial's log in Katib, with all texts as they were sent.

    `time_us` is the parsed time stamp.
    """

    time_us: int
    time_stamp: str
    metric: str
    value: str
