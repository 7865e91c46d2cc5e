"""`cmaes`: its points are in the space, restarts change nothing,
and it optimizes numbers and choices.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import statistics
from dataclasses import replace

import pytest

from suggest.engine import Engine, check_spec
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Scale, Space, Value
from suggest.study import Direction
from suggest.trial import Trial, TrialState
from suggest.workers import Workers
from tests.unit.searches import (
    MINIMIZE,
    MIXED,
    RUNNING,
    SUCCEEDED,
    THOROUGH,
    assert_points,
    finish,
    play,
    seeds,
    study,
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cmaes") is None, reason="not installed: cmaes"
)

NUMBERS = Space(
    (
        Parameter("lr", Float(1e-5, 1.0, Scale.LOG)),
        Parameter("momentum", Float(0.0, 0.99)),
        Parameter("layers", Int(1, 12)),
        Parameter("width", Int(16, 1024, Scale.LOG)),
        Parameter("dropout", Float(0, 0.5, step=0.1)),
        Parameter("tokens", Int(0, 2**53)),
        Parameter("constant", Choice(("only",))),
    )
)
CHOICES = Space(
    (
        Parameter("width", Int(1, 40)),
        Parameter("kind", Choice((True, 1, "1", "relu"))),
        *NUMBERS.parameters[:3],
        Parameter("fast", Choice((True, False))),
        Parameter("constant", Choice(("only",))),
    )
)
CUBE = Space(tuple(Parameter(f"x{k}", Float(-5, 5)) for k in range(5)))
WHOLE = Space(tuple(Parameter(f"k{k}", Int(-20, 20)) for k in range(5)))


def loss(point: Assignment) -> float:
    return sum(math.tanh(v / 10) for v in point.values() if isinstance(v, int | float))


def ended(trial: Trial) -> Trial:
    others = (TrialState.PRUNED, TrialState.FAILED, TrialState.INFEASIBLE, TrialState.CANCELLED)
    state = others[trial.number // 5 % 4] if trial.number % 5 == 4 else SUCCEEDED
    value = loss(trial.parameters) if state in (SUCCEEDED, TrialState.PRUNED) else None
    if value is not None and trial.number % 17 == 3:
        value = (math.nan, math.inf, -math.inf)[trial.number % 3]
    return Trial(
        trial.number, state, trial.parameters, value=value, step=None if value is None else 3
    )


def searched(
    count: int,
    *,
    space: Space = NUMBERS,
    parallel: int = 1,
    warm_start: int = 0,
    restarts: bool = False,
    workers: Workers | None = None,
) -> Engine:
    of = study(space, "cmaes", config={"populationSize": 6, "warmStart": warm_start})
    engine = Engine(of, (), (), workers=workers)
    running: list[Trial] = []
    for k in range(count):
        if len(running) == parallel:
            engine.put(ended(running.pop(k * 7 % parallel)))
        running += play(engine, 1)
        if restarts and (THOROUGH or k % 7 == 3):  # in turn at each place of a generation of 6
            engine = Engine(of, reversed(list(engine.trials())), (), workers=workers)
    return engine


def points(engine: Engine) -> list[Assignment]:
    return [trial.parameters for trial in engine.trials()]


@pytest.mark.parametrize("space", [NUMBERS, CHOICES], ids=["numbers", "choices"])
@pytest.mark.parametrize(("parallel", "warm_start"), [(4, 0), (4, 30)])
def test_a_search_stays_in_the_space_and_restarts_change_nothing(
    space: Space, parallel: int, warm_start: int
) -> None:
    engine = searched(80, space=space, parallel=parallel, warm_start=warm_start)
    assert_points(space, points(engine))
    again = searched(80, space=space, parallel=parallel, warm_start=warm_start, restarts=True)
    assert points(again) == points(engine)


def test_a_worker_proposes_what_this_process_would() -> None:
    pool = Workers(size=1)
    try:
        assert points(searched(40, parallel=3, workers=pool)) == points(searched(40, parallel=3))
    finally:
        pool.close()


def test_trials_that_end_late_move_the_generations_after_them() -> None:
    of = study(NUMBERS, "cmaes", config={"populationSize": 4})
    engine = Engine(of, (), ())
    late = play(engine, 3)
    for _ in range(100):
        (trial,) = play(engine, 1)
        finish(engine, [trial], value=loss(trial.parameters))
        engine.propose(1)
    for trial in reversed(late):
        finish(engine, [trial], value=loss(trial.parameters))
        assert Engine(of, engine.trials(), ()).propose(2) == engine.propose(2)


def test_a_batch_is_what_one_by_one_would_be_and_a_fixed_part_is_kept() -> None:
    engine = searched(30)
    together = [p.parameters for p in engine.propose(4).trials]
    assert together == [trial.parameters for _ in range(4) for trial in play(engine, 1)]
    assert len({repr(point) for point in together}) == 4
    engine.put(Trial(34, TrialState.QUEUED, {"layers": 3, "lr": 0.5}))
    (proposed,) = engine.propose(1).trials
    assert (proposed.parameters["layers"], proposed.parameters["lr"]) == (3, 0.5)
    assert NUMBERS.point_problems(proposed.parameters, partial=False) == ()


def best_of(algorithm: str, space: Space, trials: int, *, parallel: int = 1) -> float:
    """Return the median of searches for a minimum away from the center."""

    def far(point: Assignment) -> float:
        return sum(
            (k + 1) * (float(v) - 3) ** 2
            for k, v in enumerate(point.values())
            if not isinstance(v, str)
        )

    bests = []
    for seed in seeds(3):
        engine = Engine(study(space, algorithm, seed=seed, direction=MINIMIZE), (), ())
        for _ in range(trials // parallel):
            batch = play(engine, parallel)
            for trial in reversed(batch):
                finish(engine, [trial], value=far(trial.parameters))
        bests.append(min(t.value for t in engine.trials() if t.value is not None))
    return statistics.median(bests)


@pytest.mark.parametrize("parallel", [1, 5])
def test_it_converges_where_random_search_does_not(parallel: int) -> None:
    assert best_of("cmaes", CUBE, 400, parallel=parallel) < 1e-2 < 1 < best_of("random", CUBE, 400)
    assert best_of("cmaes", WHOLE, 400, parallel=parallel) <= 2 < 40 < best_of("random", WHOLE, 400)


@pytest.mark.parametrize("direction", Direction)
def test_a_warm_start_goes_on_from_the_best_of_the_first_trials(direction: Direction) -> None:
    sign = direction.sign
    of = study(CUBE, "cmaes", config={"warmStart": 200}, direction=direction)
    engine = Engine(of, (), ())
    for trial in play(Engine(study(CUBE, "random"), (), ()), 200):
        engine.put(replace(trial, state=SUCCEEDED, value=sign * distance(trial.parameters)))
    best = sorted(distance(t.parameters) for t in engine.trials())[:20]
    found = [distance(p.parameters) for p in engine.propose(20).trials]
    assert statistics.median(found) < statistics.median(best), "from around the mean of the best"
    assert Engine(of, reversed(list(engine.trials())), ()).propose(20) == engine.propose(20)


def distance(point: Assignment) -> float:
    """Return the distance from a point that is not in the middle."""
    return math.dist([float(str(value)) for value in point.values()], [2.0] * len(point))


def test_a_converged_search_restarts_elsewhere() -> None:
    space = Space((Parameter("x", Float(0, 1)),))
    engine = Engine(study(space, "cmaes", config={"populationSize": 4}, direction=MINIMIZE), (), ())
    for _ in range(400):
        (trial,) = play(engine, 1)
        x = trial.parameters["x"]
        assert isinstance(x, float)
        finish(engine, [trial], value=(x - 0.25) ** 2)
    late = [abs(float(str(t.parameters["x"])) - 0.25) for t in engine.trials()][150:]
    assert min(late) < 1e-6
    assert max(late) > 0.1


@pytest.mark.parametrize(
    ("space", "growth", "after"),
    [(CUBE, 1, 4), (CHOICES, 2, 8), (CUBE, 3, 12)],
    ids=["kept", "doubled", "tripled"],
)
def test_the_population_grows_after_a_convergence(space: Space, growth: int, after: int) -> None:
    """Equal values are a convergence. A generation ends where a result changes the next point."""
    config: dict[str, Value] = {"populationSize": 4, "populationGrowth": growth}
    of = study(space, "cmaes", config=config)
    engine = Engine(of, (), ())
    ends = []
    for k in range(270):
        running = play(engine, 1)
        before = engine.propose(1)
        finish(engine, running, value=1.0)
        if engine.propose(1) != before:
            ends.append(k)
    lengths = [b - a for a, b in itertools.pairwise(ends)]
    assert lengths[:20] == [4] * 20
    assert lengths[-4:] == [after] * 4
    assert Engine(of, reversed(list(engine.trials())), ()).propose(2) == engine.propose(2)


@pytest.mark.parametrize("parallel", [1, 5])
def test_it_finds_the_best_choice_and_the_numbers_with_it(parallel: int) -> None:
    space = Space(
        (
            Parameter("kind", Choice(("a", "b", "c", "d"))),
            Parameter("x", Float(-5, 5)),
            Parameter("k", Int(-20, 20)),
            Parameter("fast", Choice((True, False))),
        )
    )

    def far(point: Assignment) -> float:
        x, k = float(str(point["x"])), float(str(point["k"]))
        return (
            (x - 2) ** 2 + (k - 7) ** 2 / 9 + 3 * (point["kind"] != "c") + (point["fast"] is True)
        )

    found = []
    for seed in seeds(3):
        engine = Engine(study(space, "cmaes", seed=seed, direction=MINIMIZE), (), ())
        for _ in range(300 // parallel):
            for trial in reversed(play(engine, parallel)):
                finish(engine, [trial], value=far(trial.parameters))
        found.append(min(t.value for t in engine.trials() if t.value is not None))
    assert statistics.median(found) < 0.02


def test_a_warm_start_prefers_the_choices_of_the_best_trials() -> None:
    space = Space((Parameter("x", Float(0, 1)), Parameter("kind", Choice(("a", "b", "c", "d")))))
    of = study(space, "cmaes", config={"warmStart": 200}, direction=MINIMIZE)
    engine = Engine(of, (), ())
    for trial in play(Engine(study(space, "random"), (), ()), 200):
        engine.put(replace(trial, state=SUCCEEDED, value=float(trial.parameters["kind"] != "c")))
    kinds = [p.parameters["kind"] for p in engine.propose(40).trials]
    assert kinds.count("c") > 25


def test_conditions_and_choices_alone_are_refused_with_what_to_use() -> None:
    child = Parameter("x", Float(0, 1), (Condition("kind", ("a",)),))
    kinds = (Parameter("one", Choice((1,))), Parameter("kind", Choice(("a", "b"))))

    def found(*parameters: Parameter) -> list[tuple[str, str]]:
        return [(p.path, p.message) for p in check_spec(study(Space(parameters), "cmaes").spec)]

    assert found(*kinds, child) == [
        ("space.x", "cmaes has no conditions; remove `when`, or use tpe")
    ]
    assert found(*kinds) == [
        ("space.kind", "cmaes needs a number, and all parameters are choices; use tpe")
    ]
    assert found(*NUMBERS.parameters) == found(*MIXED.parameters) == []


def test_a_space_of_constants_has_one_point() -> None:
    space = Space((Parameter("x", Int(3, 3)), Parameter("y", Choice(("only",)))))
    engine = Engine(study(space, "cmaes"), [Trial(0, RUNNING, {"x": 3, "y": "only"})], ())
    expected: dict[str, Value] = {"x": 3, "y": "only"}
    assert [p.parameters for p in engine.propose(2).trials] == [expected, expected]
