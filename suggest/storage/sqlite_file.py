"""The files of a SQLite database: created readable by their owner only,
and watched while the database is open.

SQLite finds a database and its two side files (-wal, -shm) by name and relies on nobody moving or
removing them. If somebody does, SQLite keeps writing to a file without a name, or mixes the log of
one database into another. Therefore every transaction checks that the three names still lead to the
files that were opened, and a hidden file beside the database records which file the log was written
for: after a crash, SQLite would replay it into any file of that name.

A database never shrinks, because nothing here runs VACUUM:
a smaller file is another one that was copied over it.

The service and the controller use this module. Standard library only, and no SQL. Never open a
database that may be in use as a plain file: closing that file would drop the locks that SQLite
holds on the database in this process.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from suggest.errors import StoreBroken, StoreUnavailable, TooManyOpenFiles, TunerError
from suggest.storage.database import DamagedRow
from suggest.whole_file import PRIVATE, replace_file

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
# a check before a transaction may be this old: a file cannot be replaced and used in that time
RECENT_S = 0.001
SIDE_FILES = ("-wal", "-shm")

_ABOUT = (
    "tuner created {name} in this folder. While this file is here, an empty {name} is an "
    "error, not a new store."
)
_RESTORE = "restore a backup (tuner db restore DIR)"


BUSY_TIMEOUT_S = 5.0
NO_DESCRIPTOR_LEFT = (
    "this process has no file descriptor left; try again later, close connections to it, or raise "
    "its limit (ulimit -n, LimitNOFILE=)"
)
_LOCKED = (
    f"another process has kept it locked for {BUSY_TIMEOUT_S:g} s; try again, or end that process"
)
DAMAGED = "the file is damaged; restore it from a backup, or move it away to start over"
_NEED_FILES = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# SQLite's messages about a table or a column that every store of its version has, or that only
# newer versions have.
_OTHER_TABLES = re.compile(
    r"no such (table|column): |table \S+ has no column named |duplicate column name: |"
    r"(table|index) \S+ already exists"
)
_CURES = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_FULL: "the disk is full; nothing was lost; free some space and try again",
    sqlite3.SQLITE_READONLY: "it is read-only; give this user write permission for the file and "
    "its folder",
    sqlite3.SQLITE_PERM: "it is not accessible; give this user write permission for the file and "
    "its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that its folder exists and that this "
    "user can write to it",
    sqlite3.SQLITE_IOERR: "reading or writing it failed; check that its disk is healthy and not "
    "full, then try again",
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_NOTADB: "the file is not a database, or has lost its beginning; restore it, or "
    "name another",
}


def trouble_of(path: Path, error: BaseException | None) -> TunerError | None:
    """Return what an error of SQLite's says to people; None if it indicates a bug."""
    code = getattr(error, "sqlite_errorcode", None)
    # the low byte of an extended code is the primary code
    primary = None if code is None else code & 0xFF
    if primary == sqlite3.SQLITE_ERROR and _OTHER_TABLES.match(str(error)):
        return DamagedRow(str(error)).broken(str(path))
    if primary not in _CURES:
        return None
    if primary in _NEED_FILES and out_of_descriptors():
        return TooManyOpenFiles(NO_DESCRIPTOR_LEFT)
    kind = StoreBroken if primary in _BROKEN else StoreUnavailable
    return kind(f"{path}: {_CURES[primary]} (SQLite: {error})")


class DatabaseFile:
    """Creates and watches the files of a SQLite database.

    Call `create` before the first connection, `watch` after its first read, then `check` around
    every transaction, and `mark` when the store is complete and after checkpoints. Thread-safe from
    `watch` on. `mark` writes the hidden file beside the database, which records that a store was
    created here, and which file its log belongs to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names = (str(path), *(f"{path}{suffix}" for suffix in SIDE_FILES))
        self._mark = path.with_name(f".{path.name}.created")
        # inode and device of the file that is about to be opened
        self._found: tuple[int, int] | None = None
        self._watched: tuple[tuple[str, int, int], ...] = ()  # name, inode, device
        self._size = 0  # of the database, at least
        self._lost = ""
        self._checked = -math.inf  # monotonic time before the last check

    def create(self) -> None:
        """Create the file with mode 0600, whatever the umask. Leave an existing file as it is.

        SQLite gives the side files the same mode.

        Raises:
            StoreBroken: there was a store here, and its file is gone or empty.
        """
        if restoring(self.path).exists():
            raise StoreBroken(
                f"{self.path}: a restore was interrupted here; run it again (tuner db restore DIR "
                f"--force)"
            )
        marked = self._mark.exists()
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            self._refuse_log("is gone")
            with suppress(OSError):
                # the old store was removed on purpose, so create a new one
                self._mark.unlink(missing_ok=True)
                os.close(
                    os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                )
            self._found = self._identity()
            return
        except OSError:
            return  # SQLite will meet the same error, and its message has a cure
        if size == 0:
            self._refuse_log("is empty")
            if marked:
                raise self.emptied()
        self._refuse_foreign_log()
        self._found = self._identity()

    def refuse_emptied(self) -> None:
        """Check a database without tables. Raises StoreBroken if it had tables before."""
        if self._mark.exists():
            raise self.emptied()

    def mark(self) -> None:
        """Record that the store is complete, and which files are open.

        From now on an empty file is an error.
        """
        inodes = [inode for _, inode, _ in self._watched]
        mark = {
            "about": _ABOUT.format(name=self.path.name),
            "file": inodes[0],
            "log": inodes[1],
            "size": self._size,
        }
        if mark == self._read_mark():
            return
        with suppress(OSError):
            replace_file(self._mark, json.dumps(mark), mode=PRIVATE)

    def _read_mark(self) -> dict[str, Any]:
        """Return what `mark` wrote; empty if there is nothing that can be read."""
        try:
            content = json.loads(self._mark.read_bytes())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def emptied(self) -> StoreBroken:
        return StoreBroken(
            f"{self.path}: the file is empty, but a store was here; {_RESTORE}, or remove the "
            f"file to start a new store"
        )

    def connect(self, timeout_s: float) -> sqlite3.Connection:
        """Open a connection that any thread may use.

        Never creates the file. Raises as `check` does.
        """
        self.check()
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(
            uri,
            uri=True,
            timeout=timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            # before the first read, since the log may by now belong to another database
            self.check()
        except TunerError:
            connection.close()
            raise
        return connection

    def watch(self) -> None:
        """Remember which files are open.

        A connection must have read from the database, and must stay open.
        """
        found = []
        for name in self._names:
            try:
                status = os.stat(name)  # noqa: PTH116 - a Path costs as much as the call
            except FileNotFoundError:
                raise self._gone(name, "removed") from None
            found.append((name, status.st_ino, status.st_dev))
        if self._found not in (None, found[0][1:]):
            # A restore happened meanwhile, and moved away the file that was opened.
            raise StoreUnavailable(f"{self.path}: the file has just been replaced; try again")
        self._size = _size(self.path)
        self._watched = tuple(found)

    def check(self, *, within_s: float = 0.0) -> None:
        """Raise StoreBroken if one of the files was removed or replaced.

        All later calls then raise it, too.

        A commit counts only if this check also passes after it. The check costs 3 µs, or nothing if
        the last one was less than `within_s` seconds ago.
        """
        if self._lost:
            raise StoreBroken(self._lost)
        now = time.monotonic()
        if now - self._checked < within_s:
            return
        # Read before the sizes are: another thread may see, and store, a size that is larger than
        # the one seen here.
        least = self._size
        for name, inode, device in self._watched:
            try:
                status = os.stat(name)  # noqa: PTH116 - as above
            except FileNotFoundError:
                raise self._gone(name, "removed") from None
            except OSError as e:
                raise StoreUnavailable(
                    f"{name}: {e.strerror}; make it accessible and try again"
                ) from e
            if status.st_ino != inode or status.st_dev != device:
                raise self._gone(name, "replaced")
            if name == self._names[0]:
                if status.st_size < least:
                    raise self._gone(name, "overwritten")
                self._size = status.st_size
        self._checked = now

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_dev

    def _gone(self, name: str, how: str) -> StoreBroken:
        # Permanent: if the file comes back, another program may have written to it meanwhile.
        self._lost = (
            f"{name} was {how} while it was in use, and nothing more is written to it; stop what "
            f"uses it, put the file back or {_RESTORE}, and start again"
        )
        return StoreBroken(self._lost)

    def _refuse_foreign_log(self) -> None:
        """Raise StoreBroken if the log was written for another file than the one that is here now.

        A folder that was copied as a whole has new inodes for both, and a log that fits.
        """
        log = Path(self._names[1])
        mark = self._read_mark()
        if not (_size(log) and mark) or _inode(log) != mark.get("log"):
            return
        replaced = _inode(self.path) != mark.get("file")
        if replaced or _size(self.path) < mark.get("size", 0):
            raise StoreBroken(
                f"{self.path}: the file was {'replaced' if replaced else 'overwritten'} while it "
                f"was in use, and its log {log.name} belongs to the one before; stop what uses it, "
                f"then move {log.name} away to start with the file as it is, put the old file "
                f"back, or {_RESTORE}"
            )

    def _refuse_log(self, how: str) -> None:
        log = Path(self._names[1])
        # in this order, because another process may be creating both now
        if _size(log) and not _size(self.path):
            raise StoreBroken(
                f"{self.path}: the file {how}, but its log {log.name} is still here; put the file "
                f"back or {_RESTORE}, or remove the log to start a new store"
            )


def out_of_descriptors() -> bool:
    """Return whether this process, or the system, cannot open another file now."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as e:
        return e.errno in NO_DESCRIPTOR
    return False


def restoring(path: Path) -> Path:
    """Return the path of a file that exists while a backup is restored over the database `path`."""
    return path.with_name(f".{path.name}.restoring")


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
