"""`gp` where conditions make branches: every fourth point is in a branch that the best trial is not
in.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest

from suggest.engine import Engine
from suggest.proposal import PointRequest
from suggest.samplers.gp import GpSettings
from suggest.samplers.gp_branches import FIRST, BranchesModel, branches
from suggest.samplers.gp_scales import ScalesModel
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Space
from suggest.trial import Trial, TrialState
from tests.unit.searches import MINIMIZE, finish, play, seeds, study


def when(name: str, *values: str | list[int]) -> tuple[Condition, ...]:
    return (Condition(name, values),)


SPACE = Space(
    (
        Parameter("model", Choice(("constant", "trees", "net"))),
        Parameter("depth", Float(0, 1), when("model", "trees")),
        Parameter("booster", Choice(("plain", "dart")), when("model", "trees")),
        Parameter("dropped", Float(0, 1), when("booster", "dart")),
        *(Parameter(f"x{k}", Float(0, 1), when("model", "net")) for k in range(4)),
    )
)


def tuned_late(p: Assignment) -> float:
    """The network is the best, but only where four numbers are right."""
    if p["model"] == "constant":
        return 0.2
    if p["model"] == "trees":
        return 0.1 + (float(p["depth"]) - 0.3) ** 2
    return sum(9 * (float(p[f"x{k}"]) - 0.15 - 0.2 * k) ** 2 for k in range(4))


def searched(
    loss: Callable[[Assignment], float | None], seed: int, trials: int, space: Space = SPACE
) -> Engine:
    engine = Engine(study(space, "gp", direction=MINIMIZE, seed=seed), (), ())
    for _ in range(trials):
        (trial,) = play(engine, 1)
        value = loss(trial.parameters)
        state = TrialState.FAILED if value is None else TrialState.SUCCEEDED
        finish(engine, [trial], state, value=value)
    return engine


def test_a_branch_is_a_value_that_conditions_name_with_the_parents_that_it_needs() -> None:
    found = [[(one.parameter, one.values) for one in branch] for branch in branches(SPACE)]
    assert found == [
        [("model", ("trees",))],
        [("booster", ("dart",)), ("model", ("trees",))],
        [("model", ("net",))],
    ]


def test_a_value_that_several_conditions_name_is_one_branch() -> None:
    layers = Choice(([1], [2, 2], True, 1))
    space = Space(
        (
            Parameter("layers", layers),
            Parameter("a", Float(0, 1), (Condition("layers", ([2, 2], True)),)),
            Parameter("b", Float(0, 1), (Condition("layers", ([2, 2], 1)),)),
        )
    )
    assert [branch[0].values for branch in branches(space)] == [([2, 2],), (True,), (1,)]


def test_every_fourth_point_is_in_another_branch_in_turn() -> None:
    engine = searched(lambda p: float(p.get("booster") != "dart"), 1, 120)
    models = [trial.parameters["model"] for trial in engine.trials()]
    assert models[FIRST + 1 :: 4] == ["net"] * 20
    best = [trial.parameters for trial in engine.trials() if trial.value == 0.0]
    assert len(best) > 60


def test_a_branch_whose_numbers_must_be_tuned_is_found() -> None:
    found = [
        min(trial.value or 0.0 for trial in searched(tuned_late, seed, 120).trials())
        for seed in seeds(3)
    ]
    assert statistics.median(found) < 0.01, "0.2 is that of the constant"


def test_a_branch_without_points_that_are_left_is_not_tried_again() -> None:
    space = Space(
        (
            Parameter("model", Choice(("net", "trees"))),
            Parameter("lr", Float(0, 1), when("model", "net")),
            Parameter("trees", Int(1, 3), when("model", "trees")),
        )
    )
    engine = searched(lambda p: float(p.get("lr", 5)), 1, 70, space)
    tried = [trial for trial in engine.trials() if "trees" in trial.parameters]
    assert {trial.parameters["trees"] for trial in tried} == {1, 2, 3}
    assert max(trial.number for trial in tried) < FIRST + 12


def test_a_branch_in_which_all_trials_fail_is_not_tried_again() -> None:
    def loss(p: Assignment) -> float | None:
        return None if p["model"] == "net" else 0.1 + float(p.get("depth", 0))

    engine = searched(loss, 1, 100)
    failed = [trial.number for trial in engine.trials() if trial.state is TrialState.FAILED]
    assert len(failed) >= 3
    assert max(failed) < FIRST + 12


def test_values_that_a_person_fixed_come_first() -> None:
    engine = searched(tuned_late, 1, FIRST)
    model = BranchesModel(engine.study.spec, 1, GpSettings())
    trials = list(engine.trials())
    (point,) = model.propose(trials, [], [PointRequest(FIRST + 1, {"model": "constant"})])
    assert point == {"model": "constant"}
    (point,) = model.propose(trials, [], [PointRequest(FIRST + 5, {"x1": 0.25})])
    assert point.get("x1", 0.25) == 0.25


def test_a_rebuilt_engine_proposes_the_same_in_branches() -> None:
    engine = searched(tuned_late, 1, FIRST + 8)
    assert engine.propose(8) == Engine(engine.study, engine.trials(), ()).propose(8)


@pytest.mark.parametrize("prefix", [FIRST, 5])
def test_other_points_are_those_of_the_whole_space(prefix: int) -> None:
    engine = searched(tuned_late, 1, prefix)
    spec, trials = engine.study.spec, list(engine.trials())
    wanted = [PointRequest(number, {}) for number in (prefix, prefix + 2, prefix + 3)]
    running = [Trial(prefix - 1, TrialState.RUNNING, {"model": "constant"})]
    found = BranchesModel(spec, 1, GpSettings()).propose(trials[:-1], running, wanted)
    assert found == ScalesModel(spec, 1, GpSettings()).propose(trials[:-1], running, wanted)
