"""The value that a trial gets for a parameter which it meets, if a person chose one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from suggest.engine import Engine
from suggest.errors import InvalidArgument
from suggest.space import Choice, Domain, Float, Int, Scale, Space, Value
from suggest.trial import ENQUEUED, Trial, TrialState
from tests.unit.searches import study


def decided(domain: Domain, chosen: Value) -> Value:
    begun = study(Space(()), "random")
    engine = Engine(replace(begun, spec=replace(begun.spec, define_by_run=True)), (), ())
    trial = Trial(0, TrialState.RUNNING, {}, labels={ENQUEUED: json.dumps({"x": chosen})})
    engine.put(trial)
    met = engine.met(trial, "x", domain)
    engine.decide(met)
    assert met.study.spec.space.problems() == ()
    return engine.trial(0).parameters["x"]


@pytest.mark.parametrize(
    ("domain", "chosen", "decided_on"),
    [
        (Float(10, 100), 12.5, 12.5),
        (Float(10, 100), 1, 10),
        (Float(10, 100, Scale.LOG), 0, 10),
        (Float(10, 100, step=5), 11, 10),
        (Float(10, 100, step=5), 1000, 100),
        (Int(10, 100), 1e300, 100),
        (Int(10, 100, step=2), 13.2, 14),
        (Choice(("a", "b")), "b", "b"),
    ],
)
def test_the_nearest_value_to_a_chosen_one_is_used(
    domain: Domain, chosen: Value, decided_on: Value
) -> None:
    assert decided(domain, chosen) == decided_on


def test_the_search_does_not_leave_the_range_for_a_chosen_value() -> None:
    begun = study(Space(()), "tpe")
    engine = Engine(replace(begun, spec=replace(begun.spec, define_by_run=True)), (), ())
    trial = Trial(0, TrialState.RUNNING, {}, labels={ENQUEUED: json.dumps({"x": 1000})})
    engine.put(trial)
    engine.decide(engine.met(trial, "x", Float(0, 1)))
    assert engine.study.spec.space.by_name["x"].domain == Float(0, 1)


@pytest.mark.parametrize(
    ("domain", "chosen"),
    [
        (Float(10, 100), "12"),
        (Float(10, 100), float("inf")),
        (Int(10, 100), True),
        (Choice(("a", "b")), "c"),
    ],
)
def test_a_chosen_value_that_has_no_nearest_one_is_refused(domain: Domain, chosen: Value) -> None:
    with pytest.raises(
        InvalidArgument, match=r"a value was chosen for the trial: .*; choose another"
    ):
        decided(domain, chosen)
