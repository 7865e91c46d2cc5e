"""The model behind `gp`: a Gaussian process fitted to a window of trials, and the point of most expected improvement.

Candidates are drawn all over the space and near the best trials; the most promising are moved uphill, numbers by
their gradient and what has few values step by step. Running trials count as finished with the value that the model
expects. A second process, fitted to which trials failed or were infeasible, weighs the improvement with the chance
to get a value. It imports NumPy and neither Optuna nor SciPy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from suggest import deadline
from suggest.samplers import gp_process
from suggest.samplers.gp import GpSettings, fitted_below, teaches
from suggest.samplers.gp_improvement import log_chance, log_improvement
from suggest.samplers.gp_process import Hyperparameters, Posterior
from suggest.samplers.gp_space import Features, Places
from suggest.samplers.gp_warp import scaled, warped
from suggest.samplers.minimize import minimize
from suggest.samplers.normal import Flags, Floats, Indexes
from suggest.samplers.running import LIARS
from suggest.samplers.sampler import PointRequest
from suggest.samplers.uniform import draw_points
from suggest.space import Assignment
from suggest.study import StudySpec
from suggest.trial import Trial, TrialState

ANYWHERE, NEAR = 400, 400  # candidates
CENTERS = 4  # the best trials, near which candidates are drawn
CLIMBED = 4  # candidates that are moved uphill
APART = 0.02  # in one axis at least
SAME, BESIDE = 1e-9, 2e-3  # places as near as that are those of a finished trial, or too near to a running one
CLIMB_STEPS, CLIMB_TOLERANCE = 30, 1e-4
ROUNDS = 3  # of steps to neighbors
LEAST = 3  # trials that the parameters are fitted to
INFEASIBLE = -2.0  # what the second process is told of a trial without a value; 0 of any other
DOUBTFUL = -0.5  # an even chance; not half way, for the best point often lies where the feasible region ends


class GpModel:
    def __init__(self, spec: StudySpec, seed: int, settings: GpSettings) -> None:
        self._spec = spec
        self._seed = seed
        self._sign = spec.objective.direction.sign
        self._places = Places(spec.space)
        self._rows: dict[int, Floats] = {}
        self._fits: dict[tuple[bool, tuple[int, ...]], Hyperparameters] = {}

    def propose(
        self, learnt: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        if not self._places.size:
            return draw_points(self._spec.space, self._seed, wanted)
        with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
            finished, pending = list(learnt), list(running)
            below = fitted_below(finished[-1].number, [t.number for t in pending])
            search = self._search(finished, below, pending[-LIARS:])
            points: list[Assignment] = []
            for place, one in enumerate(wanted):
                if place:
                    deadline.check()
                if place and place % LIARS == 0:  # so that a large batch does not cost its square
                    search = self._search(finished, below, pending[-LIARS:])
                rng = np.random.Generator(np.random.PCG64(one.source(self._seed, "gp").getrandbits(128)))
                row = search.best(one.fixed, rng)
                points.append(self._places.decoded(row, one.fixed))
                pending.append(Trial(one.number, TrialState.RUNNING, points[-1]))
                search.pend(row)
            return points

    def _search(self, learnt: list[Trial], below: int, running: list[Trial]) -> CandidateSearch:
        """below: the number of the first trial that does not decide the parameters."""
        rows = self._encoded(learnt)
        numbers = np.array([t.number for t in learnt], dtype=np.intp)
        taught = np.array([teaches(t) for t in learnt], dtype=np.bool_)
        early = numbers < below
        if np.count_nonzero(taught & early) < LEAST:
            early[:] = True
        # What the parameters follow from must not depend on later trials: a fit is kept while its own are the same.
        first = taught & early
        found = self._fit(numbers[first], rows[first], scaled(self._losses(learnt, first)))
        pending = self._places.encoded([t.parameters for t in running])
        features = Features(self._places, np.concatenate([rows, pending]))
        known = features.of(rows)
        y, *_ = warped(scaled(self._losses(learnt, taught)), found.log_delta)
        posterior = Posterior(found, known[taught], features.axis_of, y)
        feasible: Posterior | None = None
        if not taught.all():
            labels = np.where(taught, 0.0, INFEASIBLE)
            chance = self._fit(numbers[early], rows[early], labels[early], warp=False)
            feasible = Posterior(chance, known, features.axis_of, labels)
            barred = known[~taught]
            barred = barred[feasible.predict(barred)[0] < 0.5 * INFEASIBLE]  # others failed by chance
            mean, _ = posterior.predict(barred)
            believed = np.concatenate([y, np.maximum(mean, np.median(y))])
            posterior = Posterior(found, np.concatenate([known[taught], barred]), features.axis_of, believed)
        search = CandidateSearch(
            self._places, features, posterior, feasible, rows[taught], known[taught], rows, np.full(len(rows), SAME)
        )
        for row in pending:
            search.pend(row)
        return search

    def _encoded(self, trials: list[Trial]) -> Floats:
        new = [t for t in trials if t.number not in self._rows]
        rows = dict(zip([t.number for t in new], self._places.encoded([t.parameters for t in new]), strict=True))
        self._rows = {t.number: rows[t.number] if t.number in rows else self._rows[t.number] for t in trials}
        return np.array([self._rows[t.number] for t in trials])

    def _losses(self, learnt: list[Trial], which: Flags) -> Floats:
        """Pruned trials count as no better than the median of those that succeeded: they were stopped for a reason."""
        trials = [trial for trial, there in zip(learnt, which, strict=True) if there]
        losses = np.array([self._sign * (t.value or 0.0) for t in trials])
        pruned = np.array([t.state is TrialState.PRUNED for t in trials], dtype=np.bool_)
        if pruned.any() and not pruned.all():
            losses[pruned] = np.maximum(losses[pruned], np.median(losses[~pruned]))
        return losses

    def _fit(self, numbers: Indexes, rows: Floats, y: Floats, *, warp: bool = True) -> Hyperparameters:
        """Kept for as long as the trials that it follows from are the same."""
        key = (warp, tuple(numbers.tolist()))
        found = self._fits.get(key)
        if found is None:
            features = Features(self._places, rows)
            found = gp_process.fit(features.of(rows), features.axis_of, self._places.size, y, warp=warp)
            self._fits = {k: f for k, f in self._fits.items() if k[0] != warp}
            self._fits[key] = found
        return found


@dataclass(slots=True)
class CandidateSearch:
    """A fitted model, and the search for its most promising point.

    trials, known: the rows and features of those with a value. taken: rows that are not proposed again; reach: nor what
    is so near to them in every axis.
    """

    places: Places
    features: Features
    posterior: Posterior
    feasible: Posterior | None
    trials: Floats
    known: Floats
    taken: Floats
    reach: Floats

    def pend(self, row: Floats) -> None:
        """One more running trial, believed to end as expected."""
        features = self.features.of(row[None])
        mean, _ = self.posterior.predict(features)
        self.posterior.append(features[0], float(mean[0]))
        self.taken = np.concatenate([self.taken, row[None]])
        self.reach = np.append(self.reach, BESIDE)
        self.known = np.concatenate([self.known, features])
        self.trials = np.concatenate([self.trials, row[None]])

    def best(self, fixed: Assignment, rng: np.random.Generator) -> Floats:
        expected, _ = self.posterior.predict(self.known)
        threshold = float(expected.min())
        decided = self.places.encoded([fixed])[0]
        free = np.isnan(decided)
        rows = self._candidates(expected, decided, rng)
        promise = self._promise(rows, threshold)
        order = np.argsort(-promise, kind="stable")
        climbed = self._climbed(rows[self._apart(rows, order)], threshold, free)
        quantiles = rng.random((1, self.places.size))
        climbed = self.places.completed(climbed, np.repeat(quantiles, len(climbed), axis=0))
        for _ in range(ROUNDS):
            climbed = self._stepped(climbed, threshold, free, quantiles)
        every = np.concatenate([climbed, rows])
        promise = np.concatenate([self._promise(climbed, threshold), promise])
        order = np.argsort(-promise, kind="stable")
        row: Floats = every[next((k for k in order if not self._is_taken(every[k])), order[0])]
        return row

    def _candidates(self, expected: Floats, decided: Floats, rng: np.random.Generator) -> Floats:
        size = self.places.size
        rows = np.empty((ANYWHERE + NEAR, size))
        rows[:ANYWHERE] = self.places.uniform(rng.random((ANYWHERE, size)))
        centers = self.trials[np.argsort(expected, kind="stable")[:CENTERS]]
        rows[ANYWHERE:] = self.places.moved(centers[rng.integers(0, len(centers), NEAR)], rng)
        there = ~np.isnan(decided)
        rows[:, there] = decided[there]
        return self.places.completed(rows, rng.random(rows.shape))

    def _promise(self, rows: Floats, threshold: float) -> Floats:
        features = self.features.of(rows)
        mean, deviation = self.posterior.predict(features)
        promise, _ = log_improvement((threshold - mean) / deviation)
        promise += np.log(deviation)
        if self.feasible is not None:
            mean, deviation = self.feasible.predict(features)
            promise += log_chance((mean - DOUBTFUL) / deviation)[0]
        return promise

    def _promise_slopes(self, rows: Floats, threshold: float) -> tuple[Floats, Floats]:
        """With the gradients by places."""
        features = self.features.of(rows)
        mean, deviation, mean_slope, deviation_slope = self.posterior.predict_slopes(features)
        u = (threshold - mean) / deviation
        promise, slope = log_improvement(u)
        promise += np.log(deviation)
        gradient = ((1.0 - slope * u) / deviation)[:, None] * deviation_slope
        gradient -= (slope / deviation)[:, None] * mean_slope
        if self.feasible is not None:
            mean, deviation, mean_slope, deviation_slope = self.feasible.predict_slopes(features)
            u = (mean - DOUBTFUL) / deviation
            chance, slope = log_chance(u)
            promise += chance
            gradient += (slope / deviation)[:, None] * (mean_slope - u[:, None] * deviation_slope)
        return promise, self.features.pulled_back(rows, gradient)

    def _apart(self, rows: Floats, order: Indexes) -> Indexes:
        """The first of an order that differ from each other."""
        chosen: list[int] = []
        for k in order[:200]:
            away = np.nan_to_num(np.abs(rows[chosen] - rows[k]), nan=1.0)
            away[:, np.isnan(rows[k])] = np.where(np.isnan(rows[chosen][:, np.isnan(rows[k])]), 0.0, 1.0)
            if not chosen or away.max(axis=1).min() > APART:
                chosen.append(int(k))
            if len(chosen) == CLIMBED:
                break
        return np.array(chosen, dtype=np.intp)

    def _climbed(self, rows: Floats, threshold: float, free: Flags) -> Floats:
        """Uphill in the numbers that are free and active."""
        moving = self.places.smooth & free & ~np.isnan(rows)
        if not moving.any():
            return rows
        axes = np.flatnonzero(moving.any(axis=0))
        scale = np.maximum(self.posterior.rates(self.places.size)[axes], 1e-3)

        def function(x: Floats, which: Indexes) -> tuple[Floats, Floats]:
            here = rows[which].copy()
            here[:, axes] = np.where(moving[which][:, axes], x / scale, here[:, axes])
            promise, gradient = self._promise_slopes(here, threshold)
            return -promise, np.where(moving[which][:, axes], -gradient[:, axes] / scale, 0.0)

        starts = np.where(moving[:, axes], rows[:, axes], 0.0) * scale
        found = minimize(
            function, starts, np.zeros(len(axes)), scale, iterations=CLIMB_STEPS, tolerance=CLIMB_TOLERANCE
        )
        climbed = rows.copy()
        climbed[:, axes] = np.where(moving[:, axes], np.clip(found.points / scale, 0.0, 1.0), rows[:, axes])
        return climbed

    def _stepped(self, rows: Floats, threshold: float, free: Flags, quantiles: Floats) -> Floats:
        """Each at its best neighbor, or where it is."""
        groups = [np.concatenate([row[None], self.places.neighbors(row, free)]) for row in rows]
        if sum(map(len, groups)) == len(rows):
            return rows
        every = np.concatenate(groups)
        every = self.places.completed(every, np.repeat(quantiles, len(every), axis=0))
        promise = self._promise(every, threshold)
        found, start = [], 0
        for group in groups:
            found.append(every[start + int(np.argmax(promise[start : start + len(group)]))])
            start += len(group)
        return np.array(found)

    def _is_taken(self, row: Floats) -> bool:
        same = (np.abs(self.taken - row) < self.reach[:, None]) | (np.isnan(self.taken) & np.isnan(row))
        return bool(same.all(axis=1).any())
