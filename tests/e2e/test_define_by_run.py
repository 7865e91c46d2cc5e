"""Objectives that name their parameters while they run, with real processes."""

from __future__ import annotations

import json

import pytest

from tests import forked
from tests.e2e.cli import eventually
from tests.e2e.test_python_api import Scripts, scripts

__all__ = ["scripts"]

BRANCHES = """
def objective(trial):
    kind = trial.choice("kind", ["linear", "tree"])
    if kind == "tree":
        return float(trial.int("depth", 1, 9))
    return trial.float("c", 0.1, 10, log=True)
"""


def lines(scripts: Scripts, body: str) -> list[str]:
    return scripts.output(body).splitlines()


def test_a_search_without_parameters_finds_them_in_its_objective(scripts: Scripts) -> None:
    points = """
study = tuner.minimize(objective, trials=12, parallelism=2, seed=1, name="met", progress=False)
for result in study.results():
    print(sorted(result.parameters))
"""
    found = lines(scripts, BRANCHES + points)
    assert len(found) == 12
    assert set(found) <= {"['c', 'kind']", "['depth', 'kind']"}


def test_a_trial_waits_for_the_next_controller_and_keeps_what_it_has_met(
    scripts: Scripts,
) -> None:
    body = """
def objective(trial):
    started(trial)
    first = trial.float("first", 0, 1)
    (HERE / "first.txt").write_text(repr(first))
    while not (HERE / "killed").exists():
        time.sleep(0.01)
    second = trial.float("second", 0, 1)
    return first + second

study = tuner.minimize(objective, trials=1, name="waits", progress=False)
(result,) = study.results()
print(result.parameters["first"], result.value == sum(result.parameters.values()))
"""
    first = scripts.start(body)
    eventually((scripts.folder / "first.txt").exists)
    first.kill()
    first.communicate()
    (scripts.folder / "killed").touch()
    assert lines(scripts, body) == [f"{(scripts.folder / 'first.txt').read_text()} True"]
    assert scripts.starts() == ["0 1"], "the attempt has gone on"


@pytest.mark.parametrize(
    "moment",
    ["study.decide.before", "store.decide.before", "store.decide.after", "study.decide.after"],
)
def test_a_kill_while_a_parameter_is_decided_loses_and_repeats_nothing(
    scripts: Scripts, moment: str
) -> None:
    body = """
def objective(trial):
    started(trial)
    values = [trial.float(f"x{i}", 0, 1) for i in range(3)]
    (HERE / "values.txt").write_text(repr(values))
    return sum(values)

study = tuner.minimize(objective, trials=1, name="killed", progress=False)
print(list(study.best.parameters.values()))
"""
    scripts.env["TUNER_FAILPOINT"] = moment
    first = scripts.start(body)
    first.communicate(timeout=60)
    assert first.returncode == -9
    del scripts.env["TUNER_FAILPOINT"]
    assert lines(scripts, body) == [(scripts.folder / "values.txt").read_text()]
    assert scripts.starts() == ["0 1"]


def test_a_retry_has_the_values_of_the_attempt_before(scripts: Scripts) -> None:
    body = """
def objective(trial):
    value = trial.float("x", 0, 1)
    with (HERE / "values.txt").open("a") as file:
        print(value, file=file)
    if trial.attempt == 1:
        raise OSError("out of luck")
    return value

tuner.minimize(objective, trials=1, name="again", progress=False,
               spec={"trial": {"retries": {"userError": 1}}})
"""
    scripts.output(body)
    values = (scripts.folder / "values.txt").read_text().split()
    assert len(values) == 2
    assert len(set(values)) == 1


def test_another_range_than_in_an_earlier_trial_is_said_once(scripts: Scripts) -> None:
    body = """
import subprocess

def objective(trial):
    return trial.float("x", 0, 1 + trial.number) + trial.int("n", 0, 4, step=2)

tuner.minimize(objective, trials=4, name="ranges", progress=False)
command = [sys.executable, "-m", "controller", "describe", "ranges"]
print(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
"""
    said = [line for line in lines(scripts, body) if " before: " in line]
    assert len(said) == 1
    assert "x is 0 to 2 in trial 1 and 0 to 1 before: the search learns from both" in said[0]


def test_points_to_try_first_name_parameters_that_no_trial_has_met(scripts: Scripts) -> None:
    body = """
study = tuner.minimize(objective, trials=2, name="first", progress=False, seed=1,
                       initial=[{"kind": "tree", "depth": 7}, {"kind": "linear", "c": 0.5}])
print([result.parameters for result in study.results()])
"""
    assert lines(scripts, BRANCHES + body) == [
        "[{'kind': 'tree', 'depth': 7}, {'kind': 'linear', 'c': 0.5}]"
    ]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ('trial.float("x", 2, 1)', "x.min: 2 is above max, 1; swap the two"),
        ('trial.float("x", 0, 1, log=True)', "cannot be on a log scale"),
        (
            'trial.float("x", 0, 1) + trial.int("x", 0, 1)',
            "parameter 'x' is float and int in one trial; use another name for one of them",
        ),
        (
            'trial.float("x", 0, 1) if trial.number == 0 else trial.int("x", 0, 1)',
            "it was a float earlier and is an int; a parameter keeps its kind",
        ),
    ],
)
def test_a_wrong_parameter_fails_its_trial_with_the_rule_and_the_cure(
    scripts: Scripts, named: str, message: str
) -> None:
    body = f"""
def objective(trial):
    return {named}

try:
    study = tuner.minimize(objective, trials=2, name="wrong", progress=False)
except tuner.SearchFailed as error:
    pass
"""
    scripts.start(body).communicate(timeout=60)
    logs = sorted((scripts.folder / "state").glob("experiments/*/trials/*/*/log.txt"))
    assert any(message in log.read_text() for log in logs)


def test_choices_may_be_numbers_of_numpy(scripts: Scripts) -> None:
    body = """
import numpy as np

def objective(trial):
    units = trial.choice("units", 2 ** np.arange(3, 6))
    return units if trial.choice("norm", list(np.array([True, False]))) else -units

study = tuner.minimize(objective, trials=4, name="arrays", progress=False)
for result in study.results():
    print(result.parameters["units"] in (8, 16, 32), result.parameters["norm"] in (True, False))
"""
    assert lines(scripts, body) == ["True True"] * 4


CONFIRMED = """
study = tuner.minimize(objective, trials=6, name="met", seed=1, progress=False,
                       spec={"confirm": {"top": 2, "seeds": 2}})
print(tuner.open("met-confirm").state)
best = sorted((result for result in study.results() if result.value is not None),
              key=lambda result: result.value)
for again in sorted(tuner.open("met-confirm").results(), key=lambda result: result.number):
    print(again.parameters == best[again.number % 2].parameters, again.reason)
"""


def test_trials_run_again_with_the_parameters_that_they_named(scripts: Scripts) -> None:
    state, *again = lines(scripts, BRANCHES + CONFIRMED)
    assert (state, again) == ("succeeded", ["True "] * 4)
    process = forked.tuner(("reproduce", "met/3"), folder=scripts.folder, env=scripts.env)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "the recorded value is reproduced exactly" in out) == (0, True), err


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ('trial.float("x", 0, 1) + trial.float("more", 0, 1)', "of met did not name more: a rerun"),
        ('trial.float("x", 2, 3)', "which is not in its range any more: a rerun"),
    ],
)
def test_a_rerun_with_other_parameters_than_its_trial_fails_with_the_reason(
    scripts: Scripts, named: str, said: str
) -> None:
    changed = f"""
def objective(trial):
    if os.environ["TUNER_EXPERIMENT"] != "met":
        return {named}
    return trial.float("x", 0, 1)
"""
    scripts.start(changed + CONFIRMED).communicate(timeout=60)
    again = 'print([each.reason for each in tuner.open("met-confirm").results()])'
    (reasons,) = lines(scripts, again)
    assert said in reasons


def test_a_script_asks_as_a_function_does(scripts: Scripts) -> None:
    (scripts.folder / "train.py").write_text(
        "import tuner\ntrial = tuner.current_trial()\n"
        'units, decay = trial.int("units", 4, 8), trial.float("decay", 0, 1)\n'
        "trial.report(loss=units + decay)\n"
    )
    (scripts.folder / "experiment.yaml").write_text(
        json.dumps(
            {
                "apiVersion": "tuner.dev/v1",
                "kind": "Experiment",
                "metadata": {"name": "script"},
                "spec": {
                    "objective": {"metric": "loss", "direction": "minimize"},
                    "defineByRun": True,
                    "budget": {"trials": 2},
                    "trial": {"command": ["python", "train.py"]},
                },
            }
        )
    )
    body = """
import subprocess
os.chdir(HERE)
command = [sys.executable, "-m", "controller", "run", "experiment.yaml"]
done = subprocess.run(command, check=True, capture_output=True, text=True)
print([line.split()[0] for line in done.stdout.splitlines()])
print(list(tuner.open("script").best.parameters))
"""
    assert lines(scripts, body) == ["['script:', 'units', 'decay']", "['units', 'decay']"]


def test_all_workers_of_a_trial_get_the_same_values(scripts: Scripts) -> None:
    train = """
import tuner
trial = tuner.current_trial()
x = trial.float("x", 0, 1)
with open("met.txt", "a") as file:
    print(trial.number, x, file=file)
trial.report(loss=x)
"""
    (scripts.folder / "train.py").write_text(train)
    spec = {
        "objective": {"metric": "loss", "direction": "minimize"},
        "defineByRun": True,
        "budget": {"trials": 2},
        "trial": {"command": ["python", "train.py"], "distributed": {"workers": 2}},
    }
    about = {"apiVersion": "tuner.dev/v1", "kind": "Experiment", "metadata": {"name": "both"}}
    (scripts.folder / "experiment.yaml").write_text(json.dumps({**about, "spec": spec}))
    process = forked.tuner(("run", "experiment.yaml"), folder=scripts.folder, env=scripts.env)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    met = (scripts.folder / "met.txt").read_text().splitlines()
    assert (len(met), len(set(met))) == (4, 2)
