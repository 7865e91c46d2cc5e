"""A cache of decoded data as memory-mapped arrays: written once per node, shared by all trials there.

An entry is a folder `KEY/` with images.npy, labels.npy and about.json. It is written under another name and renamed, so
that it is complete or absent; a lock lets one process decode while the others wait. Problems with the cache never fail
a trial: a folder that cannot be written costs time and memory, and is reported once.
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
from formats import Dataset

FORMAT = 1  # version of the entries; part of the key
ENDS = 64 << 10
PATIENCE_S = 120.0  # longest wait for another process that decodes, which may be frozen


def default_folder() -> Path:
    named = os.environ.get("TUNER_CIFAR10_CACHE")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        platforms = "Library/Caches" if sys.platform == "darwin" else ".cache"
        return (Path(home) if home else Path.home() / platforms) / "tuner" / "cifar10"
    except RuntimeError:  # a user id without a home directory, as in pods
        return Path("/nonexistent")


def key_of(files: list[Path]) -> str:
    """Return a key of the files' contents without reading all of them: 170 MB would take a second at every start.

    The key depends on the size, the modification time (in seconds, the precision of image layers) and both ends of each
    file. The end of a .tar.gz and of an .npz contains checksums of the whole.
    """
    digest = hashlib.sha256(f"{FORMAT}".encode())
    for file in files:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            digest.update(f"\0{file.name}\0{status.st_size}\0{int(status.st_mtime)}\0".encode())
            digest.update(opened.read(ENDS))
            opened.seek(max(status.st_size - ENDS, 0))
            digest.update(opened.read(ENDS))
    return digest.hexdigest()[:24]


def kept(key: str, folder: Path) -> Dataset | None:
    """Return the entry, with read-only memory-mapped arrays; None if there is none, or it is incomplete."""
    entry = folder / key
    try:
        about = json.loads((entry / "about.json").read_bytes())
        images = np.load(entry / "images.npy", mmap_mode="r")
        labels = np.load(entry / "labels.npy")
        labels.flags.writeable = False
        data = Dataset(images=images, labels=labels, train=about["train"], name=about["name"])
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None  # absent or truncated: a map longer than its file raises ValueError
    shapes = images.shape == (about.get("count"), 32, 32, 3) and labels.shape == images.shape[:1]
    return data if shapes and images.dtype == labels.dtype == np.uint8 else None


def decode_once(key: str, folder: Path, decode: Callable[[], Dataset]) -> Dataset:
    """Return the entry, decoding it unless another process does; in memory if it cannot be cached."""
    with contextlib.ExitStack() as lock:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.enter_context(locked(folder / f"{key}.lock"))
        except OSError as problem:
            return _in_memory(decode(), folder, problem)
        return kept(key, folder) or _made(key, folder, decode())


def _made(key: str, folder: Path, fresh: Dataset) -> Dataset:
    for leftover in folder.glob(f"{key}.*.new"):  # left by a process that was killed while writing
        shutil.rmtree(leftover, ignore_errors=True)
    beside = None
    try:
        # A random name, because pods that share a volume have equal process ids.
        beside = Path(tempfile.mkdtemp(prefix=f"{key}.", suffix=".new", dir=folder))
        beside.chmod(0o755)
        about = {"name": fresh.name, "train": fresh.train, "count": len(fresh.images)}
        _write(beside / "images.npy", lambda file: np.save(file, fresh.images))
        _write(beside / "labels.npy", lambda file: np.save(file, fresh.labels))
        _write(beside / "about.json", lambda file: file.write(json.dumps(about).encode()))
        shutil.rmtree(folder / key, ignore_errors=True)  # incomplete, else it would have been used
        beside.rename(folder / key)
    except OSError as problem:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)
        # On a file system without locks, another process may have been faster.
        return kept(key, folder) or _in_memory(fresh, folder, problem)
    return kept(key, folder) or _in_memory(fresh, folder, "what was written there does not read back")


def _write(path: Path, content: Callable[[BinaryIO], object]) -> None:
    with path.open("wb") as file:
        content(file)
        file.flush()
        os.fsync(file.fileno())  # else a power failure may keep the name without the contents


def _in_memory(fresh: Dataset, folder: Path, problem: OSError | str) -> Dataset:
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
    """Hold a lock among processes, which the kernel releases when the process ends."""
    with path.open("ab") as file:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:
                break  # a file system without locks; renaming still keeps entries complete
            else:
                break
        yield
