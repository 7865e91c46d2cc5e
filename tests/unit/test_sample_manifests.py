"""The sample trial of a dry run: a point near the middle of the space."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.runtime.kubernetes.sample_manifests import first_point
from suggest.space import Choice, Condition, Domain, Float, Int, Parameter, Scale, Space, Value
from tests.unit.builders import a_spec


@pytest.mark.parametrize(
    ("domain", "middle"),
    [
        (Float(0, 1), 0.5),
        (Float(1e-6, 1, Scale.LOG), 0.001),
        (Float(-1e308, 1e308 / 2), -2.5e307),
        (Float(0, 1, step=0.25), 0.5),
        (Float(3, 3), 3.0),
        (Float(0.99995, 0.99996), 0.99995 / 2 + 0.99996 / 2),
        (Int(2, 8), 5),
        (Int(2, 8, step=2), 4),
        (Int(1, 1000, Scale.LOG), 32),
        (Choice(("relu", "tanh")), "relu"),
        (Choice((False,)), False),
    ],
)
def test_the_middle_of_a_domain_is_a_member(domain: Domain, middle: Value) -> None:
    point = first_point(replace(a_spec(), space=Space((Parameter("x", domain),))))
    assert point == {"x": middle}
    assert domain.contains(point["x"])


def test_only_active_parameters_have_values_and_initial_points_are_kept() -> None:
    space = Space(
        (
            Parameter("momentum", Float(0, 1), (Condition("optimizer", ("sgd",)),)),
            Parameter("optimizer", Choice(("adam", "sgd"))),
        )
    )
    assert first_point(replace(a_spec(), space=space)) == {"optimizer": "adam"}
    begun = replace(a_spec(), space=space, initial=({"optimizer": "sgd"},))
    assert first_point(begun) == {"momentum": 0.5, "optimizer": "sgd"}
