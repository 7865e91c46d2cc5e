"""The warps of the Gaussian process, of losses and of places. Pure functions of arrays.

Losses are scaled, outliers above are clipped, and log(u + delta) is standardized. delta is a parameter of the
model: as it grows the warp becomes linear. Places are warped by the distribution function of Kumaraswamy (Snoek et
al. 2014, Input warping for Bayesian optimization of non-stationary functions), whose two shapes are parameters, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from suggest.samplers.normal import Floats

CLIP = 10.0  # times the distance from the best loss to the median, above the best
FARTHEST = 3.0  # from the bound of a constraint: how much a trial breaks it matters only near it
LEAST_SPREAD = 1e-12  # of warped losses
EDGE = 1e-6  # nearer to an end of the span, slopes are those at this distance


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


def balanced(margins: Floats) -> Floats:
    """Finite margins of a constraint, however large or small: 0 is its bound, and 1 the median distance from it."""
    largest = np.abs(margins).max()
    if largest == 0:
        return np.zeros_like(margins)
    margins = margins / largest
    away = np.abs(margins)
    unit = np.median(away[away > 0])
    with np.errstate(over="ignore"):
        found: Floats = np.clip(margins / unit, -FARTHEST, FARTHEST)
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


def unwarped(warps: Floats, losses: Floats, log_delta: float) -> Floats:
    """Losses whose warped values are `warps`: the inverse of `warped` after `scaled`, both of these losses."""
    u = scaled(losses)
    best = losses.min()
    inside = np.flatnonzero((u > 0) & (u < CLIP))
    z = np.log1p(u / np.exp(log_delta))
    if not len(inside) or z.std() < LEAST_SPREAD:
        return np.full_like(warps, best)
    unit = (losses[inside[0]] - best) / u[inside[0]]
    found: Floats = best + unit * np.exp(log_delta) * np.expm1(warps * z.std() + z.mean())
    return found


@dataclass(frozen=True, slots=True)
class Bent:
    """Warped places: 1 - (1 - x^a)^b, and their derivatives by the place, log a and log b."""

    places: Floats
    by_place: Floats
    by_log_a: Floats
    by_log_b: Floats


def bent(places: Floats, log_a: Floats, log_b: Floats) -> Bent:
    """places: (rows, axes) in [0, 1]; log_a, log_b: (axes,). The identity where both are 0."""
    a, b = np.exp(log_a), np.exp(log_b)
    x = np.clip(places, EDGE, 1.0 - EDGE)
    log_x = np.log(x)
    power = np.exp(a * log_x)
    log_rest = np.log1p(-power)
    rest = np.exp(b * log_rest)
    slope = a * b * power * rest / (1.0 - power)
    return Bent(1.0 - rest, slope / x, slope * log_x, -b * rest * log_rest)
