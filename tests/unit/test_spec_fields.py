"""A scalar key of the file is declared once, and the declaration sets the value in the model."""

from __future__ import annotations

from dataclasses import fields

import pytest

from controller.core.model import Budget, ExperimentSpec, MetricsRule, TrialTemplate
from controller.spec.fields import FLAG, Key, WholeNumber, fields_of
from controller.spec.native import BUDGET, METRICS, SPEC
from controller.spec.problems import ProblemCollector
from controller.spec.sections import Section
from controller.spec.trial_section import TRIAL, duration


@pytest.mark.parametrize(
    ("section", "model"),
    [(TRIAL, TrialTemplate), (BUDGET, Budget), (METRICS, MetricsRule), (SPEC, ExperimentSpec)],
)
def test_each_field_that_a_key_names_is_one_of_the_model(section: Section, model: type) -> None:
    named = [key.field for key in section.keys if key.field]
    assert named
    assert set(named) <= {field.name for field in fields(model)}
    assert len(named) == len(set(named))


def test_a_new_key_is_checked_documented_and_given_to_the_model_by_its_declaration_alone() -> None:
    section = Section(
        (
            Key("nice", WholeNumber(0), "How nice a local trial is.", 5, field="nice"),
            Key(
                "warmUp",
                duration(above_zero=False),
                "Before the first step.",
                field="warm_up_s",
                value=lambda _: 90.0,
            ),
            Key("verbose", FLAG, "Not for the model."),
        )
    )
    problems = ProblemCollector()
    taken = section.take({"warmUp": "90s", "verbose": True}, "spec.trial", problems)
    assert isinstance(taken, dict)
    assert fields_of(section.keys, taken) == {"nice": 5, "warm_up_s": 90.0}
    assert section.schema()["properties"]["nice"] == {
        "type": "integer",
        "minimum": 0,
        "description": "How nice a local trial is.",
        "default": 5,
    }
    section.take({"nice": -1}, "spec.trial", problems)
    assert [problem.path for problem in problems.found] == ["spec.trial.nice"]
