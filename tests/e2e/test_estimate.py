"""What a model says of a search: the best trial where values are noisy,
and an end when little is left to gain.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, cli_in

# The noise of a trial is its line in noise.txt.
PROGRAM = (
    'NR == ENVIRON["TUNER_TRIAL_NUMBER"] + 1 { printf "loss=%.17g\\n", (x - 0.3) ^ 2 + scale * $1 }'
)
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
  trial: {{command: [awk, -v, "x=${{x}}", -v, scale={noise}, -f, program.awk, noise.txt]}}
"""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with cli_in(tmp_path) as cli:
        (tmp_path / "program.awk").write_text(PROGRAM)
        noise = [random.Random(str(trial)).gauss(0, 1) for trial in range(300)]
        (tmp_path / "noise.txt").write_text("".join(f"{value}\n" for value in noise))
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
    cli.file.write_text(
        text.replace("  parameters:", "  constraints: [{metric: size, max: 2}]\n  parameters:")
    )
    code, _, err = cli.tuner("validate", cli.file)
    assert code == 2
    assert "spec.budget.regretBelow: requires one objective without constraints" in err
