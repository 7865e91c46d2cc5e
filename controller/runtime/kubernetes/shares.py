"""Experiments of one state directory that run in one namespace share its room fairly: by turns, the poorest first.

Each says in a small file of its own how many attempts it has there and how many wait for room; nobody writes another's.
A file counts while its writer holds its lock and has written within STALE_S: the first ends with the process, the
second with a process that hangs, and where a file system has no locks. Two that read at the same moment may both start;
so shares are equal to within one trial.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

STALE_S = 5.0
_REFRESH_S = 1.0
_FILE_BYTES = 256  # written at once and over the old: a reader sees the one or the other


@dataclass(frozen=True, slots=True)
class Share:
    """running: attempts let in and not ended. waiting: attempts that wait for room (not for a person, or a pause)."""

    uid: str
    running: int
    waiting: int


def may_start(mine: Share, others: Sequence[Share]) -> bool:
    """Nobody who waits has less; of those who have as much, the first by uid."""
    return all(not other.waiting or (mine.running, mine.uid) < (other.running, other.uid) for other in others)


class Shares:
    """This experiment's file, and the others beside it. Times are of the wall clock, in seconds."""

    def __init__(self, state_dir: Path, *, server: str, namespace: str, uid: str) -> None:
        cluster = sha256(server.encode()).hexdigest()[:8]
        self._folder = state_dir / "shares" / f"{cluster}-{namespace}"
        self._uid = uid
        self._file: int | None = None
        self._written: tuple[Share, float] | None = None

    def publish(self, running: int, waiting: int, *, now_s: float) -> Share:
        """Say what we have; as often as you look, at least every second or two. Raises OSError."""
        mine = Share(self._uid, running, waiting)
        if self._written is None or self._written[0] != mine or now_s - self._written[1] >= _REFRESH_S:
            if self._file is None:
                self._file = self._open()
            text = json.dumps({"running": running, "waiting": waiting, "heartbeat": now_s})
            os.pwrite(self._file, text.encode().ljust(_FILE_BYTES), 0)
            self._written = mine, now_s
        return mine

    def others(self, *, now_s: float) -> list[Share]:
        """What the others have who are alive. Files of the dead are cleared away."""
        own = f"{self._uid}.json"
        try:
            paths = sorted(path for path in self._folder.iterdir() if path.suffix == ".json" and path.name != own)
        except OSError:
            return []
        return [share for path in paths if (share := _read(path, now_s)) is not None]

    def close(self) -> None:
        """We share no more."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                (self._folder / f"{self._uid}.json").unlink()
            os.close(self._file)
            self._file = self._written = None

    def _open(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._uid}.json"
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            with contextlib.suppress(OSError):  # no locks here; the heartbeat must do
                fcntl.flock(file, fcntl.LOCK_SH)  # held against us for a moment at most
            # Somebody may have cleared it away as a dead one's before we had the lock.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), path.stat()):
                    return file
            os.close(file)


def _read(path: Path, now_s: float) -> Share | None:
    try:
        with path.open("rb+", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pass  # its writer lives, or there are no locks
            else:
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    path.unlink()
                return None
            facts = json.loads(file.read(_FILE_BYTES))
        share = Share(path.stem, int(facts["running"]), int(facts["waiting"]))
        return share if abs(now_s - facts["heartbeat"]) < STALE_S else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # gone, or its first word is not said yet
