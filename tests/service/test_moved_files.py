"""Database files that are removed, replaced or emptied:
under a running server, and before one starts.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from controller.backup import back_up_one
from controller.core.model import Revision
from controller.experiment_store import Changes, SqlExperimentStore, sqlite_database
from suggest.errors import StoreBroken, TunerError
from suggest.storage.sqlite_file import DatabaseFile
from suggest.storage.sqlite_store import SqliteStore
from suggest.trial import Trial
from tests.conditions import eventually
from tests.contract.store_contract import NAME as DIGITS
from tests.contract.store_contract import a_study, running
from tests.service.load import a_client, started
from tests.service.running import NAME, SPEC, a_process
from tests.unit.builders import a_spec, an_experiment, at

Harm = Callable[[Path], None]


def remove(path: Path) -> None:
    path.unlink()


def remove_all(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def remove_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def remove_index(path: Path) -> None:
    Path(f"{path}-shm").unlink()


def move_away(path: Path) -> None:
    path.rename(path.with_name("old.db"))


def replace(path: Path) -> None:
    """Replace the file by another store: `mv other.db studies.db`."""
    other = path.with_name("other.db")
    with closing(SqliteStore(other)) as store:
        store.insert_study(a_study("other"))
    other.rename(path)


HARMS = [remove, remove_all, remove_log, remove_index, move_away, replace]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_every_call_fails_once_the_files_are_gone(folder: Path, harm: Harm) -> None:
    path = folder / "studies.db"
    with a_process(path, f"unix:{folder}/s.sock") as server, a_client(server) as client:
        client.create_study(NAME, SPEC, request_id="create")
        started(client, "r0")
        harm(path)
        for number in range(1, 5):
            with pytest.raises(
                StoreBroken, match=r"was (removed|replaced) while .*tuner db restore"
            ):
                started(client, f"r{number}")
        with pytest.raises(StoreBroken):
            client.list_trials(NAME)
        if harm is not replace:
            assert path.exists() is (harm in (remove_log, remove_index)), (
                "nothing was made in its place"
            )
        assert server.stop() == 143


@pytest.mark.parametrize(
    "harm", [remove_log, remove_index, move_away], ids=lambda harm: harm.__name__
)
def test_acknowledged_writes_are_in_the_moved_file(folder: Path, harm: Harm) -> None:
    path = folder / "studies.db"
    with a_process(path, f"unix:{folder}/s.sock") as server, a_client(server) as client:
        client.create_study(NAME, SPEC, request_id="create")
        numbers = [started(client, f"r{n}").number for n in range(20)]
        harm(path)
        with pytest.raises(StoreBroken):
            started(client, "lost")
        server.stop()
    there = folder / "old.db" if harm is move_away else path
    if harm is move_away:
        Path(f"{path}-wal").rename(f"{there}-wal")
    # The one that was refused after its commit may be there, too.
    assert trials(there)[: len(numbers)] == numbers


def test_neither_file_is_damaged_when_one_replaces_the_other(folder: Path) -> None:
    path = folder / "studies.db"
    with a_process(path, f"unix:{folder}/s.sock") as server, a_client(server) as client:
        client.create_study(NAME, SPEC, request_id="create")
        started(client, "r0")
        os.link(path, folder / "before.db")  # so that the replaced file can be checked
        replace(path)
        for number in range(1, 300):  # enough for a checkpoint, if they were accepted
            with pytest.raises(StoreBroken):
                started(client, f"r{number}")
        server.stop()
    Path(f"{path}-wal").unlink(missing_ok=True)  # the first file's log
    for file in (path, folder / "before.db"):
        with closing(sqlite3.connect(f"file:{file}?immutable=1", uri=True)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        assert connection.execute("SELECT study FROM studies").fetchall() == [("other",)]


def test_a_file_that_reappears_is_not_trusted(folder: Path) -> None:
    path = folder / "studies.db"
    with closing(SqliteStore(path)) as store:
        store.insert_study(a_study())
        move_away(path)
        with pytest.raises(StoreBroken, match="was removed while"):
            store.insert_study(a_study("more"))
        (folder / "old.db").rename(path)
        with pytest.raises(StoreBroken, match="was removed while"):
            store.insert_study(a_study("more"))
    with closing(SqliteStore(path)) as store:
        assert store.study(DIGITS) == a_study()


def test_a_write_whose_file_vanished_before_its_answer_is_not_acknowledged(folder: Path) -> None:
    path = folder / "studies.db"
    with closing(SqliteStore(path)) as store:
        store.insert_study(a_study())
        lease = store.take(DIGITS, uid="default-digits", address="")

        class Vanishing(list[Trial]):
            """A list whose items are read within the transaction."""

            def __iter__(self) -> Iterator[Trial]:
                path.unlink(missing_ok=True)
                return super().__iter__()

        with pytest.raises(StoreBroken, match="was removed while"):
            store.hand_out(lease, Vanishing([running(0)]))


def test_the_controllers_store_refuses_to_write_to_a_file_that_is_gone(folder: Path) -> None:
    path = folder / "controller.db"
    experiment = an_experiment(a_spec(name="digits"), uid="x7k2qaaaaaaaaaaa")
    revision = Revision(1, experiment.spec, "kind: Experiment\n", at(0))
    for harm in (remove, remove_log, remove_index, move_away):
        remove_all(path)
        with closing(SqlExperimentStore(sqlite_database(path), lambda _: experiment.spec)) as store:
            store.create_experiment(experiment, revision)
            harm(path)
            with pytest.raises(StoreBroken, match=r"was removed while .*tuner db restore"):
                store.save(experiment.uid, Changes(experiment=experiment))
            with pytest.raises(StoreBroken):
                store.requests(experiment.uid)


# Before a start


def opened(path: Path) -> None:
    if path.name == "controller.db":
        SqlExperimentStore(sqlite_database(path), lambda _: a_spec()).close()
    else:
        SqliteStore(path).close()


@pytest.fixture(params=["studies.db", "controller.db"])
def path(request: pytest.FixtureRequest, folder: Path) -> Path:
    return folder / str(request.param)


def test_an_emptied_file_is_an_error_not_a_new_store(path: Path) -> None:
    opened(path)
    path.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(
            StoreBroken,
            match=r"is empty, but a store was here; restore a backup \(tuner db restore",
        ):
            opened(path)
        assert path.stat().st_size == 0, "left as it was"


def test_a_file_without_tables_is_an_error_where_a_store_was(path: Path) -> None:
    opened(path)
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")  # writes the header
    with pytest.raises(StoreBroken, match="a store was here"):
        opened(path)


def test_a_missing_file_whose_log_exists_is_an_error(path: Path) -> None:
    opened(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE more (x)")
        log = Path(f"{path}-wal").read_bytes()
    path.unlink()
    Path(f"{path}-wal").write_bytes(log)
    with pytest.raises(StoreBroken, match=r"is gone, but its log .*-wal is still here"):
        opened(path)
    assert not path.exists()


def test_a_first_start_killed_before_creating_tables_can_be_repeated(path: Path) -> None:
    path.touch(0o600)  # what such a process leaves behind
    opened(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() > (0,)


def test_a_store_that_was_removed_on_purpose_makes_room_for_a_new_one(path: Path) -> None:
    opened(path)
    path.unlink()
    DatabaseFile(path).create()  # then the process is killed
    assert path.stat().st_size == 0
    opened(path)


def test_a_store_without_a_marker_gets_it_when_opened(path: Path) -> None:
    opened(path)
    (path.parent / f".{path.name}.created").unlink()
    opened(path)
    shutil.copyfile(os.devnull, path)
    with pytest.raises(TunerError, match="a store was here"):
        opened(path)


# A backup that is put in the place of a store in use


def move_over(backup: Path, path: Path) -> None:
    backup.rename(path)


def copy_over(backup: Path, path: Path) -> None:
    shutil.copyfile(backup, path)


PUTS = [move_over, copy_over]


@pytest.fixture
def killed(folder: Path) -> tuple[Path, Path]:
    """A backup with 100 trials, and a store with 400,
    whose server was killed after a checkpoint.
    """
    path, backup = folder / "state" / "studies.db", folder / "backup.db"
    path.parent.mkdir()
    with a_process(path, f"unix:{folder}/s.sock") as server, a_client(server) as client:
        client.create_study(NAME, SPEC, request_id="create")
        client.suggest(NAME, 100, client_id="c", request_id="first")
        back_up_one(path, backup)
        client.suggest(NAME, 300, client_id="c", request_id="later")
        least = path.stat().st_size + (backup.stat().st_size >> 1)
        eventually(lambda: recorded_size(path) > least)
        started(client, "in the log")
        server.kill()
    assert Path(f"{path}-wal").stat().st_size
    return path, backup


@pytest.mark.parametrize("put", PUTS, ids=lambda put: put.__name__)
def test_a_log_is_not_replayed_into_another_file(
    killed: tuple[Path, Path], put: Callable[[Path, Path], None]
) -> None:
    path, backup = killed
    content = backup.read_bytes()
    put(backup, path)
    for _ in range(2):
        with pytest.raises(
            StoreBroken,
            match=r"its log studies.db-wal belongs to the one before; .*tuner db restore",
        ):
            SqliteStore(path)
    assert path.read_bytes() == content
    Path(f"{path}-wal").rename(path.with_name("away"))
    assert len(trials(path)) == 100


def test_a_kill_or_a_copy_of_the_whole_folder_is_not_mistaken_for_another_file(
    killed: tuple[Path, Path],
) -> None:
    path, _ = killed
    copy = path.parent.with_name("copy")
    shutil.copytree(path.parent, copy)
    assert len(trials(copy / path.name)) == 401
    assert len(trials(path)) == 401


def test_a_smaller_file_copied_over_an_open_store_is_noticed(
    killed: tuple[Path, Path], folder: Path
) -> None:
    path, backup = killed
    with a_process(path, f"unix:{folder}/s.sock") as server, a_client(server) as client:
        started(client, "r0")
        copy_over(backup, path)
        with pytest.raises(
            StoreBroken, match=r"studies.db was overwritten while .*tuner db restore"
        ):
            started(client, "r1")
        server.stop()


def recorded_size(path: Path) -> int:
    """Return the size in the file beside the database, which is written after a checkpoint."""
    return int(json.loads(path.with_name(f".{path.name}.created").read_bytes())["size"])


def trials(path: Path) -> list[int]:
    with closing(SqliteStore(path)) as store:
        return [t.number for t in store.trials(NAME, states=[], client_id="", after=-1, limit=999)]
