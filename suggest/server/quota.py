"""Quotas of namespaces: how many studies, trials and measurements each namespace may have, and has.

A namespace is counted when it is first written to, and then periodically in the background. Between
counts, reservations are added up, so that writes do not wait for a count. Before a refusal the
namespace is counted again, unless the last count is very recent and nothing was deleted here since;
a count during which something was deleted is repeated. A single server thus enforces its quotas
except for writes in progress; it learns about what was deleted, and about writes of other servers
to the same database, from the next count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TimesUp
from contextlib import contextmanager

from suggest import deadline
from suggest.errors import LimitReached, TunerError
from suggest.katib import NAMESPACE as KATIB
from suggest.server.limits_file import Limits, Quota
from suggest.storage.database import Database
from suggest.storage.observation_log import ObservationLog
from suggest.storage.sql_store import StudyStore
from suggest.storage.store import Addition, Counts, Lease, Observed, StudyRecord
from suggest.trial import Measurement, Trial, TrialBatch

RECOUNT_S = 60.0  # shortest time between periodic counts
AGAIN_S = 1.0  # shortest time between counts before a refusal
_WAIT_S = 0.2  # how long a write waits for the first count
_PATIENCE_S = 5.0  # how long a write that would be refused waits for a new count
_SHARE = 20  # counting takes at most 1/20 of the time


class _Namespace:
    """The known usage of a namespace. All fields are guarded by `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.added = Counts()  # everything that this server has added so far
        self.base: Counts | None = None  # the last count, minus `added` at that time
        self.counted_at = 0.0  # when the last count began
        self.took_s = 0.0
        self.deleted = False  # since the last count began
        self.counting: Future[None] | None = None


class QuotaTracker:
    """Counts usage and refuses writes over a quota. Thread-safe.

    `limits` returns the current limits. All methods take the name of a namespace.
    close() ends the counting.
    """

    def __init__(
        self,
        count: Callable[[str], Counts],
        limits: Callable[[], Limits],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count = count
        self._limits = limits
        self._clock = clock
        self._namespaces: dict[str, _Namespace] = {}
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="counting")

    @contextmanager
    def reserving(self, name: str, need: Counts) -> Iterator[None]:
        """Reserve `need` for the write in the block; release it if the block raises.

        Raises LimitReached.
        """
        namespace = self._namespaces.setdefault(name, _Namespace())
        if namespace.base is None:
            self._wait(self._recount(name, namespace, not_since_s=RECOUNT_S), _WAIT_S)
        elif self._clock() - namespace.counted_at > RECOUNT_S:
            self._recount(name, namespace, not_since_s=RECOUNT_S)
        added = self._add(name, namespace, need) or self._add_after_count(name, namespace, need)
        if not added:
            raise self._full(name, namespace, need)
        try:
            yield
        except BaseException:
            with namespace.lock:
                namespace.added = namespace.added.minus(need)
            raise

    def note(self, name: str, added: Counts) -> None:
        """Count a write to which the quota does not apply."""
        namespace = self._namespaces.setdefault(name, _Namespace())
        with namespace.lock:
            namespace.added = namespace.added.plus(added)

    def deleted(self, name: str) -> None:
        """Note that something was deleted: people who make room try again at once."""
        namespace = self._namespaces.setdefault(name, _Namespace())
        with namespace.lock:
            namespace.deleted = True

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)

    def _add(self, name: str, namespace: _Namespace, need: Counts) -> bool:
        quota = self._limits().quota_of(name)
        with namespace.lock:
            if namespace.base is not None and _short(
                quota, namespace.base.plus(namespace.added), need
            ):
                return False
            namespace.added = namespace.added.plus(need)
            return True

    def _add_after_count(self, name: str, namespace: _Namespace, need: Counts) -> bool:
        """Count, unless the last count is recent, and try again to add."""
        counting = self._recount(name, namespace, not_since_s=AGAIN_S)
        self._wait(counting, _PATIENCE_S)
        if self._add(name, namespace, need):
            return True
        if counting is None or not counting.done():
            return False
        # It may have counted what was deleted while it ran. Another call
        # may have started the next count already.
        share = 0 if namespace.deleted else _SHARE
        self._wait(self._recount(name, namespace, not_since_s=AGAIN_S, share=share), _PATIENCE_S)
        return self._add(name, namespace, need)

    def _full(self, name: str, namespace: _Namespace, need: Counts) -> LimitReached:
        quota = self._limits().quota_of(name)
        used = (namespace.base or Counts()).plus(namespace.added)
        resource = _short(quota, used, need) or "trials"
        unneeded = "studies and Katib's trials" if name == KATIB else "studies"
        in_use = getattr(used, resource)
        limit = getattr(quota, resource)
        requested = getattr(need, resource)
        return LimitReached(
            f"the namespace {name} has {in_use:,} of the {limit:,} {resource} allowed, and "
            f"{requested:,} more were requested; delete {unneeded} that are not needed, or ask the "
            f"server's operator to raise {resource} in the file of limits",
            limit=resource,
            subject=f"namespaces/{name}",
        )

    def _recount(
        self, name: str, namespace: _Namespace, *, not_since_s: float, share: int = _SHARE
    ) -> Future[None] | None:
        """Return the count in progress, or start a new one. None if the last one is recent.

        share: how many times as long as the last count took must lie between that and a new one.
        """
        with namespace.lock:
            if namespace.counting is not None and not namespace.counting.done():
                return namespace.counting
            pause_s = max(0.0 if namespace.deleted else not_since_s, share * namespace.took_s)
            if namespace.counted_at and self._clock() - namespace.counted_at < pause_s:
                return None
            namespace.counted_at, namespace.deleted = self._clock(), False
            namespace.counting = self._executor.submit(self._counted, name, namespace)
            return namespace.counting

    def _counted(self, name: str, namespace: _Namespace) -> None:
        began = self._clock()
        added = namespace.added
        try:
            counts = self._count(name)
        except TunerError:
            return  # the next write meets the same error and reports it
        with namespace.lock:
            namespace.base = counts.minus(added)
            namespace.took_s = self._clock() - began

    @staticmethod
    def _wait(counting: Future[None] | None, patience_s: float) -> None:
        if counting is not None:
            try:
                counting.result(deadline.left_s(patience_s))
            except TimesUp:
                return


def _short(quota: Quota, used: Counts, need: Counts) -> str:
    """Return which count would exceed the quota, "" if none."""
    for resource in Counts._fields:
        limit, requested = getattr(quota, resource), getattr(need, resource)
        if requested and limit is not None and getattr(used, resource) + requested > limit:
            return resource
    return ""


class QuotaStore(StudyStore):
    """A store whose writes reserve quota: they raise LimitReached before anything is written.

    It takes over `store`, and closes it. `limits` returns the current limits. A method that adds
    studies, trials or measurements is overridden here; a test lists all others.
    """

    def __init__(self, store: StudyStore, limits: Callable[[], Limits]) -> None:
        super().__init__(store._database, store._ownership, store._statements)
        self._tracker = QuotaTracker(self._usage, limits)
        self.observations = _QuotaLog(self._database, self._tracker)

    def _usage(self, namespace: str) -> Counts:
        counts = self.counts(namespace)
        if namespace == KATIB:
            return counts.plus(Counts(measurements=self.observations.count()))
        return counts

    def insert_study(self, record: StudyRecord) -> bool:
        name = record.study.name
        try:
            with self._tracker.reserving(name.namespace, Counts(studies=1)):
                if super().insert_study(record):
                    return True
                raise _StudyExists
        except _StudyExists:
            return False
        except LimitReached:
            if self.study(name) is None:
                raise
            return False  # a repeated call for an existing study is not refused

    def hand_out(self, lease: Lease, trials: Sequence[Trial], *, queued: int = 0) -> None:
        with self._tracker.reserving(lease.name.namespace, Counts(trials=len(trials) - queued)):
            super().hand_out(lease, trials, queued=queued)

    def add_trials(self, lease: Lease, additions: Sequence[Addition]) -> None:
        measured = sum(len(addition.measurements) for addition in additions)
        with self._tracker.reserving(
            lease.name.namespace, Counts(trials=len(additions), measurements=measured)
        ):
            super().add_trials(lease, additions)

    def add_batch(self, lease: Lease, batch: TrialBatch) -> None:
        with self._tracker.reserving(lease.name.namespace, Counts(trials=len(batch))):
            super().add_batch(lease, batch)

    def add_measurements(
        self, lease: Lease, number: int, measurements: Sequence[Measurement]
    ) -> None:
        with self._tracker.reserving(lease.name.namespace, Counts(measurements=len(measurements))):
            super().add_measurements(lease, number, measurements)

    def finish_trial(self, lease: Lease, trial: Trial, measurements: Sequence[Measurement]) -> None:
        """Finish a trial. Never refused, so that every trial can end."""
        super().finish_trial(lease, trial, measurements)
        if measurements:
            self._tracker.note(lease.name.namespace, Counts(measurements=len(measurements)))

    def delete_study(self, lease: Lease) -> None:
        super().delete_study(lease)
        self._tracker.deleted(lease.name.namespace)

    def delete_trial(self, lease: Lease, number: int) -> None:
        super().delete_trial(lease, number)
        self._tracker.deleted(lease.name.namespace)

    def close(self) -> None:
        self._tracker.close()
        super().close()


class _QuotaLog(ObservationLog):
    """A store's observation log with quotas: its lines are measurements of Katib's namespace."""

    def __init__(self, database: Database, tracker: QuotaTracker) -> None:
        super().__init__(database)
        self._tracker = tracker

    def report(self, trial: str, lines: Sequence[Observed]) -> None:
        with self._tracker.reserving(KATIB, Counts(measurements=len(lines))):
            super().report(trial, lines)

    def mark_stopped(self, trial: str) -> None:
        with self._tracker.reserving(KATIB, Counts(measurements=1)):
            super().mark_stopped(trial)

    def delete(self, trial: str) -> None:
        super().delete(trial)
        self._tracker.deleted(KATIB)


class _StudyExists(Exception):
    """The study exists already, so the reservation is released."""
