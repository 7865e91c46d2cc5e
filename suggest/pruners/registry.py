"""The pruning rules by name: where each is declared, its problems, and how its pruner is created.

Importing this module loads no rule but `patient`, which contains another one. Creating a pruner of
Optuna's loads Optuna.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from suggest import settings as checked
from suggest.errors import Problem, under
from suggest.pruners.optuna_rules import CLASSES
from suggest.pruners.patient import WRAPPED, PatientPruner
from suggest.pruners.pruner import Pruner, Rule
from suggest.settings import Catalog
from suggest.study import Objective, Pruning

PATIENT = "patient"  # the rule that may contain another one
_MODULES = {
    "auto": "suggest.pruners.auto",
    "median": "suggest.pruners.percentile",
    "percentile": "suggest.pruners.percentile",
    "asha": "suggest.pruners.asha",
    "hyperband": "suggest.pruners.hyperband",
    "threshold": "suggest.pruners.threshold",
    PATIENT: "suggest.pruners.patient",
    **{f"optuna:{name}": "suggest.pruners.optuna_rules" for name in CLASSES},
}
_ELSEWHERE = {
    "median": "medianrule medianstoppingrule",
    "asha": "sha successivehalving asynchyperband asynchronoussuccessivehalving",
    PATIENT: "patience earlystopping",
}
_BY_NAME: Catalog[Rule] = Catalog("a pruning rule", _MODULES, _ELSEWHERE)


def rules() -> tuple[Rule, ...]:
    return tuple(_BY_NAME)


def pruning_problems(pruning: Pruning) -> Iterator[Problem]:
    """Yield the problems of a pruning. Paths are its fields: `name`, `settings.interval`."""
    for each in _parts(pruning):
        found = list(_BY_NAME.problems(each.name, each.settings))
        yield from found
        rule = _BY_NAME.get(each.name)
        if rule is not None and rule.problems is not None and not found:
            yield from under(
                "settings", rule.problems(checked.read(rule.settings_type, each.settings))
            )


def new_pruner(pruning: Pruning, objective: Objective) -> Pruner:
    """Return the pruner of a pruning without problems."""
    outer, *inner = _parts(pruning)
    rule = _BY_NAME[outer.name]
    settings: Any = checked.read(rule.settings_type, outer.settings)
    if inner:
        return PatientPruner(objective, settings, new_pruner(inner[0], objective))
    return rule.build(objective, settings)


def _parts(pruning: Pruning) -> list[Pruning]:
    """Return the rule and the rule inside it, if any.

    Their settings are written together; each gets its own.
    """
    if pruning.name != PATIENT:
        return [pruning]
    inner = pruning.settings.get("rule")
    if inner not in WRAPPED:
        return [pruning]
    names = {setting.name for setting in _BY_NAME[PATIENT].settings}
    own = {name: value for name, value in pruning.settings.items() if name in names}
    others = {name: value for name, value in pruning.settings.items() if name not in names}
    return [Pruning(PATIENT, own), Pruning(str(inner), others)]
