"""Copy a growing file of lines, byte by byte, across rotations.

The copy of a file begins at a known offset of the collected lines, so their size tells how much was
copied: after a kill at any moment nothing is copied twice. A file that was rotated is copied to its
end before the file that took its place, if it is still in the same directory, and so are files that
were rotated while no controller ran. A file that shrank begins again.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from controller.runtime.local.attempt_files import write_json
from controller.runtime.local.collectors.collected import CollectedLines, Collector

ORIGIN_FILE = "metrics.origin"
_PORTION = 1 << 18
_NUMBERED = re.compile(r"[.-]\d[\d.T_-]*")  # also a date


@dataclass(frozen=True, slots=True)
class _Origin:
    """The file being copied, and the offset of the collected lines at which its copy begins."""

    device: int
    inode: int
    base: int

    def is_of(self, status: os.stat_result) -> bool:
        return (status.st_dev, status.st_ino) == (self.device, self.inode)


class FileTail(Collector):
    def __init__(self, source: Path, lines: CollectedLines) -> None:
        self._source = source
        self._lines = lines
        self._origin_path = lines.path.with_name(ORIGIN_FILE)
        self._origin = self._stored_origin()
        self._seen: tuple[int, int] | None = None

    def grew(self) -> bool:
        try:
            status = self._source.stat()
        except OSError:
            return False
        before, self._seen = self._seen, (status.st_ino, status.st_size)
        return self._seen != before and status.st_size > 0

    def collect(self, until: int) -> None:
        while self._lines.size < until:
            with _opened(self._source) as current:
                if not self._collect_from(current, until):
                    return

    def _collect_from(self, current: _Opened | None, until: int) -> bool:
        """Copy from the oldest file not copied to its end; return whether another one follows."""
        origin, status = self._origin, None if current is None else current.status
        is_current = origin is not None and status is not None and origin.is_of(status)
        if not is_current:
            if origin is not None:
                self._copy_renamed(origin, until)
            if (rotated := self._next_rotated(origin)) is not None and self._lines.size < until:
                self._origin = self._begin_at_end(rotated)
                return True
        if current is None or not stat.S_ISREG(current.status.st_mode):
            if not self._lines.size and self._source.exists():
                self._lines.note(
                    f"{self._source} {'cannot be read' if current is None else 'is not a file'}"
                )
            return False
        if self._lines.size >= until:
            return False
        if origin is None or not is_current or current.status.st_size < self._copied_bytes(origin):
            self._origin = origin = self._begin_at_end(current.status)
        self._copy(current.file, origin, until)
        self._seen = (current.status.st_ino, self._copied_bytes(origin))
        return False

    def _next_rotated(self, origin: _Origin | None) -> os.stat_result | None:
        """Return the oldest rotated file that was written after `origin`.

        If that is gone, all that are left were.
        """
        by_inode = {entry.st_ino: entry for entry in _rotated_files(self._source)}
        since = 0
        if origin is not None and origin.inode in by_inode:
            since = by_inode[origin.inode].st_mtime_ns
        later = [entry for entry in by_inode.values() if entry.st_mtime_ns > since]
        return min(later, key=lambda entry: entry.st_mtime_ns, default=None)

    def _copied_bytes(self, origin: _Origin) -> int:
        return self._lines.size - origin.base

    def _copy(self, file: int, origin: _Origin, until: int) -> None:
        while self._lines.size < until:
            length = min(_PORTION, until - self._lines.size)
            data = os.pread(file, length, self._copied_bytes(origin))
            if not data:
                return
            self._lines.append(data)

    def _copy_renamed(self, origin: _Origin, until: int) -> None:
        try:
            with os.scandir(self._source.parent) as entries:
                path = next(
                    (Path(entry.path) for entry in entries if entry.inode() == origin.inode), None
                )
        except OSError:
            return
        if path is not None:
            with _opened(path) as renamed:
                if renamed is not None and origin.is_of(renamed.status):
                    self._copy(renamed.file, origin, until)

    def _begin_at_end(self, status: os.stat_result) -> _Origin:
        if self._lines.last_byte() not in (b"", b"\n"):
            self._lines.append(b"\n")  # the earlier file ended within a line
        origin = _Origin(status.st_dev, status.st_ino, self._lines.size)
        # Record the origin before the first byte is copied.
        write_json(str(self._origin_path), asdict(origin))
        return origin

    def _stored_origin(self) -> _Origin | None:
        try:
            return _Origin(**json.loads(self._origin_path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None


class _Opened(NamedTuple):
    file: int
    status: os.stat_result


@contextmanager
def _opened(path: Path) -> Iterator[_Opened | None]:
    """Open a file, and do not wait for the writer of a pipe; None if it cannot be opened."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        yield None
        return
    try:
        yield _Opened(file, os.fstat(file))
    finally:
        os.close(file)


def _rotated_files(source: Path) -> Iterator[os.stat_result]:
    """Yield the status of each numbered file beside the source, such as `metrics.log.1`."""
    try:
        with os.scandir(source.parent) as entries:
            for entry in entries:
                if _NUMBERED.fullmatch(entry.name.removeprefix(source.name)) and entry.is_file():
                    yield entry.stat()
    except OSError:
        return
