"""Spaces: their definition, their problems, and which assignments are points."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suggest.domain import last_step
from suggest.errors import InvalidArgument, Problem
from suggest.space import Choice, Condition, Float, Int, Parameter, Scale, Space, Value
from tests.unit.searches import examples

LOG = Scale.LOG


def space(**domains: Float | Int | Choice) -> Space:
    return Space(tuple(Parameter(name, domain) for name, domain in domains.items()))


def only_problem(wrong: Space) -> Problem:
    (problem,) = wrong.problems()
    return problem


DIGITS = Space(
    (
        Parameter("lr", Float(1e-4, 1.0, LOG)),
        Parameter("dropout", Float(0, 0.7), (Condition("activation", ("relu",)),)),
        Parameter("batch", Int(8, 128, step=8)),
        Parameter("activation", Choice(("relu", "tanh"))),
    )
)


@pytest.mark.parametrize(
    ("domain", "path", "says"),
    [
        (Float(1, 0.1), "x.min", "1 is above max, 0.1"),
        (Float(float("nan"), 1), "x.min", "nan is not finite"),
        (Float(0, float("inf")), "x.max", "inf is not finite"),
        (Float(-1.7e308, 1.7e308), "x.max", "too wide"),
        (
            Float(0, 1, LOG),
            "x.min",
            "0 cannot be on a log scale; use a min above 0, or scale: linear",
        ),
        (Float(0, 1, step=0.0), "x.step", "0 is not a step"),
        (Float(0, 1, step=0.3), "x.step", "use max 0.9 or 1.2"),
        (Float(0, 1, step=1e-300), "x.step", "more than 2^53"),
        (
            Float(-1.5e308, 0, step=0.5e308),
            "x.max",
            "min - step is beyond the largest double, with step 5e+307",
        ),
        (Float(0, 1.5e308, step=0.5e308), "x.max", "max + step is beyond the largest double"),
        (
            Float(-0.8e308, 0.8e308, step=0.4e308),
            "x.max",
            "max - min + step is beyond the largest double",
        ),
        (Float(0.1, 1, LOG, step=0.4), "x.step", "does not lead from min 0.1 to max 1"),
        (Float(0, 1, step=0.5, points=3), "x.points", "give one of the two"),
        (Float(0, 1, points=1), "x.points", "use 2 or more"),
        (Float(1, 1, points=2), "x.points", "equal ends"),
        (Float(0, 1, points=2**31), "x.points", "use at most 2147483647"),
        (Int(5, 4), "x.min", "5 is above max, 4"),
        (Int(0, 8, LOG), "x.min", "0 cannot be on a log scale"),
        (Int(0, 8, step=0), "x.step", "0 is not a step"),
        (Int(8, 127, step=16), "x.step", "use max 120 or 136"),
        (Int(1, 8, LOG, step=2), "x.step", "use max 7 or 9"),
        (Int(0, 2**53 + 1), "x.max", "2^53"),
        (Choice(()), "x.values", "no choices"),
        (Choice(("a", "b", "a")), "x.values[2]", "'a' occurs twice"),
        (Choice((1, 1.0)), "x.values[1]", "1 occurs twice"),
        (Choice((1.5, float("nan"))), "x.values[1]", "nan is not finite"),
        (Choice((1, 2**60)), "x.values[1]", "2^53"),
        (Choice(tuple(range(10_001))), "x.values", "more than 10000"),
    ],
)
def test_a_wrong_domain_is_refused_with_place_value_and_cure(
    domain: Float | Int | Choice, path: str, says: str
) -> None:
    problem = only_problem(space(x=domain))
    assert problem.path == path
    assert says in problem.message


def test_true_and_one_and_the_text_1_are_three_choices() -> None:
    assert space(x=Choice((True, 1, "1", False, 0))).problems() == ()


@pytest.mark.parametrize(
    "domain",
    [
        Float(1, 1),
        Float(1, 1, points=1),
        Float(0, 0.3, step=0.1),
        Int(3, 3),
        Float(1e-5, 1, LOG, points=6),
    ],
)
def test_one_value_and_decimal_steps_are_domains(domain: Float | Int) -> None:
    assert space(x=domain).problems() == ()


def test_names_are_checked_and_all_problems_come_at_once() -> None:
    wrong = Space(
        (
            Parameter("{x}", Int(0, 1)),
            Parameter("a", Int(2, 1)),
            Parameter("a", Choice(())),
            Parameter("b" * 254, Int(0, 1)),
        )
    )
    assert [p.path for p in wrong.problems()] == ["{x}", "a.min", "a", "a.values", "b" * 254]
    assert only_problem(Space(())).message == "no parameters; a search needs at least one"


@pytest.mark.parametrize(
    "name", ["--lr", "learning rate", "lr/decay", "model.optimizer[0].lr", "größe", "1x", "a=b"]
)
def test_whatever_a_placeholder_can_say_is_a_name(name: str) -> None:
    assert space(**{name: Float(0, 1)}).problems() == ()


@pytest.mark.parametrize("name", ["", "a}b", "two\nlines", "\x1b[2J", "\u202e"])
def test_a_name_that_no_line_can_show_is_refused(name: str) -> None:
    assert only_problem(space(**{name: Float(0, 1)})).message == (
        f"{name!r} is not a name for a parameter; use 1 to 253 characters that can be printed, "
        f"without {{ and }}"
    )


@pytest.mark.parametrize(
    ("low", "high", "step", "last"),
    [
        (16, 128, 50, 116),
        (0.0, 0.3, 0.1, 0.3),
        (0.0, 0.35, 0.1, 0.3),
        (1, 5, 9, 1),
        (-1.0, 1.0, 0.3, 0.8),
        (3, 3, 2, 3),
    ],
)
def test_a_range_ends_at_its_last_step(low: float, high: float, step: float, last: float) -> None:
    assert last_step(low, high, step) == last


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        (Condition("optimiser", ("sgd",)), "optimiser is not a parameter; did you mean optimizer?"),
        (Condition("momentum", (0.5,)), "a parameter cannot depend on itself"),
        (
            Condition("optimizer", ("sdg",)),
            "can never be true: 'sdg' is not one of the choices 'sgd', 'adam'",
        ),
        (Condition("optimizer", ()), "no values"),
    ],
)
def test_a_wrong_condition_is_refused(condition: Condition, says: str) -> None:
    wrong = Space(
        (
            Parameter("optimizer", Choice(("sgd", "adam"))),
            Parameter("momentum", Float(0, 1), (condition,)),
        )
    )
    problem = only_problem(wrong)
    assert problem.path == f"momentum.when.{condition.parameter}"
    assert says in problem.message


def test_a_long_choice_is_not_searched_for_each_wrong_value_of_a_condition() -> None:
    compared = 0

    class Counted(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    choice = Choice(tuple(Counted(f"value{n}") for n in range(1000)))
    wrong = Space(
        (
            Parameter("a", choice),
            Parameter("b", Int(0, 1), (Condition("a", tuple(map(str, range(100)))),)),
        )
    )
    assert len(wrong.problems()) == 100
    # each of the hundred with each of the thousand would be ten times as many
    assert compared < 10_000


def test_a_cycle_of_conditions_is_reported_once_with_its_members() -> None:
    def on(name: str, parent: str) -> Parameter:
        return Parameter(name, Int(0, 1), (Condition(parent, (1,)),))

    wrong = Space(
        (on("hanger", "b"), on("a", "b"), on("b", "c"), on("c", "a"), Parameter("free", Int(0, 1)))
    )
    problem = only_problem(wrong)
    assert problem.path == "a.when.b"
    assert problem.message.startswith("conditions form a cycle: a -> b -> c -> a")
    with pytest.raises(InvalidArgument, match="cycle"):
        _ = wrong.ordered


def test_parents_come_first_and_otherwise_the_order_of_the_file_is_kept() -> None:
    assert [p.name for p in DIGITS.ordered] == ["lr", "batch", "activation", "dropout"]


@pytest.mark.parametrize(
    ("assignment", "problems"),
    [
        ({"lr": 0.1, "batch": 8, "activation": "tanh"}, {}),
        ({"lr": 1, "batch": 16.0, "activation": "relu", "dropout": 0}, {}),
        ({"lr": 0.1, "batch": 8, "activation": "relu"}, {"dropout": "no value"}),
        (
            {"lr": 0.1, "batch": 8, "activation": "tanh", "dropout": 0.1},
            {"dropout": "only when activation is 'relu'"},
        ),
        (
            {"lr": True, "batch": "8", "activation": 1},
            {"lr": "not a finite", "batch": "not a whole", "activation": "not one of"},
        ),
        (
            {"lr": 2, "batch": 12, "activation": "tanh"},
            {"lr": "outside 0.0001 to 1", "batch": "nearest are 8 or 16"},
        ),
        (
            {"lr": 0.1, "batch": 8, "activation": "rely", "dropout": 0.1},
            {"activation": "not one of the choices"},
        ),
        (
            {"lr": 0.1, "batch": 8, "activation": "tanh", "drop_out": 1},
            {"drop_out": "did you mean dropout?"},
        ),
    ],
)
def test_an_assignment_is_a_point_or_says_why_not(
    assignment: dict[str, Value], problems: dict[str, str]
) -> None:
    found = DIGITS.point_problems(assignment, partial=False)
    assert {p.path for p in found} == set(problems)
    assert all(problems[p.path] in p.message for p in found)


def test_a_part_of_a_point_may_lack_values_but_not_what_makes_them_active() -> None:
    assert DIGITS.point_problems({"batch": 8}, partial=True) == ()
    assert DIGITS.point_problems({"activation": "relu", "dropout": 0.5}, partial=True) == ()
    (problem,) = DIGITS.point_problems({"dropout": 0.5}, partial=True)
    assert "or give that too" in problem.message


def test_the_canonical_point_has_the_types_and_the_order_of_the_space() -> None:
    point = DIGITS.canonical({"activation": "relu", "batch": 16.0, "dropout": 0, "lr": 1})
    assert repr(point) == repr({"lr": 1.0, "dropout": 0.0, "batch": 16, "activation": "relu"})
    assert (
        repr(space(x=Choice((1, True)), y=Choice((True, 1))).canonical({"x": 1.0, "y": 1.0}))
        == "{'x': 1, 'y': 1}"
    )


def test_activity_follows_the_chain_of_conditions() -> None:
    chain = Space(
        (
            Parameter("c", Int(0, 1), (Condition("b", (1,)),)),
            Parameter("b", Int(0, 1), (Condition("a", (1,)),)),
            Parameter("a", Int(0, 1)),
        )
    )
    assert chain.active({"a": 1, "b": 1}, "c")
    assert not chain.active({"a": 0, "b": 1}, "c")
    assert chain.restricted({"a": 0, "b": 1, "c": 1}) == {"a": 0}
    assert [p.name for p in chain.missing({"a": 1})] == ["b"]


def test_steps_are_rounded_as_a_person_would_write_them() -> None:
    assert [Float(0.1, 0.5, step=0.1).at(k) for k in range(5)] == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_no_step_is_above_the_maximum() -> None:
    # three steps of 0.3666666666666667 lead to 0.1000000000000001
    domain = Float(-1.0, 0.1, step=1.1 / 3)
    assert not list(domain.problems())
    assert domain.at(3) == 0.1


@pytest.mark.parametrize("x", [1e308, -1e308])
def test_a_number_far_outside_of_steps_is_not_one_of_them(x: float) -> None:
    domain = Float(0.0, 1e-9, step=1e-10)
    assert domain.index_of(x) is None
    assert "outside" in domain.problem_with(x)


@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["above", "below"])
@pytest.mark.parametrize(
    "domain",
    [Int(1, 4), Int(1, 5, step=2), Float(0, 1), Float(0, 1, step=0.5), Float(1, 1)],
    ids=repr,
)
def test_a_whole_number_beyond_the_doubles_is_outside_of_every_range(
    domain: Float | Int, value: int
) -> None:
    assert not domain.contains(value)
    assert domain.index_of(value) is None
    assert f"{value} is outside" in domain.problem_with(value)
    assert space(x=domain).canonical({"x": value}) == {"x": value}, "it means no member"


@pytest.mark.parametrize("domain", [Float(0, 1, points=3), Float(1e-3, 1, LOG, points=5)])
def test_points_take_no_value_out_of_a_range(domain: Float) -> None:
    assert domain.count is None
    assert space(x=domain).point_problems({"x": 0.1}, partial=False) == ()
    assert space(x=domain).canonical({"x": 1}) == {"x": 1.0}
    assert "outside" in domain.problem_with(1.5)


@st.composite
def countable(draw: st.DrawFn) -> Float | Int | Choice:
    kind = draw(st.sampled_from(["step", "int", "choice"]))
    low, count = draw(st.integers(-1000, 1000)), draw(st.integers(2, 500))
    match kind:
        case "step":
            step = draw(st.sampled_from([0.1, 0.25, 1e-3, 7.0]))
            first = low / 8
            return Float(first, Float(first, first + 1, step=step)._stepped(count), step=step)
        case "int":
            step = draw(st.integers(1, 9))
            return Int(low, low + step * count, step=step)
    return Choice((True, 1, "1", 2.5, False, 0, ""))


@given(countable(), st.data())
@examples(100)
def test_a_countable_domain_finds_every_value_it_gives(
    domain: Float | Int | Choice, data: st.DataObject
) -> None:
    assert not list(domain.problems())
    assert domain.count is not None
    index = data.draw(st.integers(0, domain.count - 1))
    value = domain.at(index)
    assert domain.index_of(value) == index
    assert domain.canonical(value) == value
    assert domain.problem_with(value) == ""


def test_importing_the_space_loads_no_heavy_library() -> None:
    heavy = "{'numpy', 'optuna', 'grpc', 'sqlalchemy', 'asyncio', 'difflib'}"
    code = f"import sys, suggest.space, suggest.study; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
