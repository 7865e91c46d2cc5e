"""The log of an attempt on this machine, read in parts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from controller.runtime.log_limit import kept_part
from suggest.errors import NotFound

PORTION = 1 << 16


class LocalLog:
    """Implements `ReadableLog`: a file of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begins_at(self, tail: int) -> int:
        with self._opened() as file:
            return _tail(file, tail)

    def read(self, offset: int) -> tuple[int, bytes]:
        with self._opened() as file:
            return read_kept(file, offset)

    def _opened(self) -> BinaryIO:
        try:
            return self._path.open("rb")
        except FileNotFoundError as error:
            raise NotFound(f"there is no log {self._path}") from error


def read_kept(log: BinaryIO, offset: int) -> tuple[int, bytes]:
    """Return the next bytes of a log that spec.trial.logLimit has kept, and their offset.

    Returns no bytes at its end.
    """
    begin, end = kept_part(log.fileno(), offset)
    return begin, os.pread(log.fileno(), min(PORTION, end - begin), begin)


def _tail(file: BinaryIO, lines: int) -> int:
    """Return the offset of the last `lines` lines. A last line without a line ending counts."""
    end = at = file.seek(0, 2)
    if lines == 0:
        return end
    while at > 0:
        size = min(PORTION, at)
        at -= size
        file.seek(at)
        data = file.read(size)
        stop = len(data)
        while (newline := data.rfind(b"\n", 0, stop)) >= 0:
            if at + newline + 1 < end:  # a line ending in the last byte does not begin a line
                lines -= 1
                if lines == 0:
                    return at + newline + 1
            stop = newline
    return 0
