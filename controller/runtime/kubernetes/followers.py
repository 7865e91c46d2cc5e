"""Whose log is being copied, by attempt: one follower each, and the next when another pod speaks for the attempt.

Where nobody waits for its lines, a log is first asked for when its container has run for SOON_S: of what ends before,
it is read once, whole. A node looks each ten seconds, unless told otherwise, whether a log's beginning must go.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from controller.runtime import log_file
from controller.runtime.kubernetes.client import Client
from controller.runtime.kubernetes.logs import LogFollower
from controller.runtime.kubernetes.positions import PodContainer

SOON_S = 5.0


class Followers:
    """grown: some log has more. ended: some log is whole; who waits for its end should look."""

    def __init__(self, client: Client, namespace: str, *, grown: Callable[[], None], ended: Callable[[], None]) -> None:
        self._client = client
        self._namespace = namespace
        self._grown = grown
        self._ended = ended
        self._by_name: dict[str, tuple[PodContainer, LogFollower]] = {}
        self._left: dict[str, int] = {}  # how much there is of logs that nobody writes
        self._later: dict[str, tuple[float, PodContainer, Path]] = {}  # since when it runs, what is not followed yet

    def follow(self, name: str, source: PodContainer | None, directory: Path, *, at_once: bool) -> LogFollower | None:
        """source: what speaks for the attempt now; None: nobody has yet. What an earlier pod of it has
        said comes first. None: it is not followed yet."""
        known = self._by_name.get(name)
        if source is None or (known is not None and known[0] == source):
            return None if known is None else known[1]
        if known is None:
            since_s, first, _ = self._later.setdefault(name, (time.monotonic(), source, directory))
            if not at_once and first == source and time.monotonic() - since_s < SOON_S:
                return None
            if first.pod != source.pod:  # else the first one's log is gone, and its name leads to this one's
                source = first  # another pod has taken over since: the next look comes to that
        self._later.pop(name, None)
        if known is not None and known[0].pod == source.pod:
            known[1].replaced()
        if known is not None and not known[1].done:
            known[1].ended()
            return known[1]
        follower = LogFollower(self._client, self._namespace, source, directory, grown=lambda: self._tell(name))
        self._by_name[name] = source, follower
        self._left.pop(name, None)
        follower.begin()
        return follower

    def hurry(self) -> None:
        """Somebody waits for lines: all are followed from now on."""
        for name, (_, source, directory) in list(self._later.items()):
            self.follow(name, source, directory, at_once=True)

    def has(self, name: str) -> bool:
        """Some log of the attempt is followed, or was read."""
        return name in self._by_name

    def is_of(self, name: str, source: PodContainer | None) -> bool:
        """Who speaks for the attempt is being followed."""
        return (known := self._by_name.get(name)) is not None and known[0] == source

    def size(self, name: str, directory: Path) -> int:
        """Bytes of the attempt's log so far."""
        if (known := self._by_name.get(name)) is not None:
            return known[1].size
        if name not in self._left:
            self._left[name] = log_file.size(directory / "log.txt")
        return self._left[name]

    def unreadable(self) -> Exception | None:
        """That logs may not be read: what a trial said would be lost with its pod."""
        return next((each.barred for _, each in self._by_name.values() if each.barred is not None), None)

    def not_yet(self) -> None:
        """The cluster is away: no log is given up meanwhile."""
        for _, follower in self._by_name.values():
            follower.not_yet()

    async def drop(self, name: str) -> None:
        self._left.pop(name, None)
        self._later.pop(name, None)
        if (known := self._by_name.pop(name, None)) is not None:
            await known[1].close()

    async def close(self) -> None:
        for name in list(self._by_name):
            await self.drop(name)

    def _tell(self, name: str) -> None:
        known = self._by_name.get(name)
        self._ended() if known is not None and known[1].done else self._grown()
