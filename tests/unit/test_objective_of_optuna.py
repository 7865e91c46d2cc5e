"""What is seen in the code of an objective that was written for Optuna, before the first trial."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest

from tuner.objective_code import finds_by_text
from tuner.optuna_study import _changed_outside

best = 0.0
found: list[float] = []
models: dict[int, object] = {}
scores = {"best": 0.0}


class Objective:
    def __init__(self) -> None:
        self.best = 0.0
        self.history: dict[str, float] = {}

    def keeps(self, trial: Any) -> float:
        self.best = 1.0
        self.history.update(a=1.0)
        return 1.0

    def stores(self, trial: Any) -> float:
        self.history["a"] = 1.0
        return 1.0

    def __call__(self, trial: Any) -> float:
        # Of this trial only.
        self.scratch = trial
        return self.best + len(self.history)


def with_global(trial: Any) -> float:
    global best  # noqa: PLW0603 -- it is what an objective does
    best = 1.0
    found.append(best)
    return best


def stores(trial: Any) -> float:
    models[trial.number] = scores["best"]
    return 1.0


def counts(trial: Any) -> float:
    scores["best"] += 1
    return 1.0


def collects(settings: dict[str, float], logs: list[float], trial: Any) -> float:
    logs.append(settings["a"])
    own: list[float] = []
    own.append(1.0)
    return len(own)


def enclosed() -> Callable[[Any], float]:
    logs: list[float] = []
    count = 0

    def objective(trial: Any) -> float:
        nonlocal count
        count += 1
        logs.append(1.0)
        return 1.0

    return objective


def of_its_own(trial: Any) -> float:
    settings = {"a": 1.0}
    steps: list[float] = []

    def step() -> None:
        nonlocal steps
        steps = [1.0]
        steps.append(2.0)

    step()
    settings.update(b=best)
    settings["c"] = scores["best"]
    os.environ.update({})
    os.environ["TUNER_TEST"] = "1"
    return sum(found)


@wraps(with_global)
def wrapped(trial: Any) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("objective", "changed"),
    [
        (with_global, {"best", "found"}),
        (wrapped, {"best", "found"}),
        (enclosed(), {"count", "logs"}),
        (Objective().keeps, {"self.best", "self.history"}),
        (partial(Objective().keeps), {"self.best", "self.history"}),
        (partial(collects, {"a": 1.0}, []), {"logs"}),
        (partial(collects, {"a": 1.0}, logs=[]), {"logs"}),
        (collects, set()),
        (stores, {"models"}),
        (counts, {"scores"}),
        (Objective().stores, {"self.history"}),
        (Objective(), set()),
        (of_its_own, set()),
        (lambda trial: found.extend([1.0]), {"found"}),
        (len, set()),
    ],
)
def test_an_objective_changes_variables_outside(objective: Any, changed: set[str]) -> None:
    assert set(_changed_outside(objective)) == changed


def by_text(trial: Any) -> object:
    return [globals()[name] for name in ["best"]]


def of_its_module(trial: Any) -> object:
    return getattr(sys.modules[__name__], "best")  # noqa: B009 -- it is what an objective does


def in_inference(trial: Any) -> None:
    trial.model.eval()
    logging.getLogger(__name__)


@pytest.mark.parametrize(
    ("objective", "finds"), [(by_text, True), (of_its_module, True), (in_inference, False)]
)
def test_an_objective_finds_variables_by_names_in_text(objective: Any, finds: bool) -> None:
    assert finds_by_text(objective.__code__) is finds
