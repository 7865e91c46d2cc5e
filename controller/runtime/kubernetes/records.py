"""Small files that the runtime keeps on disk, and the record of what was done
with each attempt's object.

The record tells a restarted controller that an attempt's object was created, even if that object no
longer exists: an attempt whose object was deleted never starts again. Where a lost write would
repeat an action, the record is written before the action.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from controller.core.attempt import RuntimeLost

FILE = "job.json"
_REMOVED_IN_MEMORY = 1000


@dataclass(frozen=True, slots=True)
class Record:
    """What was done with an attempt's object.

    Attributes:
        uid: the object's uid; "" if it is not known.
        stopped: the controller asked the attempt to end.
        timed_out: it did so because of the attempt's timeout.
        removed: the controller deleted the object for good.
    """

    uid: str = ""
    stopped: bool = False
    timed_out: bool = False
    removed: bool = False


class Records:
    """Write-through cache of the records, by the folder of the attempt.

    Only the latest records of removed objects stay in memory:
    events about their pods arrive for a while.
    """

    def __init__(self) -> None:
        self._known: dict[str, Record | None] = {}
        self._removed: dict[str, None] = {}  # the keys of removed objects, oldest first

    def of(self, directory: Path) -> Record | None:
        """Return the record of an attempt; None if no object was ever created for it."""
        key = str(directory)
        if key not in self._known:
            self._keep(key, _read(directory / FILE))
        return self._known[key]

    def note(self, directory: Path, **fields: object) -> Record:
        """Change some fields of the record. Raises RuntimeLost if the disk is full."""
        # names of fields
        record = replace(self.of(directory) or Record(), **fields)  # type: ignore[arg-type]
        if record != self._known.get(str(directory)):
            with _lost_while_unwritable(directory / FILE):
                _write(directory / FILE, record)
            self._keep(str(directory), record)
        return record

    def forget(self, directory: Path) -> None:
        """Delete the record of an object withdrawn before it ran, so that it can be created again.

        Raises RuntimeLost if the file cannot be deleted.
        """
        with _lost_while_unwritable(directory / FILE):
            (directory / FILE).unlink(missing_ok=True)
        self._known[str(directory)] = None

    def _keep(self, key: str, record: Record | None) -> None:
        self._known[key] = record
        if record is not None and record.removed:
            self._removed[key] = None
            if len(self._removed) > _REMOVED_IN_MEMORY:
                oldest = next(iter(self._removed))
                del self._removed[oldest], self._known[oldest]


@contextlib.contextmanager
def _lost_while_unwritable(path: Path) -> Iterator[None]:
    """Raise RuntimeLost for an OSError: the run continues once the disk has room or is writable."""
    try:
        yield
    except OSError as error:
        raise RuntimeLost(
            f"{path}: {error.strerror or error}; free some space to continue"
        ) from error


def _read(path: Path) -> Record | None:
    try:
        text = path.read_bytes()
        if not text:
            return None  # the process was killed, or the disk was full, before the first write
        fields = json.loads(text)
        return Record(**{key: fields[key] for key in Record.__slots__ if key in fields})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        # a record existed: starting the attempt never is safer than starting it twice
        return Record(uid="unreadable")


def _write(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_in_place(path, json.dumps(asdict(record)))


def write_in_place(path: Path, text: str) -> None:
    """Rewrite a small file that changes often; a kill leaves the old content or the new.

    One write of less than a page is whole or not at all. The usual way, a second file that is
    renamed over this one, deletes a file each time, and a file system that has just deleted
    hundreds of files checks each of them before it creates the next one.

    Raises:
        OSError: the file keeps its content, or is new and empty.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        # blanks overwrite the rest of a longer text
        data = text.encode().ljust(os.fstat(file).st_size)
        if os.write(file, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)
