"""The supervisor's end of its socket: the socket's place, and the buffers of each client.

Nothing in this module waits, because a frozen controller must not freeze trials. The supervisor
imports this module: standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from controller.runtime.local.attempt_files import Message

    T = TypeVar("T")

# in the experiment's folder: held while it runs, and names its socket
SUPERVISOR_LOCK = "supervisor.lock"
_MAX_PATH = 100  # bytes of a socket's path; macOS allows 104 and Linux 108, with the final zero


class ControllerConnection:
    """The connection of one controller."""

    __slots__ = ("is_leaving", "received", "sock", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = bytearray()
        self.unsent = bytearray()
        # The client has announced that it disconnects, so the supervisor does not stay for it.
        self.is_leaving = False

    def send(self, message: Message) -> None:
        self.unsent += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        try:
            while self.unsent:
                del self.unsent[: self.sock.send(self.unsent)]
        except BlockingIOError:
            pass  # poll reports when it reads again
        except OSError:
            self.unsent.clear()  # it is gone, which the next read reports

    def receive(self) -> list[Message] | None:
        """Return the messages that have arrived; None if the controller is gone."""
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self.received = (self.received + data).split(b"\n")
        return [json.loads(line) for line in lines]


def listen(folder: str, suffix: str = ".sock") -> tuple[socket.socket, str]:
    """Listen on a socket in a folder that only this user can enter; return socket and path.

    Raises:
        OSError: No folder is suitable.
    """
    return private_socket(folder, suffix, _bind)


def private_socket(folder: str, suffix: str, make: Callable[[str], T]) -> tuple[T, str]:
    """Have `make` create this folder's socket, for this user only; return its result and the path.

    Raises:
        OSError: No folder is suitable.
    """
    identity = os.stat(folder)
    problem = OSError("no folder for a socket")
    for private_folder in private_folders():
        path = os.path.join(private_folder, f"{identity.st_dev:x}-{identity.st_ino:x}{suffix}")
        try:
            make_private(private_folder, cure="set XDG_RUNTIME_DIR")
            if len(os.fsencode(path)) > _MAX_PATH:
                raise OSError(f"too long for a socket: {path}")
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            return make(path), path
        except OSError as error:  # too long, read-only, deleted at logout, or another user's
            problem = error
    raise problem


def private_folders() -> list[str]:
    """Return folders for sockets, which `make_private` makes; the last always has a short path."""
    session = os.environ.get("XDG_RUNTIME_DIR")
    return [*([os.path.join(session, "tuner")] if session else []), f"/tmp/tuner-{os.getuid()}"]


def make_private(folder: str, *, cure: str) -> None:
    """Create the folder, or make sure that only this user can use it. Raises OSError."""
    try:
        os.mkdir(folder, mode=0o700)
    except FileExistsError:
        status = os.lstat(folder)
        is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if not is_ours or status.st_mode & 0o077:
            message = f"{folder} must be a folder that only you can enter; remove it, or {cure}"
            raise PermissionError(message) from None


def _bind(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    listener.setblocking(False)
    return listener
