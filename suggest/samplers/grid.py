"""Grid search: every distinct point of a finite space once, by index.

`GridSampler` proposes the smallest number that no trial holds. A cancelled trial holds no point; a
failed one does. Numbers are not stored: they are derived from the points of the trials, so
restarts, imported and enqueued trials need no special care. A trial between the grid's points of a
float is extra, and holds none.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from suggest.axis import EvenPoints, axis_of
from suggest.domain import show
from suggest.errors import FailedPrecondition, Problem
from suggest.grid import Grid
from suggest.proposal import PointRequest
from suggest.samplers.family import Family
from suggest.samplers.sampler import Sampler
from suggest.settings import NoSettings
from suggest.space import Assignment
from suggest.study import StudySpec
from suggest.trial import Trial, TrialState

_TOO_MANY_STATES = (
    "the conditions hang together so much that the points of a grid cannot be counted; "
    "make parameters depend on fewer others, or use random"
)


def grid_problems(spec: StudySpec) -> Iterator[Problem]:
    parameters = spec.space.parameters
    if all(axis_of(each.domain) for each in parameters) and Grid.if_countable(spec.space) is None:
        yield Problem("", _TOO_MANY_STATES)
    for parameter in parameters:
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
        """Raises FailedPrecondition: its study is older than the limit of `grid_problems`."""
        self._space = spec.space
        grid = Grid.if_countable(spec.space)
        if grid is None:
            raise FailedPrecondition(f"the study cannot go on: {_TOO_MANY_STATES}")
        self._grid = grid
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
