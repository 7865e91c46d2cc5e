"""Checkpoints: the state of a training, in one file that is whole or not there.

A checkpoint is a help and never a condition: a disk that is full ends no training, and a file that does not read back,
or that other parameters left, starts it anew. Each is told on stderr, and a trouble that stays is told once. To pack a
state and wait for a disk takes longer than an epoch on a GPU, so that `Keeper` does it beside the training.
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

NAME = "checkpoint.pt"
_told: set[Path] = set()


def save(folder: Path, state: dict[str, Any]) -> bool:
    """Whether it is kept; the one before is there until it is, and stays if it is not.

    `state`: tensors, numbers, text, lists and dictionaries of these; state["fingerprint"] names the parameters.
    """
    import torch

    packed = BytesIO()  # torch writing to a file itself turns a full disk into an error of its own making
    torch.save(state, packed)
    beside = folder / f".{NAME}.new"  # one trial writes here, and what a killed attempt left is written over
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            # torch.load takes changed bytes for weights without a word.
            file.write(b"%08x\n" % zlib.crc32(packed.getbuffer()))
            file.write(packed.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(folder / NAME)
    except OSError as problem:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        if folder not in _told:
            _told.add(folder)
            _tell(f"{folder}: no checkpoint is written ({problem.strerror}); training goes on, and this is said once")
        return False
    _told.discard(folder)
    return True


def load(folder: Path, *, fingerprint: str) -> dict[str, Any] | None:
    """The last state that was saved here under this fingerprint, its tensors on the CPU; None to start anew."""
    path = folder / NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        _tell(f"{path}: cannot be read ({problem.strerror}); training starts anew")
        return None
    check, packed = content[:9], memoryview(content)[9:]
    if check != b"%08x\n" % zlib.crc32(packed):
        _tell(f"{path}: cut short or changed since it was written; training starts anew")
        return None
    import torch

    try:
        # weights_only: no checkpoint runs code.
        state = torch.load(BytesIO(packed), map_location="cpu", weights_only=True)
    except Exception as problem:  # what is no checkpoint raises nearly anything
        _tell(f"{path}: torch does not take it ({type(problem).__name__}); training starts anew")
        return None
    if not isinstance(state, dict) or state.get("fingerprint") != fingerprint:
        _tell(f"{path}: left by other parameters or other data; training starts anew")
        return None
    return state


class Keeper:
    """Saves in the background, one state at a time, into one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._background = ThreadPoolExecutor(1, "checkpoints")
        self._last: Future[bool] | None = None

    def save(self, state: dict[str, Any]) -> None:
        """Returns at once, unless another state is still being saved. state: not to be changed from now on."""
        self.wait()
        self._last = self._background.submit(save, self.folder, state)

    def wait(self) -> None:
        """Until what was given to `save` is kept, or is told not to be. Raises what saving it raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()


def _tell(what: str) -> None:
    print(f"checkpoints.py: {what}", file=sys.stderr, flush=True)
