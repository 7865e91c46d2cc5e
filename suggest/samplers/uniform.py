"""Random search: independent points, each parameter drawn from its distribution.

Trial n's point is a function of the space, the study's seed, n and the fixed values, so the time it
takes does not depend on the history. Other samplers begin with random search.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from suggest import deadline
from suggest.proposal import PointRequest
from suggest.samplers.family import DrawSettings, Family
from suggest.samplers.quantiles import by_index, quantile
from suggest.samplers.sampler import Sampler
from suggest.space import Assignment, Choice, Domain, Space, Value
from suggest.study import StudySpec
from suggest.trial import Trial

# A word of this many bits is the fraction word / 2^BITS: enough to reach each of 2^54 integers.
BITS = 64


class RandomSampler(Sampler):
    def __init__(self, spec: StudySpec, seed: int, settings: object) -> None:
        self._space = spec.space
        self._seed = seed

    def put(self, trial: Trial) -> None:
        """Proposals do not depend on trials."""

    def propose(self, wanted: Sequence[PointRequest]) -> list[Assignment]:
        return draw_points(self._space, self._seed, wanted)


def draw_points(space: Space, seed: int, wanted: Sequence[PointRequest]) -> list[Assignment]:
    points: list[Assignment] = []
    for one in wanted:
        deadline.check()
        points.append(draw_point(space, seed, one))
    return points


def draw_point(space: Space, seed: int, wanted: PointRequest) -> Assignment:
    rng = wanted.source(seed, "random")
    return space.point(
        lambda p: wanted.fixed[p.name] if p.name in wanted.fixed else draw(p.domain, rng)
    )


def draw(domain: Domain, rng: random.Random) -> Value:
    """Return a value drawn from the domain's distribution.

    Without one, values are equally likely on their scale.
    """
    if by_index(domain):
        assert domain.count is not None
        return domain.at(rng.randrange(domain.count))
    return _quantile(domain, rng.random())


def at_fraction(domain: Domain, word: int) -> Value:
    """Return the quantile of `draw` at the fraction word / 2^BITS."""
    if by_index(domain):
        assert domain.count is not None
        return domain.at((word * domain.count) >> BITS)
    return _quantile(domain, (word >> (BITS - 53)) * 2.0**-53)


def _quantile(domain: Domain, fraction: float) -> Value:
    # Choices are drawn by index.
    assert not isinstance(domain, Choice)
    return quantile(domain, fraction)


ENTRIES = (
    Family(
        "random",
        "Independent points, each parameter drawn from its distribution.",
        DrawSettings,
        RandomSampler,
        learns=False,
    ),
    Family(
        "hyperband",
        "Random points for trials of several fidelities, which begin in the brackets of Hyperband.",
        DrawSettings,
        RandomSampler,
        learns=False,
        several=False,
    ),
)
