"""Dispatch: proposals become trials. Most are handed out to run; one whose value is known ends at once.

Stored in order of their numbers, so that a crash in between leaves no gap. Chooses nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from suggest.engine import Proposed
from suggest.storage.store import StudyStore
from suggest.studies import request_keys
from suggest.studies.sessions import Writer
from suggest.trial import PROPOSED_BY, REUSED, Trial, TrialState

MAX_REPLY_BYTES = 3 << 20  # clients in other languages take 4 MiB unless told otherwise
TURNS = 8  # proposals of one request, each of which may bring known points; the last one is of points to run


class ReplyBudget:
    """What fits into one reply: the first trial always, the others as long as there is room.

    `size_of` makes a message of each trial: it is asked only where a rough upper bound does not do.
    """

    def __init__(self, size_of: Callable[[Trial], int], max_bytes: int = MAX_REPLY_BYTES) -> None:
        self._size_of = size_of
        self._max_bytes = max_bytes
        self._taken: list[Trial] = []
        self._rough = 0
        self._exact: int | None = None
        self.full = False

    def take(self, trial: Trial) -> bool:
        """False, from the first trial that does not fit on."""
        self._rough += _at_most(trial)
        if self._rough > self._max_bytes:
            if self._exact is None:
                self._exact = sum(map(self._size_of, self._taken))
            self._exact += self._size_of(trial)
            self.full = self.full or (self._exact > self._max_bytes and bool(self._taken))
        if not self.full:
            self._taken.append(trial)
        return not self.full


def _at_most(trial: Trial) -> int:
    """More bytes than the trial takes: four for each character, and some for what is around it."""
    labels = len(repr(trial.labels)) if trial.labels else 0
    return 2000 + 4 * (len(repr(trial.parameters)) + labels + len(trial.reason) + len(trial.failure_class))


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One request for trials. `lease_s`: None for trials that run until somebody completes them."""

    store: StudyStore
    writer: Writer
    client_id: str
    request_id: str
    labels: Mapping[str, str]
    lease_s: float | None
    budget: ReplyBudget

    def again(self, known: Sequence[Trial]) -> list[Trial]:
        """Those that the request was given before: to whom they belong is there again, so their leases live on.

        If not all fit into a reply, those that run come first.
        """
        by_need = sorted(known, key=lambda trial: (trial.finished, trial.number))
        kept = list(itertools.takewhile(self.budget.take, by_need))
        back = revived(self.store, self.writer, [trial for trial in kept if trial.expired])
        for trial in kept:
            if trial.state is TrialState.RUNNING:
                self.writer.renew(trial.number)
        return sorted((back.get(trial.number, trial) for trial in kept), key=lambda trial: trial.number)

    def begin(self, proposed: Sequence[Proposed]) -> list[Trial]:
        """Those to run, which run now; only the first of them, when the budget is `full`."""
        begun: list[Trial] = []
        ordered = sorted(proposed, key=lambda p: p.number)
        for to_run, group in itertools.groupby(ordered, key=lambda p: p.known is None):
            if to_run:
                these = list(group)
                fit = list(itertools.takewhile(self.budget.take, map(self._running, these)))
                if fit:
                    begun += self._hand_out(fit, queued=sum(p.queued for p in these[: len(fit)]))
                if self.budget.full:
                    break
            else:
                for p in group:
                    self._take_over(p)
        return begun

    def _running(self, p: Proposed) -> Trial:
        base = Trial(p.number, TrialState.RUNNING, p.parameters, create_time=datetime.now(UTC))
        if p.queued:
            base = self.writer.engine.trial(p.number)
        return replace(
            base,
            state=TrialState.RUNNING,
            parameters=p.parameters,
            client_id=self.client_id,
            request_id=self.request_id,
            labels={**base.labels, **self.labels, **_proposed_by(p)},
            tries=base.tries + 1,
            lease_s=self.lease_s,
            fidelity=p.fidelity,
            value=None,
            step=None,
            reason="",
        )

    def _hand_out(self, trials: list[Trial], *, queued: int) -> list[Trial]:
        with self.writer.changing():
            self.store.hand_out(self.writer.lease, trials, queued=queued)
            for trial in trials:
                self.writer.engine.put(trial)
        for trial in trials:
            self.writer.hold(trial)
        return trials

    def _take_over(self, p: Proposed) -> None:
        """No client's: a client that asks for its trials does not find it."""
        assert p.known is not None
        now = datetime.now(UTC)
        trial = Trial(
            p.number,
            TrialState.SUCCEEDED,
            p.parameters,
            value=self.writer.engine.trial(p.known).value,
            reason=f"not run: the value of trial {p.known}, which has the same parameters",
            labels={**self.labels, **_proposed_by(p), REUSED: str(p.known)},
            create_time=now,
            end_time=now,
        )
        with self.writer.changing():
            self.store.add_trial(self.writer.lease, trial, request_id=request_keys.value_of(p.number), measurements=())
            self.writer.engine.put(trial)


def _proposed_by(p: Proposed) -> dict[str, str]:
    return {PROPOSED_BY: p.proposed_by} if p.proposed_by else {}


def revived(store: StudyStore, writer: Writer, trials: Sequence[Trial]) -> dict[int, Trial]:
    """Expired trials that nobody else has taken run again, under the same try; by their numbers."""
    running = [replace(trial, state=TrialState.RUNNING) for trial in trials]
    if running:
        with writer.changing():
            store.hand_out(writer.lease, running, queued=len(running))
            for trial in running:
                writer.engine.put(trial)
        for trial in running:
            writer.hold(trial)
    return {trial.number: trial for trial in running}
