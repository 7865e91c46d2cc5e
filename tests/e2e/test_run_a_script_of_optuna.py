"""`tuner run` of scripts that were written for Optuna, unchanged, with real processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, eventually

PAGE = Path(__file__).parents[2] / "docs" / "optuna.md"
WAITS = """
import os, time
import optuna

study = optuna.create_study(storage="sqlite:///optuna.db", directions=["minimize", "maximize"])
study.enqueue_trial({"x": 0.25})

def objective(trial, scale):
    with open("starts.txt", "a") as file:
        file.write(f"{trial.number}\\n")
    x = trial.suggest_float("x", 0, 1)
    while not os.path.exists("go"):
        time.sleep(0.01)
    return scale * x, x

study.optimize(lambda trial: objective(trial, 2), n_trials=3, n_jobs=2)
print("the best:", study.best_trials)
"""


def test_the_script_of_the_page_runs_unchanged(cli: Cli) -> None:
    _, section = PAGE.read_text(encoding="utf-8").split("## Or change no line")
    script = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert script is not None
    (cli.folder / "study.py").write_text(script[1])
    commands = re.findall(r"^\$ tuner (.*)$", section, re.MULTILINE)
    assert commands == ["run study.py", "convert study.py > experiment.yaml"]
    code, out, err = cli.tuner("run", "study.py")
    assert code == 0, err
    assert "best value" in out
    trials = cli.json("get", "trials", "study", "-o", "json")
    assert len(trials) == 30
    code, out, err = cli.tuner("convert", "study.py")
    assert code == 0, err
    cli.file.write_text(out)
    code, out, err = cli.tuner("validate", "experiment.yaml")
    assert "experiment study, parameters that its trials name, default, 30 trials" in out, err


@pytest.mark.parametrize(
    ("given", "directions"),
    [
        ("spec.objective={metric: gain, direction: maximize}", ["maximize"]),
        (
            "spec.objectives=[{metric: gain, direction: maximize}, {metric: cost, direction: "
            "minimize}]",
            ["maximize", "minimize"],
        ),
    ],
)
def test_the_objectives_that_set_gives_reach_the_trials(
    cli: Cli, given: str, directions: list[str]
) -> None:
    (cli.folder / "told.py").write_text(
        "import optuna\n\ndef objective(trial):\n"
        "    told = [each.name.lower() for each in trial.study.directions]\n"
        '    trial.suggest_categorical("told", [repr(told)])\n'
        '    values = [trial.suggest_float("x", 0, 1), 0.0]\n'
        "    return values[:len(told)] if len(told) > 1 else values[0]\n\n"
        "optuna.create_study().optimize(objective, n_trials=1)\n"
    )
    code, _, err = cli.tuner("run", "told.py", "--set", given)
    assert code == 0, err
    (trial,) = cli.json("get", "trials", "told", "-o", "json")
    assert trial["parameters"]["told"] == repr(directions)


def test_a_script_ends_its_search(cli: Cli) -> None:
    (cli.folder / "stops.py").write_text(
        "import optuna\n\ndef objective(trial):\n"
        '    x = trial.suggest_float("x", 0, 1)\n'
        "    if trial.number == 1:\n        study.stop()\n"
        "    return x * (study.direction.name == 'MAXIMIZE')\n\n"
        "if __name__ == '__main__':\n"
        '    study = optuna.create_study(direction="maximize")\n'
        "    study.optimize(objective, n_trials=9)\n"
    )
    code, _, err = cli.tuner("run", "stops.py")
    assert code == 0, err
    assert "trial 1 called study.stop()" in err
    values = [trial["value"] for trial in cli.json("get", "trials", "stops", "-o", "json")]
    assert len(values) == 2
    assert min(values) > 0


def test_a_script_is_bound_by_the_constraints_that_it_names(cli: Cli) -> None:
    (cli.folder / "bound.py").write_text(
        "import optuna\n\ndef objective(trial):\n"
        '    trial.set_constraint("weight", trial.number - 0.5)\n'
        "    return -trial.number\n\n"
        "optuna.create_study().optimize(objective, n_trials=2)\n"
    )
    code, _, err = cli.tuner("run", "bound.py")
    assert code == 0, err
    assert cli.json("best", "bound", "-o", "json")["number"] == 0


def test_attributes_of_an_enqueued_point_are_those_of_its_trial(cli: Cli) -> None:
    (cli.folder / "told.py").write_text(
        "import optuna\n\ndef objective(trial):\n"
        '    trial.suggest_categorical("from", [trial.user_attrs.get("from", "")])\n'
        '    return trial.suggest_float("x", 0, 1)\n\n'
        "study = optuna.create_study()\n"
        'study.enqueue_trial({"x": 0.5}, user_attrs={"from": "${paper}"})\n'
        "study.optimize(objective, n_trials=1)\n"
    )
    code, _, err = cli.tuner("run", "told.py")
    assert code == 0, err
    (trial,) = cli.json("get", "trials", "told", "-o", "json")
    assert trial["parameters"] == {"from": "${paper}", "x": 0.5}


def test_the_best_trials_of_a_script_run_again(cli: Cli) -> None:
    (cli.folder / "study.py").write_text(
        "import optuna\n\ndef objective(trial):\n"
        '    return trial.suggest_categorical("x", [None, [1, 2], 0.00001]) is None\n\n'
        'optuna.create_study(direction="maximize").optimize(objective, n_trials=4)\n'
    )
    code, _, err = cli.tuner("run", "study.py")
    assert code == 0, err
    code, _, err = cli.tuner("confirm", "study", "--top", "3", "--seeds", "2")
    assert code == 0, err
    trials = cli.json("get", "trials", "study", "-o", "json")
    again = cli.json("get", "trials", "study-confirm", "-o", "json")
    points = [trial["parameters"] for trial in trials]
    assert all(trial["parameters"] in points for trial in again), again
    assert {trial["state"] for trial in again} == {"succeeded"}


def test_a_killed_script_continues_and_its_own_study_is_never_made(cli: Cli) -> None:
    (cli.folder / "waits.py").write_text(WAITS)
    first = cli.start("run", "waits.py")
    eventually(lambda: len(cli.starts()) == 1)
    first.kill()
    first.communicate()
    cli.let_go()
    code, _, err = cli.tuner("run", "waits.py")
    assert code == 0, err
    trials = cli.json("get", "trials", "waits", "-o", "json")
    assert trials[0]["parameters"] == {"x": 0.25}
    assert sorted(cli.starts()) == ["0", "1", "2"], "each trial has run once"
    assert not (cli.folder / "optuna.db").exists()
