"""The GPU pool: two experiments in two state directories,
the display of waiting trials, and `tuner doctor`.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, cli_in, eventually, experiment

# Prints its GPU, and fails if another trial has the same one.
TRIAL = """\
for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do mkdir ../held-$gpu || echo clash >> ../clashes; done
echo "$TUNER_EXPERIMENT gpu=$CUDA_VISIBLE_DEVICES" >> starts.txt; echo score=1
while ! test -e go; do sleep 0.02; done
for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do rmdir ../held-$gpu; done"""


def on_gpus(
    name: str, *, gpu: float = 1, parallelism: int = 1, trials: int = 1, more: str = ""
) -> str:
    trial = f"gracePeriod: 60s\n    resources: {{gpu: {gpu}}}{more}"
    return experiment(
        ["sh", "trial.sh"], name=name, trials=trials, parallelism=parallelism, trial=trial
    )


def cli_with_gpus(folder: Path, gpus: str) -> Cli:
    folder.mkdir()
    cli = Cli(folder)
    (folder / "trial.sh").write_text(TRIAL)
    cli.env |= {"TUNER_GPUS": gpus, "TUNER_LOCK_DIR": str(folder.parent / "locks")}
    return cli


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Cli, Cli]]:
    """Two command lines with separate state directories on one machine with two GPUs."""
    with (
        cli_in(tmp_path / "one", make=lambda folder: cli_with_gpus(folder, "0,1")) as one,
        cli_in(tmp_path / "other", make=lambda folder: cli_with_gpus(folder, "0,1")) as other,
    ):
        yield one, other
    assert not (tmp_path / "clashes").exists()


def running_trial(cli: Cli) -> int:
    (path,) = (cli.folder / "state").glob("experiments/*/trials/0/1/process.json")
    return int(json.loads(path.read_bytes())["pid"])


def supervisor(cli: Cli) -> int:
    (path,) = (cli.folder / "state").glob("experiments/*/supervisor.lock")
    return int(json.loads(path.read_bytes())["pid"])


def waits(cli: Cli, name: str) -> str:
    return str(cli.tuner("describe", f"{name}/0")[1])


def test_two_experiments_share_the_gpus_and_show_which_waits_for_which(
    two: tuple[Cli, Cli],
) -> None:
    one, other = two
    (one.folder / "x.yaml").write_text(on_gpus("first", parallelism=2, trials=2))
    (other.folder / "x.yaml").write_text(on_gpus("second"))
    first = one.start("run", "x.yaml")
    eventually(
        lambda: (
            one.starts() == ["first gpu=0", "first gpu=1"]
            or one.starts() == ["first gpu=1", "first gpu=0"]
        )
    )
    second = other.start("run", "x.yaml")
    eventually(lambda: "needs 1 GPU: GPU 0 is held by first-" in waits(other, "second"))
    assert "GPU 1 is held by first-" in other.tuner("top", "second")[1]
    assert other.json("get", "trials", "second", "-o", "json")[0]["state"] == "queued"
    assert "gpus in use" in other.tuner("doctor")[1]
    one.let_go()
    eventually(lambda: len(other.starts()) == 1)
    other.let_go()
    assert [process.wait(timeout=30) for process in (first, second)] == [0, 0]


@pytest.mark.parametrize("killed", ["controller", "supervisor", "both"])
def test_a_gpu_stays_taken_while_the_trial_runs_whatever_is_killed(
    two: tuple[Cli, Cli], killed: str
) -> None:
    one, other = two
    only_one = "\n    devices: [0]"
    (one.folder / "x.yaml").write_text(on_gpus("first", more=only_one))
    (other.folder / "x.yaml").write_text(on_gpus("second", more=only_one))
    first = one.start("run", "x.yaml")
    eventually(lambda: one.starts() == ["first gpu=0"])
    trial = running_trial(one)
    if killed != "supervisor":
        first.kill()
        first.wait(timeout=30)
    if killed != "controller":
        os.kill(supervisor(one), signal.SIGKILL)
    second = other.start("run", "x.yaml")
    eventually(lambda: "needs 1 GPU: GPU 0 is held by first-" in waits(other, "second"))
    assert other.starts() == []
    os.kill(trial, 0)  # the trial still runs
    one.let_go()
    eventually(lambda: other.starts() == ["second gpu=0"])
    other.let_go()
    assert second.wait(timeout=30) == 0
    first.wait(timeout=30)
    code, _, err = one.tuner("resume", "first")
    assert code == 0, err


def test_ctrl_c_ends_the_waiting_and_resume_waits_again(two: tuple[Cli, Cli]) -> None:
    one, other = two
    (one.folder / "x.yaml").write_text(on_gpus("first", gpu=2))
    (other.folder / "x.yaml").write_text(on_gpus("second"))
    one.start("run", "x.yaml")
    eventually(lambda: len(one.starts()) == 1)
    second = other.start("run", "x.yaml")
    eventually(lambda: "needs 1 GPU" in waits(other, "second"))
    second.send_signal(signal.SIGINT)
    assert second.wait(timeout=30) == 130
    one.let_go()
    other.let_go()
    code, _, err = other.tuner("resume", "second")
    assert code == 0, err


@pytest.mark.parametrize(
    ("gpus", "asked", "said"),
    [
        (
            "",
            "1",
            "a trial asks for 1 GPU, and TUNER_GPUS names none; name some there, or set gpu: 0 to "
            "train without",
        ),
        ("0", "2", "a trial asks for 2 GPUs, and TUNER_GPUS names 1; lower it"),
        ("0", "0.5", ""),
    ],
)
def test_the_doctor_warns_that_a_run_would_pause_for_lack_of_gpus(
    tmp_path: Path, gpus: str, asked: str, said: str
) -> None:
    cli = cli_with_gpus(tmp_path / "me", gpus)
    cli.let_go()
    (cli.folder / "x.yaml").write_text(on_gpus("tiny", gpu=float(asked)))
    code, out, _ = cli.tuner("doctor", "x.yaml")
    found = [line for line in out.splitlines() if line.startswith("FAIL")]
    expected = [f"FAIL  trials                spec.trial.resources.gpu: {said}"] if said else []
    assert (found, code) == (expected, 7 if said else 0)
    assert cli.tuner("run", "x.yaml")[0] == (8 if said else 0)


def test_an_unavailable_gpu_is_refused_before_anything_is_created(tmp_path: Path) -> None:
    cli = cli_with_gpus(tmp_path / "me", "2,3")
    (cli.folder / "x.yaml").write_text(on_gpus("tiny", more="\n    devices: [2, 7]"))
    cure = "TUNER_GPUS names 2, 3: name some of these, or set TUNER_GPUS"
    message = f"spec.trial.devices: this machine does not offer 7; {cure}"
    code, _, err = cli.tuner("run", "x.yaml")
    assert (code, message in err) == (2, True), err
    code, out, _ = cli.tuner("doctor", "x.yaml")
    assert (code, f"FAIL  trials                {message}" in out) == (7, True), out
    assert not (cli.folder / "state").exists()
