"""What all collectors share: the file of collected lines, the form of a line,
and the place of a source.
"""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from controller.core.metric_lines import NOTE

COLLECTED_FILE = "metrics.txt"


class Collector(ABC):
    """Collects one attempt's measurements. Raises OSError if its file of lines cannot be written.

    A source that need not be watched and has no end overrides only `collect` and `grew`.
    """

    def begin(self) -> None:  # noqa: B027 - a default that does nothing
        """Begin to watch, if the source must be watched while the attempt runs.

        May be called again.
        """

    @abstractmethod
    def collect(self, until: int) -> None:
        """Append lines until the file has `until` bytes, or until the source has nothing more."""

    @abstractmethod
    def grew(self) -> bool:
        """Return whether there is something new since the last call and since `collect`."""

    def finish(self) -> None:  # noqa: B027 - a default that does nothing
        """Note that the attempt has ended: the next `collect` gets the rest.

        May be called again.
        """

    def close(self) -> None:  # noqa: B027 - a default that does nothing
        """Stop watching."""


class CollectedLines:
    """The file of lines that a collector has read.

    A line that a kill cut off is removed before the next is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size: int | None = None

    @property
    def size(self) -> int:
        if self._size is None:
            try:
                self._size = self.path.stat().st_size
            except OSError:
                return 0
        return self._size

    def append(self, data: bytes) -> None:
        with self.path.open("ab", buffering=0) as file:
            self._size = file.tell()
            while data:
                count = file.write(data)
                self._size += count
                data = data[count:]

    def note(self, message: str) -> None:
        """Append a message about the source, for people."""
        self.append(f"{NOTE}{message}\n".encode())

    def clear(self) -> None:
        if self.size:
            os.truncate(self.path, 0)
            self._size = 0

    def last_byte(self) -> bytes:
        if not self.size:
            return b""
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1)

    def last_line(self) -> bytes:
        """Return the last complete line; removes an incomplete one after it."""
        if not self.size:
            return b""
        data = self.path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            os.truncate(self.path, end)
            self._size = end
        return data[:end].rstrip(b"\n").rpartition(b"\n")[2]


def json_line(values: Mapping[str, float | str], step: int | None = None) -> bytes:
    """Return a line of JSON. JSON has no numbers for NaN and infinities, so these are strings."""
    plain = {name: value if _is_plain(value) else str(value) for name, value in values.items()}
    return (
        json.dumps(plain if step is None else {"step": step, **plain}, ensure_ascii=False).encode()
        + b"\n"
    )


def _is_plain(value: float | str) -> bool:
    return isinstance(value, str) or math.isfinite(value)
