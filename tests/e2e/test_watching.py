"""Watching running trials with `get -w` and `top`: each change once, until the end or Ctrl-C."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from contextlib import closing
from datetime import UTC, datetime

from tests.e2e.cli import Cli, eventually, experiment
from tests.service.running import a_process


def said_after(process: subprocess.Popen[str]) -> str:
    """Return the output after the lines that were read one by one,
    and check that the process succeeds.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    assert (process.wait(timeout=60), err) == (0, "")
    return out


def test_a_watched_table_shows_each_change_and_ends_with_the_experiment(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    run = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    code, out, err = cli.tuner("top", "tiny")
    assert (code, err) == (0, "")
    assert out.splitlines()[2].split() == ["TRIAL", "STATE", "AGE", "STEP", "VALUE"]
    assert out.splitlines()[3].split()[:2] == ["0", "running"]

    assert cli.tuner("top")[1].splitlines()[3].split()[:2] == ["0", "running"]

    as_table = cli.start("get", "trials", "tiny", "-w")
    as_json = cli.start("get", "trials", "tiny", "-w", "-o", "json")
    assert as_table.stdout is not None
    assert as_json.stdout is not None
    header, first = as_table.stdout.readline(), as_table.stdout.readline()
    assert (header.split()[:2], first.split()[:2]) == (["TRIAL", "STATE"], ["0", "running"])
    begun = as_json.stdout.readline()
    cli.let_go()
    assert run.wait(timeout=60) == 0

    rest = said_after(as_table)
    assert "TRIAL" not in rest
    assert [line.split()[:2] for line in rest.splitlines() if "succeeded" in line] == [
        ["0", "succeeded"],
        ["1", "succeeded"],
    ]
    lists = json.loads("[" + (begun + said_after(as_json)).replace("]\n[", "],[") + "]")
    assert cli.tuner("top") == (0, "no experiment is running or paused\n", "")
    assert [each["state"] for each in lists[0]] == ["running"]
    assert {(each["number"], each["state"]) for part in lists for each in part} >= {
        (0, "succeeded"),
        (1, "succeeded"),
    }


def test_a_clock_that_was_set_since_is_not_taken_for_the_time_that_a_trial_ran(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=1, waits=True))
    run = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    eventually(lambda: [each["state"] for each in cli.trials()] == ["running"])
    # As if it had begun when the clock was an hour behind.
    (path,) = (cli.folder / "state").glob("experiments/*/trials/0/1/process.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "time": record["time"] - 3600}))
    earlier = datetime.fromtimestamp(record["time"] - 3600, UTC).isoformat()
    with closing(sqlite3.connect(cli.folder / "state" / "controller.db")) as store:
        store.execute("UPDATE attempts SET start_time = ?", (earlier,))
        store.commit()
    for words in (("describe", "tiny"), ("describe", "tiny/0"), ("top", "tiny")):
        code, out, err = cli.tuner(*words)
        assert (code, "1h" in out) == (0, False), out + err
    cli.let_go()
    assert run.wait(timeout=60) == 0


def test_ctrl_c_ends_watching(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=1, waits=True))
    run = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    watching = [cli.start("get", "trials", "tiny", "-w"), cli.start("get", "experiments", "-w")]
    for process in watching:
        assert process.stdout is not None
        assert process.stdout.readline().split()
        process.send_signal(signal.SIGINT)
    assert [(process.wait(timeout=30), process.communicate()[1]) for process in watching] == [
        (130, "")
    ] * 2
    cli.let_go()
    assert run.wait(timeout=60) == 0
    assert cli.tuner("top", "tiny", "-w")[0] == 0


def test_watching_ends_when_the_experiment_is_deleted(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    run = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    watching = cli.start("get", "trials", "tiny", "-w")
    assert watching.stdout is not None
    assert watching.stdout.readline().split()[:2] == ["TRIAL", "STATE"]
    run.send_signal(signal.SIGINT)
    run.wait(timeout=60)
    assert cli.tuner("delete", "tiny", "--yes")[0] == 0
    assert watching.wait(timeout=60) == 5
    assert "there is no experiment tiny in default" in watching.communicate()[1]


def test_a_watch_says_once_that_the_service_is_away_and_goes_on(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    studies = cli.folder / "shared.db"
    with a_process(studies, "127.0.0.1:0") as server:
        address = server.address
        run = cli.start("run", cli.file, "--server", address)
        eventually(lambda: len(cli.starts()) == 1)
        table = cli.start("get", "experiments", "-w")
        top = cli.start("top", "-w")
        for process in (table, top):
            assert process.stdout is not None
            assert process.stdout.readline().split()
    for process in (table, top):
        assert process.stderr is not None
        assert f"no suggestion service answers at {address}" in process.stderr.readline()
    with a_process(studies, address):
        cli.let_go()
        assert run.wait(timeout=60) == 0
        out, err = top.communicate(timeout=30)
        assert (top.returncode, err) == (0, "")
        assert "no trials yet" not in out
        assert "no controller" not in out
        assert table.stdout is not None
        lines = [table.stdout.readline()]
        while "succeeded" not in lines[-1]:
            lines.append(table.stdout.readline())
        table.send_signal(signal.SIGINT)
        assert table.communicate(timeout=30) == ("", "")
    shown = [line.split()[2:4] for line in lines]
    assert shown[-1] == ["succeeded", "2/2"]
    assert {tuple(row) for row in shown[:-1]} <= {("running", "0/2"), ("running", "1/2")}
