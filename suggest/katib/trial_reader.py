"""Reads the trials of a caller's history from their bytes, column by column: a history has thousands of trials.

The fields that matter are found in the bytes of all trials at once (`WireColumns`). A few trials, and those with bytes
that no usual encoder writes, are parsed one by one. Both read the same, but a scan does not check what nobody reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from suggest.errors import InvalidArgument, Problem
from suggest.katib.experiment import MAX_NAME, KatibExperiment, read_numbers
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.katib.wire_columns import Fields, NotPlain, Positions, WireColumns, bytes_tag, number_tag
from suggest.space import Value
from suggest.trial import TrialState, ValueColumn

MOST_PROBLEMS = 20  # that a refusal names
FEW = 60  # trials that are parsed one by one in less time than their bytes are scanned together
T = TypeVar("T")

# In the order of the space.
Point = tuple[Value, ...]


class HistoryTrial(NamedTuple):
    """A trial of a caller's history. `is_inside`: its point is in the space."""

    name: str
    point: Point
    is_inside: bool
    state: TrialState
    value: float | None
    reason: str
    moment: str  # when it ended or began, in RFC 3339


@dataclass(frozen=True, slots=True)
class HistoryColumns:
    """Trials of a caller's history as columns, see `HistoryTrial`. `parameters` are in the order of the space."""

    parameters: Sequence[ValueColumn]
    names: list[str] = field(default_factory=list)
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
            taken(self.names),
            taken(self.are_inside),
            taken(self.states),
            taken(self.values),
            taken(self.reasons),
            taken(self.moments),
        )

    def plus(self, more: HistoryColumns) -> HistoryColumns:
        """Return these trials and `more`, which follow them."""
        if not self.names:
            return more
        return HistoryColumns(
            [
                ValueColumn([*mine.values, *theirs.values], [*mine.json, *theirs.json])
                for mine, theirs in zip(self.parameters, more.parameters, strict=True)
            ],
            self.names + more.names,
            self.are_inside + more.are_inside,
            self.states + more.states,
            self.values + more.values,
            self.reasons + more.reasons,
            self.moments + more.moments,
        )

    def by_time(self) -> list[int]:
        """Return the rows by their moments, then by their names."""
        rows = sorted(range(len(self)), key=self.names.__getitem__)
        rows.sort(key=self.moments.__getitem__)
        return rows


class _Taking(Protocol):
    def __call__(self, column: Sequence[T], /) -> list[T]: ...


def _taking(rows: Sequence[int]) -> _Taking:
    """Return a function that returns the items of a column in these rows."""
    if len(rows) < 2:
        return lambda column: [column[row] for row in rows]
    items = itemgetter(*rows)  # takes half as long as a loop
    return lambda column: list(items(column))


class TrialTexts(NamedTuple):
    """What the trials of a history say, as columns.

    `parameters` has the texts of each parameter, in the order of the space, if each trial has just these, else nothing.
    Then `assignments` has what each trial assigns.
    """

    names: list[str]
    moments: list[str]
    conditions: list[int]
    values: list[str]  # of the objective's metric, "" without one
    parameters: list[list[str]]
    assignments: list[dict[str, str]]


class TrialReader:
    """Reads trials of one experiment."""

    def __init__(self, experiment: KatibExperiment) -> None:
        self._metric = experiment.spec.objective.metric
        self._texts = experiment.texts
        self._names = experiment.names

    def read(self, raws: Mapping[int, bytes]) -> HistoryColumns:
        """Parse the trials at these places of a request. Raises InvalidArgument."""
        if not raws:
            return HistoryColumns([ValueColumn([], []) for _ in self._texts])
        places = list(raws)
        texts = (self.scanned(list(raws.values())) if len(raws) > FEW else None) or self.parsed(raws)
        _check_names(texts.names, places)
        parameters, are_inside = self._values(places, texts.parameters or self._checked(texts.assignments, places))
        states, values, reasons = self._outcomes(texts.conditions, texts.values)
        return HistoryColumns(parameters, texts.names, are_inside, states, values, reasons, texts.moments)

    def parsed(self, raws: Mapping[int, bytes]) -> TrialTexts:
        """Return what the trials at these places say. Raises InvalidArgument."""
        trials, unreadable = [], []
        for place, raw in raws.items():
            try:
                trials.append(pb.Trial.FromString(raw))
            except DecodeError:
                unreadable.append(Problem(f"trials[{place}]", "is not a trial: its bytes cannot be read"))
        _refuse(unreadable)
        statuses = [trial.status for trial in trials]
        metrics = [{each.name: each.value for each in status.observation.metrics} for status in statuses]
        return TrialTexts(
            [trial.name for trial in trials],
            [status.completion_time or status.start_time for status in statuses],
            [status.condition for status in statuses],
            [values.get(self._metric, "") for values in metrics],
            [],
            [{each.name: each.value for each in trial.spec.parameter_assignments.assignments} for trial in trials],
        )

    def scanned(self, raws: Sequence[bytes]) -> TrialTexts | None:
        """Return the same as `parsed`, in a third of the time if there are thousands; None if they are not plain."""
        try:
            return self._scanned(WireColumns(raws), len(raws))
        except NotPlain:
            return None

    def _scanned(self, wire: WireColumns, count: int) -> TrialTexts:
        name, spec, status = wire.fields(wire.messages, _NAME, _SPEC, _STATUS)
        start, completion, condition, observation = wire.fields(status, _START, _COMPLETION, _CONDITION, _OBSERVATION)
        [assignments] = wire.fields(spec, _ASSIGNMENTS)
        moments = wire.texts(completion.last(count))
        if "" in moments:
            begun = wire.texts(start.last(count))
            moments = [end or begin for end, begin in zip(moments, begun, strict=True)]
        assigned = _Pairs.of(wire, assignments, count)
        parameters = assigned.columns(self._names)
        return TrialTexts(
            wire.texts(name.last(count)),
            moments,
            wire.integers(condition.last(count)),
            _Pairs.of(wire, observation, count).column(self._metric),
            parameters,
            [] if parameters else assigned.by_name(),
        )

    def _checked(self, given: Sequence[Mapping[str, str]], places: Sequence[int]) -> list[list[str]]:
        """Return the texts of each parameter. Raises InvalidArgument."""
        _refuse(
            [problem for place, values in zip(places, given, strict=True) for problem in self._misnamed(values, place)]
        )
        return [[values[name] for values in given] for name in self._names]

    def _misnamed(self, given: Mapping[str, str], place: int) -> Iterator[Problem]:
        """Yield the problem of a trial whose parameters are not those of the experiment."""
        unknown = next((name for name in given if name not in self._names), None)
        if unknown is not None:
            yield Problem(f"trials[{place}].{unknown[:80]}", "is not a parameter of the experiment")
        elif missing := next((name for name in self._names if name not in given), None):
            yield Problem(f"trials[{place}].{missing}", "has no value; each trial has one for each parameter")

    def _values(self, places: Sequence[int], given: Sequence[list[str]]) -> tuple[list[ValueColumn], list[bool]]:
        """Return the values of each parameter, and whether each trial is inside of the space."""
        problems: list[Problem] = []
        columns: list[ValueColumn] = []
        are_inside = [True] * len(places)
        for text, texts in zip(self._texts, given, strict=True):
            found = text.values(texts)
            for row in found.unreadable[:MOST_PROBLEMS]:
                message = f"{texts[row][:80]!r} is not a value of this parameter"
                problems.append(Problem(f"trials[{places[row]}].{text.name}", message))
            columns.append(found.column)
            for row in found.outside:
                are_inside[row] = False
        _refuse(problems)
        return columns, are_inside

    def _outcomes(
        self, conditions: Sequence[int], texts: Sequence[str]
    ) -> tuple[list[TrialState], list[float | None], list[str]]:
        """Return the states, values and reasons of trials with these texts as their objective's values."""
        if _ENDED_WELL.issuperset(conditions):
            with suppress(ValueError):
                values = list(map(float, read_numbers(texts) or texts))
                if math.isfinite(sum(values)):  # then all of them are
                    return [TrialState.SUCCEEDED] * len(texts), [*values], [""] * len(texts)
        outcomes = list(map(self._outcome, conditions, texts))
        return ([state for state, _, _ in outcomes], [value for _, value, _ in outcomes], [why for *_, why in outcomes])

    def _outcome(self, condition: int, text: str) -> tuple[TrialState, float | None, str]:
        """Return the state, value and reason of a trial with this text as its objective's value."""
        if condition in _ENDED_WELL:
            value = finite(text)
            if value is not None:
                return TrialState.SUCCEEDED, value, ""
            return TrialState.FAILED, None, f"has no finite value of {self._metric}"
        if condition in _FAILED:
            return TrialState.FAILED, None, f"{_FAILED[condition]} in Katib"
        return TrialState.RUNNING, None, ""


_ENDED_WELL = frozenset({pb.TrialStatus.SUCCEEDED, pb.TrialStatus.EARLYSTOPPED})
_FAILED: Mapping[int, str] = {
    condition: pb.TrialStatus.TrialConditionType.Name(condition)
    for condition in (pb.TrialStatus.KILLED, pb.TrialStatus.FAILED, pb.TrialStatus.METRICSUNAVAILABLE)
}


def finite(text: str) -> float | None:
    """Return the number in a metric's text, None if it is not a finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _check_names(names: Sequence[str], places: Sequence[int]) -> None:
    """Check the names of trials at these places. Raises InvalidArgument."""
    lengths = set(map(len, names))
    if 0 not in lengths and max(lengths) <= MAX_NAME and "\0" not in "".join(names):
        return
    message = f"give each trial its name, of 1 to {MAX_NAME} characters"
    wrong = [place for place, name in zip(places, names, strict=True) if not 0 < len(name) <= MAX_NAME or "\0" in name]
    _refuse([Problem(f"trials[{place}].name", message) for place in wrong])


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise InvalidArgument(problems[:MOST_PROBLEMS])


# The fields that are read, as api.proto numbers them

_NAME, _SPEC, _STATUS = map(bytes_tag, (1, 2, 3))  # of Trial
_ASSIGNMENTS = bytes_tag(3)  # of TrialSpec
_START, _COMPLETION, _OBSERVATION = map(bytes_tag, (1, 2, 4))  # of TrialStatus
_CONDITION = number_tag(3)
_PAIR = bytes_tag(1)  # of ParameterAssignments and of Observation
_KEY, _VALUE = map(bytes_tag, (1, 2))  # of ParameterAssignment and of Metric


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The names and values of all trials: their assignments, or metrics. `trials`: the row of each pair's trial."""

    wire: WireColumns
    trials: Positions
    names: Fields
    values: Fields
    count: int  # of trials

    @classmethod
    def of(cls, wire: WireColumns, lists: Fields, count: int) -> _Pairs:
        """Return the pairs in these lists, whose owners are the rows of their trials."""
        [pairs] = wire.fields(lists, _PAIR)
        names, values = (found.last(pairs.size) for found in wire.fields(pairs.numbered(), _KEY, _VALUE))
        return cls(wire, pairs.owners, names, values, count)

    def columns(self, names: Sequence[str]) -> list[list[str]]:
        """Return the texts of each of these names. Returns nothing unless all trials have just these, in one order."""
        width = len(names)
        if not np.array_equal(self.trials, np.repeat(np.arange(self.count), width)):
            return []
        order = self.wire.texts(self.names.take(slice(width)))
        if sorted(order) != sorted(names):
            return []
        for k, name in enumerate(order):
            if not self.wire.are_equal(self.names.take(slice(k, None, width)), name.encode()).all():
                return []
        return [self.wire.texts(self.values.take(slice(order.index(name), None, width))) for name in names]

    def column(self, name: str) -> list[str]:
        """Return each trial's last text of this name, "" if it has none."""
        has_name = self.wire.are_equal(self.names, name.encode())
        self.wire.texts(self.names.those(~has_name))  # the parser refuses a name that is not text
        return self.wire.texts(self.values._replace(owners=self.trials).those(has_name).last(self.count))

    def by_name(self) -> list[dict[str, str]]:
        """Return the texts of each trial by their names."""
        found: list[dict[str, str]] = [{} for _ in range(self.count)]
        names, values = self.wire.texts(self.names), self.wire.texts(self.values)
        for trial, name, value in zip(self.trials.tolist(), names, values, strict=True):
            found[trial][name] = value
        return found
