"""Optuna's Parzen estimator on arrays: a mixture with a kernel around each trial,
and a prior over the whole space.

Pure functions of arrays, without trials or a random source. A kernel is a product of truncated
normal distributions, integrated over the bin for an integer, and of categorical distributions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from suggest.samplers.frame import Bins, CandidatePoints, Frame
from suggest.samplers.normal import (
    LOG_ROOT_TAU,
    Floats,
    Indexes,
    central_mass,
    log_mass,
    tails,
    truncated,
)
from suggest.samplers.split import log_shares

AT_A_TIME = 2**15  # (candidate, kernel) pairs per block
_PAIRS = 8192  # (narrow bin, kernel) pairs per block


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of one or several mixtures, one per column.

    log_weights: (kernels,).
    mu, sigma: (numeric, kernels), as shares of the span.
    log_whole: (numeric, kernels), the log of each normal's probability within the span.
    coefficients: (3 * numeric, kernels), see `coefficients`.
    """

    log_weights: Floats
    mu: Floats
    sigma: Floats
    log_whole: Floats
    coefficients: Floats


@dataclass(frozen=True, slots=True)
class Mixture(Kernels):
    """A mixture, whose last kernel is the prior.

    codes: (choices, kernels - 1), the trials' choices.
    sharpness: see `fit`.
    """

    codes: Floats
    sharpness: float


def fit(frame: Frame, numbers: Floats, *, sharpness: float = 1.0) -> Mixture:
    """Fit a mixture to trials.

    Args:
        numbers: (dimensions, trials), in the order of the trials, each within its dimension.
        sharpness: How fast the narrowest kernel narrows as trials are added; 1 in Optuna.
    """
    count = numbers.shape[1]
    mu, sigma = _kernels(frame, numbers[frame.numeric], narrowest(count, sharpness))
    log_whole = np.log(central_mass(-mu / sigma, (1.0 - mu) / sigma))
    codes = numbers[[k for k, _ in frame.choices]]
    return Mixture(
        log_shares(count),
        mu,
        sigma,
        log_whole,
        coefficients(mu, sigma, log_whole),
        codes,
        sharpness,
    )


def coefficients(mu: Floats, sigma: Floats, log_whole: Floats) -> Floats:
    """Return coefficients, (3 * numeric, kernels).

    Their product with the features of points is the kernels' log density there.
    """
    precision = 1.0 / (sigma * sigma)
    pull = mu * precision
    constant = -0.5 * mu * pull - np.log(sigma) - log_whole - LOG_ROOT_TAU
    return np.concatenate([-0.5 * precision, pull, constant])


def narrowest(trials: int, sharpness: float) -> float:
    """Return the smallest width of a kernel, as a share of the span, for this number of trials."""
    return 1.0 / min(100.0, 2.0 + sharpness * trials)


def _kernels(frame: Frame, numbers: Floats, least: float) -> tuple[Floats, Floats]:
    """Return the kernels' centers and widths, the prior last. numbers: (numeric, trials).

    A kernel is as wide as the larger gap to its neighbors, within limits.
    An outermost kernel has only one gap.
    """
    rows, count = numbers.shape
    mu = np.empty((rows, count + 1))
    sigma = np.empty((rows, count + 1))
    mu[:, count] = 0.5
    sigma[:, count] = 1.0
    if not count or not rows:
        return mu, sigma
    raw = frame.scaled(numbers)
    mu[:, :count] = (raw - frame.low) / frame.span
    # NumPy's order of equal values, as in Optuna, because it decides
    # which of them gets the wide kernel.
    row_starts = np.arange(0, rows * (count + 1), count + 1)
    order = raw.argsort(axis=1) + row_starts[:, None]
    places = np.empty((rows, count + 2))
    places[:, 0] = 0.0
    places[:, -1] = 1.0
    places[:, 1:-1] = mu.ravel()[order]
    gaps = places[:, 1:] - places[:, :-1]
    widths = np.maximum(gaps[:, :-1], gaps[:, 1:])
    if count >= 2:
        widths[:, 0] = gaps[:, 1]
        widths[:, -1] = gaps[:, -2]
    # np.clip takes three times as long for arrays of this size.
    sigma.ravel()[order] = np.minimum(np.maximum(widths, least), 1.0)
    return mu, sigma


def _joined(mixtures: Sequence[Mixture]) -> Kernels:
    return Kernels(
        np.concatenate([m.log_weights for m in mixtures]),
        np.concatenate([m.mu for m in mixtures], axis=1),
        np.concatenate([m.sigma for m in mixtures], axis=1),
        np.concatenate([m.log_whole for m in mixtures], axis=1),
        np.concatenate([m.coefficients for m in mixtures], axis=1),
    )


@dataclass(frozen=True, slots=True)
class Masses:
    """The probability of each kernel in the bins of one dimension.

    The last row is for candidates without such a bin.

    wide: (wide bins + 1, kernels), the log of the probability, given that the value is within the
        span.
    narrow: (narrow bins + 1, kernels), the probability divided by the bin's width times the density
        in its middle.
    """

    wide: Floats
    narrow: Floats


def log_densities(frame: Frame, mixtures: Sequence[Mixture], at: CandidatePoints) -> Floats:
    """Return the log density of each mixture at the points: (mixtures, points).

    It is a density on the scale of each continuous dimension,
    and a probability in the other dimensions.
    """
    # One array for all mixtures: for arrays of this size,
    # the number of NumPy calls determines the time.
    kernels = _joined(mixtures)
    masses = _masses_of(kernels, at.bins)
    size = len(at.features)
    # Blocks that fit into the CPU's caches.
    step = max(24, AT_A_TIME // kernels.log_weights.size)
    if size <= step:
        return _log_densities(frame, mixtures, kernels, masses, at)
    parts = []
    for k in range(0, size, step):
        block = at.part(slice(k, k + step))
        parts.append(_log_densities(frame, mixtures, kernels, masses, block))
    return np.concatenate(parts, axis=1)


def _masses_of(kernels: Kernels, at: Sequence[Bins]) -> list[Masses]:
    """Return the probabilities in the bins of each integer dimension."""
    if not at:
        return []
    parts = [
        (bins.wide[:, :, None] - kernels.mu[bins.row]) / kernels.sigma[bins.row] for bins in at
    ]
    lows = np.concatenate([low.ravel() for low, _ in parts])
    highs = np.concatenate([high.ravel() for _, high in parts])
    found = log_mass(lows, highs)
    masses: list[Masses] = []
    done = 0
    for bins, (ends, _) in zip(at, parts, strict=True):
        wide = np.zeros((len(ends) + 1, ends.shape[1]))
        own = found[done : done + ends.size].reshape(ends.shape)
        np.subtract(own, kernels.log_whole[bins.row], out=wide[:-1])
        done += ends.size
        masses.append(Masses(wide, _narrow(kernels, bins)))
    return masses


def _log_densities(
    frame: Frame,
    mixtures: Sequence[Mixture],
    kernels: Kernels,
    masses: Sequence[Masses],
    at: CandidatePoints,
) -> Floats:
    terms = at.features @ kernels.coefficients
    terms += kernels.log_weights
    ends = np.cumsum([0, *(m.log_weights.size for m in mixtures)]).tolist()
    parts = [terms[:, first:last] for first, last in pairwise(ends)]
    for mixture, own in zip(mixtures, parts, strict=True):
        for codes, (k, count) in zip(mixture.codes, frame.choices, strict=True):
            add_choices(codes, codes.size + 1, count, at.numbers[k], own[:, :-1])
            own[:, -1] -= math.log(count)
    factor = add_bins(masses, at.bins, terms)
    top = np.stack([np.maximum.reduce(own, axis=1) for own in parts])
    for own, largest in zip(parts, top, strict=True):
        own -= largest[:, None]
    np.exp(terms, out=terms)
    if factor is not None:
        terms *= factor
    found: Floats = np.log([np.add.reduce(own, axis=1) for own in parts])
    return found + (top + (at.log_width - frame.log_unit))


def add_choices(codes: Floats, kernels: int, count: float, chosen: Floats, terms: Floats) -> None:
    """Add the log probabilities of these choices to the trials' terms: (candidates, trials).

    A kernel has weight 1 for its trial's choice, of `codes`,
    plus 1/kernels for every choice, normalized.
    """
    other = -math.log(kernels + count)
    same = other + math.log(kernels + 1.0)
    terms += np.where(codes == chosen[:, None], same, other)


def add_bins(masses: Sequence[Masses], at: Sequence[Bins], terms: Floats) -> Floats | None:
    """Add the log probabilities of wide bins to the kernels' terms, (candidates, kernels).

    Return the factors of narrow bins; None if there are none.
    """
    factor = None
    for bins, table in zip(at, masses, strict=True):
        if len(table.wide) > 1:
            terms += table.wide[bins.wide_index]
        if len(table.narrow) > 1:
            more = table.narrow[bins.narrow_index]
            factor = more if factor is None else factor * more
    return factor


def _narrow(kernels: Kernels, bins: Bins) -> Floats:
    """Return `Masses.narrow`, whose last row is 1."""
    mu, sharp = kernels.mu[bins.row], 1.0 / kernels.sigma[bins.row]
    count = bins.narrow.shape[1]
    factor = np.ones((count + 1, mu.size))
    step = max(1, _PAIRS // mu.size)
    for k in range(0, count, step):
        here = slice(k, min(k + step, count))
        factor[here] += correction(bins.narrow[:, here, None], mu, sharp)
    return factor


def correction(ends: Floats, mu: Floats, sharp: Floats) -> Floats:
    """Return the relative correction of a normal's probability in a narrow bin.

    It is the probability, divided by width times density in the middle, minus 1.

    The ends are given as `ends`: (2, ...). `sharp` is 1 / sigma.
    """
    left, right = ends
    m = (0.5 * (left + right) - mu) * sharp
    m *= m
    h = (right - left) * sharp
    h *= h
    # Four terms of the Taylor series over the bin. The even derivatives of a normal density,
    # divided by the density, are Hermite polynomials.
    total = _polynomial(m, -28, 210, -420, 105)
    total *= h / 92897280
    for constant, *coefficients_of in ((322560, -15, 45, -15), (1920, -6, 3), (24, -1)):
        term = _polynomial(m, *coefficients_of)
        term /= constant
        total += term
        total *= h
    return total


def _polynomial(m: Floats, *lower: float) -> Floats:
    """Return the polynomial with the leading coefficient 1 and these lower ones."""
    found = m + lower[0]
    for coefficient in lower[1:]:
        found *= m
        found += coefficient
    return found


class MixtureSampler:
    """Draws points from a mixture, often the same one.

    What does not depend on the points is computed once.
    """

    def __init__(self, frame: Frame, mixture: Mixture) -> None:
        self.frame = frame
        self.mixture = mixture
        self._cumulated = np.cumsum(np.exp(mixture.log_weights[:-1]))
        self._below, self._above = -mixture.mu / mixture.sigma, (1.0 - mixture.mu) / mixture.sigma
        self._outside = tails(self._below, self._above)
        # The trials' choices, and one, unused, of the prior.
        self._codes = [np.append(codes, 0.0) for codes in mixture.codes]

    def draw(self, quantiles: Floats) -> Floats:
        """Return points, (dimensions, points).

        quantiles: (dimensions + 1, points), uniform in [0, 1). The first row chooses the kernels.
        """
        frame, mixture = self.frame, self.mixture
        kernel = self._cumulated.searchsorted(quantiles[0], side="right")
        numbers = np.empty((frame.size, quantiles.shape[1]))
        if frame.numeric.size:
            ends = self._below[:, kernel], self._above[:, kernel]
            z = truncated(quantiles[1 + frame.numeric], *ends, self._outside[:, :, kernel])
            places = mixture.mu[:, kernel] + z * mixture.sigma[:, kernel]
            numbers[frame.numeric] = frame.numbers_at(places)
        for codes, (k, count) in zip(self._codes, frame.choices, strict=True):
            numbers[k] = _drawn_choices(codes, count, kernel, quantiles[1 + k])
        return numbers


def _drawn_choices(codes: Floats, count: float, kernel: Indexes, quantiles: Floats) -> Floats:
    """Return choices of these kernels, whose own choices are `codes`. The prior is the last kernel.

    A kernel's weights are a mixture of its trial's choice and a uniform choice.
    """
    kernels = len(codes)
    own = np.where(kernel < kernels - 1, kernels / (kernels + count), 0.0)
    # The rest of the quantiles, from 0 to 1, spread over all choices.
    uniform = (quantiles - own) / (1.0 - own)
    any_choice = np.floor(np.minimum(uniform * count, count - 1.0))
    return np.where(quantiles < own, codes[kernel], any_choice)
