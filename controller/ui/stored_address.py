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

from suggest.errors import Unavailable


@dataclass(frozen=True, slots=True)
class StoredAddress:
    """The key of a `LinkAuthenticator`, and the port that was used last; 0 for any."""

    key: bytes
    port: int

    @classmethod
    def read(cls, file: Path) -> StoredAddress:
        """Read the file; if there is none, or it is damaged, create a new key."""
        with contextlib.suppress(OSError, KeyError, ValueError, TypeError):
            document = json.loads(file.read_text(encoding="utf-8"))
            address = cls(bytes.fromhex(document["key"]), int(document["port"]))
            if len(address.key) == 32 and 0 <= address.port < 65536:
                return address
        return cls(secrets.token_bytes(32), 0)

    def write(self, file: Path) -> None:
        """Replace the file at once, so that a crash leaves the old one or the new one.

        Raises Unavailable.
        """
        new = file.with_name(f"{file.name}.new")
        try:
            with contextlib.suppress(FileNotFoundError):
                new.unlink()  # of a process that was killed, perhaps with another mode
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
                json.dump({"key": self.key.hex(), "port": self.port}, opened)
            new.replace(file)
        except OSError as error:
            raise Unavailable(
                f"{file}: {error.strerror}; the page stores what open pages need after a restart "
                "there; make the folder writable, and free space on its disk if that is full"
            ) from error
