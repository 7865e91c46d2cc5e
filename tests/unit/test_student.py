"""Student's t distribution, beside printed tables."""

from __future__ import annotations

import math

import pytest

from controller.core.student import t_quantile, t_within


@pytest.mark.parametrize(
    ("degrees", "t"),
    [(1, 12.7062), (2, 4.30265), (4, 2.77645), (9, 2.26216), (30, 2.04227), (120, 1.97993)],
)
def test_quantiles_are_those_of_the_tables(degrees: int, t: float) -> None:
    assert t_quantile(0.95, degrees) == pytest.approx(t, rel=1e-5)
    assert t_within(t, degrees) == pytest.approx(0.95, abs=1e-6)


def test_many_degrees_of_freedom_are_a_normal_distribution() -> None:
    assert t_within(1.5, 10_001) == pytest.approx(math.erf(1.5 / math.sqrt(2)), abs=1e-4)
