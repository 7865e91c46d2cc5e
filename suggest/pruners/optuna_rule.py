"""Optuna's pruners under the names `optuna:NAME`.

`optuna_pruner` runs them, and loads Optuna.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from suggest.errors import Problem
from suggest.pruners.optuna_settings import CLASSES, OptunaSettings, OptunaWilcoxonSettings
from suggest.pruners.pruner import Pruner, Rule
from suggest.study import Objective

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


def _pruner(objective: Objective, settings: OptunaSettings) -> Pruner:
    # Loads Optuna.
    from suggest.pruners.optuna_pruner import OptunaPruner

    return OptunaPruner(objective, _NAMES[type(settings)], settings)


ENTRIES = tuple(
    Rule(
        f"optuna:{name}",
        f"Optuna's own {class_name}, over a window of trials.",
        settings,
        _pruner,
        optuna_problems,
    )
    for name, (class_name, settings) in CLASSES.items()
)
