"""An attempt's log as a growing file: its size, a part of it, and its size at an earlier time.

A missing file counts as empty. Lines have no timestamps; for `tuner logs --since`, the file
`log.times` beside the log records times.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

_LARGE = 64 << 10  # larger portions are read in a thread
_TIMES = "log.times"
_LAST_LINE = 64  # bytes, enough for the last line of log.times
EVERY_S = 10.0


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


async def read(path: Path, offset: int, limit: int) -> bytes:
    remaining = min(size(path) - offset, limit)
    if remaining > _LARGE:
        return await asyncio.to_thread(_read, path, offset, limit)
    return _read(path, offset, limit) if remaining > 0 else b""


def _read(path: Path, offset: int, limit: int) -> bytes:
    with contextlib.suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
        file.seek(offset)
        return file.read(limit) or b""
    return b""


class LogTimes:
    """Records the size of each growing log every ten seconds. A short log has no such file.

    Whatever was written after a given time lies beyond the last size noted before
    that time, however late the log is read. A failure to write is ignored:
    without the file, all of a log counts as new.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._noted_s: dict[str, float] = {}

    def note(self, name: str, log: Path, size: int) -> None:
        """Note that the attempt's log has `size` bytes now."""
        now = self._now()
        if abs(now - self._noted_s.setdefault(name, now)) < EVERY_S:
            return
        self._noted_s[name] = now
        with contextlib.suppress(OSError, ValueError):
            file = os.open(
                log.with_name(_TIMES), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
            try:
                size_bytes = os.fstat(file).st_size
                last = os.pread(file, _LAST_LINE, max(0, size_bytes - _LAST_LINE)).splitlines()
                # A controller that takes over reads the log from its start;
                # sizes noted before keep their times.
                if not last or int(last[-1].split()[1]) < size:
                    os.write(file, b"%d %d\n" % (now, size))
            finally:
                os.close(file)

    def forget(self, name: str) -> None:
        self._noted_s.pop(name, None)


def size_at(log: Path, time_s: float) -> int:
    """Return how many bytes the log certainly had at that time; 0 if that is unknown."""
    at_time = 0
    with contextlib.suppress(OSError, ValueError), log.with_name(_TIMES).open("rb") as file:
        for line in file:
            moment, _, recorded_size = line.partition(b" ")
            if int(moment) > time_s:
                break
            at_time = int(recorded_size)
    return at_time
