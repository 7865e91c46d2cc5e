"""Random search: every point independent of all others, uniform on each parameter's scale.

Index-based: trial n's point is a function of (space, study seed, n) and its fixed part, so it costs the same after
any history. Other samplers start with it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from suggest import deadline
from suggest.samplers.sampler import PointRequest
from suggest.space import Assignment, Domain, Float, Int, Scale, Space, Value
from suggest.study import StudySpec
from suggest.trial import Trial


class RandomSampler:
    def __init__(self, spec: StudySpec, seed: int, settings: object) -> None:
        self._space = spec.space
        self._seed = seed

    def put(self, trial: Trial) -> None:
        pass

    def propose(self, wanted: Sequence[PointRequest]) -> list[Assignment]:
        return draw_points(self._space, self._seed, wanted)

    def warm_up(self) -> None:
        pass


def draw_points(space: Space, seed: int, wanted: Sequence[PointRequest]) -> list[Assignment]:
    points: list[Assignment] = []
    for one in wanted:
        deadline.check()
        points.append(draw_point(space, seed, one))
    return points


def draw_point(space: Space, seed: int, wanted: PointRequest) -> Assignment:
    rng = wanted.source(seed, "random")
    point: dict[str, Value] = {}
    for parameter in space.ordered:
        if parameter.active(point):
            name = parameter.name
            point[name] = wanted.fixed[name] if name in wanted.fixed else draw(parameter.domain, rng)
    return {p.name: point[p.name] for p in space.parameters if p.name in point}


def draw(domain: Domain, rng: random.Random) -> Value:
    """Uniform on the domain's scale; countable values are equally likely, but for an int on a log scale."""
    match domain:
        case Float() if domain.count is None:
            return _between(domain.min, domain.max, domain.scale, rng)
        case Int(scale=Scale.LOG):
            # Half a step beyond each end, so that the ends get their share too.
            whole = round(_between(domain.min - 0.5, domain.max + 0.5, Scale.LOG, rng))
            return min(max(whole, domain.min), domain.max)
    assert domain.count is not None
    return domain.at(rng.randrange(domain.count))


def _between(low: float, high: float, scale: Scale, rng: random.Random) -> float:
    if scale is Scale.LOG:
        x = math.exp(math.log(low) + (math.log(high) - math.log(low)) * rng.random())
    else:
        x = low + (high - low) * rng.random()
    return float(min(max(x, low), high))
