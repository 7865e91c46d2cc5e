"""The pruning rules by name: a summary, the settings, and how the pruner is created.

Importing this module loads neither Optuna nor NumPy. Rules that need them load them with their first judgment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from suggest import settings as checked
from suggest.errors import Problem, under
from suggest.pruners.asha import AshaPruner, AshaSettings
from suggest.pruners.auto import AutoPruner, AutoSettings
from suggest.pruners.curve import CurvePruner, CurveSettings
from suggest.pruners.hyperband import HyperbandPruner, HyperbandSettings, hyperband_problems
from suggest.pruners.optuna_rule import CLASSES, OptunaRule, optuna_problems
from suggest.pruners.patient import ALONE, WRAPPED, PatientPruner, PatientSettings
from suggest.pruners.percentile import MedianPruner, MedianSettings, PercentilePruner, PercentileSettings
from suggest.pruners.pruner import Pruner
from suggest.pruners.threshold import ThresholdPruner, ThresholdSettings, threshold_problems
from suggest.pruners.wilcoxon import WilcoxonPruner, WilcoxonSettings
from suggest.settings import Catalog, Choosable
from suggest.study import Objective, Pruning


@dataclass(frozen=True, slots=True)
class Rule(Choosable):
    """A pruning rule. `problems` and `build` take an instance of `settings_type`, which no type can express here."""

    build: Callable[[Objective, Any], Pruner]
    problems: Callable[[Any], Iterator[Problem]] | None = None  # checks settings that are valid one by one


PATIENT = "patient"  # the rule that may contain another one
_RULES = (
    Rule(
        "auto",
        "Chooses among the others: the median while few trials have ended, asha later; the warm-up by their length.",
        AutoSettings,
        AutoPruner,
    ),
    Rule(
        "median",
        "Stops a trial whose best value so far is worse than the median of succeeded trials at the same step.",
        MedianSettings,
        MedianPruner,
    ),
    Rule(
        "percentile",
        "Stops a trial whose best value so far is not among the best share of succeeded trials at the same step.",
        PercentileSettings,
        PercentilePruner,
    ),
    Rule(
        "asha",
        "Stops a trial that is not among the best 1/eta at a rung; rungs are eta times apart (successive halving).",
        AshaSettings,
        AshaPruner,
    ),
    Rule(
        "hyperband",
        "Runs asha in several brackets, some of which begin to stop trials later than others.",
        HyperbandSettings,
        HyperbandPruner,
        hyperband_problems,
    ),
    Rule(
        "threshold",
        "Stops a trial whose value is nan or leaves a band that you set.",
        ThresholdSettings,
        ThresholdPruner,
        threshold_problems,
    ),
    Rule(
        PATIENT,
        "Stops a trial that has not improved for some reports; with another rule, only if that agrees.",
        PatientSettings,
        PatientPruner,
    ),
    Rule(
        "wilcoxon",
        "Stops a trial that is worse than the best one by a signed-rank test; for steps that are folds or seeds.",
        WilcoxonSettings,
        WilcoxonPruner,
    ),
    Rule(
        "curve",
        "Predicts the final value from the curves of succeeded trials, and stops a trial that will not be the best.",
        CurveSettings,
        CurvePruner,
    ),
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
_BY_NAME = Catalog("a pruning rule", _RULES)


def rules() -> tuple[Rule, ...]:
    return _RULES


def pruning_problems(pruning: Pruning) -> Iterator[Problem]:
    """Yield the problems of a pruning. Paths are its fields: `name`, `settings.interval`."""
    for each in _parts(pruning):
        found = list(_BY_NAME.problems(each.name, each.settings))
        yield from found
        rule = _BY_NAME.get(each.name)
        if rule is not None and rule.problems is not None and not found:
            yield from under("settings", rule.problems(checked.read(rule.settings_type, each.settings)))


def new_pruner(pruning: Pruning, objective: Objective) -> Pruner:
    """Return the pruner of a pruning without problems."""
    outer, *inner = _parts(pruning)
    rule = _BY_NAME[outer.name]
    settings: Any = checked.read(rule.settings_type, outer.settings)
    if inner:
        return PatientPruner(objective, settings, new_pruner(inner[0], objective))
    return rule.build(objective, settings)


def _parts(pruning: Pruning) -> list[Pruning]:
    """Return the rule and the rule inside it, if any. Their settings are written together; each gets its own."""
    inner = pruning.settings.get("rule", ALONE)
    if pruning.name != PATIENT or inner not in WRAPPED:
        return [pruning]
    names = {setting.name for setting in _BY_NAME[PATIENT].settings}
    own = {name: value for name, value in pruning.settings.items() if name in names}
    others = {name: value for name, value in pruning.settings.items() if name not in names}
    return [Pruning(PATIENT, own), Pruning(str(inner), others)]
