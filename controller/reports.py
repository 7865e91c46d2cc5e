"""What running trials have measured, on its way to the study: when it is sent, in which portions, what comes of it.

With a pruner at once, for it judges by it; else a few times a second, for people. What an ended attempt has measured
travels with its trial's outcome. Decides nothing: advice and outcomes are noted in the memory.
"""

from __future__ import annotations

from controller.memory import Memory
from controller.search import Search
from suggest.errors import LimitReached
from suggest.trial import Trial

REPORT_S = 0.5  # between two reports of a trial, when no pruner waits for them
REPORTS_A_SECOND = 100  # of all trials together; with hundreds that run each waits longer
MAX_REPORT = 5000  # measurements of one call


class Reports:
    """`at_once`: there is a pruner."""

    def __init__(self, search: Search, *, at_once: bool) -> None:
        self._search = search
        self._at_once = at_once

    async def send_due(self, memory: Memory, *, now_s: float) -> bool:
        """Of all trials that run. Whether the answers leave something to do."""
        heard = False
        pause_s = max(REPORT_S, len(memory.opened) / REPORTS_A_SECOND)
        for number, known in memory.opened.items():
            newest = known.newest
            if newest is None or newest.ended or not known.unreported or not known.running:
                continue
            due = self._at_once or now_s - known.reported_at_s >= pause_s
            if due or len(known.unreported) > MAX_REPORT:
                known.reported_at_s = now_s
                heard |= await self.send(memory, number)
        return heard

    async def send(self, memory: Memory, number: int, *, leave: int = 0) -> bool:
        """All that one trial has measured but the newest `leave`. Whether the answer is advice, or its outcome."""
        known = memory.opened[number]
        heard = False
        while len(known.unreported) > leave and known.running:
            batch = known.unreported[:MAX_REPORT]
            try:
                answer = await self._search.report(number, batch)
            except LimitReached:
                # The store takes no more of it. The newest go with the trial's outcome, which is never refused.
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
