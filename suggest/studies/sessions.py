"""Which studies this process writes: the lease and the engine of each, taken when first written to.

One writer of a study at a time; different studies do not wait for each other. An engine is a cache of the store: one
that may have run ahead of it is thrown away, and loaded again when next needed. So is one that nobody has called for a
while, or that is the least recently used of too many: each lease on SQLite takes a file descriptor, each engine memory.
What is written is not known here.
"""

from __future__ import annotations

import gc
import logging
import math
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from suggest import courtesy, events
from suggest.curves import Curve, Report
from suggest.deadline import locked
from suggest.engine import Engine
from suggest.errors import LimitReached, NotFound, NotOwner, OutOfFiles, TunerError, Unavailable
from suggest.storage.store import Lease, Store, StudyRecord
from suggest.studies.prefetch import Ahead
from suggest.studies.trial_leases import AwakeClock, TrialLeases
from suggest.study import StudyName
from suggest.trial import Trial, TrialState

log = logging.getLogger(__name__)

EVERY = 2**31 - 1  # measurements of a trial: all
WORTH_S = 0.02  # of a processor
LONG = 1000  # trials; fewer are looked through in no time
IDLE_S = 300.0  # without a call, after which a study is closed
MOST_OPEN = 4096  # studies, whatever the limit of file descriptors
LEAST_OPEN = 8


def most_open() -> int:
    """How many studies may be open: half of the file descriptors are left to connections."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if limit == resource.RLIM_INFINITY else max(LEAST_OPEN, min(MOST_OPEN, limit // 2))


@dataclass(slots=True)
class _Seat:
    """A study's place in memory. What is below the lock is touched under it only, what is above by `Seats` alone."""

    name: StudyName
    pins: int = 0  # calls that have it, or wait for it
    used: float = 0.0  # monotonic: when the last call went
    lock: threading.Lock = field(default_factory=threading.Lock)
    lease: Lease | None = None
    doubtful: bool = False  # the lease: a write failed that may still come to pass
    engine: Engine | None = None
    warm: bool = False
    wanted: bool = False  # a further proposal is, soon
    trial_leases: TrialLeases = field(default_factory=TrialLeases)
    prepares: bool = True  # its proposals are quick enough to be made on the chance that they are wanted


@dataclass(frozen=True, slots=True)
class _Stored:
    """A study's finished trials, told again by the store, which has them before any engine."""

    store: Store
    name: StudyName
    metric: str

    def trial(self, number: int) -> Trial | None:
        return self.store.trial(self.name, number)

    def trials(self) -> Sequence[Trial]:
        return self.store.contents(self.name).trials

    def report(self, number: int) -> Report:
        report = Report()
        report.add_all(m for _, _, m in self.store.measurements(self.name, number, after=0, limit=EVERY))
        return report

    def curves(self) -> Iterator[Curve]:
        return self.store.curves(self.name, self.metric)


@dataclass(frozen=True, slots=True)
class Writer:
    """The study is the caller's alone until the `with` ends."""

    lease: Lease
    engine: Engine
    _clock: AwakeClock
    _seat: _Seat

    def hold(self, trial: Trial) -> None:
        """Its lease, if it has one, begins now."""
        if trial.lease_s is not None or self._seat.trial_leases:
            self._seat.trial_leases.hold(trial, self._clock.now_s())

    def renew(self, number: int) -> None:
        if self._seat.trial_leases:
            self._seat.trial_leases.renew(number, self._clock.now_s())

    def drop(self, number: int) -> None:
        """The trial runs no more."""
        self._seat.trial_leases.drop(number)

    def expired(self) -> list[int]:
        """Numbers of running trials whose lease is over; it is forgotten here."""
        return self._seat.trial_leases.expired(self._clock.now_s()) if self._seat.trial_leases else []

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Around what changes store and engine: should it fail half-way, the engine is loaded anew."""
        try:
            yield
        except LimitReached:
            raise  # nothing was sent
        except NotOwner:
            self._seat.engine = None
            raise
        except BaseException:
            # What the store was sent may still come to pass, if only the reply was lost: a new lease shuts it out
            # before the engine is loaded.
            self._seat.engine = None
            self._seat.doubtful = True
            raise

    def forget_engine(self) -> None:
        """The store has changed in a way that this engine cannot follow."""
        self._seat.engine = None

    def expect_more(self) -> None:
        """Somebody has room for a further trial: the next proposal is made as soon as this is done."""
        self._seat.wanted = not self.engine.is_prepared

    def warm_up(self) -> None:
        """Load in the background, once, what the algorithm will need when it is first asked in earnest."""
        if not self._seat.warm:
            self._seat.warm = True
            threading.Thread(target=self.engine.warm_up, name="warm-up").start()


class Seats:
    """`idle_s`: after so long without a call a study is closed; from its first call on a thread sees to that."""

    def __init__(self, store: Store, *, address: str, clock: AwakeClock, idle_s: float = IDLE_S) -> None:
        """Closes the clock."""
        self._store = store
        self._address = address
        self._idle_s = idle_s
        self._seats: dict[StudyName, _Seat] = {}  # the least recently used first
        self._seats_lock = threading.Lock()
        self._ahead = Ahead(self._prepare)
        self._clock = clock
        self._closing = threading.Event()
        self._closer: threading.Thread | None = None

    @contextmanager
    def writing(self, name: StudyName) -> Iterator[Writer]:
        """Raises NotFound, NotOwner."""
        with self._seated(name) as seat:
            lease = self._lease(seat)
            if seat.engine is None:
                seat.engine = self._loaded(seat)
                if seat.engine.size >= LONG:
                    # What is left now stays: to look through all long studies for garbage, again and again, would each
                    # time stop every call for a tenth of a second.
                    gc.collect()
                    gc.freeze()
            yield Writer(lease, seat.engine, self._clock, seat)
            if seat.wanted:
                seat.wanted = False
                self._ahead.later(name)

    @contextmanager
    def deleting(self, name: StudyName) -> Iterator[Lease]:
        """For a study that is gone at the end: needs no engine, and works where none can be made."""
        with self._seated(name) as seat:
            yield self._lease(seat)
            seat.lease = seat.engine = None
            seat.trial_leases = TrialLeases()

    def close(self) -> None:
        """Give back every study."""
        self._closing.set()
        if self._closer is not None:
            self._closer.join()
        self._ahead.close()
        self._clock.close()
        for seat in list(self._seats.values()):
            with seat.lock:
                self._leave(seat, "study_given_back")

    def in_memory(self) -> tuple[int, int]:
        """Studies held in memory, and their trials: how many there were just now."""
        engines = [engine for seat in list(self._seats.values()) if (engine := seat.engine) is not None]
        return len(engines), sum(engine.size for engine in engines)

    def with_expiry(self, name: StudyName, trials: list[Trial]) -> list[Trial]:
        """The same, with the times at which their leases expire; those of a study that others write have none."""
        seat = self._seats.get(name)
        leases = None if seat is None or seat.lease is None else seat.trial_leases
        if not leases:
            return trials
        now_s, now = self._clock.now_s(), datetime.now(UTC)
        left_s = {t.number: leases.left_s(t.number, now_s) for t in trials if t.state is TrialState.RUNNING}
        return [
            trial if (left := left_s.get(trial.number)) is None
            else replace(trial, lease_expire_time=now + timedelta(seconds=left))
            for trial in trials
        ]  # fmt: skip

    def record(self, name: StudyName) -> StudyRecord:
        """What the store has; needs no seat."""
        record = self._store.study(name)
        if record is None:
            raise NotFound(f"{name} does not exist")
        return record

    def _prepare(self, name: StudyName) -> None:
        seat = self._seats.get(name)
        if seat is None or not seat.lock.acquire(blocking=False):
            return  # whoever has it asks for a trial himself, or ends another and comes by here
        try:
            if seat.engine is not None and seat.prepares:
                began = time.thread_time()
                with courtesy.long_work():
                    seat.engine.prepare()
                seat.prepares = time.thread_time() - began < WORTH_S
        finally:
            seat.lock.release()

    @contextmanager
    def _seated(self, name: StudyName) -> Iterator[_Seat]:
        seat = self._pin(name)
        try:
            with locked(seat.lock, late=Unavailable(f"{name} is busy with other calls; try again")):
                try:
                    yield seat
                except NotOwner as e:
                    self._leave(seat, "study_lost")
                    if e.address:
                        raise
                    raise self._lost(name) from e
        finally:
            self._unpin(seat)

    def _pin(self, name: StudyName) -> _Seat:
        """Its seat, which stays where it is until `_unpin`."""
        if name not in self._seats:
            self.record(name)  # names that nobody created take no memory
            self._make_room()
        with self._seats_lock:
            seat = self._seats.pop(name, None) or _Seat(name)
            self._seats[name] = seat
            seat.pins += 1
        return seat

    def _unpin(self, seat: _Seat) -> None:
        with self._seats_lock:
            seat.pins -= 1
            seat.used = time.monotonic()
            if seat.lease is None and not seat.pins:
                del self._seats[seat.name]  # it was deleted, or could not be taken

    def _lease(self, seat: _Seat) -> Lease:
        if seat.lease is not None and not seat.doubtful and not self._store.still_held(seat.lease):
            self._leave(seat, "study_lost")
        if seat.lease is None or seat.doubtful:
            uid = self.record(seat.name).study.uid
            seat.lease = self._taken(seat.name, uid)
            seat.doubtful = False
            events.tell("study_taken", study=seat.name, uid=uid, epoch=seat.lease.epoch)
        return seat.lease

    def _taken(self, name: StudyName, uid: str) -> Lease:
        while True:
            try:
                return self._store.take(name, uid=uid, address=self._address)
            except OutOfFiles:
                if not self._close_some(1):
                    raise

    # Closing what is idle

    def _make_room(self) -> None:
        """For one more study."""
        with self._seats_lock:
            if self._closer is None and not self._closing.is_set():
                self._closer = threading.Thread(target=self._keep_closing, name="idle-studies", daemon=True)
                self._closer.start()
            too_many = len(self._seats) + 1 - most_open()
        if too_many > 0:
            self._close_some(too_many)

    def _keep_closing(self) -> None:
        while not self._closing.wait(self._idle_s / 4):
            try:
                self._close_some(len(self._seats), unused_since=time.monotonic() - self._idle_s)
            except Exception:  # the next time may be better; without this thread nothing is ever closed
                log.exception("idle studies cannot be closed; trying again")

    def _close_some(self, count: int, *, unused_since: float = math.inf) -> int:
        """Close at most `count` unused studies, the least recently used first, and return how many were closed.

        Leases of trials begin again with their full length when a study is opened again, so a study that has some is
        closed to make room only, not for its idle time.
        """
        to_make_room = unused_since == math.inf
        closed = 0
        for seat in list(self._seats.values()):
            if closed >= count:
                break
            if seat.trial_leases and not to_make_room:
                continue
            if not seat.pins and seat.used <= unused_since and seat.lock.acquire(blocking=False):
                try:
                    closed += self._closed(seat)
                finally:
                    seat.lock.release()
        return closed

    def _closed(self, seat: _Seat) -> bool:
        """Under its lock. A call that comes meanwhile waits for that, and takes the study again."""
        if seat.pins or seat.lease is None:
            return False
        self._leave(seat, "study_closed")
        with self._seats_lock:
            if not seat.pins:
                self._seats.pop(seat.name, None)
        return True

    def _loaded(self, seat: _Seat) -> Engine:
        name = seat.name
        contents = self._store.contents(name)
        leased = [t for t in contents.trials if t.lease_s is not None and not t.finished]
        if leased or seat.trial_leases:
            seat.trial_leases.load(leased, self._clock.now_s())
        source = _Stored(self._store, name, contents.study.spec.objective.metric)
        return Engine(contents.study, contents.trials, contents.measurements, source=source)

    def _lost(self, name: StudyName) -> TunerError:
        """What to say of a study that turned out to be ours no longer. Raises NotFound: it is gone."""
        study = self.record(name).study
        if study.owner_address in ("", self._address):
            return Unavailable(f"{name} is changing hands; try again")
        return NotOwner(f"{name} was taken over by {study.owner_address}; send it there", address=study.owner_address)

    def _leave(self, seat: _Seat, event: str) -> None:
        lease, seat.lease, seat.engine, seat.doubtful = seat.lease, None, None, False
        seat.trial_leases = TrialLeases()
        if lease is not None:
            self._store.release(lease)
            events.tell(event, study=seat.name, uid=lease.uid, epoch=lease.epoch)
