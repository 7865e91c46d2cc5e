"""`gp` and numbers that span decades, or begin at 0, without `scale: log`: the results tell the
scale.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest

from suggest.engine import Engine
from suggest.proposal import PointRequest
from suggest.samplers.gp import GpSettings
from suggest.samplers.gp_model import GpModel
from suggest.samplers.gp_scales import ScalesModel, begins_at_0, spans_decades
from suggest.samplers.gp_space import Places
from suggest.space import Assignment, Choice, Float, Int, Normal, Parameter, Scale, Space
from suggest.trial import Trial, TrialState
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


def searched(
    loss: Callable[[Assignment], float], seed: int, trials: int, space: Space = SPACE
) -> Engine:
    engine = Engine(study(space, "gp", direction=MINIMIZE, seed=seed), (), ())
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


def from_0(p: Assignment) -> float:
    return (math.log10(float(p["decay"]) + 1e-6) + 4) ** 2 + (float(p["dropout"]) - 0.05) ** 2


FROM_0 = Space((Parameter("decay", Float(0, 0.1)), Parameter("dropout", Float(0, 1))))


def test_a_decay_from_0_that_acts_by_its_logarithm_is_found() -> None:
    found = [best(searched(from_0, seed, 40, FROM_0)) for seed in seeds(3)]
    assert statistics.median(found) < 0.01, "0.7 is that of the smallest hundredth of the decays"


@pytest.mark.parametrize(("size", "fits"), [(4, 5), (20, 2)])
def test_more_than_four_ranges_from_0_are_compared_together(
    size: int, fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[GpModel] = []

    def density(model: GpModel, _trials: object) -> float:
        asked.append(model)
        return 0.0

    monkeypatch.setattr(GpModel, "density", density)
    space = Space(tuple(Parameter(f"x{n}", Float(0, 1)) for n in range(size)))
    spec = study(space, "gp", direction=MINIMIZE, seed=1).spec
    trials = [
        Trial(n, TrialState.SUCCEEDED, {p.name: 0.01 * n for p in space.parameters}, float(n))
        for n in range(10)
    ]
    ScalesModel(spec, 1, GpSettings()).estimate(trials)
    assert len(asked) == fits


@pytest.mark.parametrize(
    ("loss", "space", "as_log"),
    [
        (by_numbers, SPACE, ()),
        (by_logarithms, SPACE, ("lr", "units")),
        (from_0, FROM_0, ("decay",)),
    ],
)
def test_points_and_estimates_are_those_of_the_scales_that_explain_the_results(
    loss: Callable[[Assignment], float], space: Space, as_log: tuple[str, ...]
) -> None:
    engine = searched(loss, 1, 25, space)
    spec = engine.study.spec
    model = ScalesModel(spec, 1, GpSettings())
    expected = GpModel(spec, 1, GpSettings(), as_log=as_log)
    trials = list(engine.trials())
    wanted = [PointRequest(25, {}), PointRequest(26, {})]
    points = model.propose(trials, [], wanted)
    assert points == expected.propose(trials, [], wanted)
    assert model.estimate(trials) == expected.estimate(trials)
    assert [space.point_problems(point, partial=False) for point in points] == [(), ()]


@pytest.mark.parametrize("domain", [Float(0, 0.1), Int(0, 1000)])
def test_places_on_a_logarithmic_scale_from_0_reach_both_ends(domain: Float | Int) -> None:
    places = Places(Space((Parameter("x", domain),)), as_log=("x",))
    points = [{"x": domain.min}, {"x": domain.max}]
    rows = places.encoded(points)
    assert [places.decoded(row, {}) for row in rows] == points
    assert places.encoded([{"x": type(domain.max)(domain.max / 10)}])[0, 0] > 0.6


NEITHER = [
    Float(0.02, 1),
    Float(-1000, 1000),
    Float(1e-4, 1, step=1e-4),
    Float(0, 1, step=1e-4),
    Float(1e-4, 1, Scale.LOG),
    Float(1e-4, 1, normal=Normal(0.1, 0.1)),
    Int(1, 99),
    Int(0, 99),
    Int(2, 1000, step=2),
    Choice((1, 1000)),
]
DECADES = [Float(1e-4, 1), Float(0.01, 1), Int(1, 100)]
BEGIN_AT_0 = [Float(0, 1), Float(0, 1e-3), Int(0, 100)]


@pytest.mark.parametrize("domain", [*NEITHER, *DECADES, *BEGIN_AT_0])
def test_the_scale_is_in_question_where_a_number_may_hide_decades(
    domain: Float | Int | Choice,
) -> None:
    assert spans_decades(domain) == (domain in DECADES)
    assert begins_at_0(domain) == (domain in BEGIN_AT_0)
