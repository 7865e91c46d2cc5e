"""The setting `duplicates`: what happens to a proposal that repeats a point of the study.

- `allow`: the point is used; this module is then not involved.
- `resample`: the point is drawn again, a few times by the algorithm and then uniformly. In a
  countable space one of the free points is used, until none is left.
- `reuse`: a point whose value is known is proposed, so that its value can be taken over. Other
  repetitions are drawn again.

A trial in any state but cancelled holds its point. Lookups use an index, so their cost does not
depend on the number of trials.
"""

from __future__ import annotations

import copy
import hashlib
import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from suggest import deadline
from suggest.domain import identity
from suggest.grid import Grid
from suggest.proposal import Computed, PointRequest, Steps
from suggest.samplers.family import REUSE
from suggest.samplers.grid import HeldPoints
from suggest.samplers.sampler import Sampler, SteppedSampler
from suggest.samplers.uniform import draw_point
from suggest.space import Assignment, Space
from suggest.study import StudySpec
from suggest.trial import Trial, TrialState

# Further draws by the algorithm, then as many uniform ones.
AGAIN = 8
# A space with at most this many points, ignoring conditions, is searched for a free point.
COUNTED = 10**5


class Distinct(SteppedSampler):
    """A sampler that proposes points that no trial holds, as far as the policy requires it."""

    def __init__(self, spec: StudySpec, seed: int, sampler: Sampler, *, policy: str) -> None:
        self._space = spec.space
        self._seed = seed
        self._sampler = sampler
        self._reuse = policy == REUSE
        self._known = _Known(spec.space)

    def beside(self, sampler: Sampler) -> Distinct:
        """Return a copy with another sampler, which the caller shows the trials.

        Both share the index of points.
        """
        other = copy.copy(self)
        other._sampler = sampler
        return other

    def put(self, trial: Trial) -> None:
        self._known.put(trial)
        self._sampler.put(trial)

    def steps(self, wanted: Sequence[PointRequest]) -> Steps:
        taken = _Taken()
        points: list[Assignment] = []
        drawn = yield from self._sampler.steps(wanted)
        for one, point in zip(wanted, drawn, strict=False):
            deadline.check()
            found = yield from self._another(one, point, taken)
            if found is None:
                break
            key = self._known.key(found)
            taken.keys.add(key)
            if key >= 0 and not self._known.holds(key):
                insort(taken.fresh, key)
            points.append(found)
        return points

    def value_of(self, point: Assignment) -> int | None:
        """Return the trial whose value a proposal of this point takes over.

        None if there is none.
        """
        return self._known.succeeded(point) if self._reuse else None

    def warm_up(self) -> None:
        self._sampler.warm_up()

    def _another(
        self, one: PointRequest, point: Assignment, taken: _Taken
    ) -> Computed[Assignment | None]:
        """Return the point if it may be used, otherwise another one.

        None if no point is left and none is required.
        """
        known = self._known
        free = known.free(taken.fresh)
        if free == 0:
            return point if one.fixed else None
        if self._is_acceptable(one, point, taken):
            return point
        again = yield from self._sampler.steps([replace(one, again=k) for k in range(1, AGAIN + 1)])
        again += [
            draw_point(self._space, self._seed, replace(one, again=k)) for k in range(1, AGAIN + 1)
        ]
        for other in again:
            if self._is_acceptable(one, other, taken):
                return other
        # Counted again, because the study may have changed during the last step.
        free = known.free(taken.fresh)
        if free is None or one.fixed:
            return point
        if free:
            return known.free_point(one.source(self._seed, "free").randrange(free), taken.fresh)
        return None

    def _is_acceptable(self, one: PointRequest, point: Assignment, taken: _Taken) -> bool:
        key = self._known.key(point)
        if key in taken.keys:
            return False
        return not self._known.holds(key) or (not one.new and self.value_of(point) is not None)


@dataclass(slots=True)
class _Taken:
    """The points of earlier requests in the batch.

    keys: of all these points.
    fresh: those of grid points that no trial holds, ascending.
    """

    keys: set[int] = field(default_factory=set)
    fresh: list[int] = field(default_factory=list)


class _Known:
    """The points that trials hold.

    A key is the point's number if the space is a small grid, otherwise a digest.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._grid = Grid.if_countable(space) if is_countable(space) else None
        self._held = HeldPoints()
        self._succeeded: dict[int, list[int]] = {}  # key -> trials with a value, ascending

    def put(self, trial: Trial) -> None:
        takes_point = trial.state is not TrialState.CANCELLED and not self._space.missing(
            trial.parameters
        )
        key = self.key(trial.parameters) if takes_point else None
        released = self._held.put(trial.number, key)
        if released is not None and trial.number in (trials := self._succeeded.get(released, [])):
            trials.remove(trial.number)
        valued = (
            trial.state is TrialState.SUCCEEDED
            and trial.value is not None
            and math.isfinite(trial.value)
        )
        if key is not None and valued:
            trials = self._succeeded.setdefault(key, [])
            if trial.number not in trials:
                insort(trials, trial.number)

    def key(self, point: Assignment) -> int:
        if self._grid is not None and (index := self._grid.index_of(point)) is not None:
            return index
        canonical = self._space.canonical(point)
        values = [(name, identity(value)) for name, value in canonical.items()]
        digest = hashlib.blake2b(repr(values).encode(), digest_size=8).digest()
        return -1 - int.from_bytes(digest)

    def holds(self, key: int) -> bool:
        return key in self._held

    def succeeded(self, point: Assignment) -> int | None:
        """Return the first trial that has a value at the point; None if there is none."""
        trials = self._succeeded.get(self.key(point))
        return trials[0] if trials else None

    def free(self, taken: Sequence[int]) -> int | None:
        """Return how many points are neither held nor taken.

        None if the space cannot be counted.
        """
        if self._grid is None:
            return None
        return self._grid.total - len(self._held) - len(taken)

    def free_point(self, rank: int, taken: Sequence[int]) -> Assignment:
        """Return the free point with index `rank` among the free ones. `taken` is ascending."""
        assert self._grid is not None
        index = self._held.free(rank)
        for key in taken:
            # Skip this key, and the held keys that the shift passes.
            if key <= index:
                rank += 1
                index = self._held.free(rank)
        return self._grid.point(index)


def is_countable(space: Space) -> bool:
    """Return whether the points can be counted, and are few enough to search for a free one."""
    total = 1
    for parameter in space.parameters:
        count = parameter.domain.count
        if count is None or (total := total * count) > COUNTED:
            return False
    return True
