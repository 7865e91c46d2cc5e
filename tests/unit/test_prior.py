"""A person's beliefs about the best values: the first trials, the acquisition, and how the search
forgets them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suggest.engine import Engine, check_spec
from suggest.errors import Problem
from suggest.proposal import PointRequest
from suggest.samplers.belief import FirstValues
from suggest.samplers.gp_belief import FLOOR, Beliefs
from suggest.samplers.gp_space import Places
from suggest.space import Assignment, Choice, Condition, Float, Int, Normal, Parameter, Scale, Space
from suggest.storage.study_json import spec_document, spec_of
from suggest.study import Belief, EarlierStudy, EarlierTrial, Objective, Study
from tests.unit.searches import (
    MAXIMIZE,
    MINIMIZE,
    SUCCEEDED,
    assert_points,
    examples,
    finish,
    play,
    study,
)

X, Y = Parameter("x", Float(-5, 5)), Parameter("y", Float(1e-4, 1, Scale.LOG))
KIND = Parameter("kind", Choice(("a", "b", "c")))
DEPTH = Parameter("depth", Int(1, 9), when=(Condition("kind", ("a",)),))
SPACE = Space((X, Y, KIND, DEPTH))
RIGHT = (Belief("x", 2.0, 0.7), Belief("y", 0.01, 0.7))
WRONG = (Belief("x", -4.5, 0.9), Belief("y", 0.9, 0.9))


def begun(prior: tuple[Belief, ...], *, space: Space = SPACE, algorithm: str = "gp") -> Study:
    made = study(space, algorithm, direction=MINIMIZE, seed=3)
    return replace(made, spec=replace(made.spec, prior=prior))


def loss(point: Assignment) -> float:
    return (float(point["x"]) - 2.0) ** 2 + (math.log10(float(point["y"])) + 2) ** 2


def best_after(trials: int, seed: int, prior: tuple[Belief, ...]) -> float:
    search = replace(begun(prior, space=Space((X, Y)), algorithm="default"), seed=seed)
    engine = Engine(search, (), ())
    for _ in range(trials):
        (trial,) = play(engine, 1)
        finish(engine, [trial], value=loss(trial.parameters))
    return min(trial.value for trial in engine.trials() if trial.value is not None)


def problems(*prior: Belief, space: Space = SPACE, algorithm: str = "gp") -> list[tuple[str, str]]:
    return [
        (p.path, p.message) for p in check_spec(begun(prior, space=space, algorithm=algorithm).spec)
    ]


def test_the_first_trial_has_the_values_that_are_believed_to_be_best() -> None:
    prior = (Belief("y", 3e-4, 0.5), Belief("kind", "a", 0.5), Belief("depth", 7, 0.3))
    (first,) = play(Engine(begun(prior), (), ()), 1)
    assert {name: first.parameters[name] for name in ("y", "kind", "depth")} == {
        "y": 3e-4,
        "kind": "a",
        "depth": 7,
    }


def test_the_share_of_first_values_near_the_belief_is_as_sure_as_the_person() -> None:
    prior = (Belief("y", 0.01, 0.6), Belief("kind", "b", 0.8))
    values = FirstValues(prior, SPACE, seed=0)
    drawn = [values.of(PointRequest(n, {})) for n in range(2, 2000, 2)]
    # A tenth of four powers of ten.
    near = statistics.fmean(abs(math.log10(v["y"]) + 2) <= 0.4 for v in drawn)
    assert near == pytest.approx(0.6, abs=0.05)
    assert statistics.fmean(v["kind"] == "b" for v in drawn) == pytest.approx(0.8, abs=0.05)
    assert {v["kind"] for v in drawn} == {"a", "b", "c"}


def test_a_person_who_is_nearly_certain_gets_values_near_the_belief() -> None:
    surest = math.nextafter(1.0, 0.0)
    prior = tuple(replace(belief, sure=surest) for belief in RIGHT)
    assert problems(*prior) == []
    drawn = FirstValues(prior, SPACE, seed=0).of(PointRequest(2, {}))
    assert drawn["x"] == pytest.approx(2.0, abs=1.0)


def test_every_second_of_the_first_trials_is_as_without_a_belief() -> None:
    believed, free = (
        [trial.parameters for trial in play(Engine(begun(prior), (), ()), 6)]
        for prior in (RIGHT, ())
    )
    assert [a == b for a, b in zip(believed, free, strict=True)] == [False, True] * 3


def test_a_right_prior_makes_a_short_search_better() -> None:
    alone = statistics.median(best_after(10, seed, ()) for seed in range(5))
    helped = statistics.median(best_after(10, seed, RIGHT) for seed in range(5))
    assert helped < alone / 2


def test_a_wrong_prior_costs_little_after_30_trials() -> None:
    assert max(best_after(30, seed, WRONG) for seed in range(3)) < 0.02


def powers(best: list[dict[str, object]], results: int) -> tuple[float, float]:
    """Return the logarithm of the factor far from the belief about x, and at another kind."""
    places = Places(SPACE)
    rows = places.encoded(best)
    beliefs = Beliefs((Belief("x", 0.0, 0.5), Belief("kind", "a", 0.5)), places, rows, results)
    center, far, other = places.encoded(
        [{"x": x, "y": 1e-4, "kind": kind} for x, kind in ((0.0, "a"), (5.0, "a"), (0.0, "b"))]
    )
    at_center, at_far, at_other = beliefs.promise(np.array([center, far, other]))
    assert at_center == 0.0
    return at_far, at_other


def test_the_best_trials_that_contradict_a_belief_take_its_power_away() -> None:
    agreeing = {"x": 0.0, "y": 0.1, "kind": "a", "depth": 2}
    far, other = powers([agreeing], 10)
    assert (far, other) == pytest.approx(
        (math.log(FLOOR + 0.99 * math.exp(-5.69)), math.log(0.5)), rel=0.1
    )
    assert powers([agreeing], 20) == pytest.approx((far / 2, other / 2))
    contradicting = {"x": 4.0, "y": 0.1, "kind": "a", "depth": 2}
    assert powers([agreeing, contradicting], 10)[0] == pytest.approx(far / 2, rel=0.05)
    assert powers([contradicting], 10) == pytest.approx((0.0, other), abs=0.2)
    elsewhere = {"x": 0.0, "y": 0.1, "kind": "b"}
    assert powers([elsewhere], 10) == pytest.approx((far, 0.0))


@pytest.mark.parametrize(("count", "believed"), [(3, False), (4, True)])
def test_without_a_prior_the_middles_of_several_numbers_are_believed_in(
    count: int, believed: bool
) -> None:
    few = Parameter("few", Int(1, 9))
    numbers = [Parameter(f"x{k}", Float(0, 1)) for k in range(count)]
    places = Places(Space((few, KIND, *numbers)))
    middle, end, few_end = np.full((3, places.size), 0.5)
    end[-1], few_end[0] = 1.0, 1.0
    beliefs = Beliefs((), places, middle[None], 20)
    at_middle, at_end, at_few_end = beliefs.promise(np.array([middle, end, few_end]))
    assert at_middle == at_few_end == 0.0
    assert at_end == pytest.approx(math.log(FLOOR + 0.99 * math.exp(-2)) if believed else 0.0)
    if believed:
        assert Beliefs((), places, end[None], 20).promise(end[None]) > at_end


@examples(50)
@given(x=st.floats(-5, 5), around=st.floats(-5, 5), sure=st.floats(0.05, 0.95))
def test_the_gradient_is_that_of_the_factor(x: float, around: float, sure: float) -> None:
    places = Places(Space((X,)))
    best = places.encoded([{"x": around}])
    beliefs = Beliefs((Belief("x", around, sure),), places, best, 10)
    row = places.encoded([{"x": x}])
    _, slope = beliefs.slopes(row)
    step = 1e-6
    ahead, behind = beliefs.promise(row + step)[0], beliefs.promise(row - step)[0]
    assert slope[0, 0] == pytest.approx((ahead - behind) / (2 * step), abs=1e-3, rel=1e-3)


def test_a_belief_says_nothing_about_trials_that_lack_its_parameter() -> None:
    places = Places(SPACE)
    rows = places.encoded([{"x": 0.0, "y": 0.1, "kind": "b"}])
    beliefs = Beliefs((Belief("depth", 2, 0.5),), places, rows, 10)
    assert beliefs.promise(rows) == 0.0
    assert not beliefs.slopes(rows)[1].any()


def test_a_finite_space_within_the_budget_is_no_grid_if_there_is_a_prior() -> None:
    space = Space((Parameter("k", Int(1, 9)),))
    made = study(space, "default", config={"trials": 9}, direction=MINIMIZE)
    made = replace(made, spec=replace(made.spec, prior=(Belief("k", 7, 0.5),)))
    assert play(Engine(made, (), ()), 1)[0].parameters == {"k": 7}


def test_a_prior_of_a_normally_distributed_parameter_is_in_its_own_units() -> None:
    uneven = Space((Parameter("x", Float(-5, 5, normal=Normal(0.0, 2.0))), Y))
    (first,) = play(Engine(begun((Belief("x", 3.0, 0.5),), space=uneven), (), ()), 1)
    assert first.parameters["x"] == pytest.approx(3.0)


def test_a_prior_completes_the_points_of_earlier_studies() -> None:
    trials = tuple(EarlierTrial({"x": k / 5}, abs(k - 3.0)) for k in range(10))
    search = begun((Belief("x", -4.0, 0.9), Belief("y", 0.5, 0.9)), space=Space((X, Y)))
    spec = replace(search.spec, learn_from=(EarlierStudy("old", 1.0, trials),))
    (first,) = play(Engine(replace(search, spec=spec), (), ()), 1)
    assert first.parameters == {"x": pytest.approx(0.6), "y": pytest.approx(0.5)}


@pytest.mark.parametrize("objectives", [1, 2])
@pytest.mark.parametrize("algorithm", ["gp", "default"])
def test_a_rebuilt_engine_proposes_the_same(algorithm: str, objectives: int) -> None:
    prior = (Belief("x", 1.0, 0.5), Belief("kind", "a", 0.9), Belief("depth", 3, 0.5))
    search = begun(prior, algorithm=algorithm)
    two = tuple(Objective(name, MAXIMIZE) for name in ("a", "b"))[:objectives]
    search = replace(search, spec=replace(search.spec, objectives=two))
    engine = Engine(search, (), ())
    for n in range(16):
        for trial in play(engine, 1):
            further = (float(n % 5),) * (objectives - 1)
            value = loss(trial.parameters)
            engine.put(replace(trial, state=SUCCEEDED, value=value, further=further))
    assert_points(SPACE, [trial.parameters for trial in engine.trials()])
    again = Engine(search, list(engine.trials()), ())
    assert play(again, 3)[0].parameters == play(engine, 3)[0].parameters


def test_a_prior_is_stored_with_the_spec() -> None:
    spec = begun((Belief("x", 1.0, 0.5), Belief("kind", "a", 0.9))).spec
    assert spec_of(spec_document(spec)) == spec
    assert "prior" not in spec_document(begun(()).spec)


REFUSED: Mapping[Belief, tuple[str, str]] = {
    Belief("xx", 1.0, 0.5): ("prior.xx", "unknown parameter; did you mean x?"),
    Belief("q", 1.0, 0.5): ("prior.q", "unknown parameter; the keys are parameters of the search"),
    Belief("x", 7, 0.5): ("prior.x.around", "7 is outside -5 to 5"),
    Belief("x", "one", 0.5): (
        "prior.x.around",
        "'one' is not a finite number; use one from -5 to 5",
    ),
    Belief("depth", 2.5, 0.5): (
        "prior.depth.around",
        "2.5 is not a whole number; use one from 1 to 9",
    ),
    Belief("kind", "d", 0.5): ("prior.kind.around", "'d' is not one of the choices 'a', 'b', 'c'"),
    Belief("x", 1.0, 0.0): (
        "prior.x.sure",
        "0 is not above 0 and below 1; use 0.5, or another share",
    ),
    Belief("x", 1.0, 1.0): (
        "prior.x.sure",
        "1 is not above 0 and below 1; use 0.5, or another share",
    ),
    Belief("x", 1.0, math.nan): (
        "prior.x.sure",
        "nan is not above 0 and below 1; use 0.5, or another share",
    ),
    Belief("x", 0.0, 0.2): (
        "prior.x.sure",
        "0.2 is no more than an even guess within a tenth of the range; use more than 0.2, or "
        "remove the belief",
    ),
    Belief("x", -5, 0.01): (
        "prior.x.sure",
        "0.01 is no more than an even guess within a tenth of the range; use more than 0.1, or "
        "remove the belief",
    ),
    Belief("kind", "a", 0.3): (
        "prior.kind.sure",
        "0.3 is no more than an even guess among 3 choices; use more than 0.33, or remove the "
        "belief",
    ),
}


@pytest.mark.parametrize("belief", REFUSED, ids=repr)
def test_a_wrong_belief_is_refused_with_the_cure(belief: Belief) -> None:
    assert problems(belief) == [REFUSED[belief]]


def test_what_cannot_use_a_prior_refuses_it() -> None:
    assert problems(RIGHT[0], algorithm="tpe") == [
        ("algorithm.name", "tpe does not use a prior; use default or gp, or remove prior")
    ]
    assert problems(RIGHT[0], RIGHT[0]) == [
        ("prior.x", "x is already there; give one belief for each parameter")
    ]
    many = tuple(Objective(name, MINIMIZE) for name in "abcd")
    spec = replace(begun(RIGHT, algorithm="default").spec, objectives=many)
    assert check_spec(spec) == (
        Problem("prior", "4 objectives; default uses it for at most 3; remove it"),
    )
    spec = replace(begun(RIGHT).spec, space=Space(()), define_by_run=True)
    assert check_spec(spec) == (
        Problem("prior", "is for parameters that are known from the start; remove it"),
    )
