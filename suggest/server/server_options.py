"""Server options for operators: where metrics are served, and the file of limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suggest.server.access.file_reloader import FileReloader
from suggest.server.limits_file import Limits, read_limits


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """As the flags of `tuner serve` say it. `metrics_address`: HOST:PORT, or "" for none. `limits`: a file, "" for what
    is sensible where nobody says anything, or None for none at all. `katib`: further ports, where Katib's clients are
    served without a token; 0 lets the system choose."""

    metrics_address: str = ""
    limits: str | None = None
    katib: tuple[int, ...] = ()


class LimitsFile:
    """The limits that hold now. Raises InvalidArgument."""

    def __init__(self, file: str) -> None:
        self._watched = _watched(Path(file)) if file else None
        self._usual = Limits()

    def now(self) -> Limits:
        return self._usual if self._watched is None else self._watched.value

    @property
    def change(self) -> bool:
        """Whether there is anything to look after."""
        return self._watched is not None

    def look(self) -> None:
        """Reads the file again if it has changed. Blocking."""
        if self._watched is not None:
            self._watched.look()


def _watched(path: Path) -> FileReloader[Limits]:
    return FileReloader((path,), lambda contents: read_limits(contents[0], place=str(path)))
