"""The launch of an attempt: its command line, its variables, and which `python` it finds."""

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from controller.core.model import MetricsFile, MetricsRule, SecretRef
from controller.folders import AttemptFolders, ExperimentFolders
from controller.runtime.kubernetes.launch import cluster_launch
from controller.runtime.launch import ParametersRefused, host_launch
from controller.runtime.protocol import CannotStart, Launch
from controller.runtime.trial_variables import (
    METRICS_FILE,
    METRICS_PORT,
    PARAMETER_ANSWERS,
    PARAMETER_PLAN,
    PARAMETER_REQUESTS,
)
from controller.spec.placeholders import GIVEN
from suggest.space import Choice, Int, Parameter, Space, Value
from suggest.trial import Trial, TrialState
from tests.unit.builders import a_spec, a_template, a_trial, an_experiment, attempt

PYTHON = Path("/opt/tuner/bin")
FOLDERS: AttemptFolders = ExperimentFolders(Path("/state/experiments/x")).attempt(12, 2)


def made(
    *command: str,
    number: int = 2,
    env: dict[str, object] | None = None,
    environ: dict[str, str] | None = None,
) -> Launch:
    experiment = an_experiment(a_spec(trial=a_template(*command, env=env, gpu=0.5)))
    trial = a_trial(12, lr=0.1, activation="tanh")
    return host_launch(
        experiment,
        trial,
        [attempt(number, trial=12)],
        FOLDERS,
        environ={"PATH": "/usr/bin"} if environ is None else environ,
        interpreter_directory=PYTHON,
    )


def test_a_launch_is_the_template_the_parameters_and_the_identity() -> None:
    found = made("python", "train.py", "--lr=${lr}", "--dropout=${dropout}", "$${HOME}")
    assert found == Launch(
        name="digits-x7k2q-12-r2",
        command=("python", "train.py", "--lr=0.1", "${HOME}"),
        env={
            "PATH": f"/opt/tuner/bin{os.pathsep}/usr/bin",
            "TUNER_EXPERIMENT": "digits",
            "TUNER_TRIAL_NAME": "digits-x7k2q-12",
            "TUNER_TRIAL_NUMBER": "12",
            "TUNER_ATTEMPT": "2",
            "TUNER_SEED": "566170137",
            "TUNER_PARAMETERS": '{"lr": 0.1, "activation": "tanh"}',
            "TUNER_OBJECTIVES": '{"accuracy": "maximize"}',
            "TUNER_OUTPUT_DIR": "/state/experiments/x/trials/12/2/output",
            "TUNER_CHECKPOINT_DIR": "/state/experiments/x/trials/12/checkpoint",
            "KATIB_TRIAL_NAME": "digits-x7k2q-12",
            "TUNER_PARAMETERS_FILE": "/state/experiments/x/trials/12/2/parameters.json",
        },
        working_directory=Path("/work"),
        directory=Path("/state/experiments/x/trials/12/2"),
        timeout_s=60.0,
        grace_s=30.0,
        gpu=0.5,
    )


def test_the_first_attempt_has_the_name_of_its_trial() -> None:
    assert made(number=1).name == "digits-x7k2q-12"


def test_parameters_reach_the_trial_as_they_are() -> None:
    assert json.loads(made().env["TUNER_PARAMETERS"]) == {"lr": 0.1, "activation": "tanh"}


def test_variables_are_substituted_and_secrets_come_from_the_environment() -> None:
    env = {"RATE": "${lr}", "GONE": "${dropout}", "API_KEY": SecretRef("keys", "api")}
    found = made(env=env, environ={"API_KEY": "s3cret"}).env
    assert (found["RATE"], found["API_KEY"], "GONE" in found) == ("0.1", "s3cret", False)


def test_the_files_own_path_replaces_ours() -> None:
    assert made(env={"PATH": "/elsewhere"}).env["PATH"] == "/elsewhere"


def test_the_file_cannot_override_the_identity_of_a_trial() -> None:
    assert made(env={"TUNER_TRIAL_NUMBER": "99"}).env["TUNER_TRIAL_NUMBER"] == "12"
    # Only in experiments with spec.metrics, or with spec.defineByRun.
    sometimes = {METRICS_FILE, METRICS_PORT, PARAMETER_REQUESTS, PARAMETER_ANSWERS, PARAMETER_PLAN}
    assert set(made().env) | {"TUNER_STAGE"} | sometimes == GIVEN | {"PATH"}, (
        "what a file is refused to set is what is set"
    )


def test_without_a_path_the_systems_own_is_searched() -> None:
    assert made(environ={}).env["PATH"] == f"/opt/tuner/bin{os.pathsep}{os.defpath}"


def test_a_missing_secret_cannot_start_and_says_what_to_do() -> None:
    with pytest.raises(CannotStart, match="export API_KEY=… and resume") as caught:
        made(env={"API_KEY": SecretRef("keys", "api")})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("working_dir", "runs_in"),
    [("", "/work"), ("src", "/work/src"), ("../data", "/work/../data"), ("/srv", "/srv")],
)
def test_a_relative_working_directory_starts_at_the_files_folder(
    working_dir: str, runs_in: str
) -> None:
    experiment = an_experiment(a_spec(trial=replace(a_template(), working_dir=working_dir)))
    found = host_launch(
        experiment,
        a_trial(12, lr=0.1),
        [attempt(1, trial=12)],
        FOLDERS,
        environ={},
        interpreter_directory=PYTHON,
    )
    assert found.working_directory == Path(runs_in)


def test_two_experiments_of_one_name_never_share_a_name_of_an_attempt() -> None:
    first, second = an_experiment(), replace(an_experiment(), uid="zzzzzaaaaaaaaaaa")
    names = {
        host_launch(
            e, a_trial(0, lr=0.1), [attempt(1)], FOLDERS, environ={}, interpreter_directory=PYTHON
        ).name
        for e in (first, second)
    }
    assert names == {"digits-x7k2q-0", "digits-zzzzz-0"}


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (
            {"lr": 0.1, "activation": "a; id"},
            "activation: 'a; id' is not one of the choices 'relu', 'tanh'",
        ),
        ({"lr": 7.0, "activation": "tanh"}, "lr: 7 is outside 0.0001 to 1"),
        ({"lr": "0.1; id", "activation": "tanh"}, "lr: '0.1; id' is not a finite number"),
        ({"lr": None, "activation": "tanh"}, "lr: null is not a finite number"),
        ({"lr": 0.1, "activation": ["relu"]}, 'activation: ["relu"] is not one of the choices'),
        ({"lr": 0.1, "activation": "tanh", "evil": "; id"}, "evil: unknown parameter"),
        (
            {"lr": 0.1, "activation": "tanh", "dropout": 0.5},
            "dropout: has a value but is active only when",
        ),
    ],
)
@pytest.mark.parametrize("runtime", ["local", "kubernetes"])
def test_values_outside_of_the_files_own_space_are_never_substituted(
    runtime: str, parameters: dict[str, Value], said: str
) -> None:
    experiment = an_experiment(a_spec(trial=a_template("sh", "-c", "train ${lr} ${activation}")))
    trial = Trial(12, TrialState.RUNNING, parameters)
    local = partial(host_launch, interpreter_directory=PYTHON)
    build = local if runtime == "local" else cluster_launch
    with pytest.raises(ParametersRefused) as caught:
        build(experiment, trial, [attempt(1, trial=12)], FOLDERS, environ={})
    assert said in str(caught.value)
    assert "tuner resume digits" in str(caught.value)
    assert "tuner extend digits --set" in str(caught.value)


def test_a_value_that_the_newest_file_has_is_substituted_as_the_file_has_it() -> None:
    space = Space((Parameter("n", Int(1, 9)), Parameter("kind", Choice(({"b": 1, "a": 2}, 3)))))
    spec = replace(a_spec(trial=a_template("python", "--n=${n}", "${kind}")), space=space)
    trial = Trial(12, TrialState.RUNNING, {"n": 3.0, "kind": {"a": 2.0, "b": 1.0}})
    found = host_launch(
        an_experiment(spec),
        trial,
        [attempt(1, trial=12)],
        FOLDERS,
        environ={},
        interpreter_directory=PYTHON,
    )
    assert found.command == ("python", "--n=3", '{"a":2,"b":1}')
    assert json.loads(found.env["TUNER_PARAMETERS"]) == {"n": 3, "kind": {"b": 1, "a": 2}}


def test_refused_parameters_of_another_client_have_a_short_message() -> None:
    trial = Trial(
        12,
        TrialState.RUNNING,
        {f"p{k}": "x" * 10_000 for k in range(100)} | {"activation": "y" * 10_000},
    )
    with pytest.raises(ParametersRefused) as caught:
        host_launch(
            an_experiment(),
            trial,
            [attempt(1, trial=12)],
            FOLDERS,
            environ={},
            interpreter_directory=PYTHON,
        )
    assert len(str(caught.value)) < 1200


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--log=/katib/m.log", "--log=OUT/katib/m.log"),
        ("/katib", "OUT/katib"),
        ("cat '/katib/m.log' > /katib/n", "cat 'OUT/katib/m.log' > OUT/katib/n"),
        ("cat</katib/m.log>/katib/n|cat", "cat<OUT/katib/m.log>OUT/katib/n|cat"),
        ("/katibs/m.log", "/katibs/m.log"),
        ("/data/katib/m.log", "/data/katib/m.log"),
        ("s3://katib/m.log", "s3://katib/m.log"),
    ],
)
def test_a_containers_folder_of_metrics_is_moved_below_the_output_folder(
    word: str, expected: str
) -> None:
    spec = replace(
        a_spec(trial=a_template(word, env={"LOG": word})),
        metrics=MetricsRule(source=MetricsFile("/katib/m.log")),
    )
    trial = a_trial(12, lr=0.1, activation="tanh")
    made = host_launch(
        an_experiment(spec),
        trial,
        [attempt(1, trial=12)],
        FOLDERS,
        environ={},
        interpreter_directory=PYTHON,
    )
    moved = expected.replace("OUT", str(FOLDERS.output))
    assert (made.command, made.env["LOG"]) == ((moved,), moved)
