"""Reads the trials of a caller's history from their bytes into columns:
a history has thousands of trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError

from suggest.errors import Problem, Problems, raise_if
from suggest.katib.experiment import MAX_NAME, KatibExperiment
from suggest.katib.parameters import finite
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.katib.v1beta1.frames_pb2 import TrialFrame
from suggest.space import Value
from suggest.trial import TrialState, ValueColumn

MOST_PROBLEMS = 20  # that a refusal names
T = TypeVar("T")

# In the order of the space.
Point = tuple[Value, ...]


class HistoryTrial(NamedTuple):
    """A trial of a caller's history. `is_inside`: its point is in the space.

    `is_whole`: it has a value for each parameter. Only a trial that has not ended may lack some.
    """

    name: str
    point: Point
    is_whole: bool
    is_inside: bool
    state: TrialState
    value: float | None
    reason: str
    moment: str  # when it ended or began, in RFC 3339


@dataclass(frozen=True, slots=True)
class HistoryColumns:
    """Trials of a caller's history as columns, see `HistoryTrial`.

    `parameters` are in the order of the space.
    """

    parameters: Sequence[ValueColumn]
    names: list[str] = field(default_factory=list)
    are_whole: list[bool] = field(default_factory=list)
    are_inside: list[bool] = field(default_factory=list)
    states: list[TrialState] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    moments: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def points(self) -> list[Point]:
        return list(zip(*(column.values for column in self.parameters), strict=True))

    def trial(self, row: int) -> HistoryTrial:
        return HistoryTrial(
            self.names[row],
            tuple(column.values[row] for column in self.parameters),
            self.are_whole[row],
            self.are_inside[row],
            self.states[row],
            self.values[row],
            self.reasons[row],
            self.moments[row],
        )

    def take(self, rows: Sequence[int]) -> HistoryColumns:
        """Return the trials of these rows, in their order."""
        every = range(len(self))
        if rows == every or (len(rows) == len(self) and list(rows) == list(every)):
            return self
        taken = _taking(rows)
        return HistoryColumns(
            [ValueColumn(taken(column.values), taken(column.json)) for column in self.parameters],
            *(taken(getattr(self, name)) for name in _COLUMNS),
        )

    @property
    def succeeded(self) -> list[str]:
        """Return the names of the trials that have succeeded."""
        pairs = zip(self.names, self.states, strict=True)
        return [name for name, state in pairs if state is TrialState.SUCCEEDED]

    def stopped(self, names: set[str]) -> HistoryColumns:
        """Return these trials, with the succeeded ones of these names as stopped early."""
        rows = [row for row, name in enumerate(self.names) if name in names] if names else []
        states, reasons = list(self.states), list(self.reasons)
        for row in rows:
            if states[row] is TrialState.SUCCEEDED:
                states[row], reasons[row] = TrialState.PRUNED, _STOPPED
        return replace(self, states=states, reasons=reasons) if rows else self

    def plus(self, more: HistoryColumns) -> HistoryColumns:
        """Return these trials and `more`, which follow them."""
        if not self.names:
            return more
        return HistoryColumns(
            [
                ValueColumn([*mine.values, *theirs.values], [*mine.json, *theirs.json])
                for mine, theirs in zip(self.parameters, more.parameters, strict=True)
            ],
            *(getattr(self, name) + getattr(more, name) for name in _COLUMNS),
        )

    def by_time(self) -> list[int]:
        """Return the rows by their moments, then by their names."""
        rows = sorted(range(len(self)), key=self.names.__getitem__)
        rows.sort(key=self.moments.__getitem__)
        return rows


# But for the parameters.
_COLUMNS = tuple(each.name for each in fields(HistoryColumns) if each.name != "parameters")


class _Taking(Protocol):
    def __call__(self, column: Sequence[T], /) -> list[T]: ...


def _taking(rows: Sequence[int]) -> _Taking:
    """Return a function that returns the items of a column in these rows."""
    if len(rows) < 2:
        return lambda column: [column[row] for row in rows]
    items = itemgetter(*rows)  # takes half as long as a loop
    return lambda column: list(items(column))


@dataclass(frozen=True, slots=True)
class _TrialTexts:
    """What the trials of a history say, as columns."""

    names: list[str] = field(default_factory=list)
    moments: list[str] = field(default_factory=list)
    conditions: list[int] = field(default_factory=list)
    values: list[str] = field(default_factory=list)  # of the objective's metric, "" without one
    are_whole: list[bool] = field(default_factory=list)
    # of the parameters in the order of the space, "" for one that is missing
    points: list[list[str]] = field(default_factory=list)


class TrialReader:
    """Reads trials of one experiment."""

    def __init__(self, experiment: KatibExperiment) -> None:
        self._metric = experiment.metric
        self._texts = experiment.texts
        self._names = experiment.names
        self._has_text = experiment.has_text

    def read(self, raws: Mapping[int, bytes]) -> HistoryColumns:
        """Parse the trials at these indexes of a request. Raises InvalidArgument."""
        if not raws:
            return HistoryColumns([ValueColumn([], []) for _ in self._texts])
        indexes = list(raws)
        texts = self._texts_of(raws)
        columns = list(zip(*texts.points, strict=True))
        parameters, are_inside = self._values(indexes, columns, texts.are_whole)
        states, values, reasons = self._outcomes(texts.conditions, texts.values)
        return HistoryColumns(
            parameters,
            texts.names,
            texts.are_whole,
            are_inside,
            states,
            values,
            reasons,
            texts.moments,
        )

    def _texts_of(self, raws: Mapping[int, bytes]) -> _TrialTexts:
        """Return what the trials at these indexes say. Raises InvalidArgument.

        Only one trial is a message at a time: as messages, the trials of a request may take thirty
        times their bytes.
        """
        texts = _TrialTexts()
        problems = Problems()
        names = self._names
        for index, raw in raws.items():
            try:
                trial = TrialFrame.FromString(raw)
            except DecodeError:
                problems.add(f"trials[{index}]", "is not a trial: its bytes cannot be read")
                continue
            # Each access to a field takes time, so each is read once.
            name, status = trial.name, trial.status
            if not 0 < len(name) <= MAX_NAME or "\0" in name:
                message = f"give each trial its name, of 1 to {MAX_NAME} characters"
                problems.add(f"trials[{index}].name", message)
                continue
            given, condition = trial.spec.parameter_assignments.assignments, status.condition
            point = list(map(given.get, names, repeat("")))
            is_whole = len(given) == len(names) and ("" not in point or set(given) == set(names))
            if not is_whole and (condition in _ENDED or not set(names).issuperset(given)):
                problems.append(self._misnamed(given, index))
                continue
            texts.names.append(name)
            texts.moments.append(status.completion_time or status.start_time)
            texts.conditions.append(condition)
            objective = self._metric or trial.spec.objective.objective_metric_name
            texts.values.append(status.observation.metrics.get(objective, ""))
            texts.are_whole.append(is_whole)
            texts.points.append(point)
        _refuse(problems)
        return texts

    def _misnamed(self, given: Mapping[str, str], index: int) -> Problem:
        """Return the problem of a trial whose parameters are not those of the experiment."""
        if unknown := sorted(set(given).difference(self._names)):
            return Problem(
                f"trials[{index}].{unknown[0][:80]}", "is not a parameter of the experiment"
            )
        missing = next(name for name in self._names if name not in given)
        return Problem(
            f"trials[{index}].{missing}", "has no value; each trial has one for each parameter"
        )

    def _values(
        self, indexes: Sequence[int], given: Sequence[Sequence[str]], are_whole: Sequence[bool]
    ) -> tuple[list[ValueColumn], list[bool]]:
        """Return the values of each parameter, and whether each trial is inside of the space."""
        problems = Problems()
        columns: list[ValueColumn] = []
        are_inside = [True] * len(indexes)
        for text, texts in zip(self._texts, given, strict=True):
            found = text.values(texts)
            for row in [row for row in found.unreadable if are_whole[row]][:MOST_PROBLEMS]:
                message = f"{texts[row][:80]!r} is not a value of this parameter"
                problems.add(f"trials[{indexes[row]}].{text.name}", message)
            columns.append(found.column)
            for row in found.outside:
                are_inside[row] = False
        _refuse(problems)
        return columns, are_inside

    def _outcomes(
        self, conditions: Sequence[int], texts: Sequence[str]
    ) -> tuple[list[TrialState], list[float | None], list[str]]:
        """Return states, values and reasons of trials with these texts as objective values."""
        states: list[TrialState] = []
        values: list[float | None] = []
        reasons: list[str] = []
        for condition, text in zip(conditions, texts, strict=True):
            state, value, reason = TrialState.RUNNING, None, ""
            if condition in _ENDED_WELL:
                state, reason = _ENDED_WELL[condition]
                # A text is no worse than another.
                value = 0.0 if self._has_text and text else finite(text)
                if value is None:
                    state = TrialState.FAILED
                    reason = f"has no finite value of {self._metric or 'its objective'}"
            elif condition in _FAILED:
                state, reason = TrialState.FAILED, _FAILED[condition]
            states.append(state)
            values.append(value)
            reasons.append(reason)
        return states, values, reasons


_STOPPED = "stopped early in Katib"
_ENDED_WELL: Mapping[int, tuple[TrialState, str]] = {
    pb.TrialStatus.SUCCEEDED: (TrialState.SUCCEEDED, ""),
    pb.TrialStatus.EARLYSTOPPED: (TrialState.PRUNED, _STOPPED),
}
_FAILED: Mapping[int, str] = {
    pb.TrialStatus.KILLED: "KILLED in Katib",
    pb.TrialStatus.FAILED: "FAILED in Katib",
    pb.TrialStatus.METRICSUNAVAILABLE: "METRICSUNAVAILABLE in Katib",
}
_ENDED = _ENDED_WELL.keys() | _FAILED.keys()


def _refuse(problems: Problems) -> None:
    raise_if(problems[:MOST_PROBLEMS])
