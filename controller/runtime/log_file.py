"""An attempt's log as a file that grows: how large it is, a part of it, and how large it was when.

Not there yet is empty. Lines have no times of their own; `log.times` beside the log has, for `tuner logs --since`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

_LARGE = 64 << 10  # read in a thread
_TIMES = "log.times"
_LAST_LINE = 64  # bytes that hold the last line of log.times
EVERY_S = 10.0


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


async def read(path: Path, offset: int, limit: int) -> bytes:
    left = min(size(path) - offset, limit)
    if left > _LARGE:
        return await asyncio.to_thread(_read, path, offset, limit)
    return _read(path, offset, limit) if left > 0 else b""


def _read(path: Path, offset: int, limit: int) -> bytes:
    with contextlib.suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
        file.seek(offset)
        return file.read(limit) or b""
    return b""


class LogTimes:
    """Writes down how large each log was at which time, every ten seconds while it grows. A short one has no such file.

    What was written after a time lies beyond the last size noted before it, however late we read. A failure to write
    is no failure: without the file all of a log counts as new.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._noted_s: dict[str, float] = {}

    def note(self, name: str, log: Path, size: int) -> None:
        """That `size` bytes of the attempt's log are there now."""
        now = self._now()
        if abs(now - self._noted_s.setdefault(name, now)) < EVERY_S:
            return
        self._noted_s[name] = now
        with contextlib.suppress(OSError, ValueError):
            file = os.open(log.with_name(_TIMES), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                there = os.fstat(file).st_size
                last = os.pread(file, _LAST_LINE, max(0, there - _LAST_LINE)).splitlines()
                # A controller that takes over reads the log from its start: what was known before has its time.
                if not last or int(last[-1].split()[1]) < size:
                    os.write(file, b"%d %d\n" % (now, size))
            finally:
                os.close(file)

    def forget(self, name: str) -> None:
        self._noted_s.pop(name, None)


def size_at(log: Path, time_s: float) -> int:
    """Bytes of the log that were there at that time for certain; 0 if nothing is known of so early."""
    known = 0
    with contextlib.suppress(OSError, ValueError), log.with_name(_TIMES).open("rb") as file:
        for line in file:
            then, _, there = line.partition(b" ")
            if int(then) > time_s:
                break
            known = int(there)
    return known
