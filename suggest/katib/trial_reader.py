"""Reads the trials of a caller's history from their bytes, column by column: a history has thousands of trials.

A history is parsed as one message (`TrialColumns`), whose lists have the fields of all trials. A trial of our own, with
a mark in each field, follows each trial of the caller, so the items between two marks are those of one trial. Marks are
random: bytes that make the parser skip a mark are found by counting.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError

from suggest.errors import InvalidArgument, Problem
from suggest.katib.experiment import MAX_NAME, KatibExperiment
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.katib.v1beta1.frames_pb2 import (
    NameAndValue,
    NamesAndValues,
    PairColumns,
    SpecColumns,
    StatusColumns,
    TrialColumns,
    TrialPairs,
)
from suggest.space import Value
from suggest.trial import TrialState, ValueColumn

MOST_PROBLEMS = 20  # that a refusal names
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

    def point(self, row: int) -> Point:
        return tuple(column.values[row] for column in self.parameters)

    def trial(self, row: int) -> HistoryTrial:
        return HistoryTrial(
            self.names[row],
            self.point(row),
            self.are_inside[row],
            self.states[row],
            self.values[row],
            self.reasons[row],
            self.moments[row],
        )

    def take(self, rows: Sequence[int]) -> HistoryColumns:
        """Return the trials of these rows, in their order."""
        if list(rows) == list(range(len(self))):
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
        together = _MARK_BYTES.join([*raws.values(), b""])
        try:
            columns, pairs = TrialColumns.FromString(together), TrialPairs.FromString(together)
            names = _last(columns.name, _MARK, "", len(raws))
            conditions = _last(columns.status.condition, _MARK_CONDITION, 0, len(raws))
            moments = _last(columns.status.completion_time, _MARK, "", len(raws))
            if "" in moments:
                begun = _last(columns.status.start_time, _MARK, "", len(raws))
                moments = [end or begin for end, begin in zip(moments, begun, strict=True)]
            status, spec = columns.status, columns.spec
            observed = _Pairs(status.observation.pairs, pairs.status.observation.pairs, len(raws))
            texts = observed.column(self._metric) or [found.get(self._metric, "") for found in observed.by_name()]
            assigned = _Pairs(spec.parameter_assignments.pairs, pairs.spec.parameter_assignments.pairs, len(raws))
            given = assigned.columns(self._names) or self._checked(assigned.by_name(), raws)
        except DecodeError:
            raise _unreadable(raws) from None
        _check_names(names, list(raws))
        parameters, are_inside = self._values(list(raws), given)
        states, values, reasons = self._outcomes(conditions, texts)
        return HistoryColumns(parameters, names, are_inside, states, values, reasons, moments)

    def _checked(self, given: Sequence[Mapping[str, str]], raws: Mapping[int, bytes]) -> list[list[str]]:
        """Return the texts of each parameter. Raises InvalidArgument."""
        _refuse(
            [problem for place, values in zip(raws, given, strict=True) for problem in self._misnamed(values, place)]
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
                values = list(map(float, texts))
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
    message = f"give each trial its name, of 1 to {MAX_NAME} characters"
    wrong = [place for place, name in zip(places, names, strict=True) if not 0 < len(name) <= MAX_NAME or "\0" in name]
    _refuse([Problem(f"trials[{place}].name", message) for place in wrong])


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise InvalidArgument(problems[:MOST_PROBLEMS])


# The items of each trial

_MARK = secrets.token_hex(16)
_MARK_CONDITION = -1 - secrets.randbits(31)
_MARK_PAIRS = PairColumns(pairs=NamesAndValues(names=[_MARK], values=[_MARK]))
_MARK_BYTES = TrialColumns(
    name=[_MARK],
    spec=SpecColumns(parameter_assignments=_MARK_PAIRS),
    status=StatusColumns(
        start_time=[_MARK], completion_time=[_MARK], condition=[_MARK_CONDITION], observation=_MARK_PAIRS
    ),
).SerializeToString()


def _last(items: Iterable[T], mark: T, absent: T, count: int) -> list[T]:
    """Return the last item of each trial, as a parser does with a field that is there twice. Raises DecodeError."""
    found = list(items)
    if found[1::2].count(mark) == count and len(found) == 2 * count:
        return found[::2]
    return [trial[-1] if trial else absent for trial in _trials(found, mark, count)]


def _trials(items: Sequence[T], mark: T, count: int) -> Iterator[list[T]]:
    """Yield the items of each trial. Raises DecodeError if the bytes of a trial have hidden a mark."""
    if items.count(mark) != count:
        raise DecodeError("a trial does not end where its bytes do")
    trial: list[T] = []
    for item in items:
        if item == mark:
            yield trial
            trial = []
        else:
            trial.append(item)


class _Pairs:
    """The names and values of all trials. They belong together if there are as many of each as there are pairs.

    Encoders write each field once at most, and leave an empty one out. A trial whose pairs have a value too many and
    one too few does not move the values of others, because each mark has to be at one place in both lists.
    """

    def __init__(self, columns: NamesAndValues, unparsed: Sequence[bytes], count: int) -> None:
        self._names, self._values = list(columns.names), list(columns.values)
        self._unparsed = unparsed
        self._count = count

    def columns(self, names: Sequence[str]) -> list[list[str]]:
        """Return the texts of each of these names. Returns nothing unless all trials have just these, in this order."""
        width = len(names) + 1
        of_trials = [self._names[k::width].count(name) for k, name in enumerate([*names, _MARK])]
        if of_trials != [self._count] * width or not self._are_whole(width * self._count):
            return []
        if self._values[len(names) :: width].count(_MARK) != self._count:
            return []
        return [self._values[k::width] for k in range(len(names))]

    def column(self, name: str) -> list[str]:
        """Return each trial's last text of this name, "" if it has none. Returns nothing if the lists do not match."""
        if found := self.columns([name]):
            return found[0]
        if not self._are_whole(len(self._names)):
            return []
        texts, last = [], ""
        for each, text in zip(self._names, self._values, strict=True):
            if each == _MARK:
                if text != _MARK:
                    return []
                texts.append(last)
                last = ""
            elif each == name:
                last = text
        return texts

    def _are_whole(self, count: int) -> bool:
        return len(self._names) == len(self._values) == len(self._unparsed) == count

    def by_name(self) -> list[dict[str, str]]:
        """Return the texts of each trial by their names, parsed one by one. Raises DecodeError."""
        parsed = [(pair.name, pair.value) for pair in map(NameAndValue.FromString, self._unparsed)]
        return [dict(trial) for trial in _trials(parsed, (_MARK, _MARK), self._count)]


def _unreadable(raws: Mapping[int, bytes]) -> InvalidArgument:
    message = "is not a trial: its bytes cannot be read"
    found = [place for place, raw in raws.items() if not _is_readable(raw)]
    return InvalidArgument([Problem(f"trials[{place}]", message) for place in found[:MOST_PROBLEMS]])


def _is_readable(raw: bytes) -> bool:
    try:
        TrialColumns.FromString(raw)
    except DecodeError:
        return False
    return True
