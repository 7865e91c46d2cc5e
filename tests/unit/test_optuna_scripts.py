"""What `tuner run SCRIPT` reads from a script that was written for Optuna, without running it."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest

from controller.optuna_script import OptunaScript
from controller.spec import SpecErrors, read_path

SCRIPT = """
import optuna

TRIALS = 40

def objective(trial):
    return trial.suggest_float("x", 0, 1)

parser.add_argument("--pruning", "-p", action="store_true")
args = parser.parse_args()
if __name__ == "__main__":
    study = {study}
    study.optimize(objective, {options})
    print(study.best_params)
"""


def spec_of(tmp_path: Path, study: str, options: str, *overrides: str) -> Any:
    path = tmp_path / "my_study.py"
    path.write_text(SCRIPT.format(study=study, options=options))
    return read_path(path, overrides=overrides).spec.document


def problems(tmp_path: Path, study: str, options: str, *overrides: str) -> list[str]:
    with pytest.raises(SpecErrors) as caught:
        spec_of(tmp_path, study, options, *overrides)
    return [str(each) for each in caught.value.located]


def test_the_calls_say_what_the_search_is(tmp_path: Path) -> None:
    study = 'optuna.create_study(study_name="My Study", direction="maximize")'
    document = spec_of(tmp_path, study, "n_trials=TRIALS, timeout=60, n_jobs=3")
    spec = document["spec"]
    assert document["metadata"]["name"] == "my-study"
    assert spec["objective"]["direction"] == "maximize"
    assert (spec["budget"]["trials"], spec["budget"]["wallClock"]) == (40, "1m")
    assert (spec["parallelism"], spec["defineByRun"]) == (3, True)
    assert spec["pruning"]["name"] == "optuna:median"
    assert spec["trial"]["command"][1:] == ["-m", "tuner.optuna_worker", "my_study.py"]


def test_several_directions_are_several_objectives(tmp_path: Path) -> None:
    study = "optuna.create_study(directions=['minimize', optuna.study.StudyDirection.MAXIMIZE])"
    spec = spec_of(tmp_path, study, "10")["spec"]
    assert [each["direction"] for each in spec["objectives"]] == ["minimize", "maximize"]
    assert "pruning" not in spec


@pytest.mark.parametrize(
    ("pruner", "pruning"),
    [
        ("NopPruner()", None),
        ("MedianPruner() if args.pruning else optuna.pruners.NopPruner()", None),
        (
            "MedianPruner(3, n_min_trials=2)",
            {
                "name": "optuna:median",
                "nStartupTrials": 3,
                "nWarmupSteps": 0,
                "intervalSteps": 1,
                "nMinTrials": 2,
            },
        ),
    ],
)
def test_the_pruner_of_the_study_prunes(
    tmp_path: Path, pruner: str, pruning: dict[str, Any] | None
) -> None:
    study = f"optuna.create_study(pruner=optuna.pruners.{pruner})"
    assert spec_of(tmp_path, study, "10")["spec"].get("pruning") == pruning


@pytest.mark.parametrize(
    ("study", "options", "override", "problem"),
    [
        ("create_study()", "", "spec.budget.trials=4", "13:5 has no n_trials"),
        ("create_study()", "n_trials=args.n", "spec.budget.trials=4", "args.n is known only when"),
        ("create_study()", "4, n_jobs=-2", "spec.parallelism=2", "-2 says no number"),
        (
            "create_study(direction=args.way)",
            "4",
            "spec.objective.direction=maximize",
            'is not "minimize" or "maximize"',
        ),
        (
            "create_study(pruner=optuna.pruners.HyperbandPruner())",
            "4",
            "spec.pruning.name=asha",
            "is not the median rule",
        ),
    ],
)
def test_what_is_not_written_there_is_said_by_set(
    tmp_path: Path, study: str, options: str, override: str, problem: str
) -> None:
    (found,) = problems(tmp_path, study, options)
    assert problem in found
    assert f"--set {override.partition('=')[0]}" in found
    spec_of(tmp_path, study, options, override)


@pytest.mark.parametrize(
    ("before", "trials"),
    [
        ("def run(n=7):\n    {}\nrun()\n", "n"),
        ("def run(m, /, *, n=5):\n    {}\nrun(1, n=7)\n", "n"),
        ("async def run(n):\n    {}\nasyncio.run(run(7))\n", "n"),
        ("@app.command()\ndef run(n: int = 7):\n    {}\n", "n"),
        ("def run():\n    n = 3\n    {}\nn = 9\nrun()\n", "2 * n + 1"),
        ("class Config:\n    n: int\n    trials = 7\n{}\n", "Config.trials"),
        ("class Config:\n    trials: int = 7\nconfig = Config()\n{}\n", "config.trials"),
        ("settings = dict(a=1)\nother = {{'n': 7, 'm': n}}\n{}\n", "other['n']"),
        (
            "parser.add_argument('-n', '--n-trials', type=int, default=7)\n"
            "args = parser.parse_args()\n{}\n",
            "args.n_trials",
        ),
        (
            "def main(args):\n    {}\nparser.add_argument('-n', dest='all', default=7)\n"
            "main(parser.parse_args())\n",
            "args.all",
        ),
        ("n = 30 // 4\n{}\n", "n"),
        ("DEBUG = False\n{}\n", "3 if DEBUG else 7"),
        (
            "parser.add_argument('--quick', action='store_true')\nargs = parser.parse_args()\n{}\n",
            "7 if not args.quick else 3",
        ),
        (
            "parser.add_argument('--full', action='store_true', default=True)\n"
            "args = parser.parse_args([])\n{}\n",
            "7 if args.full else 3",
        ),
    ],
)
def test_a_number_that_can_be_only_one_is_read(tmp_path: Path, before: str, trials: str) -> None:
    path = tmp_path / "my_study.py"
    search = f"study = create_study(); study.optimize(len, n_trials={trials})"
    path.write_text(before.format(search))
    assert read_path(path).spec.document["spec"]["budget"]["trials"] == 7


@pytest.mark.parametrize(
    ("before", "trials"),
    [
        ("def run(n=7):\n    n = n + 1\n    {}\nrun()\n", "n"),
        ("def run(n=7):\n    {}\nrun(*numbers)\n", "n"),
        ("def run(n=7):\n    {}\nrun(**numbers)\n", "n"),
        ("class Tuner:\n    def run(self, n=7):\n        {}\nTuner().run(3)\n", "n"),
        ("n = 7\ndef more():\n    global n\n    n = 9\n{}\n", "n"),
        ("def run():\n    n = 7\n    def f():\n        nonlocal n\n        n = 9\n    {}\n", "n"),
        ("n, m = 1, 2\nn = 7\n{}\n", "n"),
        ("n = m + 1\nm = n + 1\n{}\n", "n"),
        ("n = 7 / 0\n{}\n", "n"),
        ("n = n.n\n{}\n", "n.n"),
        ("n = n['n']\n{}\n", "n['n']"),
        ("n = 1 if n else 2\n{}\n", "n"),
        ("n = 1 if environ['DEBUG'] else 2\n{}\n", "n"),
        ("n = 'seven' * 7\n{}\n", "n"),
        ("class Config:\n    n = 7\nConfig.n = 9\n{}\n", "Config.n"),
        ("settings = {{'n': 7}}\nsettings['n'] = 9\n{}\n", "settings['n']"),
        ("settings = {{'n': 7}}\nsettings.update(n=9)\n{}\n", "settings['n']"),
        ("parser.add_argument('--n')\nargs = parser.parse_args()\n{}\n", "args.n"),
        (
            "parser.add_argument('--n', default=7)\nargs = parser.parse_args(['--n=9'])\n{}\n",
            "args.n",
        ),
        (
            "parser.add_argument('--n', default=7)\nparser.set_defaults(n=9)\n"
            "args = parser.parse_args()\n{}\n",
            "args.n",
        ),
        (
            "parser.add_argument('--n', default=7)\nother.add_argument('--n', default=9)\n"
            "args = parser.parse_args()\n{}\n",
            "args.n",
        ),
    ],
)
def test_a_number_that_may_be_another_is_asked_for(
    tmp_path: Path, before: str, trials: str
) -> None:
    path = tmp_path / "my_study.py"
    search = f"study = create_study(); study.optimize(len, n_trials={trials})"
    path.write_text(before.format(search))
    with pytest.raises(SpecErrors, match="is known only when the script runs; write a number"):
        read_path(path)


def test_what_an_argument_leaves_open_is_not_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "my_study.py"
    path.write_text(
        "def run(n=7, timeout=None, callbacks=None, jobs=-1, direction='maximize', pruner=None):\n"
        "    study = create_study(direction=direction, pruner=pruner)\n"
        "    study.optimize(len, n, timeout, n_jobs=jobs, callbacks=callbacks)\nrun()\n"
    )
    spec = read_path(path).spec.document["spec"]
    assert (spec["budget"]["trials"], spec["budget"].get("wallClock")) == (7, None)
    assert spec["parallelism"] == os.cpu_count()
    assert spec["objective"]["direction"] == "maximize"


def test_a_long_name_is_shortened_to_what_an_experiment_may_have(tmp_path: Path) -> None:
    path = tmp_path / f"{'hyperparameter_' * 5}search.py"
    path.write_text("create_study().optimize(len, n_trials=3)\n")
    assert read_path(path).spec.name == "hyperparameter-hyperparameter-hyperparam"


def test_set_replaces_only_what_it_names(tmp_path: Path) -> None:
    study = 'optuna.create_study(direction="maximize")'
    overrides = ("spec.objective.target=1", "spec.budget.failedTrials=2")
    spec = spec_of(tmp_path, study, "10, timeout=60", *overrides)["spec"]
    assert (spec["objective"]["direction"], spec["objective"]["target"]) == ("maximize", 1)
    assert spec["budget"] == {"trials": 10, "failedTrials": 2, "wallClock": "1m"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("spec.objective={metric: loss, direction: maximize}", {"loss": "maximize"}),
        (
            "spec.objectives=[{metric: a, direction: minimize}, {metric: b, direction: maximize}]",
            {"a": "minimize", "b": "maximize"},
        ),
    ],
)
def test_objectives_may_be_given_whole(
    tmp_path: Path, given: str, expected: dict[str, str]
) -> None:
    spec = spec_of(tmp_path, "create_study()", "10", given)["spec"]
    objectives = spec.get("objectives") or [spec["objective"]]
    assert {each["metric"]: each["direction"] for each in objectives} == expected


def test_callbacks_are_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "create_study()", "4, callbacks=[print]")
    assert "tuner.optimize_optuna" in found


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("study.add_trial(create_trial(value=1.0))", "6:1 adds trials that the search would not"),
        ("s = GridSampler({'x': [1]})", "6:5 the sampler says which values are tried, and only"),
        ("s = PartialFixedSampler({}, RandomSampler())", "add --set spec.algorithm.name=tpe"),
        ("s = TPESampler(constraints_func=f)", "6:5 has a constraints_func; only Optuna calls it"),
    ],
)
def test_what_trials_would_not_know_is_refused(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "my_study.py"
    script = SCRIPT.format(study="create_study()", options="4").splitlines()
    path.write_text("\n".join([*script[:5], line, *script[5:]]))
    with pytest.raises(SpecErrors) as caught:
        read_path(path)
    (found,) = (str(each) for each in caught.value.located)
    assert problem in found
    if "PartialFixed" in line:
        read_path(path, overrides=("spec.algorithm.name=tpe",))


@pytest.mark.parametrize(
    ("body", "study", "line", "problem"),
    [
        ("trial.study.trials", "create_study()", "", "5:5 trial.study.trials is of the study"),
        ("s = trial.study; s.best_value", "create_study()", "", "5:22 s.best_value is of the"),
        ("c = trial.study.user_attrs", "create_study()", "", "trial.study.user_attrs is of the"),
        (
            "n = len(study.trials)",
            "create_study()",
            "",
            "5:13 study.trials is of the study, and each trial is a process",
        ),
        ("n = helper()", "create_study()", "", "3:12 study.trials is of the study, and each"),
        ("n = len(study)", "create_study()", "", "5:13 study is assigned where the script makes"),
        ("...", "create_study(**options)", "", "8:9 has arguments behind * or **, which are"),
        ("...", "create_study()", "study.enqueue_trial(*point)", "has arguments behind * or **"),
        ("...", "create_study()", "study.tell(study.ask(), 1)", "9:1 adds trials that the search"),
        (
            "upload_artifact(study_or_trial=trial)",
            "create_study()",
            "",
            "5:5 stores in the database",
        ),
        ("...", "create_study(pruner=a if b else c)", "", "a if b else c is known only when the"),
        ("...", "load_study(study_name='s')", "", "loads a study whose direction is not in"),
        ("trial.set_constraint(1, 0)", "create_study()", "", "by a value that is not text"),
        (
            "...",
            "create_study()",
            "study.enqueue_trial({}, {'made': study})",
            "9:1 gives a point attributes that are not written there",
        ),
    ],
)
def test_what_trials_do_not_know_of_the_study_is_refused(
    tmp_path: Path, body: str, study: str, line: str, problem: str
) -> None:
    path = tmp_path / "my_study.py"
    path.write_text(
        f"options = point = {{}}\ndef helper():\n    return study.trials\ndef objective(trial):\n"
        f"    {body}\n    trial.study.direction\n    return 0\nstudy = {study}\n{line}\n"
        "study.optimize(objective, n_trials=3)\n"
    )
    with pytest.raises(SpecErrors) as caught:
        read_path(path)
    assert any(problem in str(each) for each in caught.value.located), caught.value.located


def test_data_that_only_the_program_loads_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my_study.py"
    path.write_text(
        "DATA = None\ndef objective(trial):\n    return len(DATA) + DATA[0]\n"
        "if __name__ == '__main__':\n    DATA = [1]\n"
        "    create_study().optimize(objective, n_trials=3)\n"
    )
    with pytest.raises(SpecErrors) as caught:
        read_path(path)
    (found,) = (str(each) for each in caught.value.located)
    assert "3:16 DATA is assigned where the script makes its study" in found
    assert "assign it at the top level" in found


def test_an_objective_may_stop_the_study_of_the_script_and_read_its_direction(
    tmp_path: Path,
) -> None:
    path = tmp_path / "my_study.py"
    path.write_text(
        "def objective(trial):\n    study.stop()\n    return study.direction.value\n"
        "if __name__ == '__main__':\n    study = create_study()\n"
        "    study.optimize(objective, n_trials=3)\n"
    )
    read_path(path)


def test_a_study_that_is_an_argument_of_a_helper_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "my_study.py"
    path.write_text(
        "def objective(trial):\n    study = trial.study\n    open('data').tell()\n"
        "    return len(study.study_name)\n"
        "def show(study):\n    print(study.best_value)\n"
        "study = create_study()\nstudy.optimize(objective, n_trials=3)\nshow(study)\n"
    )
    read_path(path)


def test_a_name_of_the_module_stands_for_a_number_and_a_pruner(tmp_path: Path) -> None:
    path = tmp_path / "my_study.py"
    path.write_text(
        "TRIALS: int = 7\npruner = MedianPruner(n_startup_trials=2)\n"
        "study = create_study(pruner=pruner)\n"
        "study.optimize(lambda trial: 0, n_trials=TRIALS)\n"
    )
    spec: Any = read_path(path).spec.document["spec"]
    assert spec["budget"]["trials"] == 7
    assert spec["pruning"]["nStartupTrials"] == 2


def test_a_name_that_is_assigned_under_the_guard_is_known_and_twice_is_not(tmp_path: Path) -> None:
    path = tmp_path / "my_study.py"
    script = (
        "TRIALS = 3\nif __name__ == '__main__':\n    {} = 7\n    study = create_study()\n"
        "    study.optimize(lambda trial: 0, n_trials=TRIALS, n_jobs=jobs)\n"
    )
    path.write_text(script.format("jobs"))
    spec: Any = read_path(path).spec.document["spec"]
    assert (spec["budget"]["trials"], spec["parallelism"]) == (3, 7)
    path.write_text(script.format("jobs = TRIALS"))
    with pytest.raises(SpecErrors) as caught:
        read_path(path)
    assert "5:46 TRIALS is known only when the script runs" in str(caught.value)


def test_attributes_of_enqueued_points_are_told_to_the_trials(tmp_path: Path) -> None:
    path = tmp_path / "my_study.py"
    path.write_text(
        "study = create_study()\nstudy.enqueue_trial({'x': 1})\n"
        "study.enqueue_trial({'x': 2}, user_attrs={'from': '${paper}'})\n"
        "study.enqueue_trial({'x': 2}, {'from': 'twice'}, skip_if_exists=True)\n"
        "study.optimize(lambda trial: 0, n_trials=7)\n"
    )
    spec: Any = read_path(path).spec.document["spec"]
    assert spec["trial"]["command"][4:] == ['[{}, {"from": "$${paper}"}]']


def test_trials_touch_no_storage_of_the_script() -> None:
    script = OptunaScript.read(
        "storage = RDBStorage('sqlite:///a.db')\ndelete_study(study_name='s', storage=storage)\n"
        "DATA = 3\nstudy = create_study(storage=storage)\nstudy.optimize(f, n_trials=3)\n",
        "study.py",
    )
    assert ast.unparse(script.without_search()) == "DATA = 3"


def test_a_sampler_without_constraints_is_no_obstacle(tmp_path: Path) -> None:
    sampler = "TPESampler(constraints_func=None)"
    assert spec_of(tmp_path, f"create_study(sampler={sampler})", "4")["spec"]["budget"]


def test_constraints_that_the_objective_names_bound_the_search(tmp_path: Path) -> None:
    path = tmp_path / "my_study.py"
    script = (
        "def objective(trial):\n    trial.set_constraint({}, 1.0)\n"
        "    trial.set_constraint(key='b', value=2.0)\n"
        "study.optimize(objective, n_trials=3)\n"
    )
    path.write_text(script.format("'a'"))
    bounds = read_path(path).spec.document["spec"]["constraints"]
    assert bounds == [
        {"metric": "constraint.a", "max": 0},
        {"metric": "constraint.b", "max": 0},
    ]
    path.write_text(script.format("f'{trial.number}'"))
    with pytest.raises(SpecErrors, match="2:5 names a constraint that is known only when"):
        read_path(path)


RUN = "def run(_=0):\n    study.optimize(objective, n_trials=1)\n"


@pytest.mark.parametrize(
    ("search", "place"),
    [
        ("for _ in range(3):\n    study.optimize(objective, n_trials=1)\n", "4:5"),
        ("[study.optimize(objective, n_trials=1) for _ in range(3)]\n", "3:2"),
        ("{n: study.optimize(objective, n_trials=1) for n in range(3)}\n", "3:5"),
        ("{study.optimize(objective, n_trials=1) for n in range(3)}\n", "3:2"),
        (f"async {RUN}async def main():\n    await gather(run(), run())\n", "4:5"),
        (RUN + "with Pool(3) as pool:\n    pool.map(run, range(3))\n", "4:5"),
        (RUN + "for _ in range(3):\n    Process(target=run).start()\n", "4:5"),
        (RUN + "run()\nrun()\n", "4:5"),
        (RUN + "for _ in range(3):\n    typer.run(run)\n", "4:5"),
        (RUN + "def main():\n    while True:\n        run()\nmain()\n", "4:5"),
        (RUN + "def again():\n    run()\n    again()\nagain()\n", "4:5"),
    ],
)
def test_a_search_that_may_run_more_than_once_is_refused(
    tmp_path: Path, search: str, place: str
) -> None:
    path = tmp_path / "my_study.py"
    path.write_text(f"study = create_study()\ndef objective(t): ...\n{search}")
    with pytest.raises(SpecErrors, match=rf"{place} calls study\.optimize in a loop, or in a"):
        read_path(path)


def test_functions_that_call_each_other_and_that_nobody_calls_are_read(tmp_path: Path) -> None:
    path = tmp_path / "my_study.py"
    path.write_text(
        f"study = create_study()\ndef objective(t): ...\n{RUN}    again()\n"
        "def again():\n    run()\n"
    )
    read_path(path)


@pytest.mark.parametrize(
    "once", ["main()", "sys.exit(main())", "typer.run(main)", "fire.Fire(main)"]
)
def test_a_search_in_a_function_that_is_called_once_is_one_search(
    tmp_path: Path, once: str
) -> None:
    path = tmp_path / "my_study.py"
    path.write_text(
        f"study = create_study()\ndef objective(t): ...\n{RUN}"
        f"def main():\n    run()\nif __name__ == '__main__':\n    {once}\n"
    )
    read_path(path)


@pytest.mark.parametrize(
    ("search", "line"),
    [
        ("{}\nimport json\ndef show(): ...\nprint(study.best_params)\n", 5),
        ("def main():\n    {}\n    return study\nmain()\nx = 1\n", None),
        ("def main():\n    try:\n        {}\n    except E:\n        pass\n    show()\nmain()\n", 7),
        ("if True:\n    if True:\n        {}\n    show(study)\n", 5),
        ("{}\n", None),
    ],
)
def test_what_follows_a_search_is_said_not_to_run(
    tmp_path: Path, search: str, line: int | None
) -> None:
    path = tmp_path / "my_study.py"
    path.write_text(
        "study = create_study()\n" + search.format("study.optimize(lambda t: 0, n_trials=3)")
    )
    found = [each for each in read_path(path).warnings if "what follows the search" in each]
    assert [each.split(": ")[0] for each in found] == ([f"{path}:{line}"] if line else [])


def test_a_search_that_is_passed_on_is_refused_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "my_study.py"
    path.write_text(
        "study = create_study()\ndef objective(t): ...\n"
        "executor.submit(study.optimize, objective, n_trials=4)\n"
    )
    with pytest.raises(SpecErrors, match="3:17 is passed on instead of called; call study"):
        read_path(path)


@pytest.mark.parametrize(
    ("catch", "breaker"),
    [("(ValueError,)", "off"), ("ValueError", "off"), ("()", "on"), ("catch=(E,)", "off")],
)
def test_trials_may_fail_if_the_script_catches_their_exceptions(
    tmp_path: Path, catch: str, breaker: str
) -> None:
    options = f"10, {catch}" if "=" in catch else f"10, None, 1, {catch}"
    assert spec_of(tmp_path, "create_study()", options)["spec"].get("breaker") == breaker


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("lambda trial: objective(trial, study)", "3:5 known.trials is of the study"),
        ("partial(objective, known=study)", "3:5 known.trials is of the study"),
        ("lambda trial: len(study)", "6:34 study is assigned where the script makes"),
    ],
)
def test_an_objective_may_be_given_the_study(tmp_path: Path, given: str, problem: str) -> None:
    path = tmp_path / "my_study.py"
    script = (
        "from functools import partial\ndef objective(trial, known): known.{}\n"
        "study = create_study()\n\nstudy.optimize({}, 3)\n"
    ).replace(": known", ":\n    known")
    path.write_text(script.format("stop()", given))
    if "len" not in given:
        read_path(path)
    path.write_text(script.format("trials", given))
    with pytest.raises(SpecErrors) as caught:
        read_path(path)
    assert [problem in str(each) for each in caught.value.located] == [True]


def test_a_point_that_is_enqueued_if_it_is_new_is_enqueued_once(tmp_path: Path) -> None:
    path = tmp_path / "my_study.py"
    path.write_text(
        "def objective(t): ...\nstudy.enqueue_trial({'x': 1})\n"
        "study.enqueue_trial({'x': 1}, skip_if_exists=True)\nstudy.enqueue_trial({'x': 2}, None, True)\n"
        "study.optimize(objective, n_trials=3)\n"
    )
    assert read_path(path).spec.document["spec"]["initial"] == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize(
    ("module", "objective", "lost"),
    [
        ("def objective(t): ...\nif True:\n    {}\n", "objective", None),
        ("def main():\n    def objective(t): ...\n    {}\nmain()\n", "objective", "objective"),
        ("class T:\n    def run(self):\n        {}\n", "self.objective", "self"),
        (
            "from functools import partial\nstudy = create_study()\ndef f(t, s): ...\n{}\n",
            "partial(f, s=study)",
            None,
        ),
        ("def objective(t): ...\n{}\n", "lambda t: objective(t)", None),
        ("from objectives import *\n{}\n", "objective", None),
        (
            "import a.b as c, d.e\nX = 1\n{}\n",
            "lambda t, *r, k=X: sum(c(q) + d.e(t) for q in r)",
            None,
        ),
        (
            "if True:\n    def objective(t): ...\nelse:\n    objective = None\n{}\n",
            "objective",
            None,
        ),
        (
            "def start():\n    global objective\n    objective = len\nstart()\n{}\n",
            "objective",
            None,
        ),
    ],
)
def test_an_objective_that_trials_cannot_name_is_refused(
    tmp_path: Path, module: str, objective: str, lost: str | None
) -> None:
    path = tmp_path / "my_study.py"
    path.write_text(module.format(f"create_study().optimize({objective}, n_trials=3)"))
    if lost is None:
        read_path(path)
        return
    with pytest.raises(SpecErrors) as caught:
        read_path(path)
    (found,) = (str(each) for each in caught.value.located)
    assert f"{lost} is not defined at the top level of the script" in found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def f(:\n", "is not Python"),
        ("import tuner\ntuner.optimize(f, {}, {})\n", "runs by itself: python "),
        ("study.optimize(f, 1)\nstudy.optimize(g, 1)\n", "2:1 calls study.optimize again"),
        (
            "create_study(direction='maximize')\ncreate_study()\nstudy.optimize(f, 1)\n",
            "2:1 makes a study of other directions",
        ),
        ("study.enqueue_trial(point())\nstudy.optimize(f, 1)\n", "1:1 enqueues a point"),
    ],
)
def test_other_scripts_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(text)
    with pytest.raises(SpecErrors, match=r".") as caught:
        read_path(path)
    assert problem in str(caught.value)


def test_a_trial_needs_what_is_left_without_the_study() -> None:
    script = OptunaScript.read(
        """
import optuna
scale = 2
study = optuna.create_study(storage="sqlite:///a.db")
study.set_user_attr("who", "me")
def objective(trial):
    return scale * offset
def main():
    study.optimize(objective, 10)
main()
offset = 3
best = study.best_params
print(best)
""",
        "script.py",
    )
    assert [ast.unparse(each).splitlines()[0] for each in script.without_search().body] == [
        "import optuna",
        "scale = 2",
        "def objective(trial):",
        "def main():",
        "offset = 3",
    ]


def test_a_script_that_is_missing_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(SpecErrors) as refused:
        read_path(tmp_path / "nothere.py")
    assert "there is no such file; name a script that calls study.optimize" in str(refused.value)
    assert "tuner init" not in str(refused.value)


def test_set_gives_the_direction_of_a_script_that_computes_it(tmp_path: Path) -> None:
    given = "spec.objective.direction=maximize"
    spec = spec_of(tmp_path, "optuna.create_study(direction=f())", "10", given)["spec"]
    assert spec["objective"]["direction"] == "maximize"
