"""Overhead per trial of a Python function that does nothing:
`tuner.minimize` compared to Optuna's `study.optimize`.

Optuna calls the function in its own process and threads; Tuner starts a process with a log for each
trial, which survives a kill of the script. All use random points and take turns, because the speed
of a machine drifts. Whole calls are measured, including the start of a search. `--quick` is a smoke
test that keeps no results.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from record import keep, median, table

import tuner

TRIALS, ROUNDS, JOBS = 200, 5, (1, 4)


def ours(folder: Path, trials: int, jobs: int) -> None:
    space = {"x": tuner.Float(0, 1)}
    tuner.minimize(
        lambda trial: trial["x"],
        space,
        trials=trials,
        parallelism=jobs,
        algorithm="random",
        state_dir=folder,
        progress=False,
    )


def optunas(folder: Path, trials: int, jobs: int, *, in_memory: bool) -> None:
    storage = None if in_memory else f"sqlite:///{folder}/optuna.db"
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler())

    def objective(trial: Any) -> float:
        return float(trial.suggest_float("x", 0, 1))

    study.optimize(objective, n_trials=trials, n_jobs=jobs)


CONTESTANTS: dict[str, Callable[[Path, int, int], None]] = {
    "tuner.minimize": ours,
    "Optuna, SQLite": partial(optunas, in_memory=False),
    "Optuna, in memory": partial(optunas, in_memory=True),
}


def measure(trials: int, rounds: int, jobs: int) -> dict[str, list[float]]:
    """Return the milliseconds per trial in each round."""
    found: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for _ in range(rounds):
        for name, search in CONTESTANTS.items():
            with tempfile.TemporaryDirectory() as folder:
                start_s = time.perf_counter()
                search(Path(folder), trials, jobs)
                found[name].append((time.perf_counter() - start_s) * 1000 / trials)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    trials, rounds = (5, 1) if quick else (TRIALS, ROUNDS)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for name, search in CONTESTANTS.items():  # warm up imports and the page cache
        with tempfile.TemporaryDirectory() as folder:
            search(Path(folder), 2, 1)
            print(name, "is ready")
    rows = []
    for jobs in JOBS:
        found = measure(trials, rounds, jobs)
        sqlite = found["Optuna, SQLite"]
        for name, values in found.items():
            ratio = median([own / other for own, other in zip(values, sqlite, strict=True)])
            spread = f"{min(values):.1f} to {max(values):.1f}"
            rows.append([str(jobs), name, f"{median(values):.1f}", spread, f"{ratio:.2f}"])
    text = table(["at a time", "who", "ms per trial, median", "all", "over Optuna on SQLite"], rows)
    keep("function-overhead", text, quick=quick)


if __name__ == "__main__":
    main()
