"""Prefetch the next point of a study whose sampler uses worker processes.

`choose` and `should_prefetch` are pure functions that decide. `NextPoint` is the state of one
study: the point that is ready, and the computation in progress. `Computations` runs computations in
threads, which hold the study's lock only before and after. A point is computed from the trials that
exist when the computation begins. It may be handed out after further trials have ended, but never
for another space, and never after another point from the same trials.
"""

from __future__ import annotations

import enum
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from suggest import deadline
from suggest.engine import Draft, Engine, Proposal
from suggest.errors import TunerError, Unavailable
from suggest.workers import thread_cpu_s

FRESH_S = 0.05  # how long a call waits for a point that is computed from all results
MAX_STALE_RESULTS = 1  # results that a point may lack when several trials run
THREADS = 8  # concurrent computations; most wait for one of the worker processes
# interval at which a waiting call checks whether its deadline has passed or the server stops
_LOOK_S = 0.05

T = TypeVar("T")
log = logging.getLogger(__name__)


# Decisions


class NextStep(enum.Enum):
    GIVE = "give the point that is ready"
    WAIT = "wait for a fresh one"
    CHEAPER = "give a point of the cheaper sampler"


@dataclass(frozen=True, slots=True)
class Situation:
    """The situation of a study when a client asks for one trial.

    `missed` is the number of results that the ready point does not include, None if no point is
    ready. `running` is the number of running trials. `slow`: the last computation took longer than
    FRESH_S. `repeatable`: the study's spec has a seed.
    """

    missed: int | None
    running: int
    slow: bool
    repeatable: bool
    has_cheaper: bool
    waited_s: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Trials run one at a time with a seed.

        The points must be the same in each run, however long they take.
        """
        return self.repeatable and not self.running

    @property
    def is_good(self) -> bool:
        """The ready point is as good as a fresh one, or a fresh one would take too long."""
        if self.missed is None:
            return False
        may_be_stale = not self.is_exact and (self.running or self.slow)
        return self.missed <= (MAX_STALE_RESULTS if may_be_stale else 0)

    @property
    def patience_s(self) -> float:
        """How much longer to wait for a fresh point, in seconds."""
        if self.is_exact or (self.missed is None and not self.has_cheaper):
            return math.inf
        return FRESH_S - self.waited_s


def choose(now: Situation) -> NextStep:
    """Give a good point at once, else a fresh one within FRESH_S.

    Else give the ready one, else a cheaper one.
    """
    if now.is_good:
        return NextStep.GIVE
    if now.patience_s > 0:
        return NextStep.WAIT
    return NextStep.CHEAPER if now.missed is None else NextStep.GIVE


def should_prefetch(now: Situation) -> bool:
    """Return whether to compute the next point early: as soon as one is handed out.

    Otherwise it is computed when the next trial ends.

    `now.running` includes the trial that was just handed out. If it is the only one, the next point
    should be computed from its result.
    """
    return now.running > 1 or (now.slow and not now.repeatable)


# State of a study


@dataclass(frozen=True, slots=True)
class _Ready:
    engine: Engine
    draft: Draft
    number: int
    cpu_s: float


@dataclass(slots=True)
class NextPoint:
    """The ready point and the running computation of one study.

    All methods but `wait` need the study's lock.
    """

    _ready: _Ready | None = None
    _computing: tuple[Engine, Draft] | None = None
    # the running computation does not include a point that was handed out since
    _void: bool = False
    _again: bool = False  # start another computation as soon as this one ends
    _error: Exception | None = None
    _took_s: float | None = None  # duration of the last computation
    _waiting: int = 0
    _wakeups: int = 0
    _wakeup: threading.Condition = field(default_factory=threading.Condition)

    @property
    def is_used(self) -> bool:
        """A worker process has computed, or is computing, a point of this study."""
        return self._took_s is not None or self._computing is not None

    def situation(self, engine: Engine, *, waited_s: float = 0.0) -> Situation:
        draft = self.ready(engine)
        return Situation(
            missed=None
            if draft is None or self._ready is None
            else engine.results - self._ready.draft.results,
            running=engine.running,
            slow=self._took_s is not None and self._took_s > FRESH_S,
            repeatable=engine.is_repeatable,
            has_cheaper=engine.has_cheaper,
            waited_s=waited_s,
        )

    def wants_prefetch(self, engine: Engine) -> bool:
        return should_prefetch(self.situation(engine))

    def ready(self, engine: Engine) -> Proposal | None:
        """Return the ready point if it can still be handed out."""
        ready = self._ready
        if ready is None or ready.engine is not engine or ready.number != engine.next_number:
            return None
        renumbered = engine.renumbered(ready.draft)
        if (
            renumbered is not None
            and renumbered.exhausted
            and ready.draft.results != engine.results
        ):
            return None  # a trial that was cancelled since then has freed its point
        return renumbered

    @property
    def ready_cpu_s(self) -> float:
        return 0.0 if self._ready is None else self._ready.cpu_s

    def is_computing(self, engine: Engine) -> bool:
        """Return whether a point for this engine and its space is being computed.

        If that point will be of no use, another computation follows it.
        """
        if (
            self._computing is None
            or self._computing[0] is not engine
            or not engine.is_basis_of(self._computing[1])
        ):
            return False
        self._again = self._again or self._void
        return True

    def begun(self, engine: Engine, draft: Draft) -> None:
        """Record that a computation has begun; the result of an earlier one will be dropped."""
        self._computing = engine, draft
        self._void = self._again = False

    def is_current(self, draft: Draft) -> bool:
        return self._computing is not None and self._computing[1] is draft

    def ended(
        self,
        draft: Draft,
        current: Engine | None,
        *,
        took_s: float,
        cpu_s: float,
        error: Exception | None,
    ) -> bool:
        """Record the end of a computation; `current` is the study's present engine.

        Returns whether another computation should begin at once.
        """
        if not self.is_current(draft):
            return False
        assert self._computing is not None
        engine, _ = self._computing
        self._computing = None
        self._took_s = took_s
        void, again = self._void, self._again
        if current is engine and not void:
            self._error = error
            if error is None and engine.renumbered(draft) is not None:
                self._ready = _Ready(engine, draft, engine.next_number, cpu_s)
        self._wake()
        return current is engine and void and again

    def drop(self) -> None:
        """Drop the ready point and void the running computation.

        Neither includes a point that was handed out.
        """
        self._ready = None
        self._void = self._computing is not None

    def forget(self) -> None:
        """Drop everything as the study was closed, and wake the calls that wait for a point."""
        self._ready = self._computing = self._error = None
        self._wake()

    def _wake(self) -> None:
        with self._wakeup:
            self._wakeups += 1
            self._wakeup.notify_all()

    def take_error(self) -> Exception | None:
        """Return the error of the last computation once, to the call that waits or the next one."""
        error, self._error = self._error, None
        return error

    @property
    def wakeups(self) -> int:
        return self._wakeups

    @property
    def is_awaited(self) -> bool:
        return self._waiting > 0

    def wait(self, seen: int, within_s: float) -> None:
        """Wait until `wakeups` is no longer `seen`, or for `within_s`.

        Call this without the study's lock.

        Raises:
            TimedOut: the call's deadline has passed.
            Unavailable: the server is stopping.
        """
        end = time.monotonic() + within_s
        with self._wakeup:
            self._waiting += 1
            try:
                while self._wakeups == seen and (left_s := end - time.monotonic()) > 0:
                    deadline.check()
                    self._wakeup.wait(min(_LOOK_S, left_s))
            finally:
                self._waiting -= 1


# Computations


class ComputingStudy(Protocol):
    """The part of an open study that a computation needs.

    The engine is None once the study is closed.
    """

    lock: threading.Lock
    engine: Engine | None
    next_point: NextPoint


class Computations:
    """Computes points of all studies in a thread pool, from the first computation until close()."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="computation")
        self._queued = 0  # computations that no thread has begun
        self._queued_lock = threading.Lock()

    def begin(self, study: ComputingStudy, engine: Engine, draft: Draft) -> None:
        """Begin a computation. The caller holds the study's lock.

        Raises:
            Unavailable: the server is stopping.
        """
        try:
            if not study.next_point.is_used and engine.has_cheaper:
                self._submit(engine.warm_up_cheaper)
            self._submit(partial(self._compute, study, engine, draft))
        except RuntimeError as error:  # the pool is closed, or the system cannot start a thread
            raise Unavailable(
                "this server computes no more points; send the request again"
            ) from error
        study.next_point.begun(engine, draft)

    def later(self, study: ComputingStudy) -> None:
        """Schedule a computation for the study, unless the queue is full.

        The caller may hold the study's lock.

        The computation does not begin if the study has no need for a point by then.
        """
        if self._queued >= THREADS:
            return
        try:
            self._submit(partial(self._prepare, study))
        except RuntimeError:
            log.debug("no point is computed ahead of need: there is no thread")

    def _submit(self, work: Callable[[], None]) -> None:
        def begun() -> None:
            with self._queued_lock:
                self._queued -= 1
            work()

        with self._queued_lock:
            self._pool.submit(begun)
            self._queued += 1

    def close(self) -> None:
        """Close the pool.

        Close the worker processes first, which ends the computations in progress.
        """
        self._pool.shutdown(cancel_futures=True)

    def _prepare(self, study: ComputingStudy) -> None:
        next_point = study.next_point
        with study.lock:
            engine = study.engine
            if (
                engine is None
                or next_point.is_computing(engine)
                or next_point.situation(engine).is_good
            ):
                return
            draft = self._draft(engine)
            if draft is None:
                return
            next_point.begun(engine, draft)
        self._compute(study, engine, draft)

    def _compute(self, study: ComputingStudy, engine: Engine, draft: Draft) -> None:
        following: Draft | None = draft
        while following is not None:
            following = self._computed(study, engine, following)

    def _computed(self, study: ComputingStudy, engine: Engine, draft: Draft) -> Draft | None:
        """Compute a point. Return the draft to compute next if one is wanted at once."""
        next_point = study.next_point
        began, cpu_began = time.monotonic(), thread_cpu_s()
        while True:
            points, error = _attempted(draft.computation)
            with study.lock:
                if points is not None and study.engine is engine and next_point.is_current(draft):
                    error = _attempted(partial(draft.resume, points))[1]
                    if error is None and draft.proposal is None:
                        continue
                if error is not None and not next_point.is_awaited:
                    _log_error(engine, error)
                took_s, cpu_s = time.monotonic() - began, thread_cpu_s() - cpu_began
                if not next_point.ended(
                    draft, study.engine, took_s=took_s, cpu_s=cpu_s, error=error
                ):
                    return None
                following = self._draft(engine)
                if following is not None:
                    next_point.begun(engine, following)
                return following

    def _draft(self, engine: Engine) -> Draft | None:
        draft, error = _attempted(engine.prepare)
        if error is not None:  # the call that asks for the point gets the same error
            _log_error(engine, error)
        return draft


def _attempted(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:  # the call that waits for the point raises it
        return None, error


def _log_error(engine: Engine, error: Exception) -> None:
    # the computation takes too much time or memory, or the server is stopping
    if isinstance(error, TunerError):
        log.info("study=%s: the next point was not computed: %s", engine.study.name, error)
    else:
        log.error("study=%s: the next point was not computed", engine.study.name, exc_info=error)
