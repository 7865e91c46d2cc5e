"""git as a process, for what is recorded of a checkout and for `tuner reproduce`."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path


async def git(folder: Path, *arguments: str) -> tuple[int, bytes, bytes]:
    """Run git in a folder. Return its exit code, output and messages. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        "git",
        "-C",
        str(folder),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    )
    try:
        output, messages = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return process.returncode or 0, output, messages
