"""Files in which the server of a page keeps what open pages need after a restart.

Only their owner can read them.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from suggest.errors import Unavailable
from suggest.whole_file import PRIVATE, replace_file


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
        """Replace the file. Raises Unavailable."""
        content = json.dumps({"key": self.key.hex(), "port": self.port})
        try:
            replace_file(file, content, mode=PRIVATE)
        except OSError as error:
            raise Unavailable(
                f"{file}: {error.strerror}; the page stores what open pages need after a restart "
                "there; make the folder writable, and free space on its disk if that is full"
            ) from error
