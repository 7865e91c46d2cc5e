"""Optuna's Parzen estimator on arrays: a mixture with a kernel around each trial, and a prior over the whole space.

Pure functions of arrays, without trials or a random source. A kernel is a product of truncated normal distributions,
integrated over the bin for an integer, and of categorical distributions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from suggest.samplers.frame import Bins, CandidatePoints, Frame
from suggest.samplers.normal import LOG_ROOT_TAU, Floats, Indexes, central_mass, log_mass, tails, truncated
from suggest.samplers.split import log_shares

AT_A_TIME = 2**15  # (candidate, kernel) pairs per block
_PAIRS = 8192  # (narrow bin, kernel) pairs per block
_MOST_KEPT = 24  # wide bins of a dimension whose probabilities are kept
_NO_BINS = np.empty((1, 0))
_PRIOR = np.array([np.iinfo(np.intp).max])  # stands for its number, above all others


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


@dataclass(slots=True)
class WideBins:
    """Probabilities of a mixture's kernels in wide bins of one dimension.

    rows: by the integer of a bin, its row in the other two.
    ends: (2, bins), the left and right ends.
    logs: (bins + 1, kernels), the log of the probability, given that the value is within the span. The last row is 0,
        for candidates in narrow bins.
    """

    rows: dict[float, int]
    ends: Floats
    logs: Floats

    def add(self, bins: Bins, missing: list[float]) -> None:
        """Add rows for these bins, still without values. Forget the others if there are too many."""
        if len(self.rows) + len(missing) > _MOST_KEPT:
            kept = [value for value in bins.values if value in self.rows]
            rows = [self.rows[value] for value in kept]
            self.rows, self.ends = {value: row for row, value in enumerate(kept)}, self.ends[:, rows]
            self.logs = self.logs[[*rows, -1]]
        ends = bins.wide[:, [place for place, value in enumerate(bins.values) if value not in self.rows]]
        self.rows.update((value, row) for row, value in enumerate(missing, len(self.rows)))
        self.ends = np.concatenate([self.ends, ends], axis=1)
        self.logs = np.concatenate([self.logs[:-1], np.zeros((len(missing) + 1, self.logs.shape[1]))])

    def of(self, bins: Bins) -> Indexes:
        """Return the row of each candidate."""
        rows = np.array([*(self.rows[value] for value in bins.values), -1], dtype=np.intp)
        return rows[bins.wide_place]


class Kernels:
    """A mixture that is fitted again and again, to the trials of a window.

    Few trials come and go between two fits, so few kernels change. The others are kept, with their probabilities in
    wide bins. Each is computed by itself, so the mixture is that of a first fit to the last digit.
    """

    def __init__(self, frame: Frame, trials: Indexes, numbers: Floats, *, sharpness: float = 1.0) -> None:
        """Fit the mixture as `fit` does. `sharpness`: how fast the narrowest kernel narrows; 1 in Optuna."""
        self._frame = frame
        self.sharpness = sharpness
        mu, sigma = _kernels(frame, numbers[frame.numeric], narrowest(numbers.shape[1], sharpness))
        log_whole = np.log(central_mass(-mu / sigma, (1.0 - mu) / sigma))
        self._take(trials, numbers, mu, sigma, log_whole, coefficients(mu, sigma, log_whole))

    def _take(
        self, trials: Indexes, numbers: Floats, mu: Floats, sigma: Floats, log_whole: Floats, of_kernels: Floats
    ) -> None:
        codes = numbers[[k for k, _ in self._frame.choices]]
        weights = log_shares(numbers.shape[1])
        self.mixture = Mixture(weights, mu, sigma, log_whole, of_kernels, codes, self.sharpness)
        self._numbers = _with_prior(trials)
        self._wide: dict[int, WideBins] = {}  # by the position of the dimension among the numeric ones
        self._changed: dict[int, Indexes] = {}  # likewise, the kernels that `_wide` lacks

    def fit(self, trials: Indexes, numbers: Floats) -> None:
        """Fit the mixture to other trials.

        Args:
            trials: (trials,), their numbers, ascending.
            numbers: (dimensions, trials), each within its dimension.
        """
        frame, before = self._frame, self.mixture
        mu, sigma = _kernels(frame, numbers[frame.numeric], narrowest(numbers.shape[1], self.sharpness))
        # The columns that the trials had, if they were there. Whether the kernels were the same is compared.
        column = self._numbers.searchsorted(_with_prior(trials))
        rows, columns = ((before.mu[:, column] != mu) | (before.sigma[:, column] != sigma)).nonzero()
        m, s = mu[rows, columns], sigma[rows, columns]
        whole = np.log(central_mass(-m / s, (1.0 - m) / s))
        log_whole, of_kernels = before.log_whole[:, column], before.coefficients[:, column]
        log_whole[rows, columns] = whole
        of_kernels.reshape(3, *mu.shape)[:, rows, columns] = coefficients(m, s, whole).reshape(3, -1)
        # With few trials, each one more makes most kernels narrower.
        kept = {} if self._changed or 2 * rows.size > mu.size else self._wide
        self._take(trials, numbers, mu, sigma, log_whole, of_kernels)
        for row, bins in kept.items():
            self._wide[row] = WideBins(bins.rows, bins.ends, bins.logs[:, column])
            self._changed[row] = columns[rows == row]

    def wide(self, at: CandidatePoints) -> tuple[dict[int, WideBins], list[_Unfilled]]:
        """Return the probabilities in the wide bins of the points, and which of them the caller has to fill in.

        Nothing is kept until the caller has called `keep`.
        """
        wide, self._wide, changed, self._changed = self._wide, {}, self._changed, {}
        unfilled: list[_Unfilled] = []
        for bins in at.bins:
            row = bins.row
            if row not in wide:
                wide[row] = WideBins({}, np.empty((2, 0)), np.zeros((1, self.mixture.mu.shape[1])))
            kept = wide[row]
            missing = [value for value in bins.values if value not in kept.rows]
            if missing:
                kept.add(bins, missing)
            known = len(kept.rows) - len(missing)
            if known and row in changed and changed[row].size:
                unfilled.append(_Unfilled(self.mixture, row, kept, slice(known), changed[row]))
            if missing:
                unfilled.append(_Unfilled(self.mixture, row, kept, slice(known, len(kept.rows)), slice(None)))
        return wide, unfilled

    def keep(self, wide: dict[int, WideBins]) -> None:
        self._wide = wide


@dataclass(frozen=True, slots=True)
class _Unfilled:
    """A part of `bins.logs` without values: the rows `here`, and the columns `kernels`. `row` is the dimension's."""

    mixture: Mixture
    row: int
    bins: WideBins
    here: slice
    kernels: slice | Indexes


def _fill(unfilled: Sequence[_Unfilled]) -> None:
    """Compute probabilities in one call for all dimensions, because the number of calls takes most of the time."""
    parts = [
        (one.bins.ends[:, one.here, None] - one.mixture.mu[one.row, one.kernels])
        / one.mixture.sigma[one.row, one.kernels]
        for one in unfilled
    ]
    if not parts:
        return
    found = log_mass(*(np.concatenate([ends[side].ravel() for ends in parts]) for side in (0, 1)))
    done = 0
    for one, ends in zip(unfilled, parts, strict=True):
        more = found[done : done + ends[0].size].reshape(ends.shape[1:])
        one.bins.logs[one.here, one.kernels] = more - one.mixture.log_whole[one.row, one.kernels]
        done += more.size


def _with_prior(trials: Indexes) -> Indexes:
    return np.concatenate([trials, _PRIOR])


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
    order = raw.argsort(axis=1) + np.arange(0, rows * (count + 1), count + 1)[:, None]
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


def log_densities(frame: Frame, kernels: Sequence[Kernels], at: CandidatePoints) -> Floats:
    """Return the log density of each mixture at the points: (mixtures, points).

    It is a density on the scale of each continuous dimension, and a probability in the other dimensions.
    """
    mixtures = [each.mixture for each in kernels]
    wide, unfilled = zip(*(each.wide(at) for each in kernels), strict=True)
    _fill([one for some in unfilled for one in some])
    for each, filled in zip(kernels, wide, strict=True):
        each.keep(filled)
    # One array for all mixtures, because the number of calls takes most of the time.
    joined = _joined(mixtures, at)
    size = len(at.features)
    step = max(24, AT_A_TIME // joined.log_weights.size)  # blocks that fit into the CPU's caches
    parts = [
        _log_densities(frame, mixtures, joined, wide, at if size <= step else at.part(slice(k, k + step)))
        for k in range(0, size, step)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


@dataclass(frozen=True, slots=True)
class _Joined:
    """The kernels of several mixtures, one mixture after the other.

    log_weights, coefficients: as in `Mixture`.
    narrow: for each integer dimension (narrow bins + 1, kernels), the probability divided by the bin's width times the
        density in its middle. The last row is 1, for candidates in wide bins.
    """

    log_weights: Floats
    coefficients: Floats
    narrow: list[Floats]


def _joined(mixtures: Sequence[Mixture], at: CandidatePoints) -> _Joined:
    return _Joined(
        np.concatenate([m.log_weights for m in mixtures]),
        np.concatenate([m.coefficients for m in mixtures], axis=1),
        [_narrow(mixtures, bins) for bins in at.bins],
    )


def _log_densities(
    frame: Frame,
    mixtures: Sequence[Mixture],
    joined: _Joined,
    wide: Sequence[Mapping[int, WideBins]],
    at: CandidatePoints,
) -> Floats:
    terms = at.features @ joined.coefficients
    terms += joined.log_weights
    factor = None
    for bins, narrow in zip(at.bins, joined.narrow, strict=True):
        if len(narrow) > 1:
            more = narrow[bins.narrow_place]
            factor = more if factor is None else factor * more
    found = np.empty((len(mixtures), len(terms)))
    first = 0
    for place, mixture in enumerate(mixtures):
        mine = slice(first, first + mixture.log_weights.size)
        first = mine.stop
        own = terms[:, mine]
        _add_choices(frame, mixture, at, own)
        for bins in at.bins:
            if bins.values:
                there = wide[place][bins.row]
                own += there.logs[there.of(bins)]
        top = np.maximum.reduce(own, axis=1)
        own -= top[:, None]
        np.exp(own, out=own)
        if factor is not None:
            own *= factor[:, mine]
        np.log(np.add.reduce(own, axis=1), out=found[place])
        found[place] += top + (at.log_width - frame.log_unit)
    return found


def _add_choices(frame: Frame, mixture: Mixture, at: CandidatePoints, terms: Floats) -> None:
    kernels = mixture.codes.shape[1] + 1
    for row, (k, count) in enumerate(frame.choices):
        # Weight 1 for the trial's own choice plus 1/kernels for every choice, normalized.
        other = -math.log(kernels + count)
        same = mixture.codes[row] == at.numbers[k][:, None]
        terms[:, :-1] += np.where(same, other + math.log(kernels + 1.0), other)
        terms[:, -1] -= math.log(count)


def _narrow(mixtures: Sequence[Mixture], bins: Bins) -> Floats:
    """Return a dimension's part of `_Joined.narrow`."""
    count = bins.narrow.shape[1]
    if not count:
        return _NO_BINS
    mu = np.concatenate([m.mu[bins.row] for m in mixtures])
    sharp = 1.0 / np.concatenate([m.sigma[bins.row] for m in mixtures])
    factor = np.ones((count + 1, mu.size))
    step = max(1, _PAIRS // mu.size)
    for k in range(0, count, step):
        here = slice(k, min(k + step, count))
        factor[here] += correction(bins.narrow[:, here, None], mu, sharp)
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


class Source:
    """Draws points from a mixture."""

    def __init__(self, frame: Frame, mixture: Mixture) -> None:
        self._frame = frame
        self._mixture = mixture
        self._cumulated = np.cumsum(np.exp(mixture.log_weights[:-1]))
        self._below, self._above = -mixture.mu / mixture.sigma, (1.0 - mixture.mu) / mixture.sigma
        self._outside = tails(self._below, self._above)
        self._codes = [np.append(codes, 0.0) for codes in mixture.codes]  # with the prior's, which is not used

    def draw(self, quantiles: Floats) -> Floats:
        """Return points, (dimensions, points).

        quantiles: (dimensions + 1, points), uniform in [0, 1). The first row chooses the kernels.
        """
        frame, mixture = self._frame, self._mixture
        kernel = self._cumulated.searchsorted(quantiles[0], side="right")
        numbers = np.empty((frame.size, quantiles.shape[1]))
        if frame.numeric.size:
            ends = self._below[:, kernel], self._above[:, kernel]
            z = truncated(quantiles[1 + frame.numeric], *ends, self._outside[:, :, kernel])
            places = mixture.mu[:, kernel] + z * mixture.sigma[:, kernel]
            drawn = frame.low + np.minimum(np.maximum(places, 0.0), 1.0) * frame.span
            drawn[frame.log] = np.exp(drawn[frame.log])
            drawn[frame.whole] = np.rint(drawn[frame.whole])
            numbers[frame.numeric] = np.minimum(np.maximum(drawn, frame.first), frame.last)
        kernels = mixture.codes.shape[1] + 1
        for codes, (k, count) in zip(self._codes, frame.choices, strict=True):
            # A kernel's weights are a mixture of its trial's choice and a uniform choice.
            own = np.where(kernel < kernels - 1, kernels / (kernels + count), 0.0)
            q = quantiles[1 + k]
            any_choice = np.minimum((q - own) / (1.0 - own) * count, count - 1.0)
            numbers[k] = np.where(q < own, codes[kernel], np.floor(any_choice))
        return numbers
