"""Proposals for one SuggestTrials call, made in steps under the study's lock; between steps the
call waits without it.

A request for one new trial gets the study's next point, by the rules of `next_point`. Several
trials at once, or trials whose parameters a person has set in part, are computed for this call, in
the call's thread and within its deadline. What a model computes comes in portions, so that a call
whose time is up has the trials that were computed until then. A proposal that no longer fits the
study is computed again. Only one call at a time may propose for a study. `SuggestionBatch` hands
out what is proposed until there are enough trials.
"""

from __future__ import annotations

import math
import time

from suggest import deadline, workers
from suggest.engine import Draft, Engine, Proposal
from suggest.space import Assignment
from suggest.studies.dispatch import Dispatch
from suggest.studies.next_point import NextPoint, NextStep, choose
from suggest.studies.sessions import Writer
from suggest.trial import Trial

PORTIONS = (8, 16, 32, 64)  # trials of one computation after the other; with gp some 30 ms each
# proposals per request; each but the last may contain known points, the last has only points to run
MAX_ROUNDS = 8
# after this many proposals that no longer fit the study, compute one while holding the study's lock
TRIES = 3


class Proposing:
    """The proposals of one call. Call `step` with the study's lock and `wait` without it."""

    def __init__(self) -> None:
        self._own: tuple[Engine, Draft] | None = None
        self._points: list[Assignment] | None = None
        self._tries = 0
        self._began: float | None = None  # when the wait for the next point began
        self._awaited: tuple[NextPoint, int, float] | None = None
        self._drafted = 0.0
        self._portions = 0
        self.asked = 0  # trials of the last proposal, which has fewer only if there are no more
        self.took_s = 0.0  # to compute it

    def step(self, writer: Writer, count: int, *, to_run: bool) -> Proposal | None:
        """Return a proposal, or None to be called again after `wait`.

        For `to_run` see `Engine.propose`.

        A proposal that takes a computation is for the trials of one portion.
        """
        self._awaited = None
        if count == 1 and not to_run and not writer.engine.has_queued and self._own is None:
            self.asked = 1
            return self._next_point(writer)
        return self._computed(writer, count, to_run=to_run)

    def wait(self) -> None:
        """Wait until it is worth calling `step` again.

        Raises TimedOut, Unavailable, and errors of the computation.
        """
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
                if self._began is None:
                    writer.count_point("ready")
                else:
                    workers.charge(next_point.ready_cpu_s)
                    writer.count_point("outdated" if situation.missed else "fresh")
                self._began = None
                return next_point.ready(engine)
            case NextStep.CHEAPER:
                writer.count_point("cheaper")
                self._began = None
                return engine.propose_cheaper()
            case NextStep.WAIT:
                pass
        if not next_point.is_computing(engine):
            draft = writer.prepare()
            if draft is None:
                return engine.prepared
            writer.compute(draft)
        if self._began is None:
            self._began = time.monotonic()
        self._awaited = next_point, next_point.wakeups, situation.patience_s
        return None

    def _computed(self, writer: Writer, count: int, *, to_run: bool) -> Proposal | None:
        engine = writer.engine
        computed, self._own = self._own, None
        draft: Draft | None = None
        if computed is not None and self._points is not None:
            if computed[0] is engine and engine.fits(computed[1]):
                draft = computed[1]
                draft.resume(self._points)
            else:
                self._tries += 1
        if draft is None:
            if self._tries >= TRIES:
                self.asked = self._portion(count)
                return engine.propose(self.asked, to_run=to_run)
            self._drafted, self.asked = time.monotonic(), count
            draft = engine.draft(count, to_run=to_run)
            if draft.proposal is None and count > (portion := self._portion(count)):
                self.asked = portion
                draft = engine.draft(portion, to_run=to_run)
        if draft.proposal is None:
            self._own, self._points = (engine, draft), None
        self.took_s = time.monotonic() - self._drafted
        return draft.proposal

    def _portion(self, count: int) -> int:
        """Return for how many trials to compute next.

        Few at first, so that a call with little time has some.
        """
        portion = PORTIONS[min(self._portions, len(PORTIONS) - 1)]
        self._portions += 1
        return min(count, portion)


class SuggestionBatch:
    """The trials of one call. Call `continued` with the study's lock and `wait` without it."""

    def __init__(self, count: int, *, expired_only: bool, paused_only: bool) -> None:
        self._count = count
        self._expired_only = expired_only
        self._paused_only = paused_only
        self._proposing = Proposing()
        self._round = 0
        self._rest = 0  # trials of this round that later portions propose
        self.trials: list[Trial] = []
        self.independent = False  # of the outcomes of trials

    def continued(self, dispatch: Dispatch) -> Proposal | None:
        """Hand out trials.

        Return the last proposal once it is complete, None to be called again after `wait`.
        """
        proposing, writer = self._proposing, dispatch.writer
        while True:
            missing = self._rest or self._count - len(self.trials)
            proposal = self._proposed(writer, missing)
            if proposal is None:
                return None
            for begun in dispatch.begin(proposal.trials):
                self.trials += begun
                writer.given(own=not any(p.proposed_by for p in proposal.trials))
            self._rest = max(0, missing - proposing.asked)
            self._round += not self._rest
            late = (
                bool(self._rest and self.trials)
                and deadline.left_s(math.inf) < 2 * proposing.took_s
            )
            whole = (
                self._expired_only
                or self._paused_only
                or self._round == MAX_ROUNDS
                or len(self.trials) == self._count
            )
            if proposal.exhausted or proposal.waiting or dispatch.budget.full or whole or late:
                return proposal

    def _proposed(self, writer: Writer, count: int) -> Proposal | None:
        if self._expired_only:
            return writer.engine.propose(count, expired_only=True)
        if self._paused_only:
            return writer.engine.propose_paused(count)
        return self._proposing.step(writer, count, to_run=self._round == MAX_ROUNDS - 1)

    def wait(self) -> None:
        """Wait until it is worth calling `continued` again.

        Raises the errors of `Proposing.wait`.
        """
        self._proposing.wait()
