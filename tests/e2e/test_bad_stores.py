"""Stores that are locked, full, read-only, damaged, newer or gone give one sentence
and exit code 7, without loss.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from controller import experiment_tables
from controller.app.local_experiments import TroubleFile
from suggest.storage import study_tables
from tests.e2e.cli import Cli, cli_in, ended, eventually, experiment, processes_of
from tests.forked import TUNER
from tests.service.running import a_process
from tests.small_disk import fill, small_disk

NEWER = {
    "controller.db": "UPDATE controller_schema_version SET version_num = '9999'",
    "studies.db": "UPDATE study_schema_version SET version_num = '9999'",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A command line with a finished experiment.

    Tests copy its state directory and do not change it.
    """
    with cli_in(tmp_path_factory.mktemp("finished")) as cli:
        cli.file.write_text(experiment())
        assert cli.tuner("run", cli.file)[0] == 0
        yield cli


def newer(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(NEWER[database.name])


def truncate(database: Path) -> None:
    database.write_bytes(database.read_bytes()[:10_000])


def overwrite(database: Path) -> None:
    database.write_text("apiVersion: tuner.dev/v1\n" * 1000)


def make_a_directory(database: Path) -> None:
    database.unlink()
    database.mkdir()


def empty(database: Path) -> None:
    database.write_bytes(b"")


@pytest.mark.parametrize(
    ("database", "spoil", "sentence"),
    [
        (
            "controller.db",
            newer,
            f"has schema 9999, newer than {experiment_tables.SCHEMA.newest}, the newest that",
        ),
        (
            "controller.db",
            truncate,
            "the file is damaged; restore it from a backup, or move it away to start over",
        ),
        (
            "controller.db",
            overwrite,
            "the file is not a database, or has lost its beginning; restore it",
        ),
        ("controller.db", make_a_directory, "it cannot be opened; check that"),
        (
            "studies.db",
            newer,
            f"has schema 9999, newer than {study_tables.SCHEMA.newest}, the newest that",
        ),
        (
            "studies.db",
            truncate,
            "the file is damaged; restore it from a backup, or move it away to start over",
        ),
        (
            "studies.db",
            overwrite,
            "the file is not a database, or has lost its beginning; restore it",
        ),
        (
            "studies.db",
            make_a_directory,
            "is a directory; move it away, or name another state directory with --state-dir or "
            "TUNER_STATE_DIR",
        ),
        (
            "studies.db",
            empty,
            "the file is empty, but a store was here; restore a backup (tuner db restore DIR)",
        ),
        (
            "controller.db",
            empty,
            "the file is empty, but a store was here; restore a backup (tuner db restore DIR)",
        ),
        (
            "studies.db",
            Path.unlink,
            "restore its database (studies.db) from a backup, or start over after: tuner del",
        ),
    ],
)
def test_an_unusable_store_gives_one_sentence_and_works_again_when_restored(
    finished: Cli, cli: Cli, database: str, spoil: Callable[[Path], None], sentence: str
) -> None:
    shutil.copytree(finished.folder / "state", cli.folder / "state")
    path = cli.folder / "state" / database
    spoil(path)
    for words in (("run", str(finished.file)), ("get", "trials", "tiny")):
        code, out, err = cli.tuner(*words)
        assert (code, out, err.count("\n")) == (7, "", 1), err
        assert err.startswith("tuner: ")
        assert sentence in err
        assert database in err
    if path.is_dir():
        path.rmdir()
    shutil.copy(finished.folder / "state" / database, path)
    code, out, _ = cli.tuner("run", finished.file)
    assert (code, out.split(" (")[0]) == (0, "tiny: best score 0.334957")


DAMAGE = [
    ("studies.db", "UPDATE trials SET parameters = '{\"x\": 0.' WHERE number = 1", "is not JSON"),
    ("studies.db", "UPDATE trials SET parameters = '[0.5]' WHERE number = 1", "tiny-.*/1"),
    ("studies.db", "UPDATE trials SET state = 'sleeping' WHERE number = 1", "sleeping"),
    ("studies.db", "UPDATE trials SET value = 'high' WHERE number = 1", "tiny-.*/1"),
    ("studies.db", "UPDATE studies SET spec = '{}'", "study default/tiny-"),
    ("studies.db", "UPDATE studies SET spec = 'spec'", "is not JSON"),
    ("controller.db", "UPDATE attempts SET state = 'sleeping'", "sleeping"),
    ("controller.db", "UPDATE attempts SET start_time = 'noon'", "noon"),
    ("controller.db", "UPDATE experiments SET state = 'sleeping'", "sleeping"),
    ("controller.db", "UPDATE revisions SET document = '{'", "JSON"),
]


@pytest.mark.parametrize(("database", "damage", "told"), DAMAGE)
def test_a_damaged_row_is_damage_not_a_bug(
    finished: Cli, cli: Cli, database: str, damage: str, told: str
) -> None:
    shutil.copytree(finished.folder / "state", cli.folder / "state")
    with closing(sqlite3.connect(cli.folder / "state" / database)) as connection, connection:
        connection.execute(damage)
    for words in (("extend", "tiny", "--trials", "3"), ("db", "check")):
        code, _, err = cli.tuner(*words)
        assert (code, err.count("\n")) == (7, 1), err
        assert "damaged" in err
        assert "restore a backup (tuner db restore DIR)" in err
        assert re.search(told, err)


def test_db_check_reads_every_row(finished: Cli) -> None:
    code, out, err = finished.tuner("db", "check")
    assert (code, err) == (0, "")
    assert "1 study, 2 trials, 2 measurements; every row can be read" in out
    assert re.search("1 experiment, 2 attempts, [0-9]+ events; every row can be read", out)


def test_a_missing_study_is_not_recreated_for_a_resumed_experiment(cli: Cli) -> None:
    cli.file.write_text(experiment(waits=True))
    run = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    run.kill()
    ended(run)
    cli.let_go()
    (cli.folder / "state" / "studies.db").rename(cli.folder / "away.db")
    code, _, err = cli.tuner("resume", "tiny")
    assert code == 7
    assert "the file is gone, but its log studies.db-wal is still here; put the file back" in err
    (cli.folder / "state" / "studies.db-wal").rename(cli.folder / "away.db-wal")
    code, _, err = cli.tuner("resume", "tiny")
    assert code == 7
    assert "tuner delete tiny" in err
    for left in (cli.folder / "state").glob("studies.db*"):
        left.unlink()
    for file in ("studies.db", "studies.db-wal"):
        (cli.folder / file.replace("studies", "away")).rename(cli.folder / "state" / file)


def test_a_study_that_was_set_back_gives_no_number_twice(finished: Cli, cli: Cli) -> None:
    """As after a failover to a standby that lagged, or with yesterday's copy of the study store."""
    shutil.copytree(finished.folder / "state", cli.folder / "state")
    assert cli.tuner("extend", "tiny", "--trials", "4")[0] == 0
    assert [trial["number"] for trial in cli.trials()] == [0, 1, 2, 3]
    shutil.copy(finished.folder / "state" / "studies.db", cli.folder / "state" / "studies.db")
    for trials in ("5", "6"):
        code, _, err = cli.tuner("extend", "tiny", "--trials", trials)
        assert code == 0, err
        told = (
            "the study has lost 2 trials up to 3: its database was set back to an older state; "
            "cancelled, and the"
        )
        assert err.count(told) == (trials == "5"), err
    assert [(trial["number"], trial["state"]) for trial in cli.trials()] == [
        (number, "succeeded") for number in (0, 1, 4, 5, 6, 7)
    ]
    _, out, _ = cli.tuner("export", "tiny", "--format", "csv")
    lost = [line.split(",")[2] for line in out.splitlines() if line.startswith(("2,", "3,"))]
    assert lost in ([], ["cancelled"] * 2), out


def test_a_controller_killed_with_a_lost_number_does_not_take_the_old_attempt_for_the_new_trial(
    finished: Cli, cli: Cli
) -> None:
    """The study lost trial 1, and gave its number to the third request.

    Its reply was the controller's last call.
    """
    shutil.copytree(finished.folder / "state", cli.folder / "state")
    with closing(sqlite3.connect(cli.folder / "state" / "studies.db")) as connection, connection:
        connection.execute("DELETE FROM measurements WHERE trial = 1")
        connection.execute(
            "UPDATE trials SET state = 'running', value = NULL, step = NULL, end_time_us = NULL,"
            " parameters = '{\"x\":0.5}', request_id = client_id || '-2' WHERE number = 1"
        )
    code, _, err = cli.tuner("extend", "tiny", "--trials", "3")
    assert code == 0, err
    assert [(trial["number"], trial["state"]) for trial in cli.trials()] == [
        (0, "succeeded"),
        (1, "cancelled"),
        (2, "succeeded"),
        (3, "succeeded"),
    ]


def test_a_run_whose_study_is_deleted_says_what_to_do(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=3, waits=True))
    run = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    with closing(sqlite3.connect(cli.folder / "state" / "studies.db")) as connection, connection:
        for table in ("measurements", "trials", "studies"):
            connection.execute(f"DELETE FROM {table}")
    cli.let_go()
    code, err = ended(run)
    assert code == 7
    assert (
        "tiny has run trials, but its store no longer has the study "
        "namespaces/default/studies/tiny-" in err
    )
    assert err.endswith(
        "restore its database (studies.db) from a backup, or start over after: tuner delete tiny\n"
    )
    (record,) = (cli.folder / "state" / "experiments").glob("*")
    assert "no longer has the study" in TroubleFile(record).read(controlled=False), (
        "why its last controller ended"
    )
    assert TroubleFile(record).read(controlled=True) == "", "a new one has no trouble yet"


def test_an_experiment_without_its_controllers_store_starts_a_new_study(
    finished: Cli, cli: Cli
) -> None:
    shutil.copytree(finished.folder / "state", cli.folder / "state")
    (cli.folder / "state" / "controller.db").unlink()
    cli.file.write_text(experiment())
    assert cli.tuner("run", cli.file)[0] == 0
    assert [start.split()[:2] for start in cli.starts()] == [["0", "1"], ["1", "1"]]


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold a transaction, which locks the database for other processes as another process's would."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@pytest.mark.parametrize("database", ["controller.db", "studies.db"])
def test_a_store_that_is_locked_for_a_while_is_waited_for(cli: Cli, database: str) -> None:
    cli.file.write_text(experiment(trials=3, waits=True))
    run = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    with locked(cli.folder / "state" / database):
        cli.let_go()
        trouble = f"{database}: another process has kept it locked for 5 s"
        assert trouble in waiting(run)
        _, described, _ = cli.tuner("describe", "tiny")
        (shown,) = json.loads(cli.tuner("get", "experiments", "-o", "json")[1])
        _, top, _ = cli.tuner("top", "tiny")
    assert trouble in described.split("Trouble:")[1].splitlines()[0]
    assert trouble in described.split("Why: its controller waits: ")[1]
    assert (trouble in shown["trouble"], "\nTrouble: " in top) == (True, True)
    code, err = ended(run)
    assert code == 0, err
    assert "Trouble:" not in cli.tuner("describe", "tiny")[1]
    assert [trial["state"] for trial in cli.trials()] == ["succeeded"] * 3
    assert [start.split()[:2] for start in cli.starts()] == [["0", "1"], ["1", "1"], ["2", "1"]]


def test_a_locked_store_refuses_a_start_in_one_sentence_and_can_be_read(
    finished: Cli, cli: Cli
) -> None:
    shutil.copytree(finished.folder / "state", cli.folder / "state")
    cli.file.write_text(experiment(name="other"))
    with locked(cli.folder / "state" / "controller.db"):
        start = cli.start("run", cli.file)
        assert len(cli.trials()) == 2
        code, err = ended(start)
    assert code == 7
    assert err.startswith(
        f"tuner: {cli.folder}/state/controller.db: another process has kept it locked for 5 s"
    )
    assert cli.starts() == []
    assert cli.tuner("run", cli.file)[0] == 0


@pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="only root of Linux may mount a small disk"
)
def test_a_disk_that_fills_up_during_a_run_loses_nothing(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=4, waits=True))
    with small_disk(cli.folder / "state", "2m") as disk:
        run = cli.start("run", cli.file)
        eventually(lambda: len(cli.starts()) == 1)
        fill(disk / "filler")
        cli.let_go()
        assert re.search(
            r"No space left on device; nothing is lost|the disk is full; nothing was lost",
            waiting(run),
        )
        (disk / "filler").unlink()
        code, err = ended(run)
        assert code == 0, err
        assert [trial["state"] for trial in cli.trials()] == ["succeeded"] * 4
        assert [start.split()[:2] for start in cli.starts()] == [[str(n), "1"] for n in range(4)]
        eventually(lambda: not processes_of(cli.folder))


@pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="only root of Linux may mount a small disk"
)
def test_a_trial_that_fails_because_the_disk_is_full_says_so_and_runs_again(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=1, waits=True))
    silent = 'spec.trial.command=[sh, -c, "until [ -e go ]; do sleep 0.05; done; echo score=1"]'
    with small_disk(cli.folder / "state", "2m") as disk:
        run = cli.start("run", cli.file, "--set", silent)
        eventually(lambda: list(disk.rglob("log.txt")))
        fill(disk / "filler")
        (cli.folder / "go").touch()
        assert "is full" in waiting(run)
        (disk / "filler").unlink()
        code, err = ended(run)
        assert code == 0, err
        (described,) = cli.json("get", "trials", "tiny", "-o", "json")
        first, second = described["attempts"]
        assert re.fullmatch(
            r"exit code \d+, and nothing in its log; the disk of .*/state/.* is full: free some "
            "space",
            first["reason"],
        )
        assert (first["failureClass"], second["state"]) == ("infrastructure", "succeeded")


@pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="only root of Linux may mount a small disk"
)
def test_a_second_ctrl_c_on_a_full_disk_kills_the_trials_and_nothing_is_lost(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    with small_disk(cli.folder / "state", "2m") as disk:
        run = cli.start("run", cli.file)
        eventually(lambda: len(cli.starts()) == 1)
        fill(disk / "filler")
        run.send_signal(signal.SIGINT)
        assert "disk is full" in waiting(run)
        run.send_signal(signal.SIGINT)
        code, err = ended(run)
        assert (code, "again: killing the running trials" in err) == (130, True), err
        eventually(lambda: not processes_of(cli.folder))
        (disk / "filler").unlink()
        cli.let_go()
        code, _, err = cli.tuner("run", cli.file)
        assert code == 0, err
        assert [trial["state"] for trial in cli.trials()] == ["succeeded"] * 2
        assert [start.split()[:2] for start in cli.starts()] == [["0", "1"], ["0", "2"], ["1", "1"]]


def interrupt_twice(run: subprocess.Popen[str]) -> tuple[int, str]:
    """Send SIGINT, and again when the first was taken in. Return the exit code and what follows."""
    assert run.stderr is not None
    run.send_signal(signal.SIGINT)
    while not (line := run.stderr.readline()).startswith("Ctrl-C: stopping"):
        assert line, "it ended"
    run.send_signal(signal.SIGINT)
    return ended(run)


def test_a_second_ctrl_c_does_not_wait_for_a_frozen_service(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=2, waits=True))
    with a_process(cli.folder / "shared.db", "127.0.0.1:0") as server:
        run = cli.start("run", cli.file, "--server", server.address)
        eventually(lambda: len(cli.starts()) == 1)
        os.kill(server.pid, signal.SIGSTOP)
        code, err = interrupt_twice(run)
        os.kill(server.pid, signal.SIGCONT)
        assert code == 130, err  # with an error only if the service had not yet taken the score
        eventually(lambda: not processes_of(cli.folder))
        cli.let_go()
        code, _, err = cli.tuner("run", cli.file, "--server", server.address)
        assert code == 0, err
        assert [trial["state"] for trial in cli.trials()] == ["succeeded"] * 2


def test_a_second_ctrl_c_does_not_wait_for_a_service_that_never_answered(cli: Cli) -> None:
    cli.file.write_text(experiment())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        run = cli.start("run", cli.file, "--server", f"127.0.0.1:{silent.getsockname()[1]}")
        with silent.accept()[0]:
            code, err = interrupt_twice(run)
    assert (code, "the limit after a second interruption" in err) == (130, True), err


@pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="only root of Linux may mount a small disk"
)
@pytest.mark.parametrize("size", ["16k", "164k", "244k"])
def test_a_disk_that_is_full_at_the_start_gives_one_sentence(cli: Cli, size: str) -> None:
    """Its size decides which file is the first that has no room: a database,
    its tables, or the experiment's file.
    """
    cli.file.write_text(experiment())
    with small_disk(cli.folder / "state", size):
        code, out, err = cli.tuner("run", cli.file)
    assert (code, out, err.count("\n")) == (7, "", 1)
    assert re.match(
        r"tuner: .*state/.* (the disk is full|No space left|check that its disk .* not full)", err
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "words", [("get", "trials", "tiny"), ("best", "tiny"), ("run", "experiment.yaml"), ("schema",)]
)
def test_output_that_does_not_fit_on_its_disk_is_not_a_bug(
    finished: Cli, words: tuple[str, ...]
) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [TUNER, *words],
            cwd=finished.folder,
            env=finished.env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == 7
        assert done.stderr.splitlines()[-1] == (
            "tuner: No space left on device: standard output or a temporary file is incomplete; "
            "free some space, and "
            "repeat the command"
        )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_the_exit_code_tells_of_a_full_disk_that_takes_no_message_either(finished: Cli) -> None:
    with Path("/dev/full").open("w") as full:
        silent = subprocess.run(
            [TUNER, "schema"],
            cwd=finished.folder,
            env=finished.env,
            stdout=full,
            stderr=full,
            check=False,
        )
    assert silent.returncode == 7


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_server_whose_log_does_not_fit_on_its_disk_keeps_running(cli: Cli) -> None:
    with tempfile.TemporaryDirectory(prefix="tuner-") as short, Path("/dev/full").open("w") as full:
        address = f"unix:{short}/s"
        server = subprocess.Popen(
            [TUNER, "serve", "--address", address, "--insecure"],
            cwd=cli.folder,
            env=cli.env,
            stderr=full,
        )
        try:
            assert cli.tuner("get", "studies", "--server", address)[0] == 0
        finally:
            server.terminate()
            assert server.wait() == 143


@pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="only root of Linux may mount a small disk"
)
@pytest.mark.parametrize(
    "words",
    [("report", "tiny", "--html"), ("report", "tiny", "--figure", "history", "--to"), ("init",)],
)
def test_a_file_that_does_not_fit_on_its_disk_is_named_and_not_left_behind(
    finished: Cli, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with small_disk(tmp_path / "full", "16k") as disk:
        fill(disk / "filler")
        target = disk / "output.json"
        code, out, err = finished.tuner(*words, target)
        assert (code, out, err) == (7, "", f"tuner: {target}: No space left on device\n")
        assert not target.exists()
        (disk / "filler").unlink()
        assert finished.tuner("init", target)[0] == 0


@pytest.mark.parametrize(
    "words", ["pack tiny --to", "db backup", "db backup --keep 2", "db backup COPY.db"]
)
def test_a_copy_that_may_not_be_written_is_named_as_it_was_typed(
    finished: Cli, tmp_path: Path, words: str
) -> None:
    target = tmp_path / ("copy.db" if "COPY" in words else "copy")
    folder = target if "--keep" in words else tmp_path
    folder.mkdir(exist_ok=True)
    folder.chmod(0o500)
    done = subprocess.run(
        [*as_one_whom_permissions_bind(), TUNER, *words.removesuffix(" COPY.db").split(), target],
        cwd=finished.folder,
        env=finished.env,
        capture_output=True,
        text=True,
        check=False,
    )
    folder.chmod(0o700)
    shown = re.escape(str(target)) + (r"/\d{4}-\S+Z" if "--keep" in words else "")
    assert (done.returncode, done.stdout) == (7, "")
    assert re.fullmatch(f"tuner: {shown}: Permission denied\n", done.stderr), done.stderr


@pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="only root of Linux may mount a small disk"
)
@pytest.mark.parametrize(
    ("words", "named"),
    [("pack tiny --to", ""), ("db backup", "/studies.db"), ("db backup COPY.db", "")],
)
def test_a_copy_that_does_not_fit_on_its_disk_is_named_as_it_was_typed(
    finished: Cli, tmp_path: Path, words: str, named: str
) -> None:
    with small_disk(tmp_path / "full", "16k") as disk:
        target = disk / ("copy.db" if "COPY" in words else "copy")
        code, out, err = finished.tuner(*words.removesuffix(" COPY.db").split(), target)
        assert (code, out) == (7, "")
        assert err.startswith(f"tuner: {target}{named}: "), err
        assert re.search("free some space|check that its disk is .* not full", err)
        assert list(disk.iterdir()) == []


@pytest.mark.parametrize("what", ["state", "state/controller.db"])
def test_missing_write_permission_gives_one_sentence_with_the_cure(
    finished: Cli, cli: Cli, what: str
) -> None:
    shutil.copytree(finished.folder / "state", cli.folder / "state")
    cli.file.write_text(experiment(name="other"))
    path = cli.folder / what
    path.chmod(0o500 if path.is_dir() else 0o400)
    if what == "state":
        (path / "experiments").chmod(0o500)
    done = subprocess.run(
        [*as_one_whom_permissions_bind(), TUNER, "run", cli.file],
        cwd=cli.folder,
        env=cli.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (7, "", 1), done.stderr
    assert str(path) in done.stderr
    assert re.search(
        r"read-only; give this user write permission|cannot be written to .*--state-dir or TUNER_",
        done.stderr,
    )
    path.chmod(0o700)
    if what == "state":
        (path / "experiments").chmod(0o700)
    assert cli.tuner("run", cli.file)[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("get experiments", "cannot be read (Permission denied)"),
        ("top", "cannot be read (Permission denied)"),
        ("run experiment.yaml", "cannot be created (Permission denied)"),
        ("doctor", "cannot be written to"),
    ],
)
def test_a_home_of_another_user_is_named_with_the_cure(cli: Cli, words: str, message: str) -> None:
    cli.file.write_text(experiment())
    home = cli.folder / "home"
    home.mkdir(mode=0)
    del cli.env["TUNER_STATE_DIR"]
    cli.env.pop("KUBECONFIG", None)
    done = subprocess.run(
        [*as_one_whom_permissions_bind(), TUNER, *words.split()],
        cwd=cli.folder,
        env=cli.env | {"HOME": str(home), "XDG_STATE_HOME": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    home.chmod(0o700)
    assert done.returncode == 7, done.stderr
    said = done.stdout + done.stderr
    assert str(home) in said
    assert f"/tuner {message}; name another one with --state-dir or TUNER_STATE_DIR\n" in said


def test_a_limit_of_threads_is_named_with_the_cure(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    cli.file.write_text(experiment())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        code, out, err = cli.tuner("run", cli.file)
    assert (code, out, err.count("\n")) == (7, "", 1), err
    assert err.startswith("tuner: this process cannot start another thread; end other programs")
    assert cli.tuner("run", cli.file)[0] == 0


def as_one_whom_permissions_bind() -> list[str]:
    """Return a command prefix that drops root's capability to write everywhere."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root may write everywhere, and there is no setpriv here")
    return [setpriv, "--bounding-set", "-dac_override,-dac_read_search"]


@pytest.mark.parametrize(
    "name",
    ["with space/ünï 漢/what?x=1/#hash/per%20cent/quo\"te'", "long" * 60 + "/" + "long" * 30],
)
def test_a_state_directory_may_have_any_name(cli: Cli, name: str) -> None:
    cli.env["TUNER_STATE_DIR"] = f"{cli.folder}/{name}"
    cli.file.write_text(experiment(trials=1))
    assert cli.tuner("run", cli.file)[0] == 0
    assert [trial["state"] for trial in cli.trials()] == ["succeeded"]
    made = {path.name for path in Path(cli.env["TUNER_STATE_DIR"]).iterdir()}
    assert made >= {"controller.db", "studies.db", "experiments"}


def waiting(process: subprocess.Popen[str]) -> str:
    """Return the line that names what the process waits for."""
    assert process.stderr is not None
    messages = []
    for line in process.stderr:
        messages.append(line)
        if line.startswith("waiting: "):
            return line
    raise AssertionError(f"it never waited: {''.join(messages)}")
