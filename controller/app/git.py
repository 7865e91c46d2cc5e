"""git as a process, for what is recorded of a checkout and for `tuner reproduce`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

# Variables that name another repository: git sets them for a hook and the programs it starts.
_OF_REPOSITORY = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_DIR",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_WORK_TREE",
    }
)


async def git(folder: Path, *arguments: str) -> tuple[int, bytes, bytes]:
    """Run git in a folder. Return its exit code, output and messages. Raises OSError."""
    own = {name: value for name, value in os.environ.items() if name not in _OF_REPOSITORY}
    process = await asyncio.create_subprocess_exec(
        "git",
        "-C",
        str(folder),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**own, "GIT_OPTIONAL_LOCKS": "0"},
        # To end it with all that it started: a filter or a file monitor has its pipes.
        start_new_session=True,
    )
    try:
        output, messages = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    return process.returncode or 0, output, messages
