"""Server options for operators: where metrics are served, and the file of limits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from suggest.address import Address, parse_address
from suggest.errors import InvalidArgument
from suggest.server.access.file_reloader import FileReloader
from suggest.server.limits_file import Limits, read_limits


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options as given by the flags of `tuner serve`.

    `metrics_address` is HOST:PORT, or "" for no metrics. `limits` is a file, "" for the default
    limits, or None for no limits. `katib` are further ports for Katib's clients, which need no
    token there; 0 lets the system choose. `katib_checkpoints` is the folder of the trials of
    Katib's pbt, which is not served without one.
    """

    metrics_address: str = ""
    limits: str | None = None
    katib: tuple[int, ...] = ()
    katib_checkpoints: Path | None = None

    def check_checkpoints(self) -> None:
        """Raises InvalidArgument."""
        folder = self.katib_checkpoints
        if folder is not None and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            cure = "mount the volume of the trials there, or give this user write permission"
            message = f"{folder} is not a folder that this user can write; {cure}"
            raise InvalidArgument.at("katib-checkpoints", message)


def metrics_address(text: str) -> Address:
    """Parse the address of the metrics. Raises InvalidArgument."""
    address = parse_address(text)
    if address.path:
        raise InvalidArgument.at(
            "metrics-address", f"{text!r} is a socket; Prometheus needs HOST:PORT"
        )
    return address


class LimitsFile:
    """The current limits, from a file that may change. The constructor raises InvalidArgument."""

    def __init__(self, file: str) -> None:
        self._watched: FileReloader[Limits] | None = None
        self._usual = Limits()
        if file:
            self._watched = FileReloader(
                (Path(file),), lambda contents: read_limits(contents[0], place=file)
            )

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
