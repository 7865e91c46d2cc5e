"""Files in which the server of a page keeps what open pages need after a restart.

Only their owner can read them.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suggest.errors import Unavailable


def read(file: Path) -> dict[str, Any]:  # Any: what JSON holds
    """Return the object in the file; an empty one if there is none or it is damaged."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def write(file: Path, content: dict[str, Any]) -> None:
    """Replace the file at once, so that a crash leaves the old one or the new one.

    Raises Unavailable.
    """
    new = file.with_name(f"{file.name}.new")
    try:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()  # of a process that was killed, perhaps with another mode
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            json.dump(content, opened)
        new.replace(file)
    except OSError as error:
        raise Unavailable(
            f"{file}: {error.strerror}; the page stores what open pages need after a restart "
            "there; make the folder writable, and free space on its disk if that is full"
        ) from error


@dataclass(frozen=True, slots=True)
class StoredAddress:
    """The key of a `LinkAuthenticator`, and the port that was used last; 0 for any."""

    key: bytes
    port: int

    @classmethod
    def read(cls, file: Path) -> StoredAddress:
        """Read the file; without one, create a new key."""
        document = read(file)
        with contextlib.suppress(KeyError, ValueError, TypeError):
            address = cls(bytes.fromhex(document["key"]), int(document["port"]))
            if len(address.key) == 32 and 0 <= address.port < 65536:
                return address
        return cls(secrets.token_bytes(32), 0)

    def write(self, file: Path) -> None:
        """Raises Unavailable."""
        write(file, {"key": self.key.hex(), "port": self.port})
