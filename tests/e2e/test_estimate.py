"""What a model says of a search: the best trial where values are noisy, and an end when little is left to gain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, cli_in

PROGRAM = """
import os, random, sys
x = float(sys.argv[1])
noise = random.Random(os.environ["TUNER_TRIAL_NUMBER"]).gauss(0, float(sys.argv[2]))
print(f"loss={(x - 0.3) ** 2 + noise}")
"""
EXPERIMENT = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {{name: bowl}}
spec:
  objective: {{metric: loss, direction: minimize}}
  parameters: {{x: {{type: float, min: 0, max: 1}}}}
  algorithm: {{name: random, seed: 3}}
  parallelism: 2
  canary: 0s
  budget: {budget}
  trial: {{command: [python, program.py, "${{x}}", "{noise}"]}}
"""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with cli_in(tmp_path) as cli:
        (tmp_path / "program.py").write_text(PROGRAM)
        yield cli


def run(cli: Cli, *, budget: str, noise: float) -> str:
    cli.file.write_text(EXPERIMENT.format(budget=budget, noise=noise))
    code, _, err = cli.tuner("run", cli.file)
    assert code == 0, err
    return err


def test_a_search_ends_when_little_is_left_to_gain(cli: Cli) -> None:
    err = run(cli, budget="{trials: 300, regretBelow: 0.01}", noise=0)
    assert "no point is likely to be better by more than" in err
    assert "(budget.regretBelow: 0.01)" in err
    found = cli.json("best", "bowl", "-o", "json")
    assert found["value"] < 0.01, "the optimum is 0"
    assert found["estimate"]["regretBound"] <= 0.01
    assert "model" not in cli.tuner("best", "bowl")[1], "the values have no noise"


def test_the_best_trial_by_a_models_mean_is_shown_too(cli: Cli) -> None:
    run(cli, budget="{trials: 60}", noise=0.1)
    found = cli.json("best", "bowl", "-o", "json")
    estimate = found["estimate"]
    true = (estimate["parameters"]["x"] - 0.3) ** 2
    assert found["value"] < estimate["value"], "the best value of many is a lucky one"
    assert estimate["low"] <= true <= estimate["high"]
    assert 0.05 < estimate["noise"] < 0.2
    out = cli.tuner("best", "bowl")[1]
    assert f"best by a model's mean: trial {estimate['number']}, loss" in out


def test_few_values_have_no_estimate(cli: Cli) -> None:
    run(cli, budget="{trials: 5}", noise=0)
    assert "estimate" not in cli.json("best", "bowl", "-o", "json")


def test_a_regret_bound_requires_a_single_objective(cli: Cli) -> None:
    text = EXPERIMENT.format(budget="{trials: 5, regretBelow: 0.1}", noise=0)
    cli.file.write_text(text.replace("  parameters:", "  constraints: [{metric: size, max: 2}]\n  parameters:"))
    code, _, err = cli.tuner("validate", cli.file)
    assert code == 2
    assert "spec.budget.regretBelow: requires one objective without constraints" in err
