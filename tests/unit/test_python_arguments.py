"""Wrong arguments of the Python API are named as they were written, before a search begins."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tuner
from suggest.errors import InvalidArgument

X = {"x": tuner.Float(0, 1)}
COUNT = "expected a whole number of at least 1, got"
DURATION = "is not a duration; write 90s, 30m, 6h, 1h30m or 1d"
BOUNDS = "expected a dict of metrics to bounds, such as {'latency_ms': {'max': 20}}, got"
RULE = "expected the name of a rule, such as 'median', or a dict with its name and settings, got"
TYPES: dict[str, type[Exception]] = {"file": tuner.TunerError, "type": TypeError}


def objective(trial: tuner.Trial) -> float:
    raise AssertionError("no trial starts")


def refusal(
    kind: type[Exception], folder: Path, parameters: Any = X, objectives: Any = None, **options: Any
) -> str:  # Any: wrong types are what this is about
    options |= {"state_dir": options.get("state_dir", folder), "progress": False}
    search = partial(tuner.minimize, objective, parameters)
    if objectives is not None:
        search = partial(tuner.optimize, objective, parameters, objectives)
    with pytest.raises(kind) as refused:
        search(**options)
    return str(refused.value)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"parallelism": 0}, "file", f"parallelism: {COUNT} the number 0"),
        ({"parallelism": "two"}, "file", f"parallelism: {COUNT} the string 'two'"),
        ({"trials": -3}, "file", f"trials: {COUNT} the number -3"),
        ({"trials": 2**63}, "file", f"trials: {2**63} is too large; use at most {2**53}"),
        ({"seed": 2**70}, "file", f"seed: {2**70} is too large; use at most {2**63 - 1}"),
        ({"name": "x" * 80}, "file", "name: 80 characters are too many; use at most 40"),
        ({"target": "high"}, "file", "target: expected a finite number, got the string 'high'"),
        (
            {"prior": {"x": 0.3}},
            "file",
            "prior.x: expected a mapping with around and sure, got the number 0.3",
        ),
        ({"timeout": "soon"}, "file", f"timeout: 'soon' {DURATION}"),
        (
            {"timeout": 0},
            "file",
            "timeout: '0s' is too short; write a longer one, or omit the argument for no limit",
        ),
        ({"timeout": np.int64(-60)}, "file", f"timeout: '-60s' {DURATION}"),
        ({"timeout": Fraction(-1, 2)}, "file", f"timeout: '-0.5s' {DURATION}"),
        ({"trial_timeout": np.float32(-1)}, "file", f"trial_timeout: '-1s' {DURATION}"),
        (
            {"timeout": True},
            "type",
            "timeout: expected seconds, or text such as '2h', got True (bool)",
        ),
        (
            {"timeout": [1]},
            "type",
            "timeout: expected seconds, or text such as '2h', got [1] (list)",
        ),
        ({"trial_timeout": "x"}, "file", f"trial_timeout: 'x' {DURATION}"),
        (
            {"settings": {"startup": 3}},
            "file",
            "settings.startup: no such setting; did you mean startupTrials?",
        ),
        (
            {"pruning": {"warmup": 1}},
            "file",
            "pruning.name: is missing; write the name of a pruner",
        ),
        ({"pruning": 7}, "type", f"pruning: {RULE} 7 (int)"),
        ({"initial": [{"x": 7}]}, "file", "initial[0].x: 7 is outside 0 to 1"),
        ({"gpu": -1}, "file", "gpu: expected a number of at least 0, got the number -1"),
        (
            {"runtime": "k8s"},
            "file",
            "runtime: 'k8s' is not a runtime; known here: local, kubernetes; "
            "another one needs its package beside tuner",
        ),
        (
            {"constraints": {"lat": {}}},
            "file",
            "constraints['lat']: no bound; write min, max or both",
        ),
        ({"constraints": {"lat": 7}}, "type", f"constraints: {BOUNDS} {{'lat': 7}} (dict)"),
        ({"constraints": 7}, "type", f"constraints: {BOUNDS} 7 (int)"),
        (
            {"spec": 7},
            "type",
            "spec: expected a dict of keys of an experiment file's spec, got 7 (int)",
        ),
        ({"state_dir": 7}, "type", "state_dir: expected the path of a folder, got 7 (int)"),
        ({"parameters": {}}, "file", "parameters: no parameters; a search needs at least one"),
        ({"parameters": {"x": []}}, "file", "parameters['x'].values: no choices; give one or more"),
        (
            {"parameters": {"x": 7}},
            "type",
            "parameters['x']: expected Float, Int, Choice, a range or a list of values, got 7 "
            "(int)",
        ),
        (
            {"parameters": 7},
            "type",
            "parameters: expected a dict of names to Float, Int, Choice, a range or a list of "
            "values, got 7 (int)",
        ),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named(
    tmp_path: Path, options: dict[str, Any], kind: str, message: str
) -> None:
    assert refusal(TYPES[kind], tmp_path, **options) == f"tuner.minimize: {message}"


@pytest.mark.parametrize(
    ("objectives", "kind", "message"),
    [
        (
            {"a": "min"},
            "file",
            "objectives['a']: 'min' is not maximize or minimize; did you mean minimize?",
        ),
        (
            {"a": "minimize", "b": 7},
            "file",
            "objectives['b']: expected maximize or minimize, got the number 7",
        ),
        (
            7,
            "type",
            "objectives: expected a dict of metrics to 'minimize' or 'maximize', got 7 (int)",
        ),
    ],
)
def test_a_wrong_objective_is_named(
    tmp_path: Path, objectives: Any, kind: str, message: str
) -> None:
    assert refusal(TYPES[kind], tmp_path, objectives=objectives) == f"tuner.optimize: {message}"


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    message = refusal(InvalidArgument, tmp_path, parallelism=0, fidelity={"parameter": "x"})
    assert message.splitlines() == [
        "tuner.minimize: 4 problems",
        "  fidelity.min: is missing; write a finite number",
        "  fidelity.max: is missing; write a finite number",
        f"  parallelism: {COUNT} the number 0",
        "  fidelity.parameter: x is also in parameters, but each run of a trial has its own; "
        "remove it there",
    ]


def test_a_key_of_the_file_that_the_caller_wrote_keeps_its_name(tmp_path: Path) -> None:
    key = refusal(InvalidArgument, tmp_path, trial_timeout="1h", spec={"trial": {"timeout": "x"}})
    assert key == f"tuner.minimize: spec.trial.timeout: 'x' {DURATION}"


def test_all_public_names_but_open_are_imported_with_an_asterisk() -> None:
    names: dict[str, object] = {}
    exec("from tuner import *", names)
    assert names.keys() - {"__builtins__"} == set(dir(tuner)) - {"open"}
    assert tuner.open.__module__ == "tuner.opening"


def test_an_experiment_built_in_python_names_its_arguments() -> None:
    experiment = tuner.Experiment(
        "echo", X, ["echo"], metric="score", direction="up", parallelism=0
    )
    with pytest.raises(tuner.TunerError) as refused:
        experiment.to_yaml()
    assert str(refused.value).splitlines() == [
        "experiment echo: 2 problems",
        "  direction: 'up' is not maximize or minimize",
        f"  parallelism: {COUNT} the number 0",
    ]


def test_a_pair_of_numbers_is_a_choice_with_a_warning_at_the_callers_line() -> None:
    expected = r"parameters\['x'\]: \(0, 1\) is a choice of two values; .* Float\(0, 1\)"
    with pytest.warns(UserWarning, match=expected) as warned:
        experiment = tuner.Experiment(
            "echo", {"x": (0, 1)}, ["echo"], metric="score", direction="minimize"
        )
    assert "x: [0, 1]" in experiment.to_yaml()
    assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize(
    "values", [[0, 1], (1, 0), (False, True), (0, 1, 2), ("a", "b"), range(2)], ids=str
)
def test_other_choices_need_no_warning(values: Any) -> None:
    tuner.Experiment("echo", {"x": values}, ["echo"], metric="score", direction="minimize")
