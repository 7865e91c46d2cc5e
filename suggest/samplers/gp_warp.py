"""The output warp of the Gaussian process: losses to numbers that look normal.

Losses are scaled, outliers above are clipped, and log(u + delta) is standardized. delta is a parameter of the
model: as it grows the warp becomes linear. Pure functions of arrays.
"""

from __future__ import annotations

import numpy as np

from suggest.samplers.normal import Floats

CLIP = 10.0  # times the distance from the best loss to the median, above the best
LEAST_SPREAD = 1e-12  # of warped losses


def scaled(losses: Floats) -> Floats:
    """Finite losses, however large or small, as 0 for the best and 1 for the median; at most CLIP."""
    largest = np.abs(losses).max()
    if largest == 0:
        return np.zeros_like(losses)
    losses = losses / largest
    above = losses - losses.min()
    unit = np.median(above)
    if unit <= 0 and above.any():
        unit = above[above > 0].mean()  # more than half are the best
    if unit <= 0:
        return np.zeros_like(losses)
    with np.errstate(over="ignore"):
        found: Floats = np.minimum(above / unit, CLIP)
    return found


def warped(u: Floats, log_delta: float) -> tuple[Floats, Floats, float, float]:
    """Standardized log(u + delta); its derivative by log delta; the log of the Jacobian; and the derivative of that."""
    delta = np.exp(log_delta)
    z = np.log1p(u / delta)
    slope = -u / (u + delta)
    spread = z.std()
    if spread < LEAST_SPREAD:
        return np.zeros_like(z), np.zeros_like(z), 0.0, 0.0
    t: Floats = (z - z.mean()) / spread
    common = float(np.mean(t * slope))
    by_delta: Floats = (slope - slope.mean() - t * common) / spread
    jacobian = -float(np.log(u + delta).sum()) - len(u) * float(np.log(spread))
    jacobian_by_delta = -float((delta / (u + delta)).sum()) - len(u) * common / float(spread)
    return t, by_delta, jacobian, jacobian_by_delta
