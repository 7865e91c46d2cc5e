"""The trials of one SuggestTrials call, which are proposed and handed out until there are enough."""

from __future__ import annotations

import math

from suggest import deadline
from suggest.engine import Proposal
from suggest.studies.dispatch import Dispatch
from suggest.studies.proposing import Proposing
from suggest.studies.sessions import Writer
from suggest.trial import Trial

TURNS = 8  # proposals per request; each but the last may contain known points, the last has only points to run


class HandOut:
    """The trials of one call. Call `continued` with the study's lock and `wait` without it."""

    def __init__(self, count: int, *, expired_only: bool, paused_only: bool) -> None:
        self._count = count
        self._expired_only = expired_only
        self._paused_only = paused_only
        self._proposing = Proposing()
        self._turn = 0
        self._rest = 0  # trials of this turn that later portions propose
        self.trials: list[Trial] = []

    def continued(self, dispatch: Dispatch) -> Proposal | None:
        """Hand out trials. Return the last proposal once it is complete, None to be called again after `wait`."""
        proposing, writer = self._proposing, dispatch.writer
        while True:
            missing = self._rest or self._count - len(self.trials)
            proposal = self._proposed(writer, missing)
            if proposal is None:
                return None
            self.trials += dispatch.begin(proposal.trials)
            if proposal.trials:
                writer.given(own=not any(p.proposed_by for p in proposal.trials))
            self._rest = max(0, missing - proposing.asked)
            self._turn += not self._rest
            late = bool(self._rest and self.trials) and deadline.left_s(math.inf) < 2 * proposing.took_s
            whole = self._expired_only or self._paused_only or self._turn == TURNS or len(self.trials) == self._count
            if proposal.exhausted or proposal.waiting or dispatch.budget.full or whole or late:
                return proposal

    def _proposed(self, writer: Writer, count: int) -> Proposal | None:
        if self._expired_only:
            return writer.engine.propose(count, expired_only=True)
        if self._paused_only:
            return writer.engine.propose_paused(count)
        return self._proposing.step(writer, count, to_run=self._turn == TURNS - 1)

    def wait(self) -> None:
        """Wait until it is worth calling `continued` again. Raises the errors of `Proposing.wait`."""
        self._proposing.wait()
