"""Where in a container's log its copy in log.txt stands. Pure but for the small file that outlives the controller.

A log can only be asked for from a whole second on (the API server cuts fractions off), and lines may bear equal stamps
or, from two streams, stamps out of order. But it comes in the same order each time. So a position counts: of the lines
since a second, that many were copied, and a copy goes on by dropping as many. A line newer than all that was copied,
met before, says that older ones are gone at the server (rotated): then dropping ends there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from controller.runtime.kubernetes import small_file

FILE = "log.position"
_MARGIN_S = 3  # two streams of a container, or a clock that is set, may put stamps out of order by that much
_REMEMBERED_S = 10  # a node's clock may be set back


class PodContainer(NamedTuple):
    """Whose log it is. Operators reuse the names of pods, so only the uid tells one life of a pod from the next."""

    pod: str
    container: str
    uid: str = ""


@dataclass(slots=True)
class Position:
    """offset: bytes of log.txt that are whole lines of this container. newest: the latest stamp among them, in UTC.
    uid: the pod's; "" in a file that an earlier release wrote.
    counts: lines copied by second of their stamp; floor: nothing is known of the seconds before. done: it was all."""

    pod: str
    container: str
    offset: int = 0
    newest: str = ""
    second: int = 0
    floor: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    done: bool = False
    uid: str = ""

    def copied(self, stamp: str, second: int) -> None:
        """One more line."""
        self.newest = max(self.newest, stamp)
        self.counts[second] = self.counts.get(second, 0) + 1
        if second != self.second:
            self.second = second
            for old in [known for known in self.counts if known < second - _REMEMBERED_S]:
                del self.counts[old]
                self.floor = max(self.floor, old + 1)

    def again(self) -> tuple[str, int]:
        """From when on the log is to be asked for ("": all of it), and how many of its lines are to be dropped."""
        if not self.counts:
            return "", 0
        since = max(self.second - _MARGIN_S, self.floor)
        known = sum(count for second, count in self.counts.items() if second >= since)
        return datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), known


def in_utc(second: str, fraction: str, zone: str) -> tuple[str, int]:
    """A stamp that sorts as text, and its second since 1970. Raises ValueError: no such time."""
    prefix, number = _second(second, zone)
    return f"{prefix}.{fraction:0<9}", number


@lru_cache(maxsize=1024)
def _second(second: str, zone: str) -> tuple[str, int]:
    moment = datetime.fromisoformat(second + zone.replace("Z", "+00:00")).astimezone(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S"), int(moment.timestamp())


def read(directory: Path, of: PodContainer) -> Position:
    """What was noted for this container, or a new one: behind what another pod of the attempt has left there."""
    new = Position(of.pod, of.container, uid=of.uid)
    size = _size(directory / "log.txt")
    try:
        facts = json.loads((directory / FILE).read_bytes())
        facts["counts"] = {int(second): int(count) for second, count in facts["counts"].items()}
        noted = Position(**facts)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return new  # what log.txt has comes again, from its start
    if (noted.pod, noted.container) != (of.pod, of.container) or noted.uid not in ("", of.uid):
        new.offset = size
        return new
    if noted.offset > size:
        return new  # a machine that went down took the end of the file with it
    noted.uid = of.uid
    return noted


def write(directory: Path, position: Position) -> None:
    """Raises OSError."""
    small_file.put(directory / FILE, json.dumps(asdict(position)))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
