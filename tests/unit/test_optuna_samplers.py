"""Every sampler of Optuna: points in the space, the same after a restart,
and equal to Optuna's own.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from suggest.engine import Engine, check_spec
from suggest.errors import FailedPrecondition
from suggest.optuna_storage import OverlayStorage
from suggest.samplers import optuna_model
from suggest.samplers.history import History
from suggest.samplers.optuna_family import ENTRIES, PREFIX
from suggest.samplers.registry import algorithms
from suggest.space import (
    Assignment,
    Choice,
    Condition,
    Domain,
    Float,
    Int,
    Parameter,
    Scale,
    Space,
    Value,
)
from suggest.study import Criteria, Objective
from suggest.trial import IMPORTED_FROM, Trial, TrialState
from suggest.workers import Workers
from tests.unit.searches import (
    EDGES,
    MAXIMIZE,
    MINIMIZE,
    MIXED,
    RUNNING,
    SUCCEEDED,
    TREE,
    finish,
    play,
    seeds,
    study,
)

Config = dict[str, Value]
NEEDS = {"gp": ("torch", "scipy"), "cmaes": ("cmaes",), "qmc": ("scipy",)}
SMALL: dict[str, Config] = {
    "optuna:gp": {"startupTrials": 40, "window": 50},  # a fit takes a tenth of a second and more
    "optuna:nsgaii": {"populationSize": 8},
    "optuna:nsgaiii": {"populationSize": 8},
    "optuna:qmc": {"scramble": True},
}


def named(name: str) -> Any:
    """A test parameter, skipped if a package that the sampler needs is missing."""
    lacks = [
        package for package in NEEDS.get(name, ()) if importlib.util.find_spec(package) is None
    ]
    skip = [pytest.mark.skip(reason=f"not installed: {', '.join(lacks)}")] if lacks else []
    return pytest.param(PREFIX + name, id=name, marks=skip)


ALL = [named(family.name.removeprefix(PREFIX)) for family in ENTRIES]
EXHAUSTIVE = [named("grid"), named("bruteforce")]
SLOW = [named("gp")]  # tests/unit/test_sampler_contract.py has the same promises for the others
WIDER_TREE = Space(
    (*TREE.parameters, Parameter("layers", Int(1, 12)), Parameter("constant", Choice(("only",))))
)
FINITE = Space(
    (
        Parameter("a", Int(0, 3)),
        Parameter("b", Choice(("u", "v", "w"))),
        Parameter("c", Float(0, 1, step=0.25), (Condition("b", ("u",)),)),
        Parameter("d", Int(1, 2, Scale.LOG)),
        Parameter("one", Int(5, 5)),
    )
)
FINITE_POINTS = 4 * (5 + 2) * 2


def space_for(algorithm: str) -> Space:
    return FINITE if algorithm in ("optuna:grid", "optuna:bruteforce") else WIDER_TREE


def worth(point: Assignment) -> float:
    return sum(len(v) if isinstance(v, str) else math.tanh(float(v)) for v in point.values())


def ended(trial: Trial) -> Trial:
    """Return a trial that ends in a way that its number determines; some values are not finite."""
    others = (TrialState.PRUNED, TrialState.FAILED, TrialState.INFEASIBLE, TrialState.CANCELLED)
    state = others[trial.number // 5 % 4] if trial.number % 5 == 4 else SUCCEEDED
    value = worth(trial.parameters) if state in (SUCCEEDED, TrialState.PRUNED) else None
    if trial.number % 17 == 3:
        value = None if value is None else (math.nan, math.inf, -math.inf)[trial.number % 3]
    return Trial(
        trial.number, state, trial.parameters, value=value, step=None if value is None else 3
    )


def search(
    algorithm: str,
    count: int,
    *,
    parallel: int = 1,
    restarts: Collection[int] = (),
    workers: Workers | None = None,
) -> list[Assignment]:
    """Return the points of this many trials.

    The engine is rebuilt from reversed trials before each of `restarts`.
    """
    of = study(space_for(algorithm), algorithm, config=SMALL.get(algorithm))
    assert check_spec(of.spec) == ()
    engine = Engine(of, (), (), workers=workers)
    running: list[Trial] = []
    points: list[Assignment] = []
    for k in range(count):
        if k in restarts:
            engine = Engine(of, reversed(list(engine.trials())), (), workers=workers)
        if len(running) == parallel:
            engine.put(ended(running.pop(k * 7 % parallel)))
        proposed = engine.propose(1).trials
        if not proposed:
            break
        trial = Trial(proposed[0].number, RUNNING, proposed[0].parameters)
        engine.put(trial)
        running.append(trial)
        points.append(trial.parameters)
    return points


@pytest.mark.parametrize("algorithm", ALL)
def test_a_search_stays_in_the_space_and_a_restart_changes_nothing(algorithm: str) -> None:
    space = space_for(algorithm)
    points = search(algorithm, 50, parallel=4)
    for point in points:
        assert space.point_problems(point, partial=False) == ()
        assert repr(space.canonical(point)) == repr(dict(point))
    assert len({repr(point) for point in points}) > 42
    assert search(algorithm, 50, parallel=4, restarts=(20, 43)) == points


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    """One process for all samplers, because importing Optuna takes longer than their searches."""
    pool = Workers(size=1)
    yield pool
    assert pool.running == 1
    pool.close()


@pytest.mark.parametrize("algorithm", ALL)
def test_workers_propose_what_this_process_would(algorithm: str, pool: Workers) -> None:
    assert search(algorithm, 45, parallel=3, restarts=(30,), workers=pool) == search(
        algorithm, 45, parallel=3
    )


@pytest.mark.parametrize("algorithm", SLOW)
def test_the_result_of_a_late_trial_is_known_after_a_restart(algorithm: str) -> None:
    """The middle trials end last, in another order."""
    of = study(space_for(algorithm), algorithm, config=SMALL.get(algorithm))
    engine = Engine(of, (), ())
    late: list[Trial] = []
    for k in range(44):
        (trial,) = play(engine, 1)
        if k in (10, 11, 13):
            late.append(trial)
        else:
            finish(engine, [trial], value=worth(trial.parameters))
    for trial in reversed(late):
        finish(engine, [trial], value=worth(trial.parameters))
        assert Engine(of, engine.trials(), ()).propose(2) == engine.propose(2)


@pytest.mark.parametrize("algorithm", ALL)
def test_a_batch_is_what_one_by_one_would_be(algorithm: str) -> None:
    of = study(space_for(algorithm), algorithm, config=SMALL.get(algorithm))
    engine = Engine(of, (), ())
    for _ in range(41):
        (trial,) = play(engine, 1)
        finish(engine, [trial], value=worth(trial.parameters))
    together = [p.parameters for p in engine.propose(4).trials]
    assert together == [trial.parameters for k in range(4) for trial in play(engine, 1)]
    assert len({repr(point) for point in together}) == 4


@pytest.mark.parametrize("algorithm", ALL)
def test_the_seed_decides(algorithm: str) -> None:
    def first(seed: int) -> list[Assignment]:
        of = study(space_for(algorithm), algorithm, config=SMALL.get(algorithm), seed=seed)
        return [p.parameters for p in Engine(of, (), ()).propose(8).trials]

    assert first(1) == first(1)
    assert first(1) != first(2)


@pytest.mark.parametrize("algorithm", SLOW)
def test_a_fixed_part_is_kept_and_completed_whatever_the_sampler(algorithm: str) -> None:
    space = space_for(algorithm)
    fixed: Config = {"b": "u", "a": 2} if space is FINITE else {"optimizer": "sgd", "lr": 0.5}
    engine = Engine(study(space, algorithm, config=SMALL.get(algorithm)), (), ())
    for _ in range(41):
        (trial,) = play(engine, 1)
        finish(engine, [trial], value=worth(trial.parameters))
    engine.put(Trial(41, TrialState.QUEUED, fixed))
    (proposed,) = engine.propose(1).trials
    assert proposed.queued
    assert fixed.items() <= proposed.parameters.items()
    assert space.point_problems(proposed.parameters, partial=False) == ()


@pytest.mark.parametrize("algorithm", ALL)
def test_imported_trials_are_learned_from(algorithm: str) -> None:
    space = space_for(algorithm)
    engine = Engine(study(space, "random", seed=3), (), ())
    trials = [
        Trial(t.number, SUCCEEDED, t.parameters, value=worth(t.parameters))
        for t in play(engine, 42)
    ]
    imported = [
        Trial(t.number, t.state, t.parameters, value=t.value, labels={IMPORTED_FROM: "notes"})
        for t in trials
    ]
    outside: Config = dict.fromkeys(space.by_name, "elsewhere")
    imported.append(Trial(42, SUCCEEDED, outside, value=1e9, labels={IMPORTED_FROM: "notes"}))
    of = study(space, algorithm, config=SMALL.get(algorithm))
    complete, incomplete = Engine(of, imported, ()), Engine(of, imported[:1], ())
    proposed = complete.propose(2)
    assert all(space.point_problems(p.parameters, partial=False) == () for p in proposed.trials)
    if algorithm not in ("optuna:random", "optuna:qmc", *("optuna:grid",)):
        assert [p.parameters for p in proposed.trials] != [
            p.parameters for p in incomplete.propose(2).trials
        ]


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: make torch-packages"
)
@pytest.mark.parametrize("domain", EDGES, ids=lambda domain: type(domain).__name__)
def test_gaussian_processes_accept_domains_at_the_limits(domain: Domain) -> None:
    space = Space((Parameter("x", domain), Parameter("y", Float(0, 1))))
    random = Engine(study(space, "random"), (), ())
    trials = [
        Trial(t.number, SUCCEEDED, t.parameters, value=float(t.number)) for t in play(random, 12)
    ]
    of = study(space, "optuna:gp")
    if check_spec(of.spec):
        assert domain.count is not None
        assert domain.count > 10**6
        return
    engine = Engine(of, trials, ())
    for proposed in engine.propose(2).trials:
        assert space.point_problems(proposed.parameters, partial=False) == ()


@pytest.mark.parametrize("algorithm", EXHAUSTIVE)
def test_an_exhaustive_search_tries_every_point_once_and_ends(algorithm: str) -> None:
    engine = Engine(study(FINITE, algorithm), (), ())
    trials = play(engine, FINITE_POINTS - 5)
    finish(engine, trials[:9], value=0.5)
    finish(engine, trials[9:20], TrialState.FAILED)
    proposal = engine.propose(9)
    assert (len(proposal.trials), proposal.exhausted) == (5, True)
    points = [t.parameters for t in trials] + [p.parameters for p in proposal.trials]
    assert len({repr(point) for point in points}) == FINITE_POINTS


@pytest.mark.parametrize("algorithm", EXHAUSTIVE)
def test_a_conditional_parameter_may_precede_its_parent(algorithm: str) -> None:
    space = Space(tuple(reversed(FINITE.parameters)))
    engine = Engine(study(space, algorithm), (), ())
    points = [t.parameters for _ in range(FINITE_POINTS) for t in play(engine, 1)]
    assert len({repr(point) for point in points}) == FINITE_POINTS
    assert engine.propose(1).exhausted


@pytest.mark.parametrize("algorithm", EXHAUSTIVE)
def test_the_point_of_a_cancelled_trial_is_tried_again(algorithm: str) -> None:
    engine = Engine(study(FINITE, algorithm), (), ())
    trials = play(engine, FINITE_POINTS)
    assert engine.propose(1).exhausted
    finish(engine, trials[3:4], TrialState.CANCELLED)
    assert [p.parameters for p in engine.propose(2).trials] == [trials[3].parameters]


def test_drawing_a_grid_follows_its_points() -> None:
    space = Space(
        (Parameter("lr", Float(1e-4, 1, Scale.LOG, points=5)), Parameter("b", Choice(("u", "v"))))
    )
    proposal = Engine(study(space, "optuna:grid"), (), ()).propose(20)
    assert proposal.exhausted
    found = {(p.parameters["lr"], p.parameters["b"]) for p in proposal.trials}
    assert found == {(lr, b) for lr in (1e-4, 1e-3, 1e-2, 0.1, 1.0) for b in ("u", "v")}


def in_optuna(
    sampler: Callable[[int], optuna.samplers.BaseSampler],
    points: list[dict[str, float]],
    distributions: Any,
) -> Iterator[dict[str, Any]]:
    """Return the proposals of a real Optuna study, one trial at a time;
    the study is told our points.
    """
    storage = optuna.storages.InMemoryStorage()
    at = storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE], "s")
    for number, point in enumerate(points):
        of = optuna.Study("s", storage, sampler=sampler(number))
        trial_id = storage.create_new_trial(at)
        yield of.sampler.sample_relative(
            of, storage.get_trial(trial_id), distributions if number else {}
        )
        for name, value in point.items():
            storage.set_trial_param(trial_id, name, value, distributions[name])
        storage.set_trial_state_values(trial_id, optuna.trial.TrialState.COMPLETE, [worth(point)])


CUBE = Space(tuple(Parameter(f"x{k}", Float(0, 1)) for k in range(3)))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("algorithm", [named("nsgaii"), named("cmaes")])
def test_sequential_generations_equal_optunas(algorithm: str) -> None:
    """But for a generation's first trial, for which Optuna's random numbers
    or the order of parents are others.
    """
    of = study(CUBE, algorithm, config=SMALL.get(algorithm))
    engine = Engine(of, (), ())
    for _ in range(40):
        (trial,) = play(engine, 1)
        finish(engine, [trial], value=worth(trial.parameters))
    points: list[Any] = [dict(t.parameters) for t in engine.trials()]
    # the seeds that it gives to Optuna's sampler
    model = engine._sampler._model  # type: ignore[attr-defined]

    def sampler(number: int) -> optuna.samplers.BaseSampler:
        seed = model._random_seed(optuna_model.PointRequest(number, {}))
        if algorithm == "optuna:cmaes":
            return optuna.samplers.CmaEsSampler(seed=seed)
        return optuna.samplers.NSGAIISampler(population_size=8, seed=seed)

    same, (size, first) = 0, {"optuna:cmaes": (7, 1), "optuna:nsgaii": (8, 0)}[algorithm]
    for number, point in enumerate(in_optuna(sampler, points, model._distributions)):
        if point and number % size != first:
            assert point == pytest.approx({name: points[number][name] for name in point}, abs=1e-12)
            same += 1
    assert same >= 28


@pytest.mark.parametrize("algorithm", [named("nsgaii"), named("nsgaiii")])
def test_genetic_algorithms_learn(algorithm: str) -> None:
    wide = Space(tuple(Parameter(f"x{k}", Float(0, 1)) for k in range(12)))
    assert (
        best_of(algorithm, 400, {"populationSize": 20}, space=wide)
        < best_of("random", 400, space=wide) / 2
    )


@pytest.mark.parametrize("algorithm", [named("cmaes")])
def test_cma_es_learns(algorithm: str) -> None:
    assert best_of(algorithm, 150) < best_of("random", 150) / 20
    assert best_of(algorithm, 150, {"useSeparableCma": True}) < best_of("random", 150) / 20


@pytest.mark.parametrize("algorithm", [named("gp")])
def test_a_gaussian_process_learns(algorithm: str) -> None:
    assert best_of(algorithm, 30) < best_of("random", 30) / 5


def best_of(
    algorithm: str, trials: int, config: Config | None = None, *, space: Space = CUBE
) -> float:
    def loss(point: Assignment) -> float:
        return sum((float(v) - 0.3) ** 2 for v in point.values() if isinstance(v, float))

    bests = []
    for seed in seeds(3):
        engine = Engine(
            study(space, algorithm, config=config, seed=seed, direction=MINIMIZE), (), ()
        )
        for _ in range(trials):
            (trial,) = play(engine, 1)
            finish(engine, [trial], value=loss(trial.parameters))
        bests.append(min(t.value for t in engine.trials() if t.value is not None))
    return statistics.median(bests)


def test_every_sampler_of_optuna_has_a_name_here() -> None:
    bases = {"BaseSampler", "BaseGASampler", "PartialFixedSampler"}  # the last one wraps another
    theirs = {
        name.removesuffix("Sampler").lower()
        for name in optuna.samplers.__all__
        if name not in bases and inspect.isclass(getattr(optuna.samplers, name))
    }
    ours = {
        family.name.removeprefix(PREFIX)
        for family in algorithms()
        if family.name.startswith(PREFIX)
    }
    assert ours == {"cmaes" if name == "cmaes" else name for name in theirs}


OURS = {"startupTrials": "n_startup_trials"}  # a setting that is called otherwise in Optuna
SAME_AS_NONE = {("cmaes", "popsize"), ("nsgaii", "mutationProb"), ("nsgaiii", "mutationProb")}
CLASSES = {
    "qmc": optuna.samplers.QMCSampler,
    "gp": optuna.samplers.GPSampler,
    "cmaes": optuna.samplers.CmaEsSampler,
    "nsgaii": optuna.samplers.NSGAIISampler,
    "nsgaiii": optuna.samplers.NSGAIIISampler,
}


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_settings_are_optunas_keywords_and_have_their_defaults(name: str) -> None:
    (family,) = (family for family in ENTRIES if family.name == PREFIX + name)
    keywords = inspect.signature(CLASSES[name]).parameters
    for setting in family.settings:
        if setting.name in ("duplicates", "window"):
            continue
        snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in setting.name)
        default = keywords[OURS.get(setting.name, snake)].default
        assert (
            (name, setting.name) in SAME_AS_NONE if default is None else setting.default == default
        )


@pytest.mark.parametrize(
    ("algorithm", "packages", "message"),
    [
        (
            "optuna:gp",
            ("torch", "scipy"),
            "optuna:gp needs the packages torch and scipy, which are not installed; "
            "install with: pip install 'tuner-hpo[torch,scipy]'; or use ",
        ),
        (
            "optuna:cmaes",
            ("cmaes",),
            "optuna:cmaes needs the package cmaes, which is not installed; "
            "install with: pip install 'tuner-hpo[cmaes]'; or use ",
        ),
        (
            "optuna:qmc",
            ("scipy",),
            "optuna:qmc needs the package scipy, which is not installed; "
            "install with: pip install 'tuner-hpo[scipy]'; or use sobol or halton",
        ),
    ],
)
def test_a_missing_package_is_refused_with_the_cure(
    algorithm: str, packages: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in packages else there(name)
    )
    (problem,) = check_spec(study(MIXED, algorithm).spec)
    assert problem.path == "algorithm.name"
    assert problem.message.startswith(message)
    assert "tpe" in problem.message or "sobol" in problem.message
    # A study from before, on a server that lacks the package: it opens, and only a proposal fails.
    engine = Engine(study(MIXED, algorithm), [Trial(0, RUNNING, {})], ())
    engine.warm_up()
    finish(engine, [Trial(0, RUNNING, {})], value=0.5)
    with pytest.raises(FailedPrecondition, match=f"{algorithm} needs .* or use another algorithm"):
        engine.propose(1)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cma-es", "cmaes"),
        ("nsga-2", "nsga2"),
        ("NSGA-III", "optuna:nsgaiii"),
        ("brute_force", "optuna:bruteforce"),
        ("optuna:tp", "optuna:tpe"),
        ("randon", "random"),
        ("Sobol", "sobol"),
        ("annealing", ""),
        ("bayes", "gp"),
        ("BayesianOptimization", "gp"),
        ("GP", "gp"),
        ("TPESampler", "tpe"),
        ("random-search", "random"),
        ("latin_hypercube", "sobol"),
        ("PopulationBasedTraining", "pbt"),
    ],
)
def test_an_unknown_algorithm_is_reported_with_all_names_and_the_nearest(
    name: str, meant: str
) -> None:
    (problem,) = check_spec(study(MIXED, name).spec)
    there = ", ".join(family.name for family in algorithms())
    nearest = f"; did you mean {meant}?" if meant else ""
    assert (problem.path, problem.message) == (
        "algorithm.name",
        f"{name!r} is not an algorithm; there are {there}{nearest}",
    )


def test_a_space_that_does_not_fit_is_refused_with_what_does() -> None:
    conditional = Parameter("x", Float(0, 1), (Condition("kind", ("a",)),))
    choices = Space((Parameter("kind", Choice(("a", "b"))), conditional))
    wide = Space((Parameter("x", Int(1, 1000)), Parameter("y", Int(1, 101))))
    huge = Space((Parameter("x", Int(-(2**53), 2**53)),))
    floats = Space((Parameter("x", Float(0, 1)),))
    found = {
        (algorithm, problem.path, problem.message)
        for algorithm, space in [
            ("optuna:cmaes", choices),
            ("optuna:bruteforce", wide),
            ("optuna:grid", huge),
            ("optuna:bruteforce", floats),
            ("optuna:grid", floats),
            ("optuna:gp", huge),
        ]
        for problem in check_spec(study(space, algorithm).spec)
        if problem.path.startswith("space")
    }
    assert found == {
        (
            "optuna:cmaes",
            "space.kind",
            "is a choice; optuna:cmaes needs a number that is always active, and there is none: "
            "use tpe",
        ),
        (
            "optuna:gp",
            "space.x",
            "18,014,398,509,481,985 values; optuna:gp looks at each of at most 1,000,000, "
            "use a larger step, a float without step, or tpe",
        ),
        (
            "optuna:bruteforce",
            "space",
            "101,000 points; optuna:bruteforce takes at most 100,000, use grid",
        ),
        (
            "optuna:grid",
            "space",
            "more than 10^15 points; optuna:grid takes at most 100,000, use grid",
        ),
        (
            "optuna:bruteforce",
            "space.x",
            "optuna:bruteforce needs step on a float; add one, or use grid or tpe",
        ),
        (
            "optuna:grid",
            "space.x",
            "optuna:grid needs points or step on a float; add one (points: 5), or use tpe",
        ),
    }


def test_the_overlay_keeps_what_a_sampler_sets_and_the_window_does_not() -> None:
    trial = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING)
    trial.number = trial._trial_id = 3
    attributes: dict[str, Any] = {}
    storage = OverlayStorage([optuna.study.StudyDirection.MINIMIZE], [trial], attributes)
    storage.set_trial_system_attr(3, "mine", 1)
    storage.set_study_system_attr(0, "ours", 2)
    assert (trial.system_attrs, attributes, storage.get_study_system_attrs(0)) == (
        {"mine": 1},
        {"ours": 2},
        attributes,
    )
    with pytest.raises(NotImplementedError, match="read-only"):
        storage.create_new_trial(0)


def test_the_history_is_of_succeeded_trials_or_of_all_points() -> None:
    criteria = study(TREE).spec.criteria
    values, points = History(criteria), History(criteria, points=True)
    states = [*TrialState]
    for number, state in reversed(list(enumerate(states))):
        for history in (values, points):
            history.put(Trial(number, state, {"x": 1}, value=0.5 if state is SUCCEEDED else None))
    assert [t.state for t in values.learned()] == [SUCCEEDED]
    assert [t.state for t in points.learned()] == [
        s for s in states if s.finished and s is not TrialState.CANCELLED
    ]
    # a paused one holds its point, too
    assert [t.state for t in values.running()] == [RUNNING, RUNNING]
    points.put(Trial(states.index(TrialState.FAILED), TrialState.CANCELLED, {"x": 1}))
    assert states.index(TrialState.FAILED) not in [t.number for t in points.learned()]


def test_naming_optunas_samplers_does_not_import_optuna() -> None:
    code = (
        "import sys; from suggest.engine import check_spec; from suggest.space import *; from "
        "suggest.study import *;"
        "from suggest.samplers.registry import algorithms;"
        "space, goal = Space((Parameter('x', Float(0, 1, step=0.1)),)), Objective('m', "
        "Direction.MINIMIZE);"
        "[check_spec(StudySpec(space, (goal,), Algorithm(a.name))) for a in algorithms()];"
        "sys.exit(bool({'numpy', 'optuna', 'scipy', 'torch', 'cmaes'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_the_history_of_several_objectives_has_trials_with_finite_values_of_all() -> None:
    criteria = Criteria((Objective("accuracy", MAXIMIZE), Objective("size", MINIMIZE)))
    history = History(criteria)
    for number, further in enumerate([(0.5,), (), (math.nan,)]):
        history.put(Trial(number, SUCCEEDED, {"x": 1}, value=0.5, further=further))
    assert [t.number for t in history.learned()] == [0]
