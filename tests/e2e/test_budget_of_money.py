"""A budget of money with real processes: what is counted survives commands, and can be extended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, cli_in

EXPERIMENT = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: paid}
spec:
  objective: {metric: loss, direction: minimize}
  parameters: {x: {type: float, min: 0, max: 1}}
  algorithm: {name: random, seed: 1}
  parallelism: 2
  budget: {trials: 500, cost: 1}
  prices: {cpu: 3600}
  trial:
    command: [sh, -c, "sleep 0.2; echo loss=${x}"]
    resources: {cpu: 1}
"""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with cli_in(tmp_path) as cli:
        cli.file.write_text(EXPERIMENT)
        yield cli


def test_a_search_ends_when_its_money_is_used_up_and_goes_on_with_more(cli: Cli) -> None:
    code, _, err = cli.tuner("run", cli.file)
    assert (code, "paid succeeded: the money is used up (budget.cost: 1)" in err) == (0, True), err
    raised = "raise the limit: tuner extend paid --set spec.budget.cost=2"
    assert f"\nTo {raised}\n" in err
    assert cli.tuner("describe", "paid")[1].endswith(f"; to {raised}\n")
    (told,) = cli.json("get", "experiments", "-o", "json")
    trials = cli.json("get", "trials", "paid", "-o", "json")
    assert (told["reasonCode"], told["cost"] >= 1) == ("CostSpent", True)
    assert " of 1 " in cli.tuner("get", "experiments")[1]
    assert "a guess before the first trial: cost " in err
    assert "\nUsed: cost " in cli.tuner("report", "paid")[1]
    assert "a guess" not in cli.tuner("run", cli.file)[2], "its trials have run"
    code, _, err = cli.tuner("set", "paid", "spec.budget.cost=5")
    assert (code, f"to {raised}" in err) == (6, True), err

    code, _, err = cli.tuner("extend", "paid", "--set", "spec.budget.cost=5")
    assert (code, "a guess" in err) == (0, False), err
    (extended,) = cli.json("get", "experiments", "-o", "json")
    assert extended["cost"] >= 5
    assert len(cli.json("get", "trials", "paid", "-o", "json")) > len(trials)

    code, _, err = cli.tuner("extend", "paid", "--set", "spec.budget.cost=2")
    assert "its budget is already used up: the money is used up (budget.cost: 2)" in err
