"""Which studies this process writes: the lease and the engine of each, taken when first written to.

One writer of a study at a time; different studies do not wait for each other. An engine is a cache of the store: one
that may have run ahead of it is thrown away, and loaded again when next needed. What is written is not known here.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from suggest import courtesy, events
from suggest.ahead import Ahead
from suggest.curves import Curve, Report
from suggest.deadline import locked
from suggest.engine import Engine
from suggest.errors import LimitReached, NotFound, NotOwner, TunerError, Unavailable
from suggest.store.protocol import Lease, Store, StudyRecord
from suggest.study import StudyName
from suggest.trial import Trial, TrialState
from suggest.trial_leases import AwakeClock, TrialLeases

EVERY = 2**31 - 1  # measurements of a trial: all
WORTH_S = 0.02  # of a processor
LONG = 1000  # trials; fewer are looked through in no time


@dataclass(slots=True)
class _Seat:
    """A study's place in memory. Everything in it is touched under its lock only."""

    name: StudyName
    lock: threading.Lock = field(default_factory=threading.Lock)
    lease: Lease | None = None
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
            self._seat.engine = self._seat.lease = None
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
    def __init__(self, store: Store, *, address: str, clock: AwakeClock) -> None:
        """Closes the clock."""
        self._store = store
        self._address = address
        self._seats: dict[StudyName, _Seat] = {}
        self._seats_lock = threading.Lock()
        self._ahead = Ahead(self._prepare)
        self._clock = clock

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
        seat = self._seats[name]
        if not seat.lock.acquire(blocking=False):
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
        seat = self._seats.get(name)
        if seat is None:
            self.record(name)  # names that nobody created take no memory
            with self._seats_lock:
                # Never removed, even with its study: somebody may be waiting for its lock.
                seat = self._seats.setdefault(name, _Seat(name))
        with locked(seat.lock, late=Unavailable(f"{name} is busy with other calls; try again")):
            try:
                yield seat
            except NotOwner as e:
                self._leave(seat, "study_lost")
                if e.address:
                    raise
                raise self._lost(name) from e

    def _lease(self, seat: _Seat) -> Lease:
        if seat.lease is not None and not self._store.still_held(seat.lease):
            self._leave(seat, "study_lost")
        if seat.lease is None:
            uid = self.record(seat.name).study.uid
            seat.lease = self._store.take(seat.name, uid=uid, address=self._address)
            events.tell("study_taken", study=seat.name, uid=uid, epoch=seat.lease.epoch)
        return seat.lease

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
        lease, seat.lease, seat.engine = seat.lease, None, None
        seat.trial_leases = TrialLeases()
        if lease is not None:
            self._store.release(lease)
            events.tell(event, study=seat.name, uid=lease.uid, epoch=lease.epoch)
