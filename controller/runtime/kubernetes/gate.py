"""Attempts that wait for room in their namespace: oldest first, each with the reason that it waits.

Room is what the quotas leave after what was let in and is not counted there yet (`quota`), and this experiment's fair
share of it (`shares`). With a queue of Kueue all that is Kueue's business, and everything is let in at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.core.model import FINAL
from controller.runtime.kubernetes.demand import Demand, demand_of
from controller.runtime.kubernetes.manifests import job_for
from controller.runtime.kubernetes.resource_quota import Reservations, out_of_room, reason_to_wait, with_defaults
from controller.runtime.kubernetes.shares import Shares, may_start
from controller.runtime.protocol import Launch

Raw = dict[str, Any]

_AGAIN_S = 1.0  # after a pod was refused though there seemed to be room: somebody else is as fast
_POORER = "FairShare: another experiment of the namespace waits and has fewer running"


@dataclass(slots=True)
class _Waiting:
    launch: Launch
    demand: Demand
    reason: str = ""
    not_before_s: float = 0.0


class Gate:
    """own: room is our business, not Kueue's. shares: the other experiments that want room in the namespace."""

    def __init__(self, *, own: bool, shares: Shares | None = None) -> None:
        self._own = own
        self._shares = shares
        self._queue: dict[str, _Waiting] = {}
        self._entering: dict[str, _Waiting] = {}  # let in, and not on the cluster yet
        self._reservations = Reservations(time.monotonic)
        self._turned_away: dict[str, tuple[float, str]] = {}

    @property
    def waiting(self) -> Mapping[str, str]:
        return {name: each.reason for name, each in (self._entering | self._queue).items()}

    def add(self, launch: Launch, *, limit_ranges: Sequence[Raw]) -> None:
        """Raises ValueError: it asks for something that is no quantity."""
        waiting = _Waiting(launch, with_defaults(demand_of(job_for(launch, owner=None)), limit_ranges))
        if (turned_away := self._turned_away.pop(launch.name, None)) is not None:
            waiting.not_before_s, waiting.reason = turned_away
        self._put(waiting)

    def drop(self, name: str) -> None:
        self._queue.pop(name, None)
        self._entering.pop(name, None)
        self._turned_away.pop(name, None)
        self._reservations.forget(name)

    def next(self, quotas: Sequence[Raw], pods: Iterable[Raw], *, running: int) -> Launch | None:
        """The oldest that waits, if there is room for it, which is let in; younger ones never overtake it. running:
        attempts on the cluster that have not ended. To be asked every second at least: others look at what is said
        here."""
        running += len(self._entering)
        richer = self._is_richer(quotas, running)
        if not self._queue:
            return None
        oldest = next(iter(self._queue.values()))
        if oldest.launch.slots is not None and running >= oldest.launch.slots:
            oldest.reason = ""  # its predecessor runs: nothing is in its way
            return None
        if time.monotonic() < oldest.not_before_s:
            return None
        if not self._own:
            return self._let_in(oldest)
        if quotas:
            self._reservations.look(pods)
        else:
            self._reservations.clear()  # nothing is counted
        oldest.reason = reason_to_wait(oldest.demand, quotas, self._reservations) or (_POORER if richer else "")
        if not oldest.reason:
            return self._let_in(oldest)
        for younger in list(self._queue.values())[1:]:
            younger.reason = oldest.reason
        return None

    def made(self, launch: Launch) -> None:
        """It is on the cluster now; its pods are not yet."""
        self._entering.pop(launch.name, None)

    def ended(self, name: str) -> None:
        """Its pods have."""
        self._reservations.ended(name)

    def wait(self, launch: Launch, reason: str = "") -> None:
        """It could not be made now. With a reason, the cluster did not take it: not again at once."""
        waiting = self._entering.pop(launch.name, None)
        if waiting is not None:
            self._reservations.forget(launch.name)
            if reason:
                waiting.reason, waiting.not_before_s = reason, time.monotonic() + _AGAIN_S
            self._put(waiting)

    def refused(self, name: str, message: str) -> bool:
        """A pod of it was refused. True: for want of room; its object should be taken back, and it waits again."""
        if not self._own or (reason := out_of_room(message)) is None:
            return False
        self._turned_away[name] = time.monotonic() + _AGAIN_S, reason
        self._reservations.forget(name)
        return True

    def close(self) -> None:
        self._queue.clear()
        self._entering.clear()
        if self._shares is not None:
            self._shares.close()

    def _put(self, waiting: _Waiting) -> None:
        self._queue[waiting.launch.name] = waiting
        self._queue = dict(sorted(self._queue.items(), key=lambda item: _age(item[1].launch)))

    def _let_in(self, waiting: _Waiting) -> Launch:
        self._entering[waiting.launch.name] = self._queue.pop(waiting.launch.name)
        self._reservations.launched(waiting.launch.name, waiting.demand)
        return waiting.launch

    def _is_richer(self, quotas: Sequence[Raw], running: int) -> bool:
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
