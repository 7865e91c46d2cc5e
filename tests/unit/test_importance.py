"""Importances on functions with known important parameters, and their standard deviations."""

from __future__ import annotations

import dataclasses
import math
import random
import subprocess
import sys
from collections.abc import Callable

import pytest

from suggest.space import Choice, Condition, Float, Int, Parameter, Scale, Space, Value
from suggest.studies.importances import importances
from suggest.study import MIN_TRIALS_TO_RANK, Direction, Importance
from suggest.trial import Trial, TrialState
from tests.unit.searches import THOROUGH, seeds

UP, DOWN = Direction.MAXIMIZE, Direction.MINIMIZE

SPACE = Space(
    (
        Parameter("noise", Float(0, 1)),
        Parameter("lr", Float(1e-5, 1, Scale.LOG)),
        Parameter("width", Float(0, 1)),
        # about one trial for each value: means differ by chance
        Parameter("label", Choice(tuple(range(60)))),
        Parameter("kind", Choice((None, "b", [1]))),
        Parameter("constant", Int(3, 3)),
        Parameter("momentum", Float(0, 1), (Condition("kind", (None,)),)),
        Parameter("idle", Float(0, 1), (Condition("kind", (None,)),)),
    )
)


def drawn(rng: random.Random) -> dict[str, Value]:
    point: dict[str, Value] = {
        "noise": rng.random(),
        "lr": 10 ** (-5 * rng.random()),
        "width": rng.random(),
        "label": rng.randrange(60),
        "kind": rng.choice((None, "b", [1])),
        "constant": 3,
    }
    return point | (
        {"momentum": rng.random(), "idle": rng.random()} if point["kind"] is None else {}
    )


def score(point: dict[str, Value]) -> float:
    """A score in which lr matters most, then width, and nothing else."""
    lr, width = point["lr"], point["width"]
    assert isinstance(lr, float)
    assert isinstance(width, float)
    return -3 * ((math.log10(lr) + 2.5) / 2.5) ** 2 - 4 * (width - 0.7) ** 2


def conditional(point: dict[str, Value]) -> float:
    """A score that depends on momentum only; trials without momentum are mediocre."""
    momentum = point.get("momentum", 0.75)
    assert isinstance(momentum, float)
    return -4 * abs(momentum - 0.5)


def trials(
    count: int, seed: int, value: Callable[[dict[str, Value]], float] = score
) -> list[Trial]:
    rng = random.Random(seed)
    points = [drawn(rng) for _ in range(count)]
    return [
        Trial(n, TrialState.SUCCEEDED, p, value=value(p) + rng.gauss(0, 0.05))
        for n, p in enumerate(points)
    ]


def told(found: list[Importance]) -> dict[str, float]:
    return {one.name: one.value for one in found if one.value is not None}


@pytest.mark.parametrize("seed", seeds(5))
def test_important_parameters_are_found_and_others_are_within_chance(seed: int) -> None:
    found = importances(SPACE, trials(300, seed), direction=UP)
    values = told(found)
    assert next(iter(values)) == "lr"
    assert values["lr"] > values["width"] > values["noise"]
    assert sum(values.values()) == pytest.approx(1)
    assert "constant" not in {one.name for one in found}
    for one in found:
        assert one.value is not None
        assert one.spread is not None
        if one.name in ("noise", "label", "idle"):
            assert one.value < 0.1
            assert one.value < 2 * one.spread + 0.01
    lr = found[0]
    assert lr.value is not None
    assert lr.spread is not None
    assert 0 < lr.spread < lr.value


@pytest.mark.parametrize("seed", seeds(5))
def test_a_conditional_parameter_is_judged_by_the_trials_that_have_it(seed: int) -> None:
    found = importances(SPACE, trials(300, seed, conditional), direction=UP)
    values = told(found)
    assert set(list(values)[:2]) == {"momentum", "kind"}, "kind decides whether there is a momentum"
    assert values["momentum"] > 3 * values["idle"]
    assert 70 < next(one.trials for one in found if one.name == "momentum") < 130


@pytest.mark.parametrize("seed", seeds(3))
def test_smaller_values_may_be_better(seed: int) -> None:
    found = importances(SPACE, trials(200, seed, lambda point: -score(point)), direction=DOWN)
    assert found[0].name == "lr"


def test_more_trials_reduce_the_uncertainty_of_importance() -> None:
    few, many = (importances(SPACE, trials(count, 1), direction=UP)[0] for count in (60, 300))
    assert few.spread is not None
    assert many.spread is not None
    assert many.spread < few.spread


def test_a_parameter_with_too_few_trials_has_no_importance() -> None:
    found = {one.name: one for one in importances(SPACE, trials(20, 1), direction=UP)}
    momentum = found["momentum"]
    assert 0 < momentum.trials < MIN_TRIALS_TO_RANK
    assert (momentum.value, momentum.spread) == (None, None)
    assert found["lr"].value is not None


def test_a_few_trials_rank_nothing_and_import_nothing() -> None:
    few = trials(MIN_TRIALS_TO_RANK - 1, 1)
    failed = Trial(99, TrialState.FAILED, few[0].parameters)
    found = importances(SPACE, [*few, failed], direction=UP)
    assert {one.value for one in found} == {None}
    assert next(one.trials for one in found if one.name == "lr") == len(few)
    code = (
        "import sys, suggest.space, suggest.study; from suggest.studies.importances import "
        "importances; "
    )
    code += "importances(suggest.space.Space(()), [], direction=suggest.study.Direction.MAXIMIZE)"
    subprocess.run(
        [sys.executable, "-c", f"{code}; assert 'optuna' not in sys.modules"], check=True
    )


def test_trials_that_did_not_succeed_and_values_outside_of_the_space_count_for_nothing() -> None:
    sound = trials(100, 1)
    odd = [Trial(200 + n, TrialState.FAILED, {"lr": 0.1, "noise": 0.5}) for n in range(50)]
    odd += [Trial(300 + n, TrialState.INFEASIBLE, {"lr": 0.1}) for n in range(50)]
    odd += [
        Trial(400 + n, TrialState.PRUNED, {"lr": 0.1, "noise": 0.9}, value=math.nan)
        for n in range(50)
    ]
    assert importances(SPACE, [*sound, *odd], direction=UP) == importances(
        SPACE, sound, direction=UP
    )
    outside = [
        Trial(500 + n, TrialState.SUCCEEDED, {**sound[n].parameters, "lr": 50.0}, value=-9.0)
        for n in range(9)
    ]
    found = {one.name: one for one in importances(SPACE, [*sound, *outside], direction=UP)}
    assert (found["lr"].trials, found["width"].trials) == (100, 109)


def pruned(trial: Trial, step: int) -> Trial:
    return dataclasses.replace(trial, state=TrialState.PRUNED, step=step)


@pytest.mark.parametrize("seed", seeds(3))
def test_a_search_that_prunes_most_trials_ranks_its_parameters(seed: int) -> None:
    ranked = sorted(trials(150, seed), key=lambda trial: -(trial.value or 0))
    of = (
        ranked[:25]
        + [pruned(trial, 3) for trial in ranked[25:80]]
        + [pruned(trial, 1) for trial in ranked[80:]]
    )
    found = importances(SPACE, of, direction=UP)
    assert found[0].name == "lr"
    assert found[0].trials == 150


def test_a_pruned_trial_ranks_below_all_that_succeeded_whatever_its_value() -> None:
    sound = trials(40, 1)
    early = [
        Trial(100 + n, TrialState.PRUNED, t.parameters, value=0.1 * n, step=1)
        for n, t in enumerate(sound)
    ]
    high = [dataclasses.replace(trial, value=(trial.value or 0) + 1000) for trial in early]
    low = importances(SPACE, [*sound, *early], direction=UP)
    assert importances(SPACE, [*sound, *high], direction=UP) == low
    late = [dataclasses.replace(trial, step=9) for trial in early]
    assert importances(SPACE, [*sound, *late], direction=UP) == low, "only their order matters"


@pytest.mark.parametrize("seed", seeds(3))
def test_a_dozen_trials_say_how_uncertain_their_importances_are(seed: int) -> None:
    few = {one.name: one for one in importances(SPACE, trials(15, seed), direction=UP)}
    many = {one.name: one for one in importances(SPACE, trials(300, seed), direction=UP)}
    assert few["lr"].spread is not None
    assert many["lr"].spread is not None
    assert few["lr"].spread > 2 * many["lr"].spread


def test_equal_values_of_all_trials_rank_nothing() -> None:
    same = [Trial(t.number, t.state, t.parameters, value=1.0) for t in trials(100, 1)]
    assert {one.value for one in importances(SPACE, same, direction=UP)} == {None}
    two = [Trial(t.number, t.state, t.parameters, value=float(t.number == 7)) for t in same]
    assert importances(SPACE, two, direction=UP)


def test_the_same_trials_give_the_same_answer() -> None:
    of = trials(30, 1)
    assert importances(SPACE, of, direction=UP) == importances(SPACE, of, direction=UP)


def test_thousands_of_trials_and_many_parameters_are_sampled() -> None:
    count, width = (10_000, 100) if THOROUGH else (2000, 21)
    found = importances(SPACE, trials(count, 1), direction=UP)
    assert [found[0].name, found[0].trials] == ["lr", count]
    wide = Space(tuple(Parameter(f"p{k}", Float(0, 1)) for k in range(width)))
    rng = random.Random(1)
    points = [{f"p{k}": rng.random() for k in range(width)} for _ in range(200)]
    of = [
        Trial(n, TrialState.SUCCEEDED, point, value=-abs(point["p7"] - 0.3))
        for n, point in enumerate(points)
    ]
    assert importances(wide, of, direction=UP)[0].name == "p7"
