"""Study sessions: the studies that this process writes, each with a lease
and an engine, opened by the first write.

A study has one writer at a time; studies do not wait for each other. While a worker process
computes a point for a study, other calls may write the study: only the `proposing` lock is held
until there is a proposal. Take that lock before the study's lock.

An engine is a cache of the store: an engine that may be ahead of the store is dropped and loaded
again on demand. Idle engines are dropped too, and the least recently used ones when there are too
many, because each lease on SQLite takes a file descriptor, and each engine takes memory.
"""

from __future__ import annotations

import logging
import math
import resource
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from suggest import events, threads
from suggest.curves import Report, TrialCurve
from suggest.deadline import locked
from suggest.engine import Draft, Engine, Met
from suggest.errors import (
    FailedPrecondition,
    LimitReached,
    NotOwner,
    TooManyOpenFiles,
    TunerError,
    Unavailable,
)
from suggest.samplers import registry
from suggest.storage.store import Lease
from suggest.studies.next_point import Computations, NextPoint
from suggest.studies.prefetch import Prefetcher, ProposalCost
from suggest.studies.reading import StudyReader
from suggest.studies.trial_leases import AwakeClock, TrialLeases
from suggest.study import StudyName
from suggest.trial import Measurement, Trial, TrialState
from suggest.workers import Workers

if TYPE_CHECKING:
    from suggest.storage.sql_store import StudyStore

log = logging.getLogger(__name__)

NO_LIMIT = 2**31 - 1  # as a limit: all measurements of a trial
# Delay of a prefetch in a worker process. Its thread and its process would otherwise take the GIL
# and the processor from the reply that comes first, which takes a busy machine as long.
WORKER_PREFETCH_AFTER_S = 0.005
IDLE_S = 300.0  # a study without calls for this long is closed
MOST_OPEN = 4096  # open studies, however high the limit of file descriptors
LEAST_OPEN = 8


def most_open() -> int:
    """Return how many studies may be open: half of the descriptors are left for connections."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MOST_OPEN
    return max(LEAST_OPEN, min(MOST_OPEN, limit // 2))


@dataclass(slots=True)
class _Session:
    """One open study.

    The fields below `lock`, and the leases, are guarded by it; others belong to `StudySessions`.
    """

    name: StudyName
    trial_leases: TrialLeases
    pins: int = 0  # calls that use the session or wait for it, and the thread that closes it
    used: float = 0.0  # monotonic time of the end of the last call
    lock: threading.Lock = field(default_factory=threading.Lock)
    lease: Lease | None = None
    doubtful: bool = False  # a write under the lease failed, but may still be committed
    engine: Engine | None = None
    wanted: bool = False  # a client will ask for another proposal soon
    cost: ProposalCost = field(default_factory=ProposalCost)
    next_point: NextPoint = field(default_factory=NextPoint)
    proposing: threading.Lock = field(default_factory=threading.Lock)  # always taken before `lock`

    def prepare(self, engine: Engine) -> Draft | None:
        """Begin the next proposal, as `Engine.prepare` does, and note its cost."""
        began = time.thread_time()
        draft = engine.prepare()
        self.cost.add(time.thread_time() - began)
        return draft


@dataclass(frozen=True, slots=True)
class _StoredTrials:
    """A study's finished trials, read from the store."""

    store: StudyStore
    name: StudyName
    metric: str

    def trial(self, number: int) -> Trial | None:
        return self.store.trial(self.name, number)

    def trials(self) -> Sequence[Trial]:
        return self.store.contents(self.name).trials

    def report(self, number: int) -> Report:
        report = Report()
        report.add_all(
            m for _, _, m in self.store.measurements(self.name, number, after=0, limit=NO_LIMIT)
        )
        return report

    def curves(self) -> Iterator[TrialCurve]:
        return self.store.curves(self.name, self.metric)


@dataclass(frozen=True, slots=True)
class Writer:
    """Exclusive access to a study until the `with` block ends."""

    lease: Lease
    engine: Engine
    _sessions: StudySessions
    _session: _Session
    _just_loaded: Sequence[Trial] | None  # if the engine was built for this block: its trials

    @property
    def store(self) -> StudyStore:
        return self._sessions.store

    def trials_at_first(self) -> Iterable[Trial]:
        """Return all trials of the study as they were when the `with` block began, by number."""
        return self.engine.trials() if self._just_loaded is None else self._just_loaded

    @property
    def next_point(self) -> NextPoint:
        return self._session.next_point

    def prepare(self) -> Draft | None:
        """Begin the next proposal: it is `prepared`, or the returned draft must be computed."""
        return self._session.prepare(self.engine)

    def compute(self, draft: Draft) -> None:
        """Compute the draft in the background; `next_point` gets the result."""
        self._sessions.computations.begin(self._session, self.engine, draft)

    def count_point(self, kind: str) -> None:
        """Count a request for one trial by its point: ready, fresh, outdated or cheaper."""
        self._sessions.count_point(kind)

    @property
    def trial_leases(self) -> TrialLeases:
        return self._session.trial_leases

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Guard a change of store and engine: on failure, the engine is dropped and reloaded."""
        try:
            yield
        except LimitReached:
            raise  # nothing was sent to the store
        except NotOwner:
            self._session.engine = None
            raise
        except BaseException:
            # If only the reply was lost, the store may still commit the write. A new lease fences
            # it off before the engine is loaded.
            self._session.engine = None
            self._session.doubtful = True
            raise

    def load_again(self) -> None:
        """Drop the engine, which cannot follow a change: the next block loads it from the store."""
        self._session.engine = None

    # Changes are written to the store first, and only then the engine is told.

    def hand_out(self, trials: Sequence[Trial], *, queued: int = 0) -> None:
        """Store running trials, and start their leases. `queued` of them are stored as queued."""
        with self.changing():
            self.store.hand_out(self.lease, trials, queued=queued)
            for trial in trials:
                self.engine.put(trial)
        for trial in trials:
            self.trial_leases.hold(trial)

    def revive(self, trials: Sequence[Trial]) -> dict[int, Trial]:
        """Let expired trials that no other client has taken run again, with the same `tries`.

        Return them by number.
        """
        running = [replace(trial, state=TrialState.RUNNING) for trial in trials]
        if running:
            self.hand_out(running, queued=len(running))
        return {trial.number: trial for trial in running}

    def finish(self, trial: Trial, measurements: Sequence[Measurement] = ()) -> None:
        """Store a trial that has ended or pauses, with its last measurements, all of them new."""
        with self.changing():
            self.store.finish_trial(self.lease, trial, measurements)
            self.engine.measure(trial.number, measurements)
            self.engine.put(trial)
        self.trial_leases.drop(trial.number)

    def decide(self, met: Met) -> None:
        """Store a parameter that a trial has met, with the space that has it."""
        with self.changing():
            new = None if met.study is self.engine.study else met.study
            self.store.decide(self.lease, met.trial, new, joining=met.joining)
            self.engine.decide(met)

    def explain(self, succeeded: Trial) -> None:
        """Store the conditions of a define-by-run study if the trial contradicts them."""
        study = self.engine.explained(succeeded)
        if study is not self.engine.study:
            with self.changing():
                self.store.update_study(self.lease, study)
                self.engine.update_study(study)

    def reopen(self, trials: Sequence[Trial]) -> None:
        """Let failed trials run again."""
        with self.changing():
            self.store.reopen_trials(self.lease, [trial.number for trial in trials])
            self.engine.reopen([trial.reopened() for trial in trials])

    def relabel(self, trial: Trial) -> None:
        """Store the labels of a trial."""
        with self.changing():
            self.store.relabel_trial(self.lease, trial.number, trial.labels)
            self.engine.put(trial)

    def expect_more(self) -> None:
        """Prepare the next proposal after the `with` block: a client can run another trial."""
        self._session.wanted = not self.engine.is_prepared

    def given(self, *, own: bool) -> None:
        """Record that trials were handed out.

        `own`: their points come from the study's sampler,
        which would propose the same points again.
        """
        if own:
            self.next_point.drop()
        if self.next_point.is_used and self.next_point.wants_prefetch(self.engine):
            self.expect_more()

    def warm_up(self) -> None:
        """Load in the background, once per process, what the first model-based proposal needs."""
        search = registry.search_of(self.engine.study.spec.algorithm)
        if search not in self._sessions.warm:
            self._sessions.warm.add(search)
            threads.started(self.engine.warm_up, "warm-up", daemon=False)


class StudySessions:
    """The open studies of this process.

    A thread, started by the first call, closes studies that had no call for `idle_s` seconds.
    """

    def __init__(
        self, store: StudyStore, *, address: str, clock: AwakeClock, idle_s: float = IDLE_S
    ) -> None:
        """Take ownership of `clock`, which close() closes."""
        self.store = store
        self._record = StudyReader(store).record
        self._address = address
        self._idle_s = idle_s
        self._sessions: dict[StudyName, _Session] = {}  # least recently used first
        self._sessions_lock = threading.Lock()
        self._prefetcher = Prefetcher(self._prepare)
        # A worker process computes these, so do it on a busy machine, too.
        self._worker_prefetcher = Prefetcher(
            self._prefetch_in_worker, after_s=WORKER_PREFETCH_AFTER_S, late_s=math.inf
        )
        self.computations = Computations()
        self.workers = Workers()
        self.warm: set[tuple[str, str]] = set()  # the searches whose modules are loaded
        self._points_given: Counter[str] = Counter()
        self._points_lock = threading.Lock()
        self.clock = clock
        self._closing = threading.Event()
        self._closer: threading.Thread | None = None

    @contextmanager
    def writing(self, name: StudyName) -> Iterator[Writer]:
        """Give the caller exclusive access to the study.

        Raises:
            NotFound: the study does not exist.
            NotOwner: another process writes the study.
        """
        with self._locked_session(name) as session:
            lease = self._lease(session)
            loaded: Sequence[Trial] | None = None
            if session.engine is None:
                session.engine, loaded = self._loaded(session)
            yield Writer(lease, session.engine, self, session, loaded)
            if session.wanted:
                session.wanted = False
                prefetcher = (
                    self._worker_prefetcher if session.next_point.is_used else self._prefetcher
                )
                prefetcher.later(name)

    @contextmanager
    def proposing(self, name: StudyName) -> Iterator[None]:
        """Let only this caller propose trials of the study.

        Other calls may still use `writing` meanwhile.
        """
        late = Unavailable(f"{name} is busy with other calls; try again")
        with self._pinned(name) as session, locked(session.proposing, late=late):
            yield

    @contextmanager
    def deleting(self, name: StudyName) -> Iterator[Lease]:
        """Give the caller the lease to delete the study.

        Works even if no engine can be built for the study.
        """
        with self._locked_session(name) as session:
            yield self._lease(session)
            session.lease = session.engine = None
            session.trial_leases = TrialLeases(self.clock)
            session.next_point.forget()

    def close(self) -> None:
        """Release every study."""
        self._closing.set()
        if self._closer is not None:
            self._closer.join()
        self.workers.close()
        self._worker_prefetcher.close()
        self.computations.close()
        self._prefetcher.close()
        self.clock.close()
        for session in list(self._sessions.values()):
            with session.lock:
                self._leave(session, "study_given_back")

    def in_memory(self) -> tuple[int, int]:
        """Return the number of studies in memory and the number of their trials."""
        engines = [
            engine
            for session in list(self._sessions.values())
            if (engine := session.engine) is not None
        ]
        return len(engines), sum(engine.size for engine in engines)

    def points_given(self) -> Counter[str]:
        """Return how many requests for one trial got each kind of point.

        Counts studies that use worker processes.
        """
        with self._points_lock:
            return self._points_given.copy()

    def count_point(self, kind: str) -> None:
        with self._points_lock:
            self._points_given[kind] += 1

    def with_expiry(self, name: StudyName, trials: list[Trial]) -> list[Trial]:
        """Return the trials with the times at which their leases expire.

        The times stay unset for a study that another process writes.
        """
        session = self._sessions.get(name)
        leases = None if session is None or session.lease is None else session.trial_leases
        if not leases:
            return trials
        now = datetime.now(UTC)
        found = []
        for trial in trials:
            if trial.state is TrialState.RUNNING:
                left_s = leases.left_s(trial.number)
                if left_s is not None:
                    trial = replace(trial, lease_expire_time=now + timedelta(seconds=left_s))
            found.append(trial)
        return found

    def _prefetch_in_worker(self, name: StudyName) -> None:
        session = self._sessions.get(name)
        if session is not None:
            self.computations.later(session)

    def _prepare(self, name: StudyName) -> None:
        session = self._sessions.get(name)
        if session is None or not session.lock.acquire(blocking=False):
            return  # the call that holds the lock schedules the next preparation
        try:
            engine = session.engine
            if (
                engine is not None
                and session.cost.is_low
                and not session.next_point.is_computing(engine)
            ):
                draft = session.prepare(engine)
                if draft is not None:
                    self.computations.begin(session, engine, draft)
        finally:
            session.lock.release()

    @contextmanager
    def _locked_session(self, name: StudyName) -> Iterator[_Session]:
        late = Unavailable(f"{name} is busy with other calls; try again")
        with self._pinned(name) as session, locked(session.lock, late=late):
            try:
                yield session
            except NotOwner as e:
                self._leave(session, "study_lost")
                if e.address:
                    raise
                raise self._lost(name) from e

    @contextmanager
    def _pinned(self, name: StudyName) -> Iterator[_Session]:
        """Yield the study's session, which is not closed meanwhile."""
        if name not in self._sessions:
            self._record(name)  # raises for an unknown name, which must take no memory
            self._make_room()
        with self._sessions_lock:
            session = self._sessions.pop(name, None) or _Session(name, TrialLeases(self.clock))
            self._sessions[name] = session
            session.pins += 1
        try:
            yield session
        finally:
            self._unpin(session)

    def _unpin(self, session: _Session) -> None:
        with self._sessions_lock:
            session.pins -= 1
            session.used = time.monotonic()
            if session.lease is None and not session.pins:
                # the study was closed or deleted, or could not be taken
                del self._sessions[session.name]

    def _lease(self, session: _Session) -> Lease:
        if (
            session.lease is not None
            and not session.doubtful
            and not self.store.still_held(session.lease)
        ):
            self._leave(session, "study_lost")
        if session.lease is None or session.doubtful:
            uid = self._record(session.name).study.uid
            session.lease = self._taken(session.name, uid)
            session.doubtful = False
            events.log_event("study_taken", study=session.name, uid=uid, epoch=session.lease.epoch)
        return session.lease

    def _taken(self, name: StudyName, uid: str) -> Lease:
        while True:
            try:
                return self.store.take(name, uid=uid, address=self._address)
            except TooManyOpenFiles:
                if not self._close_some(1):
                    raise

    # Closing idle studies

    def _make_room(self) -> None:
        """Close studies if there is no room for one more."""
        with self._sessions_lock:
            if self._closer is None and not self._closing.is_set():
                self._closer = threads.started(self._keep_closing, "idle-studies")
            too_many = len(self._sessions) + 1 - most_open()
        if too_many > 0:
            self._close_some(too_many)

    def _keep_closing(self) -> None:
        while not self._closing.wait(self._idle_s / 4):
            try:
                self._close_some(len(self._sessions), unused_since=time.monotonic() - self._idle_s)
            except Exception:  # continue: without this thread no study would ever be closed
                log.exception("idle studies cannot be closed; trying again")

    def _close_some(self, count: int, *, unused_since: float = math.inf) -> int:
        """Close at most `count` unused studies and return how many were closed.

        The least recently used ones are closed first.

        Trial leases begin again with their full duration when a study is opened again, so a study
        with trial leases is closed only to make room, not because it is idle.
        """
        to_make_room = unused_since == math.inf
        closed = 0
        for session in list(self._sessions.values()):
            if closed >= count:
                break
            if session.trial_leases and not to_make_room:
                continue
            if (
                not session.pins
                and session.used <= unused_since
                and session.lock.acquire(blocking=False)
            ):
                try:
                    closed += self._closed(session)
                finally:
                    session.lock.release()
        return closed

    def _closed(self, session: _Session) -> bool:
        """Close the study; the caller holds its lock.

        A call that arrives meanwhile waits and takes the study again.
        """
        with self._sessions_lock:
            if session.pins or session.lease is None:
                return False
            # Otherwise a call that gives up waiting would drop the session, and the next call would
            # open another one with the lease that is released here.
            session.pins += 1
        try:
            self._leave(session, "study_closed")
        finally:
            self._unpin(session)
        return True

    def _loaded(self, session: _Session) -> tuple[Engine, Sequence[Trial]]:
        """Return an engine of the stored study, and the study's trials.

        Raises FailedPrecondition for a study of an algorithm that only another version has.
        """
        name = session.name
        contents = self.store.contents(name)
        leased = [t for t in contents.trials if t.lease_s is not None and not t.finished]
        session.trial_leases.load(leased)
        source = _StoredTrials(self.store, name, contents.study.spec.objective.metric)
        trials = contents.trials
        try:
            engine = Engine(
                contents.study, trials, contents.measurements, source=source, workers=self.workers
            )
        except FailedPrecondition as error:
            raise FailedPrecondition(f"{name}: {error}") from error
        return engine, trials

    def _lost(self, name: StudyName) -> TunerError:
        """Return the error for a study that this process no longer owns.

        Raises NotFound if the study is gone.
        """
        study = self._record(name).study
        if study.owner_address in ("", self._address):
            return Unavailable(f"{name} is moving to another server; try again")
        return NotOwner(
            f"{name} was taken over by {study.owner_address}; send it there",
            address=study.owner_address,
        )

    def _leave(self, session: _Session, event: str) -> None:
        lease, session.lease, session.engine, session.doubtful = session.lease, None, None, False
        session.trial_leases = TrialLeases(self.clock)
        session.next_point.forget()
        if lease is not None:
            self.store.release(lease)
            events.log_event(event, study=session.name, uid=lease.uid, epoch=lease.epoch)
