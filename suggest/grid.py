"""The points of a grid over a search space: how many there are, and which has which number.

Points that differ in inactive parameters only are one. They are numbered without being enumerated,
so 2^30 of them cost nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from suggest.axis import Axis, axis_of
from suggest.space import Assignment, Choice, Condition, Parameter, Space, Value

# What a parameter is to those that depend on it: the index of a value
# that some condition mentions, or one of these.
OTHER = -1
INACTIVE = -2


def grid_points(space: Space) -> int | None:
    """Return how many points a grid of the space has; None if it cannot have one."""
    has_grid = all(axis_of(parameter.domain) is not None for parameter in space.parameters)
    return Grid(space, {}).total if has_grid else None


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
