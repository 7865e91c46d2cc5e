"""PostgreSQL for an event loop: no call of the experiments' store holds it up for long.

Calls are synchronous, and short while the database answers. While it does not, the loop must go on
renewing the Lease and answering probes. So a call without an answer after CALL_S is cut off, and
once a call has failed for want of the database, all others fail at once, until a thread reaches it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, text

from suggest.errors import StoreUnavailable, TunerError
from suggest.storage.postgres import PostgresDatabase

CALL_S = 4.0  # the holder of the Lease has 6 s, and renews it every 2.5 s
_LOOK_S = 0.25
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Call:
    """A transaction in progress, to its commit. driver: the connection; None: it waits for one."""

    driver: Any = None  # psycopg's connection, which SQLAlchemy has no type for
    began_s: float = field(default_factory=time.monotonic)

    def cut_off(self) -> None:
        """Shut its connection down, so that the thread that waits for an answer gets an error."""
        if self.driver is None:
            return
        # Unless it has just ended, or its connection is closed.
        with suppress(Exception), socket.socket(fileno=os.dup(self.driver.fileno())) as stream:
            stream.shutdown(socket.SHUT_RDWR)


class BoundedPostgres(PostgresDatabase):
    """A `PostgresDatabase` whose calls end within CALL_S. trouble: why it is away; "" if it is not.

    To connect takes up to three seconds for each host of the URL. That happens in the constructor's
    thread, and then in this object's own, which keeps a connection ready.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.trouble = ""
        self._away_since_s = 0.0
        self._calls: dict[int, _Call] = {}
        self._closing = threading.Event()
        self._reaching: threading.Thread | None = None
        self._looking = threading.Thread(target=self._look, name="postgres", daemon=True)
        self._looking.start()

    @property
    def away_s(self) -> float:
        """Return for how many seconds it has been away."""
        return time.monotonic() - self._away_since_s if self.trouble else 0.0

    @contextmanager
    def writing(self, *, single: bool = False) -> Iterator[Connection]:
        with self._bounded(super().writing(single=single)) as connection:
            yield connection

    @contextmanager
    def reading(self, *, single: bool = False) -> Iterator[Connection]:
        with self._bounded(super().reading(single=single)) as connection:
            yield connection

    def close(self) -> None:
        self._closing.set()
        self._looking.join()
        super().close()

    @contextmanager
    def _bounded(self, opening: AbstractContextManager[Connection]) -> Iterator[Connection]:
        if self.trouble:
            raise StoreUnavailable(self.trouble)
        try:
            with self._cut_off_late(opening) as connection:
                yield connection
        except StoreUnavailable as error:
            if not self.trouble:
                self._away_since_s = time.monotonic()
                _log.warning("event=storeAway error=%s", error)
            self.trouble = str(error)
            raise

    @contextmanager
    def _cut_off_late(self, opening: AbstractContextManager[Connection]) -> Iterator[Connection]:
        call = _Call()
        self._calls[id(call)] = call
        try:
            with opening as connection:
                call.driver = connection.connection.driver_connection
                yield connection
        finally:
            del self._calls[id(call)]

    def _look(self) -> None:
        """Cut off calls that wait for too long, and have the database reached when it is away."""
        while not self._closing.wait(_LOOK_S):
            late_s = time.monotonic() - CALL_S
            for call in list(self._calls.values()):
                if call.began_s < late_s:
                    call.cut_off()
            if self.trouble and (self._reaching is None or not self._reaching.is_alive()):
                self._reaching = threading.Thread(target=self._reach, daemon=True)
                self._reaching.start()

    def _reach(self) -> None:
        try:
            with self._cut_off_late(super().writing(single=True)) as connection:
                connection.execute(text("SELECT 1"))
        except TunerError:
            return
        self.trouble = ""
        _log.warning("event=storeBack")
