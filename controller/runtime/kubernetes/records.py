"""What this side keeps of an attempt's object on the cluster: one small file in the attempt's folder.

It is how a restarted controller knows that an attempt was made once, though its object is gone: what was removed never
starts again. Written before it is true of the cluster where a lost write would repeat something.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from controller.runtime.kubernetes import small_file
from controller.runtime.protocol import RuntimeLost

FILE = "job.json"
_AT_HAND = 1000


@dataclass(frozen=True, slots=True)
class Record:
    """uid: the object's; "" = not known. stopped: we asked it to end; timed_out: because of its timeout.
    removed: we deleted it for good."""

    uid: str = ""
    stopped: bool = False
    timed_out: bool = False
    removed: bool = False


class Records:
    """By the folder of the attempt; read once, written through. Of what is removed the latest are kept at hand: the
    end of its pods is heard of for a while."""

    def __init__(self) -> None:
        self._known: dict[str, Record | None] = {}
        self._removed: dict[str, None] = {}  # which of them are, oldest first

    def of(self, directory: Path) -> Record | None:
        """None: nothing was ever made for it."""
        key = str(directory)
        if key not in self._known:
            self._keep(key, _read(directory / FILE))
        return self._known[key]

    def note(self, directory: Path, **facts: object) -> Record:
        """Change some facts. Raises RuntimeLost: the disk is full."""
        record = replace(self.of(directory) or Record(), **facts)  # type: ignore[arg-type]  # names of fields
        if record != self._known.get(str(directory)):
            with _waited_for(directory / FILE):
                _write(directory / FILE, record)
            self._keep(str(directory), record)
        return record

    def forget(self, directory: Path) -> None:
        """Its object was taken back before it ran: it may be made again. Raises RuntimeLost, like note."""
        with _waited_for(directory / FILE):
            (directory / FILE).unlink(missing_ok=True)
        self._known[str(directory)] = None

    def _keep(self, key: str, record: Record | None) -> None:
        self._known[key] = record
        if record is not None and record.removed:
            self._removed[key] = None
            if len(self._removed) > _AT_HAND:
                oldest = next(iter(self._removed))
                del self._removed[oldest], self._known[oldest]


@contextlib.contextmanager
def _waited_for(path: Path) -> Iterator[None]:
    """A disk that is full or cannot be written may be fixed, and then the run continues."""
    try:
        yield
    except OSError as error:
        raise RuntimeLost(f"{path}: {error.strerror or error}; free some space to continue") from error


def _read(path: Path) -> Record | None:
    try:
        text = path.read_bytes()
        if not text:
            return None  # killed, or out of room, before the first word
        facts = json.loads(text)
        return Record(**{key: facts[key] for key in Record.__slots__ if key in facts})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return Record(uid="unreadable")  # something was there: rather no second start than two


def _write(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    small_file.put(path, json.dumps(asdict(record)))
