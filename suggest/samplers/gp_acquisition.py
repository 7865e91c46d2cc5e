"""The acquisition function: the logarithm of an expected improvement, and its gradient.

The improvement is multiplied by the probability that a trial gets a value and satisfies the
constraints (Gelbart et al. 2014, Bayesian optimization with unknown constraints). Running trials
count as finished with the values that the model expects. Rows of places in, numbers out: this
module does not search for the best point and does not know trials.

A *promise* is the logarithm of one factor of the acquisition function, (rows,); *slopes* add its
gradient by the places, (rows, axes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from suggest.samplers.gp_belief import Beliefs
from suggest.samplers.gp_hypervolume import Cells, cells, log_hypervolume_improvement
from suggest.samplers.gp_process import Posterior
from suggest.samplers.normal import Flags, Floats, log_chance, log_improvement

# The best trials of one objective, near which candidates are drawn.
CENTERS = 4
LIKELY = math.log(0.5)


def believe(process: Posterior, row: Floats) -> float:
    """Append a row with the value that the process expects there, and return this value.

    Ginsbourger et al. 2010, the kriging believer.
    """
    mean = float(process.means(row[None])[0])
    process.append(row, mean)
    return mean


@dataclass(frozen=True, slots=True)
class Feasibility:
    """The probability that the value of a process is at most `most`."""

    process: Posterior
    most: float

    def promise(self, rows: Floats) -> Floats:
        mean, deviation = self.process.predict(rows)
        chance, _ = log_chance((self.most - mean) / deviation)
        return chance

    def slopes(self, rows: Floats) -> tuple[Floats, Floats]:
        mean, deviation, mean_slope, deviation_slope = self.process.predict_slopes(rows)
        u = (self.most - mean) / deviation
        chance, slope = log_chance(u)
        return chance, -(slope / deviation)[:, None] * (mean_slope + u[:, None] * deviation_slope)

    @property
    def rates(self) -> Floats:
        return self.process.rates


class Improvement(Protocol):
    """The gain over trials that satisfy the constraints."""

    def promise(self, rows: Floats) -> Floats: ...

    def slopes(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return the promise and its gradient by the places."""
        ...

    def add_pending(self, row: Floats, *, kept: bool) -> None:
        """Count one more running trial as finished.

        kept: whether it is expected to keep the constraints.
        """
        ...

    def centers(self) -> Floats:
        """Return the rows of the best trials, near which a better point may be."""
        ...

    @property
    def rates(self) -> Floats:
        """Return 1 / length of each axis; of several processes, the shortest length."""
        ...


class ExpectedImprovement:
    """The expected improvement of one objective over its best expected value.

    The best expected value is the least expected loss of a trial that keeps the constraints. Where
    values are noisy, the least measured loss would be too hard to improve on.

    Beside running trials, an improvement must be at least `gain` (Lizotte 2008, Practical Bayesian
    optimization). Otherwise a batch collapses at the best trial, whose expected loss is believed.
    Noise up to `detail` then counts as uncertainty of the loss. Otherwise no point near the best
    trial would promise that gain once the process is sure of its surroundings, and the whole batch
    would go elsewhere. Both are in standard deviations of the process's values.
    """

    def __init__(
        self, process: Posterior, rows: Floats, kept: Flags, *, gain: float, detail: float
    ) -> None:
        self._process = process
        self._rows = rows
        self._kept = kept
        self._expected = process.means(rows)
        self._gain = gain
        self._detail = min(process.noise_deviation, detail)
        self._beside_running = False

    @property
    def _least(self) -> float:
        return float(self._expected[self._kept].min()) - (
            self._gain if self._beside_running else 0.0
        )

    def _uncertain(self, deviation: Floats) -> Floats:
        found: Floats = np.hypot(deviation, self._detail if self._beside_running else 0.0)
        return found

    def promise(self, rows: Floats) -> Floats:
        mean, expected = self._process.predict(rows)
        deviation = self._uncertain(expected)
        improvement, _ = log_improvement((self._least - mean) / deviation)
        return improvement + np.log(deviation)

    def slopes(self, rows: Floats) -> tuple[Floats, Floats]:
        mean, expected, mean_slope, expected_slope = self._process.predict_slopes(rows)
        deviation = self._uncertain(expected)
        deviation_slope = (expected / deviation)[:, None] * expected_slope
        u = (self._least - mean) / deviation
        improvement, slope = log_improvement(u)
        gradient = ((1.0 - slope * u) / deviation)[:, None] * deviation_slope
        gradient -= (slope / deviation)[:, None] * mean_slope
        return improvement + np.log(deviation), gradient

    def add_pending(self, row: Floats, *, kept: bool) -> None:
        # A process that is told the value that it expects keeps all its other expectations.
        self._expected = np.append(self._expected, believe(self._process, row))
        self._rows = np.concatenate([self._rows, row[None]])
        self._kept = np.append(self._kept, kept)
        self._beside_running = True

    def centers(self) -> Floats:
        return self._rows[np.lexsort((self._expected, ~self._kept))[:CENTERS]]

    @property
    def rates(self) -> Floats:
        return self._process.rates


class ExpectedHypervolumeImprovement:
    """The expected improvement of the volume that the Pareto front dominates.

    Each of the two or three objectives has a process. The reference point is at the worst loss of
    any trial in each objective, and at least a tenth of the front's extent behind the front.
    """

    def __init__(self, members: Sequence[Posterior], rows: Floats, kept: Flags) -> None:
        self._members = members
        self._rows = rows
        self._kept = kept
        self._expected = np.stack([member.means(rows) for member in members], axis=1)
        self._cells: Cells = cells(self._expected[kept])

    def promise(self, rows: Floats) -> Floats:
        found = [member.predict(rows) for member in self._members]
        means = np.stack([m for m, _ in found], axis=1)
        deviations = np.stack([d for _, d in found], axis=1)
        return log_hypervolume_improvement(self._cells, means, deviations)[0]

    def slopes(self, rows: Floats) -> tuple[Floats, Floats]:
        found = [member.predict_slopes(rows) for member in self._members]
        means, deviations, mean_slopes, deviation_slopes = (
            np.stack(each, axis=1) for each in zip(*found, strict=True)
        )
        promise, by_mean, by_deviation = log_hypervolume_improvement(self._cells, means, deviations)
        gradient = np.einsum("rk,rka->ra", by_mean, mean_slopes)
        return promise, gradient + np.einsum("rk,rka->ra", by_deviation, deviation_slopes)

    def add_pending(self, row: Floats, *, kept: bool) -> None:
        told = [believe(member, row) for member in self._members]
        self._expected = np.concatenate([self._expected, np.array(told)[None]])
        self._rows = np.concatenate([self._rows, row[None]])
        self._kept = np.append(self._kept, kept)
        self._cells = cells(self._expected[self._kept])

    def centers(self) -> Floats:
        return self._rows[self._kept][self._cells.front]

    @property
    def rates(self) -> Floats:
        found: Floats = np.max([member.rates for member in self._members], axis=0)
        return found


class Acquisition:
    """The improvement times the probabilities of a value and of satisfying the constraints.

    improvement: None while no trial satisfies the constraints.
    nearest: rows of the trials that break the constraints least.
    beliefs: of a person, or our own, about where good values are.
    """

    def __init__(
        self,
        improvement: Improvement | None,
        chances: Sequence[Feasibility],
        nearest: Floats,
        beliefs: Beliefs | None,
    ) -> None:
        self._improvement = improvement
        self._chances = chances
        self._nearest = nearest
        processes: list[Improvement | Feasibility] = [*chances]
        if improvement is not None:
            processes.append(improvement)
        self._processes = processes
        self._parts = processes if beliefs is None else [*processes, beliefs]

    def promise(self, rows: Floats) -> Floats:
        found = np.zeros(len(rows))
        for part in self._parts:
            found += part.promise(rows)
        return found

    def slopes(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return the promise and its gradient by the places."""
        found, gradient = np.zeros(len(rows)), np.zeros(rows.shape)
        for part in self._parts:
            promise, slope = part.slopes(rows)
            found += promise
            gradient += slope
        return found, gradient

    def add_pending(self, row: Floats) -> None:
        """Count one more running trial as finished, with the values that are expected."""
        chance = sum(float(each.promise(row[None])[0]) for each in self._chances)
        for each in self._chances:
            believe(each.process, row)
        if self._improvement is not None:
            self._improvement.add_pending(row, kept=chance > LIKELY)

    def centers(self) -> Floats:
        return self._nearest if self._improvement is None else self._improvement.centers()

    @property
    def rates(self) -> Floats:
        """Return 1 / length of each axis, the shortest of all lengths."""
        found: Floats = np.max([process.rates for process in self._processes], axis=0)
        return found
