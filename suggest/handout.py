"""How proposals become trials: most are handed out to run; one whose value is known ends at once with that value.

Stored in the order of their numbers, so that a crash in the middle leaves no gap. Nothing is chosen here.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from suggest.engine import Proposed
from suggest.seats import Writer
from suggest.store.protocol import Store
from suggest.trial import REUSED, Trial, TrialState

TURNS = 8  # proposals of one request, each of which may bring known points; the last one is of points to run


@dataclass(frozen=True, slots=True)
class HandOut:
    """One request for trials."""

    store: Store
    writer: Writer
    client_id: str
    request_id: str
    labels: Mapping[str, str]

    def begin(self, proposed: Sequence[Proposed]) -> list[Trial]:
        """Those to run, which run now."""
        begun: list[Trial] = []
        ordered = sorted(proposed, key=lambda p: p.number)
        for to_run, group in itertools.groupby(ordered, key=lambda p: p.known is None):
            if to_run:
                these = list(group)
                begun += self._hand_out([self._running(p) for p in these], queued=sum(p.queued for p in these))
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
            labels={**base.labels, **self.labels},
        )

    def _hand_out(self, trials: list[Trial], *, queued: int) -> list[Trial]:
        with self.writer.changing():
            self.store.hand_out(self.writer.lease, trials, queued=queued)
            for trial in trials:
                self.writer.engine.put(trial)
        return trials

    def _take_over(self, p: Proposed) -> None:
        """No client's: whoever asks for the trials that it was given does not find it."""
        assert p.known is not None
        now = datetime.now(UTC)
        trial = Trial(
            p.number,
            TrialState.SUCCEEDED,
            p.parameters,
            value=self.writer.engine.trial(p.known).value,
            reason=f"not run: the value of trial {p.known}, which has the same parameters",
            labels={**self.labels, REUSED: str(p.known)},
            create_time=now,
            end_time=now,
        )
        with self.writer.changing():
            self.store.add_trial(self.writer.lease, trial, request_id=f"value-of/{p.number}", measurements=())
            self.writer.engine.put(trial)
