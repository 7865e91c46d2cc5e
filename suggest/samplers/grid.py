"""Grid search: every distinct point of a finite space once, by index.

`Grid` numbers the points without enumerating them, so 2^30 points cost nothing.
`GridSampler` proposes the smallest number that no trial holds. A cancelled trial holds
no point; a failed one does. Numbers are not stored: they are derived from the points
of the trials, so restarts, imported and enqueued trials need no special care. A trial
between the grid's points of a float is extra, and holds none.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from suggest.domain import show
from suggest.errors import Problem
from suggest.proposal import PointRequest
from suggest.samplers.axis import Axis, EvenPoints, axis_of
from suggest.samplers.family import Family
from suggest.samplers.sampler import Sampler
from suggest.settings import NoSettings
from suggest.space import Assignment, Choice, Condition, Parameter, Space, Value
from suggest.study import StudySpec
from suggest.trial import Trial, TrialState

# What a parameter is to those that depend on it: the index of a value
# that some condition mentions, or one of these.
OTHER = -1
INACTIVE = -2


def grid_problems(spec: StudySpec) -> Iterator[Problem]:
    for parameter in spec.space.parameters:
        axis = axis_of(parameter.domain)
        if axis is None:
            yield Problem(
                parameter.name,
                "a grid needs points or step on a float; add one (points: 5), or use another "
                "algorithm",
            )
        elif isinstance(axis, EvenPoints) and not axis.are_distinct:
            points = f"{axis.count} points between {show(axis.low)} and {show(axis.high)}"
            message = f"{points} are as close as rounding errors; use fewer, or a wider range"
            yield Problem(f"{parameter.name}.points", message)


@dataclass(frozen=True, slots=True)
class _Level:
    """One parameter of the grid, with its values as runs.

    A run is (first index, length, what its values are to the parameter's dependents).
    """

    parameter: Parameter
    axis: Axis
    when: tuple[tuple[str, frozenset[int]], ...]
    runs: tuple[tuple[int, int, int], ...]
    # Earlier parameters on which this or later levels depend.
    needed: tuple[str, ...]


class Grid:
    """A numbering 0..total-1 of the distinct points that agree with `fixed`.

    The last parameter varies fastest.

    A fixed value need not be one that the grid would try.

    The numbering is a mixed radix over the conditional tree. The number of points below a level
    depends only on the earlier parameters that later conditions mention, so counts are memoized by
    those. Children follow their parents directly (depth first), which keeps these keys small.
    """

    def __init__(self, space: Space, fixed: Mapping[str, Value]) -> None:
        self._space = space
        order = _depth_first(space)
        self._axes = {
            p.name: Choice((fixed[p.name],)) if p.name in fixed else _axis(p) for p in order
        }
        mentioned = _mentioned(space, self._axes)
        self._levels: list[_Level] = []
        for index, parameter in enumerate(order):
            conditions = chain.from_iterable(each.when for each in order[index:])
            later = {condition.parameter for condition in conditions}
            when = tuple(
                (c.parameter, _indexes(self._axes[c.parameter], c)) for c in parameter.when
            )
            axis = self._axes[parameter.name]
            runs = _runs(axis, mentioned.get(parameter.name, frozenset()))
            needed = tuple(p.name for p in order[:index] if p.name in later)
            self._levels.append(_Level(parameter, axis, when, runs, needed))
        self._memo: dict[tuple[int, tuple[int, ...]], int] = {}
        self.total = self._count(0, {})

    def _active(self, level: _Level, state: Mapping[str, int]) -> bool:
        return all(state[parent] in allowed for parent, allowed in level.when)

    def _count(self, depth: int, state: dict[str, int]) -> int:
        """Return how many ways there are to continue from `depth`, without changing `state`."""
        if depth == len(self._levels):
            return 1
        level = self._levels[depth]
        key = (depth, tuple(state[name] for name in level.needed))
        if key not in self._memo:
            name = level.parameter.name
            if self._active(level, state):
                total = 0
                for _, length, kind in level.runs:
                    state[name] = kind
                    total += length * self._count(depth + 1, state)
            else:
                state[name] = INACTIVE
                total = self._count(depth + 1, state)
            self._memo[key] = total
        return self._memo[key]

    def point(self, index: int) -> Assignment:
        """Return the point of a number below `total`."""
        state: dict[str, int] = {}
        values: dict[str, Value] = {}
        for depth, level in enumerate(self._levels):
            name = level.parameter.name
            if not self._active(level, state):
                state[name] = INACTIVE
                continue
            for first, length, kind in level.runs:
                state[name] = kind
                below = self._count(depth + 1, state)
                if index < length * below:
                    skip, index = divmod(index, below)
                    values[name] = level.axis.at(first + skip)
                    break
                index -= length * below
        return self._space.in_order(values)

    def tries(self, part: Assignment) -> bool:
        """Return whether this grid tries each of the values."""
        return all(self._axes[name].index_of(value) is not None for name, value in part.items())

    def index_of(self, point: Assignment) -> int | None:
        """Return the number of a point; None if it is incomplete or not in this grid."""
        state: dict[str, int] = {}
        index = 0
        for depth, level in enumerate(self._levels):
            name = level.parameter.name
            if not self._active(level, state):
                state[name] = INACTIVE
                continue
            position = level.axis.index_of(point[name]) if name in point else None
            if position is None:
                return None
            for first, length, kind in level.runs:
                state[name] = kind
                below = self._count(depth + 1, state)
                if first <= position < first + length:
                    index += (position - first) * below
                    break
                index += length * below
            else:
                return None
        return index


class HeldPoints:
    """Which points trials hold. A point is a number; those of a grid count from 0.

    The points of a grid are in a sorted list, because both reading by rank and inserting in order
    are fast, and a grid hands its points out in order. 80,000 points in random order, such as
    imported ones, take half a second to put.
    """

    def __init__(self) -> None:
        self.points: dict[int, int] = {}  # by the trials that hold them
        self._holders: dict[int, int] = {}  # point -> how many trials hold it
        self._sorted: list[int] = []  # the held points of a grid, ascending

    def __contains__(self, point: int) -> bool:
        return point in self._holders

    def __len__(self) -> int:
        """Return how many points of a grid are held."""
        return len(self._sorted)

    def put(self, trial: int, point: int | None) -> int | None:
        """Record which point a trial holds, None for none.

        Return the point that it held before, if another one.
        """
        before = self.points.get(trial)
        if before == point:
            return None
        if before is not None:
            self._release(trial, before)
        if point is not None:
            self._hold(trial, point)
        return before

    def free(self, rank: int) -> int:
        """Return the point of a grid with the index `rank` among those that no trial holds."""
        held, low, high = self._sorted, 0, len(self._sorted)
        while low < high:
            middle = (low + high) // 2
            if held[middle] - middle <= rank:
                low = middle + 1
            else:
                high = middle
        return rank + low

    def _hold(self, trial: int, point: int) -> None:
        self.points[trial] = point
        if point not in self._holders and point >= 0:
            insort(self._sorted, point)
        self._holders[point] = self._holders.get(point, 0) + 1

    def _release(self, trial: int, point: int) -> None:
        del self.points[trial]
        self._holders[point] -= 1
        if not self._holders[point]:
            del self._holders[point]
            if point >= 0:
                del self._sorted[bisect_left(self._sorted, point)]


class GridSampler(Sampler):
    def __init__(self, spec: StudySpec, seed: int, settings: NoSettings) -> None:
        self._space = spec.space
        self._grid = Grid(spec.space, {})
        self._held = HeldPoints()

    def put(self, trial: Trial) -> None:
        if trial.state is TrialState.CANCELLED:
            self._held.put(trial.number, None)
        elif trial.number not in self._held.points:
            self._held.put(trial.number, self._grid.index_of(trial.parameters))

    def propose(self, wanted: Sequence[PointRequest]) -> list[Assignment]:
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
        """Yield points that no trial holds, in order. `taken` may grow meanwhile."""
        for rank in range(self._grid.total - len(self._held)):
            if (index := self._held.free(rank)) not in taken:
                yield index

    def _completed(self, fixed: Assignment, taken: set[int]) -> Assignment:
        """Return the first free point that agrees with `fixed`.

        If there is none, return the first of all, as a person asked for it.
        """
        part = Grid(self._space, fixed)
        # Extra, so none of its points is free or held.
        if not self._grid.tries(fixed):
            return part.point(0)
        for k in range(part.total):
            index = self._grid.index_of(part.point(k))
            if index is not None and index not in self._held and index not in taken:
                taken.add(index)
                return part.point(k)
        return part.point(0)


def _depth_first(space: Space) -> list[Parameter]:
    """Return parents before children, and each child as soon as its last parent is there."""
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


def _axis(parameter: Parameter) -> Axis:
    axis = axis_of(parameter.domain)
    # grid_problems refuses all others.
    assert axis is not None
    return axis


def _indexes(axis: Axis, condition: Condition) -> frozenset[int]:
    """Return the indexes of the values for which the condition holds. Only equal values count."""
    found = (axis.index_of(value) for value in condition.values)
    name = condition.parameter
    return frozenset(k for k in found if k is not None and condition.holds({name: axis.at(k)}))


def _mentioned(space: Space, axes: Mapping[str, Axis]) -> dict[str, frozenset[int]]:
    mentioned: dict[str, frozenset[int]] = {}
    for parameter in space.parameters:
        for c in parameter.when:
            mentioned[c.parameter] = mentioned.get(c.parameter, frozenset()) | _indexes(
                axes[c.parameter], c
            )
    return mentioned


def _runs(axis: Axis, mentioned: frozenset[int]) -> tuple[tuple[int, int, int], ...]:
    count = axis.count
    # An axis is countable.
    assert count is not None
    runs: list[tuple[int, int, int]] = []
    start = 0
    for index in sorted(mentioned):
        if start < index:
            runs.append((start, index - start, OTHER))
        runs.append((index, 1, index))
        start = index + 1
    if start < count:
        runs.append((start, count - start, OTHER))
    return tuple(runs)


ENTRIES = (
    Family(
        "grid",
        "Every point of a finite space once, in order.",
        NoSettings,
        GridSampler,
        learns=False,
        space_problems=grid_problems,
        enumerates=True,
    ),
)
