"""The acquisition function: the logarithm of the expected improvement, with a stable tail.

Ament et al. 2023 (Unexpected improvements to expected improvement), equation 9, on the error
function of `normal`.
"""

from __future__ import annotations

import math

import numpy as np

from suggest.samplers.normal import LOG_ROOT_TAU, ROOT_HALF, Floats, scaled_erfc

# below: the first term of the asymptotic series, of which the second is 3 / u² of it.
FAR = -1e4


def log_improvement(u: Floats) -> tuple[Floats, Floats]:
    """Return log(phi(u) + u Phi(u)) for finite u, and its derivative Phi(u) / (phi(u) + u Phi(u)).

    u: one-dimensional.
    """
    half = -0.5 * u * u
    erfc = scaled_erfc(np.abs(u) * ROOT_HALF)
    outer = 0.5 * np.exp(half) * erfc
    below = np.where(u > 0, 1.0 - outer, outer)
    right = u > -1.0
    density = np.exp(half - LOG_ROOT_TAU)
    value = np.where(right, density + u * below, 1.0)
    # Phi / phi, for u < 0.
    mills = math.sqrt(0.5 * math.pi) * erfc
    # 1 + u * mills loses digits as 1/u²: at FAR eight are gone, and the series takes over.
    far = u < FAR
    inner = np.where(right | far, 1.0, np.maximum(1.0 + u * mills, 1e-300))
    series = -2.0 * np.log(-np.minimum(u, -0.5))
    log_left = half - LOG_ROOT_TAU + np.where(far, series, np.log(inner))
    slope_left = np.where(far, -u, mills / inner)
    found: Floats = np.where(right, np.log(value), log_left)
    slope: Floats = np.where(right, below / value, slope_left)
    return found, slope


def log_chance(u: Floats) -> tuple[Floats, Floats]:
    """Return log Phi(u) and its derivative. u: flat, finite."""
    erfc = scaled_erfc(np.abs(u) * ROOT_HALF)
    half = -0.5 * u * u
    left = u < 0
    log_left = half + np.log(0.5 * erfc)
    log_right = np.log1p(-0.5 * np.exp(half) * erfc)
    found: Floats = np.where(left, log_left, log_right)
    slope: Floats = np.exp(half - LOG_ROOT_TAU - found)
    return found, np.where(left, math.sqrt(2.0 / math.pi) / erfc, slope)
