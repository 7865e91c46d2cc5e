"""Savings and regret of each pruning rule, from learning curves replayed
as if four trials ran at a time.

The curves are those of two real trainings with 200 settings each (bench/learning_curves.py), and
random power laws that cross, where slow starters end better. Defaults were chosen on one half of
each set, and the figures are of the other half, in 12 random orders of the trials, beside the noise
of retraining: how far apart the last values are when a good setting is trained again. The results
are written to docs/benchmarks.md. Run it manually: `bench/pruning.py`.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
import record
from learning_curves import TRAININGS

from suggest.curves import Curve, TrialCurve
from suggest.pruners import new_pruner
from suggest.study import Direction, Objective, Pruning
from suggest.trial import TrialState

WORKERS, ORDERS = 4, 12
SIZES = (100, 25)  # trials of a search
RULES = ("median", "percentile", "asha", "hyperband", "patient", "auto")


@dataclass(frozen=True, slots=True)
class Problem:
    """A set of learning curves: (trials, steps).

    retrained: The last values of the best settings with several seeds, (settings,
    seeds); empty for no training.
    """

    name: str
    direction: Direction
    curves: np.ndarray
    retrained: np.ndarray

    def half(self, which: int) -> Problem:
        return replace(self, curves=self.curves[which::2])

    @property
    def noise(self) -> float | None:
        """Return the standard deviation of retraining,
        in the unit of a regret; None for no training.
        """
        if not self.retrained.size:
            return None
        finals = sorted(self.direction.sign * self.curves[:, -1])
        deviation = float(np.sqrt(self.retrained.var(axis=1, ddof=1).mean()))
        return deviation / float(finals[len(finals) // 2] - finals[0])


def problems() -> list[Problem]:
    found = []
    for training in TRAININGS:
        curves, retrained = training.curves().astype(float), training.retrained().astype(float)
        for place, (metric, direction) in enumerate(training.metrics.items()):
            name = f"{training.name}, {metric}"
            found.append(Problem(name, direction, curves[:, place], retrained[:, :, place]))
    draw = np.random.default_rng(5)
    slow = draw.uniform(0, 1, (200, 1))
    end = 0.3 + 0.5 * draw.uniform(0, 1, (200, 1)) ** 0.7 - 0.15 * slow
    steps, speed = np.arange(1, 51), 1.6 - 1.2 * slow
    crossing = end + steps**-speed - 50**-speed + draw.normal(0, 0.005, (200, 50))
    return [*found, Problem("crossing", Direction.MINIMIZE, crossing, np.zeros((0, 0)))]


@dataclass(frozen=True, slots=True)
class Run:
    """epochs: as a fraction of all. regret: of the best final value,
    as a fraction of the median trial's regret.
    """

    epochs: float
    regret: float


def replay(problem: Problem, pruning: Pruning, seed: int, trials: int) -> Run:
    """Replay trials: a random worker reports the next step of its trial,
    and takes the next trial after the last.
    """
    pruner = new_pruner(pruning, Objective("metric", problem.direction))
    draw = random.Random(seed)
    order = draw.sample(range(len(problem.curves)), trials)
    left = iter(enumerate(order))
    running: list[tuple[TrialCurve, Sequence[float]]] = []
    epochs, losses = 0, []
    sign, last = problem.direction.sign, problem.curves.shape[1]
    while True:
        while len(running) < WORKERS and (following := next(left, None)) is not None:
            number, which = following
            running.append(
                (TrialCurve(number, TrialState.RUNNING, Curve()), problem.curves[which].tolist())
            )
        if not running:
            break
        trial, values = running[draw.randrange(len(running))]
        step = len(trial.curve.steps) + 1  # the first epoch is step 1
        trial.curve.add(step, values[step - 1])
        epochs += 1
        pruner.put(trial)
        stop = pruner.judge(trial, before=step - 1 if step > 1 else None).should_stop
        if not stop and step < last:
            continue
        running.remove((trial, values))
        state = TrialState.PRUNED if stop else TrialState.SUCCEEDED
        if not stop:
            losses.append(sign * values[-1])
        pruner.put(TrialCurve(trial.number, state, trial.curve, values[-1] if not stop else None))
    finals = sorted(sign * problem.curves[order, -1])
    middle = finals[len(finals) // 2]
    # if all trials were pruned, the search is no better than a random trial
    best = min(losses, default=middle)
    return Run(epochs / (trials * last), (best - finals[0]) / (middle - finals[0]))


def mean_of(problem: Problem, pruning: Pruning, orders: int, trials: int) -> Run:
    return _mean([replay(problem, pruning, seed, trials) for seed in range(orders)])


def _mean(runs: Sequence[Run]) -> Run:
    return Run(
        statistics.fmean(run.epochs for run in runs), statistics.fmean(run.regret for run in runs)
    )


def row(name: str, orders: int) -> list[str]:
    """Return the row of a rule with its defaults, on the halves on which no default was chosen."""
    halves = [each.half(1) for each in problems()]
    cells = [f"`{name}`"]
    for trials in SIZES:
        runs = [mean_of(half, Pruning(name, {}), orders, trials) for half in halves]
        runs.append(_mean(runs))
        cells += [f"{run.epochs:.0%}, {run.regret:.3f}" for run in runs]
    return cells


def noise_row() -> list[str]:
    noises = [each.noise for each in problems()]
    cells = ["" if noise is None else f"{noise:.3f}" for noise in noises]
    cells.append(f"{statistics.fmean(noise for noise in noises if noise is not None):.3f}")
    return ["noise of retraining", *cells * len(SIZES)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="What pruning rules save on replayed learning curves."
    )
    parser.add_argument("--quick", action="store_true", help="few orders; writes nothing")
    parser.add_argument("--only", choices=RULES, help="this rule; writes nothing")
    options = parser.parse_args()
    orders = 4 if options.quick else ORDERS
    rules = [options.only] if options.only else RULES
    with ProcessPoolExecutor(2) as pool:
        rows = [*pool.map(row, rules, repeat(orders)), noise_row()]
    header = ["rule", *(each.name for each in problems()), "mean"]
    columns = len(header) - 1
    parts = []
    for place, trials in enumerate(SIZES):
        first = 1 + columns * place
        shown = [[cells[0], *cells[first : first + columns]] for cells in rows]
        parts.append(f"{trials} trials:\n\n{record.table(header, shown)}")
    record.keep("pruning", "\n\n".join(parts), quick=options.quick or options.only is not None)


if __name__ == "__main__":
    main()
