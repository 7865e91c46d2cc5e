"""What was decoded, kept as memory-mapped arrays: once per node, shared by all trials there.

An entry is a folder `KEY/` with images.npy, labels.npy and about.json. It is written beside and renamed, so that it is
whole or not there; a lock lets one process decode while the others wait. Nothing here is worth failing for: a folder
that cannot be written to costs time and memory, and is told once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from formats import Decoded

FORMAT = 1  # of an entry; another number never meets these
ENDS = 64 << 10
PATIENCE_S = 120.0  # for another process that decodes; whoever is frozen with the lock holds nobody up for good


def default_folder() -> Path:
    named = os.environ.get("TUNER_CIFAR10_CACHE")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        platforms = "Library/Caches" if sys.platform == "darwin" else ".cache"
        return (Path(home) if home else Path.home() / platforms) / "tuner" / "cifar10"
    except RuntimeError:  # a user id without a home, as pods have
        return Path("/nonexistent")


def key_of(files: list[Path]) -> str:
    """Names these contents without reading them all: at every start 170 MB would be a second.

    Size, time of change (in seconds: an image's layers keep no less), and both ends of each file. The end of a .tar.gz
    and of an .npz holds checksums of the whole.
    """
    told = hashlib.sha256(f"{FORMAT}".encode())
    for file in files:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            told.update(f"\0{file.name}\0{found.st_size}\0{int(found.st_mtime)}\0".encode())
            told.update(opened.read(ENDS))
            opened.seek(max(found.st_size - ENDS, 0))
            told.update(opened.read(ENDS))
    return told.hexdigest()[:24]


def kept(key: str, folder: Path) -> Decoded | None:
    """The entry, its arrays read-only and mapped; None if there is none, or it is not whole."""
    entry = folder / key
    try:
        about = json.loads((entry / "about.json").read_bytes())
        images = np.load(entry / "images.npy", mmap_mode="r")
        labels = np.load(entry / "labels.npy")
        labels.flags.writeable = False
        found = Decoded(images=images, labels=labels, train=about["train"], name=about["name"])
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None  # none, or cut short: a map longer than its file is a ValueError
    shapes = images.shape == (about.get("count"), 32, 32, 3) and labels.shape == images.shape[:1]
    return found if shapes and images.dtype == labels.dtype == np.uint8 else None


def decode_once(key: str, folder: Path, decode: Callable[[], Decoded]) -> Decoded:
    """The entry, made by this process unless another makes it now; in memory alone where it cannot be kept."""
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(folder / f"{key}.lock"))
        except OSError as problem:
            return _in_memory(decode(), folder, problem)
        return kept(key, folder) or _made(key, folder, decode())


def _made(key: str, folder: Path, fresh: Decoded) -> Decoded:
    for left in folder.glob(f"{key}.*.new"):  # of a process that was killed while it wrote
        shutil.rmtree(left, ignore_errors=True)
    beside = None
    try:
        # Not by process id: pods that share a volume have the same ones.
        beside = Path(tempfile.mkdtemp(prefix=f"{key}.", suffix=".new", dir=folder))
        beside.chmod(0o755)
        about = {"name": fresh.name, "train": fresh.train, "count": len(fresh.images)}
        _write(beside / "images.npy", lambda file: np.save(file, fresh.images))
        _write(beside / "labels.npy", lambda file: np.save(file, fresh.labels))
        _write(beside / "about.json", lambda file: file.write(json.dumps(about).encode()))
        shutil.rmtree(folder / key, ignore_errors=True)  # not whole, or it would have been taken
        beside.rename(folder / key)
    except OSError as problem:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)
        # Where locks do nothing, another may have been first.
        return kept(key, folder) or _in_memory(fresh, folder, problem)
    return kept(key, folder) or _in_memory(fresh, folder, "what was written there does not read back")


def _write(path: Path, content: Callable[[BinaryIO], object]) -> None:
    with path.open("wb") as file:
        content(file)
        file.flush()
        os.fsync(file.fileno())  # or a machine that loses power keeps the name without the bytes


def _in_memory(fresh: Decoded, folder: Path, problem: OSError | str) -> Decoded:
    reason = problem if isinstance(problem, str) else problem.strerror or problem
    print(
        f"data.py: {folder}: {reason}; the decoded images stay in memory, and each trial decodes them again: "
        "let TUNER_CIFAR10_CACHE name a folder that can be written to",
        file=sys.stderr,
    )
    fresh.images.flags.writeable = fresh.labels.flags.writeable = False
    return fresh


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Held by one process; it goes with the process, however that ends."""
    with path.open("ab") as file:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:
                break  # a file system without locks; the renaming still keeps entries whole
            else:
                break
        yield
