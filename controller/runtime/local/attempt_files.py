"""The files that the supervisor writes: JSON that a kill never leaves half written, and the logs.

The supervisor imports this module: standard library only.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Message: TypeAlias = dict[str, Any]  # JSON; both ends of the socket are in this folder


def logs(directory: str, workers: int) -> list[str]:
    """Return the paths of the logs of an attempt: of rank 0 first."""
    names = ["log.txt", *(f"log.{rank}.txt" for rank in range(1, workers))]
    return [os.path.join(directory, name) for name in names]


def log_error(text: str) -> None:
    """Write to the supervisor's log, which may be on a full disk.

    Errors are ignored: only the supervisor knows how trials ended, so it must not die.
    """
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        pass


def unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def read_json(path: str) -> Message | None:
    """Return a JSON file's content; None if it is missing, empty if damaged, as by a power loss."""
    try:
        with open(path, "rb") as file:
            content = json.load(file)
    except OSError:
        return None
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: str, content: Message) -> None:
    """Write a JSON file atomically, so that a kill leaves the old content or the new."""
    scratch = f"{path}.tmp"
    with open(scratch, "wb") as file:
        # json.dump is slower, and this runs twice per trial
        file.write(json.dumps(content).encode())
    os.replace(scratch, path)
