"""Our pruning rules and Optuna's pruners on the same drawn histories:
the same verdicts, or a stated difference.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from random import Random

import optuna
import pytest

from suggest.curves import Curve, TrialCurve
from suggest.pruners import new_pruner, rules
from suggest.pruners.hyperband import HASHED
from suggest.pruners.optuna_rules import CLASSES
from suggest.space import Value
from suggest.study import Objective, Pruning
from suggest.trial import TrialState
from tests.unit.pruning_histories import ODD, learning_curve
from tests.unit.searches import MAXIMIZE, MINIMIZE, RUNNING, SUCCEEDED, drawn

optuna.logging.set_verbosity(optuna.logging.WARNING)
pytestmark = [
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
HISTORIES = drawn(200)


def verdicts(
    ours: Pruning,
    theirs: optuna.pruners.BasePruner,
    seed: int,
    *,
    odd: float = 0.0,
    value: Callable[[list[float]], float] = lambda values: values[-1],
) -> Iterator[tuple[bool, bool]]:
    """Ours and theirs after each report of a history: eight trials of ten steps, three at a time.

    Both are told to stop only where both agree, so that they see the same history.
    """
    draw = Random(seed)
    direction = draw.choice([MAXIMIZE, MINIMIZE])
    sign = -direction.sign
    pruner = new_pruner(ours, Objective("accuracy", direction))
    study = optuna.create_study(study_name=HASHED, direction=direction.value, pruner=theirs)
    running: dict[int, tuple[optuna.Trial, TrialCurve, list[float]]] = {}
    number = 0
    while number < 8 or running:
        while number < 8 and len(running) < 3:
            values = [
                draw.choice(ODD) if draw.random() < odd else sign * v
                for v in learning_curve(draw, 10)
            ]
            running[number] = study.ask(), TrialCurve(number, RUNNING, Curve()), values
            number += 1
        which = draw.choice(sorted(running))
        trial, seen, values = running[which]
        step = len(seen.curve.steps)
        seen.curve.add(step, values[step])
        trial.report(values[step], step)
        pruner.put(seen)
        stop = trial.should_prune()
        verdict = pruner.judge(seen, before=step - 1 if step else None).should_stop, stop
        yield verdict
        if all(verdict) or step == 9:
            del running[which]
            state, theirs_state = (
                (TrialState.PRUNED, optuna.trial.TrialState.PRUNED)
                if all(verdict)
                else (SUCCEEDED, optuna.trial.TrialState.COMPLETE)
            )
            worth = value(list(seen.curve.values))
            if state is SUCCEEDED and not math.isfinite(worth):
                # A failed one would count for Optuna's halving, and for nothing here.
                state, theirs_state = TrialState.PRUNED, optuna.trial.TrialState.PRUNED
            study.tell(trial, worth if state is SUCCEEDED else None, theirs_state)
            pruner.put(TrialCurve(which, state, seen.curve, worth if state is SUCCEEDED else None))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize(
    ("name", "settings", "theirs", "odd"),
    [
        (
            "percentile",
            {"percentile": 30, "minTrials": 2, "warmupSteps": 1, "interval": 2},
            lambda: optuna.pruners.PercentilePruner(30, 2, 1, 2, n_min_trials=2),
            0.0,
        ),
        # Except for infinite peers, for which numpy.percentile returns NaN.
        (
            "percentile",
            {"percentile": 70, "minTrials": 1},
            lambda: optuna.pruners.PercentilePruner(70, 1),
            0.0,
        ),
        ("asha", {}, lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=1), 0.1),
        (
            "asha",
            {"minSteps": 2, "eta": 2},
            lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=2),
            0.0,
        ),
        (
            "hyperband",
            {"maxSteps": 10, "eta": 2},
            lambda: optuna.pruners.HyperbandPruner(max_resource=10, reduction_factor=2),
            0.05,
        ),
        ("hyperband", {"maxSteps": 9}, lambda: optuna.pruners.HyperbandPruner(max_resource=9), 0.0),
        (
            "threshold",
            {"lower": -0.6, "upper": 0.8, "warmupSteps": 2, "interval": 3},
            lambda: optuna.pruners.ThresholdPruner(-0.6, 0.8, 2, 3),
            0.1,
        ),
        (
            "patient",
            {"patience": 2, "minDelta": 0.01},
            lambda: optuna.pruners.PatientPruner(None, 2, 0.01),
            0.0,
        ),
        ("patient", {"patience": 0}, lambda: optuna.pruners.PatientPruner(None, 0), 0.0),
        (
            "patient",
            {"patience": 1, "rule": "median", "minTrials": 1},
            lambda: optuna.pruners.PatientPruner(optuna.pruners.MedianPruner(1), 1),
            0.0,
        ),
    ],
)
def test_a_pruner_decides_as_optunas_does(
    name: str,
    settings: dict[str, Value],
    theirs: Callable[[], optuna.pruners.BasePruner],
    odd: float,
) -> None:
    stopped = 0
    for seed in range(HISTORIES):
        for step, (ours, their) in enumerate(
            verdicts(Pruning(name, settings), theirs(), seed, odd=odd)
        ):
            assert ours == their, (seed, step)
            stopped += ours
    assert stopped > HISTORIES / 10


@pytest.mark.parametrize(
    ("name", "settings", "theirs"),
    [
        ("nop", {}, optuna.pruners.NopPruner),
        ("median", {"nStartupTrials": 1}, lambda: optuna.pruners.MedianPruner(1)),
        ("percentile", {"nStartupTrials": 1}, lambda: optuna.pruners.PercentilePruner(25.0, 1)),
        ("successive-halving", {}, optuna.pruners.SuccessiveHalvingPruner),
        (
            "successive-halving",
            {"minResource": 1},
            lambda: optuna.pruners.SuccessiveHalvingPruner(1),
        ),
        (
            "hyperband",
            {"reductionFactor": 2},
            lambda: optuna.pruners.HyperbandPruner(reduction_factor=2),
        ),
        ("threshold", {"lower": -0.5}, lambda: optuna.pruners.ThresholdPruner(-0.5)),
        ("patient", {"patience": 1}, lambda: optuna.pruners.PatientPruner(None, 1)),
        (
            "patient",
            {"patience": 1, "wrappedPruner": "median"},
            lambda: optuna.pruners.PatientPruner(optuna.pruners.MedianPruner(), 1),
        ),
        ("wilcoxon", {"pThreshold": 0.2}, lambda: optuna.pruners.WilcoxonPruner(p_threshold=0.2)),
    ],
)
def test_optunas_pruner_decides_here_as_in_optuna(
    name: str, settings: dict[str, Value], theirs: Callable[[], optuna.pruners.BasePruner]
) -> None:
    for seed in range(HISTORIES // 4):
        for step, (ours, their) in enumerate(
            verdicts(Pruning(f"optuna:{name}", settings), theirs(), seed, odd=0.05, value=mean)
        ):
            assert ours == their, (seed, step)


def test_every_pruner_of_optuna_is_there_with_every_argument_and_its_default() -> None:
    own = dict(CLASSES.values())
    assert set(own) == set(optuna.pruners.__all__) - {"BasePruner"}
    for class_name, settings in own.items():
        arguments = settings().arguments
        signature = inspect.signature(getattr(optuna.pruners, class_name)).parameters
        assert set(arguments) == {
            n for n, p in signature.items() if p.kind is not p.VAR_KEYWORD and n != "args"
        }
        for name, argument in arguments.items():
            default = signature[name].default
            if default is not inspect.Parameter.empty and default is not None:
                assert argument == default, (class_name, name)


def test_a_restart_asks_optunas_pruner_again_about_its_window() -> None:
    draw = Random(2)
    pruner = new_pruner(
        Pruning("optuna:successive-halving", {"window": 10}), Objective("accuracy", MAXIMIZE)
    )
    for number in range(50):
        values = learning_curve(draw, 16)
        pruner.put(TrialCurve(number, SUCCEEDED, Curve(list(enumerate(values))), values[-1]))
    own = TrialCurve(50, RUNNING, Curve(list(enumerate([0.0] * 5))))
    pruner.put(own)
    advice = pruner.judge(own, before=None)
    assert advice.should_stop
    assert advice.reason == (
        "accuracy 0 at step 1 is not enough for Optuna's SuccessiveHalvingPruner, which compared "
        "11 trials"
    )


def test_every_pruner_name_of_optuna_is_registered() -> None:
    assert {f"optuna:{name}" for name in CLASSES} <= {rule.name for rule in rules()}
