"""`default` chooses by space, budget and parallelism, says what it chose,
and never chooses again.
"""

import importlib.util
from dataclasses import replace
from typing import Any

import pytest

from suggest import settings as checked
from suggest.engine import Engine
from suggest.samplers import default, registry
from suggest.samplers.default import chosen_settings
from suggest.samplers.hedge import gp_has_turn
from suggest.samplers.tpe import OwnSettings
from suggest.space import Choice, Float, Int, Parameter, Space, Value
from suggest.study import Algorithm, Constraint, Direction, Fidelity, Objective, Pruning, StudySpec
from suggest.trial import Trial
from tests.unit.searches import MIXED, SUCCEEDED, finish, play, study

needs_cmaes = pytest.mark.skipif(
    importlib.util.find_spec("cmaes") is None, reason="not installed: cmaes"
)

SMALL = Space((Parameter("a", Int(1, 4)), Parameter("b", Choice(("x", "y", "z")))))  # 12 points
REAL = Space((Parameter("x", Float(0, 1)), Parameter("y", Float(0, 1))))


def spec(space: Space, **settings: Value) -> StudySpec:
    return replace(study(space).spec, algorithm=Algorithm("default", None, settings))


@pytest.mark.parametrize(
    ("space", "given", "chosen", "duplicates"),
    [
        (SMALL, {"trials": 12}, "grid", None),
        (SMALL, {"trials": 11}, "hedge", "resample"),
        (SMALL, {}, "hedge", "resample"),
        (SMALL, {"trials": 11, "duplicates": "allow"}, "hedge", "allow"),
        (SMALL, {"trials": 100, "chosen": "tpe"}, "tpe", None),
        (REAL, {"trials": 300}, "hedge", "allow"),
        (Space((Parameter("x", Float(0, 1, points=3)),)), {"trials": 100}, "hedge", "allow"),
        (Space((Parameter("x", Int(1, 10**9)),)), {"trials": 100}, "hedge", "allow"),
    ],
)
def test_default_is_a_grid_if_the_budget_covers_every_point_and_a_hedge_otherwise(
    space: Space, given: dict[str, Value], chosen: str, duplicates: str | None
) -> None:
    settings = chosen_settings(spec(space), given)
    assert (settings["chosen"], settings.get("duplicates")) == (chosen, duplicates)


@pytest.mark.parametrize(
    ("objectives", "chosen"), [(1, "hedge"), (2, "hedge"), (3, "hedge"), (4, "tpe")]
)
@pytest.mark.parametrize(
    "constraints", [(), (Constraint("size", max=1.0),)], ids=["free", "constrained"]
)
def test_default_hedges_for_as_many_objectives_as_gp_supports(
    objectives: int, chosen: str, constraints: tuple[Constraint, ...]
) -> None:
    several = tuple(Objective(f"loss{k}", Direction.MINIMIZE) for k in range(objectives))
    made = registry.resolve(
        replace(spec(REAL, trials=100), objectives=several, constraints=constraints)
    )
    assert made.algorithm.settings["chosen"] == chosen
    assert list(registry.objective_problems(made)) == []


@needs_cmaes
@pytest.mark.parametrize(
    ("space", "given", "chosen"),
    [
        (REAL, {"trials": 301}, "hedge with cmaes"),
        (REAL, {}, "hedge with cmaes"),
        (Space((Parameter("x", Float(0, 1)), Parameter("k", Int(0, 10**9)))), {}, "hedge"),
        (MIXED, {}, "hedge"),
    ],
)
def test_cmaes_joins_the_hedge_in_long_studies_of_floats_alone(
    space: Space, given: dict[str, Value], chosen: str
) -> None:
    assert chosen_settings(spec(space), given)["chosen"] == chosen


@needs_cmaes
@pytest.mark.parametrize(
    "changed",
    [
        {"pruning": Pruning("median")},
        {"constraints": (Constraint("size", max=1.0),)},
        {"objectives": tuple(Objective(name, Direction.MINIMIZE) for name in ("loss", "size"))},
        {"fidelity": Fidelity("x", 1, 9)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_cmaes_joins_no_hedge_whose_trials_it_cannot_learn_from(changed: dict[str, Any]) -> None:
    assert chosen_settings(replace(spec(REAL), **changed), {})["chosen"] == "hedge"


@needs_cmaes
def test_cmaes_has_three_of_four_points_from_trial_300_on_and_goes_on_from_the_best_trials() -> (
    None
):
    hedge = Engine(replace(study(REAL), spec=registry.resolve(spec(REAL))), (), ())
    cmaes = Engine(study(REAL, "cmaes", config={"warmStart": 300}), (), ())
    for trial in play(Engine(study(REAL, "random"), (), ()), 300):
        x, y = float(str(trial.parameters["x"])), float(str(trial.parameters["y"]))
        for engine in (hedge, cmaes):
            engine.put(replace(trial, state=SUCCEEDED, value=-((x - 0.2) ** 2) - (y - 0.9) ** 2))
    batch = hedge.propose(4).trials
    assert batch[1:] == cmaes.propose(4).trials[1:]
    assert all(abs(float(str(p.parameters["x"])) - 0.2) < 0.2 for p in batch[1:])


def test_a_server_without_cmaes_continues_as_a_plain_hedge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "missing", tuple)  # as on a server without the package
    chosen = [
        Algorithm("default", None, {"chosen": each}) for each in ("hedge with cmaes", "hedge")
    ]
    searches = [
        Engine(replace(study(REAL), spec=replace(spec(REAL), algorithm=each)), (), ())
        for each in chosen
    ]
    for trial in play(Engine(study(REAL, "random"), (), ()), 300):
        for engine in searches:
            engine.put(replace(trial, state=SUCCEEDED, value=float(str(trial.parameters["x"]))))
    found = [engine.propose(4).trials for engine in searches]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("parallelism", "objectives", "first", "startup"),
    [(7, 1, "random", 10), (8, 1, "spread", 5), (32, 1, "spread", 5), (32, 2, "random", 10)],
)
def test_eight_or_more_parallel_trials_begin_with_spread_points_and_early_models(
    parallelism: int, objectives: int, first: str, startup: int
) -> None:
    several = tuple(Objective(f"loss{k}", Direction.MINIMIZE) for k in range(objectives))
    made = replace(spec(REAL), objectives=several)
    found = chosen_settings(made, {"parallelism": parallelism})
    assert (found["firstPoints"], found["startupTrials"]) == (first, startup)
    given: dict[str, Value] = {
        "parallelism": parallelism,
        "firstPoints": "random",
        "startupTrials": 12,
    }
    assert chosen_settings(made, given).items() >= given.items()


@pytest.mark.parametrize("objectives", [1, 4])
def test_spread_points_are_one_even_sequence_for_both_algorithms_of_a_hedge_and_for_tpe(
    objectives: int,
) -> None:
    several = tuple(Objective(f"loss{k}", Direction.MINIMIZE) for k in range(objectives))
    made = registry.resolve(
        replace(spec(REAL, parallelism=32, firstPoints="spread"), objectives=several)
    )
    assert str(made.algorithm.settings["chosen"]).startswith("hedge" if objectives == 1 else "tpe")
    points = Engine(replace(study(REAL), spec=made), (), ()).propose(32).trials
    for name in ("x", "y"):
        # The quantile function of Beta(2, 2) is undone, so that the values are even:
        # one in each of 32 intervals.
        values = [float(str(point.parameters[name])) for point in points]
        assert sorted(int(32 * x * x * (3 - 2 * x)) for x in values) == list(range(32))


def test_a_wide_study_of_an_earlier_version_keeps_its_random_points() -> None:
    settings = chosen_settings(spec(REAL), {"parallelism": 32, "startupTrials": 10})
    stored = {name: value for name, value in settings.items() if name != "firstPoints"}
    earlier = registry.resolve(spec(REAL, **stored))
    assert earlier.algorithm.settings == stored
    found = Engine(replace(study(REAL), spec=earlier), (), ()).propose(9)
    assert found.trials == Engine(study(REAL, "random"), (), ()).propose(9).trials


@pytest.mark.parametrize(("parallelism", "startup"), [(1, 10), (8, 5), (100, 5)])
def test_tpe_has_optunas_settings_but_for_the_early_start(parallelism: int, startup: int) -> None:
    settings = chosen_settings(spec(REAL), {"parallelism": parallelism})
    optunas = {s.name: s.default for s in checked.declared(OwnSettings)}
    assert {name: settings[name] for name in optunas} == {**optunas, "startupTrials": startup}


@pytest.mark.parametrize(
    ("first", "parallelism", "turns"),
    [
        (0, 1, "gggt"),
        (0, 8, "gggt"),
        (0, 9, "ggtt"),
        (0, 33, "gttt"),
        (300, 1, "ggtt"),
        (1000, 1, "gttt"),
    ],
)
def test_tpe_has_every_fourth_turn_and_more_in_long_and_wide_studies(
    first: int, parallelism: int, turns: str
) -> None:
    found = [gp_has_turn(number, parallelism) for number in range(first, first + 8)]
    assert "".join("g" if gp else "t" for gp in found) == turns * 2


def test_a_choice_of_default_is_stored_whole_and_does_not_change() -> None:
    made = registry.resolve(spec(MIXED, trials=100, candidates=7))
    settings = made.algorithm.settings
    names = {
        s.name
        for family in registry.algorithms()
        if family.name == "default"
        for s in family.settings
    }
    assert set(settings) == names, "a default that a later version changes changes nothing here"
    assert settings["candidates"] == 7
    assert registry.resolve(made) == made
    other = replace(
        made, algorithm=replace(made.algorithm, settings={**settings, "startupTrials": 3})
    )
    assert registry.resolve(other) == other
    assert list(registry.algorithm_problems(made.algorithm)) == []


def test_other_algorithms_are_not_changed() -> None:
    for name in ("random", "grid", "tpe", "optuna:tpe", "gp"):
        asked = study(SMALL, name).spec
        assert registry.resolve(asked) is asked


def test_a_grid_that_was_chosen_ends_with_the_space_and_depends_on_no_outcome() -> None:
    made = registry.resolve(spec(SMALL, trials=50))
    engine = Engine(replace(study(SMALL), spec=made), (), ())
    trials = play(engine, 50)
    assert len({repr(t.parameters) for t in trials}) == len(trials) == 12
    assert not registry.learns(made.algorithm)
    assert registry.learns(registry.resolve(spec(SMALL)).algorithm)


STORED: dict[str, Value] = {
    "duplicates": "allow",
    "startupTrials": 10,
    "window": 200,
    "candidates": 24,
    "multivariate": True,
    "constantLiar": True,
    "goodShare": 0.04,
    "sharpness": 4.0,
    "trials": 100,
    "parallelism": 2,
    "chosen": "tpe",
}


def test_a_study_keeps_the_choice_that_was_stored_with_it() -> None:
    made = registry.resolve(spec(MIXED, **STORED))
    assert made.algorithm.settings == STORED
    settings = {
        k: v
        for k, v in made.algorithm.settings.items()
        if k not in ("chosen", "trials", "parallelism")
    }
    ours = Engine(replace(study(MIXED), spec=made), (), ())
    named = replace(made, algorithm=Algorithm("tpe", None, settings))
    theirs = Engine(replace(study(MIXED), spec=named), (), ())
    for engine in (ours, theirs):
        for number in range(15):
            finish(engine, play(engine, 1), value=float(number))
    assert ours.propose(2) == theirs.propose(2)


def test_the_points_of_a_hedge_are_those_of_its_two_algorithms() -> None:
    engine = Engine(replace(study(MIXED), spec=registry.resolve(spec(MIXED))), (), ())
    of = {
        "gp": Engine(study(MIXED, "gp", config={"startupTrials": 10}), (), ()),
        "tpe": Engine(study(MIXED, "tpe"), (), ()),
    }
    for number in range(20):
        (proposed,) = engine.propose(1).trials
        (expected,) = of["gp" if gp_has_turn(number, 1) else "tpe"].propose(1).trials
        assert proposed == expected
        for each in (engine, *of.values()):
            each.put(Trial(number, SUCCEEDED, proposed.parameters, value=-float(number % 7)))
