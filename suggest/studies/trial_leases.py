"""Leases of running trials: how long each trial may go without a renewal.
In memory only: a renewal costs no write.

The owner of a study measures leases with its own clock. When a study is loaded, all leases begin
with their full duration, because no client could renew them while no server owned the study.
`suggest.studies` decides what happens to a trial whose lease has expired.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from suggest import threads
from suggest.trial import Trial, TrialState

MAX_TRIES = 3  # a trial whose lease has expired this many times has failed
TICK_S = 1.0
# between two ticks; during a longer gap this process was frozen and answered no renewal
LONGEST_GAP_S = 5.0


@dataclass(slots=True)
class _TrialLease:
    duration_s: float
    end_s: float


class TrialLeases:
    """The trial leases of one study.

    The caller holds the study's lock, except for `left_s`.
    """

    def __init__(self, clock: AwakeClock) -> None:
        self._clock = clock
        self._held: dict[int, _TrialLease] = {}
        # A heap of (lower bound of a lease's end, trial). A renewal leaves the entry alone;
        # `expired` updates it.
        self._ends: list[tuple[float, int]] = []

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, trial: Trial) -> None:
        """Start or restart the trial's lease, if it has one."""
        if trial.lease_s is None:
            self.drop(trial.number)
            return
        end_s = self._clock.now_s() + trial.lease_s
        self._held[trial.number] = lease = _TrialLease(trial.lease_s, end_s)
        heapq.heappush(self._ends, (lease.end_s, trial.number))

    def renew(self, number: int) -> None:
        """Renew the trial's lease; do nothing if it has none."""
        if (lease := self._held.get(number)) is not None:
            lease.end_s = self._clock.now_s() + lease.duration_s

    def drop(self, number: int) -> None:
        """Forget the lease of a trial that no longer runs."""
        self._held.pop(number, None)

    def expired(self) -> list[int]:
        """Return the sorted numbers of trials with expired leases, and forget these leases."""
        if not self._held:
            return []
        now_s, numbers = self._clock.now_s(), list[int]()
        while self._ends and self._ends[0][0] <= now_s:
            _, number = heapq.heappop(self._ends)
            lease = self._held.get(number)
            if lease is None:
                continue
            if lease.end_s > now_s:
                heapq.heappush(self._ends, (lease.end_s, number))
            else:
                del self._held[number]
                numbers.append(number)
        return sorted(numbers)

    def left_s(self, number: int) -> float | None:
        """Return the seconds left, or None if the trial has no lease or the lease has expired.

        Any thread may call.
        """
        lease = self._held.get(number)
        return None if lease is None else lease.end_s - self._clock.now_s()

    def load(self, trials: Iterable[Trial]) -> None:
        """Synchronize with the store.

        Start unknown leases now, and drop the leases of trials that do not run.
        """
        leased = {
            t.number: t for t in trials if t.lease_s is not None and t.state is TrialState.RUNNING
        }
        for number in self._held.keys() - leased.keys():
            del self._held[number]
        for number in leased.keys() - self._held.keys():
            self.hold(leased[number])


class AwakeClock:
    """A clock that stops while this process is frozen: a frozen server cannot receive renewals."""

    def __init__(self, time_s: Callable[[], float] = time.monotonic) -> None:
        self._time_s = time_s
        self._lock = threading.Lock()
        self._last_s = time_s()
        self._awake_s = 0.0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def now_s(self) -> float:
        """Return the seconds for which this process was awake.

        A thread ticks from the first call until close().
        """
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._last_s = self._time_s()
                self._thread = threads.started(self._run, "awake-clock")
            moment_s = self._time_s()
            self._awake_s += min(moment_s - self._last_s, LONGEST_GAP_S)
            self._last_s = moment_s
            return self._awake_s

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(TICK_S):
            self.now_s()
