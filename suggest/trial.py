"""A trial: one assignment of parameters and its outcome, numbered in its study.

Pure values; nothing here reads a clock or a store. How a trial's state may change is `OPEN`:
queued -> running -> one of the five outcomes, and an outcome never changes. A running trial whose lease expires is
queued again. In a study with a fidelity, a running trial that has a value below the largest fidelity is paused; from
there it runs again with a larger one, or ends as pruned or cancelled.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from suggest.space import Assignment

NO_LABELS: Mapping[str, str] = MappingProxyType({})
IMPORTED_FROM = "tuner.dev/imported-from"  # the label that says where a trial comes from
REUSED = "tuner.dev/value-of-trial"  # the label of a trial that was not run: whose value it took over
PROPOSED_BY = (
    "tuner.dev/proposed-by"  # the label of a trial whose point another sampler gave: the study's was not ready
)


class TrialState(enum.Enum):
    """The value is the word used in JSON and tables."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"  # it has a value at its fidelity, and waits until it may go on with a larger one
    SUCCEEDED = "succeeded"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    CANCELLED = "cancelled"

    # Enum's own is a function in Python, called for every look-up.
    __hash__ = object.__hash__

    @property
    def finished(self) -> bool:
        return self not in OPEN


OPEN = frozenset({TrialState.QUEUED, TrialState.RUNNING, TrialState.PAUSED})


class RungResult(NamedTuple):
    """The value that a trial had when it was run up to this fidelity."""

    fidelity: float
    value: float


class Measurement(NamedTuple):
    """The value of one metric at one step of one attempt. The key is (attempt, metric, step): the first report wins.

    `value` may be NaN or infinite: that is what the trial said; it is never a best value. A tuple, for they come by
    thousands: made in a third of the time, and a row of the store as it is.
    """

    attempt: int
    metric: str
    step: int
    value: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended.

    value: of the first objective: finite when succeeded, optional when pruned, absent otherwise.
    further: of the other objectives, in their order; empty where they are to be taken from the measurements.
    """

    state: TrialState
    value: float | None = None
    reason: str = ""
    failure_class: str = ""
    further: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """`parameters` holds active parameters only; a queued trial's may be partial until it is handed out.

    value: of the study's first objective; further: of the other objectives, in their order.
    constraint_values: of the metrics of the study's constraints, in their order. Both are empty where not all are
    known.
    fidelity: up to which the trial runs or has run last; None before it is handed out, and in studies without one.
    rungs: its values at the fidelities below the largest, rising.
    """

    number: int
    state: TrialState
    parameters: Assignment
    value: float | None = None
    step: int | None = None  # of its value; of the objective's last measurement where the value was not measured
    reason: str = ""
    failure_class: str = ""
    client_id: str = ""
    request_id: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)
    create_time: datetime | None = None
    end_time: datetime | None = None
    tries: int = 0  # how many times it was handed out: the fencing token of its lease
    lease_s: float | None = None  # how long its lease lasts from each renewal on; None: it has none
    lease_expire_time: datetime | None = None  # of a running trial, where it is known; not stored
    further: tuple[float, ...] = ()
    constraint_values: tuple[float, ...] = ()
    fidelity: float | None = None
    rungs: tuple[RungResult, ...] = ()

    @property
    def values(self) -> tuple[float, ...]:
        """One for each objective; empty without a value of the first."""
        return () if self.value is None else (self.value, *self.further)

    @property
    def finished(self) -> bool:
        return self.state.finished

    @property
    def expired(self) -> bool:
        """It was handed out, its lease expired, and nobody else has taken it since."""
        return self.state is TrialState.QUEUED and self.tries > 0


@dataclass(frozen=True, slots=True)
class StopAdvice:
    """The answer to a report: whether the trial should stop, and why (a sentence with the figures)."""

    should_stop: bool
    reason: str = ""
