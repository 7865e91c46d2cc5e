"""Population based training: who continues from whom, with which parameters;
the search never waits in vain.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suggest.engine import Engine, check_spec
from suggest.samplers.pbt import inherited, perturbed
from suggest.space import (
    Assignment,
    Choice,
    Condition,
    Domain,
    Float,
    Int,
    Normal,
    Parameter,
    Scale,
    Space,
    Value,
)
from suggest.study import Fidelity, Study
from suggest.trial import IMPORTED_FROM, Trial, TrialState
from tests.unit.searches import MINIMIZE, QUEUED, RUNNING, SUCCEEDED, TREE, examples, play, study

FAILED, CANCELLED, PRUNED, INFEASIBLE = (
    TrialState.FAILED,
    TrialState.CANCELLED,
    TrialState.PRUNED,
    TrialState.INFEASIBLE,
)
SPACE = Space((Parameter("lr", Float(1e-4, 1, Scale.LOG)), Parameter("layers", Int(1, 12))))


def a_study(
    population: int = 4, truncation: float = 0.25, *, space: Space = SPACE, seed: int = 7
) -> Study:
    return study(
        space, "pbt", config={"population": population, "truncation": truncation}, seed=seed
    )


def end(engine: Engine, trial: Trial, value: float | None, state: TrialState = SUCCEEDED) -> None:
    engine.put(replace(trial, state=state, value=value))


def first_generation(engine: Engine, *values: float) -> None:
    for trial, value in zip(play(engine, len(values)), values, strict=True):
        end(engine, trial, value)


def test_trials_go_on_with_their_parameters_and_the_worst_is_replaced_by_the_best() -> None:
    engine = Engine(a_study(), (), ())
    first_generation(engine, 0.5, 0.9, 0.1, 0.7)
    children = play(engine, 4)
    assert [child.parent for child in children] == [1, 3, 0, 1]
    for child in children[:3]:
        assert child.parent is not None
        assert child.parameters == engine.trial(child.parent).parameters
    assert children[3].parameters != engine.trial(1).parameters


def test_trials_continue_from_others_whatever_the_distribution_of_a_parameter() -> None:
    normal = Float(0.0, 1.0, normal=Normal(0.5, 0.2))
    engine = Engine(
        a_study(space=Space((Parameter("dropout", normal), Parameter("layers", Int(1, 12))))),
        (),
        (),
    )
    first_generation(engine, 0.5, 0.9, 0.1, 0.7)
    assert [child.parent for child in play(engine, 4)] == [1, 3, 0, 1]


def test_minimized_values_are_ranked_the_other_way_round() -> None:
    made = study(SPACE, "pbt", config={"population": 4, "truncation": 0.25}, direction=MINIMIZE)
    engine = Engine(made, (), ())
    first_generation(engine, 0.5, 0.9, 0.1, 0.7)
    assert [child.parent for child in play(engine, 4)] == [2, 0, 3, 2]


def test_a_share_below_one_trial_replaces_the_worst_of_a_whole_generation() -> None:
    small = study(SPACE, "pbt", config={"population": 3, "truncation": 0.2})
    engine = Engine(small, (), ())
    first_generation(engine, 0.5, 0.9, 0.1)
    assert [child.parent for child in play(engine, 3)] == [1, 0, 1]
    unchanged = Engine(study(SPACE, "pbt", config={"population": 3, "truncation": 0.0}), (), ())
    first_generation(unchanged, 0.5, 0.9, 0.1)
    assert [child.parent for child in play(unchanged, 3)] == [1, 0, 2]


def test_a_generation_begins_when_half_of_the_one_before_has_a_value() -> None:
    engine = Engine(a_study(), (), ())
    first, second, third, fourth = play(engine, 4)
    assert engine.propose(1) == type(engine.propose(1))((), exhausted=False, waiting=True)
    end(engine, first, 0.5)
    assert engine.propose(1).waiting
    end(engine, second, 0.7)
    proposal = engine.propose(3)
    assert [one.parent for one in proposal.trials] == [1, 0]
    assert proposal.waiting
    play(engine, 2)
    end(engine, third, 0.1)
    end(engine, fourth, 0.2)
    assert [one.parent for one in engine.propose(2).trials] == [3, 1]


@pytest.mark.parametrize("state", [FAILED, INFEASIBLE, PRUNED, CANCELLED])
def test_a_trial_that_ends_without_a_value_is_replaced(state: TrialState) -> None:
    engine = Engine(a_study(), (), ())
    trials = play(engine, 4)
    end(engine, trials[0], None, state)
    (another,) = play(engine, 1)
    assert (another.parent, another.number) == (None, 4)
    for trial in [*trials[1:], another]:
        end(engine, trial, float(trial.number))
    children = play(engine, 4)
    assert [child.parent for child in children] == [4, 3, 2, 4]
    end(engine, children[1], None, state)
    (another,) = play(engine, 1)
    # What was cancelled did not happen; what failed is replaced by a trial with other parameters.
    assert another.parent == (3 if state is CANCELLED else 4)


def test_nan_is_never_a_parent() -> None:
    engine = Engine(a_study(), (), ())
    first_generation(engine, 0.5, math.nan, 0.1, math.inf)
    assert [t.parent for t in play(engine, 2)] == [None, None]


def test_added_points_are_members_and_imported_trials_are_not() -> None:
    imported = Trial(
        0, SUCCEEDED, {"lr": 0.1, "layers": 2}, value=9.0, labels={IMPORTED_FROM: "csv"}
    )
    engine = Engine(a_study(), [imported, Trial(1, QUEUED, {"layers": 3})], ())
    members = play(engine, 4)
    assert [(t.number, t.parent) for t in members] == [(1, None), (2, None), (3, None), (4, None)]
    assert members[0].parameters["layers"] == 3
    for trial in members:
        end(engine, trial, float(trial.number))
    assert {t.parent for t in play(engine, 4)} == {2, 3, 4}


def test_a_study_whose_trials_all_fail_goes_on_with_new_points() -> None:
    engine = Engine(a_study(), (), ())
    for _ in range(20):
        (trial,) = play(engine, 1)
        assert trial.parent is None
        end(engine, trial, None, FAILED)


@given(
    population=st.integers(2, 7),
    truncation=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
    parallelism=st.integers(1, 9),
    outcomes=st.lists(
        st.tuples(
            st.sampled_from([SUCCEEDED] * 4 + [FAILED, PRUNED, INFEASIBLE, CANCELLED]),
            st.integers(0, 5),
        ),
        min_size=40,
        max_size=40,
    ),
    order=st.randoms(use_true_random=False),
)
@examples(60)
def test_a_search_goes_on_whatever_happens_and_a_restart_changes_nothing(
    population: int,
    truncation: float,
    parallelism: int,
    outcomes: list[tuple[TrialState, int]],
    order: random.Random,
) -> None:
    made = a_study(population, truncation)
    engine = Engine(made, (), ())
    running: list[Trial] = []
    for state, value in outcomes:
        begun = play(engine, parallelism - len(running))
        running += begun
        assert running, "it waits for nothing"
        waits = len(running) < parallelism
        proposal = engine.propose(1)
        assert proposal.waiting == (not proposal.trials)
        assert proposal.waiting or not waits
        shuffled = list(engine.trials())
        order.shuffle(shuffled)
        assert Engine(made, shuffled, ()).propose(2) == engine.propose(2)
        trial = running.pop(order.randrange(len(running)))
        end(engine, trial, float(value) if state is SUCCEEDED else None, state)
    known = {trial.number: trial for trial in engine.trials()}
    for trial in known.values():
        if trial.parent is not None:
            assert trial.parent < trial.number
            assert known[trial.parent].state is SUCCEEDED
    generations: Counter[int] = Counter()
    depth: dict[int, int] = {}
    for number, trial in sorted(known.items()):
        depth[number] = 0 if trial.parent is None else depth[trial.parent] + 1
        if trial.state in (RUNNING, SUCCEEDED):
            generations[depth[number]] += 1
    assert max(generations.values(), default=0) <= population


def test_a_parent_that_was_deleted_keeps_its_place() -> None:
    engine = Engine(a_study(), (), ())
    first_generation(engine, 0.5, 0.9, 0.1, 0.7)
    for child in play(engine, 4):
        end(engine, child, 1.0)
    before = list(engine.trials())
    gone = [replace(t, state=CANCELLED, value=None) if t.number == 1 else t for t in before]
    assert engine.propose(1).trials[0].parent in range(4, 8)
    assert Engine(a_study(), gone, ()).propose(1).trials[0].parent in (None, *range(4, 8))


def test_other_seeds_make_other_searches() -> None:
    assert Engine(a_study(seed=1), (), ()).propose(4) != Engine(a_study(seed=2), (), ()).propose(4)


@pytest.mark.parametrize(
    ("domain", "value", "possible"),
    [
        (Float(0, 1), 0.5, {0.4, 0.6}),
        (Float(1e-4, 1, Scale.LOG), 0.1, {0.1 * 0.8, 0.1 * 1.2}),
        (Float(0, 1), 1.0, {0.8}),
        (Float(-2, 2), -1.0, {-0.8, -1.2}),
        (Float(0, 1, step=0.1), 0.1, {0.0, 0.2}),
        (Float(0, 1, step=0.1), 0.5, {0.4, 0.6}),
        (Int(1, 100), 50, {40, 60}),
        (Int(1, 8), 1, {2}),
        (Int(1, 8), 2, {1, 3}),
        (Int(0, 64, step=8), 64, {48}),
        (Int(1, 10**6, Scale.LOG), 1000, {800, 1200}),
        (Int(1, 10**6, Scale.LOG), 2, {1, 3}),
        (Choice((16, 64, 32)), 32, {16, 64}),
        (Choice((16, 64, 32)), 64, {32}),
        (Choice(("relu", "tanh")), "relu", {"relu"}),
        (Choice((1, "1")), 1, {1}),
        (Choice((True, False)), True, {True}),
        (Float(2, 2), 2.0, {2.0}),
    ],
    ids=str,
)
def test_numbers_are_perturbed_to_neighbors_on_both_sides(
    domain: Domain, value: Value, possible: set[Value]
) -> None:
    found = {perturbed(domain, value, random.Random(seed)) for seed in range(40)}
    assert found == possible


def test_zero_which_no_factor_changes_is_drawn_again() -> None:
    assert len({perturbed(Float(0, 1), 0.0, random.Random(seed)) for seed in range(9)}) == 9


def test_conditions_hold_after_a_choice_has_changed() -> None:
    kept: set[bool] = set()
    for seed in range(60):
        parent: Assignment = {"optimizer": "adam", "lr": 0.1}
        child = inherited(TREE, parent, random.Random(seed), resample_probability=0.5)
        assert TREE.point_problems(child, partial=False) == ()
        kept.add("momentum" in child)
    assert kept == {True, False}


def test_parameters_are_drawn_again_as_often_as_asked() -> None:
    space = Space((Parameter("x", Float(1, 1000)),))
    moved = [
        inherited(space, {"x": 100.0}, random.Random(k), resample_probability=0.25)["x"]
        for k in range(400)
    ]
    assert 60 <= sum(x not in (80.0, 120.0) for x in moved) <= 140


def test_a_parameter_that_the_space_has_gained_is_drawn() -> None:
    grown = Space((*SPACE.parameters, Parameter("dropout", Float(0, 1))))
    child = inherited(grown, {"lr": 0.1, "layers": 3}, random.Random(1), resample_probability=None)
    assert (child["lr"], child["layers"]) == (0.1, 3)
    assert 0 <= float(child["dropout"]) <= 1  # type: ignore[arg-type]


def test_a_value_that_the_condition_hides_is_not_inherited() -> None:
    space = Space(
        (
            Parameter("kind", Choice(("a", "b"))),
            Parameter("x", Float(0, 1), (Condition("kind", ("b",)),)),
        )
    )
    assert inherited(space, {"kind": "a"}, random.Random(1), resample_probability=None) == {
        "kind": "a"
    }


def test_a_fidelity_and_several_objectives_are_refused() -> None:
    made = a_study().spec
    (problem,) = check_spec(replace(made, fidelity=Fidelity("epochs", 1, 9)))
    assert (problem.path, "generations" in problem.message) == ("fidelity", True)
    several = replace(made, objectives=(made.objective, replace(made.objective, metric="loss")))
    assert [p.path for p in check_spec(several)] == ["algorithm.name"]
