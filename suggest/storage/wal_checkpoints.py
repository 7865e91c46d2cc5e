"""Bringing what SQLite has in its write-ahead log into the database file, in a thread of its own.

Left to itself, SQLite does so within the write that makes the log too long, and on most disks that is a tenth of a
second in which nobody else can write. From another connection it goes on beside the writes.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing

from suggest.errors import TunerError

WRITES = 200  # small ones, after which it is time again; a large one is as many
_PAUSE_S = 2.0  # at least, from the end of one to the next
_BESIDE = 2  # times beside the writes: what is left then is what came meanwhile, and is little

log = logging.getLogger(__name__)


class Checkpoints:
    """`turn`: whoever writes holds it. Its thread lives from the first time that it is needed until close()."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], turn: threading.Lock) -> None:
        self._connect = connect
        self._turn = turn
        self._writes = 0
        self._due = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def written(self, *, large: bool) -> None:
        """Something was. In the writer's turn."""
        self._writes += WRITES if large else 1
        if self._writes < WRITES:
            return
        self._writes = 0
        self._due.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Nobody writes any more."""
        self._closed.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._due.wait():
            self._due.clear()  # before the look: close() may come between the two, and would not be heard
            if self._closed.is_set():
                return
            try:
                self._bring_over()
            except (
                sqlite3.Error,
                TunerError,
            ) as e:  # it stays in the log until the next time; who writes meets the same
                log.debug("checkpoint failed: %s", e)
            self._closed.wait(_PAUSE_S)

    def _bring_over(self) -> None:
        with closing(self._connect()) as connection:
            for _ in range(_BESIDE):
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            # Only when all of it is over does the log begin anew, and only while nobody writes is that all.
            with self._turn:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
