"""Optuna's pruners under the names `optuna:NAME`. `optuna_pruner` runs them, and loads Optuna.

The settings are the arguments of Optuna's class in camelCase, with its defaults; 0 means "auto" for
an argument that allows it. A test compares the settings with the installed Optuna.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.util import find_spec

from suggest.errors import Problem
from suggest.pruners.pruner import Pruner, Rule
from suggest.settings import setting
from suggest.study import Objective

NONE = "none"


@dataclass(frozen=True, slots=True)
class OptunaSettings:
    window: int = setting(
        200, "finished trials that Optuna sees: the best and the most recent", min=10
    )

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments of Optuna's class."""
        names = [field.name for field in fields(self) if field.name != "window"]
        return {name: _argument(name, getattr(self, name)) for name in names}


@dataclass(frozen=True, slots=True)
class OptunaMedianSettings(OptunaSettings):
    n_startup_trials: int = setting(5, "succeeded trials that a judgment requires", min=0)
    n_warmup_steps: int = setting(0, "no trial is judged before this step", min=0)
    interval_steps: int = setting(1, "steps between judgments, counted from nWarmupSteps", min=1)
    n_min_trials: int = setting(
        1, "succeeded trials with a value at the step that a judgment requires", min=1
    )


@dataclass(frozen=True, slots=True)
class OptunaPercentileSettings(OptunaMedianSettings):
    percentile: float = setting(
        25.0, "percentage of the trials, the best ones, that may continue", min=0, max=100
    )


@dataclass(frozen=True, slots=True)
class OptunaHalvingSettings(OptunaSettings):
    min_resource: int = setting(
        0, "the step of the first rung; 0: a hundredth of the longest trial's steps", min=0
    )
    reduction_factor: int = setting(
        4, "the best 1/reductionFactor of the trials continue at each rung", min=2
    )
    min_early_stopping_rate: int = setting(0, "rungs that are skipped at the beginning", min=0)
    bootstrap_count: int = setting(
        0, "with at most this many trials at a rung, all of them stop there", min=0
    )


@dataclass(frozen=True, slots=True)
class OptunaHyperbandSettings(OptunaSettings):
    min_resource: int = setting(1, "the step of the first rung", min=1)
    max_resource: int = setting(
        0, "steps of a complete trial; 0: those of the longest succeeded trial", min=0
    )
    reduction_factor: int = setting(
        3, "the best 1/reductionFactor of the trials continue at each rung", min=2
    )
    bootstrap_count: int = setting(
        0, "with at most this many trials at a rung, all of them stop there", min=0
    )


@dataclass(frozen=True, slots=True)
class OptunaThresholdSettings(OptunaSettings):
    lower: float = setting(-math.inf, "a value below this stops the trial; so does nan")
    upper: float = setting(math.inf, "a value above this stops the trial")
    n_warmup_steps: int = setting(0, "no trial is judged before this step", min=0)
    interval_steps: int = setting(1, "steps between judgments, counted from nWarmupSteps", min=1)


@dataclass(frozen=True, slots=True)
class OptunaWilcoxonSettings(OptunaSettings):
    p_threshold: float = setting(0.1, "a trial stops if its p-value is lower", min=0, max=1)
    n_startup_steps: int = setting(2, "steps that a judgment requires", min=0)


@dataclass(frozen=True, slots=True)
class OptunaPatientSettings(OptunaSettings):
    wrapped_pruner: str = setting(
        NONE,
        "a rule that must also decide to stop the trial, with its default settings",
        words=(NONE, "median", "successive-halving", "hyperband"),
    )
    patience: int = setting(
        5, "reports without an improvement before a trial may be stopped", min=0
    )
    min_delta: float = setting(
        0.0, "how much worse a trial may be and still count as improving", min=0
    )


# By the name after `optuna:`.
CLASSES: dict[str, tuple[str, type[OptunaSettings]]] = {
    "nop": ("NopPruner", OptunaSettings),
    "median": ("MedianPruner", OptunaMedianSettings),
    "percentile": ("PercentilePruner", OptunaPercentileSettings),
    "successive-halving": ("SuccessiveHalvingPruner", OptunaHalvingSettings),
    "hyperband": ("HyperbandPruner", OptunaHyperbandSettings),
    "threshold": ("ThresholdPruner", OptunaThresholdSettings),
    "patient": ("PatientPruner", OptunaPatientSettings),
    "wilcoxon": ("WilcoxonPruner", OptunaWilcoxonSettings),
}


def _argument(name: str, value: str | float) -> object:
    """Return a setting as Optuna's class takes it; for a wrapped rule, the name of its class."""
    if name == "wrapped_pruner":
        return None if value == NONE else CLASSES[str(value)][0]
    return "auto" if name.endswith("_resource") and value == 0 else value


def _rule(name: str) -> Rule:
    class_name, settings_type = CLASSES[name]

    def problems(settings: OptunaSettings) -> Iterator[Problem]:
        if settings_type is OptunaWilcoxonSettings and find_spec("scipy") is None:
            yield Problem(
                "",
                "Optuna's WilcoxonPruner needs SciPy where the studies are; install it",
            )
            return
        # Loads Optuna.
        from suggest.pruners.optuna_pruner import refusal

        if says := refusal(class_name, settings.arguments):
            yield Problem("", says)

    def build(objective: Objective, settings: OptunaSettings) -> Pruner:
        # Loads Optuna.
        from suggest.pruners.optuna_pruner import OptunaPruner

        return OptunaPruner(objective, class_name, settings.arguments, window=settings.window)

    summary = f"Optuna's own {class_name}, over a window of trials."
    return Rule(f"optuna:{name}", summary, settings_type, build, problems)


ENTRIES = tuple(map(_rule, CLASSES))
