"""What earlier studies say of a space: a Gaussian process for each. Their weighted sum is the mean
of the later study's process.

Losses of different studies are not comparable, so those of an earlier one become normal scores of
their ranks (Salinas et al. 2020, A quantile-based approach for hyperparameter transfer learning).
The mean is a weighted sum of the earlier processes' means. The weights have a normal prior and are
inferred together with the later process (Rasmussen and Williams 2006, chapter 2.7): a source that
trials contradict loses its weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from suggest.samplers import gp_process
from suggest.samplers.gp_process import Hyperparameters, Posterior
from suggest.samplers.gp_search import SAME
from suggest.samplers.gp_space import Features, Places
from suggest.samplers.normal import Floats, Indexes
from suggest.space import Space
from suggest.study import EarlierStudy

# The most trials of the sources to begin with.
MOST_STARTS = 8
# How much each of them must lower the weighted mean of the best scores, whose deviation is 1.
LEAST_GAIN = 0.05


def normal_scores(losses: Floats) -> Floats:
    """Return the normal quantiles of the ranks; equal losses have equal scores."""
    n = len(losses)
    _, of, counts = np.unique(losses, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - 0.5 * counts
    scores = np.array([NormalDist().inv_cdf(rank / n) for rank in ranks])
    found: Floats = scores[of]
    return found


class _SourceProcess:
    """The process of one earlier study, over the parameters that it shares."""

    def __init__(self, earlier: EarlierStudy, sign: float, space: Space, places: Places) -> None:
        names = {name for trial in earlier.trials for name in trial.parameters}
        shared = Places(Space(tuple(p for p in space.parameters if p.name in names)))
        axis_of = {axis.name: k for k, axis in enumerate(places.axes)}
        self.columns: Indexes = np.array([axis_of[a.name] for a in shared.axes], dtype=np.intp)
        losses = np.array([sign * trial.value for trial in earlier.trials])
        rows = shared.encoded([trial.parameters for trial in earlier.trials])
        self.weight = earlier.weight
        self.trials = np.full((len(rows), places.size), np.nan)
        self.trials[:, self.columns] = rows
        scores = normal_scores(losses)
        features = Features(shared, rows)
        found = gp_process.fit(features, rows, scores, warp=False)
        self.process = Posterior(found, features, rows, scores)


class EarlierStudies:
    """The processes of the earlier studies of one space. sign: of their losses."""

    def __init__(
        self, studies: Sequence[EarlierStudy], sign: float, space: Space, places: Places
    ) -> None:
        sources = (_SourceProcess(each, sign, space, places) for each in studies)
        self._sources = list(sources)
        self.weights = np.array([source.weight for source in self._sources])
        self._starts = self._first_rows()

    def means(self, rows: Floats) -> Floats:
        """Return what each source expects of rows: (rows, sources)."""
        return np.stack([s.process.means(rows[:, s.columns]) for s in self._sources], axis=1)

    def weighted(self, rows: Floats, weights: Floats) -> Floats:
        """Return the weighted sum of the means."""
        found = np.zeros(len(rows))
        for source, weight in zip(self._sources, weights, strict=True):
            if weight:
                found += weight * source.process.means(rows[:, source.columns])
        return found

    def slopes(self, rows: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Return the weighted sum of the means and its gradient by the places."""
        mean, gradient = np.zeros(len(rows)), np.zeros(rows.shape)
        for source, weight in zip(self._sources, weights, strict=True):
            if weight:
                found, slope = source.process.mean_slopes(rows[:, source.columns])
                mean += weight * found
                gradient[:, source.columns] += weight * slope
        return mean, gradient

    def start(self, known: Floats) -> Floats | None:
        """Return the first row to begin with that is not among `known`; None if all are.

        Parameters that its source lacks are NaN.
        """
        for k in range(len(self._starts)):
            row: Floats = self._starts[k]
            near = (np.abs(known - row) < SAME) | np.isnan(row)
            if not near.all(axis=1).any():
                return row
        return None

    def _first_rows(self) -> Floats:
        """Return trials of the sources, so that early ones are good for each source.

        The mean over sources of the best score that any of the rows has falls as fast as possible
        (Wistuba et al. 2015, Sequential model-free hyperparameter tuning).
        """
        rows = np.concatenate([source.trials for source in self._sources])
        scores = self.means(rows)
        share = self.weights / self.weights.sum()
        chosen = [int(np.argmin(scores @ share))]
        best = scores[chosen[0]]
        while len(chosen) < MOST_STARTS:
            expected = np.minimum(scores, best) @ share
            following = int(np.argmin(expected))
            if best @ share - expected[following] < LEAST_GAIN:
                break
            chosen.append(following)
            best = np.minimum(best, scores[following])
        return rows[chosen]


class InformedPosterior(Posterior):
    """A process whose mean is a weighted sum of what earlier studies expect."""

    def __init__(
        self,
        found: Hyperparameters,
        features: Features,
        rows: Floats,
        y: Floats,
        earlier: EarlierStudies,
    ) -> None:
        super().__init__(found, features, rows, y)
        self._earlier = earlier
        basis = earlier.means(rows)
        self.level, self.weights = weights_of(basis, y, earlier.weights, self._inverse)
        self._y = y - self.level - basis @ self.weights
        self._alpha = self._inverse.T @ (self._inverse @ self._y)

    def _expected(self, rows: Floats) -> Floats:
        return self.level + self._earlier.weighted(rows, self.weights)

    def append(self, row: Floats, y: float) -> None:
        super().append(row, y - float(self._expected(row[None])[0]))

    def means(self, rows: Floats) -> Floats:
        return super().means(rows) + self._expected(rows)

    def predict(self, rows: Floats) -> tuple[Floats, Floats]:
        mean, deviation = super().predict(rows)
        return mean + self._expected(rows), deviation

    def predict_slopes(self, rows: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        mean, deviation, mean_slope, deviation_slope = super().predict_slopes(rows)
        expected, slope = self._earlier.slopes(rows, self.weights)
        return mean + self.level + expected, deviation, mean_slope + slope, deviation_slope


def weights_of(basis: Floats, y: Floats, trusted: Floats, inverse: Floats) -> tuple[float, Floats]:
    """Return the level and the weights of the sources.

    basis: what each source expects of the trials. trusted: the sources' weights as a person gave
    them. inverse: of the factor of the trials' covariance.
    """
    count = len(trusted)
    prior = trusted / count
    # Sources of similar tasks agree, so the uncertainty is that of the sum of their weights.
    precision = count / trusted**2
    active = np.arange(count)
    while True:
        design = inverse @ np.column_stack([np.ones(len(y)), basis[:, active]])
        normal = design.T @ design
        normal.flat[:: len(normal) + 1] += [1e-6, *precision[active]]
        right = design.T @ (inverse @ y)
        right[1:] += precision[active] * prior[active]
        found = np.linalg.solve(normal, right)
        if (found[1:] >= 0).all():
            break
        active = active[found[1:] > 0]
    weights = np.zeros(count)
    weights[active] = found[1:]
    return float(found[0]), weights


def first_guess(earlier: EarlierStudies, rows: Floats, y: Floats) -> Floats:
    """Return the mean of the process at the trials, to fit its parameters with."""
    basis = earlier.means(rows)
    level, weights = weights_of(basis, y, earlier.weights, np.eye(len(y)) * math.sqrt(2.0))
    expected: Floats = level + basis @ weights
    return expected
