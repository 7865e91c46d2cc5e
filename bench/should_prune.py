"""How long `should_prune()` of an objective of Optuna takes: here, and in Optuna with SQLite.

Here it returns once the controller has read the trial's report and the service has judged it. Both
run the same objective under the median rule, with 20 ms between two reports.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import optuna

import tuner

TRIALS, STEPS, STEP_S = 16, 100, 0.02
FOLDER = "BENCH_SHOULD_PRUNE"


def objective(trial: Any) -> float:
    x: float = trial.suggest_float("x", 0, 1)
    latencies = []
    stops = False
    for step in range(STEPS):
        trial.report(x + 1 / (step + 1), step)
        began = time.perf_counter()
        stops = trial.should_prune()
        latencies.append(time.perf_counter() - began)
        if stops:
            break
        time.sleep(STEP_S)
    Path(os.environ[FOLDER], str(trial.number)).write_text(json.dumps(latencies))
    if stops:
        raise optuna.TrialPruned
    return x


def show(who: str, folder: str) -> None:
    latencies = sorted(s for file in Path(folder).iterdir() for s in json.loads(file.read_text()))
    ms = [latencies[int(len(latencies) * share)] * 1e3 for share in (0.5, 0.95)]
    print(f"{who:16} p50 {ms[0]:.1f} ms, p95 {ms[1]:.1f} ms, {len(latencies)} calls", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parallel", type=int, nargs="*", default=[1, 8])
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4)
    for parallel in asked.parallel:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as state:
            os.environ[FOLDER], os.environ["TUNER_STATE_DIR"] = folder, state
            tuner.optimize_optuna(
                objective,
                optuna.create_study(pruner=pruner),
                trials=TRIALS,
                parallelism=parallel,
                name="should-prune",
                progress=False,
            )
            show(f"tuner, {parallel} at once", folder)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as storage:
        os.environ[FOLDER] = folder
        study = optuna.create_study(storage=f"sqlite:///{storage}/optuna.db", pruner=pruner)
        study.optimize(objective, n_trials=TRIALS)
        show("Optuna, SQLite", folder)


if __name__ == "__main__":
    main()
