"""Optuna's pruners under the names `optuna:NAME`.

`optuna_pruner` runs them, and is loaded with the first judgment.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from suggest.curves import TrialCurve
from suggest.errors import Problem
from suggest.pruners.optuna_settings import CLASSES, OptunaSettings, OptunaWilcoxonSettings
from suggest.pruners.pruner import Rule
from suggest.study import Objective
from suggest.trial import StopAdvice

if TYPE_CHECKING:
    from suggest.pruners.optuna_pruner import OptunaPruner

_NAMES = {settings: name for name, (_, settings) in CLASSES.items()}


def optuna_problems(settings: OptunaSettings) -> Iterator[Problem]:
    if isinstance(settings, OptunaWilcoxonSettings) and find_spec("scipy") is None:
        yield Problem(
            "",
            "Optuna's WilcoxonPruner needs SciPy where the studies are; install it, or use "
            "wilcoxon",
        )
        return
    # Loads Optuna.
    from suggest.pruners.optuna_pruner import refusal

    if says := refusal(_NAMES[type(settings)], settings):
        yield Problem("", says)


class OptunaRule:
    """A pruner that loads Optuna with the first judgment."""

    def __init__(self, objective: Objective, settings: OptunaSettings) -> None:
        self._objective = objective
        self._settings = settings
        # The trials put before the first judgment.
        self._early: dict[int, TrialCurve] = {}
        self._model: OptunaPruner | None = None

    def put(self, trial: TrialCurve) -> None:
        if self._model is None:
            self._early[trial.number] = trial
        else:
            self._model.put(trial)

    def judge(self, trial: TrialCurve, *, before: int | None) -> StopAdvice:
        if self._model is None:
            # Loads Optuna.
            from suggest.pruners.optuna_pruner import OptunaPruner

            self._model = OptunaPruner(
                self._objective, _NAMES[type(self._settings)], self._settings
            )
            for early in self._early.values():
                self._model.put(early)
            self._early.clear()
        return self._model.judge(trial, before=before)


ENTRIES = (
    *(
        Rule(
            f"optuna:{name}",
            f"Optuna's own {class_name}, over a window of trials.",
            settings,
            OptunaRule,
            optuna_problems,
        )
        for name, (class_name, settings) in CLASSES.items()
    ),
)
