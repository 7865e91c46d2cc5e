"""Beliefs about the best values, as a factor of the acquisition function.

They are a person's beliefs, or else our own: that the best values of several numbers are nearer to
the middles than to the ends of their ranges. The process knows the least about the ends, so without
this belief it would spend most of its first points there.

Hvarfner et al. 2022, piBO: Augmenting acquisition functions with user beliefs for Bayesian
optimization. The acquisition is multiplied by the density of the belief, to a power that falls with
the number of results. Here the power of each parameter also falls as the best trials contradict its
belief, and the density is bounded below: no place is ever excluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from suggest.domain import encode
from suggest.samplers.belief import distribution
from suggest.samplers.gp_space import MIDDLE, Axis, Places
from suggest.samplers.normal import Floats
from suggest.space import Choice
from suggest.study import Belief

# The power is POWER / results, as in section 4.1 of the paper for 100 trials; for our own beliefs,
# OWN_POWER / results.
POWER, OWN_POWER = 10.0, 20.0
# The density of the most unlikely places, as a share of the largest one.
FLOOR = 0.01
# From this many numbers on, most of a space is near the end of a range.
# AROUND_MIDDLE: the standard deviation of our own beliefs, in places.
SEVERAL, AROUND_MIDDLE = 4, 0.25


@dataclass(frozen=True, slots=True)
class _Density:
    """The density of a belief about one axis, scaled so that the largest one is 1.

    center: the place that is believed to be best.
    deviation: of a number, in places; 0 for a choice.
    elsewhere: the density of the other values of a choice; for a number, the least density.
    """

    axis: int
    center: float
    deviation: float
    elsewhere: float

    @classmethod
    def of(cls, belief: Belief, axis: int, places: Axis) -> _Density:
        domain = places.domain
        if isinstance(domain, Choice):
            index = encode(domain, belief.around)
            assert index is not None
            odds = (1.0 - belief.sure) / (places.count - 1.0) / belief.sure
            return cls(axis, float(index), 0.0, odds)
        curve = distribution(belief, domain)
        return cls(axis, curve.mean, curve.stdev, FLOOR)

    def agreement(self, rows: Floats) -> Floats:
        """Return 1 where rows are at the center, 0 far from it, and NaN where it is inactive."""
        away = rows[:, self.axis] - self.center
        if self.deviation:
            return np.exp(-0.5 * (away / self.deviation) ** 2)
        return np.where(np.isnan(away), np.nan, away == 0.0)

    def log_and_slope(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return the logarithm of the density, and its derivative; 0 where it is inactive."""
        agreement = np.nan_to_num(self.agreement(rows), nan=1.0)
        density = self.elsewhere + (1.0 - self.elsewhere) * agreement
        slope = np.zeros(len(rows))
        if self.deviation:
            away = np.nan_to_num(rows[:, self.axis], nan=self.center) - self.center
            slope = -(1.0 - self.elsewhere) * agreement * away / self.deviation**2 / density
        return np.log(density), slope


def _densities(prior: Sequence[Belief], places: Places) -> list[_Density]:
    if prior:
        axis_of = {axis.name: k for k, axis in enumerate(places.axes)}
        # A parameter with a single value has no axis.
        axes = [(each, axis_of[each.parameter]) for each in prior if each.parameter in axis_of]
        return [_Density.of(each, k, places.axes[k]) for each, k in axes]
    numbers = np.flatnonzero(places.smooth & ~places.optional)
    if len(numbers) < SEVERAL:
        return []
    return [_Density(int(k), MIDDLE, AROUND_MIDDLE, FLOOR) for k in numbers]


class Beliefs:
    """A factor of the acquisition function, as those of `gp_acquisition`.

    best: rows of the best trials. results: how many trials have a value.
    """

    def __init__(self, prior: Sequence[Belief], places: Places, best: Floats, results: int) -> None:
        power = POWER if prior else OWN_POWER
        self._weighted: list[tuple[_Density, float]] = []
        for density in _densities(prior, places):
            agreement = density.agreement(best)
            known = agreement[~np.isnan(agreement)]
            share = float(known.mean()) if len(known) else 1.0
            self._weighted.append((density, share * power / max(results, 1)))

    def promise(self, rows: Floats) -> Floats:
        found = np.zeros(len(rows))
        for density, power in self._weighted:
            found += power * density.log_and_slope(rows)[0]
        return found

    def slopes(self, rows: Floats) -> tuple[Floats, Floats]:
        found, gradient = np.zeros(len(rows)), np.zeros(rows.shape)
        for density, power in self._weighted:
            log, slope = density.log_and_slope(rows)
            found += power * log
            gradient[:, density.axis] += power * slope
        return found, gradient
