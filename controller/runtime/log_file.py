"""An attempt's log as a file that grows: how large it is, and a part of it. Not there yet is empty."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

_LARGE = 64 << 10  # read in a thread


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
