"""Checkpoints: the state of a training in one file, which is complete or absent.

Problems with checkpoints never end a training: it continues on a full disk, and starts from the
beginning if a file cannot be read or belongs to other parameters. Each problem is printed to
stderr, a persistent one only once. Packing a state and waiting for the disk takes longer than an
epoch on a GPU, so `Keeper` does both in the background.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

NAME = "checkpoint.pt"
_warned: set[Path] = set()


def save(folder: Path, state: dict[str, Any]) -> bool:
    """Save a state and return whether this succeeded.

    The previous checkpoint stays until then, and on failure.

    `state` may contain tensors, numbers, text, lists and dictionaries of these;
    state["fingerprint"] identifies the parameters.
    """
    packed = BytesIO()  # if torch itself writes to a file, a full disk raises an unspecific error
    torch.save(state, packed)
    # only one trial writes here, so overwrite the leftover of a killed attempt
    beside = folder / f".{NAME}.new"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            # torch.load does not detect corrupted weights.
            file.write(b"%08x\n" % zlib.crc32(packed.getbuffer()))
            file.write(packed.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(folder / NAME)
    except OSError as problem:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        if folder not in _warned:
            _warned.add(folder)
            _tell(
                f"{folder}: no checkpoint is written ({problem.strerror}); training continues; "
                f"this is reported once"
            )
        return False
    _warned.discard(folder)
    return True


def load(folder: Path, *, fingerprint: str) -> dict[str, Any] | None:
    """Return the last state saved here with this fingerprint, tensors on the CPU, or None."""
    path = folder / NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        _tell(f"{path}: cannot be read ({problem.strerror}); training starts over")
        return None
    check, packed = content[:9], memoryview(content)[9:]
    if check != b"%08x\n" % zlib.crc32(packed):
        _tell(f"{path}: cut short or changed since it was written; training starts over")
        return None
    try:
        # weights_only, so that a checkpoint cannot execute code.
        state = torch.load(BytesIO(packed), map_location="cpu", weights_only=True)
    except Exception as problem:  # a corrupted checkpoint can raise nearly any exception
        _tell(f"{path}: torch does not take it ({type(problem).__name__}); training starts over")
        return None
    if not isinstance(state, dict) or state.get("fingerprint") != fingerprint:
        _tell(f"{path}: left by other parameters or other data; training starts over")
        return None
    return state


class Keeper:
    """Saves in the background, one state at a time, into one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._background = ThreadPoolExecutor(1, "checkpoints")
        self._last: Future[bool] | None = None

    def save(self, state: dict[str, Any]) -> None:
        """Start saving, after any save in progress.

        The caller must not change `state` from now on.
        """
        self.wait()
        self._last = self._background.submit(save, self.folder, state)

    def wait(self) -> None:
        """Wait until the last `save` has succeeded or its problem was printed.

        Raises what it raised.
        """
        last, self._last = self._last, None
        if last is not None:
            last.result()


def _tell(event: str) -> None:
    print(f"checkpoints.py: {event}", file=sys.stderr, flush=True)
