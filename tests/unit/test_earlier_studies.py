"""Learning from earlier studies: which of their trials a new study takes, and how its Gaussian
process uses them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suggest import earlier
from suggest.engine import Engine, check_spec
from suggest.errors import Problem
from suggest.samplers.gp_earlier import normal_scores, weights_of
from suggest.space import Assignment, Choice, Condition, Float, Int, Normal, Parameter, Scale, Space
from suggest.storage.study_json import spec_document, spec_of
from suggest.study import EarlierStudy, EarlierTrial, Objective, StudySpec
from suggest.trial import Trial, TrialState
from tests.unit.searches import MAXIMIZE, MINIMIZE, examples, finish, play, spaces, study

X, Y = Parameter("x", Float(-5, 5)), Parameter("y", Float(1e-4, 1, Scale.LOG))
SPACE = Space((X, Y))


def spec_with(space: Space, algorithm: str = "gp", **changes: object) -> StudySpec:
    spec = study(space, algorithm, direction=MINIMIZE).spec
    return replace(spec, **changes)


def succeeded(*points: Assignment) -> list[Trial]:
    return [Trial(n, TrialState.SUCCEEDED, point, value=float(n)) for n, point in enumerate(points)]


def taken(space: Space, source: Space, *points: Assignment) -> EarlierStudy | Problem:
    return earlier.taken(
        EarlierStudy("old"),
        spec_with(space),
        study(source, direction=MINIMIZE),
        succeeded(*points),
    )


def test_trials_outside_of_the_new_ranges_and_choices_are_left_out() -> None:
    kinds = Parameter("kind", Choice(("a", "b")))
    inside: list[Assignment] = [{"x": k / 10, "kind": "a"} for k in range(5)]
    found = taken(
        Space((X, kinds)),
        Space((Parameter("x", Float(-50, 50)), Parameter("kind", Choice(("a", "c"))))),
        *inside,
        {"x": 7.0, "kind": "a"},
        {"x": 1.0, "kind": "c"},
    )
    assert isinstance(found, EarlierStudy)
    assert [trial.parameters for trial in found.trials] == inside


def test_parameters_of_one_study_alone_are_ignored_or_left_open() -> None:
    found = taken(
        SPACE, Space((X, Parameter("z", Int(0, 9)))), *({"x": 1.0, "z": k} for k in range(5))
    )
    assert isinstance(found, EarlierStudy)
    assert [trial.parameters for trial in found.trials] == [{"x": 1.0}] * 5


def test_a_parameter_whose_condition_is_on_a_new_one_is_left_open() -> None:
    kind = Parameter("kind", Choice(("a", "b")))
    y = replace(Y, when=(Condition("kind", ("a",)),))
    found = taken(Space((kind, X, y)), SPACE, *({"x": k / 10, "y": 0.1} for k in range(5)))
    assert isinstance(found, EarlierStudy)
    assert {name for trial in found.trials for name in trial.parameters} == {"x"}


def test_of_many_trials_the_best_half_and_a_spread_of_the_others_are_taken() -> None:
    found = taken(SPACE, SPACE, *({"x": 0.0, "y": 0.1} for _ in range(1000)))
    assert isinstance(found, EarlierStudy)
    values = [trial.value for trial in found.trials]
    assert len(values) == earlier.MOST_TRIALS
    assert values[:50] == list(range(50))
    assert max(values) > 970


def test_too_few_trials_in_the_ranges_are_a_problem_with_the_numbers() -> None:
    found = taken(SPACE, SPACE, *({"x": 0.0, "y": 0.1} for _ in range(3)))
    assert found == Problem(
        "study",
        "3 of the trials of old succeeded, 3 of them in the ranges of this search, and at least 5 "
        "are needed; omit it, or add trials to it",
    )


def test_trials_outside_of_the_ranges_are_a_problem_that_wider_ranges_solve() -> None:
    found = taken(SPACE, SPACE, *({"x": 9.0, "y": 0.1} for _ in range(6)))
    assert found == Problem(
        "study",
        "6 of the trials of old succeeded, 0 of them in the ranges of this search, and at least 5 "
        "are needed; omit it, or widen the ranges",
    )


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            replace(spec_with(SPACE), objectives=(Objective("accuracy", MINIMIZE),)),
            "old has the metric accuracy, and this search has loss; name a study of the same metric",
        ),
        (
            replace(spec_with(SPACE), objectives=(Objective("loss", MAXIMIZE),)),
            "old is to maximize loss, and this search is to minimize it; name a study with the same "
            "direction",
        ),
        (
            replace(
                spec_with(SPACE),
                objectives=(Objective("loss", MINIMIZE), Objective("size", MINIMIZE)),
            ),
            "old has several objectives; name one with a single objective",
        ),
        (
            replace(
                spec_with(Space((Parameter("width", Int(1, 9)),))),
                objectives=(Objective("loss", MINIMIZE),),
            ),
            "old has no parameter of this search; its parameters are width",
        ),
    ],
)
def test_a_source_that_does_not_compare_is_a_problem(source: StudySpec, told: str) -> None:
    spec = replace(spec_with(SPACE), objectives=(Objective("loss", MINIMIZE),))
    other = replace(study(SPACE), spec=source)
    assert earlier.source_problems(EarlierStudy("old"), spec, other) == [Problem("study", told)]


def test_what_cannot_learn_is_refused_with_the_cure() -> None:
    twice = (EarlierStudy("a"), EarlierStudy("a", 0.0))
    spec = replace(spec_with(SPACE, "tpe"), learn_from=twice)
    assert [(p.path, p.message) for p in check_spec(spec)] == [
        (
            "algorithm.name",
            "tpe does not learn from earlier searches; use default or gp, or name no earlier ones",
        ),
        ("learn_from[1].study", "a is already there; name it once"),
        ("learn_from[1].weight", "0 is not above 0 and at most 1; use 1, or 0.5"),
    ]
    several = replace(
        spec_with(SPACE),
        objectives=(Objective("a", MINIMIZE), Objective("b", MINIMIZE)),
        learn_from=(EarlierStudy("a"),),
    )
    assert [p.path for p in check_spec(several)] == ["learn_from"]


def test_similar_studies_may_be_asked_for_beside_named_ones() -> None:
    similar = (EarlierStudy("-"), EarlierStudy("a"))
    assert check_spec(replace(spec_with(SPACE), learn_from=similar)) == ()
    assert [p.path for p in check_spec(replace(spec_with(SPACE, "tpe"), learn_from=similar))] == [
        "algorithm.name"
    ]


def test_what_was_learned_is_stored_with_the_spec() -> None:
    spec = replace(
        spec_with(SPACE),
        learn_from=(EarlierStudy("a", 0.5, (EarlierTrial({"x": 1.0}, 2.5),)), EarlierStudy("b")),
    )
    assert spec_of(spec_document(spec)) == spec
    assert "learnFrom" not in spec_document(spec_with(SPACE))


def test_scores_depend_on_ranks_alone() -> None:
    losses = np.array([3.0, 1.0, 2.0, 2.0])
    assert normal_scores(losses).tolist() == normal_scores(np.exp(20 * losses)).tolist()
    assert normal_scores(losses)[2] == normal_scores(losses)[3]


def test_a_source_that_the_trials_contradict_loses_its_weight() -> None:
    truth = np.linspace(-1.5, 1.5, 12)
    basis = np.column_stack([truth, -truth])
    _, weights = weights_of(basis, truth, np.ones(2), np.eye(12))
    assert weights[0] > 0.9
    assert weights[1] < 0.1


def bowl(middle: float) -> Callable[[Assignment], float]:
    return lambda point: (
        (float(point["x"]) - middle) ** 2 + (math.log10(float(point["y"])) + 2) ** 2
    )


def learned(middle: float, *, sign: float = 1.0) -> EarlierStudy:
    """Return a study of a bowl around x = middle, y = 0.01, whose values are 1,000 times as large."""
    rng = np.random.default_rng(0)
    points = [
        {"x": float(x), "y": float(10**y)}
        for x, y in zip(rng.uniform(-5, 5, 40), rng.uniform(-4, 0, 40), strict=True)
    ]
    loss = bowl(middle)
    return EarlierStudy("old", 1.0, tuple(EarlierTrial(p, sign * 1000 * loss(p)) for p in points))


def best_after(trials: int, seed: int, *sources: EarlierStudy, space: Space = SPACE) -> float:
    begun = study(space, "default", direction=MINIMIZE, seed=seed)
    engine = Engine(replace(begun, spec=replace(begun.spec, learn_from=sources)), (), ())
    for _ in range(trials):
        (trial,) = play(engine, 1)
        finish(engine, [trial], value=bowl(2.0)(trial.parameters))
    return min(trial.value for trial in engine.trials() if trial.value is not None)


def test_a_search_begins_where_a_similar_one_was_good() -> None:
    assert best_after(1, 0, learned(2.2)) < 1.5


def test_a_similar_source_makes_a_short_search_better() -> None:
    alone = statistics.median(best_after(8, seed) for seed in range(5))
    helped = statistics.median(best_after(8, seed, learned(1.8)) for seed in range(5))
    assert helped < alone / 2


def test_a_reversed_source_is_overcome() -> None:
    assert best_after(25, 0, learned(2.0, sign=-1.0)) < 0.1


def test_a_source_without_a_parameter_helps_with_the_others() -> None:
    lacking = learned(1.8)
    lacking = replace(
        lacking,
        trials=tuple(replace(t, parameters={"x": t.parameters["x"]}) for t in lacking.trials),
    )
    assert best_after(25, 0, lacking) < 0.1


def test_a_search_with_a_normal_distribution_learns_too() -> None:
    uneven = Space((Parameter("x", Float(-5, 5, normal=Normal(0.0, 2.0))), Y))
    assert best_after(2, 0, learned(2.0), space=uneven) < 1.5


def test_a_rebuilt_engine_proposes_the_same() -> None:
    begun = study(SPACE, "default", direction=MINIMIZE, seed=3)
    begun = replace(begun, spec=replace(begun.spec, learn_from=(learned(1.0),)))
    engine = Engine(begun, (), ())
    for _ in range(7):
        (trial,) = play(engine, 1)
        finish(engine, [trial], value=bowl(2.0)(trial.parameters))
    again = Engine(begun, list(engine.trials()), ())
    assert play(again, 3)[0].parameters == play(engine, 3)[0].parameters


def test_trials_in_parallel_begin_at_different_points() -> None:
    begun = study(SPACE, "gp", direction=MINIMIZE, seed=3)
    begun = replace(begun, spec=replace(begun.spec, learn_from=(learned(1.0),)))
    points = [trial.parameters for trial in play(Engine(begun, (), ()), 60)]
    assert len({tuple(point.values()) for point in points}) == 60


def test_a_finite_space_within_the_budget_is_no_grid_if_it_learns() -> None:
    space = Space((Parameter("k", Int(1, 9)),))
    source = EarlierStudy(
        "old", 1.0, tuple(EarlierTrial({"k": k}, abs(k - 7.0)) for k in range(1, 10))
    )
    begun = study(space, "default", config={"trials": 9}, direction=MINIMIZE)
    begun = replace(begun, spec=replace(begun.spec, learn_from=(source,)))
    assert play(Engine(begun, (), ()), 1)[0].parameters == {"k": 7}


@examples(30)
@given(space=spaces(most=4), other=st.none() | spaces(most=4), seed=st.integers(0, 99))
def test_a_search_of_any_space_can_learn_from_any_other(
    space: Space, other: Space | None, seed: int
) -> None:
    source = Engine(study(other or space, "random", direction=MINIMIZE, seed=seed), (), ())
    trials = play(source, 30)
    spec = study(space, "gp", direction=MINIMIZE, seed=seed).spec
    found = earlier.taken(
        EarlierStudy("old"), spec, source.study, succeeded(*(t.parameters for t in trials))
    )
    if earlier.source_problems(EarlierStudy("old"), spec, source.study):
        return
    if isinstance(found, Problem):
        assert other is not None
        return
    begun = study(space, "gp", direction=MINIMIZE, seed=seed)
    engine = Engine(replace(begun, spec=replace(begun.spec, learn_from=(found,))), (), ())
    for n in range(7):
        (trial,) = play(engine, 1)
        assert not space.point_problems(trial.parameters, partial=False)
        finish(engine, [trial], value=float(n % 3))
