"""TPE: its window, its points, its restarts, and the parts of Optuna that it depends on."""

import inspect
import math
import statistics
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage

from suggest.domain import decode, encode
from suggest.engine import Engine
from suggest.optuna_storage import STUDY_ID, STUDY_NAME, WindowStorage, distributions
from suggest.samplers.history import BARRED_STATES
from suggest.samplers.running import LIARS
from suggest.samplers.tpe import BEST, Window
from suggest.space import Assignment, Choice, Float, Int, Parameter, Scale, Space, Value
from suggest.trial import Trial, TrialState
from tests.unit.searches import (
    CHOICES,
    MINIMIZE,
    MIXED,
    RUNNING,
    SUCCEEDED,
    TREE,
    assert_points,
    drawn,
    examples,
    finish,
    play,
    spaces,
    study,
)

AT_ONCE: dict[str, Value] = {"startupTrials": 0}
EITHER = st.sampled_from(["tpe", "tpe", "optuna:tpe"])


def worth(point: Assignment) -> float:
    """A smooth function of all values of a point."""
    return sum(len(v) if isinstance(v, str) else math.tanh(float(v)) for v in point.values())


def played(
    space: Space,
    count: int,
    config: dict[str, Value] | None = None,
    *,
    seed: int = 7,
    algorithm: str = "tpe",
) -> Engine:
    engine = Engine(study(space, algorithm, config=config, seed=seed), (), ())
    for k in range(count):
        (trial,) = play(engine, 1)
        states = (SUCCEEDED, SUCCEEDED, TrialState.PRUNED, TrialState.FAILED, RUNNING)
        state = states[k % 5]
        value = worth(trial.parameters) if state in states[:3] else None
        engine.put(
            Trial(
                trial.number,
                state,
                trial.parameters,
                value=value,
                step=k if value is not None else None,
            )
        )
    return engine


@given(spaces(), st.integers(0, 2**62), st.booleans(), st.booleans(), EITHER)
@examples(60)
def test_every_point_is_a_point(
    space: Space, seed: int, multivariate: bool, liar: bool, algorithm: str
) -> None:
    config: dict[str, Value] = {"multivariate": multivariate, "constantLiar": liar, **AT_ONCE}
    engine = played(space, 8, config, seed=seed, algorithm=algorithm)
    assert_points(space, [trial.parameters for trial in engine.trials()])


@pytest.mark.parametrize(
    "fixed", [{"lr": 0.1}, {"optimizer": "sgd", "momentum": 0.5}, {"optimizer": "adam"}]
)
def test_a_fixed_part_is_kept_and_completed(fixed: dict[str, Value]) -> None:
    engine = played(TREE, 30)
    engine.put(Trial(30, TrialState.QUEUED, fixed))
    (proposed,) = engine.propose(1).trials
    assert proposed.number == 30
    assert fixed.items() <= proposed.parameters.items()
    assert TREE.point_problems(proposed.parameters, partial=False) == ()


def test_it_starts_at_random_and_then_learns() -> None:
    space = Space(
        (
            Parameter("x", Float(-5, 5)),
            Parameter("y", Float(1e-4, 1, Scale.LOG)),
            Parameter("z", CHOICES),
        )
    )

    def loss(point: Assignment) -> float:
        x, y = float(point["x"]), float(point["y"])
        return (x - 2) ** 2 + (math.log10(y) + 2) ** 2 + (point["z"] is not True)

    def best_of(algorithm: str, seed: int) -> float:
        engine = Engine(study(space, algorithm, direction=MINIMIZE, seed=seed), (), ())
        for _ in range(60):
            (trial,) = play(engine, 1)
            finish(engine, [trial], value=loss(trial.parameters))
        return min(trial.value for trial in engine.trials() if trial.value is not None)

    tpe, random = (
        statistics.median(best_of(name, seed) for seed in range(drawn(15)))
        for name in ("tpe", "random")
    )
    assert tpe < random / 3
    assert statistics.median(best_of("optuna:tpe", seed) for seed in range(5)) < random / 3


@pytest.mark.parametrize("algorithm", ["tpe", "optuna:tpe"])
def test_a_batch_spreads_and_running_trials_repel(algorithm: str) -> None:
    space = Space((Parameter("x", Float(0, 1)), Parameter("y", Float(0, 1))))
    engine = Engine(study(space, algorithm), (), ())
    for _ in range(40):
        (trial,) = play(engine, 1)
        finish(engine, [trial], value=-abs(float(trial.parameters["x"]) - 0.5))
    one_by_one = [
        t.parameters for t in play(Engine(study(space, algorithm), engine.trials(), ()), 4)
    ]
    assert [p.parameters for p in engine.propose(4).trials] == one_by_one
    assert len({p.parameters["x"] for p in engine.propose(8).trials}) == 8


def window_of(*trials: Trial, size: int = 50) -> Window:
    window = Window(study(MIXED).spec, size)
    for trial in trials:
        window.put(trial)
    return window


def done(number: int, value: float, *, step: int = 0, state: TrialState = SUCCEEDED) -> Trial:
    return Trial(number, state, {}, value=value, step=step)


def test_the_window_is_the_best_of_all_history_and_the_most_recent() -> None:
    window = window_of(*(done(n, value=-n) for n in range(1000)))
    assert [t.number for t in window.learned()] == [*range(BEST), *range(1000 - 50 + BEST, 1000)]
    assert window.finished == 1000


def test_pruned_trials_are_best_by_how_far_they_came_and_only_where_succeeded_ones_lack() -> None:
    pruned = [done(n, 0.5, step=1000 - n, state=TrialState.PRUNED) for n in range(500)]
    window = window_of(done(500, 0.1), *pruned)
    assert [t.number for t in window.learned()] == [
        *range(BEST - 1),
        *range(501 - 50 + BEST - 1, 501),
    ]


def test_trials_without_information_are_not_in_the_window() -> None:
    ends = (TrialState.FAILED, TrialState.INFEASIBLE, TrialState.CANCELLED, TrialState.QUEUED)
    window = window_of(
        *(Trial(n, state, {}) for n, state in enumerate(ends)),
        done(8, math.nan),
        done(9, math.inf),
        done(10, 1.0),
    )
    assert [t.number for t in window.learned()] == [10]


def test_only_the_most_recent_running_trials_repel() -> None:
    running = [Trial(n, RUNNING, {}) for n in range(100)]
    window = window_of(*running, done(99, 0.5))
    assert [t.number for t in window.running()] == list(range(99 - 64, 99))


def test_the_model_keeps_no_more_than_its_window() -> None:
    trials = list(played(TREE, 200).trials())
    held = []
    for algorithm in ("tpe", "optuna:tpe"):
        engine = Engine(study(TREE, algorithm, config={"window": 50}), trials[:150], ())
        engine.propose(1)
        for trial in trials[150:]:
            engine.put(trial)
        engine.propose(1)
        model = engine._sampler._model  # type: ignore[attr-defined]  # what it holds is the claim
        held.append(len(model._columns if algorithm == "tpe" else model._frozen))
    avoided = sum(t.state in (RUNNING, *BARRED_STATES) for t in trials)
    assert held == [50 + min(avoided, LIARS), 50]


def test_a_choice_with_which_every_trial_fails_is_left() -> None:
    """Optuna's estimator prefers it: no trial says that it is bad."""
    space = Space((Parameter("model", Choice(("a", "b", "broken"))), Parameter("x", Float(0, 1))))
    engine = Engine(study(space, "tpe"), (), ())
    chosen = []
    for _ in range(80):
        (trial,) = play(engine, 1)
        broken = trial.parameters["model"] == "broken"
        chosen.append(broken)
        state = TrialState.FAILED if broken else TrialState.SUCCEEDED
        finish(engine, [trial], state, None if broken else 0.5)
    assert sum(chosen[40:]) < 8


def test_importing_the_engine_loads_neither_optuna_nor_numpy() -> None:
    code = (
        "import sys, suggest.engine; sys.exit(bool({'numpy', 'optuna', 'scipy'} & "
        "set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize(
    ("algorithm", "brings", "spares"),
    [
        ("tpe", "suggest.samplers.tpe_model", {"optuna", "scipy"}),
        ("optuna:tpe", "suggest.samplers.optuna_model", set()),
    ],
)
def test_warming_up_loads_the_model_and_what_it_needs(
    algorithm: str, brings: str, spares: set[str]
) -> None:
    code = (
        "import sys; from suggest.engine import Engine; from suggest.space import *; from "
        "suggest.study import *;"
        "space, goal = Space((Parameter('x', Float(0, 1)),)), Objective('m', Direction.MINIMIZE);"
        f"spec = StudySpec(space, (goal,), Algorithm({algorithm!r}));"
        "e = Engine(Study(StudyName('default', 'a'), 'uid', spec, 1), (), ());"
        "assert 'numpy' not in sys.modules; e.warm_up();"
        f"assert {brings!r} in sys.modules; assert not {spares!r} & set(sys.modules)"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_optunas_modules_are_as_optuna_made_them() -> None:
    code = (
        "import optuna, sys; from optuna.samplers._tpe import _truncnorm, sampler; before = "
        "[dict(vars(m)) for m in"
        " (_truncnorm, sampler)]; import suggest.samplers.optuna_model;"
        "sys.exit(before != [dict(vars(m)) for m in (_truncnorm, sampler)])"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_optunas_sampler_is_asked_through_its_public_methods() -> None:
    assert list(inspect.signature(TPESampler.sample_relative).parameters) == [
        "self",
        "study",
        "trial",
        "search_space",
    ]
    assert list(inspect.signature(TPESampler.sample_independent).parameters)[3:] == [
        "param_name",
        "param_distribution",
    ]


def test_the_window_is_an_optuna_storage_that_only_reads() -> None:
    trials = [
        optuna.trial.create_trial(value=float(v), params={}, distributions={}) for v in range(3)
    ]
    for number, trial in enumerate(trials):
        trial.number = trial._trial_id = number
    storage = WindowStorage([optuna.study.StudyDirection.MAXIMIZE], trials)
    seen = optuna.Study(STUDY_NAME, storage, sampler=optuna.samplers.RandomSampler())
    assert (seen.best_trial.number, seen.direction.name, len(seen.trials)) == (2, "MAXIMIZE", 3)
    assert (storage.get_trial(1), storage.get_all_studies()[0].study_name) == (
        trials[1],
        STUDY_NAME,
    )
    with pytest.raises(KeyError):
        storage.get_trial(9)
    for write in ("create_new_study", "create_new_trial", "delete_study"):
        with pytest.raises(NotImplementedError, match="read-only"):
            getattr(storage, write)(STUDY_ID)
    assert not getattr(WindowStorage, "__abstractmethods__", None)
    assert issubclass(WindowStorage, BaseStorage)


def test_every_kind_of_domain_crosses_to_optuna_and_back() -> None:
    domains = (
        *(p.domain for p in MIXED.parameters),
        CHOICES,
        Int(8, 128, step=8),
        Float(1e-3, 1, Scale.LOG, points=4),
    )
    for domain in domains:
        values = [domain.at(k) for k in range(domain.count)] if domain.count else [0.001, 0.5]
        for value in values:
            if not domain.contains(value):
                continue
            number = encode(domain, value)
            assert number is not None
            assert distributions.distribution(domain)._contains(number)
            assert repr(decode(domain, number)) == repr(value)
