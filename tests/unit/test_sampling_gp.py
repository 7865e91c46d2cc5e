"""`gp`: what it is shown, when it is fitted again,
and that it learns from every kind of outcome.
"""

from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from suggest.engine import Engine
from suggest.samplers.gp import BARRED, LearnedTrials, fitted_below
from suggest.samplers.running import LIARS
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Scale, Space
from suggest.study import Constraint, Criteria, Objective, Study
from suggest.trial import Trial, TrialState
from suggest.workers import Workers
from tests.unit.searches import MINIMIZE, RUNNING, SUCCEEDED, finish, play, seeds, study

LOSS = Criteria((Objective("loss", MINIMIZE),))
SPACE = Space(
    (
        Parameter("x", Float(-5, 5)),
        Parameter("y", Float(1e-4, 1, Scale.LOG)),
        Parameter("k", Int(1, 9)),
    )
)
BRANCHES = Space(
    (
        Parameter("kind", Choice(("bowl", "slope"))),
        Parameter("x", Float(-5, 5), (Condition("kind", ("bowl",)),)),
        Parameter("z", Float(0, 1), (Condition("kind", ("slope",)),)),
    )
)


def loss(point: Assignment) -> float:
    return (
        (float(point["x"]) - 2) ** 2
        + (math.log10(float(point["y"])) + 2) ** 2
        + abs(int(point["k"]) - 7) / 4
    )


def searched(algorithm: str, seed: int, trials: int) -> float:
    engine = Engine(study(SPACE, algorithm, direction=MINIMIZE, seed=seed), (), ())
    for _ in range(trials):
        (trial,) = play(engine, 1)
        finish(engine, [trial], value=loss(trial.parameters))
    return min(trial.value for trial in engine.trials() if trial.value is not None)


def test_gp_comes_closer_than_tpe() -> None:
    gp, tpe = (
        statistics.median(searched(name, seed, 40) for seed in seeds(3)) for name in ("gp", "tpe")
    )
    assert gp < tpe / 5


def test_gp_finds_the_better_branch_and_its_best_point() -> None:
    engine = Engine(study(BRANCHES, "gp", direction=MINIMIZE), (), ())
    for _ in range(40):
        (trial,) = play(engine, 1)
        p = trial.parameters
        value = (float(p["x"]) - 2) ** 2 if p["kind"] == "bowl" else 0.5 + float(p["z"])
        finish(engine, [trial], value=value)
    assert min(t.value for t in engine.trials() if t.value is not None) < 0.01


def known(trials: int) -> Engine:
    engine = Engine(study(SPACE, "gp", direction=MINIMIZE), (), ())
    for _ in range(trials):
        (trial,) = play(engine, 1)
        finish(engine, [trial], value=loss(trial.parameters))
    return engine


MANY = (
    *(Parameter(f"x{k}", Float(0, 2)) for k in range(8)),
    Parameter("y", Float(1e-4, 1, Scale.LOG)),
    Parameter("k", Int(1, 9)),
)
BESIDE = (
    Parameter("kind", Choice(("a", "b"))),
    Parameter("depth", Int(1, 1000), (Condition("kind", ("a", "b")),)),
)


def test_a_search_in_ten_numbers_begins_in_their_middle() -> None:
    of = study(Space((*MANY, *BESIDE)), "gp")
    first, second = (p.parameters for p in Engine(of, (), ()).propose(2).trials)
    middle: Assignment = {**{f"x{k}": 1.0 for k in range(8)}, "y": pytest.approx(0.01), "k": 5}
    assert {name: first[name] for name in middle} == middle
    assert of.spec.space.point_problems(first, partial=False) == ()
    assert second == Engine(study(of.spec.space, "random"), (), ()).propose(2).trials[1].parameters

    enqueued = Engine(of, [Trial(0, TrialState.QUEUED, {"x3": 0.5})], ())
    assert enqueued.propose(1).trials[0].parameters == {**first, "x3": 0.5}


def test_a_search_in_fewer_numbers_begins_as_random_search() -> None:
    space = Space((*MANY[1:], *BESIDE))
    assert Engine(study(space, "gp"), (), ()).propose(8) == Engine(
        study(space, "random"), (), ()
    ).propose(8)


@pytest.mark.parametrize("seed", seeds(5))
def test_after_few_results_few_numbers_are_at_the_ends_of_their_ranges(seed: int) -> None:
    space = Space(tuple(Parameter(f"x{k}", Float(-1, 1)) for k in range(6)))
    engine = Engine(study(space, "gp", direction=MINIMIZE, seed=seed), (), ())
    for trial in play(engine, 32)[:12]:
        value = sum((float(x) - 0.2) ** 2 for x in trial.parameters.values())
        finish(engine, [trial], value=value)
    proposed = [float(x) for trial in play(engine, 8) for x in trial.parameters.values()]
    assert sum(abs(x) > 0.95 for x in proposed) < len(proposed) / 5


def test_a_search_comes_close_to_a_best_point_in_a_corner() -> None:
    space = Space(tuple(Parameter(f"x{k}", Float(-1, 1)) for k in range(4)))
    engine = Engine(study(space, "gp", direction=MINIMIZE, seed=1), (), ())
    for _ in range(35):
        (trial,) = play(engine, 1)
        value = sum((1 - float(x)) ** 2 for x in trial.parameters.values())
        finish(engine, [trial], value=value)
    best = min(engine.trials(), key=lambda trial: trial.value or 0.0)
    assert min(float(x) for x in best.parameters.values()) > 0.99


@pytest.mark.parametrize(("trials", "spread"), [(12, 0.03), (25, 0.0), (50, 0.0)])
def test_the_points_of_a_batch_differ(trials: int, spread: float) -> None:
    """From 25 trials on, the function is known: all of the batch are near its minimum."""
    points = [p.parameters for p in known(trials).propose(16).trials]
    places = [(float(p["x"]) / 10, math.log10(float(p["y"])) / 4, int(p["k"]) / 9) for p in points]
    apart = [
        max(abs(a - b) for a, b in zip(p, q, strict=True))
        for p, q in itertools.combinations(places, 2)
    ]
    assert min(apart) > 1e-3
    assert statistics.median(apart) > spread


def test_a_large_batch_is_proposed_in_parts_that_know_the_recent_points() -> None:
    points = [repr(p.parameters) for p in known(12).propose(3 * LIARS // 2).trials]
    assert len(set(points)) == 3 * LIARS // 2


def barred(point: Assignment) -> bool:
    """Where the optimum would be."""
    return float(point["x"]) > 1


def searched_beside_a_barrier(seed: int, state: TrialState) -> tuple[int, float]:
    """How many of the second half were beyond it; and the best loss."""
    engine = Engine(study(SPACE, "gp", direction=MINIMIZE, seed=seed), (), ())
    for _ in range(50):
        (trial,) = play(engine, 1)
        if not barred(trial.parameters):
            finish(engine, [trial], value=loss(trial.parameters))
        else:
            diverged = 90.0 + trial.number % 3
            finish(engine, [trial], state, diverged if state is SUCCEEDED else None)
    trials = list(engine.trials())
    late = sum(barred(t.parameters) for t in trials[25:])
    return late, min(t.value for t in trials if t.value is not None)


@pytest.mark.parametrize("state", [TrialState.INFEASIBLE, SUCCEEDED])
def test_gp_avoids_regions_where_trials_are_infeasible_or_diverge(state: TrialState) -> None:
    late, best = zip(*(searched_beside_a_barrier(seed, state) for seed in seeds(3)), strict=True)
    assert statistics.median(late) < 14
    assert statistics.median(best) < 1.6, "the best of the rest is 1"


@pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.INFEASIBLE, TrialState.PRUNED])
def test_a_point_without_a_value_is_not_proposed_again_and_again(state: TrialState) -> None:
    engine = known(20)
    points = []
    for _ in range(6):
        (trial,) = play(engine, 1)
        value = 30.0 if state is TrialState.PRUNED else None
        finish(engine, [trial], state, value)
        points.append(repr(trial.parameters))
    assert len(set(points)) == 6


def test_a_worker_proposes_what_this_process_would() -> None:
    pool = Workers(size=1)
    try:
        made = known(15)
        there = Engine(made.study, made.trials(), (), workers=pool)
        for _ in range(4):
            assert there.propose(3) == made.propose(3)
            (trial,) = play(made, 1)
            there.put(Trial(trial.number, RUNNING, trial.parameters))
            for engine in (made, there):
                finish(engine, [trial], value=loss(trial.parameters))
        assert pool.running == 1
    finally:
        pool.close()


def test_a_server_with_workers_imports_neither_numpy_nor_the_model() -> None:
    program = (
        "import sys\n"
        "from tests.unit.test_sampling_gp import *\n"
        "made = study(SPACE, 'gp')\n"
        "trials = [Trial(k, SUCCEEDED, {'x': k / 9, 'y': 0.1, 'k': 3}, value=1.0 * k) for k in "
        "range(12)]\n"
        "pool = Workers(size=1)\n"
        "engine = Engine(made, trials, (), workers=pool)\n"
        "engine.warm_up()\n"
        "engine.propose(1)\n"
        "print(pool.running, sorted({'numpy', 'scipy', 'optuna'} & set(sys.modules)))\n"
        "pool.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "1 []\n", done.stderr


def test_the_model_needs_neither_scipy_nor_optuna() -> None:
    code = (
        "import sys, suggest.samplers.gp_model; sys.exit(bool({'optuna', 'scipy'} & "
        "set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


# Several objectives and constraints


def bounded(
    number: int, x: float, loss: float, measured: Sequence[float], *further: float
) -> Trial:
    point: Assignment = {"x": x, "y": 0.1, "k": 3}
    return Trial(
        number,
        SUCCEEDED,
        point,
        value=loss,
        step=1,
        further=further,
        constraint_values=tuple(measured),
    )


def with_constraint(*objectives: Objective) -> Study:
    made = study(SPACE, "gp")
    constraints = (Constraint("size", max=1.0),)
    return replace(made, spec=replace(made.spec, objectives=objectives, constraints=constraints))


FIRST, SECOND = Objective("loss", MINIMIZE), Objective("cost", MINIMIZE)


def test_while_no_trial_is_feasible_gp_searches_for_a_feasible_one() -> None:
    """The size falls with x, and the loss rises with it."""
    trials = [bounded(k, k / 4 - 5, k / 4, [5.0 - k / 4]) for k in range(14)]
    engine = Engine(with_constraint(FIRST), trials, ())
    (found,) = engine.propose(1).trials
    assert float(found.parameters["x"]) > 13 / 4 - 5


@pytest.mark.parametrize(
    "trials",
    [
        [bounded(k, k / 4, 1.0 * k, [], 1.0) for k in range(14)],
        [bounded(k, k / 4, 1.0, [1.0], 2.0) for k in range(14)],
        [bounded(k, k / 4, 1e300 * (-1) ** k, [1e300 * (-1) ** k], -1e300) for k in range(14)],
        [bounded(k, k / 4, 1e-300 * k, [1e-300 * k], 5e-324) for k in range(14)],
        [bounded(k, k / 4, 1.0 * k, [math.nan if k % 2 else math.inf], 1.0) for k in range(14)],
        [
            bounded(0, 1.0, 1.0, [0.5], 1.0),
            *(Trial(k, TrialState.FAILED, {"x": 0.1, "y": 0.1, "k": 3}) for k in range(1, 14)),
        ],
    ],
    ids=["unmeasured", "constant", "huge", "tiny", "not finite", "one"],
)
@pytest.mark.parametrize("objectives", [(FIRST,), (FIRST, SECOND)], ids=["one", "two"])
def test_values_of_objectives_and_constraints_may_be_extreme(
    trials: list[Trial], objectives: tuple[Objective, ...]
) -> None:
    count = len(objectives)
    shown = [replace(trial, further=trial.further[: count - 1]) for trial in trials]
    made = with_constraint(*objectives)
    config = replace(made.spec.algorithm, settings={"startupTrials": 1})
    engine = Engine(replace(made, spec=replace(made.spec, algorithm=config)), shown, ())
    for proposed in engine.propose(2).trials:
        assert SPACE.point_problems(proposed.parameters, partial=False) == ()


def test_of_several_objectives_it_is_shown_the_front_and_the_most_recent() -> None:
    trials = LearnedTrials(Criteria((FIRST, SECOND)), 20)
    for number in range(300):
        in_front = number % 50 == 7
        loss = number / 300 if in_front else 2.0
        trials.put(bounded(number, 0.0, loss, [], 1.0 - number / 300 if in_front else 2.0))
    shown = [t.number for t in trials.learned()]
    below = fitted_below(299, [])
    assert shown == [7, 57, 107, 157, 207, 257, *range(below - 14, 300)]


# The schedule


def test_it_is_fitted_again_when_the_study_has_grown_by_a_tenth() -> None:
    found = sorted({fitted_below(last, []) for last in range(800)})
    assert found[:12] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert all(b - a == min(max(a // 10, 1), 50) for a, b in itertools.pairwise(found))


@pytest.mark.parametrize(
    ("last", "running", "expected"),
    [
        (19, [], 20),
        (19, [18, 20], 18),
        (19, [3], 16),  # a straggler is not waited for
        (999, [400], 900),
    ],
)
def test_it_waits_for_running_trials_but_not_for_stragglers(
    last: int, running: list[int], expected: int
) -> None:
    assert fitted_below(last, running) == expected


def told(numbers: range, values: list[float], window: int) -> LearnedTrials:
    trials = LearnedTrials(LOSS, window)
    for number in numbers:
        trials.put(Trial(number, SUCCEEDED, {"x": 0.0}, value=values[number]))
    return trials


def test_it_is_shown_the_best_and_the_most_recent() -> None:
    values = [float(k * 37 % 500) for k in range(500)]
    shown = {t.number for t in told(range(500), values, 100).learned()}
    below = fitted_below(499, [])
    best = sorted(range(below), key=values.__getitem__)[:50]
    assert shown >= {*best, *range(below, 500)}
    assert len(shown & set(range(below))) == 100
    recent = sorted(shown - set(best))
    assert recent == [k for k in range(recent[0], 500) if k not in best]


def test_evicted_trials_would_not_have_been_shown() -> None:
    values = [float(k * 37 % 3001) for k in range(3000)]
    long = told(range(3000), values, 50)
    short = LearnedTrials(LOSS, 50)
    for number in reversed(range(3000)):
        short.put(Trial(number, SUCCEEDED, {"x": 0.0}, value=values[number]))
    assert [t.number for t in long.learned()] == [t.number for t in short.learned()]
    assert long.count == short.count == 3000
    assert len(long._taught) < 800


def test_it_is_shown_the_recent_failures_and_running_trials_only() -> None:
    trials = told(range(30), [float(k) for k in range(30)], 50)
    for number in range(30, 230):
        trials.put(Trial(number, TrialState.FAILED, {"x": 0.0}))
    for number in range(230, 330):
        trials.put(Trial(number, RUNNING, {"x": 0.0}))
    assert [t.number for t in trials.learned()] == [*range(30), *range(230 - BARRED, 230)]
    assert [t.number for t in trials.running()] == list(range(330 - LIARS, 330))
