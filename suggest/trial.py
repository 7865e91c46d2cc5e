"""A trial: one assignment of parameters and its outcome, numbered within its study.

Pure values: this module reads neither a clock nor a store. A trial is queued, then running, and
ends in one of five outcomes, which never change. A running trial whose lease expires is queued
again. In a study with a fidelity, a running trial that succeeds below the largest fidelity is
paused; it then runs again with a larger one, or ends as pruned or cancelled.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from suggest.space import Assignment, Value

NO_LABELS: Mapping[str, str] = MappingProxyType({})
IMPORTED_FROM = "tuner.dev/imported-from"  # label: the source of an imported trial
# label: the trial whose value this one took over without running
REUSED = "tuner.dev/value-of-trial"
# label: the sampler that proposed the point while the study's own was not ready
PROPOSED_BY = "tuner.dev/proposed-by"
# The values that a person has chosen for a queued trial of a define-by-run study, as JSON.
ENQUEUED = "tuner.dev/enqueued"
# What a trial of a define-by-run study is expected to meet, as JSON: its [value, domain] by name.
# A parameter that it meets with that domain has that value.
PLANNED = "tuner.dev/planned"
# only the service sets them
OWN_LABELS = frozenset({IMPORTED_FROM, REUSED, PROPOSED_BY, ENQUEUED, PLANNED})


class TrialState(enum.Enum):
    """The state of a trial. The value is the word in JSON and in tables."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"  # has a value at its fidelity and waits to continue with a larger one
    SUCCEEDED = "succeeded"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    CANCELLED = "cancelled"

    # The hash of Enum is a Python function, which every lookup would call.
    __hash__ = object.__hash__

    def __init__(self, word: str) -> None:
        # An attribute, because every trial of a history is asked several times.
        self.finished = word not in ("queued", "running", "paused")


OPEN = frozenset(state for state in TrialState if not state.finished)


class RungResult(NamedTuple):
    """The value that a trial had when it was run up to this fidelity."""

    fidelity: float
    value: float


class Measurement(NamedTuple):
    """The value of one metric at one step of one attempt.

    Of reports with the same three, only the first one counts.

    `value` may be NaN or infinite, as the trial reported it, but is then never a
    best value. A named tuple is created in a third of the time of a dataclass,
    and measurements come in thousands.
    """

    attempt: int
    metric: str
    step: int
    value: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended.

    value: the value of the first objective. It is finite if the trial succeeded, may be absent if
        it was pruned, and is absent otherwise.
    further: the values of the other objectives, in their order; if empty, they are taken from the
    measurements.
    """

    state: TrialState
    value: float | None = None
    reason: str = ""
    failure_class: str = ""
    further: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of a study.

    parameters: the active parameters. Those of a queued trial may be incomplete.
    value: the value of the study's first objective.
    further: the values of the other objectives, in their order; empty unless all are known.
    constraint_values: the values of the constraints' metrics, in their order; empty unless all are
    known.
    fidelity: how far the trial runs, or ran last; None before it is handed out, and in studies
    without a fidelity.
    rungs: its values at the fidelities below the largest, ascending.
    parent: the trial from whose checkpoint it continues (`pbt`).
    """

    number: int
    state: TrialState
    parameters: Assignment
    value: float | None = None
    # of its value; if that was not measured, of the objective's last measurement
    step: int | None = None
    reason: str = ""
    failure_class: str = ""
    client_id: str = ""
    request_id: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)
    create_time: datetime | None = None
    end_time: datetime | None = None
    tries: int = 0  # how many times it was handed out; the fencing token of its lease
    lease_s: float | None = None  # the duration of its lease from each renewal on; None: no lease
    lease_expire_time: datetime | None = None  # of a running trial, if known; not stored
    further: tuple[float, ...] = ()
    constraint_values: tuple[float, ...] = ()
    fidelity: float | None = None
    rungs: tuple[RungResult, ...] = ()
    parent: int | None = None

    def for_algorithms(self) -> Trial:
        """Return the trial as algorithms see it: without labels, owners, reasons and times.

        It shares this trial's parameters, because samplers keep many trials.
        """
        return Trial(
            self.number,
            self.state,
            self.parameters,
            value=self.value,
            step=self.step,
            further=self.further,
            constraint_values=self.constraint_values,
            fidelity=self.fidelity,
            rungs=self.rungs,
        )

    def reopened(self) -> Trial:
        """Return a failed trial as it runs again: without its outcome and its lease."""
        return replace(
            self,
            state=TrialState.RUNNING,
            value=None,
            step=None,
            reason="",
            failure_class="",
            end_time=None,
            lease_s=None,
            further=(),
            constraint_values=(),
        )

    @property
    def values(self) -> tuple[float, ...]:
        """Return the values of all objectives; empty if the first one has none."""
        return () if self.value is None else (self.value, *self.further)

    @property
    def finished(self) -> bool:
        return self.state.finished

    @property
    def shown_labels(self) -> dict[str, str]:
        """The labels for people, without what only a trial's own program reads."""
        return {key: value for key, value in self.labels.items() if key != PLANNED}

    @property
    def expired(self) -> bool:
        """Return whether its lease has expired and no other client has taken it since."""
        return self.state is TrialState.QUEUED and self.tries > 0


class ValueColumn(NamedTuple):
    """The values of one parameter in many trials, and the same values as JSON.

    A reader of numbers from text has their JSON already. Encoding it again takes longer than
    storing the trials.
    """

    values: Sequence[Value]
    json: Sequence[str]


@dataclass(frozen=True, slots=True)
class TrialBatch:
    """Trials that ended elsewhere, as columns. Their numbers are `first` and those that follow.

    A history has thousands of trials, and creating a `Trial` for each takes longer than to store
    them. Every trial has all `parameters`, and those `labels` that are not None.
    """

    first: int
    states: Sequence[TrialState]
    parameters: Mapping[str, ValueColumn]
    values: Sequence[float | None]
    reasons: Sequence[str]
    failure_classes: Sequence[str]
    labels: Mapping[str, Sequence[str | None]]
    time: datetime  # when they were added

    def __len__(self) -> int:
        return len(self.states)

    def trial(self, index: int) -> Trial:
        return Trial(
            self.first + index,
            self.states[index],
            {name: column.values[index] for name, column in self.parameters.items()},
            value=self.values[index],
            reason=self.reasons[index],
            failure_class=self.failure_classes[index],
            labels={
                key: text
                for key, texts in self.labels.items()
                if (text := texts[index]) is not None
            },
            create_time=self.time,
            end_time=self.time,
        )

    def trials(self) -> Iterator[Trial]:
        return map(self.trial, range(len(self)))

    def result(self, index: int) -> Trial:
        """Return a trial with only its point and its value.

        Each object delays the garbage collector.
        """
        point = {name: column.values[index] for name, column in self.parameters.items()}
        return Trial(self.first + index, self.states[index], point, value=self.values[index])


@dataclass(frozen=True, slots=True)
class StopAdvice:
    """The answer to a report: whether to stop the trial, and why, as a sentence with figures."""

    should_stop: bool
    reason: str = ""
