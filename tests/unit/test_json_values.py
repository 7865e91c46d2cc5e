"""Choices of any JSON value: null, lists and objects beside text, numbers and booleans."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from suggest import wire
from suggest.domain import (
    MAX_JSON_DEPTH,
    MAX_JSON_LENGTH,
    NO_MEMBER,
    compact_json,
    identity,
    json_problem,
)
from suggest.engine import Engine, check_spec
from suggest.errors import InvalidArgument, Problems
from suggest.grid import Grid
from suggest.imports import fit
from suggest.space import Choice, Condition, Float, Parameter, Space, Value
from suggest.studies.space_growth import growth_problems
from suggest.study import Algorithm, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Trial, TrialState
from suggest.v1 import suggest_pb2 as pb
from suggest.wire import read_value, write_value

OPTIMIZERS: tuple[Value, ...] = (
    None,
    [1, 2],
    {"kind": "a", "lr": 0.1},
    True,
    1,
    "1",
    "null",
    [True],
    [],
    {},
)
SPACE = Space(
    (
        Parameter("optimizer", Choice(OPTIMIZERS)),
        Parameter(
            "momentum", Float(0.0, 1.0), (Condition("optimizer", (None, {"lr": 0.1, "kind": "a"})),)
        ),
    )
)


def nested(levels: int) -> Value:
    value: Value = 1
    for _ in range(levels):
        value = [value]
    return value


def spec(algorithm: str, **settings: Value) -> StudySpec:
    return StudySpec(
        SPACE, (Objective("m", Direction.MINIMIZE),), Algorithm(algorithm, 1, settings)
    )


def test_values_of_different_kinds_are_different_choices() -> None:
    assert SPACE.problems() == ()
    assert len({identity(value) for value in OPTIMIZERS}) == len(OPTIMIZERS)
    assert [Choice(OPTIMIZERS).index_of(value) for value in OPTIMIZERS] == list(
        range(len(OPTIMIZERS))
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [({"a": 1, "b": [2.0]}, {"b": [2], "a": 1.0}), ([0.0], [0]), ([-0.0], [0])],
)
def test_key_order_and_spelling_of_numbers_do_not_tell_values_apart(
    one: Value, other: Value
) -> None:
    assert identity(one) == identity(other)
    assert [p.path for p in Space((Parameter("x", Choice((one, other))),)).problems()] == [
        "x.values[1]"
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [([1], [True]), ([1], ["1"]), ([None], [0]), ({"a": 1}, {"a": True}), ([], {})],
)
def test_values_in_lists_that_are_equal_in_python_may_be_different_choices(
    one: Value, other: Value
) -> None:
    assert Space((Parameter("x", Choice((one, other))),)).problems() == ()
    assert Choice((one,)).canonical(other) is NO_MEMBER


def test_null_is_a_member_and_no_member_is_not_null() -> None:
    assert Choice((None, "a")).canonical(None) is None
    assert Choice(("a",)).canonical(None) is NO_MEMBER
    assert not Float(0.0, 1.0).contains(None)
    assert SPACE.point_problems({"optimizer": None, "momentum": 0.5}, partial=False) == ()
    assert SPACE.canonical({"optimizer": None}) == {"optimizer": None}
    assert [p.name for p in SPACE.missing({"optimizer": None})] == ["momentum"]
    assert [p.name for p in SPACE.missing({"optimizer": [1, 2]})] == []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (nested(MAX_JSON_DEPTH + 1), "nested more than 16 levels"),
        (["x" * MAX_JSON_LENGTH], "4100 characters as JSON"),
        ([0] * 5000, "longer than 4096 characters"),
        ([math.nan], "not finite"),
        ({"a": math.inf}, "not finite"),
        ([2**53 + 1], "beyond ±2^53"),
        ({1: 2}, "the key 1 is not text"),
        (["\ud800"], "surrogate"),
        ([(1, 2)], "is not JSON"),
    ],
)
def test_a_choice_is_bounded_and_plain_json(value: Any, problem: str) -> None:
    found = Space((Parameter("x", Choice((value,))),)).problems()
    assert [p.path for p in found] == ["x.values[0]"]
    assert problem in found[0].message
    with pytest.raises(InvalidArgument):
        write_value(value)


def test_the_largest_allowed_values_are_allowed() -> None:
    for value in (nested(MAX_JSON_DEPTH), ["x" * (MAX_JSON_LENGTH - 4)]):
        assert json_problem(value) == ""
        assert read_value(write_value(value), "x", problems := []) == value
        assert not problems


@pytest.mark.parametrize("value", OPTIMIZERS)
def test_values_survive_the_wire(value: Value) -> None:
    problems = Problems()
    read = read_value(pb.Value.FromString(write_value(value).SerializeToString()), "x", problems)
    assert (identity(read), type(read), problems) == (identity(value), type(value), [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "1",
        '"a"',
        "true",
        "[NaN]",
        "[1e999]",
        "[" * 2000 + "]" * 2000,
        '{"a":1,"a":2}',
        '["\\ud800"]',
        "[" + "9" * 4000 + "]",
        "x" * 9000,
        '"' + "[" * 2000,
        '["\\"]',
        "null null",
    ],
)
def test_bad_json_from_a_client_is_a_problem_with_its_place(text: str) -> None:
    problems = Problems()
    read_value(pb.Value(json_value=text), "spec.parameters[0].values[3]", problems)
    assert [p.path for p in problems] == ["spec.parameters[0].values[3]"]


def test_brackets_in_strings_do_not_count_as_nesting() -> None:
    value: Value = ["[" * 100 + '\\"' + "{" * 100]
    assert read_value(pb.Value(json_value=json.dumps(value)), "x", problems := []) == value
    assert not problems


@pytest.mark.parametrize("algorithm", ["random", "grid", "tpe", "optuna:tpe", "gp", "default"])
def test_every_algorithm_suggests_them(algorithm: str) -> None:
    space = Space((SPACE.parameters[0],)) if algorithm == "grid" else SPACE
    of = StudySpec(space, (Objective("m", Direction.MINIMIZE),), Algorithm(algorithm, 1, {}))
    assert check_spec(of) == ()
    engine = Engine(Study(StudyName("default", "s"), "u", of, 1), [], [])
    seen = set()
    for number in range(30):
        for proposed in engine.propose(1).trials:
            assert space.point_problems(proposed.parameters, partial=False) == ()
            seen.add(identity(proposed.parameters["optimizer"]))
            engine.put(Trial(number, TrialState.RUNNING, proposed.parameters))
            engine.put(
                Trial(
                    number,
                    TrialState.SUCCEEDED,
                    proposed.parameters,
                    value=float(number % 7),
                    step=0,
                )
            )
    assert len(seen) == len(OPTIMIZERS) if algorithm == "grid" else len(seen) > 3


def test_duplicates_are_found_whatever_the_order_of_keys() -> None:
    space = Space(
        (Parameter("x", Choice(({"a": 1, "b": 2}, None))), Parameter("y", Float(0.0, 1.0)))
    )
    of = StudySpec(
        space,
        (Objective("m", Direction.MINIMIZE),),
        Algorithm("random", 1, {"duplicates": "reuse"}),
    )
    engine = Engine(Study(StudyName("default", "s"), "u", of, 1), [], [])
    engine.put(Trial(0, TrialState.SUCCEEDED, {"x": {"b": 2, "a": 1}, "y": 0.5}, value=1.0))
    sampler: Any = engine._sampler
    assert sampler.value_of({"x": {"a": 1, "b": 2}, "y": 0.5}) == 0


def test_a_grid_numbers_them_and_follows_conditions_on_null() -> None:
    space = Space(
        (
            Parameter("x", Choice((None, [1], {"a": 1}))),
            Parameter("y", Choice((1, 2)), (Condition("x", (None, {"a": 1.0})),)),
        )
    )
    grid = Grid(space, {})
    points = [grid.point(k) for k in range(grid.total)]
    assert points == [
        {"x": None, "y": 1},
        {"x": None, "y": 2},
        {"x": [1]},
        {"x": {"a": 1}, "y": 1},
        {"x": {"a": 1}, "y": 2},
    ]
    assert [grid.index_of(point) for point in points] == list(range(5))


def test_a_space_grows_by_them_and_keeps_them() -> None:
    old = Space((Parameter("x", Choice((None, {"a": 1, "b": 2}))),))
    assert (
        growth_problems(old, Space((Parameter("x", Choice(({"b": 2, "a": 1}, [3], None))),))) == ()
    )
    (gone,) = growth_problems(old, Space((Parameter("x", Choice((None,))),)))
    assert gone.message.startswith('{"a":1,"b":2} was removed')


def test_imported_trials_may_have_them() -> None:
    assert fit(SPACE, {"optimizer": None, "momentum": 0.5}).parameters == {
        "optimizer": None,
        "momentum": 0.5,
    }
    assert [p.path for p in fit(SPACE, {"optimizer": [math.nan]}).refused] == ["optimizer"]
    assert [p.path for p in fit(SPACE, {"optimizer": None, "momentum": [1]}).refused] == [
        "momentum"
    ]


def test_a_study_is_read_back_from_its_message_and_its_document() -> None:
    from suggest.storage.study_json import fingerprint, spec_document, spec_of

    problems = Problems()
    of = spec("tpe")
    sent = wire.read_spec(
        pb.StudySpec.FromString(wire.write_spec(of).SerializeToString()), problems
    )
    stored = spec_of(json.loads(json.dumps(spec_document(sent))))
    assert not problems
    assert fingerprint(of) == fingerprint(stored)
    assert stored == of


def test_settings_take_no_lists() -> None:
    assert [p.path for p in check_spec(spec("tpe", window=[1], candidates=None))] == [
        "algorithm.settings.window",
        "algorithm.settings.candidates",
    ]


def test_compact_json_has_no_spaces_and_sorted_keys() -> None:
    assert compact_json({"b": [1, 2.5, None], "a": "ü"}) == '{"a":"ü","b":[1,2.5,null]}'


def test_a_trial_with_null_is_learned_from() -> None:
    engine = Engine(Study(StudyName("default", "s"), "u", spec("tpe", startupTrials=1), 1), [], [])
    for number, value in enumerate(OPTIMIZERS):
        point: dict[str, Value] = {"optimizer": value}
        if value is None:
            point["momentum"] = 0.5
        engine.put(
            Trial(number, TrialState.SUCCEEDED, point, value=0.0 if value is None else 1.0, step=0)
        )
    proposed = engine.propose(1, to_run=True).trials[0].parameters
    assert SPACE.point_problems(proposed, partial=False) == ()
