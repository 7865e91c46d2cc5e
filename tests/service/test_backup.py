"""`tuner db backup` and `tuner db restore`: copies of databases in use,
and restores over existing stores.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controller import backup
from controller.cli.main import main
from controller.core.model import Revision, Uid
from controller.experiment_store import SqlExperimentStore, sqlite_database
from suggest.errors import StoreBroken
from suggest.storage.sqlite_store import SqliteStore
from tests import forked
from tests.conditions import eventually
from tests.contract.store_contract import a_study
from tests.service.load import a_client, started, under_load
from tests.service.running import NAME, SPEC, a_process
from tests.unit.builders import a_spec, an_experiment, at

TUNER = Path(sys.executable).parent / "tuner"


@pytest.fixture
def state(folder: Path) -> Path:
    """A state directory with a study and an experiment."""
    made = folder / "state"
    made.mkdir()
    add(made, "first")
    return made


def add(state: Path, name: str) -> None:
    with closing(SqliteStore(state / "studies.db")) as studies:
        studies.insert_study(a_study(name))
    with closing(
        SqlExperimentStore(sqlite_database(state / "controller.db"), lambda _: a_spec(name=name))
    ) as store:
        experiment = an_experiment(a_spec(name=name), uid=Uid(f"{name:a<16}"[:16]))
        store.create_experiment(
            experiment, Revision(1, experiment.spec, "kind: Experiment\n", at(0))
        )


def names(state: Path) -> tuple[list[str], list[str]]:
    """Return the names of the studies and of the experiments."""
    with (
        closing(SqliteStore(state / "studies.db")) as studies,
        closing(
            SqlExperimentStore(
                sqlite_database(state / "controller.db"),
                lambda document: a_spec(name=str(document["name"])),
            )
        ) as store,
    ):
        found = studies.studies(None, labels={}, after=None, limit=9)
        return [study.name.study for study in found], sorted(
            each.name for each in store.experiments()
        )


def tuner_db(*words: str | Path) -> int:
    return main(["db", *map(str, words)])


def test_a_state_directory_is_restored_as_it_was(
    state: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tuner_db("backup", folder / "saved", "--state-dir", state) == 0
    assert "1 study" in capsys.readouterr().out
    add(state, "second")
    assert tuner_db("restore", folder / "saved", "--state-dir", state, "--force") == 0
    assert names(state) == (["first"], ["first"])
    for path in state.glob("*.before-*"):
        path.rename(state / path.name.partition(".before-")[0])
    assert names(state) == (["first", "second"], ["first", "second"]), "what was replaced is kept"


def test_a_backup_is_restored_into_an_empty_folder(state: Path, folder: Path) -> None:
    assert tuner_db("backup", folder / "saved", "--state-dir", state) == 0
    assert tuner_db("restore", folder / "saved", "--state-dir", folder / "elsewhere") == 0
    assert names(folder / "elsewhere") == (["first"], ["first"])
    modes = {oct(path.stat().st_mode & 0o777) for path in (folder / "saved").iterdir()}
    assert modes == {"0o600"}, "they hold what people wrote, secrets too"


def test_a_backup_under_load_has_all_that_was_acknowledged_before_it(folder: Path) -> None:
    path = folder / "studies.db"
    url = f"sqlite:///{path}"
    with a_process(path, f"unix:{folder}/s.sock") as server, a_client(server) as client:
        client.create_study(NAME, SPEC, request_id="create")
        with under_load([server] * 3) as load:
            for number in range(3):
                eventually(load.progress())
                acknowledged = {
                    trial.number: trial for trial in client.list_trials(NAME) if trial.finished
                }
                assert tuner_db("backup", folder / f"saved{number}", "--storage", url) == 0
                with closing(SqliteStore(folder / f"saved{number}" / "studies.db")) as copy:
                    trials = copy.trials(NAME, states=[], client_id="", after=-1, limit=10**6)
                assert [trial.number for trial in trials] == list(range(len(trials)))
                assert {
                    trial.number: trial for trial in trials if trial.number in acknowledged
                } == acknowledged
        load.hold_against(client)


def test_both_databases_are_copied_at_the_same_moment(folder: Path) -> None:
    paths = {"a.db": folder / "a.db", "b.db": folder / "b.db"}
    for path in paths.values():
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE rows (n)")
    stop = threading.Event()

    def write() -> None:
        """Write each row first into one database, then into the other."""
        with (
            closing(sqlite3.connect(paths["a.db"], timeout=60)) as a,
            closing(sqlite3.connect(paths["b.db"], timeout=60)) as b,
        ):
            while not stop.is_set():
                for connection in (a, b):
                    connection.execute("INSERT INTO rows VALUES (1)")
                    connection.commit()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(20):
            a, b = (
                copy.rows["rows"]
                for copy in backup.back_up(paths, folder / f"saved{number}", made_by="a test")
            )
            assert a - b in (0, 1)
    finally:
        stop.set()
        writer.join()


def test_restore_refuses_while_a_server_uses_the_store(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "studies.db"
    storage = ("--storage", f"sqlite:///{path}")
    with a_process(path, f"unix:{folder}/s.sock") as server, a_client(server) as client:
        client.create_study(NAME, SPEC, request_id="create")
        assert tuner_db("backup", folder / "saved", *storage) == 0
        assert tuner_db("restore", folder / "saved", *storage, "--force") == 6
        assert "a process has it open; stop the server or the run" in capsys.readouterr().err
        assert started(client, "r0").number == 0, "it was not disturbed"
    assert tuner_db("restore", folder / "saved", *storage, "--force") == 0
    with closing(SqliteStore(path)) as store:
        assert store.trials(NAME, states=[], client_id="", after=-1, limit=9) == []


def test_an_existing_store_is_not_replaced_without_force(
    state: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tuner_db("backup", folder / "saved", "--state-dir", state) == 0
    add(state, "second")
    assert tuner_db("restore", folder / "saved", "--state-dir", state) == 6
    assert "replace it with --force" in capsys.readouterr().err
    assert names(state) == (["first", "second"], ["first", "second"])


def test_an_emptied_store_is_restored(state: Path, folder: Path) -> None:
    assert tuner_db("backup", folder / "saved", "--state-dir", state) == 0
    for name in ("studies.db", "controller.db"):
        (state / name).write_bytes(b"")
    with pytest.raises(StoreBroken, match="a store was here"):
        names(state)
    assert tuner_db("restore", folder / "saved", "--state-dir", state) == 0
    assert names(state) == (["first"], ["first"])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 255
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.with_name("backup.json").unlink()  # so that only SQLite can detect it
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_an_unknown_schema(path: Path) -> None:
    of_a_newer_tuner(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE study_schema_version SET version_num = '0000'")


def of_a_newer_tuner(path: Path) -> None:
    path.with_name("backup.json").unlink()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE study_schema_version SET version_num = '9999'")


def other_programs(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (title)")


@pytest.mark.parametrize(
    "harm",
    [flip, cut, of_a_newer_tuner, of_an_unknown_schema, other_programs],
    ids=lambda harm: harm.__name__,
)
def test_a_bad_backup_is_named_and_changes_nothing(
    state: Path, folder: Path, harm: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tuner_db("backup", folder / "saved", "--state-dir", state) == 0
    add(state, "second")
    harm(folder / "saved" / "studies.db")
    before = sorted(path.name for path in state.iterdir())
    assert tuner_db("restore", folder / "saved", "--state-dir", state, "--force") in (2, 7)
    assert str(folder / "saved") in capsys.readouterr().err.splitlines()[-1]
    assert sorted(path.name for path in state.iterdir()) == before
    assert names(state) == (["first", "second"], ["first", "second"])


@pytest.mark.parametrize("point", ["before:1", "after:1", "before:2", "after:2"])
def test_a_restore_that_is_killed_is_noticed_and_can_be_repeated(
    state: Path, folder: Path, point: str
) -> None:
    assert tuner_db("backup", folder / "saved", "--state-dir", state) == 0
    add(state, "second")
    again = ["db", "restore", folder / "saved", "--state-dir", state, "--force"]
    env = {**os.environ, "TUNER_FAILPOINT": f"controller.backup.swap.{point}"}
    assert forked.run_tuner(again, folder=folder, env=env).returncode == -9
    for _ in range(2):
        with pytest.raises(StoreBroken, match=r"a restore was interrupted here; run it again"):
            names(state)
    assert forked.run_tuner(again, folder=folder, env=os.environ).returncode == 0
    assert names(state) == (["first"], ["first"])


def test_the_study_store_alone_fits_one_file(
    state: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tuner_db("backup", folder / "saved.db", "--state-dir", state) == 0
    assert "controller.db is not in it" in capsys.readouterr().err
    add(state, "second")
    assert tuner_db("restore", folder / "saved.db", "--state-dir", state, "--force") == 0
    assert "controller.db stays as it is" in capsys.readouterr().err
    assert names(state) == (["first"], ["first", "second"])


def test_a_backup_never_overwrites(state: Path, folder: Path) -> None:
    for target in ("saved", "saved.db"):
        assert tuner_db("backup", folder / target, "--state-dir", state) == 0
        assert tuner_db("backup", folder / target, "--state-dir", state) == 6
    assert sorted(path.name for path in folder.iterdir()) == ["saved", "saved.db", "state"], (
        "no half backup is left"
    )


def test_repeated_backups_keep_the_newest_and_leave_others_alone(state: Path, folder: Path) -> None:
    databases = {name: state / name for name in (backup.STUDIES, backup.CONTROLLER)}
    backups = folder / "backups"
    left = (f".2026-11-{day}T00-00-00.000000Z.partial-x" for day in ("01", "03"))
    for name in ("mine", ".mine.partial-x", *left):
        (backups / name).mkdir(parents=True)
    for day in (1, 2, 3):
        now = datetime(2026, 11, day, tzinfo=UTC)
        backup.back_up_next(databases, backups, keep=2, now=now, made_by="tuner")
    assert sorted(path.name for path in backups.iterdir()) == [
        ".2026-11-03T00-00-00.000000Z.partial-x",  # another command may be writing it
        ".mine.partial-x",
        "2026-11-02T00-00-00.000000Z",
        "2026-11-03T00-00-00.000000Z",
        "mine",
    ]


def test_there_is_nothing_to_back_up_before_the_first_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tuner_db("backup", folder / "saved", "--state-dir", folder / "state") == 5
    assert tuner_db("restore", folder / "saved", "--state-dir", folder / "state") == 5
    assert not list(folder.iterdir())
    assert "nothing to back up yet" in capsys.readouterr().err


def test_backup_and_restore_of_postgresql_name_its_own_programs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "postgresql+psycopg://me:secret@host/db"
    assert tuner_db("backup", folder / "saved", "--storage", url) == 2
    assert tuner_db("restore", folder / "saved", "--storage", url) == 2
    output = capsys.readouterr().err
    assert "pg_dump" in output
    assert "pg_restore" in output
    assert "secret" not in output
