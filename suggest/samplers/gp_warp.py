"""The output warp of the Gaussian process, which makes losses look normally distributed.

Pure functions of arrays.

Losses are scaled, outliers above are clipped, and log(u + delta) is standardized. delta is a
parameter of the model: as it grows the warp becomes linear.
"""

from __future__ import annotations

import math

import numpy as np

from suggest.samplers.normal import Floats

# Losses are clipped at this many times the distance from the best loss to the median, of all trials
# or of the early ones, and at MOST times that of all.
CLIP, MOST = 100.0, 1e8
# The first trials, or the first quarter if that is more, are all over the space.
EARLY = 10
# Margins are clipped at this many median distances from the bound of the constraint: how far a
# trial breaks it matters only near the bound.
FARTHEST = 3.0
LEAST_SPREAD = 1e-12  # of warped losses; below, they count as equal
# The worst losses are a plateau if at least LEAST_FLAT are within the share FLAT of the range from
# the worst one, and none is within the next such share.
FLAT, LEAST_FLAT = 0.05, 3


def scaled(losses: Floats) -> Floats:
    """Return finite losses of any size, in the order of their trials, scaled and clipped.

    The best is 0 and the median 1.
    """
    largest = np.abs(losses).max()
    if largest == 0:
        return np.zeros_like(losses)
    losses = losses / largest
    above = losses - losses.min()
    unit = np.median(above)
    if unit <= 0 and above.any():
        # More than half are the best.
        unit = above[above > 0].mean()
    if unit <= 0:
        return np.zeros_like(losses)
    # Once most trials are near the best, a clip at their median would hide how losses rise.
    early = np.median(above[: max(EARLY, len(above) // 4)])
    most = min(CLIP * max(unit, early), MOST * unit)
    found: Floats = np.minimum(above, most) / unit
    return found


def plateau(losses: Floats) -> float:
    """Return the loss from which on the worst losses are a plateau; infinity if they are not.

    Trainings that diverge end at a plateau. It has at most half of the losses, which are finite.
    """
    u = scaled(losses)
    most, share = u.max(), FLAT * float(np.ptp(u))
    flat = u >= most - share
    count = np.count_nonzero(flat)
    if not LEAST_FLAT <= count == np.count_nonzero(u >= most - 2.0 * share) <= len(u) // 2:
        return math.inf
    # Half way, because later trials may end a little lower.
    return float(0.5 * losses[~flat].max() + 0.5 * losses[flat].min())


def balanced(margins: Floats) -> Floats:
    """Return finite margins of a constraint, scaled and clipped.

    0 is at the bound, 1 at the median distance from it.
    """
    largest = np.abs(margins).max()
    if largest == 0:
        return np.zeros_like(margins)
    margins = margins / largest
    away = np.abs(margins)
    unit = np.median(away[away > 0])
    with np.errstate(over="ignore"):
        found: Floats = np.clip(margins / unit, -FARTHEST, FARTHEST)
    return found


def standardized(z: Floats) -> tuple[Floats, float]:
    """Return numbers shifted and scaled to mean 0 and spread 1, and their spread.

    All 0 if they are equal.
    """
    spread = float(z.std())
    if spread < LEAST_SPREAD:
        return np.zeros_like(z), 0.0
    return (z - z.mean()) / spread, spread


def warped(u: Floats, log_delta: float) -> tuple[Floats, Floats, float, float]:
    """Return standardized log(u + delta) and the log of the Jacobian.

    Each is followed by its derivative by log delta.
    """
    delta = np.exp(log_delta)
    t, spread = standardized(np.log1p(u / delta))
    if not spread:
        return t, t, 0.0, 0.0
    slope = -u / (u + delta)
    common = float(np.mean(t * slope))
    by_delta: Floats = (slope - slope.mean() - t * common) / spread
    jacobian = -float(np.log(u + delta).sum()) - len(u) * math.log(spread)
    jacobian_by_delta = -float((delta / (u + delta)).sum()) - len(u) * common / spread
    return t, by_delta, jacobian, jacobian_by_delta


def unwarped(warps: Floats, losses: Floats, log_delta: float) -> Floats:
    """Return the losses whose warped values are `warps`.

    This is the inverse of `warped` after `scaled` of these losses.
    """
    u = scaled(losses)
    best = losses.min()
    # The largest that is surely not clipped.
    inside = int(np.argmax(np.where(u <= 1.0, u, 0.0)))
    z = np.log1p(u / np.exp(log_delta))
    if not u[inside] or z.std() < LEAST_SPREAD:
        return np.full_like(warps, best)
    unit = (losses[inside] - best) / u[inside]
    found: Floats = best + unit * np.exp(log_delta) * np.expm1(warps * z.std() + z.mean())
    return found
