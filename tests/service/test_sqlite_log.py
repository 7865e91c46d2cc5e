"""SQLite's write-ahead log is checkpointed while writes continue, and no write does it itself."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from suggest.storage.sqlite import WRITES, SqliteDatabase, WalCheckpoints

WITHIN_S = 30.0
BEGINNING = 32  # bytes of a log's header, which change whenever the log restarts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


@pytest.fixture
def database(path: Path) -> Iterator[SqliteDatabase]:
    with closing(SqliteDatabase(path)) as made:
        with made.writing() as connection:
            connection.execute(text("CREATE TABLE words (word TEXT)"))
        yield made


def write(database: SqliteDatabase, count: int) -> None:
    for _ in range(count):
        with database.writing(single=True) as connection:
            connection.execute(text("INSERT INTO words VALUES ('a word')"))


def beginning(path: Path) -> bytes:
    with Path(f"{path}-wal").open("rb") as log:
        return log.read(BEGINNING)


def test_the_log_restarts_while_writes_continue(database: SqliteDatabase, path: Path) -> None:
    before, deadline = beginning(path), time.monotonic() + WITHIN_S
    while beginning(path) == before:
        assert time.monotonic() < deadline, "the log only grows"
        write(database, WRITES)


def test_a_large_write_triggers_a_checkpoint(database: SqliteDatabase, path: Path) -> None:
    before, deadline = beginning(path), time.monotonic() + WITHIN_S
    while beginning(path) == before:
        assert time.monotonic() < deadline, "the log only grows"
        with database.writing() as connection:
            connection.execute(text("INSERT INTO words VALUES ('many'), ('words')"))
        time.sleep(0.05)


def test_the_log_of_a_killed_process_is_checkpointed_by_the_next_one(
    database: SqliteDatabase, path: Path
) -> None:
    write(database, WRITES // 2)
    killed = path.with_name("killed.db")  # the files after kill -9
    for suffix in ("", "-wal"):
        path.with_name(f"{killed.name}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    with (
        closing(SqliteDatabase(killed)),
        closing(sqlite3.connect(f"file:{killed}?immutable=1", uri=True)) as the_file_alone,
    ):
        assert the_file_alone.execute("SELECT count(*) FROM words").fetchone() == (WRITES // 2,)


def test_no_write_runs_a_checkpoint_itself(database: SqliteDatabase) -> None:
    with database.writing(single=True) as connection:
        assert connection.execute(text("PRAGMA wal_autocheckpoint")).scalar_one() == 0


def test_a_long_reader_blocks_nothing(database: SqliteDatabase, path: Path) -> None:
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM words").fetchone()
        write(database, 3 * WRITES)
        assert reader.execute("SELECT count(*) FROM words").fetchone() == (0,)
    test_the_log_restarts_while_writes_continue(database, path)


def test_closing_checkpoints_everything_and_leaves_no_thread(path: Path) -> None:
    before = set(threading.enumerate())  # another file's server may be up
    with closing(SqliteDatabase(path)) as database:
        with database.writing() as connection:
            connection.execute(text("CREATE TABLE words (word TEXT)"))
        write(database, 2 * WRITES)
        assert set(threading.enumerate()) - before
    assert not set(threading.enumerate()) - before
    assert not Path(f"{path}-wal").exists()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM words").fetchone() == (2 * WRITES,)


class ClosesWhenAsked(threading.Event):
    """Closes the checkpoints right after their thread has checked whether they are closed."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        was = super().is_set()
        self.set()
        self._other.set()
        return was


def test_closing_works_at_any_moment(path: Path) -> None:
    checkpoints = WalCheckpoints(lambda: sqlite3.connect(path), threading.Lock(), mark=lambda: None)
    checkpoints._closed = ClosesWhenAsked(checkpoints._due)
    checkpoints.written(large=True)
    assert checkpoints._thread is not None
    checkpoints._thread.join(WITHIN_S)
    assert not checkpoints._thread.is_alive(), "it waits for what nobody will tell it"
