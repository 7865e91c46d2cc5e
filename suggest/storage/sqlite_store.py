"""The store in a SQLite file.

Ownership is a file lock, which the kernel releases when the owner dies.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from sqlalchemy import Connection, select, update

from suggest.errors import NotFound, TooManyOpenFiles, TunerError, Unavailable
from suggest.storage.ownership import held, of, taken_by, taking
from suggest.storage.sql_store import StudyStore
from suggest.storage.sqlite import SqliteDatabase
from suggest.storage.sqlite_file import NO_DESCRIPTOR, NO_DESCRIPTOR_LEFT
from suggest.storage.statements import SqliteStatements
from suggest.storage.store import Lease
from suggest.storage.study_tables import studies
from suggest.study import StudyName


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))  # noqa: PTH116 - beside fstat
    except FileNotFoundError:
        return False


log = logging.getLogger(__name__)

_STATEMENTS = SqliteStatements()


class SqliteStore(StudyStore):
    """A store in a SQLite file. The lock files of its studies are in `locks/` beside the file."""

    def __init__(self, path: Path, *, sync: str = "normal") -> None:
        # Resolve links, so that all processes find the locks in the same place.
        path = path.resolve()
        database = SqliteDatabase(path, sync=sync)
        super().__init__(database, OwnedByLocks(database), _STATEMENTS)


class OwnedByLocks:
    """`Ownership` among the processes of one machine, by file locks."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._folder = database.path.parent / "locks"
        self._held: dict[str, int] = {}  # by uid: the descriptor of the lock's file

    def take(self, name: StudyName, *, uid: str, address: str) -> Lease:
        try:
            locked = self._lock(uid)
        except OSError as e:
            if e.errno in NO_DESCRIPTOR:
                raise TooManyOpenFiles(NO_DESCRIPTOR_LEFT) from e
            raise Unavailable(f"{self._folder}: cannot lock {name} ({e.strerror})") from e
        if not locked:
            with self._database.reading() as connection:
                holder = connection.execute(
                    select(studies.c.owner_address).where(of(studies, name))
                ).scalar()
            raise taken_by(name, holder or "")
        try:
            with self._database.writing() as connection:
                lease = taking(connection, name, uid=uid, address=address)
        except BaseException:
            self._unlock(uid)
            raise
        if lease is None:
            self._unlock(uid, remove=True)
            raise NotFound(f"{name} does not exist")
        return lease

    def still_held(self, lease: Lease) -> bool:
        return True  # no process can take away a lock

    def check(self, connection: Connection, lease: Lease) -> None:
        """Do nothing: `DatabaseFile` already watches the file."""

    def release(self, lease: Lease) -> None:
        try:
            with self._database.writing() as connection:
                # The address only appears in messages; nothing depends on it.
                connection.execute(
                    update(studies)
                    .where(of(studies, lease.name), held(lease))
                    .values(owner_address="")
                )
        except TunerError as e:
            log.warning("study=%s released=no error=%s", lease.name, e)
        finally:
            self._unlock(lease.uid)

    def deleted(self, lease: Lease) -> None:
        self._unlock(lease.uid, remove=True)

    def close(self) -> None:
        for uid in list(self._held):
            self._unlock(uid)

    def _lock(self, uid: str) -> bool:
        """Return False if another process, or another store of this process, holds the lock."""
        if uid in self._held:
            return True
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / f"{uid}.lock"
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            except OSError:
                os.close(descriptor)
                raise
            # Deleting a study removes its lock file, and a lock on a removed file excludes nobody.
            if _is_still(path, descriptor):
                self._held[uid] = descriptor
                return True
            os.close(descriptor)

    def _unlock(self, uid: str, *, remove: bool = False) -> None:
        """Release the lock. `remove` also removes its file, because the study was deleted."""
        descriptor = self._held.pop(uid, None)
        if descriptor is None:
            return
        if remove:
            (self._folder / f"{uid}.lock").unlink(missing_ok=True)
        os.close(descriptor)
