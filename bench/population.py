"""Population based training beside random search at equal epochs,
on the network of examples/digits.

Each search trains for as many epochs: `pbt` with its default settings, as generations of ten
trials with two epochs each, or as many whole trainings at random points. The learning rate
of a training is constant, but in the second row, which follows the schedule of `train.py` (a
warm-up, then linearly to 0) over the whole training. Nothing is tuned. The value of a search
is the best accuracy, or loss, at the end of any trial. Run it manually:
`bench/population.py`; `--keep` writes docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import record

from suggest.engine import Engine
from suggest.space import Assignment, Float, Parameter, Scale, Space
from suggest.study import Algorithm, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Trial, TrialState

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "digits"))

import train  # type: ignore[import-not-found]  # the example's program; sets NumPy's threads

import numpy as np  # isort: skip

POPULATION, INTERVAL, BATCH, WIDTH = 10, 2, 32, 64
SPACE = Space(
    (
        Parameter("lr", Float(1e-4, 1.0, Scale.LOG)),
        Parameter("momentum", Float(0.0, 0.95)),
        Parameter("dropout", Float(0.0, 0.7)),
    )
)
SEEDS = 5
Array = Any  # NumPy's, of the example's program


@dataclass(frozen=True)
class State:
    """A training: its weights, and what it has reached. loss is infinite where it diverged."""

    weights: Array
    velocity: Array
    epoch: int
    loss: float = math.inf
    accuracy: float = 0.0


class Trainer:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._data = train.load_digits()
        self._one_hot = np.eye(train.CLASSES, dtype=np.float32)[self._data[1]]
        self._network = train.Network(WIDTH, "relu", np.random.default_rng(seed))

    def new(self, member: int) -> State:
        """Return the weights of a new training, others for each member."""
        fresh = train.Network(WIDTH, "relu", np.random.default_rng((self._seed, member))).vector
        return State(fresh.copy(), np.zeros_like(fresh), 0)

    def trained(
        self, state: State, point: Assignment, epochs: int, *, total: int | None = None
    ) -> State:
        """Train further. total: the epochs that the schedule covers;
        None for a constant learning rate.
        """
        train_x, _, valid_x, valid_y = self._data
        network, velocity = self._network, state.velocity.copy()
        network.vector[:] = state.weights
        lr, momentum, dropout = (float(point[name]) for name in ("lr", "momentum", "dropout"))  # type: ignore[arg-type]
        batches = train.TRAIN_SIZE // BATCH
        for epoch in range(state.epoch, state.epoch + epochs):
            rng = np.random.default_rng((self._seed, epoch))
            for step, batch in enumerate(
                np.array_split(rng.permutation(train.TRAIN_SIZE), batches)
            ):
                rate = lr
                if total is not None:
                    done = (epoch * batches + step + 1) / (total * batches)
                    rate *= min(done / train.WARMUP, (1 - done) / (1 - train.WARMUP), 1.0)
                masks = train.dropout_masks((len(batch), WIDTH), dropout, rng)
                network.backpropagate(train_x[batch], self._one_hot[batch], masks, batch=len(batch))
                velocity *= momentum
                velocity -= rate * network.gradient
                network.vector += velocity
        scores = train.log_softmax(network.scores(valid_x))
        loss = -float(scores[np.arange(len(valid_y)), valid_y].mean())
        accuracy = float((scores.argmax(axis=1) == valid_y).mean())
        told = (loss, accuracy) if math.isfinite(loss) else (math.inf, 0.0)
        return State(network.vector.copy(), velocity, state.epoch + epochs, *told)


def engine_of(algorithm: str, seed: int, metric: str) -> Engine:
    direction = Direction.MAXIMIZE if metric == "accuracy" else Direction.MINIMIZE
    spec = StudySpec(SPACE, (Objective(metric, direction),), Algorithm(algorithm, seed))
    return Engine(Study(StudyName("bench", "bench"), "bench", spec, seed), (), ())


def searched(
    algorithm: str,
    seed: int,
    metric: str,
    run: Callable[[Trial], State],
    *,
    trials: int,
    at_once: int,
) -> State:
    """Run so many trials, the first to begin being the first to end, and return the best state."""
    engine = engine_of(algorithm, seed, metric)
    running: list[Trial] = []
    best: State | None = None
    while engine.next_number < trials or running:
        while len(running) < at_once and engine.next_number < trials:
            proposal = engine.propose(1)
            if not proposal.trials:
                break
            (one,) = proposal.trials
            trial = Trial(one.number, TrialState.RUNNING, one.parameters, parent=one.parent)
            engine.put(trial)
            running.append(trial)
        trial = running.pop(0)
        state = run(trial)
        value = getattr(state, metric)
        failed = replace(trial, state=TrialState.INFEASIBLE)
        engine.put(
            replace(trial, state=TrialState.SUCCEEDED, value=value)
            if math.isfinite(value)
            else failed
        )
        sign = -1 if metric == "accuracy" else 1
        if best is None or sign * value < sign * getattr(best, metric):
            best = state
    assert best is not None
    return best


def random_search(seed: int, metric: str, generations: int, *, schedule: bool) -> float:
    trainer, length = Trainer(seed), generations * INTERVAL
    total = length if schedule else None

    def run(trial: Trial) -> State:
        return trainer.trained(trainer.new(trial.number), trial.parameters, length, total=total)

    found: float = getattr(
        searched("random", seed, metric, run, trials=POPULATION, at_once=2), metric
    )
    return found


def population(seed: int, metric: str, generations: int, *, at_once: int) -> float:
    trainer = Trainer(seed)
    states: dict[int, State] = {}

    def run(trial: Trial) -> State:
        before = trainer.new(trial.number) if trial.parent is None else states[trial.parent]
        states[trial.number] = trainer.trained(before, trial.parameters, INTERVAL)
        return states[trial.number]

    trials = POPULATION * generations
    found: float = getattr(
        searched("pbt", seed, metric, run, trials=trials, at_once=at_once), metric
    )
    return found


ROWS: dict[str, Callable[[int, str, int], float]] = {
    "`random`, constant learning rate": lambda *of: random_search(*of, schedule=False),
    "`random`, schedule of `train.py`": lambda *of: random_search(*of, schedule=True),
    "`pbt`, 2 at once": lambda *of: population(*of, at_once=2),
    "`pbt`, 10 at once": lambda *of: population(*of, at_once=10),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args()
    np.seterr(all="ignore")
    kinds = [(metric, generations) for metric in ("loss", "accuracy") for generations in (5, 10)]
    header = [
        "search",
        *(
            f"{metric}, {POPULATION * generations * INTERVAL} epochs"
            for metric, generations in kinds
        ),
    ]
    rows = []
    for name, search in ROWS.items():
        cells = [name]
        for metric, generations in kinds:
            values = [search(seed, metric, generations) for seed in range(options.seeds)]
            cells.append(f"{statistics.median(values):.4f}")
        rows.append(cells)
        print(" | ".join(cells), flush=True)
    if options.keep:
        record.keep("population", record.table(header, rows))


if __name__ == "__main__":
    main()
