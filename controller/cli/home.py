"""Where tuner keeps things on this machine, and who controls an experiment now. Opens no database.

<home>/controller.db  studies.db  experiments/<uid>/{experiment.yaml,controller.lock,trials/}
<runtime directory>/service-<pid>.sock      short: a socket's path has at most 108 bytes
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from controller.phrases import command
from suggest.errors import FailedPrecondition, Unavailable

if TYPE_CHECKING:
    from controller.core.model import Uid
    from controller.folders import ExperimentFolders

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_BASE32 = _LETTERS + "234567"
UID_LENGTH = 16
_SHORT = 60  # bytes: a socket's whole path may have a hundred


def new_uid() -> Uid:
    """Random, and a DNS label: it is in the names of things on a cluster."""
    return secrets.choice(_LETTERS) + "".join(secrets.choice(_BASE32) for _ in range(UID_LENGTH - 1))


@dataclass(frozen=True, slots=True)
class Home:
    """The state directory."""

    root: Path

    @classmethod
    def find(cls, flag: str | None) -> Home:
        """Flag, TUNER_STATE_DIR, XDG_STATE_HOME, the platform's place; nothing is made yet."""
        given = flag or os.environ.get("TUNER_STATE_DIR")
        if given:
            return cls(Path(given).expanduser().absolute())
        if xdg := os.environ.get("XDG_STATE_HOME"):
            return cls(Path(xdg).absolute() / "tuner")
        if sys.platform == "darwin":
            return cls(Path.home() / "Library" / "Application Support" / "tuner")
        return cls(Path.home() / ".local" / "state" / "tuner")

    def make(self) -> None:
        """Raises Unavailable: it cannot be made, or not be written to."""
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)  # files keep what people wrote, secrets too
            self.experiments.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise Unavailable(
                f"the state directory {self.root} cannot be made ({error.strerror}); name another one with --state-dir"
            ) from error
        if not os.access(self.experiments, os.W_OK | os.X_OK):
            raise Unavailable(
                f"the state directory {self.root} cannot be written to (read-only, or another user's); "
                "name another one with --state-dir"
            )

    @property
    def controller_db(self) -> Path:
        return self.root / "controller.db"

    @property
    def studies_db(self) -> Path:
        return self.root / "studies.db"

    @property
    def storage_url(self) -> str:
        path = str(self.studies_db).replace("%", "%25").replace("?", "%3F")  # no options begin there
        return f"sqlite:///{path}"

    @property
    def experiments(self) -> Path:
        return self.root / "experiments"

    def folders(self, uid: Uid) -> ExperimentFolders:
        from controller.folders import ExperimentFolders  # here: whoever only looks for the place is spared it

        return ExperimentFolders(self.experiments / uid)

    def service_socket(self) -> Path:
        """A new place for this process's service; sockets of processes that were killed are swept away."""
        place = _runtime_directory()
        for left in place.glob("service-*.sock"):
            if not _alive(left.stem.split("-")[1]):
                left.unlink(missing_ok=True)
        return place / f"service-{os.getpid()}-{secrets.token_hex(2)}.sock"


def _runtime_directory() -> Path:
    """Short, whatever the state directory, and only ours. Raises Unavailable: somebody else has made it."""
    place = Path("/tmp", f"tuner-{os.getuid()}")
    session = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nowhere")
    if session.is_dir() and os.access(session, os.W_OK) and len(os.fsencode(session)) <= _SHORT:
        place = session / "tuner"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
    except OSError as error:
        raise Unavailable(f"{place}: no folder for a private socket can be made: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Unavailable(f"{place} must be a folder that only you can enter; remove it, or set XDG_RUNTIME_DIR")
    return place


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        pass
    return True


class Held(FailedPrecondition):
    """Another process controls the experiment."""

    reason = "HELD"


@dataclass(frozen=True, slots=True)
class Holder:
    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class ControllerLock:
    """At most one controller of an experiment; the kernel frees it when its holder dies, however it dies.

    Held from `take` on; `release` it, or die. What stands in the file is for people.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "controller.lock"
        self._descriptor: int | None = None

    def take(self, name: str, *, within_s: float = 0.1) -> None:
        """Raises Held: says who has it. Waits a moment: somebody may only be looking (`holder`)."""
        deadline = time.monotonic() + within_s
        while not self._try():
            if time.monotonic() >= deadline:
                holder = self.holder()
                by = f"by {holder}" if holder else "by another process"
                raise Held(
                    f"{name} is being run {by}; see it with {command('describe', name)}, "
                    f"end it with {command('stop', name)}"
                )
            time.sleep(0.02)

    def _try(self) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": os.uname().nodename, "since": now}).encode(), 0)
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> Holder | None:
        """Who controls the experiment now; None: nobody. Does not disturb the holder."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            # A shared lock, so that two who ask at once do not see each other.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _written(os.pread(descriptor, 4096, 0))
        finally:
            os.close(descriptor)
        return None


def _written(content: bytes) -> Holder:
    try:
        facts = json.loads(content)
        return Holder(facts["pid"], facts["host"], facts["since"])
    except (ValueError, KeyError, TypeError):
        return Holder(0, "this machine", "just now")  # it has the lock, and is about to write
