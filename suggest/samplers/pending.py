"""What a batch adds to a fitted mixture: a kernel around each of its own points, one after the other.

The mixture stays as it was fitted: a new point changes neither the widths nor the weights of the kernels that are
there, as a new fit would. So a point costs what is new, whatever the history. No random source, no trial.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np

from suggest.samplers.frame import Frame, Points
from suggest.samplers.normal import Floats, log_mass
from suggest.samplers.parzen import Mixture, coefficients, correction, narrowest


class Pending:
    """Kernels beside those of `base`, at the candidates `at` only; each counts as its most recent trial does."""

    def __init__(self, frame: Frame, base: Mixture, at: Points, *, room: int) -> None:
        self._frame = frame
        self._at = at
        self._count = 0
        self._sharpness = base.sharpness
        rows, self._kernels = base.mu.shape
        self._log_weight = float(base.log_weights[-1])  # the prior's, and that of the most recent trials
        self._places: list[list[float]] = np.sort(base.mu[:, :-1], axis=1).tolist()
        self._coefficients = np.empty((3 * rows, room))
        self._codes = np.empty((len(frame.choices), room))
        self._wide = [np.zeros((bins.wide.shape[1] + 1, room)) for bins in at.bins]
        self._narrow = [np.ones((bins.narrow.shape[1] + 1, room)) for bins in at.bins]
        self._edges = np.concatenate([np.zeros((2, rows)), *(bins.wide for bins in at.bins)], axis=1)
        self._edges[1, :rows] = 1.0  # first of all the span itself
        of = [np.arange(rows), *(np.full(bins.wide.shape[1], bins.row) for bins in at.bins)]
        self._rows = np.concatenate(of)  # which dimension each of the edges is of

    def add(self, numbers: Floats) -> None:
        """A point: (dimensions,)."""
        frame, k = self._frame, self._count
        self._count += 1
        self._codes[:, k] = numbers[[place for place, _ in frame.choices]]
        if not frame.numeric.size:
            return
        mu = ((frame.scaled(numbers[frame.numeric, None]) - frame.low) / frame.span)[:, 0]
        sigma = np.array([self._width(row, place) for row, place in enumerate(mu.tolist())])
        ends = (self._edges - mu[self._rows]) / sigma[self._rows]
        masses = log_mass(ends[0], ends[1])
        whole = masses[: mu.size]
        self._coefficients[:, k] = coefficients(mu, sigma, whole)
        done = mu.size
        for bins, wide, factor in zip(self._at.bins, self._wide, self._narrow, strict=True):
            if (count := len(wide) - 1) > 0:
                wide[:-1, k] = masses[done : done + count] - whole[bins.row]
                done += count
            if len(factor) > 1:
                factor[:-1, k] += correction(bins.narrow, mu[bins.row], 1.0 / sigma[bins.row])

    def _width(self, row: int, place: float) -> float:
        """As wide as the larger gap to its neighbours, as in a fit."""
        places = self._places[row]
        at, count = bisect_left(places, place), len(places)
        left = place - (places[at - 1] if at else 0.0)
        right = (places[at] if at < count else 1.0) - place
        width = right if count and not at else left if count and at == count else max(left, right)
        places.insert(at, place)
        return min(max(width, narrowest(count + 1, self._sharpness)), 1.0)

    def log_density(self, here: slice, base: Floats) -> Floats:
        """Of the mixture with these kernels, up to a constant, at some of the candidates, of which `base` is given."""
        count = self._count
        if not count:
            return base
        at = self._at.part(here)
        terms = at.features @ self._coefficients[:, :count]
        # What points have in common with the mixture's own measure.
        terms += ((self._log_weight + at.log_width - self._frame.log_unit) - base)[:, None]
        for row, (k, choices) in enumerate(self._frame.choices):
            other = -math.log(self._kernels + choices)
            same = self._codes[row, :count] == at.numbers[k][:, None]
            terms += np.where(same, other + math.log(self._kernels + 1.0), other)
        factor = None
        for bins, wide, narrow in zip(at.bins, self._wide, self._narrow, strict=True):
            if len(wide) > 1:
                terms += wide[bins.wide_place, :count]
            if len(narrow) > 1:
                there = narrow[bins.narrow_place, :count]
                factor = there if factor is None else factor * there
        np.exp(terms, out=terms)
        if factor is not None:
            terms *= factor
        more: Floats = base + np.log1p(terms.sum(axis=1))
        return more
