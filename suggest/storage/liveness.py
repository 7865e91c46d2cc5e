"""Which of the servers that share a database are alive, judged by this process's own clock.

A heartbeat is a value that changes; what it says is not used, for the database's clock may be set at any time. A
server is silent when its value has stayed the same for SILENCE_S of regular looks. While the database is away nobody
looks, and nobody is silent. No clock and no I/O in here: every look comes with its time.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

SILENCE_S = 1.5
GAP_S = 1.0  # between two looks, at most: after a longer one silence is measured from the later one on


class Liveness(enum.Enum):
    ALIVE = "alive"
    SILENT = "silent"
    UNKNOWN = "unknown"  # not looked at for long enough


@dataclass(slots=True)
class _LastBeat:
    value: int
    since: float  # of looks at this value, without a gap
    looked: float
    changed: bool = False


class FailureDetector:
    """Not thread-safe. A look `began` and `ended`: the heartbeats are of some moment between the two."""

    def __init__(self) -> None:
        self._heard: dict[str, _LastBeat] = {}

    def look(self, heartbeats: Mapping[str, int], *, began: float, ended: float) -> None:
        """At all servers there are."""
        for server in self._heard.keys() - heartbeats.keys():
            del self._heard[server]
        for server, value in heartbeats.items():
            self.look_at(server, value, began=began, ended=ended)

    def look_at(self, server: str, value: int, *, began: float, ended: float) -> Liveness:
        heard = self._heard.get(server)
        if heard is None:
            self._heard[server] = _LastBeat(value, since=ended, looked=ended)
            return Liveness.UNKNOWN
        if value != heard.value:
            heard.value, heard.since, heard.changed = value, ended, True
        elif ended - heard.looked > GAP_S:
            heard.since = ended
        heard.looked = ended
        if began - heard.since >= SILENCE_S:
            return Liveness.SILENT
        return Liveness.ALIVE if heard.changed else Liveness.UNKNOWN

    def interrupted(self) -> None:
        """A look has failed: others may have been unable to write their heartbeats as well."""
        for heard in self._heard.values():
            heard.looked = -math.inf

    def silent_for(self, seconds: float, now: float) -> dict[str, int]:
        """Servers, and the heartbeat at which each has stayed for so long."""
        return {server: heard.value for server, heard in self._heard.items() if now - heard.since >= seconds}
