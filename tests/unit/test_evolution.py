"""`nsga2`, `nsga3` and `regularized-evolution`: survivors, children,
and that the searches improve.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest

from suggest.engine import Engine
from suggest.samplers import survival
from suggest.space import Assignment, Choice, Float, Int, Parameter, Space
from suggest.study import Constraint, Direction, Objective, Study
from suggest.trial import Trial, TrialState
from tests.unit.searches import (
    MINIMIZE,
    MIXED,
    RUNNING,
    SUCCEEDED,
    TREE,
    assert_points,
    play,
    seeds,
    study,
)

ALGORITHMS = ["nsga2", "nsga3", "regularized-evolution"]
CUBE = Space(tuple(Parameter(f"x{k}", Float(-5, 5)) for k in range(4)))
LATER = Space((Parameter("x", Int(1, 20)), Parameter("kind", Choice(("a", "b", "c")))))


def small(space: Space, algorithm: str, *, seed: int = 7) -> Study:
    return study(space, algorithm, config={"populationSize": 8}, seed=seed, direction=MINIMIZE)


def worth(point: Assignment) -> float:
    return sum(
        math.tanh(float(v)) if isinstance(v, int | float) else 0.1 * len(str(v))
        for v in point.values()
    )


def ended(trial: Trial, value: float | None = None) -> Trial:
    others = (TrialState.PRUNED, TrialState.FAILED, TrialState.INFEASIBLE, TrialState.CANCELLED)
    state = others[trial.number // 5 % 4] if trial.number % 5 == 4 else SUCCEEDED
    has = state in (SUCCEEDED, TrialState.PRUNED)
    return replace(
        trial,
        state=state,
        value=(worth(trial.parameters) if value is None else value) if has else None,
    )


def points(engine: Engine) -> list[Assignment]:
    return [trial.parameters for trial in engine.trials()]


def searched(of: Study, count: int, *, parallel: int = 1, restarts: bool = False) -> Engine:
    engine = Engine(of, (), ())
    running: list[Trial] = []
    for k in range(count):
        if len(running) == parallel:
            engine.put(ended(running.pop(k * 7 % parallel)))
        running += play(engine, 1)
        if restarts:
            engine = Engine(of, reversed(list(engine.trials())), ())
    return engine


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("space", [MIXED, TREE], ids=["mixed", "tree"])
@pytest.mark.parametrize("parallel", [1, 4])
def test_restarts_change_nothing_over_generations_in_parallel(
    algorithm: str, space: Space, parallel: int
) -> None:
    of = small(space, algorithm)
    engine = searched(of, 60, parallel=parallel)
    assert_points(space, points(engine))
    assert points(searched(of, 60, parallel=parallel, restarts=True)) == points(engine)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_trial_that_ends_late_moves_the_generations_after_it(algorithm: str) -> None:
    engine = Engine(small(MIXED, algorithm), (), ())
    late = play(engine, 3)
    for _ in range(60):
        (trial,) = play(engine, 1)
        engine.put(ended(trial))
    for trial in reversed(late):
        engine.put(ended(trial))
        assert Engine(engine.study, engine.trials(), ()).propose(2) == engine.propose(2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_batch_is_what_one_by_one_would_be(algorithm: str) -> None:
    engine = searched(small(MIXED, algorithm), 40)
    together = [p.parameters for p in engine.propose(4).trials]
    assert together == [trial.parameters for _ in range(4) for trial in play(engine, 1)]
    assert len({repr(point) for point in together}) == 4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_succeeded_trials_make_a_population(algorithm: str) -> None:
    of = small(LATER, algorithm)
    failed = [Trial(k, TrialState.FAILED, {"x": 1 + k % 20, "kind": "a"}) for k in range(30)]
    there = [p.parameters for p in Engine(of, failed, ()).propose(3).trials]
    chance = [p.parameters for p in Engine(study(LATER, "random"), failed, ()).propose(3).trials]
    assert there == chance


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_imported_points_of_a_smaller_space_become_parents(algorithm: str) -> None:
    trials = [Trial(k, SUCCEEDED, {"x": 10}, value=1.0) for k in range(16)]
    proposed = [p.parameters for p in Engine(small(LATER, algorithm), trials, ()).propose(8).trials]
    assert_points(LATER, proposed)
    assert {str(point["kind"]) for point in proposed} <= {"a", "b", "c"}
    assert any(abs(int(str(point["x"])) - 10) <= 3 for point in proposed)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_search_for_one_minimum_beats_chance(algorithm: str) -> None:
    def best(name: str) -> float:
        found = []
        for seed in seeds(3):
            of = small(CUBE, name, seed=seed) if name != "random" else study(CUBE, name, seed=seed)
            engine, least = Engine(of, (), ()), math.inf
            for _ in range(200):
                (trial,) = play(engine, 1)
                value = sum((float(str(v)) - 2) ** 2 for v in trial.parameters.values())
                least = min(least, value)
                engine.put(replace(trial, state=SUCCEEDED, value=value))
            found.append(least)
        return statistics.median(found)

    assert best(algorithm) < 0.5 * best("random")


def test_regularized_evolution_mutates_one_parameter_of_a_recent_trial() -> None:
    engine = searched(small(MIXED, "regularized-evolution"), 60)
    recent = [t for t in engine.trials() if t.state is SUCCEEDED][-8:]
    for point in (p.parameters for p in engine.propose(5).trials):
        changed = min(
            sum(
                not (
                    math.isclose(a, b, rel_tol=1e-9)
                    if isinstance(a, float) and isinstance(b, float)
                    else a == b
                )
                for a, b in zip(point.values(), t.parameters.values(), strict=True)
            )
            for t in recent
        )
        assert changed == 1


def test_the_oldest_die_even_if_they_are_the_best() -> None:
    space = Space((Parameter("x", Int(1, 1000)), Parameter("y", Int(1, 1000))))
    old = [Trial(k, SUCCEEDED, {"x": 900, "y": 900 + k}, value=0.0) for k in range(8)]
    young = [Trial(8 + k, SUCCEEDED, {"x": 1 + k, "y": 1 + k}, value=1.0) for k in range(8)]
    proposed = Engine(small(space, "regularized-evolution"), [*old, *young], ()).propose(6).trials
    assert all(min(int(str(v)) for v in p.parameters.values()) < 100 for p in proposed)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_values_near_the_largest_double_are_ordered(algorithm: str) -> None:
    of = small(LATER, algorithm)
    several = replace(
        of.spec, objectives=tuple(Objective(f"m{k}", Direction.MAXIMIZE) for k in range(3))
    )
    big = (1e300, -1.7e308, 5e-324, 1.7e308, 0.0)
    trials = [
        Trial(
            k,
            SUCCEEDED,
            {"x": 1 + k % 20, "kind": "abc"[k % 3]},
            value=big[k % 5],
            further=(big[k % 4], big[k % 3]),
        )
        for k in range(40)
    ]
    assert_points(
        LATER,
        [p.parameters for p in Engine(replace(of, spec=several), trials, ()).propose(4).trials],
    )


def test_members_that_keep_the_constraints_come_first() -> None:
    losses = np.array([[0.0, 0.0], [2.0, 2.0], [1.0, 3.0], [3.0, 3.0], [0.0, 0.0]])
    violations = np.array([2.0, 0.0, 0.0, 0.0, 1.0])
    assert survival.levels(losses, violations).tolist() == [3, 0, 0, 1, 2]
    chosen, _ = survival.by_crowding(losses, violations, 4)
    assert sorted(chosen.tolist()) == [1, 2, 3, 4]


def test_the_least_crowded_members_of_a_front_survive() -> None:
    losses = np.array([[0.0, 4.0], [1.0, 3.0], [1.1, 2.9], [1.2, 2.8], [4.0, 0.0]])
    assert survival.crowding(losses).tolist() == pytest.approx(
        [math.inf, 0.55, 0.1, 1.45, math.inf]
    )
    assert survival.by_crowding(losses, np.zeros(5), 3)[0].tolist() == [0, 4, 3]


@pytest.mark.parametrize(
    ("objectives", "most", "count"), [(1, 9, 1), (2, 50, 50), (3, 50, 45), (3, 91, 91), (8, 4, 8)]
)
def test_reference_points_are_spread_over_the_simplex(
    objectives: int, most: int, count: int
) -> None:
    found = survival.reference_points(objectives, most)
    assert len(np.unique(found, axis=0)) == len(found) == count
    assert found.sum(axis=1) == pytest.approx(np.ones(count))
    assert found.min() >= 0


def test_survivors_of_nsga3_are_spread_over_the_reference_points() -> None:
    rng = np.random.default_rng(1)
    corner = rng.random((40, 3)) * 0.05 + [1.0, 0.0, 0.0]
    others = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    losses = np.concatenate([corner / np.linalg.norm(corner, axis=1, keepdims=True), others])
    chosen, _ = survival.by_reference_points(losses, np.zeros(42), 6, rng)
    assert len(set(chosen.tolist())) == 6
    assert {40, 41} <= set(chosen.tolist())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_constraint_that_few_trials_keep_is_reached(algorithm: str) -> None:
    of = small(CUBE, algorithm)
    of = replace(of, spec=replace(of.spec, constraints=(Constraint("m", max=1.0),)))
    engine = Engine(of, (), ())
    kept = []
    for _ in range(160):
        (trial,) = play(engine, 1)
        far = sum((float(str(v)) - 1) ** 2 for v in trial.parameters.values())
        kept.append(far <= 1.0)
        engine.put(
            Trial(trial.number, SUCCEEDED, trial.parameters, value=-far, constraint_values=(far,))
        )
    assert sum(kept[:40]) <= 2
    assert sum(kept[120:]) > 10


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_running_point_is_not_proposed_again(algorithm: str) -> None:
    space = Space((Parameter("x", Int(1, 4)), Parameter("y", Int(1, 4))))
    trials = [Trial(k, SUCCEEDED, {"x": 1, "y": 1}, value=1.0) for k in range(8)]
    trials += [Trial(8, RUNNING, {"x": 2, "y": 1}), Trial(9, RUNNING, {"x": 1, "y": 2})]
    known = [t.parameters for t in trials]
    for seed in range(5):
        (proposed,) = Engine(small(space, algorithm, seed=seed), trials, ()).propose(1).trials
        assert proposed.parameters not in known
