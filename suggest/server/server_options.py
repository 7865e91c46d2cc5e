"""Server options for operators: where metrics are served, and the file of limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suggest.server.access.file_reloader import FileReloader
from suggest.server.limits_file import Limits, read_limits


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options as given by the flags of `tuner serve`.

    `metrics_address` is HOST:PORT, or "" for no metrics. `limits` is a file, "" for the default limits, or None for no
    limits.
    """

    metrics_address: str = ""
    limits: str | None = None


class LimitsFile:
    """The current limits, from a file that may change. The constructor raises InvalidArgument."""

    def __init__(self, file: str) -> None:
        self._watched = _watched(Path(file)) if file else None
        self._usual = Limits()

    def now(self) -> Limits:
        return self._usual if self._watched is None else self._watched.value

    @property
    def change(self) -> bool:
        """Whether there is a file that may change."""
        return self._watched is not None

    def look(self) -> None:
        """Reload the file if it has changed. Blocking."""
        if self._watched is not None:
            self._watched.look()


def _watched(path: Path) -> FileReloader[Limits]:
    return FileReloader((path,), lambda contents: read_limits(contents[0], place=str(path)))
