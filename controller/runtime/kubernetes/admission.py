"""Admission: which attempts wait for room in their namespace, and why. Oldest first; nothing is asked of the cluster.

Room is what the quotas leave after what was admitted and is not counted there yet (`resource_quota`), and this
experiment's fair share of it. With a queue of Kueue all that is Kueue's business, and everything is admitted at once.

Fair share: experiments of one state directory that run in one namespace take turns, the one with the fewest running
attempts first. Each writes to a small file of its own how many attempts it has there and how many wait for room; nobody
writes another's. A file counts while its writer holds its lock and has written within STALE_S: the first ends with the
process, the second with a process that hangs, and where a file system has no locks. Two that read at the same moment
may both start; so shares are equal to within one trial.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from controller.core.model import FINAL
from controller.runtime.kubernetes.demand import Demand, demand_of
from controller.runtime.kubernetes.resource_quota import Reservations, out_of_room, reason_to_wait, with_defaults
from controller.runtime.protocol import Launch

Raw = dict[str, Any]

_AGAIN_S = 1.0  # after a pod was refused though there seemed to be room: somebody else is as fast
_FAIR_SHARE = "FairShare: another experiment of the namespace waits and has fewer running"


@dataclass(slots=True)
class _Waiting:
    launch: Launch
    objects: Sequence[Raw]
    demand: Demand
    reason: str = ""
    not_before_s: float = 0.0


class AdmissionQueue:
    """own: room is our business, not Kueue's. shares: the other experiments that want room in the namespace."""

    def __init__(self, *, own: bool, shares: FairShares | None = None) -> None:
        self._own = own
        self._shares = shares
        self._queue: dict[str, _Waiting] = {}
        self._admitted: dict[str, _Waiting] = {}  # let in, and not on the cluster yet
        self._reservations = Reservations(time.monotonic)
        self._refused: dict[str, tuple[float, str]] = {}

    @property
    def waiting(self) -> Mapping[str, str]:
        return {name: each.reason for name, each in (self._admitted | self._queue).items()}

    def add(self, launch: Launch, objects: Sequence[Raw], *, limit_ranges: Sequence[Raw]) -> None:
        """objects: what is to be created for it. Raises ValueError: a resource is not a quantity."""
        waiting = _Waiting(launch, objects, with_defaults(demand_of(objects), limit_ranges))
        if (refused := self._refused.pop(launch.name, None)) is not None:
            waiting.not_before_s, waiting.reason = refused
        self._put(waiting)

    def drop(self, name: str) -> None:
        self._queue.pop(name, None)
        self._admitted.pop(name, None)
        self._refused.pop(name, None)
        self._reservations.forget(name)

    def next(self, quotas: Sequence[Raw], pods: Iterable[Raw], *, running: int) -> tuple[Launch, Sequence[Raw]] | None:
        """The oldest that waits, if there is room for it, which is let in; younger ones never overtake it. running:
        attempts on the cluster that have not ended. To be asked every second at least: others look at what is said
        here."""
        running += len(self._admitted)
        above_fair_share = self._above_fair_share(quotas, running)
        if not self._queue:
            return None
        oldest = next(iter(self._queue.values()))
        if oldest.launch.slots is not None and running >= oldest.launch.slots:
            oldest.reason = ""  # its predecessor runs: nothing is in its way
            return None
        if time.monotonic() < oldest.not_before_s:
            return None
        if not self._own:
            return self._admit(oldest)
        if quotas:
            self._reservations.look(pods)
        else:
            self._reservations.clear()  # nothing is counted
        oldest.reason = reason_to_wait(oldest.demand, quotas, self._reservations) or (
            _FAIR_SHARE if above_fair_share else ""
        )
        if not oldest.reason:
            return self._admit(oldest)
        for younger in list(self._queue.values())[1:]:
            younger.reason = oldest.reason
        return None

    def made(self, launch: Launch) -> None:
        """It is on the cluster now; its pods are not yet."""
        self._admitted.pop(launch.name, None)

    def ended(self, name: str) -> None:
        """Its pods have."""
        self._reservations.ended(name)

    def wait(self, launch: Launch, reason: str = "") -> None:
        """It could not be made now. With a reason, the cluster did not take it: not again at once."""
        waiting = self._admitted.pop(launch.name, None)
        if waiting is not None:
            self._reservations.forget(launch.name)
            if reason:
                waiting.reason, waiting.not_before_s = reason, time.monotonic() + _AGAIN_S
            self._put(waiting)

    def refused(self, name: str, message: str) -> bool:
        """A pod of it was refused. True: for want of room; its object should be taken back, and it waits again."""
        if not self._own or (reason := out_of_room(message)) is None:
            return False
        self._refused[name] = time.monotonic() + _AGAIN_S, reason
        self._reservations.forget(name)
        return True

    def close(self) -> None:
        self._queue.clear()
        self._admitted.clear()
        if self._shares is not None:
            self._shares.close()

    def _put(self, waiting: _Waiting) -> None:
        self._queue[waiting.launch.name] = waiting
        self._queue = dict(sorted(self._queue.items(), key=lambda item: _age(item[1].launch)))

    def _admit(self, waiting: _Waiting) -> tuple[Launch, Sequence[Raw]]:
        self._admitted[waiting.launch.name] = self._queue.pop(waiting.launch.name)
        self._reservations.launched(waiting.launch.name, waiting.demand)
        return waiting.launch, waiting.objects

    def _above_fair_share(self, quotas: Sequence[Raw], running: int) -> bool:
        """Whether another experiment waits that has less. Where no quota limits them, all have what they want."""
        if self._shares is None or not quotas or not self._own:
            return False
        now_s = time.time()
        try:
            mine = self._shares.publish(running, len(self._queue), now_s=now_s)
        except OSError:
            return False  # the state directory's disk is in trouble: others see no share of ours, and go first
        return not may_start(mine, self._shares.others(now_s=now_s))


def _age(launch: Launch) -> tuple[bool, int, int]:
    part = launch.cluster
    assert part is not None
    return (False, 0, part.attempt) if part.trial is FINAL else (True, part.trial, part.attempt)


STALE_S = 5.0
_REFRESH_S = 1.0
_FILE_BYTES = 256  # written at once and over the old: a reader sees the one or the other


@dataclass(frozen=True, slots=True)
class Share:
    """running: attempts let in and not ended. waiting: attempts that wait for room (not for a person, or a pause)."""

    uid: str
    running: int
    waiting: int


def may_start(mine: Share, others: Sequence[Share]) -> bool:
    """Nobody who waits has less; of those who have as much, the first by uid."""
    return all(not other.waiting or (mine.running, mine.uid) < (other.running, other.uid) for other in others)


class FairShares:
    """This experiment's file, and the others beside it. Times are of the wall clock, in seconds."""

    def __init__(self, state_dir: Path, *, server: str, namespace: str, uid: str) -> None:
        cluster = sha256(server.encode()).hexdigest()[:8]
        self._folder = state_dir / "shares" / f"{cluster}-{namespace}"
        self._uid = uid
        self._file: int | None = None
        self._written: tuple[Share, float] | None = None

    def publish(self, running: int, waiting: int, *, now_s: float) -> Share:
        """Say what we have; as often as you look, at least every second or two. Raises OSError."""
        mine = Share(self._uid, running, waiting)
        if self._written is None or self._written[0] != mine or now_s - self._written[1] >= _REFRESH_S:
            if self._file is None:
                self._file = self._open()
            text = json.dumps({"running": running, "waiting": waiting, "heartbeat": now_s})
            os.pwrite(self._file, text.encode().ljust(_FILE_BYTES), 0)
            self._written = mine, now_s
        return mine

    def others(self, *, now_s: float) -> list[Share]:
        """What the others have who are alive. Files of the dead are cleared away."""
        own = f"{self._uid}.json"
        try:
            paths = sorted(path for path in self._folder.iterdir() if path.suffix == ".json" and path.name != own)
        except OSError:
            return []
        return [share for path in paths if (share := _read(path, now_s)) is not None]

    def close(self) -> None:
        """We share no more."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                (self._folder / f"{self._uid}.json").unlink()
            os.close(self._file)
            self._file = self._written = None

    def _open(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._uid}.json"
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            with contextlib.suppress(OSError):  # no locks here; the heartbeat must do
                fcntl.flock(file, fcntl.LOCK_SH)  # held against us for a moment at most
            # Somebody may have cleared it away as a dead one's before we had the lock.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), path.stat()):
                    return file
            os.close(file)


def _read(path: Path, now_s: float) -> Share | None:
    try:
        with path.open("rb+", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pass  # its writer lives, or there are no locks
            else:
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    path.unlink()
                return None
            facts = json.loads(file.read(_FILE_BYTES))
        share = Share(path.stem, int(facts["running"]), int(facts["waiting"]))
        return share if abs(now_s - facts["heartbeat"]) < STALE_S else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # gone, or its first word is not said yet
