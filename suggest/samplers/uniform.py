"""Random search: independent points, uniform on each parameter's scale.

Trial n's point is a function of the space, the study's seed, n and the fixed values, so the time it takes does not
depend on the history. Other samplers begin with random search.
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

BITS = 64  # of a word, which is the fraction word / 2^BITS; enough to reach each of 2^54 integers


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
    """Return a value, uniform on its scale. Countable values are equally likely, except ints on a log scale."""
    if by_index(domain):
        assert domain.count is not None
        return domain.at(rng.randrange(domain.count))
    return at_fraction(domain, rng.random())


def at_share(domain: Domain, word: int) -> Value:
    """Return the quantile of `draw` at the fraction word / 2^BITS."""
    if by_index(domain):
        assert domain.count is not None
        return domain.at((word * domain.count) >> BITS)
    return at_fraction(domain, (word >> (BITS - 53)) * 2.0**-53)


def by_index(domain: Domain) -> bool:
    """Return whether the values are equally likely: countable ones, except ints on a log scale."""
    return domain.count is not None and not (isinstance(domain, Int) and domain.scale is Scale.LOG)


def at_fraction(domain: Domain, fraction: float) -> Value:
    """Return the quantile at a fraction from 0 to 1, for values that are not drawn by index."""
    match domain:
        case Float():
            return _between(domain.min, domain.max, domain.scale, fraction)
        case Int():
            # Begin half a step beyond each end, so that the ends are as likely as other values.
            whole = round(_between(domain.min - 0.5, domain.max + 0.5, Scale.LOG, fraction))
            return min(max(whole, domain.min), domain.max)
    raise AssertionError(f"{domain} is drawn by index")


def _between(low: float, high: float, scale: Scale, fraction: float) -> float:
    if scale is Scale.LOG:
        x = math.exp(math.log(low) + (math.log(high) - math.log(low)) * fraction)
    else:
        x = low + (high - low) * fraction
    return float(min(max(x, low), high))
