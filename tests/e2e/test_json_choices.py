"""Choices with any JSON value reach the program and all commands that show them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli import Cli

PROGRAM = """
import json, os, pathlib, sys
parameters = json.loads(os.environ["TUNER_PARAMETERS"])
record = {"argv": sys.argv[1:], "env": os.environ.get("OPTIMIZER"), "parameters": parameters}
with pathlib.Path("seen.jsonl").open("a") as file:
    file.write(json.dumps(record) + "\\n")
print("score=%d" % len(sys.argv[1]))
"""
FILE = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: choices}
spec:
  objective: {metric: score, direction: maximize}
  parameters:
    optimizer: [null, [1, 2], {kind: a, lr: 0.1}, "null", 1, "1", true]
    momentum: {type: choice, values: [0.5, 0.9], when: {optimizer: [null, {lr: 0.1, kind: a}]}}
  initial: [{optimizer: {lr: 0.1, kind: a}, momentum: 0.9}]
  algorithm: {name: grid}
  canary: 0s
  trial:
    command: [python, trial.py, "${optimizer}", "--momentum=${momentum}"]
    env: {OPTIMIZER: "${optimizer}", MOMENTUM: "m=${momentum}"}
"""
TEXTS = {"null", "[1,2]", '{"kind":"a","lr":0.1}', "1", "true"}


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path)
    (tmp_path / "trial.py").write_text(PROGRAM)
    cli.file.write_text(FILE)
    yield cli
    for process in cli.started:
        process.kill()


def test_null_lists_and_objects_reach_the_program_and_every_command(cli: Cli) -> None:
    code, out, err = cli.tuner("run", cli.file)
    assert code == 0, out + err
    seen = [json.loads(line) for line in (cli.folder / "seen.jsonl").read_text().splitlines()]
    assert len(seen) == 9  # seven values, two of which have two momenta
    assert {each["argv"][0] for each in seen} == TEXTS
    assert all(each["env"] == each["argv"][0] for each in seen)
    assert seen[0]["parameters"] == {"optimizer": {"kind": "a", "lr": 0.1}, "momentum": 0.9}
    nulls = [each for each in seen if each["parameters"]["optimizer"] is None]
    assert sorted(each["parameters"]["momentum"] for each in nulls) == [0.5, 0.9]
    lists = [each for each in seen if each["parameters"]["optimizer"] == [1, 2]]
    assert [each["parameters"] for each in lists] == [{"optimizer": [1, 2]}], (
        "an inactive parameter is absent"
    )
    assert lists[0]["argv"] == ["[1,2]"]
    recorded = (cli.folder / "state").glob("experiments/*/trials/*/1/provenance.json")
    environments = [json.loads(file.read_text())["environment"] for file in recorded]
    assert sum("MOMENTUM" in each for each in environments) == 4, (
        "provenance has the variables that a trial had"
    )

    trials = cli.json("get", "trials", "choices", "-o", "json")
    assert [
        trial["parameters"] for trial in trials if trial["parameters"]["optimizer"] is None
    ] != []
    rows = list(csv.DictReader(io.StringIO(cli.tuner("export", "choices", "--format", "csv")[1])))
    assert {row["parameters.optimizer"] for row in rows} == TEXTS
    assert {
        row["parameters.momentum"] for row in rows if row["parameters.optimizer"] == "[1,2]"
    } == {""}
    for command in (
        ["get", "trials", "choices"],
        ["describe", "choices"],
        ["describe", "choices/0"],
        ["report", "choices"],
        ["report", "choices", "-o", "json"],
        ["report", "choices", "-o", "yaml"],
        ["best", "choices"],
        ["best", "choices", "-o", "json"],
        ["export", "choices", "--format", "json"],
        ["get", "trials", "choices", "-o", "yaml"],
    ):
        code, out, err = cli.tuner(*command)
        assert code == 0, err
        assert '"kind"' in out or "kind: a" in out, command
    assert "null" in cli.tuner("report", "choices")[1]


def test_an_export_can_be_imported_and_extended(cli: Cli) -> None:
    assert cli.tuner("run", cli.file)[0] == 0
    exported = cli.tuner("export", "choices", "--format", "csv")[1]
    (cli.folder / "old.csv").write_text(exported)
    other = cli.folder / "other.yaml"
    other.write_text(
        FILE.replace("name: choices", "name: other").replace("name: grid", "name: random")
    )
    code, out, err = cli.tuner("import", other, "--from", "old.csv", "--value", "value")
    assert code == 0, out + err
    imported = cli.json("get", "trials", "other", "-o", "json")
    assert len(imported) == 9
    assert [1, 2] in [trial["parameters"]["optimizer"] for trial in imported]

    set_choices = (
        'spec.parameters.optimizer=[null, [1, 2], {lr: 0.1, kind: a}, "null", 1, "1", true, [[3]]]'
    )
    code, out, err = cli.tuner("extend", "choices", "--set", set_choices)
    assert code == 0, out + err
    newest = cli.json("get", "trials", "choices", "-o", "json")
    assert [trial["parameters"] for trial in newest[9:]] == [{"optimizer": [[3]]}]
    revision = next((cli.folder / "state" / "experiments").glob("*/experiment.r2.yaml")).read_text()
    assert "optimizer: [null, [1, 2], {lr: 0.1, kind: a}," in revision.replace('"lr"', "lr")


def test_null_is_a_value_on_the_command_line_too(cli: Cli) -> None:
    sets = ("--set", "spec.initial[0].optimizer=null", "--set", "spec.initial[0].momentum=0.5")
    code, out, err = cli.tuner("validate", cli.file, *sets)
    assert code == 0, out + err
    code, _, err = cli.tuner("validate", cli.file, "--set", "spec.initial[0].momentum=null")
    assert code == 2
    assert "--set spec.initial[0].momentum=null: null is not one of the choices 0.5, 0.9" in err


def test_a_belief_may_be_about_null(cli: Cli) -> None:
    cli.file.write_text(
        FILE.replace("  initial:", "  # initial:").replace("name: grid", "name: gp")
    )
    sets = ("--set", "spec.prior.optimizer.sure=0.9", "--set", "spec.budget.trials=1")
    code, _, err = cli.tuner("run", cli.file, *sets, "--set", "spec.prior.optimizer.around=null")
    assert code == 0, err
    (trial,) = cli.json("get", "trials", "choices", "-o", "json")
    assert trial["parameters"]["optimizer"] is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[1, 2],", "[.nan],", "8:23 spec.parameters.optimizer[1]: nan is not finite"),
        ("[1, 2],", "{lr: 1.0e-1, kind: a},", 'optimizer[2]: {"kind":"a","lr":0.1} occurs twice'),
        (
            "[1, 2],",
            "[" * 20 + "]" * 20 + ",",
            "spec.parameters.optimizer[1]: it is nested more than 16 levels deep",
        ),
        (
            "lr: 0.1, kind: a}]",
            "lr: 0.2}]",
            'can never be true: {"lr":0.2} is not one of the choices',
        ),
        (
            "optimizer: {lr: 0.1, kind: a}",
            "optimizer: [1, true]",
            "[1,true] is not one of the choices null, [1,2],",
        ),
    ],
)
def test_an_invalid_value_is_reported_with_its_place(
    cli: Cli, old: str, new: str, said: str
) -> None:
    assert old in FILE
    cli.file.write_text(FILE.replace(old, new, 1))
    code, _, err = cli.tuner("validate", cli.file)
    assert code == 2
    assert said in err
