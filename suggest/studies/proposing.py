"""How a SuggestTrials comes to its proposals: in steps under the study's lock, between which it waits without it.

One new trial gets the study's next point, by the rule of `next_point`. Several trials at once, or trials that a person
has decided in part, are computed for this call, in its thread and within its deadline, however long it takes: a
proposal that no longer fits the study is made again. Whoever uses this is the only one that proposes for the study.
"""

from __future__ import annotations

import time

from suggest import workers
from suggest.engine import Draft, Engine, Proposal
from suggest.space import Assignment
from suggest.studies.next_point import NextPoint, NextStep, choose
from suggest.studies.sessions import Writer

TRIES = 3  # after so many proposals that no longer fitted, the study's lock is kept for one


class Proposing:
    """Of one call. `step` needs the study's lock, `wait` must not have it."""

    def __init__(self) -> None:
        self._own: tuple[Engine, Draft] | None = None
        self._points: list[Assignment] | None = None
        self._tries = 0
        self._began: float | None = None  # to wait for the next point
        self._awaited: tuple[NextPoint, int, float] | None = None

    def step(self, writer: Writer, count: int, *, to_run: bool) -> Proposal | None:
        """None: call again after `wait`. to_run: see `Engine.propose`."""
        self._awaited = None
        if count == 1 and not to_run and not writer.engine.has_queued and self._own is None:
            return self._next_point(writer)
        return self._computed(writer, count, to_run=to_run)

    def wait(self) -> None:
        """Raises TimedOut, Unavailable, and what a computation raises."""
        if self._own is not None:
            _, draft = self._own
            self._points = draft.computation()
        elif self._awaited is not None:
            next_point, seen, within_s = self._awaited
            next_point.wait(seen, within_s)

    def _next_point(self, writer: Writer) -> Proposal | None:
        engine, next_point = writer.engine, writer.next_point
        if engine.prepared is not None:
            return engine.prepared
        if (error := next_point.take_error()) is not None:
            raise error
        waited_s = 0.0 if self._began is None else time.monotonic() - self._began
        situation = next_point.situation(engine, waited_s=waited_s)
        match choose(situation):
            case NextStep.GIVE:
                if self._began is not None:
                    workers.charge(next_point.ready_cpu_s)
                kind = "ready" if self._began is None else "outdated" if situation.missed else "fresh"
                writer.count_point(kind)
                self._began = None
                return next_point.ready(engine)
            case NextStep.CHEAPER:
                writer.count_point("cheaper")
                self._began = None
                return engine.propose_cheaper()
            case NextStep.WAIT:
                pass
        if not next_point.is_computing(engine):
            draft = engine.prepare()
            if draft is None:
                return engine.prepared
            writer.compute(draft)
        if self._began is None:
            self._began = time.monotonic()
        self._awaited = next_point, next_point.landings, situation.patience_s
        return None

    def _computed(self, writer: Writer, count: int, *, to_run: bool) -> Proposal | None:
        engine = writer.engine
        own, self._own = self._own, None
        draft: Draft | None = None
        if own is not None and self._points is not None:
            if own[0] is engine and engine.fits(own[1]):
                draft = own[1]
                draft.resume(self._points)
            else:
                self._tries += 1
        if draft is None:
            if self._tries >= TRIES:
                return engine.propose(count, to_run=to_run)
            draft = engine.draft(count, to_run=to_run)
        if draft.proposal is None:
            self._own, self._points = (engine, draft), None
        return draft.proposal
