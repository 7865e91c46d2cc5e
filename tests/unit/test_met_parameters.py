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
    ("domain", "chosen"),
    [
        (Float(10, 100), 12.5),
        (Float(10, 100), 1),
        (Float(10, 100, Scale.LOG), 1000.5),
        (Float(10, 100, step=5), 11),
        (Int(10, 100), 1),
        (Int(10, 100, step=2), 1.0),
        (Choice(("a", "b")), "b"),
    ],
)
def test_a_chosen_value_is_used_even_outside_of_the_range(domain: Domain, chosen: Value) -> None:
    assert decided(domain, chosen) == chosen


@pytest.mark.parametrize(
    ("domain", "chosen"),
    [
        (Float(10, 100, Scale.LOG), 0),
        (Float(10, 100), "12"),
        (Float(10, 100), float("inf")),
        (Int(10, 100), 1.5),
        (Int(10, 100), True),
        (Choice(("a", "b")), "c"),
    ],
)
def test_a_chosen_value_that_no_range_has_is_refused(domain: Domain, chosen: Value) -> None:
    with pytest.raises(
        InvalidArgument, match=r"the trial was enqueued with it: .*; enqueue another"
    ):
        decided(domain, chosen)
