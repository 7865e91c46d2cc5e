"""Upload what running trials have measured to the study: when, in which batches, and what the answers are.

At once if the experiment prunes, because the pruner decides by it; else a few times a second, for people. What an ended
attempt has measured travels with its trial's outcome. Decides nothing: advice and outcomes are noted in the memory.
"""

from __future__ import annotations

from controller.core.model import FINAL
from controller.memory import Memory
from controller.search import ExperimentStudy
from suggest.errors import LimitReached
from suggest.trial import Trial

REPORT_S = 0.5  # between two uploads of a trial, when no pruner waits for them
REPORTS_A_SECOND = 100  # of all trials together; with hundreds of running trials each waits longer
MAX_REPORT = 5000  # measurements of one call


class MeasurementUploader:
    """at_once: the experiment prunes."""

    def __init__(self, search: ExperimentStudy, *, at_once: bool) -> None:
        self._search = search
        self._at_once = at_once

    async def send_due(self, memory: Memory, *, now_s: float) -> bool:
        """Upload for all running trials that are due. Returns whether an answer leaves something to do."""
        heard = False
        pause_s = max(REPORT_S, len(memory.opened) / REPORTS_A_SECOND)
        for number, known in memory.opened.items():
            newest = known.newest
            if number is FINAL or newest is None or newest.ended or not known.unreported or not known.running:
                continue
            due = self._at_once or now_s - known.reported_at_s >= pause_s
            if due or len(known.unreported) > MAX_REPORT:
                known.reported_at_s = now_s
                heard |= await self.send(memory, number)
        return heard

    async def send(self, memory: Memory, number: int, *, leave: int = 0) -> bool:
        """Upload what one trial has measured but the newest `leave`; whether an answer is advice or an outcome."""
        known = memory.opened[number]
        heard = False
        while len(known.unreported) > leave and known.running:
            batch = known.unreported[:MAX_REPORT]
            try:
                answer = await self._search.report(number, batch)
            except LimitReached:
                # A quota is used up. The newest go with the trial's outcome, which is never refused.
                del known.unreported[:-MAX_REPORT]
                return heard
            del known.unreported[: len(batch)]
            if isinstance(answer, Trial):
                memory.count(answer)
                known.running = False
                heard = True
            elif answer.should_stop:
                memory.advised[number] = answer.reason
                heard = True
        return heard
