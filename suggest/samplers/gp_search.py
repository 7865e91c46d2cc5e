"""The search for the most promising point of a space.

Candidates are drawn all over the space and near the best trials; the most promising are moved
uphill, numbers by their gradient and what has few values step by step. `gp_acquisition` decides
what is promising.
"""

from __future__ import annotations

import numpy as np

from suggest.samplers.gp_acquisition import Acquisition
from suggest.samplers.gp_space import Places
from suggest.samplers.minimize import minimize
from suggest.samplers.normal import Flags, Floats, Indexes
from suggest.space import Assignment

# Candidates that are drawn all over the space, and near the best trials.
ANYWHERE, NEAR = 400, 400
CLIMBED = 4  # candidates that are moved uphill
APART = 0.02  # the least difference of two of these, in at least one axis
# A point that is nearer than this in every axis to a finished trial, or to a running one, is taken.
SAME, BESIDE = 1e-9, 2e-3
CLIMB_STEPS, CLIMB_TOLERANCE = 30, 1e-4
ROUNDS = 3  # the most steps to neighbors


class CandidateSearch:
    """A search for one point after the other. finished: rows that are not proposed again."""

    def __init__(self, places: Places, acquisition: Acquisition, finished: Floats) -> None:
        self._places = places
        self._acquisition = acquisition
        self._taken = finished
        # For each taken row: points that are nearer in every axis are not proposed.
        self._reach = np.full(len(finished), SAME)

    def add_pending(self, row: Floats) -> None:
        """Add a running trial."""
        self._acquisition.add_pending(row)
        self._taken = np.concatenate([self._taken, row[None]])
        self._reach = np.append(self._reach, BESIDE)

    def best(self, fixed: Assignment, rng: np.random.Generator) -> Floats:
        """Return the row of the most promising point that has the values of `fixed`."""
        decided = self._places.encoded([fixed])[0]
        free = np.isnan(decided)
        rows = self._candidates(decided, rng)
        promise = self._acquisition.promise(rows)
        order = np.argsort(-promise, kind="stable")
        climbed = self._climbed(rows[self._apart(rows, order)], free)
        quantiles = rng.random((1, self._places.size))
        climbed = self._places.completed(climbed, np.repeat(quantiles, len(climbed), axis=0))
        for _ in range(ROUNDS):
            climbed = self._stepped(climbed, free, quantiles)
        every = np.concatenate([climbed, rows])
        promise = np.concatenate([self._acquisition.promise(climbed), promise])
        order = np.argsort(-promise, kind="stable")
        best = next((k for k in order if not self._is_taken(every[k])), order[0])
        row: Floats = every[best]
        return row

    def _candidates(self, decided: Floats, rng: np.random.Generator) -> Floats:
        size = self._places.size
        anywhere = self._places.uniform(rng.random((ANYWHERE, size)))
        centers = self._acquisition.centers()
        drawn = rng.integers(0, len(centers), NEAR)
        near = self._places.moved(centers[drawn], rng)
        rows = np.concatenate([anywhere, near])
        there = ~np.isnan(decided)
        rows[:, there] = decided[there]
        return self._places.completed(rows, rng.random(rows.shape))

    def _apart(self, rows: Floats, order: Indexes) -> Indexes:
        """Return the first rows in the given order that differ from each other."""
        chosen: list[int] = []
        for k in order[:200]:
            away = np.nan_to_num(np.abs(rows[chosen] - rows[k]), nan=1.0)
            # Two rows that lack a parameter do not differ in it.
            lacking = np.isnan(rows[k])
            away[:, lacking] = np.where(np.isnan(rows[chosen][:, lacking]), 0.0, 1.0)
            if not chosen or away.max(axis=1).min() > APART:
                chosen.append(int(k))
            if len(chosen) == CLIMBED:
                break
        return np.array(chosen, dtype=np.intp)

    def _climbed(self, rows: Floats, free: Flags) -> Floats:
        """Return rows moved uphill in the numbers that are free and active."""
        moving = self._places.smooth & free & ~np.isnan(rows)
        if not moving.any():
            return rows
        axes = np.flatnonzero(moving.any(axis=0))
        moving = moving[:, axes]
        scale = np.maximum(self._acquisition.rates[axes], 1e-3)

        def function(x: Floats, which: Indexes) -> tuple[Floats, Floats]:
            here = rows[which].copy()
            here[:, axes] = np.where(moving[which], x / scale, here[:, axes])
            promise, gradient = self._acquisition.slopes(here)
            downhill = -gradient[:, axes] / scale
            return -promise, np.where(moving[which], downhill, 0.0)

        points, _ = minimize(
            function,
            np.where(moving, rows[:, axes], 0.0) * scale,
            np.zeros(len(axes)),
            scale,
            iterations=CLIMB_STEPS,
            tolerance=CLIMB_TOLERANCE,
        )
        climbed = rows.copy()
        places = np.clip(points / scale, 0.0, 1.0)
        climbed[:, axes] = np.where(moving, places, rows[:, axes])
        return climbed

    def _stepped(self, rows: Floats, free: Flags, quantiles: Floats) -> Floats:
        """Return the best neighbor of each row, or the row itself."""
        groups = [np.concatenate([row[None], self._places.neighbors(row, free)]) for row in rows]
        if sum(map(len, groups)) == len(rows):
            return rows
        every = np.concatenate(groups)
        every = self._places.completed(every, np.repeat(quantiles, len(every), axis=0))
        promise = self._acquisition.promise(every)
        found, start = [], 0
        for group in groups:
            best = int(np.argmax(promise[start : start + len(group)]))
            found.append(every[start + best])
            start += len(group)
        return np.array(found)

    def _is_taken(self, row: Floats) -> bool:
        near = np.abs(self._taken - row) < self._reach[:, None]
        both_lack = np.isnan(self._taken) & np.isnan(row)
        return bool((near | both_lack).all(axis=1).any())
