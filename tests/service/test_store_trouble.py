"""A database that is locked, full, read-only, damaged, foreign,
old or new gives a clear error, and nothing is lost.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool

from suggest.errors import FailedPrecondition, InvalidArgument, StoreBroken, Unavailable
from suggest.server.admin import open_store
from suggest.storage import location, sqlite
from suggest.storage.sqlite_store import SqliteStore
from suggest.studies import StudyService
from suggest.trial import Outcome, TrialState
from tests import forked
from tests.contract.store_contract import NAME, a_study, measured, running
from tests.service.running import NAME as PARABOLA
from tests.service.running import SPEC, score


@contextmanager
def opened(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path)) as store:
        yield store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "studies.db"


def tables_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [
            sql
            for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        ]


def test_an_optuna_storage_is_not_mistaken_for_a_tuner_store(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE studies (study_id INTEGER)")
    with pytest.raises(StoreBroken, match=r"'studies' that is not tuner's .* name another place"):
        SqliteStore(path)
    assert tables_of(path) == ["CREATE TABLE studies (study_id INTEGER)"]


def test_a_file_that_is_not_a_database_is_named_and_left_alone(path: Path) -> None:
    path.write_text("apiVersion: tuner.dev/v1\n" * 100)
    with pytest.raises(StoreBroken, match=r"studies\.db: the file is not a database"):
        SqliteStore(path)
    assert path.read_text().startswith("apiVersion")


def test_a_truncated_database_is_reported_as_damaged(path: Path) -> None:
    with opened(path) as store:
        store.insert_study(a_study())
        lease = store.take(NAME, uid="default-digits", address="")
        store.hand_out(lease, [running(n) for n in range(200)])
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 3])
    with (
        pytest.raises(StoreBroken, match=r"studies\.db: the file is (damaged|no database)"),
        opened(path) as store,
    ):
        store.contents(NAME)


def test_a_locked_database_says_so_and_works_afterwards(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.2)
    with opened(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="another process has kept it locked"):
            store.insert_study(a_study())
        assert store.study(NAME) is None, "reading does not wait"
        other.execute("ROLLBACK")
        assert store.insert_study(a_study())


def test_a_completion_that_was_not_stored_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.2)
    name, point = PARABOLA, {"x": 1.0, "kind": "a"}
    reported = [score(0, 0.5)]
    succeeded = Outcome(TrialState.SUCCEEDED)
    with opened(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        studies = StudyService(store, address="")
        studies.create_study(name, SPEC, request_id="create")
        studies.suggest(name, 1, client_id="c", request_id="r")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable):
            studies.complete(name, 0, succeeded, measurements=reported)
        with pytest.raises(Unavailable):
            studies.add_trial(name, point, request_id="a", outcome=succeeded, measurements=reported)
        other.execute("ROLLBACK")
        with pytest.raises(FailedPrecondition, match="has no finite value of 'score'"):
            studies.complete(name, 0, succeeded)
        assert studies.complete(name, 0, succeeded, measurements=reported).value == 0.5
        added = studies.add_trial(
            name, point, request_id="a", outcome=succeeded, measurements=reported
        )
        assert (added.number, added.value) == (1, 0.5)
        studies.close()


def test_a_full_disk_loses_nothing(path: Path) -> None:
    def limit(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 40")

    event.listen(Pool, "connect", limit)
    try:
        with opened(path) as store:
            store.insert_study(a_study())
            lease = store.take(NAME, uid="default-digits", address="")
            store.hand_out(lease, [running(0)])
            with pytest.raises(Unavailable, match="the disk is full; nothing was lost"):
                store.add_measurements(lease, 0, [measured(step, 0.5) for step in range(10_000)])
            assert store.measurements(NAME, 0, after=0, limit=9) == []
            store.add_measurements(lease, 0, [measured(0, 0.5)])
    finally:
        event.remove(Pool, "connect", limit)


def test_a_read_only_database_is_named_with_the_cure() -> None:
    program = """
import os, pathlib, sys
from suggest.errors import Unavailable
from suggest.storage.sqlite_store import SqliteStore
if os.geteuid() == 0:
    os.seteuid(65534)  # root may write everywhere
try:
    SqliteStore(pathlib.Path(sys.argv[1])).insert_study(None)
except Unavailable as e:
    print(e)
"""
    with tempfile.TemporaryDirectory() as name:  # the other user cannot access pytest's own folders
        path = Path(name, "studies.db")
        with opened(path):
            pass
        path.chmod(0o444)
        path.parent.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
        )
        path.parent.chmod(0o755)
    assert re.match(
        r".*studies\.db: it (is read-only; give|cannot be opened; check that) .*this user .*write",
        done.stdout,
    )


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("studies.db", "is not a storage URL; use sqlite:///PATH"),
        ("mysql://host/db", "is not a storage URL"),
        ("sqlite://", "is not a storage URL"),
        ("sqlite:///", "a store in memory would lose the studies"),
        ("sqlite:///:memory:", "a store in memory would lose the studies"),
        ("sqlite:////tmp", "/tmp is a directory; name a file in it"),
        ("sqlite:////proc/nowhere/studies.db", "cannot create the folder"),
        (
            "postgresql://me:secret@host/db",
            "postgresql://me:***@host/db: is not a storage URL; begin it with postgresql+psy",
        ),
    ],
)
def test_an_invalid_storage_url_is_refused_with_the_cure(url: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        open_store(url)
    assert message in str(refused.value)


def test_an_unknown_sync_mode_is_refused(path: Path) -> None:
    with pytest.raises(InvalidArgument, match="use normal or full"):
        open_store(f"sqlite:///{path}", sync="half")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs"])
def test_a_network_file_system_is_refused_with_the_cure(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/sda / ext4 rw 0 0\nserver:/home {tmp_path.resolve()}/my\\040home {kind} rw 0 0\n"
    )
    location.refuse_network(tmp_path, mounts)
    with pytest.raises(
        StoreBroken, match=rf"on a network file system \({kind}\).*; use a local folder"
    ):
        location.refuse_network(tmp_path / "my home" / "state", mounts)


def test_a_system_that_names_no_mounts_is_trusted(tmp_path: Path) -> None:
    location.refuse_network(tmp_path, tmp_path / "missing")


def test_two_concurrent_first_starts_create_one_store(path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from suggest.storage.sqlite_store import SqliteStore\n"
        "SqliteStore(pathlib.Path(sys.argv[1])).close()"
    )
    starts = [forked.python(program, str(path), env=os.environ) for _ in range(4)]
    assert [(start.communicate()[1], start.returncode) for start in starts] == [("", 0)] * 4


def test_full_sync_sets_sqlites_pragma(path: Path) -> None:
    with (
        closing(open_store(f"sqlite:///{path}", sync="full")) as store,
        store._database.writing() as connection,
    ):
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
