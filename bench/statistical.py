"""Statistics of the quality benchmarks: tests with correction, ratios of regrets and ranks.

Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scipy.stats import mannwhitneyu


def log_ratio(mine: float, theirs: float, randoms: float) -> float:
    """Return the log ratio of regrets, each at least a thousandth of random search's."""
    least = max(randoms * 1e-3, 1e-12)
    return math.log(max(mine, least) / max(theirs, least))


def holm(chances: Sequence[float]) -> list[float]:
    """Return the p-values with Holm's correction for multiple tests."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    corrected, least = [0.0] * len(chances), 0.0
    for place, k in enumerate(order):
        least = corrected[k] = max(least, min(1.0, chances[k] * (len(chances) - place)))
    return corrected


def worse(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the p-value of such ranks if `mine` were not worse than `theirs`."""
    return float(mannwhitneyu(mine, theirs, alternative="greater").pvalue)


def ranks(values: Mapping[str, float]) -> dict[str, float]:
    """Return the rank of each, 1 for the lowest value;
    equal values share the mean of their ranks.
    """
    found = {}
    for name, value in values.items():
        below = sum(other < value for other in values.values())
        same = sum(other == value for other in values.values())
        found[name] = below + (same + 1) / 2
    return found
