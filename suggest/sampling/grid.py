"""Grid search: every distinct point of a finite space once, by index.

`Grid` numbers the points; nothing is enumerated, so 2^30 points cost nothing. `GridSampler` hands out the smallest
number that no trial holds. A cancelled trial holds no point; a failed one does. Numbers are not stored: they follow
from the points of the trials, so restarts, imported and enqueued trials need no care.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from suggest.errors import Problem
from suggest.sampling.sampler import Wanted
from suggest.settings import NoSettings
from suggest.space import Assignment, Choice, Float, Int, Parameter, Space, Value
from suggest.study import StudySpec
from suggest.trial import Trial, TrialState

# What a parameter is to those that depend on it: the index of a value that some condition mentions, or one of these.
OTHER = -1
INACTIVE = -2


def grid_problems(spec: StudySpec) -> Iterator[Problem]:
    for parameter in spec.space.parameters:
        if parameter.domain.count is None:
            yield Problem(
                parameter.name, "a grid needs points or step on a float; add one (points: 5), or use another algorithm"
            )


@dataclass(frozen=True, slots=True)
class _Level:
    """One parameter of the grid: its values as runs (first index, length, what they are to its dependents)."""

    parameter: Parameter
    domain: Float | Int | Choice
    when: tuple[tuple[str, frozenset[int]], ...]
    runs: tuple[tuple[int, int, int], ...]
    needed: tuple[str, ...]  # earlier parameters that this or later levels depend on


class Grid:
    """A numbering 0..total-1 of the distinct points that agree with `fixed`; the last parameter is the fastest.

    Mixed radix over the conditional tree. How many points lie below a level depends only on the earlier parameters
    that later conditions mention, so the counts are memoised on those. Children follow their parents directly (depth
    first), which keeps these contexts small.
    """

    def __init__(self, space: Space, fixed: Mapping[str, Value]) -> None:
        self._space = space
        order = _depth_first(space)
        mentioned = _mentioned(space)
        self._levels: list[_Level] = []
        for place, parameter in enumerate(order):
            later = {c.parameter for p in order[place:] for c in p.when}
            when = tuple((c.parameter, _indexes(space, c.parameter, c.values)) for c in parameter.when)
            runs = _runs(parameter, mentioned.get(parameter.name, frozenset()), fixed)
            needed = tuple(p.name for p in order[:place] if p.name in later)
            self._levels.append(_Level(parameter, parameter.domain, when, runs, needed))
        self._memo: dict[tuple[int, tuple[int, ...]], int] = {}
        self.total = self._count(0, {})

    def _active(self, level: _Level, state: Mapping[str, int]) -> bool:
        return all(state[parent] in allowed for parent, allowed in level.when)

    def _count(self, place: int, state: dict[str, int]) -> int:
        """How many ways there are to go on from `place`; `state` is left as it was."""
        if place == len(self._levels):
            return 1
        level = self._levels[place]
        key = (place, tuple(state[name] for name in level.needed))
        if key not in self._memo:
            name = level.parameter.name
            if self._active(level, state):
                total = 0
                for _, length, kind in level.runs:
                    state[name] = kind
                    total += length * self._count(place + 1, state)
            else:
                state[name] = INACTIVE
                total = self._count(place + 1, state)
            self._memo[key] = total
        return self._memo[key]

    def point(self, index: int) -> Assignment:
        """The point of a number below `total`."""
        state: dict[str, int] = {}
        values: dict[str, Value] = {}
        for place, level in enumerate(self._levels):
            name = level.parameter.name
            if not self._active(level, state):
                state[name] = INACTIVE
                continue
            for first, length, kind in level.runs:
                state[name] = kind
                below = self._count(place + 1, state)
                if index < length * below:
                    skip, index = divmod(index, below)
                    values[name] = level.domain.at(first + skip)
                    break
                index -= length * below
        return {p.name: values[p.name] for p in self._space.parameters if p.name in values}

    def index_of(self, point: Assignment) -> int | None:
        """The number of a point; None when it is incomplete or not of this grid."""
        state: dict[str, int] = {}
        index = 0
        for place, level in enumerate(self._levels):
            name = level.parameter.name
            if not self._active(level, state):
                state[name] = INACTIVE
                continue
            position = level.domain.index_of(point[name]) if name in point else None
            if position is None:
                return None
            for first, length, kind in level.runs:
                state[name] = kind
                below = self._count(place + 1, state)
                if first <= position < first + length:
                    index += (position - first) * below
                    break
                index += length * below
            else:
                return None
        return index


class GridSampler:
    def __init__(self, spec: StudySpec, seed: int, settings: NoSettings) -> None:
        self._space = spec.space
        self._grid = Grid(spec.space, {})
        self._index: dict[int, int] = {}  # trial number -> the point it holds
        self._holders: dict[int, int] = {}  # point -> how many trials hold it
        self._cursor = 0  # every point below is held, or in _returned
        self._returned: list[int] = []

    def put(self, trial: Trial) -> None:
        if trial.state is TrialState.CANCELLED:
            index = self._index.pop(trial.number, None)
            if index is not None:
                self._release(index)
        elif trial.number not in self._index:
            index = self._grid.index_of(trial.parameters)
            if index is not None:
                self._index[trial.number] = index
                self._hold(index)

    def _hold(self, index: int) -> None:
        self._holders[index] = self._holders.get(index, 0) + 1
        at = bisect_left(self._returned, index)
        if at < len(self._returned) and self._returned[at] == index:
            del self._returned[at]
        while self._cursor in self._holders:
            self._cursor += 1

    def _release(self, index: int) -> None:
        self._holders[index] -= 1
        if self._holders[index] == 0:
            del self._holders[index]
            if index < self._cursor:
                insort(self._returned, index)

    def propose(self, wanted: Sequence[Wanted]) -> list[Assignment]:
        taken: set[int] = set()
        free = self._free(taken)
        points: list[Assignment] = []
        for one in wanted:
            if one.fixed:
                point = self._completed(one.fixed, taken)
            else:
                index = next(free, None)
                if index is None:
                    break
                taken.add(index)
                point = self._grid.point(index)
            points.append(point)
        return points

    def _free(self, taken: set[int]) -> Iterator[int]:
        """Points that nobody holds, in order; `taken` may grow meanwhile."""
        yield from (index for index in self._returned if index not in taken)
        index = self._cursor
        while index < self._grid.total:
            if index not in self._holders and index not in taken:
                yield index
            index += 1

    def _completed(self, fixed: Assignment, taken: set[int]) -> Assignment:
        """The first free point that agrees with `fixed`; when none is free, the first: a person asked for it."""
        part = Grid(self._space, fixed)
        for k in range(part.total):
            index = self._grid.index_of(part.point(k))
            if index is not None and index not in self._holders and index not in taken:
                taken.add(index)
                return part.point(k)
        return part.point(0)

    def warm_up(self) -> None:
        pass


def _depth_first(space: Space) -> list[Parameter]:
    """Parents before children, and each child as soon as its last parent is there."""
    children: dict[str, list[Parameter]] = {}
    waiting: dict[str, set[str]] = {}
    for parameter in space.ordered:
        waiting[parameter.name] = {c.parameter for c in parameter.when}
        for parent in waiting[parameter.name]:
            children.setdefault(parent, []).append(parameter)
    order: list[Parameter] = []
    stack = [p for p in reversed(space.ordered) if not p.when]
    while stack:
        parameter = stack.pop()
        order.append(parameter)
        for child in reversed(children.get(parameter.name, ())):
            waiting[child.name].discard(parameter.name)
            if not waiting[child.name]:
                stack.append(child)
    return order


def _indexes(space: Space, name: str, values: Sequence[Value]) -> frozenset[int]:
    found = (space.by_name[name].domain.index_of(value) for value in values)
    return frozenset(index for index in found if index is not None)


def _mentioned(space: Space) -> dict[str, frozenset[int]]:
    mentioned: dict[str, frozenset[int]] = {}
    for parameter in space.parameters:
        for c in parameter.when:
            known = mentioned.get(c.parameter, frozenset())
            mentioned[c.parameter] = known | _indexes(space, c.parameter, c.values)
    return mentioned


def _runs(
    parameter: Parameter, mentioned: frozenset[int], fixed: Mapping[str, Value]
) -> tuple[tuple[int, int, int], ...]:
    if parameter.name in fixed:
        index = parameter.domain.index_of(fixed[parameter.name])
        assert index is not None  # a fixed part is valid
        return ((index, 1, index if index in mentioned else OTHER),)
    runs: list[tuple[int, int, int]] = []
    start = 0
    for index in sorted(mentioned):
        if start < index:
            runs.append((start, index - start, OTHER))
        runs.append((index, 1, index))
        start = index + 1
    count = parameter.domain.count
    assert count is not None  # grid_problems has refused the others
    if start < count:
        runs.append((start, count - start, OTHER))
    return tuple(runs)
