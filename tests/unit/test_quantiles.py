"""Distributions of parameters: quantiles, and samplers that see quantiles."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist, fmean, median
from typing import Any

import pytest

from controller.spec import SpecErrors, read
from suggest.client import search_space as client
from suggest.errors import Problem, Problems
from suggest.samplers import PointRequest, new_sampler
from suggest.samplers.quantiles import fraction_of, quantile
from suggest.samplers.uniform import draw
from suggest.space import Choice, Condition, Float, Int, Normal, Parameter, Scale, Space, Value
from suggest.storage.study_json import fingerprint, spec_document, spec_of
from suggest.study import Algorithm, Direction, Objective, StudySpec
from suggest.trial import Trial, TrialState
from suggest.wire import read_spec, write_spec

LOG = Scale.LOG
NORMAL = Float(-2.0, 8.0, normal=Normal(3.0, 2.5))
WIDE_LOG = Float(1e-4, 1.0, LOG, normal=Normal.within(1e-4, 1.0, LOG))

DOMAINS: dict[str, Float | Int] = {
    "normal": NORMAL,
    "log-normal": WIDE_LOG,
    "normal around an end": Float(0.0, 1.0, normal=Normal(0.0, 0.2)),
    "normal, narrow": Float(0.0, 1.0, normal=Normal(0.5, 1e-6)),
    "normal in steps": Float(0.0, 1.0, step=0.125, normal=Normal(0.25, 0.2)),
    "log in steps": Float(0.1, 0.9, LOG, 0.2),
    "log in steps, wide": Float(1e-300, 8e300 + 1e-300, LOG, 1e300),
    "normal int": Int(0, 60, step=5, normal=Normal(30.0, 10.0)),
    "log-normal int": Int(1, 1024, LOG, normal=Normal(32.0, 4.0)),
    "log int in steps": Int(1, 64, LOG, 3),
    "log int": Int(1, 64, LOG),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_quantiles_are_members_and_increase_and_reach_both_ends(name: str) -> None:
    domain = DOMAINS[name]
    found = [quantile(domain, k / 1000) for k in range(1001)]
    assert all(domain.contains(x) and type(x) is type(domain.min) for x in found)
    assert found == sorted(found)
    if "narrow" not in name:
        assert found[0] == pytest.approx(domain.min)
        assert found[-1] == pytest.approx(domain.max)


@pytest.mark.parametrize("name", DOMAINS)
def test_the_quantile_of_a_values_fraction_is_that_value(name: str) -> None:
    domain = DOMAINS[name]
    for k in range(1, 100):
        value = quantile(domain, k / 100)
        assert quantile(domain, fraction_of(domain, value)) == pytest.approx(value, rel=1e-9)
    assert fraction_of(domain, domain.min - 1) <= fraction_of(domain, domain.min)
    assert 0 <= fraction_of(domain, domain.max + 1) <= 1


def test_draws_follow_the_truncated_normal_distribution() -> None:
    rng = random.Random(7)
    drawn = sorted(float(str(draw(NORMAL, rng))) for _ in range(4000))
    curve = NormalDist(3.0, 2.5)
    mass = curve.cdf(8.0) - curve.cdf(-2.0)
    gap = max(
        abs((curve.cdf(x) - curve.cdf(-2.0)) / mass - (k + 0.5) / 4000) for k, x in enumerate(drawn)
    )
    assert gap < 1.95 / math.sqrt(4000)  # Kolmogorov and Smirnov, at 0.1 %


def test_draws_on_a_log_scale_have_the_geometric_mean_in_the_middle() -> None:
    rng = random.Random(7)
    logs = [math.log10(float(str(draw(WIDE_LOG, rng)))) for _ in range(4000)]
    assert median(logs) == pytest.approx(-2.0, abs=0.05)
    # 1.5 deviations of 2/3 each
    assert sum(-3 < x < -1 for x in logs) / 4000 == pytest.approx(0.866, abs=0.02)


def test_steps_at_the_ends_are_as_likely_as_their_neighbors() -> None:
    rng = random.Random(7)
    flat = Int(0, 4, normal=Normal(2.0, 400.0))
    counts = Counter(draw(flat, rng) for _ in range(5000))
    assert all(800 < counts[value] < 1200 for value in range(5))


def problems(domain: Float | Int) -> list[Problem]:
    return list(domain.problems())


BAD: dict[str, tuple[Float | Int, str, str]] = {
    "mean outside": (
        Float(0, 1, normal=Normal(2, 1)),
        "mean",
        "2 is outside 0 to 1; use one between",
    ),
    "no width": (
        Float(1, 1, normal=Normal(1, 1)),
        "distribution",
        "min equals max, so a distribution has no width",
    ),
    "deviation 0": (
        Int(0, 9, normal=Normal(5, 0)),
        "deviation",
        "0 is not a standard deviation; use a number above 0",
    ),
    "nan": (
        Float(0, 1, normal=Normal(0.5, math.nan)),
        "deviation",
        "nan is not a standard deviation",
    ),
    "not a factor": (
        Float(1, 9, LOG, normal=Normal(3, 1)),
        "deviation",
        "use a factor above 1, because the scale",
    ),
    "too wide": (
        Float(0, 1, normal=Normal(0.5, 1e9)),
        "deviation",
        "is nearly uniform in this range; use a smaller",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_distribution_is_refused(name: str) -> None:
    domain, path, message = BAD[name]
    [problem] = problems(domain)
    assert problem.path == path
    assert message in problem.message


def test_a_range_with_problems_has_no_further_ones_of_its_distribution() -> None:
    for low, high, scale in (
        (2.0, 1.0, Scale.LINEAR),
        (0.0, 1.0, LOG),
        (math.inf, 1.0, Scale.LINEAR),
    ):
        [problem] = problems(Float(low, high, scale, normal=Normal.within(low, high, scale)))
        assert problem.path == "min"


def test_conditions_cannot_name_a_parameter_with_a_distribution() -> None:
    parent = Parameter("layers", Int(1, 8, normal=Normal(4.0, 1.0)))
    child = Parameter("width", Int(1, 8), (Condition("layers", (3,)),))
    [problem] = Space((parent, child)).problems()
    assert (problem.path, "layers has a distribution" in problem.message) == (
        "width.when.layers",
        True,
    )


# Samplers

SPACE = Space(
    (
        Parameter("lr", WIDE_LOG),
        Parameter("x", NORMAL),
        Parameter("width", Int(8, 64, LOG, 8)),
        Parameter("kind", Choice(("a", "b"))),
    )
)


def spec(algorithm: str, space: Space = SPACE) -> StudySpec:
    return StudySpec(space, (Objective("loss", Direction.MINIMIZE),), Algorithm(algorithm, 7, {}))


def searched(algorithm: str, count: int, space: Space = SPACE) -> list[dict[str, Value]]:
    """Run trials one by one, the better the nearer x is to its mean."""
    sampler = new_sampler(spec(algorithm, space), 7)
    points: list[dict[str, Value]] = []
    for number in range(count):
        [point] = sampler.propose([PointRequest(number, {})])
        value = abs(float(str(point["x"])) - 3.0)
        sampler.put(Trial(number, TrialState.SUCCEEDED, point, value=value))
        points.append(dict(point))
    return points


@pytest.mark.parametrize(
    "algorithm", ["random", "sobol", "halton", "tpe", "gp", "nsga2", "default", "optuna:tpe"]
)
def test_every_algorithm_proposes_members(algorithm: str) -> None:
    for point in searched(algorithm, 25):
        assert not SPACE.point_problems(point, partial=False)
        assert list(point) == ["lr", "x", "width", "kind"]


@pytest.mark.parametrize("algorithm", ["random", "sobol", "halton", "optuna:random"])
def test_algorithms_without_a_model_draw_from_the_distribution(algorithm: str) -> None:
    space = Space((Parameter("x", NORMAL),))
    xs = [float(str(point["x"])) for point in searched(algorithm, 200, space)]
    assert fmean(xs) == pytest.approx(3.0, abs=0.6)
    # within one of two deviations
    assert sum(0.5 < x < 5.5 for x in xs) / 200 == pytest.approx(0.715, abs=0.1)


def test_a_model_learns_where_good_values_are() -> None:
    best = sorted(abs(float(str(point["x"])) - 3.0) for point in searched("tpe", 60))
    assert best[0] < 0.1


def test_a_grid_takes_every_value_whatever_its_distribution() -> None:
    space = Space(
        (Parameter("n", Int(0, 4, normal=Normal(2.0, 0.1))), Parameter("x", Float(1, 3, LOG, 1.0)))
    )
    points = new_sampler(spec("grid", space), 7).propose([PointRequest(k, {}) for k in range(20)])
    assert sorted((p["n"], p["x"]) for p in points) == [
        (n, x) for n in range(5) for x in (1.0, 2.0, 3.0)
    ]


def test_fixed_values_stay_as_they_are() -> None:
    fixed = {"x": 0.1 + 0.2, "width": 16}
    [point] = new_sampler(spec("tpe"), 7).propose([PointRequest(0, fixed)])
    assert point["x"] == 0.1 + 0.2
    assert point["width"] == 16


def stored(found: StudySpec) -> StudySpec:
    return spec_of(spec_document(found))


def sent(found: StudySpec) -> StudySpec:
    faults = Problems()
    received = read_spec(write_spec(found), faults)
    assert not faults
    return received


@pytest.mark.parametrize("carried", [stored, sent])
def test_distributions_are_stored_and_sent(carried) -> None:  # type: ignore[no-untyped-def]
    assert carried(spec("tpe")) == spec("tpe")


def test_studies_from_before_distributions_keep_their_fingerprints() -> None:
    plain = Space((Parameter("x", Float(0, 1)), Parameter("n", Int(0, 1))))
    assert "normal" not in str(spec_document(spec("random", plain)))
    named = Space((Parameter("x", Float(0, 1, normal=Normal(0.5, 0.1))), Parameter("n", Int(0, 1))))
    assert fingerprint(spec("random", plain)) != fingerprint(spec("random", named))


def shares(points: Sequence[dict[str, Value]], key: str) -> Counter[object]:
    return Counter(point[key] for point in points)


def test_steps_on_a_log_scale_are_likelier_where_they_are_dense() -> None:
    counts = shares(searched("random", 400, Space((Parameter("x", Int(8, 64, LOG, 8)),))), "x")
    assert counts[8] > counts[16] > counts[64]


# In Python and in the file


def test_a_distribution_is_written_in_python() -> None:
    assert client.Float(-2, 8, distribution="normal", deviation=2.5) == NORMAL
    assert client.Float(1e-4, 1, log=True, distribution="normal") == WIDE_LOG
    assert client.Int(0, 60, step=5, distribution="normal") == DOMAINS["normal int"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"distribution": "gauss"}, "distribution: expected 'normal' or None, got 'gauss'"),
        ({"mean": 0.5}, "distribution: expected 'normal' together with mean, got None"),
        ({"distribution": "normal", "mean": "half"}, "mean: expected a number, got 'half'"),
    ],
)
def test_a_wrong_argument_of_a_distribution_is_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match="Float: ") as caught:
        client.Float(0, 1, **arguments)
    assert message in str(caught.value)


FILE = """\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: bell}
spec:
  objective: {metric: loss, direction: minimize}
  parameters:
    x: {type: float, min: -2, max: 8, distribution: normal, deviation: 2.5}
    lr: {type: float, min: 0.0001, max: 1, scale: log, distribution: normal}
    n: {type: int, min: 8, max: 64, scale: log, step: 8}
  trial: {command: [python, train.py, "--x=${x}", "--lr=${lr}", "--n=${n}"]}
"""


def test_a_uniform_distribution_is_the_same_as_none() -> None:
    (x, _, _) = read(
        FILE.replace("normal, deviation: 2.5", "uniform"), source="file.yaml"
    ).spec.space.parameters
    assert x.domain == Float(-2.0, 8.0)


def test_a_distribution_is_written_in_the_file() -> None:
    space = read(FILE, source="file.yaml").spec.space
    assert [p.domain for p in space.parameters] == [NORMAL, WIDE_LOG, Int(8, 64, LOG, 8)]


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (
            "distribution: normal, deviation",
            "deviation",
            "spec.parameters.x.deviation: belongs to a normal distribution",
        ),
        (
            "deviation: 2.5",
            "deviation: 0",
            "spec.parameters.x.deviation: 0 is not a standard deviation",
        ),
        (
            "deviation: 2.5",
            "mean: 9",
            "spec.parameters.x.mean: 9 is outside -2 to 8; use one between",
        ),
        (
            "distribution: normal}",
            "distribution: gauss}",
            "spec.parameters.lr.distribution: 'gauss' is not uniform or",
        ),
        ("step: 8", "step: 9", "spec.parameters.n.step: 9 does not lead from min 8 to max 64"),
    ],
)
def test_a_wrong_distribution_of_a_file_is_refused_with_its_place(
    good: str, bad: str, message: str
) -> None:
    assert good in FILE
    with pytest.raises(SpecErrors) as caught:
        read(FILE.replace(good, bad), source="file.yaml")
    assert message in str(caught.value)
