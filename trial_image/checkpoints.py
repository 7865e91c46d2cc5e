"""Checkpoints: the state of a training, in one file that is whole or not there.

A checkpoint is a help and never a condition: a disk that is full ends no training, and a file that does not read back,
or that other parameters left, starts it anew. Each is told on stderr, and a trouble that stays is told once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
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


def _tell(what: str) -> None:
    print(f"checkpoints.py: {what}", file=sys.stderr, flush=True)
