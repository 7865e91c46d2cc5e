"""What surrounds a local trial: the folder it runs in, its parameters as a file, and which variables it inherits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.somebody import Person, experiment, somebody

SPACE = "x: {type: float, min: 1.0e-7, max: 1.0e-6}, n: {type: int, min: 3, max: 3}, act: ['on', relu], fast: [true]"


@pytest.fixture
def me(tmp_path: Path) -> Iterator[Person]:
    with somebody(tmp_path) as person:
        yield person


def write(me: Person, script: str, *, more: str = "") -> None:
    me.let_go()
    (me.folder / "look.sh").write_text(f"{script}\necho score=1\n")
    command = ["sh", str(me.folder / "look.sh"), "${x}"]
    trial = f"gracePeriod: 60s{more}"
    (me.folder / "x.yaml").write_text(experiment(command, trials=1, parameters=SPACE, trial=trial))


def test_a_trial_runs_in_the_working_directory_that_the_file_names(me: Person) -> None:
    (me.folder / "src").mkdir()
    write(me, "pwd", more="\n    workingDir: src")
    code, _, err = me.tuner("run", me.folder / "x.yaml")
    assert code == 0, err
    assert me.tuner("logs", "tiny/0")[1].splitlines()[0] == str(me.folder / "src")


def test_a_working_directory_that_is_missing_is_refused_before_anything_is_made(me: Person) -> None:
    write(me, "pwd", more="\n    workingDir: sorce")
    code, _, err = me.tuner("run", "x.yaml")
    assert code == 2
    assert f"spec.trial.workingDir: {me.folder}/sorce is not a folder; make it, or name another" in err
    code, out, _ = me.tuner("doctor", "x.yaml")
    assert (code, f"{me.folder}/sorce is not a folder" in out) == (7, True)
    assert not (me.folder / "state").exists()


@pytest.mark.parametrize("form", ["", "json", "yaml"])
def test_parameters_reach_a_trial_as_a_file(me: Person, form: str) -> None:
    write(me, 'cat "$TUNER_PARAMETERS_FILE" > got; basename "$TUNER_PARAMETERS_FILE"',
          more=f"\n    parametersFile: {form}" if form else "")  # fmt: skip
    code, _, err = me.tuner("run", "x.yaml")
    assert code == 0, err
    read = yaml.safe_load if form == "yaml" else json.loads
    assert read((me.folder / "got").read_text()) == me.trials()[0]["parameters"]
    assert me.tuner("logs", "tiny/0")[1].splitlines()[0] == f"parameters.{form or 'json'}"
    assert ("not mentioned" in err) is (form == "")


def test_a_trial_inherits_no_credentials_of_the_store_and_the_service(me: Person) -> None:
    names = ("TUNER_TOKEN", "TUNER_TOKEN_FILE", "PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE")
    me.env |= dict.fromkeys(names, "hush") | {"MINE": "kept"}
    me.env["TUNER_TOKEN_FILE"] = str(me.folder / "x.yaml")  # read by nobody: there is no --server
    write(me, f'for name in {" ".join(names)} MINE; do eval "echo $name=\\${{$name-unset}}"; done')
    code, _, err = me.tuner("run", "x.yaml")
    assert code == 0, err
    assert me.tuner("logs", "tiny/0")[1].splitlines()[:6] == [f"{name}=unset" for name in names] + ["MINE=kept"]


def test_a_trial_that_needs_a_credential_names_it(me: Person) -> None:
    me.env["PGPASSWORD"] = "hush"
    write(me, 'echo "PGPASSWORD=$PGPASSWORD"', more="\n    env: {PGPASSWORD: {secret: database/password}}")
    code, _, err = me.tuner("run", "x.yaml")
    assert code == 0, err
    assert me.tuner("logs", "tiny/0")[1].splitlines()[0] == "PGPASSWORD=hush"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["spec.parallelism=1000", "spec.budget.trials=2000"], "1000 trials at a time on "),
        (["spec.parallelism=1000", "spec.budget.trials=3"], ""),
        (["spec.parallelism=1000", "spec.trial.resources.gpu=0.5"], ""),
        (["spec.parallelism=2", "spec.trial.resources.cpu=1000", "spec.budget.trials=3"], "2 trials at a time of 1000"),
        (["spec.parallelism=1", "spec.trial.resources.cpu=1000"], ""),
        (["spec.parallelism=2000", "spec.trial.resources.cpu=0.001", "spec.budget.trials=2000"], ""),
    ],
)  # fmt: skip
def test_a_parallelism_far_above_the_cores_is_warned_of(me: Person, settings: list[str], said: str) -> None:
    write(me, "")
    words = [word for setting in settings for word in ("--set", setting)]
    code, _, err = me.tuner("validate", "x.yaml", *words)
    assert code == 0, err
    found = [line for line in err.splitlines() if line.startswith("warning: spec.parallelism: ")]
    assert [line.removeprefix("warning: spec.parallelism: ").startswith(said) for line in found] == [True] * bool(said)
    assert all("; lower it: --set spec.parallelism=" in line for line in found)


def test_a_run_warns_of_its_parallelism_too(me: Person) -> None:
    write(me, "")
    settings = ("spec.trial.resources.cpu=1000", "spec.parallelism=2", "spec.budget.trials=2")
    code, _, err = me.tuner("run", "x.yaml", *(word for setting in settings for word in ("--set", setting)))
    assert code == 0, err
    assert "warning: spec.parallelism: 2 trials at a time of 1000 cores each on " in err
