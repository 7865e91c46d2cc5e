"""Student's t distribution, for intervals from few values. Pure."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

# From here on the expansion is exact to five digits, and costs the same for all.
_MANY = 100


def t_within(t: float, degrees: int) -> float:
    """Return the probability that a value of Student's t distribution is between -t and t.

    Abramowitz and Stegun, 26.7.3 and 26.7.4, for whole degrees of freedom.
    """
    angle = math.atan2(t, math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = degrees % 2 == 1
    term = cosine if is_odd else 1.0
    total = 0.0
    for k in range(1 if is_odd else 0, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (k + 1) / (k + 2)
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total


@lru_cache(maxsize=1024)
def t_quantile(within: float, degrees: int) -> float:
    """Return t such that `t_within(t, degrees)` is `within`.

    For many degrees by an expansion around the normal distribution: Abramowitz and Stegun, 26.7.5.
    """
    if degrees >= _MANY:
        z = NormalDist().inv_cdf((1 + within) / 2)
        return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    low, high = 0.0, 1.0
    while t_within(high, degrees) < within:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_within(middle, degrees) < within else (low, middle)
    return high
