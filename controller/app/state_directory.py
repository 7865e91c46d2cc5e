"""The state directory of this machine: its folder and its paths. Opens no database.

<state directory>/
    controller.db  studies.db
    experiments/<uid>/{experiment.yaml,controller.lock,trials/}
<runtime directory>/service-<pid>.sock    short: a socket's path has at most 108 bytes
"""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from suggest import paths
from suggest.errors import StoreBroken, Unavailable

if TYPE_CHECKING:
    from controller.core.model import Uid
    from controller.folders import ExperimentFolders

STATE_OPTION = "--state-dir or TUNER_STATE_DIR"  # in messages
_SHORT = 60  # bytes; the whole path of a socket may have a hundred


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """The paths of the state directory. Nothing is created before `make`."""

    root: Path

    @classmethod
    def find(cls, flag: str | None) -> StateDirectory:
        """Find the directory.

        The first of these counts: the flag, TUNER_STATE_DIR, XDG_STATE_HOME,
        the platform's default.

        Raises InvalidArgument for the `~` of a user without a home.
        """
        path = flag or os.environ.get("TUNER_STATE_DIR")
        if path:
            return cls(paths.absolute(path))
        if xdg := os.environ.get("XDG_STATE_HOME"):
            return cls(Path(xdg).absolute() / "tuner")
        if sys.platform == "darwin":
            return cls(paths.home() / "Library" / "Application Support" / "tuner")
        return cls(paths.home() / ".local" / "state" / "tuner")

    def make(self) -> None:
        """Create the directory. Raises Unavailable if it cannot be created or written to."""
        try:
            # private: people's files may have secrets
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.experiments.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise Unavailable(
                f"the state directory {self.root} cannot be created ({error.strerror}); name "
                f"another one with {STATE_OPTION}"
            ) from error
        if not os.access(self.experiments, os.W_OK | os.X_OK):
            raise Unavailable(
                f"the state directory {self.root} cannot be written to (read-only, or another "
                f"user's); name another one with {STATE_OPTION}"
            )

    @property
    def exists(self) -> bool:
        return self._has(self.root)

    @property
    def has_experiments(self) -> bool:
        return self._has(self.controller_db)

    @property
    def has_studies(self) -> bool:
        return self._has(self.studies_db)

    def _has(self, path: Path) -> bool:
        """Raises Unavailable for a folder of another user; Path.exists is false in Python 3.14."""
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise Unavailable(
                f"the state directory {self.root} cannot be read ({error.strerror}); name another "
                f"one with {STATE_OPTION}"
            ) from error
        return True

    @property
    def controller_db(self) -> Path:
        return self.root / "controller.db"

    @property
    def studies_db(self) -> Path:
        return self.root / "studies.db"

    @property
    def storage_url(self) -> str:
        # they are not the beginning of options
        path = str(self.studies_db).replace("%", "%25").replace("?", "%3F")
        return f"sqlite:///{path}"

    def url_of(self, service: str) -> str:
        """Return the storage URL of a service; "" is this directory's. Raises StoreBroken."""
        if not service and self.studies_db.is_dir():
            raise StoreBroken(
                f"{self.studies_db} is a directory; move it away, or name another state "
                f"directory with {STATE_OPTION}"
            )
        return service or self.storage_url

    @property
    def experiments(self) -> Path:
        return self.root / "experiments"

    def folders(self, uid: Uid) -> ExperimentFolders:
        from controller.folders import ExperimentFolders  # lazy: not needed to find the directory

        return ExperimentFolders(self.experiments / uid)

    def service_socket(self) -> Path:
        """Return a new path for this process's service, and remove killed processes' sockets."""
        folder = _runtime_directory()
        for socket_path in folder.glob("service-*.sock"):
            if not _alive(socket_path.stem.split("-")[1]):
                socket_path.unlink(missing_ok=True)
        return folder / f"service-{os.getpid()}-{secrets.token_hex(2)}.sock"


def _runtime_directory() -> Path:
    """Return a folder with a short path, wherever the state directory is.

    Raises Unavailable if another user created the folder.
    """
    # lazy: not needed to find the directory
    from controller.runtime.local.listening import make_private

    folder = Path("/tmp", f"tuner-{os.getuid()}")
    session = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nowhere")
    if session.is_dir() and os.access(session, os.W_OK) and len(os.fsencode(session)) <= _SHORT:
        folder = session / "tuner"
    try:
        make_private(str(folder), cure="set XDG_RUNTIME_DIR")
    except OSError as error:
        cause = f"{folder}: no folder for a private socket can be created: {error.strerror}"
        raise Unavailable(str(error) if error.strerror is None else cause) from error
    return folder


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        pass
    return True
