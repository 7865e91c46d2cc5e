"""Experiments whose trials run in steps of a fidelity: the file, a kill,
stopping, and a lost checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli import Cli, cli_in, ended, eventually, why

PROGRAM = """
import os, sys, time
x, epochs, pace = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
kept = os.path.join(os.environ["TUNER_CHECKPOINT_DIR"], "epoch")
begin = int(open(kept).read()) if os.path.exists(kept) else 0
for epoch in range(begin + 1, epochs + 1):
    with open("ran.txt", "a") as ran:
        ran.write(f"{os.environ['TUNER_TRIAL_NUMBER']} {epoch}\\n")
    time.sleep(pace)
    print(f"epoch={epoch} loss={(x - 0.3) ** 2 + 1 / epoch}", flush=True)
    if "KEEP" in os.environ:
        with open(kept, "w") as file:
            file.write(str(epoch))
"""
EXPERIMENT = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: steps}
spec:
  objective: {metric: loss, direction: minimize}
  parameters: {x: {type: float, min: 0, max: 1}}
  fidelity: {parameter: epochs, min: 1, max: 9}
  algorithm: {name: random, seed: 3}
  parallelism: 2
  canary: 0s
  budget: {trials: 12}
  trial: {command: [python, program.py, "${x}", "${epochs}", "PACE"], env: {KEEP: "1"}}
"""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with cli_in(tmp_path) as cli:
        (tmp_path / "program.py").write_text(PROGRAM)
        yield cli


def write(cli: Cli, *, pace: float = 0, changes: tuple[tuple[str, str], ...] = ()) -> None:
    text = EXPERIMENT.replace("PACE", str(pace))
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (cli.folder / "experiment.yaml").write_text(text)


def trials_of(cli: Cli) -> list[Any]:
    found: list[Any] = cli.json("get", "trials", "steps", "-o", "json")
    return found


def epochs_run(cli: Cli) -> Counter[tuple[int, int]]:
    """Return how often each epoch of each trial was run."""
    lines = (cli.folder / "ran.txt").read_text().split("\n")[:-1]
    return Counter((int(number), int(epoch)) for number, epoch in map(str.split, lines))


def test_the_best_continue_from_their_checkpoints_and_the_others_are_pruned(cli: Cli) -> None:
    write(cli)
    code, _, err = cli.tuner("run", "experiment.yaml")
    assert code == 0, err
    trials = trials_of(cli)
    states = Counter(trial["state"] for trial in trials)
    assert set(states) == {"succeeded", "pruned"}
    assert sum(states.values()) == 12
    assert set(epochs_run(cli).values()) == {1}  # no epoch of any trial twice
    whole = [trial for trial in trials if trial["state"] == "succeeded"]
    assert {trial["step"] for trial in whole} == {9}
    assert all([a["state"] for a in trial["attempts"]] == ["succeeded"] * 3 for trial in whole)
    assert sum(epochs_run(cli).values()) < 12 * 9 / 2
    best = cli.json("best", "steps", "-o", "json")
    assert best["value"] == min(trial["value"] for trial in whole)
    pruned = next(trial for trial in trials if trial["state"] == "pruned")
    assert pruned["reason"].startswith("not promoted beyond epochs ")
    provenance = next(
        cli.folder.glob(f"state/experiments/*/trials/{best['number']}/3/provenance.json")
    )
    assert json.loads(provenance.read_text())["parameters"]["epochs"] == 9


def test_a_killed_controller_continues_with_paused_and_promoted_trials(cli: Cli) -> None:
    write(cli, pace=0.02)
    for _ in range(3):
        controller = cli.start("run", "experiment.yaml")
        before = (
            (cli.folder / "ran.txt").read_text().count("\n")
            if (cli.folder / "ran.txt").exists()
            else 0
        )
        eventually(
            lambda before=before: (
                (cli.folder / "ran.txt").exists()  # type: ignore[misc]  # bound for this round
                and (cli.folder / "ran.txt").read_text().count("\n") >= before + 5
            )
        )
        os.kill(controller.pid, signal.SIGKILL)
        ended(controller)
    code, _, err = cli.tuner("run", "experiment.yaml")
    assert code == 0, err
    assert len(trials_of(cli)) == 12
    assert set(epochs_run(cli).values()) == {1}


def test_stop_cancels_paused_trials_and_describe_says_what_they_wait_for(cli: Cli) -> None:
    write(cli, pace=0.02, changes=(("budget: {trials: 12}", "budget: {trials: 200}"),))
    controller = cli.start("run", "experiment.yaml")
    eventually(lambda: "paused" in cli.tuner("get", "trials", "steps")[1])
    paused = next(trial for trial in trials_of(cli) if trial["state"] == "paused")
    told = why(cli, f"steps/{paused['number']}")
    assert (
        "of 9; it continues when it is among the best 1/3" in told
        or "it runs" in told
        or "not promoted" in told
    )
    assert "paused: " in cli.tuner("describe", "steps")[1]
    assert cli.tuner("stop", "steps")[0] == 0
    ended(controller)
    states = {trial["state"] for trial in trials_of(cli)}
    assert states <= {"cancelled", "succeeded"}


def test_a_trial_without_a_checkpoint_starts_over_with_a_message(cli: Cli) -> None:
    write(cli, changes=(('KEEP: "1"', 'OTHER: "1"'),))
    code, _, err = cli.tuner("run", "experiment.yaml")
    assert code == 0, err
    best = cli.json("best", "steps", "-o", "json")["number"]
    assert epochs_run(cli)[best, 1] == 3
    assert (
        "starts over: TUNER_CHECKPOINT_DIR is empty after epochs 3"
        in cli.tuner("describe", f"steps/{best}")[1]
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "parameter: epochs",
            "parameter: x",
            "spec.fidelity.parameter: x is also in spec.parameters",
        ),
        (
            "max: 9}\n  algorithm",
            "max: 2}\n  algorithm",
            "spec.fidelity.max: 2 is below min times eta, 3",
        ),
        (
            "max: 9}\n  algorithm",
            "maximum: 9}\n  algorithm",
            "spec.fidelity.maximum: no such key; did you mean max?",
        ),
        ("canary: 0s", "pruning: {name: asha, eta: 4}", "spec.pruning.eta"),
        ("  fidelity: {parameter: epochs, min: 1, max: 9}\n", "", "${epochs} is not a parameter"),
        ("name: random", "name: hyperband, settings: {eta: 3}", "eta"),
    ],
)
def test_an_invalid_fidelity_is_refused_with_its_place(
    cli: Cli, old: str, new: str, words: str
) -> None:
    write(cli, changes=((old, new),))
    code, out, err = cli.tuner("validate", "experiment.yaml")
    assert code == 2
    assert words in out + err, out + err


def test_one_mistake_in_the_fidelity_gives_one_problem(cli: Cli) -> None:
    write(
        cli,
        changes=(
            ("parameter: epochs", "parameter: x"),
            ("name: random", "name: bohb"),
            ('"${epochs}", ', ""),
        ),
    )
    _, out, err = cli.tuner("validate", "experiment.yaml")
    assert "1 problem\n" in out + err, out + err
    write(cli, changes=(("max: 9", "max: many"), ("name: random", "name: hyperband")))
    _, out, err = cli.tuner("validate", "experiment.yaml")
    assert "1 problem\n" in out + err, out + err
