"""The cap of a log on disk: its beginning and its end are kept,
and the blocks between them are freed.

A program keeps its log open and appends to it, so the log cannot be cut. A hole frees disk space
and leaves the size of the file as it is: programs go on writing, and offsets of readers stay valid.
A line before the hole tells people. Part of the supervisor: standard library only.
"""

from __future__ import annotations

import os
import sys

CHECK_S = 2.0  # a log may grow beyond its cap for as long
GAP = (
    b"# tuner: gap: the log exceeded spec.trial.logLimit, and what was between its beginning "
    b"and its end was dropped"
)
_BLOCK = 4096  # what file systems free
_LINE = 16 * _BLOCK  # a line that is cut is looked for within


def trim(path: str, limit_bytes: int, dropped_to: int) -> int:
    """Free the middle of the log if it exceeds the cap; return the offset where its end begins now.

    dropped_to: what an earlier call returned, at first 0.
    The middle grows by an eighth of the cap at a time.

    Raises OSError, also if the file system cannot free a part of a file.
    """
    half = limit_bytes // 2 // _BLOCK * _BLOCK
    begin = half + _BLOCK
    size = os.stat(path).st_size
    end = (size - half) // _BLOCK * _BLOCK
    if size <= limit_bytes or end < max(begin + _BLOCK, dropped_to + limit_bytes // 8):
        return dropped_to
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        _free(file, begin, end - begin)
        # No part of a line that was cut may be read as one.
        cut = os.pread(file, _LINE, end).partition(b"\n")[0]
        os.pwrite(file, b" " * len(cut), end)
        if not dropped_to:
            head = os.pread(file, _LINE, half - _LINE) if half >= _LINE else os.pread(file, half, 0)
            line_begin = half - len(head.rpartition(b"\n")[2])
            os.pwrite(file, GAP.ljust(begin - line_begin - 1) + b"\n", line_begin)
    finally:
        os.close(file)
    return end


def kept_part(file: int, offset: int) -> tuple[int, int]:
    """Return where the first part at or behind `offset` that was not dropped begins and ends."""
    begin, size = offset, max(offset, os.fstat(file).st_size)
    # What can be read was not dropped. Some file systems call data a hole while they write it to
    # the disk.
    is_dropped = os.pread(file, 1, offset) == b"\0"
    try:
        if is_dropped:
            begin = os.lseek(file, offset, os.SEEK_DATA)
        end = os.lseek(file, begin, os.SEEK_HOLE)
    except OSError:
        # Behind the end of the file, or the file system cannot tell.
        return offset, size
    return begin, end if end > begin else min(begin + _BLOCK, size)


def _free(file: int, offset: int, length: int) -> None:
    # Few logs exceed the cap, and the supervisor starts faster without them.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin":
        import fcntl
        import struct

        punch_hole = 99  # F_PUNCHHOLE
        fcntl.fcntl(file, punch_hole, struct.pack("=IIqq", 0, 0, offset, length))
        return
    punch_hole_keep_size = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    if (
        libc.fallocate(file, punch_hole_keep_size, ctypes.c_long(offset), ctypes.c_long(length))
        != 0
    ):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
