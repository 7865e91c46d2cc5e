"""The values of one parameter that a grid tries: those of a countable domain,
or the `points` of a continuous float.

Only the grid reads `points`. For other algorithms such a float is continuous, so a trial may lie
between the points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from suggest.domain import TOLERANCE, number
from suggest.space import Choice, Domain, Float, Int, Scale, Value


@dataclass(frozen=True, slots=True)
class EvenPoints:
    """`count` values, 2 or more, evenly spaced from `low` to `high` on the scale."""

    low: float
    high: float
    scale: Scale
    count: int

    def at(self, index: int) -> float:
        """Return the value at an index from 0 to count - 1, in ascending order."""
        last = self.count - 1
        if index in (0, last):
            return float(self.high if index else self.low)
        low, high = self._on_scale(self.low), self._on_scale(self.high)
        exact = low + (high - low) * (index / last)
        if self.scale is Scale.LOG:
            exact = math.exp(exact)
        # 0.01, not 0.009999999999999998.
        neat = float(f"{exact:.12g}")
        return neat if abs(neat - exact) < self._gap(exact) / 1000 else exact

    def index_of(self, value: Value) -> int | None:
        """Return the index of the point that equals `value` up to rounding.

        None if it lies between points.
        """
        x = number(value)
        if x is None or not self.low <= x <= self.high:
            return None
        low, high = self._on_scale(self.low), self._on_scale(self.high)
        index = round((self._on_scale(x) - low) / (high - low) * (self.count - 1))
        return index if abs(x - self.at(index)) <= TOLERANCE * self._gap(x) else None

    @property
    def are_distinct(self) -> bool:
        """Return whether neighboring points differ by more than rounding errors.

        Points that are only a few doubles apart may be distinct too,
        but `at` and `index_of` do not ensure it.
        """
        low, high = self._on_scale(self.low), self._on_scale(self.high)
        if self._gap_on_scale <= 4 * max(math.ulp(low), math.ulp(high)):
            return False
        return self._gap(self.low) > 4 * math.ulp(self.low)

    @property
    def _gap_on_scale(self) -> float:
        return (self._on_scale(self.high) - self._on_scale(self.low)) / (self.count - 1)

    def _gap(self, x: float) -> float:
        """Return the distance between neighboring points near x."""
        return x * self._gap_on_scale if self.scale is Scale.LOG else self._gap_on_scale

    def _on_scale(self, x: float) -> float:
        return math.log(x) if self.scale is Scale.LOG else x


Axis: TypeAlias = Float | Int | Choice | EvenPoints


def axis_of(domain: Domain) -> Axis | None:
    """Return the values that a grid tries; None for a continuous float without `points`."""
    if domain.count is not None:
        return domain
    if isinstance(domain, Float) and domain.points is not None:
        return EvenPoints(domain.min, domain.max, domain.scale, domain.points)
    return None
