"""`gp` and numbers that span decades without `scale: log`: the results tell the scale."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest

from suggest.engine import Engine
from suggest.proposal import PointRequest
from suggest.samplers.gp import GpSettings
from suggest.samplers.gp_model import GpModel
from suggest.samplers.gp_scales import ScalesModel, in_logarithms
from suggest.space import Assignment, Choice, Float, Int, Normal, Parameter, Scale, Space
from tests.unit.searches import MINIMIZE, finish, play, seeds, study

RATE = Parameter("lr", Float(1e-5, 1))
SPACE = Space((RATE, Parameter("units", Int(1, 1000)), Parameter("dropout", Float(0, 1))))


def by_logarithms(p: Assignment) -> float:
    return (
        (math.log10(float(p["lr"])) + 3) ** 2
        + (math.log10(float(p["units"])) - 1.5) ** 2
        + (float(p["dropout"]) - 0.3) ** 2
    )


def by_numbers(p: Assignment) -> float:
    return (
        (float(p["lr"]) - 0.6) ** 2
        + (float(p["units"]) / 1000 - 0.7) ** 2
        + (float(p["dropout"]) - 0.3) ** 2
    )


def searched(loss: Callable[[Assignment], float], seed: int, trials: int) -> Engine:
    engine = Engine(study(SPACE, "gp", direction=MINIMIZE, seed=seed), (), ())
    for _ in range(trials):
        (trial,) = play(engine, 1)
        finish(engine, [trial], value=loss(trial.parameters))
    return engine


def best(engine: Engine) -> float:
    return min(trial.value for trial in engine.trials() if trial.value is not None)


def test_a_rate_that_is_declared_without_its_logarithm_is_found() -> None:
    found = [best(searched(by_logarithms, seed, 40)) for seed in seeds(3)]
    assert statistics.median(found) < 0.01, "1.7 is that of the smallest tenth of the rates"


def test_a_rebuilt_engine_proposes_in_the_same_scale() -> None:
    engine = searched(by_logarithms, 1, 25)
    assert engine.propose(3) == Engine(engine.study, engine.trials(), ()).propose(3)


def models(engine: Engine, space: Space) -> tuple[ScalesModel, GpModel]:
    """Return the model of the study, and one that has this space and no choice."""
    spec = engine.study.spec
    return ScalesModel(spec, 1, GpSettings()), GpModel(replace(spec, space=space), 1, GpSettings())


@pytest.mark.parametrize(
    ("loss", "space"), [(by_numbers, SPACE), (by_logarithms, in_logarithms(SPACE))]
)
def test_points_and_estimates_are_those_of_the_scale_that_explains_the_results(
    loss: Callable[[Assignment], float], space: Space
) -> None:
    engine = searched(loss, 1, 25)
    model, expected = models(engine, space)
    trials = list(engine.trials())
    wanted = [PointRequest(25, {}), PointRequest(26, {})]
    points = model.propose(trials, [], wanted)
    assert points == expected.propose(trials, [], wanted)
    assert model.estimate(trials) == expected.estimate(trials)
    assert [SPACE.point_problems(point, partial=False) for point in points] == [(), ()]


@pytest.mark.parametrize(
    "domain",
    [
        Float(0, 1),
        Float(0.02, 1),
        Float(-1000, 1000),
        Float(1e-4, 1, step=1e-4),
        Float(1e-4, 1, normal=Normal(0.1, 0.1)),
        Int(1, 99),
        Int(2, 1000, step=2),
        Choice((1, 1000)),
    ],
)
def test_numbers_of_few_decades_steps_or_a_distribution_stay_as_they_are(
    domain: Float | Int | Choice,
) -> None:
    space = Space((Parameter("x", domain),))
    assert in_logarithms(space) == space


@pytest.mark.parametrize("domain", [Float(1e-4, 1), Float(0.01, 1), Int(1, 100)])
def test_other_numbers_have_a_model_of_their_logarithms(domain: Float | Int) -> None:
    space = Space((Parameter("x", domain),))
    assert in_logarithms(space) == Space((Parameter("x", replace(domain, scale=Scale.LOG)),))
