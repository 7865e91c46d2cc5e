"""`default` beside Optuna's TPE on objectives that name their parameters while they run.

Each contestant runs the unchanged objectives of `optuna_objectives.py`: Optuna with its default
sampler, and the service with `default` by DecideParameter, one trial at a time without pruning.
Prints the median of the best values after half and all of the trials, and who is ahead by it.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from statistics import median
from typing import Any

from optuna_objectives import SINGLE

from suggest.space import Choice, Domain, Float, Int, Parameter, Scale, Space
from suggest.storage.opening import open_store
from suggest.studies.study_service import StudyService
from suggest.study import Algorithm, Direction, Objective, StudyName, StudySpec
from suggest.trial import Outcome, TrialState

NAME = StudyName("default", "bench")


class ServedTrial:
    """The methods of `optuna.Trial`, answered by the service."""

    def __init__(self, service: StudyService, number: int, latencies: list[float]) -> None:
        self._service, self.number, self._latencies = service, number, latencies

    def _decide(self, name: str, domain: Domain) -> Any:
        began = time.perf_counter()
        value = self._service.decide_parameter(NAME, self.number, Parameter(name, domain))
        self._latencies.append(time.perf_counter() - began)
        return value

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> Any:
        scale = Scale.LOG if log else Scale.LINEAR
        return self._decide(name, Float(float(low), float(high), scale, step))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> Any:
        return self._decide(name, Int(low, high, Scale.LOG if log else Scale.LINEAR, step))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._decide(name, Choice(tuple(choices)))

    def report(self, value: float, step: int) -> None: ...

    def should_prune(self) -> bool:
        return False


def served(
    objective: Callable[[Any], float], seed: int, trials: int
) -> tuple[list[float], list[float]]:
    spec = StudySpec(
        Space(()),
        (Objective("value", Direction.MINIMIZE),),
        Algorithm("default", seed, {"trials": trials}),
        define_by_run=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/studies.db")
        service = StudyService(store, address="bench")
        service.create_study(NAME, spec, request_id="create")
        values: list[float] = []
        latencies: list[float] = []
        for number in range(trials):
            service.suggest(NAME, 1, client_id="bench", request_id=str(number))
            values.append(objective(ServedTrial(service, number, latencies)))
            service.complete(NAME, number, Outcome(TrialState.SUCCEEDED, values[-1]))
        service.close()
        store.close()
    return values, latencies


def by_optuna(objective: Callable[[Any], float], seed: int, trials: int) -> list[float]:
    import optuna

    optuna.logging.disable_default_handler()
    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(sampler=sampler, pruner=optuna.pruners.NopPruner())
    study.optimize(objective, n_trials=trials)
    return [trial.value for trial in study.trials if trial.value is not None]


def game(asked: tuple[str, int, int]) -> tuple[str, list[float], list[float], list[float]]:
    name, seed, trials = asked
    ours, latencies = served(SINGLE[name], seed, trials)
    return name, ours, by_optuna(SINGLE[name], seed, trials), latencies


def many(count: int) -> None:
    """Print how long the parameters of a first trial take that no trial has named before."""

    def objective(trial: ServedTrial) -> float:
        return sum(trial.suggest_float(f"x{index}", 0.0, 1.0) for index in range(count))

    _, taken = served(objective, 1, 1)
    parts = {"all": taken, "the first 100": taken[:100], "the last 100": taken[-100:]}
    medians = ", ".join(f"{part} {median(found) * 1e3:.2f} ms" for part, found in parts.items())
    print(f"{count} new parameters in {sum(taken):.1f} s; medians: {medians}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--only", default="", help="objectives whose name has this in it")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--many", type=int, default=0, help="only a trial with so many parameters")
    asked = parser.parse_args()
    logging.disable()
    if asked.many:
        many(asked.many)
        return
    os.nice(10)
    names = [name for name in SINGLE if asked.only in name]
    games = [(name, seed, asked.trials) for name in names for seed in range(asked.seeds)]
    found: dict[str, list[tuple[list[float], list[float]]]] = {name: [] for name in names}
    latencies: list[float] = []
    with get_context("spawn").Pool(asked.workers) as pool:
        for name, ours, theirs, took in pool.imap(game, games):
            found[name].append((ours, theirs))
            latencies += took
            if len(found[name]) == asked.seeds:
                show(name, found[name], asked.trials)
    latencies.sort()
    shares = [latencies[int(len(latencies) * share)] * 1e3 for share in (0.5, 0.99)]
    print(f"DecideParameter without transport: p50 {shares[0]:.2f} ms, p99 {shares[1]:.2f} ms")


def show(name: str, pairs: Sequence[tuple[list[float], list[float]]], trials: int) -> None:
    cells = []
    for after in (trials // 2, trials):
        ours = median(min(mine[:after]) for mine, _ in pairs)
        theirs = median(min(other[:after]) for _, other in pairs)
        ahead = "=" if ours == theirs else "<" if ours < theirs else ">"
        cells.append(f"after {after}: {ours:.4g} {ahead} {theirs:.4g}")
    print(f"{name:16} {'   '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
