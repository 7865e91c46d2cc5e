"""Optuna's Parzen estimator on arrays: a mixture with a kernel around each trial, and a prior over the whole space.

Pure functions of arrays, without trials or a random source. A kernel is a product of truncated normal distributions,
integrated over the bin for an integer, and of categorical distributions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from suggest.samplers.frame import Bins, CandidatePoints, Frame
from suggest.samplers.normal import LOG_ROOT_TAU, Floats, central_mass, log_mass, truncated
from suggest.samplers.split import shares

_AT_A_TIME = 8192  # (bin, kernel) pairs per block


@dataclass(frozen=True, slots=True)
class Mixture:
    """The kernels of a mixture, one per column; the last one is the prior.

    log_weights: (kernels,).
    mu, sigma: (numeric, kernels), as shares of the span.
    log_whole: (numeric, kernels), the log of each normal's probability within the span.
    coefficients: (3 * numeric, kernels), see `coefficients`.
    codes: (choices, kernels - 1), the trials' choices.
    sharpness: see `fit`.
    """

    log_weights: Floats
    mu: Floats
    sigma: Floats
    log_whole: Floats
    coefficients: Floats
    codes: Floats
    sharpness: float


def fit(frame: Frame, numbers: Floats, *, sharpness: float = 1.0) -> Mixture:
    """Fit a mixture to trials.

    Args:
        numbers: (dimensions, trials), in the order of the trials, each within its dimension.
        sharpness: How fast the narrowest kernel narrows as trials are added; 1 in Optuna.
    """
    mu, sigma = _kernels(frame, numbers[frame.numeric], narrowest(numbers.shape[1], sharpness))
    log_whole = np.log(central_mass(-mu / sigma, (1.0 - mu) / sigma))
    codes = numbers[[k for k, _ in frame.choices]]
    log_weights = np.log(shares(numbers.shape[1]))
    return Mixture(log_weights, mu, sigma, log_whole, coefficients(mu, sigma, log_whole), codes, sharpness)


def coefficients(mu: Floats, sigma: Floats, log_whole: Floats) -> Floats:
    """Return (3 * numeric, kernels), whose product with the features of points is the kernels' log density there."""
    precision = 1.0 / (sigma * sigma)
    pull = mu * precision
    constant = -0.5 * mu * pull - np.log(sigma) - log_whole - LOG_ROOT_TAU
    return np.concatenate([-0.5 * precision, pull, constant])


def narrowest(trials: int, sharpness: float) -> float:
    """Return the smallest width of a kernel, as a share of the span, for this number of trials."""
    return 1.0 / min(100.0, 2.0 + sharpness * trials)


def _kernels(frame: Frame, numbers: Floats, least: float) -> tuple[Floats, Floats]:
    """Return the kernels' centers and widths, the prior last. numbers: (numeric, trials).

    A kernel is as wide as the larger gap to its neighbors, within limits. An outermost kernel has only one gap.
    """
    rows, count = numbers.shape
    mu, sigma = np.empty((rows, count + 1)), np.empty((rows, count + 1))
    mu[:, count], sigma[:, count] = 0.5, 1.0
    if not count or not rows:
        return mu, sigma
    raw = frame.scaled(numbers)
    mu[:, :count] = (raw - frame.low) / frame.span
    # NumPy's order of equal values, as in Optuna, because it decides which of them gets the wide kernel.
    order = np.argsort(raw, axis=1) + np.arange(0, rows * (count + 1), count + 1)[:, None]
    places = np.empty((rows, count + 2))
    places[:, 0], places[:, -1] = 0.0, 1.0
    places[:, 1:-1] = mu.ravel()[order]
    gaps = places[:, 1:] - places[:, :-1]
    widths = np.maximum(gaps[:, :-1], gaps[:, 1:])
    if count >= 2:
        widths[:, 0], widths[:, -1] = gaps[:, 1], gaps[:, -2]
    # np.clip takes three times as long for arrays of this size.
    sigma.ravel()[order] = np.minimum(np.maximum(widths, least), 1.0)
    return mu, sigma


@dataclass(frozen=True, slots=True)
class Masses:
    """The probability of each kernel in the bins of one dimension. The last row is for candidates without such a bin.

    wide: (wide bins + 1, kernels), the log of the probability.
    narrow: (narrow bins + 1, kernels), the probability divided by the bin's width times the density in its middle.
    """

    wide: Floats
    narrow: Floats


def masses(mixture: Mixture, at: CandidatePoints) -> list[Masses]:
    """Return the probabilities for each integer dimension of the points."""
    if not at.bins:
        return []
    rows = [bins.row for bins in at.bins]
    parts = [
        (bins.wide[:, :, None] - mixture.mu[row]) / mixture.sigma[row] for row, bins in zip(rows, at.bins, strict=True)
    ]
    # All dimensions in one call, because the number of calls takes most of the time.
    found = log_mass(*(np.concatenate([ends[side].ravel() for ends in parts]) for side in (0, 1)))
    tables: list[Masses] = []
    done = 0
    for row, bins, ends in zip(rows, at.bins, parts, strict=True):
        count, kernels = ends.shape[1:]
        wide = np.zeros((count + 1, kernels))
        np.subtract(found[done : done + count * kernels].reshape(count, kernels), mixture.log_whole[row], out=wide[:-1])
        done += count * kernels
        tables.append(Masses(wide, _narrow(mixture.mu[row], mixture.sigma[row], bins)))
    return tables


def log_density(frame: Frame, mixture: Mixture, at: CandidatePoints, tables: list[Masses]) -> Floats:
    """Return the mixture's log density at the points; `tables` are those of `masses`.

    It is a density on the scale of each continuous dimension, and a probability in the other dimensions.
    """
    terms = at.features @ mixture.coefficients
    terms += mixture.log_weights
    _add_choices(frame, mixture, at, terms)
    factor = None
    for bins, table in zip(at.bins, tables, strict=True):
        if len(table.wide) > 1:
            terms += table.wide[bins.wide_place]
        if len(table.narrow) > 1:
            there = table.narrow[bins.narrow_place]
            factor = there if factor is None else factor * there
    top = terms.max(axis=1)
    terms -= top[:, None]
    np.exp(terms, out=terms)
    if factor is not None:
        terms *= factor
    density: Floats = np.log(terms.sum(axis=1)) + (top + (at.log_width - frame.log_unit))
    return density


def _add_choices(frame: Frame, mixture: Mixture, at: CandidatePoints, terms: Floats) -> None:
    kernels = mixture.codes.shape[1] + 1
    for row, (k, count) in enumerate(frame.choices):
        # Weight 1 for the trial's own choice plus 1/kernels for every choice, normalized.
        other = -math.log(kernels + count)
        same = mixture.codes[row] == at.numbers[k][:, None]
        terms[:, :-1] += np.where(same, other + math.log(kernels + 1.0), other)
        terms[:, -1] -= math.log(count)


def _narrow(mu: Floats, sigma: Floats, bins: Bins) -> Floats:
    """Return `Masses.narrow`, whose last row is 1."""
    count = bins.narrow.shape[1]
    factor = np.ones((count + 1, mu.size))
    step = max(1, _AT_A_TIME // mu.size)
    for k in range(0, count, step):
        here = slice(k, min(k + step, count))
        factor[here] += correction(bins.narrow[:, here, None], mu, 1.0 / sigma)
    return factor


def correction(ends: Floats, mu: Floats, sharp: Floats) -> Floats:
    """Return a normal's probability in a narrow bin, divided by width times density in the middle, minus 1.

    The ends are given as `ends`: (2, ...). `sharp` is 1 / sigma.
    """
    left, right = ends
    m = (0.5 * (left + right) - mu) * sharp
    m *= m
    h = (right - left) * sharp
    h *= h
    # Four terms of the Taylor series over the bin. The even derivatives of a normal density, divided by the density,
    # are Hermite polynomials.
    total: Floats = ((((m - 28) * m + 210) * m - 420) * m + 105) * (h / 92897280)
    total += (((m - 15) * m + 45) * m - 15) / 322560
    total *= h
    total += ((m - 6) * m + 3) / 1920
    total *= h
    total += (m - 1) / 24
    total *= h
    return total


def draw(frame: Frame, mixture: Mixture, quantiles: Floats) -> Floats:
    """Return points drawn from the mixture, (dimensions, points).

    quantiles: (dimensions + 1, points), uniform in [0, 1). The first row chooses the kernels.
    """
    kernel = np.searchsorted(np.cumsum(np.exp(mixture.log_weights[:-1])), quantiles[0], side="right")
    numbers = np.empty((frame.size, quantiles.shape[1]))
    if frame.numeric.size:
        mu, sigma = mixture.mu[:, kernel], mixture.sigma[:, kernel]
        z = truncated(quantiles[1 + frame.numeric], -mu / sigma, (1.0 - mu) / sigma)
        drawn = frame.low + np.minimum(np.maximum(mu + z * sigma, 0.0), 1.0) * frame.span
        drawn[frame.log] = np.exp(drawn[frame.log])
        drawn[frame.whole] = np.round(drawn[frame.whole])
        numbers[frame.numeric] = np.minimum(np.maximum(drawn, frame.first), frame.last)
    kernels = mixture.codes.shape[1] + 1
    for row, (k, count) in enumerate(frame.choices):
        # A kernel's weights are a mixture of its trial's choice and a uniform choice.
        own = np.where(kernel < kernels - 1, kernels / (kernels + count), 0.0)
        q = quantiles[1 + k]
        any_choice = np.minimum((q - own) / (1.0 - own) * count, count - 1.0)
        codes = np.append(mixture.codes[row], 0.0)
        numbers[k] = np.where(q < own, codes[kernel], np.floor(any_choice))
    return numbers
