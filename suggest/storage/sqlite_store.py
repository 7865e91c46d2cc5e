"""The store in one SQLite file: a study is owned by a file lock, which the kernel frees when its holder dies."""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy import Connection, select, update

from suggest.errors import NotFound, OutOfFiles, TunerError, Unavailable
from suggest.storage import upgrades
from suggest.storage.locks import StudyLocks
from suggest.storage.ownership import held, of, taken_by, taking
from suggest.storage.sql_store import SqlStore
from suggest.storage.sqlite import OUT_OF_FILES, Database
from suggest.storage.sqlite_file import NO_DESCRIPTOR
from suggest.storage.store import Lease
from suggest.storage.study_tables import studies
from suggest.study import StudyName

log = logging.getLogger(__name__)


class SqliteStore(SqlStore):
    """The locks of its studies lie in `locks/` beside the file."""

    def __init__(self, path: Path, *, sync: str = "normal") -> None:
        # By whatever name the file was reached, its locks lie in one place.
        path = path.resolve()
        database = Database(path, sync=sync)
        try:
            upgrades.prepare(database)
        except BaseException:
            database.close()
            raise
        database.file.mark()
        super().__init__(database, OwnedByLocks(database))


class OwnedByLocks:
    """`Ownership` among the processes of one machine."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._folder = database.path.parent / "locks"
        self._locks = StudyLocks(self._folder)

    def take(self, name: StudyName, *, uid: str, address: str) -> Lease:
        try:
            taken = self._locks.take(uid)
        except OSError as e:
            if e.errno in NO_DESCRIPTOR:
                raise OutOfFiles(OUT_OF_FILES) from e
            raise Unavailable(f"{self._folder}: cannot lock {name} ({e.strerror})") from e
        if not taken:
            with self._database.reading() as connection:
                holder = connection.execute(select(studies.c.owner_address).where(of(studies, name))).scalar()
            raise taken_by(name, holder or "")
        try:
            with self._database.writing() as connection:
                lease = taking(connection, name, uid=uid, address=address)
        except BaseException:
            self._locks.release(uid)
            raise
        if lease is None:
            self._locks.release(uid, remove=True)
            raise NotFound(f"{name} does not exist")
        return lease

    def still_held(self, lease: Lease) -> bool:
        return True  # nobody can take a lock away

    def check(self, connection: Connection, lease: Lease) -> None:
        """The file is watched."""

    def release(self, lease: Lease) -> None:
        try:
            with self._database.writing() as connection:
                # Only what people are told: nothing depends on it.
                connection.execute(update(studies).where(of(studies, lease.name), held(lease)).values(owner_address=""))
        except TunerError as e:
            log.warning("study=%s released=no error=%s", lease.name, e)
        finally:
            self._locks.release(lease.uid)

    def deleted(self, lease: Lease) -> None:
        self._locks.release(lease.uid, remove=True)

    def close(self) -> None:
        self._locks.release_all()
