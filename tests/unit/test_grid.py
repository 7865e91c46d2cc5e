"""The numbering of a finite space, and which trial gets which point."""

import itertools
import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suggest.axis import EvenPoints
from suggest.engine import Engine, check_spec
from suggest.errors import FailedPrecondition
from suggest.grid import Grid, grid_points
from suggest.samplers.grid import grid_problems
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Scale, Space
from suggest.trial import Trial, TrialState
from tests.unit.searches import RUNNING, examples, finish, play, spaces, study, values_of


def every_point(space: Space) -> Iterator[Assignment]:
    """Return all points by brute force: the product of all values, without inactive ones."""
    columns = [values_of(p.domain) for p in space.parameters]
    for values in itertools.product(*columns):
        yield space.restricted({p.name: v for p, v in zip(space.parameters, values, strict=True)})


def frozen(point: Assignment) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in point.items()))


@given(spaces(finite=True, most=4))
@examples(60)
def test_the_grid_numbers_each_distinct_point_once(space: Space) -> None:
    grid = Grid(space, {})
    points = [grid.point(k) for k in range(grid.total)]
    assert sorted(map(frozen, points)) == sorted({frozen(p) for p in every_point(space)})
    assert [grid.index_of(p) for p in points] == list(range(grid.total))
    assert all(space.point_problems(p, partial=False) == () for p in points)


@given(spaces(finite=True, most=4), st.data())
@examples(60)
def test_a_fixed_part_leaves_the_points_that_agree_with_it(
    space: Space, data: st.DataObject
) -> None:
    whole = Grid(space, {})
    point = whole.point(data.draw(st.integers(0, whole.total - 1)))
    top = {n: v for n, v in point.items() if not space.by_name[n].when}
    fixed = {n: v for n, v in top.items() if data.draw(st.booleans())}
    part = Grid(space, fixed)
    agreeing = [
        p
        for p in (whole.point(k) for k in range(whole.total))
        if all(p.get(n) == fixed[n] for n in fixed)
    ]
    same_types = [p for p in agreeing if all(type(p[n]) is type(fixed[n]) for n in fixed)]
    assert [part.point(k) for k in range(part.total)] == same_types


def test_the_last_parameter_is_the_fastest() -> None:
    grid = Grid(Space((Parameter("a", Choice(("x", "y"))), Parameter("b", Int(1, 2)))), {})
    assert [tuple(grid.point(k).values()) for k in range(4)] == [
        ("x", 1),
        ("x", 2),
        ("y", 1),
        ("y", 2),
    ]


def test_a_huge_grid_costs_nothing() -> None:
    space = Space(tuple(Parameter(f"p{k}", Choice((False, True))) for k in range(30)))
    grid = Grid(space, {})
    assert grid.total == 2**30
    assert grid.index_of(grid.point(123_456_789)) == 123_456_789
    wide = Space(
        (Parameter("n", Int(0, 2**40)), Parameter("x", Int(0, 2**40), (Condition("n", (77,)),)))
    )
    assert Grid(wide, {}).total == 2**40 + 2**40 + 1


def test_many_parents_before_many_children_do_not_explode() -> None:
    parents = [Parameter(f"p{k}", Choice((False, True))) for k in range(40)]
    children = [Parameter(f"c{k}", Int(0, 2), (Condition(f"p{k}", (True,)),)) for k in range(40)]
    assert Grid(Space((*parents, *children)), {}).total == 4**40


def interlinked(parents: int, children: int, *, each: int, seed: int = 1) -> Space:
    """Return parents, and behind them children that each depend on several of them."""
    draw = random.Random(seed)
    switches = [Parameter(f"p{k}", Choice((False, True))) for k in range(parents)]
    dependents = []
    for k in range(children):
        names = [f"p{j}" for j in draw.sample(range(parents), each)]
        when = tuple(Condition(name, (draw.random() < 0.5,)) for name in names)
        dependents.append(Parameter(f"c{k}", Int(0, 2), when))
    return Space((*switches, *dependents))


@pytest.mark.parametrize("each", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_interlinked_conditions_are_counted_exactly(each: int, seed: int) -> None:
    space = interlinked(5, 4, each=each, seed=seed)
    grid = Grid(space, {})
    points = [frozen(grid.point(k)) for k in range(grid.total)]
    assert sorted(points) == sorted({frozen(p) for p in every_point(space)})


@pytest.mark.parametrize(
    ("parents", "children", "each"),
    [(60, 60, 1), (60, 60, 2), (30, 60, 2), (20, 30, 3), (60, 1, 60)],
)
def test_dozens_of_interlinked_conditions_are_counted(
    parents: int, children: int, each: int
) -> None:
    grid = Grid(interlinked(parents, children, each=each), {})
    assert grid.index_of(grid.point(grid.total - 1)) == grid.total - 1


def test_parents_that_are_far_apart_are_counted() -> None:
    parents = tuple(Parameter(f"p{k}", Choice((False, True))) for k in range(60))
    children = tuple(
        Parameter(
            f"c{k}", Int(0, 2), (Condition(f"p{k}", (True,)), Condition(f"p{k + 30}", (True,)))
        )
        for k in range(30)
    )
    assert Grid(Space((*parents, *children)), {}).total == 6**30


def test_thousands_of_parameters_are_counted() -> None:
    parents = [Parameter(f"p{k}", Choice((False, True))) for k in range(1500)]
    children = [Parameter(f"c{k}", Int(0, 2), (Condition(f"p{k}", (True,)),)) for k in range(1500)]
    assert Grid(Space((*parents, *children)), {}).total == 4**1500


def test_a_stored_grid_that_cannot_be_counted_any_more_says_so() -> None:
    with pytest.raises(FailedPrecondition, match="make parameters depend on fewer others"):
        Engine(study(interlinked(60, 60, each=6), "grid"), (), ())


def test_conditions_that_cannot_be_counted_refuse_a_grid() -> None:
    space = interlinked(60, 60, each=6)
    assert grid_points(space) is None
    (problem,) = check_spec(study(space, "grid").spec)
    assert problem.message.endswith("make parameters depend on fewer others, or use random")


SIX = Space((Parameter("a", Choice(("x", "y"))), Parameter("b", Int(1, 3))))


def everything(engine: Engine) -> list[tuple[object, ...]]:
    return [tuple(t.parameters.values()) for t in play(engine, 100)]


def test_the_grid_ends_exactly_and_says_so() -> None:
    engine = Engine(study(SIX, "grid"), (), ())
    assert len(play(engine, 4)) == 4
    proposal = engine.propose(5)
    assert [tuple(p.parameters.values()) for p in proposal.trials] == [("y", 2), ("y", 3)]
    assert proposal.exhausted
    play(engine, 2)
    assert engine.propose(1) == type(proposal)((), exhausted=True)


def test_enqueued_and_imported_points_are_not_handed_out_again() -> None:
    engine = Engine(study(SIX, "grid"), (), ())
    engine.put(Trial(0, TrialState.SUCCEEDED, {"a": "x", "b": 2}, value=1.0))
    engine.put(Trial(1, TrialState.QUEUED, {"a": "y"}))
    assert everything(engine) == [("y", 1), ("x", 1), ("x", 3), ("y", 2), ("y", 3)]


def test_only_a_cancelled_trial_gives_its_point_back() -> None:
    engine = Engine(study(SIX, "grid"), (), ())
    first, second, third = play(engine, 3)
    finish(engine, [first], TrialState.FAILED)
    finish(engine, [second, third], TrialState.CANCELLED)
    assert everything(engine) == [("x", 2), ("x", 3), ("y", 1), ("y", 2), ("y", 3)]


def test_a_part_whose_points_are_all_taken_is_run_again_for_the_person_asked() -> None:
    engine = Engine(study(SIX, "grid"), (), ())
    play(engine, 6)
    engine.put(Trial(6, TrialState.QUEUED, {"a": "y"}))
    proposal = engine.propose(2)
    assert [p.parameters for p in proposal.trials] == [{"a": "y", "b": 1}]
    assert proposal.exhausted


@given(
    spaces(finite=True, most=3),
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(list(TrialState))), max_size=8),
)
@examples(60)
def test_a_rebuilt_grid_continues_where_the_lost_one_was(
    space: Space, turns: list[tuple[int, TrialState]]
) -> None:
    engine = Engine(study(space, "grid"), (), ())
    for count, state in turns:
        finish(engine, play(engine, count)[:2], RUNNING if state is TrialState.QUEUED else state)
    rebuilt = Engine(study(space, "grid"), engine.trials(), ())
    assert rebuilt.propose(5) == engine.propose(5)
    play(engine, 10_000)
    held = [frozen(t.parameters) for t in engine.trials() if t.state is not TrialState.CANCELLED]
    assert len(held) == len(set(held)) == Grid(space, {}).total


RATES = Space(
    (Parameter("lr", Float(1e-3, 1, Scale.LOG, points=4)), Parameter("a", Choice(("x", "y"))))
)
WHOLE, COUNT = st.integers(-1000, 1000), st.integers(2, 500)


def test_points_are_rounded_as_a_person_would_write_them() -> None:
    assert values_of(Float(1e-3, 1, Scale.LOG, points=4)) == [0.001, 0.01, 0.1, 1.0]
    assert values_of(Float(0, 1, points=3)) == [0.0, 0.5, 1.0]
    assert values_of(Float(1, 1, points=1)) == [1.0]


@given(
    st.one_of(
        st.builds(
            lambda k, width, n: EvenPoints(k / 8, k / 8 + width, Scale.LINEAR, n),
            WHOLE,
            st.floats(1e-3, 1e6),
            COUNT,
        ),
        st.builds(
            lambda low, high, n: EvenPoints(low, high, Scale.LOG, n),
            st.floats(1e-9, 1),
            st.floats(2, 1e9),
            COUNT,
        ),
    ),
    st.data(),
)
@examples(100)
def test_an_axis_finds_every_point_it_gives_and_none_between(
    axis: EvenPoints, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, axis.count - 2))
    here, beyond = axis.at(index), axis.at(index + 1)
    assert axis.index_of(here) == index
    assert axis.index_of((here + beyond) / 2) is None
    assert [
        axis.index_of(x) for x in (axis.low - 1e-3, axis.high * 2 + 1e6, float("nan"), True, "1")
    ] == [None] * 5


def test_points_of_the_widest_range_are_in_it() -> None:
    assert values_of(Float(-8e307, 8e307, points=5)) == [-8e307, -4e307, 0.0, 4e307, 8e307]


@pytest.mark.parametrize(
    "domain",
    [
        Float(1.0, 1.0 + 2**-50, points=5),
        Float(1e15, 1e15 + 1, points=9),
        Float(1e300, math.nextafter(1e300, math.inf), Scale.LOG, points=2),
        Float(5e-324, 1.0, Scale.LOG, points=5000),
    ],
)
def test_points_as_close_as_rounding_errors_are_refused(domain: Float) -> None:
    (problem,) = grid_problems(study(Space((Parameter("x", domain),)), "grid").spec)
    assert problem.path == "x.points"
    assert "as close as rounding errors; use fewer, or a wider range" in problem.message


def test_a_point_off_the_grid_is_an_extra_trial() -> None:
    engine = Engine(study(RATES, "grid"), (), ())
    engine.put(Trial(0, TrialState.SUCCEEDED, {"lr": 0.5, "a": "x"}, value=1.0))
    engine.put(Trial(1, TrialState.QUEUED, {"lr": 0.02}))
    whole = [(lr, a) for lr in (0.001, 0.01, 0.1, 1.0) for a in ("x", "y")]
    assert everything(engine) == [(0.02, "x"), *whole]


def test_a_value_that_is_a_point_but_for_rounding_holds_it() -> None:
    engine = Engine(study(RATES, "grid"), (), ())
    near = 0.1 * (1 + 1e-14)
    engine.put(Trial(0, TrialState.SUCCEEDED, {"lr": near, "a": "x"}, value=1.0))
    engine.put(Trial(1, TrialState.QUEUED, {"lr": near}))
    assert everything(engine) == [
        (near, "y"),
        *((lr, a) for lr in (0.001, 0.01, 1.0) for a in ("x", "y")),
    ]


def test_a_part_off_a_huge_grid_is_completed_at_once() -> None:
    wide = Space((Parameter("lr", Float(0, 1, points=5)), Parameter("n", Int(0, 2**40))))
    engine = Engine(study(wide, "grid"), (), ())
    engine.put(Trial(0, TrialState.QUEUED, {"lr": 0.3}))
    assert [dict(t.parameters) for t in play(engine, 2)] == [
        {"lr": 0.3, "n": 0},
        {"lr": 0.0, "n": 0},
    ]


def test_a_condition_on_a_float_holds_where_the_grid_meets_its_value() -> None:
    child = Parameter("c", Int(1, 2), (Condition("x", (0.5, 0.7)),))
    grid = Grid(Space((Parameter("x", Float(0, 1, points=3)), child)), {})
    assert [grid.point(k) for k in range(grid.total)] == [
        {"x": 0.0},
        {"x": 0.5, "c": 1},
        {"x": 0.5, "c": 2},
        {"x": 1.0},
    ]
    fixed = Grid(Space((Parameter("x", Float(0, 1, points=3)), child)), {"x": 0.7})
    assert [fixed.point(k) for k in range(fixed.total)] == [{"x": 0.7, "c": 1}, {"x": 0.7, "c": 2}]


def test_a_continuous_parameter_is_refused() -> None:
    space = Space(
        (Parameter("lr", Float(0, 1)), Parameter("b", Int(1, 3)), Parameter("c", Float(1, 1)))
    )
    (problem,) = check_spec(study(space, "grid").spec)
    assert problem.path == "space.lr"
    assert "points or step" in problem.message


def test_a_batch_goes_in_order() -> None:
    space = Space((Parameter("a", Int(1, 100_000)),))
    engine = Engine(study(space, "grid"), (), ())
    assert [t.parameters["a"] for t in play(engine, 64)] == list(range(1, 65))
