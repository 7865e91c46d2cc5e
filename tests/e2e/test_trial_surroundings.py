"""The environment of a local trial: its working directory,
its parameters as a file, and inherited variables.
"""

from __future__ import annotations

import json

import pytest
import yaml

from tests.e2e.cli import Cli, experiment

SPACE = (
    "x: {type: float, min: 1.0e-7, max: 1.0e-6}, n: {type: int, min: 3, max: 3}, act: ['on', "
    "relu], fast: [true]"
)


def write(cli: Cli, script: str, *, more: str = "") -> None:
    cli.let_go()
    (cli.folder / "look.sh").write_text(f"{script}\necho score=1\n")
    command = ["sh", str(cli.folder / "look.sh"), "${x}"]
    trial = f"gracePeriod: 60s{more}"
    (cli.folder / "x.yaml").write_text(experiment(command, trials=1, parameters=SPACE, trial=trial))


def test_a_trial_runs_in_the_working_directory_that_the_file_names(cli: Cli) -> None:
    (cli.folder / "src").mkdir()
    write(cli, "pwd", more="\n    workingDir: src")
    code, _, err = cli.tuner("run", cli.folder / "x.yaml")
    assert code == 0, err
    assert cli.tuner("logs", "tiny/0")[1].splitlines()[0] == str(cli.folder / "src")


def test_a_missing_working_directory_is_refused_before_anything_is_created(cli: Cli) -> None:
    write(cli, "pwd", more="\n    workingDir: sorce")
    code, _, err = cli.tuner("run", "x.yaml")
    assert code == 2
    assert (
        f"spec.trial.workingDir: {cli.folder}/sorce is not a folder; create it, or name another"
        in err
    )
    code, out, _ = cli.tuner("doctor", "x.yaml")
    assert (code, f"{cli.folder}/sorce is not a folder" in out) == (7, True)
    assert not (cli.folder / "state").exists()


@pytest.mark.parametrize("form", ["", "json", "yaml"])
def test_parameters_reach_a_trial_as_a_file(cli: Cli, form: str) -> None:
    write(
        cli,
        'cat "$TUNER_PARAMETERS_FILE" > got; basename "$TUNER_PARAMETERS_FILE"',
        more=f"\n    parametersFile: {form}" if form else "",
    )
    code, _, err = cli.tuner("run", "x.yaml")
    assert code == 0, err
    read = yaml.safe_load if form == "yaml" else json.loads
    assert read((cli.folder / "got").read_text()) == cli.trials()[0]["parameters"]
    assert cli.tuner("logs", "tiny/0")[1].splitlines()[0] == f"parameters.{form or 'json'}"
    assert ("not mentioned" in err) is (form == "")


def test_a_trial_inherits_no_credentials_of_store_and_service(cli: Cli) -> None:
    names = ("TUNER_TOKEN", "TUNER_TOKEN_FILE", "PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE")
    cli.env |= dict.fromkeys(names, "hush") | {"MINE": "kept"}
    cli.env["TUNER_TOKEN_FILE"] = str(cli.folder / "x.yaml")  # not read without --server
    write(cli, f'for name in {" ".join(names)} MINE; do eval "echo $name=\\${{$name-unset}}"; done')
    code, _, err = cli.tuner("run", "x.yaml")
    assert code == 0, err
    assert cli.tuner("logs", "tiny/0")[1].splitlines()[:6] == [
        f"{name}=unset" for name in names
    ] + ["MINE=kept"]


def test_a_trial_gets_a_credential_only_if_its_file_names_it(cli: Cli) -> None:
    cli.env["PGPASSWORD"] = "hush"
    write(
        cli,
        'echo "PGPASSWORD=$PGPASSWORD"',
        more="\n    env: {PGPASSWORD: {secret: database/password}}",
    )
    code, _, err = cli.tuner("run", "x.yaml")
    assert code == 0, err
    assert cli.tuner("logs", "tiny/0")[1].splitlines()[0] == "PGPASSWORD=hush"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["spec.parallelism=1000", "spec.budget.trials=2000"], "1000 trials at a time on "),
        (["spec.parallelism=1000", "spec.budget.trials=3"], ""),
        (["spec.parallelism=1000", "spec.trial.resources.gpu=0.5"], ""),
        (
            ["spec.parallelism=2", "spec.trial.resources.cpu=1000", "spec.budget.trials=3"],
            "2 trials at a time of 1000",
        ),
        (["spec.parallelism=1", "spec.trial.resources.cpu=1000"], ""),
        (
            ["spec.parallelism=2000", "spec.trial.resources.cpu=0.001", "spec.budget.trials=2000"],
            "",
        ),
    ],
)
def test_a_parallelism_far_above_the_cores_gives_a_warning(
    cli: Cli, settings: list[str], said: str
) -> None:
    write(cli, "")
    words = [word for setting in settings for word in ("--set", setting)]
    code, _, err = cli.tuner("validate", "x.yaml", *words)
    assert code == 0, err
    found = [line for line in err.splitlines() if line.startswith("warning: spec.parallelism: ")]
    assert [
        line.removeprefix("warning: spec.parallelism: ").startswith(said) for line in found
    ] == [True] * bool(said)
    assert all("; lower it: --set spec.parallelism=" in line for line in found)


def test_more_trials_at_a_time_than_can_run_and_an_endless_grid_are_warned_of(cli: Cli) -> None:
    write(cli, "")
    code, _, err = cli.tuner(
        "validate", "x.yaml", "--set", "spec.parallelism=1000000", "--set", "spec.budget.trials=10"
    )
    assert code == 0
    assert (
        "warning: spec.parallelism: 1,000,000 trials at a time (the budget is 10) are chosen "
        "without" in err
    )
    grid = (
        "spec.algorithm={name: grid}",
        "spec.budget={}",
        "spec.parameters.x={type: int, min: 1, max: 10000000000000}",
    )
    settings = [word for setting in grid for word in ("--set", setting)]
    code, _, err = cli.tuner("validate", "x.yaml", *settings)
    assert code == 0, err
    assert (
        "warning: spec.algorithm.name: the grid has 20,000,000,000,000 points, and all of them "
        "would be tried" in err
    )
    assert (
        "the grid has"
        not in cli.tuner("validate", "x.yaml", *settings, "--set", "spec.budget.trials=9")[2]
    )


def test_a_run_warns_of_its_parallelism_too(cli: Cli) -> None:
    write(cli, "")
    settings = ("spec.trial.resources.cpu=1000", "spec.parallelism=2", "spec.budget.trials=2")
    code, _, err = cli.tuner(
        "run", "x.yaml", *(word for setting in settings for word in ("--set", setting))
    )
    assert code == 0, err
    assert "warning: spec.parallelism: 2 trials at a time of 1000 cores each on " in err


def test_a_program_that_is_only_in_the_image_is_reported_before_a_trial_fails(cli: Cli) -> None:
    words = '[python, /opt/app/train.py, --out=/opt/out, "--x=${x}"]'
    cli.file.write_text(
        experiment().split("  trial:")[0] + f"  trial:\n    image: app:1\n    command: {words}\n"
    )
    code, _, err = cli.tuner("validate", cli.file)
    assert code == 0, err
    assert err.count("is not on this machine") == 1
    assert (
        "/opt/app/train.py of the command is not on this machine, and trials here do not run in "
        "the image" in err
    )
    code, _, err = cli.tuner("validate", cli.file, "--runtime", "kubernetes")
    assert "is not on this machine" not in err
