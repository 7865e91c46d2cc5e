"""Population based training on this machine: checkpoints go from parent to child, whenever the
controller is killed.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli import Cli, cli_in, ended, eventually

# The state of a training is the list of the trials and learning rates that made it. json and
# pathlib would take longer than the rest of it.
PROGRAM = """
import os, sys, time
lr, pace = float(sys.argv[1]), float(sys.argv[2])
number, folder = int(os.environ["TUNER_TRIAL_NUMBER"]), os.environ["TUNER_CHECKPOINT_DIR"]
kept = os.path.join(folder, "weights", "state.txt")
past = []
if os.path.exists(kept):
    with open(kept) as file:
        past = [(int(trial), float(rate)) for trial, rate in map(str.split, file)]
with open("began.txt", "a") as began:
    began.write('{"number": %d, "past": %s}\\n' % (number, [trial for trial, _ in past]))
time.sleep(pace)
state = [*past, (number, lr)]
if "KEEP" in os.environ:
    os.makedirs(os.path.dirname(kept), exist_ok=True)
    with open(kept, "w") as file:
        file.writelines(f"{trial} {rate!r}\\n" for trial, rate in state)
    os.mkfifo(os.path.join(folder, "pipe")) if not past else None
print(f"epoch={len(state)} loss={sum(abs(rate - 0.3) for _, rate in state[-3:])}", flush=True)
"""
EXPERIMENT = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: breed}
spec:
  objective: {metric: loss, direction: minimize}
  parameters: {lr: {type: float, min: 0.01, max: 1, scale: log}}
  algorithm: {name: pbt, seed: 3, settings: {population: 4, truncation: 0.25}}
  parallelism: 2
  canary: 0s
  budget: {trials: 18}
  trial: {command: [python, program.py, "${lr}", "PACE"], env: {KEEP: "1"}}
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


def run(cli: Cli) -> None:
    code, _, err = cli.tuner("run", "experiment.yaml")
    assert code == 0, err


def trials_of(cli: Cli) -> dict[int, Any]:
    return {trial["number"]: trial for trial in cli.json("get", "trials", "breed", "-o", "json")}


def line(trials: dict[int, Any], number: int) -> list[int]:
    """Return the trials from whose training a trial continues, the first one first."""
    parent = trials[number].get("parent")
    return [] if parent is None else [*line(trials, parent), parent]


def check_lines(cli: Cli) -> dict[int, Any]:
    """Check that every start of every trial found exactly its parent's checkpoint."""
    trials = trials_of(cli)
    began = [json.loads(text) for text in (cli.folder / "began.txt").read_text().splitlines()]
    assert {one["number"] for one in began} == set(trials)
    for one in began:
        # an attempt finds its trial's own, too
        found = [number for number in one["past"] if number != one["number"]]
        assert found == line(trials, one["number"]), one
    assert not list(cli.folder.glob("state/experiments/*/trials/*/checkpoint.partial"))
    return trials


def test_children_go_on_from_a_copy_of_their_parents_checkpoint(cli: Cli) -> None:
    write(cli)
    run(cli)
    trials = check_lines(cli)
    assert len(trials) == 18
    assert [n for n, trial in trials.items() if "parent" not in trial] == [0, 1, 2, 3]
    assert len(line(trials, 16)) == 4
    assert {trial["step"] for trial in trials.values()} == {1, 2, 3, 4, 5}
    assert cli.json("best", "breed", "-o", "json")["value"] == min(
        trial["value"] for trial in trials.values()
    )
    parent = trials[16]["parent"]
    rows = cli.tuner("get", "trials", "breed", "--columns", "number,parent")[1].splitlines()
    assert [rows[0].split(), rows[1].split(), rows[17].split()] == [
        ["TRIAL", "PARENT"],
        ["0"],
        ["16", str(parent)],
    ]
    assert (
        f"trial {parent}, from whose checkpoint it continues\n"
        in cli.tuner("describe", "breed/16")[1]
    )


@pytest.mark.parametrize(
    "point", ["checkpoint.copy.before", "checkpoint.copy.after", "runtime.start.before"]
)
def test_a_controller_killed_while_it_copies_leaves_all_of_a_checkpoint_or_nothing(
    cli: Cli, point: str
) -> None:
    write(cli, changes=(("trials: 18", "trials: 10"),))
    for hit in (1, 4):
        cli.env["TUNER_FAILPOINT"] = f"{point}:{hit}"
        assert cli.tuner("run", "experiment.yaml")[0] == -signal.SIGKILL
    del cli.env["TUNER_FAILPOINT"]
    run(cli)
    assert len(check_lines(cli)) == 10


def test_a_controller_killed_at_any_time_goes_on_with_the_generation(cli: Cli) -> None:
    write(cli, pace=0.05)
    began = cli.folder / "began.txt"
    for round in range(1, 4):
        controller = cli.start("run", "experiment.yaml")
        # bound for this round
        eventually(
            lambda round=round: began.exists() and began.read_text().count("\n") >= 4 * round
        )  # type: ignore[misc]
        os.kill(controller.pid, signal.SIGKILL)
        ended(controller)
    run(cli)
    trials = check_lines(cli)
    assert len(trials) == 18
    assert all(len(trial["attempts"]) == 1 for trial in trials.values())


def test_more_slots_than_members_stay_empty_and_the_search_ends(cli: Cli) -> None:
    write(cli, changes=(("parallelism: 2", "parallelism: 8"),))
    run(cli)
    trials = check_lines(cli)
    assert len(trials) == 18
    assert sum("parent" not in trial for trial in trials.values()) == 4


def test_a_child_of_a_trial_without_a_checkpoint_starts_over_with_a_message(cli: Cli) -> None:
    write(cli, changes=(('KEEP: "1"', 'OTHER: "1"'), ("trials: 18", "trials: 6")))
    run(cli)
    parent = trials_of(cli)[4]["parent"]
    told = cli.tuner("describe", "breed/4")[1]
    assert f"starts over: trial {parent} left nothing in TUNER_CHECKPOINT_DIR" in told


def test_without_a_claim_a_cluster_loses_checkpoints_which_validate_says(cli: Cli) -> None:
    write(
        cli, changes=(("trial: {command", "runtime: kubernetes\n  trial: {image: x/y:1, command"),)
    )
    _, out, err = cli.tuner("validate", "experiment.yaml")
    assert "without a claim, a trial that continues from another one starts over" in out + err
