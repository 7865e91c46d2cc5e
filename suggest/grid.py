"""The points of a grid over a search space: how many there are, and which has which number.

Points that differ in inactive parameters only are one. They are numbered without being enumerated,
so 2^30 of them cost nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from suggest.axis import Axis, axis_of
from suggest.space import Assignment, Choice, Condition, Parameter, Space, Value

# Takes up to a second. Counting is #P-hard, so some spaces have more, whatever the order.
MOST_STATES = 150_000


class TooManyStates(Exception):
    """The points cannot be counted, because too many conditions hang together."""


def grid_points(space: Space) -> int | None:
    """Return how many points a grid of the space has; None if it cannot have one."""
    if any(axis_of(parameter.domain) is None for parameter in space.parameters):
        return None
    grid = Grid.if_countable(space)
    return None if grid is None else grid.total


@dataclass(frozen=True, slots=True)
class _Level:
    """One parameter of the grid, with its values as runs.

    A run is (first index, length, the later levels that its values make inactive). A set of levels
    is an int, whose bits are their depths.
    """

    name: str
    axis: Axis
    runs: tuple[tuple[int, int, int], ...]
    # The levels that are inactive whenever this one is.
    dependents: int


class Grid:
    """A numbering 0..total-1 of the distinct points that agree with `fixed`.

    The last parameter varies fastest.

    A fixed value need not be one that the grid would try.

    The numbering is a mixed radix over the levels. The number of points below a level depends only
    on its state: which of it and the later levels are inactive because of earlier values. Children
    follow their parents directly, which keeps the states few.

    Raises:
        TooManyStates: there are more than MOST_STATES.
    """

    def __init__(self, space: Space, fixed: Mapping[str, Value]) -> None:
        self._space = space
        order = _parents_and_children(space)
        self._axes = {
            p.name: Choice((fixed[p.name],)) if p.name in fixed else _axis(p) for p in order
        }
        # By parent: the depth of each dependent, and the values of the parent that it allows.
        conditions: dict[str, list[tuple[int, frozenset[int]]]] = {p.name: [] for p in order}
        for depth, parameter in enumerate(order):
            for each in parameter.when:
                allowed = _indexes(self._axes[each.parameter], each)
                conditions[each.parameter].append((depth, allowed))
        self._levels = [_level(name, self._axes[name], conditions[name]) for name in conditions]
        # By depth and state: how many ways there are to continue.
        self._counts = self._counted()
        self.total = self._counts[0][0]

    @staticmethod
    def if_countable(space: Space) -> Grid | None:
        """Return the grid of a space whose parameters all have points; None if it is too large."""
        try:
            return Grid(space, {})
        except TooManyStates:
            return None

    def _runs(self, depth: int, state: int) -> list[tuple[int, int, int]]:
        """Return the runs of a level, each with the state of the next level.

        One of length 1 represents an inactive level.
        """
        level, later = self._levels[depth], state & ~(1 << depth)
        if state != later:
            return [(0, 1, later | level.dependents)]
        return [(first, length, later | inactive) for first, length, inactive in level.runs]

    def _counted(self) -> list[dict[int, int]]:
        counts: list[dict[int, int]] = [{0: 0}]
        states = 1
        for depth in range(len(self._levels)):
            after: dict[int, int] = {}
            for state in counts[-1]:
                after |= {later: 0 for _, _, later in self._runs(depth, state)}
            states += len(after)
            if states > MOST_STATES:
                raise TooManyStates
            counts.append(after)
        counts[-1] = dict.fromkeys(counts[-1], 1)
        for depth in reversed(range(len(self._levels))):
            below = counts[depth + 1]
            for state in counts[depth]:
                runs = self._runs(depth, state)
                counts[depth][state] = sum(length * below[after] for _, length, after in runs)
        return counts

    def point(self, index: int) -> Assignment:
        """Return the point of a number below `total`."""
        state = 0
        values: dict[str, Value] = {}
        for depth, level in enumerate(self._levels):
            is_active = not state >> depth & 1
            for first, length, after in self._runs(depth, state):
                below = self._counts[depth + 1][after]
                if index < length * below:
                    skip, index = divmod(index, below)
                    if is_active:
                        values[level.name] = level.axis.at(first + skip)
                    state = after
                    break
                index -= length * below
        return self._space.in_order(values)

    def tries(self, part: Assignment) -> bool:
        """Return whether this grid tries each of the values."""
        return all(self._axes[name].index_of(value) is not None for name, value in part.items())

    def index_of(self, point: Assignment) -> int | None:
        """Return the number of a point; None if it is incomplete or not in this grid."""
        state = index = 0
        for depth, level in enumerate(self._levels):
            position: int | None = 0
            if not state >> depth & 1:
                position = level.axis.index_of(point[level.name]) if level.name in point else None
            if position is None:
                return None
            for first, length, after in self._runs(depth, state):
                below = self._counts[depth + 1][after]
                if first <= position < first + length:
                    index += (position - first) * below
                    state = after
                    break
                index += length * below
            else:
                return None
        return index


def _parents_and_children(space: Space) -> list[Parameter]:
    """Return parents before children, and each child as soon as its last parent is there.

    The missing parents of a child that has some come before others, fewest first.
    """
    children: dict[str, list[Parameter]] = {}
    waiting: dict[str, set[str]] = {}
    for parameter in space.ordered:
        waiting[parameter.name] = {c.parameter for c in parameter.when}
        for parent in waiting[parameter.name]:
            children.setdefault(parent, []).append(parameter)
    order: list[Parameter] = []
    # Without conditions, and not in the order yet.
    roots = {p.name: p for p in space.ordered if not p.when}
    # Children that have some parents in the order, but not all.
    begun: dict[str, None] = {}
    while roots:
        name = next(iter(roots))
        if begun:
            name = min(begun, key=lambda child: len(waiting[child]))
            while waiting[name]:
                name = min(waiting[name])
        stack = [roots.pop(name)]
        while stack:
            parameter = stack.pop()
            order.append(parameter)
            for child in reversed(children.get(parameter.name, ())):
                waiting[child.name].discard(parameter.name)
                if waiting[child.name]:
                    begun[child.name] = None
                else:
                    begun.pop(child.name, None)
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


def _level(name: str, axis: Axis, conditions: list[tuple[int, frozenset[int]]]) -> _Level:
    """conditions: the depth of each dependent, and the indexes of the values that it allows."""
    count = axis.count
    # An axis is countable.
    assert count is not None
    cuts = {0, count}
    for _, allowed in conditions:
        cuts |= allowed | {index + 1 for index in allowed}
    runs: list[tuple[int, int, int]] = []
    for first, end in pairwise(sorted(cuts)):
        inactive = _bits(depth for depth, allowed in conditions if first not in allowed)
        if runs and runs[-1][2] == inactive:
            first, _, _ = runs.pop()
        runs.append((first, end - first, inactive))
    return _Level(name, axis, tuple(runs), _bits(depth for depth, _ in conditions))


def _bits(levels: Iterable[int]) -> int:
    bits = 0
    for depth in levels:
        bits |= 1 << depth
    return bits
