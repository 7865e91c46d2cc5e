"""Several objectives and constraints: the best trials, what samplers learn,
and what a study refuses.
"""

import functools
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import optuna
import pytest

from suggest import pareto
from suggest.engine import Engine, check_spec
from suggest.samplers import registry, split
from suggest.space import Float, Parameter, Space
from suggest.study import Algorithm, Constraint, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Trial, TrialState
from suggest.workers import Workers
from tests.unit.searches import seeds

X, Y = (Parameter(name, Float(0, 1)) for name in "xy")
PLANE = Space((X, Y))
LOSS, SIZE = Objective("loss", Direction.MINIMIZE), Objective("size", Direction.MINIMIZE)
ACCURACY = Objective("accuracy", Direction.MAXIMIZE)
FOUR = tuple(Objective(f"m{k}", Direction.MINIMIZE) for k in range(4))
LATENCY = Constraint("latency_ms", max=20)
SEVERAL = [family.name for family in registry.algorithms() if family.several]


def spec(
    *objectives: Objective, algorithm: str = "random", constraints: Sequence[Constraint] = ()
) -> StudySpec:
    return StudySpec(PLANE, objectives, Algorithm(algorithm), None, tuple(constraints))


def ended(
    number: int, *values: float, bounded: Sequence[float] = (), x: float = 0.5, y: float = 0.5
) -> Trial:
    point = {"x": x, "y": y}
    first, *others = values
    return Trial(
        number,
        TrialState.SUCCEEDED,
        point,
        value=first,
        step=1,
        further=tuple(others),
        constraint_values=tuple(bounded),
    )


def by_definition(points: Sequence[Sequence[float]]) -> list[int]:
    kept = []
    for k, one in enumerate(points):
        beaten = any(pareto.dominates(other, one) for other in points)
        same = any(tuple(points[j]) == tuple(one) for j in range(k))
        if not beaten and not same:
            kept.append(k)
    return kept


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
def test_the_front_is_what_no_other_point_dominates(dimensions: int) -> None:
    rng = random.Random(dimensions)
    for count in (0, 1, 2, 10, 40):
        points = [[rng.randrange(6) for _ in range(dimensions)] for _ in range(count)]
        assert pareto.front(points) == by_definition(points)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
def test_the_hypervolume_is_optunas(dimensions: int) -> None:
    compute = pytest.importorskip("optuna._hypervolume").compute_hypervolume
    rng = np.random.default_rng(dimensions)
    for count in (1, 2, 9, 30):
        points = rng.random((count, dimensions))
        reference = np.full(dimensions, 0.9)  # some points lie beyond it
        inside = points[(points < reference).all(axis=1)]
        expected = float(compute(inside, reference)) if len(inside) else 0.0
        assert pareto.hypervolume(points.tolist(), reference.tolist()) == pytest.approx(expected)


def test_no_points_have_no_hypervolume() -> None:
    assert pareto.hypervolume([], [1.0, 1.0]) == 0.0


def test_the_best_are_the_front_by_each_direction() -> None:
    trials = [
        ended(0, 1.0, 0.9),
        ended(1, 2.0, 0.95),
        ended(2, 2.0, 0.9),
        ended(3, 1.0, 0.9),
        ended(4, 0.5, 0.1),
    ]
    assert [t.number for t in spec(LOSS, ACCURACY).criteria.best(trials)] == [0, 1, 4]


def test_a_trial_that_breaks_a_constraint_is_never_the_best() -> None:
    one = spec(LOSS, constraints=[LATENCY]).criteria
    trials = [ended(0, 1.0, bounded=[30]), ended(1, 3.0, bounded=[20]), ended(2, 2.0, bounded=[10])]
    assert [t.number for t in one.best(trials)] == [2]
    assert one.best(trials[:1]) == []


def test_a_trial_without_all_values_is_not_best() -> None:
    pruned = replace(ended(0, 1.0), state=TrialState.PRUNED)
    assert spec(LOSS, SIZE).criteria.best([pruned, ended(1, 1.0)]) == []


def test_constraint_excess_is_the_distance_to_the_bound() -> None:
    band = Constraint("m", min=1, max=3)
    assert [band.excess(v) for v in (0.0, 1.0, 2.0, 3.0, 5.0)] == [1, 0, 0, 0, 2]
    assert str(band) == "m at least 1 and at most 3"


@pytest.mark.parametrize(
    ("broken", "path"),
    [
        (spec(LOSS, LOSS), "objectives[1].metric"),
        (spec(*(Objective(f"m{k}", Direction.MINIMIZE) for k in range(9))), "objectives"),
        (spec(LOSS, constraints=[Constraint("m")]), "constraints[0]"),
        (spec(LOSS, constraints=[Constraint("m", min=2, max=1)]), "constraints[0]"),
        (spec(LOSS, constraints=[Constraint("m", max=math.nan)]), "constraints[0].max"),
        (spec(LOSS, constraints=[Constraint("", max=1)]), "constraints[0].metric"),
        (spec(*FOUR, algorithm="gp"), "algorithm.name"),
        (spec(LOSS, SIZE, algorithm="bohb"), "algorithm.name"),
        (spec(LOSS, SIZE, algorithm="cmaes"), "algorithm.name"),
        (spec(LOSS, constraints=[LATENCY], algorithm="optuna:cmaes"), "algorithm.name"),
    ],
)
def test_a_study_refuses_objectives_that_mean_nothing(broken: StudySpec, path: str) -> None:
    assert path in [problem.path for problem in check_spec(broken)]


@pytest.mark.parametrize(
    ("algorithm", "objectives", "rule", "instead", "not_instead"),
    [
        (
            "cmaes",
            (LOSS, SIZE),
            "takes one objective without constraints, and there are 2 objectives",
            "gp",
            "bohb",
        ),
        (
            "cmaes",
            FOUR,
            "takes one objective without constraints, and there are 4 objectives",
            "tpe",
            " gp",
        ),
        ("gp", FOUR, "takes at most 3 objectives, and there are 4", "tpe", " gp"),
    ],
)
def test_the_refusal_names_the_algorithms_that_take_these_objectives(
    algorithm: str, objectives: Sequence[Objective], rule: str, instead: str, not_instead: str
) -> None:
    (problem,) = [
        p for p in check_spec(spec(*objectives, algorithm=algorithm)) if p.path == "algorithm.name"
    ]
    assert f"{algorithm} {rule}; use " in problem.message
    others = problem.message.partition("; use ")[2]
    assert instead in others.split(", ")
    assert not_instead.strip() not in others.split(", ")


def zdt1(point: dict[str, object]) -> tuple[float, float]:
    x, y = float(str(point["x"])), float(str(point["y"]))
    g = 1 + 9 * y
    return x, g * (1 - math.sqrt(x / g))


def searched(
    algorithm: str,
    trials: int,
    *,
    seed: int = 3,
    constraints: Sequence[Constraint] = (),
    several: bool = True,
) -> Engine:
    objectives = (LOSS, SIZE) if several else (LOSS,)
    settings = {"populationSize": 10} if "nsga" in algorithm or "evolution" in algorithm else {}
    it = StudySpec(
        PLANE, objectives, Algorithm(algorithm, None, settings), None, tuple(constraints)
    )
    engine = Engine(Study(StudyName("default", "d"), "uid", registry.resolve(it), seed), (), ())
    for _ in range(trials):
        (proposed,) = engine.propose(1).trials
        running = Trial(proposed.number, TrialState.RUNNING, proposed.parameters)
        engine.put(running)
        values = zdt1(dict(proposed.parameters))
        bounded = [values[1]] * len(constraints)
        engine.put(
            replace(
                running,
                state=TrialState.SUCCEEDED,
                value=values[0],
                step=1,
                further=values[1:] if several else (),
                constraint_values=tuple(bounded),
            )
        )
    return engine


def volume(engine: Engine) -> float:
    return pareto.hypervolume([t.values for t in engine.trials()], (1.1, 1.1))


IN_CONTRACT = [
    name
    for name in SEVERAL
    if name not in ("grid", "optuna:grid", "optuna:bruteforce", "optuna:gp")
]


@pytest.mark.parametrize("algorithm", IN_CONTRACT)
def test_a_rebuilt_engine_proposes_the_same_of_several_objectives(algorithm: str) -> None:
    engine = searched(algorithm, 25)
    again = Engine(engine.study, list(engine.trials()), ())
    assert [p.parameters for p in again.propose(3).trials] == [
        p.parameters for p in engine.propose(3).trials
    ]


@pytest.mark.parametrize("algorithm", ["tpe", "optuna:tpe"])
@pytest.mark.parametrize("failures", [0, 1])
def test_a_model_without_startup_trials_proposes_before_any_trial_succeeds(
    algorithm: str, failures: int
) -> None:
    it = replace(spec(LOSS, SIZE), algorithm=Algorithm(algorithm, None, {"startupTrials": 0}))
    failed = [Trial(number, TrialState.FAILED, {"x": 0.5, "y": 0.5}) for number in range(failures)]
    engine = Engine(Study(StudyName("default", "d"), "uid", it, 3), failed, ())
    assert [
        PLANE.point_problems(p.parameters, partial=False) for p in engine.propose(2).trials
    ] == [(), ()]


@pytest.mark.parametrize("algorithm", ["gp", "optuna:tpe", "optuna:nsgaii"])
def test_a_worker_process_receives_all_values(algorithm: str) -> None:
    pool = Workers(size=1)
    try:
        engine = searched(algorithm, 25, constraints=[Constraint("size", max=0.8)])
        there = Engine(engine.study, list(engine.trials()), (), workers=pool)
        assert [p.parameters for p in there.propose(2).trials] == [
            p.parameters for p in engine.propose(2).trials
        ]
    finally:
        pool.close()


MOVING = [
    "tpe",
    "gp",
    "default",
    "nsga2",
    "nsga3",
    "regularized-evolution",
    "optuna:tpe",
    "optuna:nsgaii",
]


@functools.cache
def found(algorithm: str, count: int) -> float:
    return sum(volume(searched(algorithm, count, seed=seed)) for seed in seeds(3))


@functools.cache
def kept(algorithm: str) -> int:
    """Return how many of the later trials satisfy the constraint."""
    bounds = [Constraint("size", max=0.8)]
    engines = [
        searched(algorithm, 40, several=False, constraints=bounds, seed=seed) for seed in seeds(2)
    ]
    late = [trial for engine in engines for trial in engine.trials() if trial.number >= 20]
    return sum(engines[0].study.spec.criteria.violation(trial) == 0 for trial in late)


@pytest.mark.parametrize("algorithm", MOVING)
def test_searching_for_two_objectives_beats_chance(algorithm: str) -> None:
    count = 40 if algorithm in ("gp", "default") else 60  # a model of many trials takes long
    assert found(algorithm, count) > found("random", count)


@pytest.mark.parametrize("algorithm", MOVING)
def test_a_search_moves_to_where_the_constraint_holds(algorithm: str) -> None:
    assert kept(algorithm) > kept("random")


def test_fronts_are_ranked_as_optuna_ranks_them() -> None:
    ranks_of = pytest.importorskip("optuna.study._multi_objective")._fast_non_domination_rank
    rng = np.random.default_rng(5)
    for objectives, count in itertools.product((2, 3), (1, 5, 60)):
        losses = rng.integers(0, 12, (objectives, count)).astype(float)
        assert split.nondomination_ranks(losses).tolist() == ranks_of(losses.T).tolist()


def test_the_most_spread_points_of_a_too_large_front_are_good() -> None:
    cluster = [(0.5 + k * 1e-4, 0.5 - k * 1e-4) for k in range(20)]
    losses = np.array([*cluster, (0.0, 1.0), (1.0, 0.0)]).T
    assert {20, 21} <= set(split.most_spread(losses, 5))


def test_pruned_trials_come_after_those_that_succeeded_and_before_those_that_break_a_constraint() -> (
    None
):
    it = spec(LOSS, SIZE, constraints=[LATENCY]).criteria
    trials = [
        ended(0, 1.0, 1.0, bounded=[99]),
        replace(ended(1, 0.0), state=TrialState.PRUNED),
        ended(2, 5.0, 5.0, bounded=[1]),
        ended(3, 1.0, 9.0, bounded=[1]),
    ]
    ranks = np.array([split.rank(t, it) for t in trials]).T
    losses = np.array([it.losses(t) or (np.inf, np.inf) for t in trials]).T
    order = np.lexsort(split.by_fronts(ranks, losses, 2)[::-1])
    assert [int(k) for k in order[2:]] == [1, 0]


def test_optuna_sees_constraints_as_it_means_them() -> None:
    from suggest.samplers.optuna_model import OptunaTpeModel
    from suggest.samplers.tpe import TpeSettings

    it = spec(
        LOSS, SIZE, algorithm="optuna:tpe", constraints=[LATENCY, Constraint("m", min=1, max=3)]
    )
    model = OptunaTpeModel(it, 1, TpeSettings())
    frozen = model._freeze(ended(0, 1.0, 2.0, bounded=[25.0, 2.0]))
    assert frozen.values == [1.0, 2.0]
    assert frozen.state is optuna.trial.TrialState.COMPLETE
    assert tuple(frozen.system_attrs["constraints"]) == (5.0, -1.0, -1.0)


FRONT = [ended(0, 0.0, 100.0), ended(1, 0.2, 20.0), ended(2, 1.0, 0.0)]


@pytest.mark.parametrize(
    ("weights", "number"),
    [((1, 1), 1), ((9, 1), 0), ((1, 9), 2), ((0, 1), 2), ((1, 0), 0), ((3, 2), 1)],
)
def test_a_compromise_weighs_objectives_in_their_ranges_on_the_front(
    weights: tuple[float, ...], number: int
) -> None:
    chosen = spec(LOSS, SIZE).criteria.compromise(FRONT, weights)
    assert chosen is not None
    assert chosen.number == number


def test_a_compromise_of_one_trial_is_that_trial_and_of_none_there_is_none() -> None:
    criteria = spec(ACCURACY, SIZE).criteria
    assert criteria.compromise(FRONT[:1], (1, 1)) is FRONT[0]
    assert criteria.compromise([], (1, 1)) is None
