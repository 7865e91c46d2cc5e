"""One writer per study, by a file lock that the kernel frees when its holder dies, however it dies.

The lock says *that* a study is held; who holds it stands in the study's row. Nothing is ever read from these files.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class StudyLocks:
    """The locks that this process holds in `folder`. Not thread-safe for one uid; the caller takes turns there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def take(self, uid: str) -> bool:
        """False if another holds it: another process, or another StudyLocks of this one."""
        if uid in self._held:
            return True
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / f"{uid}.lock"
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            except OSError:
                os.close(descriptor)
                raise
            # Whoever deletes a study removes its file: a lock on a file that is gone excludes nobody.
            if _is_still(path, descriptor):
                self._held[uid] = descriptor
                return True
            os.close(descriptor)

    def release(self, uid: str, *, remove: bool = False) -> None:
        """`remove`: the study is gone, its file goes too."""
        descriptor = self._held.pop(uid, None)
        if descriptor is None:
            return
        if remove:
            (self._folder / f"{uid}.lock").unlink(missing_ok=True)
        os.close(descriptor)

    def release_all(self) -> None:
        for uid in list(self._held):
            self.release(uid)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))  # noqa: PTH116 - beside fstat
    except FileNotFoundError:
        return False
