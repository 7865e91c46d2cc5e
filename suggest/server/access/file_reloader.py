"""A value that is read from files and reloaded when they change. An invalid new version never
replaces a valid one.

The owner calls `look()` periodically in a thread, which reads the files; `value` never blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from suggest.errors import InvalidArgument

log = logging.getLogger(__name__)

T = TypeVar("T")


class FileReloader(Generic[T]):
    """Holds the current value.

    `read` parses the files' contents or raises InvalidArgument, as does the constructor.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[Sequence[bytes]], T]) -> None:
        self._paths = paths
        self._read = read
        self._shown = " and ".join(map(str, paths))
        self._contents = self._on_disk()
        self.value = read(self._contents)

    def look(self) -> bool:
        """Reload changed files and return whether the value changed.

        Errors in new contents are logged once.
        """
        try:
            contents = self._on_disk()
        except InvalidArgument as e:
            return self._refuse([], e)
        if contents == self._contents:
            return False
        try:
            value = self._read(contents)
            if contents != self._on_disk():
                return False  # a write is in progress; the next look sees the rest
        except (InvalidArgument, OSError) as e:
            return self._refuse(contents, e)
        self._contents, self.value = contents, value
        log.warning("%s: reloaded", self._shown)
        return True

    def _refuse(self, contents: list[bytes], error: Exception) -> bool:
        if contents != self._contents:
            log.error("changed and cannot be used; the previous contents stay in effect: %s", error)
        self._contents = contents
        return False

    def _on_disk(self) -> list[bytes]:
        try:
            return [path.read_bytes() for path in self._paths]
        except OSError as e:
            raise InvalidArgument.at(str(e.filename), f"cannot be read: {e.strerror}") from e
