"""Optuna's Parzen estimator on arrays: a mixture with a kernel around each trial and one over the whole space.

Pure functions of arrays; no trial and no random source. A kernel is a product of truncated normals (in a whole number's
bin: their mass there) and of categorical ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from suggest.samplers.frame import Bins, CandidatePoints, Frame
from suggest.samplers.normal import LOG_ROOT_TAU, Floats, central_mass, log_mass, truncated
from suggest.samplers.split import shares

_AT_A_TIME = 8192  # kernels at bins that are worked on together


@dataclass(frozen=True, slots=True)
class Mixture:
    """A column for each kernel, the last is the prior; `mu` and `sigma` as shares of the span."""

    log_weights: Floats
    mu: Floats
    sigma: Floats
    log_whole: Floats  # of each truncated normal: its mass within the span
    coefficients: Floats  # of the points' features
    codes: Floats  # (choices, kernels - 1): the trials' own choices
    sharpness: float


def fit(frame: Frame, numbers: Floats, *, sharpness: float = 1.0) -> Mixture:
    """numbers: (dimensions, trials), in the order of the trials; every one within its dimension.

    sharpness: how fast the narrowest kernel narrows as trials come; 1 in Optuna.
    """
    mu, sigma = _kernels(frame, numbers[frame.numeric], narrowest(numbers.shape[1], sharpness))
    log_whole = np.log(central_mass(-mu / sigma, (1.0 - mu) / sigma))
    codes = numbers[[k for k, _ in frame.choices]]
    log_weights = np.log(shares(numbers.shape[1]))
    return Mixture(log_weights, mu, sigma, log_whole, coefficients(mu, sigma, log_whole), codes, sharpness)


def coefficients(mu: Floats, sigma: Floats, log_whole: Floats) -> Floats:
    """(3 * numeric, kernels): with the features of points they make the logs of the kernels there."""
    precision = 1.0 / (sigma * sigma)
    pull = mu * precision
    constant = -0.5 * mu * pull - np.log(sigma) - log_whole - LOG_ROOT_TAU
    return np.concatenate([-0.5 * precision, pull, constant])


def narrowest(trials: int, sharpness: float) -> float:
    """The least width of the kernels of so many trials."""
    return 1.0 / min(100.0, 2.0 + sharpness * trials)


def _kernels(frame: Frame, numbers: Floats, least: float) -> tuple[Floats, Floats]:
    """Each as wide as the larger gap to its neighbours (an outermost one: as its only gap), within limits."""
    rows, count = numbers.shape
    mu, sigma = np.empty((rows, count + 1)), np.empty((rows, count + 1))
    mu[:, count], sigma[:, count] = 0.5, 1.0
    if not count or not rows:
        return mu, sigma
    raw = frame.scaled(numbers)
    mu[:, :count] = (raw - frame.low) / frame.span
    # NumPy's own order among equals, as Optuna has it: it decides which of them is the wide one.
    order = np.argsort(raw, axis=1) + np.arange(0, rows * (count + 1), count + 1)[:, None]
    places = np.empty((rows, count + 2))
    places[:, 0], places[:, -1] = 0.0, 1.0
    places[:, 1:-1] = mu.ravel()[order]
    gaps = places[:, 1:] - places[:, :-1]
    widths = np.maximum(gaps[:, :-1], gaps[:, 1:])
    if count >= 2:
        widths[:, 0], widths[:, -1] = gaps[:, 1], gaps[:, -2]
    # np.clip costs three times as much on arrays as small as these.
    sigma.ravel()[order] = np.minimum(np.maximum(widths, least), 1.0)
    return mu, sigma


@dataclass(frozen=True, slots=True)
class Masses:
    """Of the bins of one dimension, what each kernel has there; the last row means no bin at all.

    wide: (wide bins + 1, kernels), logs of its mass. narrow: (narrow bins + 1, kernels), its mass over the bin's width
    times the density in its middle.
    """

    wide: Floats
    narrow: Floats


def masses(mixture: Mixture, at: CandidatePoints) -> list[Masses]:
    """Of each of the points' dimensions of whole numbers."""
    if not at.bins:
        return []
    rows = [bins.row for bins in at.bins]
    parts = [
        (bins.wide[:, :, None] - mixture.mu[row]) / mixture.sigma[row] for row, bins in zip(rows, at.bins, strict=True)
    ]
    # All at once: most of the time goes into the number of calls.
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
    """Per unit of each continuous dimension on its scale; a probability in the others. `tables`: those of `masses`."""
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
        # 1 for the trial's own choice and 1/kernels for every one, over their sum
        other = -math.log(kernels + count)
        same = mixture.codes[row] == at.numbers[k][:, None]
        terms[:, :-1] += np.where(same, other + math.log(kernels + 1.0), other)
        terms[:, -1] -= math.log(count)


def _narrow(mu: Floats, sigma: Floats, bins: Bins) -> Floats:
    """Each kernel's mass in each narrow bin, over the bin's width times the density in its middle; then a row of 1."""
    count = bins.narrow.shape[1]
    factor = np.ones((count + 1, mu.size))
    step = max(1, _AT_A_TIME // mu.size)
    for k in range(0, count, step):
        here = slice(k, min(k + step, count))
        factor[here] += correction(bins.narrow[:, here, None], mu, 1.0 / sigma)
    return factor


def correction(ends: Floats, mu: Floats, sharp: Floats) -> Floats:
    """What a normal's mass between ends that are near each other has, over its density in the middle, above 1."""
    left, right = ends
    m = (0.5 * (left + right) - mu) * sharp
    m *= m
    h = (right - left) * sharp
    h *= h
    # The normal's even derivatives over itself are Hermite polynomials: the bin's Taylor series, four terms.
    total: Floats = ((((m - 28) * m + 210) * m - 420) * m + 105) * (h / 92897280)
    total += (((m - 15) * m + 45) * m - 15) / 322560
    total *= h
    total += ((m - 6) * m + 3) / 1920
    total *= h
    total += (m - 1) / 24
    total *= h
    return total


def draw(frame: Frame, mixture: Mixture, quantiles: Floats) -> Floats:
    """Points of the mixture, (dimensions, points), from as many columns of numbers in [0, 1).

    quantiles: (dimensions + 1, points); the first row chooses kernels.
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
        # A kernel's own choice beside all choices alike: the mixture that its weights are.
        own = np.where(kernel < kernels - 1, kernels / (kernels + count), 0.0)
        q = quantiles[1 + k]
        any_choice = np.minimum((q - own) / (1.0 - own) * count, count - 1.0)
        codes = np.append(mixture.codes[row], 0.0)
        numbers[k] = np.where(q < own, codes[kernel], np.floor(any_choice))
    return numbers
