"""SQLite connections: pragmas, transactions, WAL checkpoints, and errors translated for people.

This module names no table. Writers share one connection, one at a time; readers have their own
connections and, thanks to WAL, never wait.
"""

from __future__ import annotations

import functools
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool, StaticPool
from sqlalchemy.util import LRUCache

from suggest import threads
from suggest.deadline import locked
from suggest.errors import StoreBroken, StoreUnavailable, TunerError
from suggest.storage.database import DamagedRow
from suggest.storage.sqlite_file import (
    BUSY_TIMEOUT_S,
    DAMAGED,
    RECENT_S,
    DatabaseFile,
    trouble_of,
)
from suggest.storage.study_json import read_json

WRITES = 200  # small writes between two checkpoints; a large write counts as this many
_PAUSE_S = 2.0  # the shortest pause between two checkpoints
_PASSIVE_PASSES = 2  # passes while writes continue, after which only little of the log is left
_COMPILED_STATEMENTS: LRUCache[Any, Any] = LRUCache(500)  # as many as an engine keeps by default

log = logging.getLogger(__name__)


class WalCheckpoints:
    """Checkpoints the WAL in a thread, which lives from the first checkpoint until close().

    `turn` is the lock that a writer holds. `mark` is called after each checkpoint.
    """

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        turn: threading.Lock,
        *,
        mark: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._turn = turn
        self._mark = mark
        self._writes = 0
        self._due = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def written(self, *, large: bool) -> None:
        """Record a write. The caller holds `turn`."""
        self._writes += WRITES if large else 1
        if self._writes < WRITES:
            return
        self._writes = 0
        self._due.set()
        if self._thread is None:
            try:
                self._thread = threads.started(self._run, "checkpoints")
            except TunerError as e:
                # The write is done; a later one tries again.
                log.debug("no checkpoint: %s", e)

    def close(self) -> None:
        """Stop the thread. There must be no writes any more."""
        self._closed.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._due.wait():
            # before checking `_closed`; the other way around, a close() in between would be missed
            self._due.clear()
            if self._closed.is_set():
                return
            try:
                self._checkpoint()
            except (sqlite3.Error, TunerError) as e:
                # The data stays in the log until the next checkpoint,
                # and the next write reports the same error.
                log.debug("checkpoint failed: %s", e)
            self._closed.wait(_PAUSE_S)

    def _checkpoint(self) -> None:
        with closing(self._connect()) as connection:
            for _ in range(_PASSIVE_PASSES):
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            # SQLite restarts the log only after a checkpoint of all of it,
            # which needs a moment without writes.
            with self._turn:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._mark()


SYNC = {"normal": "NORMAL", "full": "FULL"}


@functools.cache
def _initialized_engine() -> Engine:
    """Return an engine whose dialect all databases share, and with it the compiled statements.

    A database has three engines, and a command opens several databases: with a dialect for each
    engine, compiling took a fifth of a short command's processor time.
    """
    engine = create_engine("sqlite+pysqlite://", json_deserializer=read_json)
    with engine.connect():  # the first connection initializes the dialect
        pass
    engine.dispose()
    return engine


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translate database errors to the types of `suggest.errors`.

    Errors that indicate a bug of this package (bad SQL, a violated constraint) pass through.
    """
    try:
        yield
    except DamagedRow as e:
        raise e.broken(str(path)) from e
    except (SQLAlchemyError, sqlite3.Error) as e:
        cause = e.orig if isinstance(e, DBAPIError) else e
        error = trouble_of(path, cause)
        if error is None:
            raise
        raise error from e


class SqliteDatabase:
    """The `Database` in the file `path`, created if it is missing. close() releases everything."""

    restarts = 0

    def __init__(self, path: Path, *, sync: str = "normal") -> None:
        self.path = path
        self.place = str(path)
        self._sync = SYNC[sync]
        self._turn = threading.Lock()
        self.file = DatabaseFile(path)
        self.file.create()
        with translated(path):
            self._use_wal()
        self._writers = self._engine(StaticPool, "BEGIN IMMEDIATE")
        # This connection is kept: checking it out of a pool would cost more than the one statement.
        with translated(path):
            self._single = self._new_engine(StaticPool).connect()
            # The first read opens the side files.
            self._single.exec_driver_sql("SELECT count(*) FROM sqlite_master").close()
            self._single.rollback()
        self.file.watch()
        self._readers = self._engine(QueuePool, "BEGIN")
        self._checkpoints = WalCheckpoints(self._connect, self._turn, mark=self._mark)

    @contextmanager
    def writing(self, *, single: bool = False) -> Iterator[Connection]:
        """Open a transaction that holds the write lock from its beginning."""
        late = StoreUnavailable(f"{self.path}: other calls have kept it busy; try again")
        with locked(self._turn, late=late), translated(self.path):
            self.file.check(within_s=RECENT_S)
            if not single:
                with self._writers.begin() as connection:
                    yield connection
            else:
                try:
                    yield self._single
                finally:
                    # Ends only SQLAlchemy's transaction: SQLite has already committed
                    # or undone the statement.
                    if self._single.in_transaction():
                        self._single.rollback()
            self._checkpoints.written(large=not single)
            self.file.check()  # do not acknowledge a write to a file that was removed or replaced

    @contextmanager
    def reading(self, *, single: bool = False) -> Iterator[Connection]:
        self.file.check(within_s=RECENT_S)
        with translated(self.path), self._readers.begin() as connection:
            yield connection

    def lock_schema(self, connection: Connection) -> None:
        """Do nothing: a writer already excludes all others."""

    def check_pages(self, connection: Connection) -> None:
        (problem,) = connection.exec_driver_sql("PRAGMA quick_check(1)").one()
        if problem != "ok":
            raise StoreBroken(f"{self.path}: {DAMAGED} (SQLite: {problem})")

    def refuse_emptied(self) -> None:
        self.file.refuse_emptied()

    def remember_store(self) -> None:
        self.file.mark()

    def close(self) -> None:
        self._checkpoints.close()
        self._readers.dispose()
        with self._turn:
            self._single.close()
            self._single.engine.dispose()
            self._writers.dispose()

    def _engine(self, pool: type[QueuePool] | type[StaticPool], begin: str) -> Engine:
        engine = self._new_engine(pool)
        # sqlite3 would begin transactions late and never IMMEDIATE, so begin them explicitly.
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
        return engine

    def _new_engine(self, pool: type[QueuePool] | type[StaticPool]) -> Engine:
        model = _initialized_engine()
        connect: Any = self._connect  # sqlite3's connections do not have SQLAlchemy's protocol
        return Engine(
            pool(connect, dialect=model.dialect),
            model.dialect,
            model.url,
            execution_options={"compiled_cache": _COMPILED_STATEMENTS},
        )

    def _connect(self) -> sqlite3.Connection:
        connection = self.file.connect(BUSY_TIMEOUT_S)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # `WalCheckpoints` does it
        connection.execute(f"PRAGMA synchronous = {self._sync}")
        return connection

    def _mark(self) -> None:
        self.file.check()
        self.file.mark()

    def _use_wal(self) -> None:
        """Switch to WAL, with retries for concurrent first starts.

        SQLite's busy timeout does not apply to this switch.
        """
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        with closing(self._connect()) as connection:
            while True:
                try:
                    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
                except sqlite3.OperationalError as e:
                    if e.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
                    continue
                if mode != "wal":
                    raise StoreBroken(
                        f"{self.path}: SQLite cannot keep a write-ahead log there; use a local "
                        f"folder"
                    )
                return
