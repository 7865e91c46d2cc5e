"""Copy a growing file of lines, byte by byte, across rotations.

The copy of a file begins at a known offset of the collected lines, so their size tells how much was copied: after a
kill at any moment nothing is copied twice. A file that was renamed is copied to its end before the file that took its
place, if it is still in the same directory. A file that shrank begins again.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from controller.runtime.collectors.collected import CollectedLines
from controller.runtime.supervised import write_json

ORIGIN_FILE = "metrics.origin"
_PORTION = 1 << 18


@dataclass(frozen=True, slots=True)
class _Origin:
    """The file that is being copied, and the offset of the collected lines at which its copy begins."""

    device: int
    inode: int
    base: int

    def is_of(self, status: os.stat_result) -> bool:
        return (status.st_dev, status.st_ino) == (self.device, self.inode)


class FileTail:
    """Implements `Collector`."""

    def __init__(self, source: Path, lines: CollectedLines) -> None:
        self._source = source
        self._lines = lines
        self._origin_path = lines.path.with_name(ORIGIN_FILE)
        self._origin = self._stored()
        self._seen: tuple[int, int] | None = None

    def begin(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass

    def grew(self) -> bool:
        try:
            status = self._source.stat()
        except OSError:
            return False
        before, self._seen = self._seen, (status.st_ino, status.st_size)
        return self._seen != before and status.st_size > 0

    def collect(self, until: int) -> None:
        try:
            file = os.open(
                self._source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            )  # does not wait for a pipe's writer
        except OSError as error:
            self._without_source(error, until)
            return
        try:
            self._collect_from(file, until)
        finally:
            os.close(file)

    def _collect_from(self, file: int, until: int) -> None:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            if not self._lines.size:
                self._lines.note(f"{self._source} is not a file")
            return
        if self._origin is not None and not self._origin.is_of(status):
            self._copy_renamed(self._origin, until)
            if self._lines.size >= until:
                return
        if self._origin is None or not self._origin.is_of(status) or status.st_size < self._copied(self._origin):
            self._origin = self._begin_at_end(status)
        self._copy(file, self._origin, until)
        self._seen = (status.st_ino, self._copied(self._origin))

    def _copied(self, origin: _Origin) -> int:
        return self._lines.size - origin.base

    def _copy(self, file: int, origin: _Origin, until: int) -> None:
        while self._lines.size < until:
            wanted = min(_PORTION, until - self._lines.size)
            data = os.pread(file, wanted, self._copied(origin))
            if not data:
                return
            self._lines.append(data)

    def _copy_renamed(self, origin: _Origin, until: int) -> None:
        try:
            with os.scandir(self._source.parent) as entries:
                path = next((Path(each.path) for each in entries if each.inode() == origin.inode), None)
            if path is None:
                return
            with path.open("rb", buffering=0) as file:
                if origin.is_of(os.fstat(file.fileno())):
                    self._copy(file.fileno(), origin, until)
        except OSError:
            return  # it was deleted meanwhile

    def _without_source(self, error: OSError, until: int) -> None:
        if self._origin is not None:
            self._copy_renamed(self._origin, until)
        elif not isinstance(error, FileNotFoundError) and not self._lines.size:
            self._lines.note(f"{self._source} cannot be read: {error.strerror}")

    def _begin_at_end(self, status: os.stat_result) -> _Origin:
        if self._lines.last_byte() not in (b"", b"\n"):
            self._lines.append(b"\n")  # the earlier file ended within a line
        origin = _Origin(status.st_dev, status.st_ino, self._lines.size)
        write_json(
            str(self._origin_path), {"device": origin.device, "inode": origin.inode, "base": origin.base}
        )  # before the first byte is copied
        return origin

    def _stored(self) -> _Origin | None:
        try:
            return _Origin(**json.loads(self._origin_path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
