"""Experiments with several objectives and constraints, from the file to the Pareto front."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from suggest import pareto
from tests.e2e.cli import Cli, cli_in

PROGRAM = """
BEGIN {
  x = ARGV[1]; y = ARGV[2]; g = 1 + 9 * y
  printf "loss=%.17g size=%.17g latency_ms=%.17g\\n", x, g * (1 - sqrt(x / g)), 30 * x + 5 * y
}
"""
EXPERIMENT = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: goals}
spec:
  objectives:
    - {metric: loss, direction: minimize}
    - {metric: size, direction: minimize}
  constraints: [{metric: latency_ms, max: 20}]
  parameters:
    x: {type: float, min: 0, max: 1}
    y: {type: float, min: 0, max: 1}
  algorithm: {name: tpe, seed: 3}
  parallelism: 2
  canary: 0s
  budget: {trials: 20}
  trial: {command: [awk, -f, program.awk, "${x}", "${y}"]}
"""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with cli_in(tmp_path) as cli:
        (tmp_path / "program.awk").write_text(PROGRAM)
        yield cli


def write(cli: Cli, *changes: tuple[str, str]) -> None:
    text = EXPERIMENT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    cli.file.write_text(text)


def test_the_front_is_printed_listed_and_exported(cli: Cli) -> None:
    write(cli)
    code, out, err = cli.tuner("run", cli.file)
    assert (code, "The Pareto front: tuner best goals" in err) == (0, True), err
    trials = cli.json("get", "trials", "goals", "-o", "json")
    kept = [t for t in trials if t["metrics"]["latency_ms"] <= 20]
    assert all(t["feasible"] is (t in kept) for t in trials)
    points = [tuple(t["values"].values()) for t in kept]
    front = {kept[place]["number"] for place in pareto.front(points)}
    (shown,) = cli.json("get", "experiments", "-o", "json")
    assert {each["number"] for each in shown["front"]} == front
    assert shown["dominatedShare"] == pytest.approx(pareto.dominated_share(points))
    best = min(kept, key=lambda t: t["value"])
    assert (
        shown["best"]["number"]
        == cli.json("best", "goals", "-o", "json")["number"]
        == best["number"]
    )
    assert f"(trial {best['number']})" in out
    _, table, _ = cli.tuner("best", "goals")
    heading, columns, *rows = table.splitlines()
    assert f"the Pareto front has {len(front)} trials" in heading
    assert columns.split() == ["TRIAL", "loss", "size", "latency_ms", "PARAMETERS"]
    assert {int(row.split()[0]) for row in rows} == front
    report = json.loads(cli.tuner("report", "goals", "-o", "json")[1])
    assert {t["number"] for t in report["trials"][: len(front)]} == front
    assert "Pareto front of" in cli.tuner("describe", "goals")[1]


def test_an_exported_search_fills_another_one_with_the_same_front(cli: Cli) -> None:
    write(cli, ("trials: 20", "trials: 8"), ("name: tpe", "name: random"))
    assert cli.tuner("run", cli.file)[0] == 0
    (cli.folder / "goals.csv").write_text(cli.tuner("export", "goals", "--format", "csv")[1])
    write(cli, ("name: goals", "name: others"))
    code, out, err = cli.tuner("import", cli.file, "--from", "goals.csv")
    assert (code, out) == (0, "others: 8 trials imported from goals.csv\n"), err
    fronts = {each["name"]: each["front"] for each in cli.json("get", "experiments", "-o", "json")}
    assert fronts["others"] == fronts["goals"] != []
    again = cli.tuner("export", "others", "--format", "csv")[1].splitlines()
    assert "metrics.latency_ms" in again[0].split(",")


def test_one_objective_may_have_constraints(cli: Cli) -> None:
    write(
        cli,
        ("    - {metric: size, direction: minimize}\n", ""),
        ("latency_ms, max: 20", "latency_ms, min: 9"),
    )
    assert cli.tuner("run", cli.file)[0] == 0
    trials = cli.json("get", "trials", "goals", "-o", "json")
    best = min((t for t in trials if t["metrics"]["latency_ms"] >= 9), key=lambda t: t["value"])
    assert cli.json("best", "goals", "-o", "json")["number"] == best["number"]
    assert min(trials, key=lambda t: t["value"])["feasible"] is False


def test_an_experiment_without_a_feasible_trial_has_no_result(cli: Cli) -> None:
    write(cli, ("max: 20", "max: -1"))
    code, out, err = cli.tuner("run", cli.file)
    assert (code, out) == (3, "")
    assert "without one trial that satisfies the constraints" in err
    code, out, err = cli.tuner("best", "goals")
    assert (code, out) == (3, "")
    assert "no trial of goals has succeeded and satisfied the constraints" in err


def test_a_search_ends_when_one_trial_reaches_every_target(cli: Cli) -> None:
    write(
        cli,
        ("direction: minimize}", "direction: minimize, target: 0.9}"),
        ("trials: 20", "trials: 200"),
    )
    code, _, err = cli.tuner("run", cli.file)
    assert (code, "goals succeeded: the target was reached: loss" in err) == (0, True), err
    reached = [
        t
        for t in cli.json("get", "trials", "goals", "-o", "json")
        if "values" in t and t["feasible"]
    ]
    assert any(max(t["values"].values()) <= 0.9 for t in reached)


def test_a_search_without_improvement_ends(cli: Cli) -> None:
    write(cli, ("trials: 20", "trials: 500, noImprovement: 8"), ("name: tpe", "name: random"))
    code, _, err = cli.tuner("run", cli.file)
    assert (code, "(budget.noImprovement: 8)" in err) == (0, True), err
    assert len(cli.json("get", "trials", "goals", "-o", "json")) < 500


@pytest.mark.parametrize(
    ("old", "place"), [("metric: size", "objectives[1]"), ("metric: latency_ms", "constraints[0]")]
)
def test_a_metric_that_never_appears_is_named_with_its_place(
    cli: Cli, old: str, place: str
) -> None:
    write(cli, (old, old + "s"))
    code, _, err = cli.tuner("run", cli.file)
    assert code == 8
    assert f"set spec.{place}.metric to the name that is printed" in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("  objectives:", "  objective: {metric: a, direction: minimize}\n  objectives:"),
            "beside objective",
        ),
        (
            ("latency_ms, max: 20", "latency_ms"),
            "spec.constraints[0]: no bound; write min, max or both",
        ),
        (("max: 20", "max: 20, min: 30"), "spec.constraints[0]: min 30 is above max 20"),
        (
            ("metric: size", "metric: loss"),
            "spec.objectives[1].metric: loss is already an objective",
        ),
        (("name: tpe", "name: cmaes"), "spec.algorithm.name: cmaes takes one objective"),
    ],
)
def test_an_unsupported_combination_is_refused_with_its_place(
    cli: Cli, change: tuple[str, str], message: str
) -> None:
    write(cli, change)
    code, _, err = cli.tuner("validate", cli.file)
    assert (code, message in err) == (2, True), err


def test_an_interrupted_search_continues_with_the_same_front(cli: Cli) -> None:
    write(cli, ("trials: 20", "trials: 6"))
    assert cli.tuner("run", cli.file)[0] == 0
    before = cli.json("get", "experiments", "-o", "json")[0]["front"]
    assert cli.tuner("extend", "goals", "--trials", "+6")[0] == 0
    assert cli.tuner("resume", "goals")[0] == 0
    trials = cli.json("get", "trials", "goals", "-o", "json")
    assert len(trials) == 12
    known = {each["number"]: each["values"] for each in before}
    assert all(t["values"] == known[t["number"]] for t in trials if t["number"] in known)


def test_the_final_stage_takes_the_knee_of_the_front(cli: Cli) -> None:
    write(cli, ("  trial: {", "  final: {choose: knee}\n  trial: {"))
    code, _, err = cli.tuner("run", cli.file)
    assert code == 0, err
    (shown,) = cli.json("get", "experiments", "-o", "json")
    trials = cli.json("get", "trials", "goals", "-o", "json")
    front = [trials[each["number"]] for each in shown["front"]]
    knee = front[pareto.compromise([tuple(t["values"].values()) for t in front], (1.0, 1.0))]
    assert cli.json("best", "goals", "-o", "json")["final"]["trial"] == knee["number"]


def test_a_choice_on_the_front_is_checked(cli: Cli) -> None:
    write(cli, ("  trial: {", "  final: {choose: {loss: 1, sizes: 2}}\n  trial: {"))
    code, _, err = cli.tuner("validate", cli.file)
    assert (code, "spec.final.choose.sizes: is not an objective; there are loss, size" in err) == (
        2,
        True,
    ), err
    write(
        cli,
        ("    - {metric: size, direction: minimize}\n", ""),
        ("  trial: {", "  final: {choose: knee}\n  trial: {"),
    )
    code, _, err = cli.tuner("validate", cli.file)
    assert (code, "spec.final.choose: there is one objective" in err) == (2, True), err
