"""Trials that misbehave in many ways: the outcome and reason of each,
and nothing is lost or left running.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli import Cli, cli_in, ended, eventually, experiment, processes_of, why

# kind: (state, value, failure classes and exit codes of its attempts, how the Why line begins)
KINDS: dict[str, tuple[str, float | None, list[tuple[str | None, int | None]], str]] = {
    "silent": (
        "failed",
        None,
        [("metricsMissing", 0)],
        'exit code 0, but no line of its log reported "score": the log is empty or gone (',
    ),
    "chatty": (
        "failed",
        None,
        [("metricsMissing", 0)],
        'exit code 0, but no line of its log reported "score": print it as score=0.97 (lines',
    ),
    "nan-last": (
        "failed",
        None,
        [("metricsMissing", 0)],
        'the last "score" was nan, not a finite number (only a finite number can be compared',
    ),
    "inf-last": (
        "failed",
        None,
        [("metricsMissing", 0)],
        'the last "score" was inf, not a finite number (',
    ),
    "nan-middle": ("succeeded", 0.25, [(None, 0)], "it ended with score 0.25"),
    "exits-3": ("failed", None, [("userError", 3)], "exit code 3: the data is not there ("),
    "raises": ("failed", None, [("userError", 1)], "exit code 1: ValueError: no such column ("),
    "infeasible": (
        "infeasible",
        None,
        [(None, 42)],
        "its program rejected these parameters: the batch is larger than the data",
    ),
    "garbage": ("succeeded", 0.5, [(None, 0)], "it ended with score 0.5"),
    "json": ("succeeded", 0.5, [(None, 0)], "it ended with score 0.5"),
    "closes": ("succeeded", 0.5, [(None, 0)], "it ended with score 0.5"),
    "late": (
        "failed",
        None,
        [("timeout", None)],
        "it ran longer than its timeout of 1 s (raise spec.trial.timeout",
    ),
    "stubborn": ("failed", None, [("timeout", None)], "it ran longer than its timeout of 1 s ("),
    "segfault": (
        "failed",
        None,
        [("infrastructure", None)] * 2,
        "its program crashed (SIGSEGV) in attempt 2 (",
    ),
    "forks": ("succeeded", 0.5, [(None, 0)], "it ended with score 0.5"),
    "deletes": (
        "failed",
        None,
        [("metricsMissing", 0)],
        'exit code 0, but no line of its log reported "score": the log is empty or gone (',
    ),
}
PROGRAM = str(Path(__file__).with_name("bad_trial.py"))
BIG = """
import sys
junk = b"x" * 99 + b"\\n"
for step in range(1000):
    sys.stdout.buffer.write(junk * 1000)
    if step % 100 == 50:
        sys.stdout.buffer.write(b"step=%d score=0.%d\\n" % (step, step))
sys.stdout.buffer.write(b"y" * 1000)
"""


@pytest.fixture(scope="module")
def everything(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Cli, int, dict[str, Any]]]:
    """Run an experiment in which each trial misbehaves in another way.

    Yield the exit code and the trials by kind.
    """
    with cli_in(tmp_path_factory.mktemp("bad")) as cli:
        cli.file.write_text(
            experiment(
                ["python", PROGRAM, "${kind}"],
                trials=len(KINDS),
                parameters=f"kind: [{', '.join(KINDS)}]",
                algorithm="grid",
                parallelism=3,
                trial="timeout: 1s\n    gracePeriod: 100ms\n    retries: {infrastructure: 1}",
            )
        )
        code, _, _ = cli.tuner("run", cli.file)
        yield cli, code, {trial["parameters"]["kind"]: trial for trial in cli.trials()}


@pytest.mark.parametrize("kind", KINDS)
def test_each_bad_trial_has_its_outcome_and_a_clear_reason(
    everything: tuple[Cli, int, dict[str, Any]], kind: str
) -> None:
    cli, _, trials = everything
    trial = trials[kind]
    state, value, attempts, begins = KINDS[kind]
    assert (trial["state"], trial.get("value")) == (state, value)
    assert [
        (each.get("failureClass"), each.get("exitCode")) for each in trial["attempts"]
    ] == attempts
    line = why(cli, f"tiny/{trial['number']}")
    assert line.startswith(f"Why: {begins}")
    if state in ("failed", "infeasible"):
        assert trial["reason"] in line


def test_bad_trials_do_not_end_a_search_that_has_a_result(
    everything: tuple[Cli, int, dict[str, Any]],
) -> None:
    cli, code, trials = everything
    assert code == 0
    assert set(trials) == set(KINDS)
    assert cli.json("best", "tiny", "-o", "json")["value"] == 0.5
    failed = [kind for kind, (state, *_) in KINDS.items() if state == "failed"]
    (shown,) = cli.json("get", "experiments", "-o", "json")
    assert shown["trials"] == {"succeeded": 5, "infeasible": 1, "failed": len(failed)}


def test_child_processes_of_a_trial_do_not_outlive_it(
    everything: tuple[Cli, int, dict[str, Any]],
) -> None:
    cli, _, _ = everything
    # the two sleeping children would live for a minute
    eventually(lambda: not processes_of(cli.folder))


def test_an_infeasible_trial_is_not_a_failure(cli: Cli) -> None:
    cli.file.write_text(
        experiment(["sh", "-c", "exit 42"], trials=2).replace(
            "failedTrials: 99", "failedTrials: 1"
        ),
    )
    code, out, err = cli.tuner("run", cli.file)
    assert (code, out) == (3, "")
    assert "all 2 trials are done" in err
    assert [trial["state"] for trial in cli.trials()] == ["infeasible"] * 2


def test_a_hundred_megabytes_of_output_are_read_in_little_memory(cli: Cli) -> None:
    (cli.folder / "big.py").write_text(BIG)
    cli.file.write_text(experiment(["python", "big.py"], trials=1))
    run = cli.start("run", cli.file)
    peak_kb = 0
    while run.poll() is None:
        peak_kb = max(peak_kb, high_water_kb(run))
        time.sleep(0.02)
    assert ended(run)[0] == 0
    (trial,) = cli.trials()
    assert (trial["state"], trial["value"], trial["step"]) == ("succeeded", 0.950, 950)
    (log,) = (cli.folder / "state").glob("experiments/*/trials/0/1/log.txt")
    assert log.stat().st_size > 100_000_000
    assert peak_kb < 220_000  # of which the output, if it were kept, would be another 100,000
    assert sys.platform != "linux" or peak_kb > 0
    log.unlink()


def test_a_trial_killed_from_outside_runs_again_and_costs_no_trial(cli: Cli) -> None:
    cli.file.write_text(
        experiment(
            [
                "sh",
                "-c",
                'echo "$$ $TUNER_ATTEMPT $1" >> starts.txt; echo score=$1; test -e go || exec '
                "sleep 60",
                "sh",
                "${x}",
            ],
            trials=1,
        )
    )
    run = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    cli.let_go()
    os.kill(int(cli.starts()[0].split()[0]), signal.SIGKILL)
    assert ended(run)[0] == 0
    (trial,) = cli.trials()
    assert [start.split()[1:] for start in cli.starts()] == [
        ["1", str(trial["value"])],
        ["2", str(trial["value"])],
    ]
    assert [
        (each["state"], each.get("failureClass"), each.get("reason")) for each in trial["attempts"]
    ] == [
        ("failed", "infrastructure", "killed by SIGKILL, which tuner did not send"),
        ("succeeded", None, None),
    ]
    assert why(cli, "tiny/0").startswith("Why: it ended with score")
    assert "in attempt 2" in why(cli, "tiny/0")


def test_ctrl_c_ends_a_trial_that_ignores_sigterm(cli: Cli) -> None:
    cli.file.write_text(
        experiment(["python", PROGRAM, "stubborn"], trials=1, trial="gracePeriod: 100ms"),
    )
    run = cli.start("run", cli.file)
    eventually(
        lambda: any(
            log.read_text()
            for log in (cli.folder / "state").glob("experiments/*/trials/0/1/log.txt")
        )
    )
    run.send_signal(signal.SIGINT)
    assert ended(run)[0] == 130
    (trial,) = cli.trials()
    assert (trial["state"], [each["state"] for each in trial["attempts"]]) == (
        "queued",
        ["cancelled"],
    )
    eventually(lambda: not processes_of(cli.folder))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["no-such-program"], 'command not found: "no-such-program"'),
        (["./here.txt"], 'permission denied: "./here.txt" is not executable; chmod +x it'),
        (["sh", "-c", "no-such-program"], "exit code 127 (a command could not be executed): sh: "),
    ],
)
def test_a_trial_that_cannot_start_pauses_the_run_and_the_corrected_file_continues(
    cli: Cli, command: list[str], reason: str
) -> None:
    (cli.folder / "here.txt").write_text("no program")
    cli.file.write_text(experiment(command, trials=20))
    code, out, err = cli.tuner("run", cli.file)
    assert (code, out) == (8, "")
    assert reason in err
    assert "tuner resume" in err
    (trial,) = cli.trials()
    assert [(each["state"], each["failureClass"]) for each in trial["attempts"]] == [
        ("failed", "configuration")
    ]
    assert reason in why(cli, "tiny/0")
    assert reason in why(cli, "tiny")
    parameters = trial["parameters"]
    assert cli.tuner("run", cli.file)[0] == 8, "running it again does not lift a pause"

    cli.file.write_text(experiment(trials=2))
    code, _, err = cli.tuner("resume", cli.file)
    assert code == 0, err
    assert "revision 2" in err
    assert list((cli.folder / "state").glob("experiments/*/experiment.r2.yaml"))
    again = cli.trials()
    assert [each["state"] for each in again] == ["succeeded"] * 2
    assert again[0]["parameters"] == parameters
    assert [start.split()[:2] for start in cli.starts()] == [["0", "2"], ["1", "1"]]


def test_metrics_already_read_count_when_the_trials_folder_is_deleted(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    run = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1 and measured(cli))
    (folder,) = (cli.folder / "state").glob("experiments/*/trials/0")
    shutil.rmtree(folder)
    cli.let_go()
    assert ended(run)[0] == 0
    assert [trial["state"] for trial in cli.trials()] == ["succeeded"] * 2
    assert "it ended with score" in why(cli, "tiny/0")
    assert cli.tuner("logs", "tiny/0")[0] in (0, 5)


def test_a_missing_working_directory_pauses_the_run_until_it_is_back(cli: Cli) -> None:
    place = cli.folder / "work"
    place.mkdir()
    file = place / "experiment.yaml"
    go = cli.folder / "go"
    file.write_text(
        experiment(
            ["sh", "-c", f"echo score=1; touch begun; while ! test -e {go}; do sleep 0.02; done"]
        )
    )
    run = cli.start("run", file)
    eventually((place / "begun").exists)
    place.rename(cli.folder / "away")
    cli.let_go()
    code, err = ended(run)
    assert code == 8
    assert f"trial 1 cannot run: no such folder: {place}" in err
    assert [trial["state"] for trial in cli.trials()] == ["succeeded", "queued"]

    (cli.folder / "away").rename(place)
    assert cli.tuner("resume", "tiny")[0] == 0
    assert [len(trial["attempts"]) for trial in cli.trials()] == [1, 2]


def measured(cli: Cli) -> bool:
    whole = cli.json("export", "tiny", "--format", "json")
    return bool(whole["trials"][0].get("measurements"))


def high_water_kb(process: subprocess.Popen[str]) -> int:
    """Return the peak memory of a process, 0 if the system does not report it."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0  # the process has ended
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) if found else 0
