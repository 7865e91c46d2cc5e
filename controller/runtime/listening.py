"""The supervisor's end of its socket: where it listens, and what it has heard from and not yet sent to each client.

Never waits: a frozen controller must not freeze trials. Imported by the supervisor: standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from controller.runtime.supervised import Message

MAX_PATH = 100  # of a socket, in bytes: 104 on macOS and 108 on Linux, with the final zero


class ControllerConnection:
    """A controller that is connected."""

    __slots__ = ("leaving", "received", "sock", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = bytearray()
        self.unsent = bytearray()
        self.leaving = False  # has said good-bye: does not keep us here

    def send(self, message: Message) -> None:
        self.unsent += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        try:
            while self.unsent:
                del self.unsent[: self.sock.send(self.unsent)]
        except BlockingIOError:
            pass  # poll says when it reads again
        except OSError:
            self.unsent.clear()  # it is gone; its next read says so

    def receive(self) -> list[Message] | None:
        """What it has said since; None when it has gone."""
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


def listen(folder: str) -> tuple[socket.socket, str]:
    """Listen for the controllers of this experiment, in a place that only we can enter. Returns it and its path.

    Raises:
        OSError: there is no such place.
    """
    identity = os.stat(folder)
    name = f"{identity.st_dev:x}-{identity.st_ino:x}.sock"
    places = [f"/tmp/tuner-{os.getuid()}"]
    if session := os.environ.get("XDG_RUNTIME_DIR"):
        places.insert(0, os.path.join(session, "tuner"))
    problem = OSError("no place for a socket")
    for place in places:
        path = os.path.join(place, name)
        try:
            make_private(place, cure="set XDG_RUNTIME_DIR")
            return _bind(path), path
        except OSError as error:  # too long, read-only, deleted at log-out, somebody else's
            problem = error
    raise problem


def make_private(place: str, *, cure: str) -> None:
    """Make the folder, or make sure that it is ours alone. Raises OSError."""
    try:
        os.mkdir(place, mode=0o700)
    except FileExistsError:
        found = os.lstat(place)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            message = f"{place} must be a folder that only you can enter; remove it, or {cure}"
            raise PermissionError(message) from None


def _bind(path: str) -> socket.socket:
    if len(os.fsencode(path)) > MAX_PATH:
        raise OSError(f"too long for a socket: {path}")
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    listener.setblocking(False)
    return listener
