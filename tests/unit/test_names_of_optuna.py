"""Names and calls of Optuna: the errors say what to use instead,
and docs/optuna.md has the same names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner import study as study_module
from tuner import trial as trial_module
from tuner.integrations.reporting import MetricReporter
from tuner.study import workspace_of

PAGE = (Path(__file__).parents[2] / "docs" / "optuna.md").read_text(encoding="utf-8")


# Any: names that these classes lack
def owners(state: Path) -> dict[str, Any]:
    return {
        "trial": tuner.Trial({"x": 1}, ["value"]),
        "study": tuner.Study(workspace_of(state), "digits"),
        "result": tuner.TrialResult(0, "succeeded", {"x": 1}),
        "tuner": tuner,
    }


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        ("trial", "params", "a trial has no attribute 'params'; use trial.parameters"),
        ("trial", "suggest_int", "an objective written for Optuna runs by tuner.optimize_optuna"),
        (
            "trial",
            "should_prune",
            "trial.report(step, loss=0.3) raises tuner.Pruned when the trial should stop",
        ),
        ("trial", "other", "'Trial' object has no attribute 'other'"),
        (
            "study",
            "best_params",
            "a tuner.Study has no attribute 'best_params'; use study.best.parameters",
        ),
        ("study", "other", "'Study' object has no attribute 'other'"),
        (
            "result",
            "params",
            "a tuner.TrialResult has no attribute 'params'; use result.parameters",
        ),
        (
            "tuner",
            "create_study",
            "module 'tuner' has no attribute 'create_study'; a search begins with tuner.minimize",
        ),
    ],
)
def test_an_unknown_attribute_names_what_to_use_instead(
    tmp_path: Path, owner: str, name: str, message: str
) -> None:
    with pytest.raises(AttributeError, match=re.escape(message)):
        getattr(owners(tmp_path)[owner], name)


def test_an_error_within_a_property_is_not_hidden(tmp_path: Path) -> None:
    class Broken:
        @property
        def of_property(self) -> object:
            return None.missing  # type: ignore[attr-defined]

    class Trial(Broken, tuner.Trial): ...

    class Study(Broken, tuner.Study): ...

    class TrialResult(Broken, tuner.TrialResult): ...

    owners: list[Broken] = [
        Trial({"x": 1}, ["value"]),
        Study(workspace_of(tmp_path), "digits"),
        TrialResult(0, "succeeded", {}),
    ]
    for owner in owners:
        with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'missing'"):
            _ = owner.of_property


@pytest.mark.parametrize(
    ("call", "given"),
    [
        (lambda trial: trial.report(0.25, 3), "trial.report(0.25, 3)"),
        (lambda trial: trial.report(0.25, step=3), "got multiple values for argument 'step'"),
        (lambda trial: trial.report(5), "trial.report(5)"),
        (lambda trial: trial.report(), "trial.report()"),
        (lambda trial: trial.report(1, 0.5, loss=2), "trial.report(1, 0.5, loss=2)"),
    ],
)
def test_a_report_without_a_named_metric_is_refused(
    call: Callable[[Any], None], given: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(given)):
        call(tuner.Trial({"x": 1}, ["value"]))


def test_a_library_that_computed_nothing_reports_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    trial = tuner.Trial({"x": 1}, ["value"])
    MetricReporter(None, trial).report(1, {"epoch": 1})
    assert capfd.readouterr().out == ""
    trial.stopped = True
    with pytest.raises(tuner.Pruned):
        MetricReporter(None, trial).report(1, {})


def test_the_page_has_all_these_names() -> None:
    names = {
        **trial_module._INSTEAD,
        **study_module._INSTEAD_OF_STUDY,
        **study_module._INSTEAD_OF_RESULT,
    }
    assert [name for name in [*names, *tuner._INSTEAD] if name not in PAGE] == []
