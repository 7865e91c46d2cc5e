"""`tuner run` of scripts that were written for Optuna, unchanged, with real processes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, eventually

PAGE = Path(__file__).parents[2] / "docs" / "optuna.md"
WAITS = """
import argparse, os, time
import optuna

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=1)
    arguments = parser.parse_args()

    def objective(trial):
        with open("starts.txt", "a") as file:
            file.write(f"{trial.number}\\n")
        x = trial.suggest_float("x", 0, 1)
        while not os.path.exists("go"):
            time.sleep(0.01)
        return x, arguments.trials

    study = optuna.create_study(
        study_name="Kept", storage="sqlite:///optuna.db", load_if_exists=True,
        directions=["minimize", "maximize"],
    )
    study.enqueue_trial({"x": 0.25}, skip_if_exists=True)
    study.optimize(objective, n_trials=arguments.trials, n_jobs=2)
    print("trials", [trial.number for trial in study.trials], study.trials[0].params)

if __name__ == "__main__":
    main()
"""


def ran(cli: Cli, script: str, *arguments: str) -> str:
    """Write the body of a script, run it, and return what it has printed."""
    (cli.folder / "script.py").write_text(f"import optuna\n{script}")
    code, out, err = cli.tuner("run", "script.py", *arguments)
    assert code == 0, err
    return out


def refused(cli: Cli, script: str, *arguments: str) -> str:
    (cli.folder / "script.py").write_text(f"import optuna\n{script}")
    code, out, err = cli.tuner("run", "script.py", *arguments)
    assert code == 2, (out, err)
    assert not out
    return err.splitlines()[-1]


def test_the_script_of_the_page_runs_unchanged(cli: Cli) -> None:
    _, section = PAGE.read_text(encoding="utf-8").split("## Or change no line")
    script = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert script is not None
    (cli.folder / "study.py").write_text(script[1])
    commands = re.findall(r"^\$ tuner (.*)$", section, re.MULTILINE)
    assert commands == ["run study.py", "get trials study"]
    code, out, err = cli.tuner("run", "study.py")
    assert code == 0, err
    assert "study: best value" in err
    assert out.startswith("{'x': "), "only what the script prints"
    assert len(cli.json("get", "trials", "study", "-o", "json")) == 30


def test_a_killed_script_continues_and_its_study_gets_each_trial_once(cli: Cli) -> None:
    (cli.folder / "waits.py").write_text(WAITS)
    first = cli.start("run", "waits.py", "--", "--trials", "3")
    eventually(lambda: len(cli.starts()) == 1)
    first.kill()
    first.communicate()
    cli.let_go()
    for _ in range(2):
        code, out, err = cli.tuner("run", "waits.py", "--", "--trials", "3")
        assert code == 0, err
        assert "trials [0, 1, 2] {'x': 0.25}" in out
    assert sorted(cli.starts()) == ["0", "1", "2"], "each trial has run once"
    trials = cli.json("get", "trials", "kept", "-o", "json")
    assert [trial["state"] for trial in trials] == ["succeeded"] * 3


@pytest.mark.parametrize("imported", ["optuna", "create_study as make"])
def test_a_killed_script_that_creates_its_stored_study_continues(cli: Cli, imported: str) -> None:
    own = WAITS.replace("load_if_exists=True,", "")
    if imported != "optuna":
        own = f"from optuna import {imported}\n{own.replace('optuna.create_study', 'make')}"
    (cli.folder / "waits.py").write_text(own)
    first = cli.start("run", "waits.py")
    eventually(lambda: len(cli.starts()) == 1)
    first.kill()
    first.wait()
    (cli.folder / "go").touch()
    for _ in range(2):
        code, out, err = cli.tuner("run", "waits.py")
        assert (code, out) == (0, "trials [0] {'x': 0.25}\n"), err
    assert len(cli.starts()) == 1
    # Another script has not created it.
    (cli.folder / "other.py").write_text(own)
    code, _, err = cli.tuner("run", "other.py")
    assert code == 1
    assert err.splitlines()[-1] == (
        "other.py: to continue the study, call optuna.create_study(…, load_if_exists=True), or "
        "remove it with optuna.delete_study"
    )


def test_a_killed_script_has_what_its_callbacks_collect_of_all_trials(cli: Cli) -> None:
    (cli.folder / "collects.py").write_text(
        "import os, time, optuna\n"
        "def objective(trial):\n"
        "    with open('starts.txt', 'a') as file:\n        file.write(f'{trial.number}\\n')\n"
        "    while trial.number in (1, 4) and not os.path.exists(f'go{trial.number}'):\n"
        "        time.sleep(0.01)\n"
        "    if trial.number == 2:\n        raise optuna.TrialPruned\n"
        "    return trial.suggest_float('x', 0, 1) - trial.number\n"
        "def collect(study, trial):\n"
        "    seen.append((trial.number, len(study.trials)))\n"
        "    study.set_user_attr('seen', [*study.user_attrs.get('seen', ()), trial.number])\n"
        "    if trial.number == 5:\n        study.stop()\n"
        "seen = []\n"
        "study = optuna.create_study()\n"
        "for trials in (3, 9):\n"
        "    study.optimize(objective, n_trials=trials, callbacks=[collect])\n"
        "    print(seen, study.user_attrs['seen'], flush=True)\n"
    )

    def killed_at(trial: str) -> None:
        process = cli.start("run", "collects.py")
        eventually(lambda: cli.starts()[-1:] == [trial])
        process.kill()
        process.communicate()
        (cli.folder / f"go{trial}").touch()

    killed_at("1")
    killed_at("4")
    numbers = [*range(6)]
    pairs = [(number, number + 1) for number in numbers]
    for _ in range(2):
        code, out, err = cli.tuner("run", "collects.py")
        assert code == 0, err
        assert out == f"{pairs[:3]} {numbers[:3]}\n{pairs} {numbers}\n"
    assert cli.starts() == [str(number) for number in numbers]


def test_each_study_is_a_search_and_a_study_searches_on(cli: Cli) -> None:
    out = ran(
        cli,
        "import numpy\n"
        "def objective(trial):\n    return trial.suggest_float('x', 0, 1)\n"
        "for number in (1, 2):\n"
        "    study = optuna.create_study()\n"
        "    study.optimize(objective, n_trials=0)\n"
        "    for _ in range(number):\n"
        "        study.optimize(objective, n_trials=numpy.int64(2), timeout=numpy.float32(600))\n"
        "    print('has', len(study.trials))\n",
    )
    assert re.findall("has .*", out) == ["has 2", "has 4"]
    searches = cli.json("get", "experiments", "-o", "json")
    assert {each["name"]: each["trials"] for each in searches} == {
        "script": {"succeeded": 2},
        "script-2": {"succeeded": 4},
    }


def test_a_study_with_added_trials_is_a_search_of_its_own_unless_it_is_loaded_again(
    cli: Cli,
) -> None:
    script = (
        "import pickle\n"
        "def objective(trial):\n    return trial.suggest_float('x', 0, 1)\n"
        "studies = [optuna.create_study() for _ in range(3)]\n"
        "studies[0].optimize(objective, 2)\n"
        "studies[1].add_trial(optuna.trial.create_trial(value=7))\n"
        "studies[1].optimize(objective, 1)\n"
        "studies[2].add_trials(studies[0].trials)\n"
        "studies[2].optimize(objective, 1)\n"
        "again = pickle.loads(pickle.dumps(studies[0]))\n"
        "again.optimize(objective, 1)\n"
        "print(*(len(study.trials) for study in (*studies, again)))\n"
    )
    assert ran(cli, script) == "2 2 3 3\n"
    shown = {each["name"]: each for each in cli.json("get", "experiments", "-o", "json")}
    assert {*shown} == {"script", "script-2", "script-3"}
    assert ran(cli, script) == "2 2 3 3\n"


def test_only_an_objective_that_was_edited_is_warned_of(cli: Cli) -> None:
    script = (
        "import optuna\nstudy = optuna.create_study()\n"
        "study.optimize(lambda trial: trial.suggest_float('x', 0, 1), n_trials=1)\n"
        "study.optimize(lambda trial: trial.suggest_float('x', 0, 2), n_trials=1)\n"
    )
    (cli.folder / "script.py").write_text(script)
    code, _, err = cli.tuner("run", "script.py")
    assert (code, "has changed" in err) == (0, False), err
    (cli.folder / "script.py").write_text(script.replace("0, 2)", "0, 3)"))
    code, _, err = cli.tuner("run", "script.py")
    assert code == 0, err
    assert "script.py:4: the code of the objective has changed since script ran trials 0-1" in err


def test_callbacks_and_failures_are_those_of_optuna(cli: Cli) -> None:
    out = ran(
        cli,
        "class Objective:\n"
        "    def __call__(self, trial):\n"
        "        trial.set_user_attr('seen', trial.user_attrs.get('from', ''))\n"
        "        if trial.number == 1:\n            raise ValueError\n"
        "        return trial.suggest_float('x', 0, 1)\n"
        "def ended(study, trial):\n"
        "    print('ended', trial.number, trial.state.name)\n"
        "    if len(study.trials) == 3:\n        study.stop()\n"
        "study = optuna.create_study(pruner=optuna.pruners.NopPruner())\n"
        "study.enqueue_trial({'x': 0.5}, user_attrs={'from': '${paper}'})\n"
        "study.optimize(Objective(), catch=(ValueError,), callbacks=[ended])\n"
        "print(study.trials[0].params, study.trials[0].user_attrs)\n",
    )
    ended = ["ended 0 COMPLETE", "ended 1 FAIL", "ended 2 COMPLETE"]
    assert re.findall("ended .*", out) == ended
    assert "{'x': 0.5} {'from': '${paper}', 'seen': '${paper}'}" in out


def test_a_search_with_catch_goes_on_however_many_trials_fail(cli: Cli) -> None:
    out = ran(
        cli,
        "def objective(trial):\n"
        "    if trial.number % 8:\n        raise ValueError\n"
        "    return trial.suggest_float('x', 0, 1)\n"
        "study = optuna.create_study()\n"
        "for trials in (8, 1):\n"
        "    study.optimize(objective, n_trials=trials, n_jobs=4, catch=ValueError)\n"
        "    print([trial.state.name for trial in study.trials].count('FAIL'), len(study.trials))\n",
    )
    assert out == "7 8\n7 9\n"


def test_a_callback_may_copy_and_pickle_its_study(cli: Cli) -> None:
    out = ran(
        cli,
        "import copy, pickle\n"
        "def objective(trial):\n    return trial.suggest_float('x', 0, 1)\n"
        "def save(study, trial):\n"
        "    with open('study.pickle', 'wb') as file:\n        pickle.dump(study, file)\n"
        "    assert len(copy.deepcopy(study).trials) == len(study.trials)\n"
        "optuna.create_study().optimize(objective, n_trials=2, callbacks=[save])\n"
        "study = pickle.load(open('study.pickle', 'rb'))\n"
        "print(type(study) is optuna.Study, len(study.trials))\n"
        "study.enqueue_trial({'x': 0.5})\n"
        "study.optimize(objective, n_trials=1)\n"
        "print(study.trials[-1].params['x'])\n",
    )
    assert "True 2\n" in out
    assert out.endswith("\n0.5\n")


def test_variables_that_only_a_trial_would_change_are_named(cli: Cli) -> None:
    (cli.folder / "script.py").write_text(
        "import optuna\nbest = 0\n"
        "def objective(trial):\n    global best\n    best = 1\n    return 1.0\n"
        "optuna.create_study().optimize(objective, n_trials=1)\nprint('best', best)\n"
    )
    code, out, err = cli.tuner("run", "script.py")
    assert (code, out.splitlines()[-1]) == (0, "best 0")
    assert "script.py:7: the objective changes best, which is not seen outside of the trial" in err


def test_an_objective_may_find_functions_of_its_script_by_names_in_text(cli: Cli) -> None:
    out = ran(
        cli,
        "import sys\n"
        "cannot_be_pickled = (each for each in ())\n"
        "WIDTHS = {'wide': 2.0}\n"
        "def half(trial):\n    return trial.suggest_float('x', 0, 0.5)\n"
        "class Whole:\n"
        "    def __call__(self, trial):\n        return eval('WIDTHS')['wide'] + half(trial)\n"
        "def called(name, *arguments):\n    return globals()[name](*arguments)\n"
        "def objective(trial):\n"
        "    if trial.number:\n        return called('Whole')(trial)\n"
        "    return getattr(sys.modules[__name__], 'half')(trial)\n"
        "study = optuna.create_study()\nstudy.optimize(objective, n_trials=2)\n"
        "print([round(trial.value - trial.params['x'], 9) for trial in study.trials])\n",
    )
    assert out == "[0.0, 2.0]\n"


def test_calls_in_modules_that_are_not_installed_are_replaced_too(cli: Cli) -> None:
    package = cli.folder / "tuning"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "search.py").write_text(
        "import optuna\nSCALE = 3\n"
        "class Search:\n"
        "    def objective(self, trial):\n"
        "        trial.set_constraint('weight', 0.5)\n"
        "        return SCALE * trial.suggest_float('x', 0, 1)\n"
        "    def run(self, trials):\n"
        "        study = optuna.create_study(study_name='Deep')\n"
        "        study.enqueue_trial({'x': 0.5})\n"
        "        study.optimize(self.objective, n_trials=trials)\n"
        "        return study\n"
    )
    (cli.folder / "script.py").write_text(
        "from dataclasses import dataclass, fields\n"
        "@dataclass\nclass Options:\n    trials: int = 2\n"
        "assert fields(Options)[0].type is int\n"
        "if __name__ == '__main__':\n"
        "    from tuning.search import Search\n"
        "    study = Search().run(Options().trials)\n"
        "    print(study.trials[0].value, len(study.trials))\n"
    )
    code, out, err = cli.tuner("run", "script.py")
    assert (code, out.splitlines()[-1]) == (0, "1.5 2"), err
    assert len(cli.json("get", "trials", "deep", "-o", "json")) == 2
    (cli.folder / "script.py").write_text("import tuning\nprint('ran')\n")
    code, out, err = cli.tuner("run", "script.py")
    assert (code, out) == (2, "ran\n")
    assert "calls no study.optimize(objective, …); call it in the script or in a module" in err


def test_modules_of_a_trial_see_the_arguments_of_the_script_and_what_it_has_set(cli: Cli) -> None:
    (cli.folder / "config.py").write_text(
        "import sys\nEPOCHS = int(sys.argv[1])\nSCALE, NAMES = 1, []\n"
    )
    (cli.folder / "train.py").write_text(
        "import config\ndef fit():\n    return config.EPOCHS + config.SCALE + len(config.NAMES)\n"
    )
    out = ran(
        cli,
        "import config as settings\nfrom train import fit\n"
        "settings.SCALE *= 10\nsettings.NAMES = ['a', 'b']\noptuna.unused = 1\n"
        "study = optuna.create_study()\n"
        "study.optimize(lambda trial: fit(), n_trials=1)\n"
        "print(study.best_value)\n",
        "--",
        "300",
    )
    assert out.splitlines()[-1] == "312.0"


def test_a_point_that_the_study_has_tried_is_skipped_if_the_script_says_so(cli: Cli) -> None:
    script = (
        "import sys\n"
        "def objective(trial):\n    return trial.suggest_float('x', 0, 1)\n"
        "study = optuna.create_study(\n"
        "    study_name='kept', storage='sqlite:///optuna.db', load_if_exists=True\n)\n"
        "study.enqueue_trial({'x': 0.5}, skip_if_exists=True)\n"
        "study.optimize(objective, n_trials=1)\n"
        "study.enqueue_trial(study.best_params, skip_if_exists=True)\n"
        "study.enqueue_trial({'x': 0.125}, skip_if_exists=True)\n"
        "study.optimize(objective, n_trials=2)\n"
        "points = [trial.params['x'] for trial in study.trials]\n"
        "print(len(points), points.count(0.5), points.count(0.125), len(set(points)))\n"
    )
    (cli.folder / "script.py").write_text(f"import optuna\n{script}")
    subprocess.run([sys.executable, "script.py"], cwd=cli.folder, check=True)
    assert ran(cli, script).splitlines()[-1] == "6 1 1 6"
    assert ran(cli, script).splitlines()[-1] == "6 1 1 6", "the search has ended"


def test_a_script_goes_on_without_a_value(cli: Cli) -> None:
    out = ran(
        cli,
        "def objective(trial):\n    raise optuna.TrialPruned\n"
        "study = optuna.create_study()\n"
        "study.optimize(objective, n_trials=9, callbacks=[optuna.study.MaxTrialsCallback(\n"
        "    2, states=(optuna.trial.TrialState.PRUNED,))])\n"
        "print([trial.state.name for trial in study.trials])\n",
    )
    assert out.splitlines()[-1] == "['PRUNED', 'PRUNED']"


def test_a_script_ends_without_a_value_if_a_trial_has_failed(cli: Cli) -> None:
    (cli.folder / "script.py").write_text(
        "import optuna\ndef objective(trial):\n"
        "    raise ValueError('no') if trial.number else optuna.TrialPruned\n"
        "optuna.create_study().optimize(objective, n_trials=2)\nprint('after')\n"
    )
    code, out, err = cli.tuner("run", "script.py")
    assert code == 3, err
    assert "after" not in out
    assert "ValueError: no" in out + err


def test_a_script_that_handles_the_error_of_a_callback_has_what_was_found(cli: Cli) -> None:
    out = ran(
        cli,
        "def fails(study, trial):\n    study.enqueue_trial({'x': 1})\n"
        "study = optuna.create_study()\n"
        "try:\n"
        "    study.optimize(lambda trial: 1.0, n_trials=9, callbacks=[fails])\n"
        "except RuntimeError as error:\n    print(len(study.trials), error)\n",
    )
    assert out.splitlines()[-1].startswith("1 study.enqueue_trial() in a callback has no effect")


def test_a_call_after_one_that_ended_early_runs_its_own_trials_once(cli: Cli) -> None:
    script = (
        "def objective(trial):\n"
        "    time.sleep(0.2 * (len(study.trials) < 3))\n"
        "    return trial.suggest_float('x', 0, 1)\n"
        "import time\n"
        "study = optuna.create_study()\n"
        "ends = optuna.study.MaxTrialsCallback(2)\n"
        "study.optimize(objective, n_trials=50, callbacks=[ends])\n"
        "print('first', len(study.trials))\n"
        "study.optimize(objective, timeout=0.1)\n"
        "timed = len(study.trials)\n"
        "print('timed', timed > 2)\n"
        "study.optimize(objective, n_trials=1)\n"
        "study.optimize(objective, n_trials=1, timeout=600)\n"
        "print(len(study.trials) - timed, len(study.trials))\n"
    )
    first = re.findall("(?m)^(?:first|timed|2 ).*", ran(cli, script))
    assert first[:2] == ["first 2", "timed True"]
    assert first[2].startswith("2 ")
    assert re.findall("(?m)^(?:first|timed|2 ).*", ran(cli, script)) == first


COUNTS = """
import optuna, os, time

def objective(trial):
    with open("starts.txt", "a") as file:
        file.write(f"{trial.number}\\n")
    while trial.number == 4 and not os.path.exists("go"):
        time.sleep(0.01)
    return trial.suggest_float("x", 0, 1)

study = optuna.create_study(STORAGE)
study.optimize(objective, n_trials=2 - BEFORE)
print("has", len(study.trials))
while len(study.trials) < 6:
    study.optimize(objective, n_trials=min(3, 6 - len(study.trials)))
    print("has", len(study.trials))
"""


STORED = "storage='sqlite:///optuna.db', study_name='s', load_if_exists=True"


@pytest.mark.parametrize(
    ("storage", "before"), [("", "0"), (STORED, "0"), (STORED, "len(study.trials)")]
)
def test_a_killed_script_that_counts_its_trials_makes_the_same_calls(
    cli: Cli, storage: str, before: str
) -> None:
    script = COUNTS.replace("STORAGE", storage).replace("BEFORE", before)
    (cli.folder / "counts.py").write_text(script)
    first = cli.start("run", "counts.py")
    eventually(lambda: cli.starts()[-1:] == ["4"], within_s=60)
    first.kill()
    first.communicate()
    cli.let_go()
    code, out, err = cli.tuner("run", "counts.py")
    assert code == 0, err
    assert re.findall("has (.*)", out) == ["2", "5", "6"]
    code, out, err = cli.tuner("run", "counts.py")
    assert code == 0, err
    assert re.findall("has (.*)", out)[-1] == "6"
    assert sorted(cli.starts()) == ["0", "1", "2", "3", "4", "5"]


def test_points_are_enqueued_between_the_calls_and_by_other_modules(cli: Cli) -> None:
    (cli.folder / "beside.py").write_text(
        "def seed(study):\n    study.enqueue_trial({'x': 0.5}, user_attrs={'by': 'seed'})\n"
    )
    script = (
        "from beside import seed\n"
        "def objective(trial):\n    return trial.suggest_float('x', 0, 1)\n"
        "study = optuna.create_study()\n"
        "seed(study)\n"
        "study.optimize(objective, n_trials=2)\n"
        "study.enqueue_trial({'x': 0.25})\n"
        "study.optimize(objective, n_trials=2)\n"
        "found = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))\n"
        "print([trial.params['x'] for trial in found][::2], found[0].user_attrs, len(found))\n"
    )
    for _ in range(2):
        assert ran(cli, script).splitlines()[-1] == "[0.5, 0.25] {'by': 'seed'} 4"
    more = "study.enqueue_trial({'x': 0}, user_attrs={'by': 'hand'})\n"
    (cli.folder / "script.py").write_text(
        f"import optuna\n{script}{more}study.optimize(objective, n_trials=1)\n"
    )
    code, _, err = cli.tuner("run", "script.py")
    assert code == 2
    assert "a point that was enqueued after the search had begun has user_attrs, which only" in err


def test_the_logging_and_the_modules_of_a_script_are_its_own(cli: Cli) -> None:
    (cli.folder / "beside.py").write_text("def double(x):\n    return 2 * x\n")
    (cli.folder / "script.py").write_text(
        "import logging, multiprocessing, optuna\n"
        "from beside import double\n"
        "def squared(x):\n    return x * x\n"
        "def objective(trial):\n    return double(trial.suggest_float('x', 0, 1))\n"
        "if __name__ == '__main__':\n"
        "    logging.basicConfig(level=logging.INFO, format='own %(message)s')\n"
        "    logging.info('begun')\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        logging.info(pool.map(squared, [3]))\n"
        "    optuna.create_study().optimize(objective, n_trials=1)\n"
    )
    code, _, err = cli.tuner("run", "script.py")
    assert code == 0, err
    assert "own begun\nown [9]\n" in err


@pytest.mark.parametrize(
    "set_up",
    [
        "logging.basicConfig(level=logging.INFO)\n",
        "log.setLevel(logging.INFO)\nlog.addHandler(logging.StreamHandler())\n",
    ],
)
def test_what_an_objective_logs_is_in_the_log_of_its_trial(cli: Cli, set_up: str) -> None:
    ran(
        cli,
        f"import logging\nlog = logging.getLogger('own')\n{set_up}"
        "def objective(trial):\n"
        "    log.info('trained')\n    log.debug('more')\n    return 1.0\n"
        "optuna.create_study().optimize(objective, n_trials=1)\n",
    )
    code, out, err = cli.tuner("logs", "script/0")
    assert code == 0, err
    assert "INFO:own:trained" in out
    assert "more" not in out


def test_an_objective_ends_the_search_and_names_constraints(cli: Cli) -> None:
    out = ran(
        cli,
        "def objective(trial):\n"
        "    x = trial.suggest_float('x', 0, 1)\n"
        "    trial.set_constraint('weight', trial.number - 0.5)\n"
        "    if trial.number == 1:\n        study.stop()\n"
        "    return -trial.number * (study.direction.name == 'MINIMIZE')\n"
        "study = optuna.create_study()\n"
        "study.optimize(objective, timeout=600)\n"
        "print('ran', len(study.trials), 'best', study.best_trial.number)\n",
    )
    assert "ran 2 best 0" in out


def test_constraints_may_be_named_by_the_code_and_not_set_by_each_trial(cli: Cli) -> None:
    """The search knows the largest of those that its script does not name in a form for metrics."""
    out = ran(
        cli,
        "LIMITS = {'weight': 2.5, 'volume': 9}\n"
        "def objective(trial):\n"
        "    for name, limit in LIMITS.items():\n"
        "        trial.set_constraint(name, trial.number - limit)\n"
        "    if trial.number == 2:\n        trial.set_constraint('late', 1)\n"
        "    if trial.number == 1:\n        trial.set_constraint('size (m)', 0)\n"
        "    return -trial.number\n"
        "study = optuna.create_study()\n"
        "study.optimize(objective, n_trials=4)\n"
        "print('best', study.best_trial.number, [trial.constraints for trial in study.trials])\n",
    )
    first, second = {"weight": -2.5, "volume": -9.0}, {"weight": -1.5, "volume": -8.0}
    third, fourth = {"weight": -0.5, "volume": -7.0}, {"weight": 0.5, "volume": -6.0}
    own = [first, {**second, "size (m)": 0.0}, {**third, "late": 1.0}, fourth]
    assert f"best 1 {own}" in out
    assert cli.json("best", "script", "-o", "json")["number"] == 1
    trials = cli.json("get", "trials", "script", "-o", "json")
    largest = [trial["metrics"]["constraint.set_constraint"] for trial in trials]
    assert largest == [-2.5, 0.0, -0.5, 0.5]


def test_a_script_continues_a_stored_study_that_optuna_has_run(cli: Cli) -> None:
    script = (
        "import sys\n"
        "def objective(trial):\n    return abs(trial.suggest_float('x', 0, 1) - 0.7)\n"
        "study = optuna.create_study(\n"
        "    study_name='kept', storage='sqlite:///optuna.db', load_if_exists=True\n)\n"
        "study.optimize(objective, n_trials=int(sys.argv[1]))\n"
        "print(len(study.trials), len({each.params['x'] for each in study.trials}))\n"
    )
    (cli.folder / "script.py").write_text(f"import optuna\n{script}")
    subprocess.run([sys.executable, "script.py", "12"], cwd=cli.folder, check=True)
    code, out, err = cli.tuner("run", "script.py", "--", "3")
    assert (code, out.splitlines()[-1]) == (0, "15 15"), err
    assert "resuming" not in err, "it begins with what Optuna has run"
    assert "15 15" in ran(cli, script, "--", "3"), "the search has ended"
    assert "16 16" in ran(cli, script, "--", "4")
    assert len(cli.json("get", "trials", "kept", "-o", "json")) == 16


def test_running_trials_finish_at_the_timeout(cli: Cli) -> None:
    out = ran(
        cli,
        "import time\n"
        "def objective(trial):\n    time.sleep(2)\n    return trial.suggest_float('x', 0, 1)\n"
        "study = optuna.create_study()\n"
        "study.optimize(objective, timeout=1, n_jobs=2)\n"
        "print([trial.state.name for trial in study.trials])\n",
    )
    assert set(re.findall("[A-Z]+", out.splitlines()[-1])) == {"COMPLETE"}
    (shown,) = cli.json("get", "experiments", "-o", "json")
    assert shown["reasonCode"] == "TimeSpent"


def test_a_search_without_a_number_of_trials_ends_with_the_grid(cli: Cli) -> None:
    out = ran(
        cli,
        "sampler = optuna.samplers.GridSampler({'x': [0.5, 0.25], 'y': [True, False]})\n"
        "study = optuna.create_study(sampler=sampler)\n"
        "study.optimize(lambda t: t.suggest_float('x', 0, 1) + t.suggest_categorical('y', [True, False]))\n"
        "print(sorted(trial.value for trial in study.trials))\n",
    )
    assert "[0.25, 0.5, 1.25, 1.5]" in out


def test_a_sampler_of_the_script_is_not_used_and_named(cli: Cli) -> None:
    sampler = (
        "class Mine(optuna.samplers.RandomSampler):\n    pass\n"
        "study = optuna.create_study(sampler={})\n"
        "study.optimize(lambda trial: trial.suggest_float('x', 0, 1), n_trials=2)\n"
    )
    warning = "script.py:5: the study has a Mine, which is not used: the search chooses the points"
    cure = "name one: add --set spec.algorithm.name=tpe"
    for mine, arguments, is_warned in (
        ("Mine()", (), True),
        ("optuna.samplers.PartialFixedSampler({'y': 1}, Mine())", (), True),
        ("Mine()", ("--set", "spec.algorithm.name=tpe"), False),
        ("optuna.samplers.RandomSampler()", (), False),
    ):
        (cli.folder / "script.py").write_text(f"import optuna\n{sampler.format(mine)}")
        code, _, err = cli.tuner("run", "script.py", *arguments)
        assert code == 0, err
        assert (warning in err and cure in err) == is_warned, err
        assert cli.tuner("delete", "script", "--yes")[0] == 0


def test_several_calls_go_on_with_the_same_grid(cli: Cli) -> None:
    script = (
        "import sys\n"
        "sampler = optuna.samplers.GridSampler({'x': [0.1, 0.2, 0.3, 0.4, 0.5]})\n"
        "study = optuna.create_study(sampler=sampler)\n"
        "for trials in map(int, sys.argv[1:]):\n"
        "    study.optimize(lambda trial: trial.suggest_float('x', 0, 1), n_trials=trials)\n"
        "print(sorted(trial.value for trial in study.trials if trial.value is not None))\n"
        "print([trial.state.name for trial in study.trials])\n"
    )
    assert "['COMPLETE', 'COMPLETE', 'COMPLETE']" in ran(cli, script, "--", "2", "1")
    out = ran(cli, script, "--", "2", "1", "9")
    assert "[0.1, 0.2, 0.3, 0.4, 0.5]" in out
    assert str(["COMPLETE"] * 5) in out


def test_a_script_goes_on_without_a_feasible_trial(cli: Cli) -> None:
    out = ran(
        cli,
        "sampler = optuna.samplers.TPESampler(constraints_func=lambda trial: [1.0])\n"
        "study = optuna.create_study(sampler=sampler)\n"
        "study.optimize(lambda trial: trial.suggest_float('x', 0, 1), n_trials=2)\n"
        "print(len(study.trials), 'infeasible')\n",
    )
    assert "2 infeasible" in out


def test_an_artifact_of_a_trial_is_found_in_the_study(cli: Cli) -> None:
    out = ran(
        cli,
        "from optuna.artifacts import FileSystemArtifactStore, get_all_artifact_meta, upload_artifact\n"
        "files = FileSystemArtifactStore('.')\n"
        "def objective(trial):\n"
        "    assert isinstance(trial, optuna.Trial)\n"
        "    upload_artifact(artifact_store=files, file_path='script.py', study_or_trial=trial)\n"
        "    return trial.suggest_float('x', 0, 1)\n"
        "study = optuna.create_study(study_name='art', storage='sqlite:///optuna.db')\n"
        "study.optimize(objective, n_trials=2)\n"
        "(meta,) = get_all_artifact_meta(study.best_trial, storage=study._storage)\n"
        "print(meta.filename, files.open_reader(meta.artifact_id).read()[:13])\n",
    )
    assert "script.py b'import optuna'" in out


def test_a_terminator_of_optuna_ends_the_search(cli: Cli) -> None:
    out = ran(
        cli,
        "import warnings\n"
        "from optuna import terminator as ends\n"
        "warnings.simplefilter('ignore')\n"
        "def objective(trial):\n"
        "    ends.report_cross_validation_scores(trial, [0.1, 0.3])\n"
        "    return float(trial.number)\n"
        "improvement = ends.BestValueStagnationEvaluator(max_stagnation_trials=2)\n"
        "end = ends.Terminator(improvement, ends.CrossValidationErrorEvaluator(), min_n_trials=2)\n"
        "study = optuna.create_study()\n"
        "study.optimize(objective, n_trials=30, callbacks=[ends.TerminatorCallback(end)])\n"
        "print('ran', sum(each.state.name == 'COMPLETE' for each in study.trials))\n",
    )
    assert int(out.split()[-1]) < 10


def test_the_best_trials_of_a_script_run_again(cli: Cli) -> None:
    ran(
        cli,
        "def objective(trial):\n"
        "    return trial.suggest_categorical('x', [None, [1, 2], 0.00001]) is None\n"
        "optuna.create_study(direction='maximize').optimize(objective, n_trials=4)\n",
    )
    code, _, err = cli.tuner("confirm", "script", "--top", "3", "--seeds", "2")
    assert code == 0, err
    again = cli.json("get", "trials", "script-confirm", "-o", "json")
    assert {trial["state"] for trial in again} == {"succeeded"}


def test_a_search_that_fails_ends_the_script_with_its_exit_code(cli: Cli) -> None:
    (cli.folder / "script.py").write_text(
        "import optuna\ndef objective(trial):\n    raise ValueError('no')\n"
        "optuna.create_study().optimize(objective, n_trials=9)\nprint('after')\n"
    )
    code, out, err = cli.tuner("run", "script.py")
    assert (code, out) == (8, "")
    assert "ValueError: no" in err
    assert "optuna_trial.py" not in err, "its traceback begins at the objective"


def test_an_objective_that_a_trial_cannot_load_is_refused_with_the_cure(cli: Cli) -> None:
    (cli.folder / "script.py").write_text(
        "import optuna, tqdm\nbar = tqdm.tqdm(total=2)\n"
        "def objective(trial):\n    bar.update(1)\n    return 1.0\n"
        "optuna.create_study().optimize(objective, n_trials=2)\n"
    )
    code, _, err = cli.tuner("run", "script.py")
    assert code == 8, err
    assert "RuntimeError: the objective cannot be loaded in a trial (RecursionError(" in err
    assert "create it in the objective" in err


def test_a_script_may_handle_ctrl_c_and_use_what_was_found(cli: Cli) -> None:
    (cli.folder / "script.py").write_text(
        "import optuna, time\n"
        "def objective(trial):\n"
        "    if trial.number == 1:\n"
        "        open('starts.txt', 'w').write('1')\n"
        "        time.sleep(600)\n"
        "    return trial.suggest_float('x', 0, 1)\n"
        "study = optuna.create_study()\n"
        "try:\n    study.optimize(objective, n_trials=2)\n"
        "except KeyboardInterrupt:\n    print('so far', len(study.trials))\n"
    )
    run = cli.start("run", "script.py")
    eventually(lambda: cli.starts() == ["1"])
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert (run.returncode, "so far 1" in out) == (0, True), err


def test_a_script_never_continues_the_search_of_another_one(cli: Cli) -> None:
    for folder, sign in (("one", "+"), ("two", "-")):
        (cli.folder / folder).mkdir()
        (cli.folder / folder / "study.py").write_text(
            "import optuna\n"
            "called = [lambda study, trial: print('called')]\n"
            f"objective = lambda trial: {sign}trial.suggest_float('x', 0, 1)\n"
            "optuna.create_study().optimize(objective, 1, callbacks=called)\n"
        )
    code, out, err = cli.tuner("run", "one/study.py")
    assert (code, out) == (0, "called\n"), err
    code, out, err = cli.tuner("run", "two/study.py")
    assert (code, out) == (6, "")
    owner = cli.folder / "one" / "study.py"
    assert f"two/study.py:4: study is the search of {owner}; give the study of this" in err
    # The same script elsewhere is the same search.
    owner.rename(cli.folder / "study.py")
    code, _, err = cli.tuner("run", "study.py")
    assert code == 0, err


def test_threads_of_a_script_search_with_one_study_one_after_another(cli: Cli) -> None:
    out = ran(
        cli,
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def objective(trial):\n    return trial.suggest_float('x', 0, 1)\n"
        "study = optuna.create_study()\n"
        "def nested(found, _):\n"
        "    try:\n        study.optimize(objective, 1)\n"
        "    except RuntimeError as error:\n        print(error)\n"
        "with ThreadPoolExecutor(3) as pool:\n"
        "    for _ in range(3):\n        pool.submit(study.optimize, objective, 2)\n"
        "print([trial.number for trial in study.trials])\n"
        "with ThreadPoolExecutor(1) as pool:\n"
        "    pool.submit(study.optimize, objective, 1, callbacks=[nested]).result()\n",
    )
    assert (
        out == "[0, 1, 2, 3, 4, 5]\nNested invocation of `Study.optimize` method isn't allowed.\n"
    )
    assert len(cli.json("get", "trials", "script", "-o", "json")) == 7


def test_a_search_by_brute_force_is_that_of_optuna_unless_another_algorithm_is_named(
    cli: Cli,
) -> None:
    script = (
        "study = optuna.create_study(sampler=optuna.samplers.BruteForceSampler())\n"
        "study.enqueue_trial({'n': 2})\n"
        "study.optimize(lambda trial: trial.suggest_int('n', 1, 3))\n"
        "print([trial.params['n'] for trial in study.trials][:1], len(study.trials))\n"
    )
    (cli.folder / "script.py").write_text(f"import optuna\n{script}")
    code, out, err = cli.tuner("run", "script.py")
    assert (code, out) == (0, "[2] 3\n"), err
    said = (
        "script.py:4: the trials are run by Optuna and not stored by tuner, because no search here"
    )
    assert said in err
    assert "add --set spec.algorithm.name=random" in err
    assert not cli.json("get", "experiments", "-o", "json")
    flags = ["--set", "spec.algorithm.name=random", "--set", "spec.budget.trials=2"]
    code, out, err = cli.tuner("run", "script.py", *flags)
    assert (code, out) == (0, "[2] 2\n"), err
    assert "not stored" not in err


def test_a_search_in_a_process_of_the_script_is_that_of_optuna(cli: Cli) -> None:
    (cli.folder / "script.py").write_text(
        "import multiprocessing\nimport optuna\n"
        "def work():\n"
        "    study = optuna.load_study(study_name='s', storage='sqlite:///s.db')\n"
        "    study.enqueue_trial({'x': 0.5})\n"
        "    study.optimize(lambda trial: trial.suggest_float('x', 0, 1), n_trials=2)\n"
        "study = optuna.create_study(study_name='s', storage='sqlite:///s.db')\n"
        "workers = [multiprocessing.get_context('fork').Process(target=work) for _ in range(2)]\n"
        # One after the other: with SQLite, two may take the same enqueued trial of Optuna's.
        "for worker in workers:\n    worker.start()\n    worker.join()\n"
        "values = [trial.value for trial in study.trials]\n"
        "print([worker.exitcode for worker in workers], len(values), values.count(0.5))\n"
    )
    code, out, err = cli.tuner("run", "script.py")
    assert (code, out) == (0, "[0, 0] 4 2\n"), err
    said = "script.py:6: the trials are run by Optuna and not stored by tuner, because a process"
    assert sum(line.startswith(said) for line in err.splitlines()) == 2
    assert not cli.json("get", "experiments", "-o", "json")


def test_a_search_in_an_objective_is_that_of_optuna(cli: Cli) -> None:
    out = ran(
        cli,
        "def objective(trial):\n"
        "    x = trial.suggest_float('x', 0, 1)\n"
        "    inner = optuna.create_study()\n"
        "    inner.enqueue_trial({'y': 0})\n"
        "    inner.optimize(lambda each: each.suggest_float('y', 0, 1), n_trials=2)\n"
        "    return len(inner.trials) + inner.best_value\n"
        "study = optuna.create_study()\nstudy.optimize(objective, n_trials=1)\n"
        "print('inner', study.best_value)\n",
    )
    assert "inner 2.0" in out


BY_OPTUNA = (
    "script.py: its trials are run by Optuna in this process, and not stored by tuner, because"
)


def test_a_script_without_a_search_of_ours_is_that_of_optuna(cli: Cli) -> None:
    asks = (
        "import sys\n"
        "def main(trials):\n"
        "    study = optuna.create_study()\n"
        "    for _ in range(trials):\n"
        "        trial = study.ask()\n"
        "        study.tell(trial, trial.suggest_float('x', 1, 1))\n"
        "    print(study.best_value, len(study.trials))\n"
        "if __name__ == '__main__':\n    main(int(sys.argv[1]))\n"
    )
    (cli.folder / "script.py").write_text(f"import optuna\n{asks}")
    code, out, err = cli.tuner("run", "script.py", "--", "3")
    assert (code, out) == (0, "1.0 3\n"), err
    assert err.startswith(BY_OPTUNA)
    # What a module beside it does is known at the end.
    (cli.folder / "asking.py").write_text(f"import optuna\n{asks}")
    (cli.folder / "script.py").write_text("import asking\nasking.main(2)\n")
    code, out, err = cli.tuner("run", "script.py")
    assert (code, out) == (0, "1.0 2\n"), err
    assert err.splitlines()[-1].startswith(BY_OPTUNA)
    assert not cli.json("get", "experiments", "-o", "json")


def test_a_script_that_fails_by_itself_shows_where(cli: Cli) -> None:
    (cli.folder / "script.py").write_text("import optuna\nx = 1 / 0\noptuna.optimize\n")
    code, _, err = cli.tuner("run", "script.py")
    assert code == 1
    lines = err.splitlines()
    assert lines[1].endswith('script.py", line 2, in <module>')
    assert lines[-1] == "ZeroDivisionError: division by zero"


SEARCHES = "{study}.optimize(lambda trial: trial.suggest_float('x', 0, 1), n_trials=2)\n"


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("import tuner\noptuna.create_study().ask()\n", [], "calls no study.optimize"),
        (
            "optuna.create_study().ask()\n",
            ["--set", "spec.budget.trials=3"],
            "as an objective. Flags such as --set have no effect on them; omit these",
        ),
        ("def objective(trial)\n", [], "2:21 is not Python: expected ':'"),
        (
            SEARCHES.format(
                study="optuna.create_study(sampler=optuna.samplers.BruteForceSampler())"
            ),
            ["--set", "spec.parallelism=2"],
            "script.py:2: the study has a BruteForceSampler, which is not taken over: no search here "
            "tries each point once and then ends; set a GridSampler, or name another algorithm: "
            "add --set spec.algorithm.name=random",
        ),
        (
            SEARCHES.format(study="optuna.create_study()"),
            ["--set", "spec.objective.direction=maximize"],
            "--set spec.objective.direction: is what the study in the script says",
        ),
        (
            "optuna.create_study().optimize(lambda t: t.suggest_float('x', 0, 1), n_jobs=0)\n",
            [],
            "n_jobs: 0 is not possible; write at least 1, or -1 for the number of CPUs",
        ),
        (
            "def objective(trial):\n    trial.study.tell(0, 1)\n"
            "optuna.create_study().optimize(objective, n_trials=2)\n",
            [],
            "script.py:4: the objective uses study.tell: a trial is a process",
        ),
        (
            "numbers = (each for each in (1, 2))\ndef objective(trial):\n    return next(numbers)\n"
            "optuna.create_study().optimize(objective, n_trials=2)\n",
            [],
            "script.py:5: the objective cannot be sent to another process: it uses numbers",
        ),
        (
            SEARCHES.format(study="optuna.create_study()"),
            ["--dry-run=client"],
            "--dry-run: the searches",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_place(
    cli: Cli, script: str, arguments: list[str], message: str
) -> None:
    assert message in refused(cli, script, *arguments)


def test_a_module_beside_the_script_with_the_name_of_our_package_is_refused(cli: Cli) -> None:
    file = cli.folder / "controller.py"
    file.write_text("GAIN = 2\n")
    err = refused(cli, "from controller import GAIN\n" + SEARCHES.format(study="study"))
    assert f"imports controller, which is a package that Tuner is made of; give {file}" in err


@pytest.mark.parametrize("verb", ["validate", "resume", "convert"])
def test_other_verbs_take_the_name_of_a_script_s_search(cli: Cli, verb: str) -> None:
    (cli.folder / "script.py").write_text("import optuna\n")
    code, _, err = cli.tuner(verb, "script.py")
    assert code == 2
    assert "is a script, whose searches are known when it runs: tuner run script.py" in err
