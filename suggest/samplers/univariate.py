"""One-dimensional mixtures, one for each parameter, which are fitted, drawn and evaluated together.

For arrays of this size, the number of NumPy calls determines the time, and parameters that are
modeled one by one would each take as many calls as all of them together. The points are those of
`parzen` for each parameter alone, to the last bit: BLAS gets matrices of the same shapes, and NumPy
sums rows of the same length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from suggest.samplers import parzen
from suggest.samplers.frame import Bins, Frame, features_of
from suggest.samplers.normal import Floats, tails, truncated
from suggest.samplers.parzen import Mixture


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Candidates of each parameter.

    numbers: (parameters, candidates).
    features: (numeric, candidates, 3), as in `CandidatePoints`.
    log_widths: (numeric, candidates), of the narrow bins.
    """

    numbers: Floats
    features: Floats
    log_widths: Floats
    bins: tuple[Bins, ...]


class UnivariateMixtures:
    """The mixtures of the good trials, from which candidates are drawn.

    `mixture` has them as those of a joint model, of which they are the dimensions.
    """

    def __init__(self, frame: Frame, numbers: Floats, *, sharpness: float) -> None:
        """Fit to trials; see `parzen.fit`."""
        self.frame = frame
        self._mixture = parzen.fit(frame, numbers, sharpness=sharpness, apart=True)
        mu, sigma = self._mixture.mu, self._mixture.sigma
        self._cumulated = np.cumsum(np.exp(self._mixture.log_weights[:-1]))
        self._below, self._above = -mu / sigma, (1.0 - mu) / sigma
        self._outside = tails(self._below, self._above, max(1, len(mu)))
        self._codes = parzen.with_prior(self._mixture.codes)

    @property
    def kernels(self) -> int:
        return self._mixture.log_weights.size

    def best(self, others: Floats, quantiles: Floats) -> list[float]:
        """Return for each parameter the candidate with the largest ratio of densities.

        The ratio is that of these mixtures' density to the others'.

        Args:
            others: The numbers of the trials that are not good, (parameters, trials).
            quantiles: (parameters, 2, candidates), uniform in [0, 1). Of each pair, the first one
                chooses the kernel.
        """
        worse = parzen.fit(self.frame, others, sharpness=self._mixture.sharpness, apart=True)
        drawn = self._draw(quantiles)
        good, other = _log_densities(
            self.frame, [self._mixture, worse], _candidates(self.frame, drawn)
        )
        best = np.argmax(good - other, axis=1)
        found: list[float] = drawn[np.arange(len(drawn)), best].tolist()
        return found

    def _draw(self, quantiles: Floats) -> Floats:
        """Return points, (parameters, points); see `best`, and `MixtureSampler.draw`."""
        frame, mixture = self.frame, self._mixture
        kernel = self._cumulated.searchsorted(quantiles[:, 0], side="right")
        numbers = np.empty(kernel.shape)
        if frame.numeric.size:
            own = np.arange(frame.numeric.size)[:, None], kernel[frame.numeric]
            ends = self._below[own], self._above[own]
            z = truncated(
                quantiles[frame.numeric, 1],
                *ends,
                self._outside[:, own[0], own[1]],
                frame.numeric.size,
            )
            numbers[frame.numeric] = frame.numbers_at(mixture.mu[own] + z * mixture.sigma[own])
        for codes, (k, count) in zip(self._codes, frame.choices, strict=True):
            numbers[k] = parzen.drawn_choices(codes, count, kernel[k], quantiles[k, 1])
        return numbers


def _candidates(frame: Frame, numbers: Floats) -> _Candidates:
    features, log_widths, bins = features_of(frame, numbers[frame.numeric])
    return _Candidates(numbers, np.ascontiguousarray(features.transpose(1, 2, 0)), log_widths, bins)


def _log_densities(frame: Frame, mixtures: Sequence[Mixture], at: _Candidates) -> Floats:
    """Return the log density of each mixture at each parameter's candidates.

    Its shape is (mixtures, parameters, candidates).
    """
    kernels = parzen.joined(mixtures)
    numeric = frame.numeric.size
    coefficients = kernels.coefficients.reshape(3, numeric, kernels.log_weights.size).swapaxes(0, 1)
    # The choices after the others.
    terms = np.zeros((*at.numbers.shape, kernels.log_weights.size))
    terms[:numeric] = at.features @ np.ascontiguousarray(coefficients)
    terms += kernels.log_weights
    ends = np.cumsum([0, *(m.log_weights.size for m in mixtures)]).tolist()
    parts = [terms[:, :, first:last] for first, last in pairwise(ends)]
    for mixture, own in zip(mixtures, parts, strict=True):
        for codes, (k, count), choices in zip(
            mixture.codes, frame.choices, own[numeric:], strict=True
        ):
            parzen.add_choices(codes, count, at.numbers[k], choices)
    # The wide bins of all parameters are of different numbers.
    masses = [parzen.masses_of(kernels, [bins])[0] for bins in at.bins]
    for bins, table in zip(at.bins, masses, strict=True):
        if len(table.wide) > 1:
            terms[bins.row] += table.wide[bins.wide_index]
    top = np.stack([np.maximum.reduce(own, axis=2) for own in parts])
    for own, largest in zip(parts, top, strict=True):
        own -= largest[:, :, None]
    np.exp(terms, out=terms)
    for bins, table in zip(at.bins, masses, strict=True):
        if len(table.narrow) > 1:
            terms[bins.row] *= table.narrow[bins.narrow_index]
    found: Floats = np.log([np.add.reduce(own, axis=2) for own in parts])
    top[:, :numeric] += at.log_widths - frame.log_units
    found += top
    in_order = np.empty_like(found)
    in_order[:, [*frame.numeric, *(k for k, _ in frame.choices)]] = found
    return in_order
