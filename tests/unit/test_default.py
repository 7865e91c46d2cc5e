"""`default` chooses by space, budget and parallelism, says what it chose, and never chooses again."""

from dataclasses import replace

import pytest

from suggest.engine import Engine
from suggest.samplers import registry
from suggest.samplers.default import chosen_settings
from suggest.space import Choice, Float, Int, Parameter, Space, Value
from suggest.study import Algorithm, StudySpec
from tests.unit.searches import MIXED, finish, play, study

SMALL = Space((Parameter("a", Int(1, 4)), Parameter("b", Choice(("x", "y", "z")))))  # 12 points
REAL = Space((Parameter("x", Float(0, 1)), Parameter("y", Float(0, 1))))


def spec(space: Space, **settings: Value) -> StudySpec:
    return replace(study(space).spec, algorithm=Algorithm("default", None, settings))


@pytest.mark.parametrize(
    ("space", "given", "chosen", "duplicates"),
    [
        (SMALL, {"trials": 12}, "grid", None),
        (SMALL, {"trials": 11}, "tpe", "resample"),
        (SMALL, {}, "tpe", "resample"),
        (SMALL, {"trials": 11, "duplicates": "allow"}, "tpe", "allow"),
        (SMALL, {"trials": 100, "chosen": "tpe"}, "tpe", None),
        (REAL, {"trials": 100}, "tpe", "allow"),
        (Space((Parameter("x", Float(0, 1, points=3)),)), {"trials": 100}, "tpe", "allow"),
        (Space((Parameter("x", Int(1, 10**9)),)), {"trials": 100}, "tpe", "allow"),
    ],
)
def test_a_grid_where_there_is_room_for_every_point_else_tpe(
    space: Space, given: dict[str, Value], chosen: str, duplicates: str | None
) -> None:
    settings = chosen_settings(space, given)
    assert (settings["chosen"], settings.get("duplicates")) == (chosen, duplicates)


def test_one_at_a_time_it_is_greedier_than_several() -> None:
    alone, together = chosen_settings(REAL, {}), chosen_settings(REAL, {"parallelism": 2})
    assert (alone["candidates"], alone["goodShare"]) == (200, 0.1)
    assert (together["candidates"], together["goodShare"]) == (24, 0.04)


def test_a_choice_is_written_down_whole_and_stands() -> None:
    made = registry.chosen(spec(MIXED, trials=100, candidates=7))
    settings = made.algorithm.settings
    names = {s.name for family in registry.algorithms() if family.name == "default" for s in family.settings}
    assert set(settings) == names, "a default that a later version changes changes nothing here"
    assert settings["candidates"] == 7
    assert registry.chosen(made) == made
    other = replace(made, algorithm=replace(made.algorithm, settings={**settings, "startupTrials": 3}))
    assert registry.chosen(other) == other
    assert list(registry.algorithm_problems(made.algorithm)) == []


def test_other_algorithms_are_left_as_they_are() -> None:
    for name in ("random", "grid", "tpe", "optuna:tpe"):
        asked = study(SMALL, name).spec
        assert registry.chosen(asked) is asked


def test_a_grid_that_was_chosen_ends_with_the_space_and_depends_on_no_outcome() -> None:
    made = registry.chosen(spec(SMALL, trials=50))
    engine = Engine(replace(study(SMALL), spec=made), (), ())
    trials = play(engine, 50)
    assert len({repr(t.parameters) for t in trials}) == len(trials) == 12
    assert not registry.learns(made.algorithm)
    assert registry.learns(registry.chosen(spec(SMALL)).algorithm)


def test_its_points_are_those_of_what_it_chose() -> None:
    made = registry.chosen(spec(MIXED, trials=100))
    settings = {k: v for k, v in made.algorithm.settings.items() if k not in ("chosen", "trials", "parallelism")}
    ours = Engine(replace(study(MIXED), spec=made), (), ())
    named = replace(made, algorithm=Algorithm("tpe", None, settings))
    theirs = Engine(replace(study(MIXED), spec=named), (), ())
    for engine in (ours, theirs):
        for number in range(15):
            finish(engine, play(engine, 1), value=float(number))
    assert ours.propose(2) == theirs.propose(2)
