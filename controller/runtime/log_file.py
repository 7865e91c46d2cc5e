"""An attempt's log as a growing file: its size, and a part of it.

A missing file counts as empty.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

_LARGE = 64 << 10  # larger portions are read in a thread


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
