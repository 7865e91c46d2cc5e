"""The rule that takes the place of the pruner of a study of Optuna."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from optuna import pruners

from suggest.pruners.optuna_rules import CLASSES
from tuner.optuna_study import pruning_of

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

PRUNERS: tuple[Callable[[], pruners.BasePruner], ...] = (
    pruners.MedianPruner,
    lambda: pruners.MedianPruner(3, 2, 4, n_min_trials=2),
    lambda: pruners.PercentilePruner(40.0),
    pruners.SuccessiveHalvingPruner,
    lambda: pruners.SuccessiveHalvingPruner(2, 3),
    lambda: pruners.HyperbandPruner(max_resource=9),
    lambda: pruners.ThresholdPruner(lower=1),
    lambda: pruners.WilcoxonPruner(p_threshold=0.2),
    lambda: pruners.PatientPruner(pruners.MedianPruner(), 3),
    lambda: pruners.PatientPruner(None, 4, 0.5),
)


def rebuilt(rule: dict[str, Any]) -> pruners.BasePruner:
    """Return Optuna's pruner with the settings of a rule."""
    name, settings = CLASSES[rule["name"].removeprefix("optuna:")]
    given = {
        re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key): value
        for key, value in rule.items()
        if key != "name"
    }
    arguments = settings(**given).arguments
    if (wrapped := arguments.get("wrapped_pruner")) is not None:
        arguments["wrapped_pruner"] = getattr(pruners, str(wrapped))()
    made: pruners.BasePruner = getattr(pruners, name)(**arguments)
    return made


def shape(pruner: pruners.BasePruner) -> dict[str, Any]:
    # Optuna means the same by both.
    found = {key: None if value == "auto" else value for key, value in vars(pruner).items()}
    if (wrapped := found.get("_wrapped_pruner")) is not None:
        found["_wrapped_pruner"] = shape(wrapped)
    return found


@pytest.mark.parametrize("make", PRUNERS)
def test_a_pruner_of_optuna_is_a_rule_with_its_settings(
    make: Callable[[], pruners.BasePruner],
) -> None:
    pruner = make()
    rule = pruning_of(pruner)
    assert rule is not None
    again = rebuilt(rule)
    assert type(again) is type(pruner)
    assert shape(again) == shape(pruner)


def test_a_study_that_prunes_nothing_has_no_rule() -> None:
    assert pruning_of(pruners.NopPruner()) == {}


class MedianPruner(pruners.MedianPruner):
    """Of the name that one of Optuna's has."""


@pytest.mark.parametrize(
    "make",
    [
        MedianPruner,
        lambda: pruners.PatientPruner(pruners.MedianPruner(7), 3),
        lambda: pruners.PatientPruner(pruners.PercentilePruner(25.0), 3),
    ],
)
def test_any_other_pruner_has_no_rule(make: Callable[[], pruners.BasePruner]) -> None:
    assert pruning_of(make()) is None
