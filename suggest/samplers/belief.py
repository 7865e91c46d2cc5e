"""A person's belief about the best value of a parameter, as a distribution of its values.

A number's is normal on the parameter's scale, around the value, and truncated to the range. The
first trials of a search draw from it. Pure; `gp_belief` has what the model makes of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from statistics import NormalDist

from suggest.domain import identity
from suggest.errors import Problem
from suggest.proposal import PointRequest
from suggest.samplers.quantiles import fraction_of
from suggest.samplers.uniform import BITS, at_fraction, draw
from suggest.space import Choice, Domain, Float, Int, Space, Value
from suggest.study import Belief

# With the probability `sure`, the best value is within this share of the range, on its scale.
NEAR = 0.1


def belief_problems(belief: Belief, domain: Domain) -> Iterator[Problem]:
    """Yield the problems of a belief about a parameter with this domain. Paths are its fields."""
    if problem := domain.problem_with(belief.around):
        yield Problem("around", problem)
    sure = belief.sure
    if not 0 < sure < 1:
        yield Problem("sure", f"{sure:g} is not above 0 and below 1; use 0.5, or another share")
    elif isinstance(domain, Choice) and domain.count > 1 and sure * domain.count <= 1:
        yield Problem(
            "sure",
            f"{sure:g} is no more than an even guess among {domain.count} choices; use more than "
            f"{1 / domain.count:.2g}, or remove the belief",
        )
    elif not isinstance(domain, Choice) and sure <= (even := _even_guess(belief, domain)):
        yield Problem(
            "sure",
            f"{sure:g} is no more than an even guess within a tenth of the range; use more than "
            f"{even:.2g}, or remove the belief",
        )


def _even_guess(belief: Belief, domain: Float | Int) -> float:
    """Return the probability that a random value is near the believed one; 0 if that is unknown."""
    around = belief.around
    if not isinstance(around, int | float) or domain.problem_with(around):
        return 0.0
    fraction = fraction_of(domain, around)
    return round(min(fraction + NEAR, 1.0) - max(fraction - NEAR, 0.0), 9)


def distribution(belief: Belief, domain: Float | Int) -> NormalDist:
    """Return the distribution of a number's fraction, which is 0 to 1 within the range."""
    around = belief.around
    assert isinstance(around, int | float)
    # The lower tail: 1 + sure rounds to 2 for the shares next to 1.
    deviation = NEAR / -NormalDist().inv_cdf((1 - belief.sure) / 2)
    return NormalDist(fraction_of(domain, around), deviation)


class FirstValues:
    """Values for the first trials of a search: what is believed to be best, then draws."""

    def __init__(self, prior: tuple[Belief, ...], space: Space, seed: int) -> None:
        self._prior = [(each, space.by_name[each.parameter].domain) for each in prior]
        self._seed = seed

    def of(self, one: PointRequest) -> dict[str, Value]:
        """Return a value of each parameter with a belief; it may be inactive in the trial.

        Return nothing for every second trial: beliefs may be wrong.
        """
        if one.number % 2 or not self._prior:
            return {}
        if not one.number and not one.again:
            return {each.parameter: each.around for each, _ in self._prior}
        rng = one.source(self._seed, "belief")
        return {each.parameter: _drawn(each, domain, rng) for each, domain in self._prior}


def _drawn(belief: Belief, domain: Domain, rng: random.Random) -> Value:
    if not isinstance(domain, Choice):
        curve = distribution(belief, domain)
        low, high = curve.cdf(0.0), curve.cdf(1.0)
        fraction = curve.inv_cdf(low + (high - low) * rng.uniform(1e-9, 1 - 1e-9))
        return at_fraction(domain, min(max(int(fraction * 2**BITS), 0), 2**BITS - 1))
    others = [v for v in domain.values if identity(v) != identity(belief.around)]
    if not others or rng.random() < belief.sure:
        return belief.around
    return draw(Choice(tuple(others)), rng)
