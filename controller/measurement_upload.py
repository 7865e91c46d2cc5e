"""Upload the measurements of running trials to the study, in batches, and note the answers.

Measurements are uploaded at once if the experiment prunes, because the pruner needs them; otherwise
at intervals, for people who watch. The measurements of an ended attempt are sent with its trial's
outcome. This module makes no decisions: advice and outcomes are noted in the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from controller.core.model import FINAL
from controller.memory import Memory
from controller.search import ExperimentStudy
from suggest.errors import LimitReached, Unavailable
from suggest.trial import Trial

REPORT_S = 0.5  # between two uploads of a trial, if no pruner waits for them
# for all trials together; with hundreds of running trials, each waits longer
REPORTS_A_SECOND = 100
MAX_REPORT = 5000  # measurements per call
AT_ONCE = 16  # calls at once: hundreds of trials must not each wait for the network in turn


class MeasurementUploader:
    """Uploads measurements; with `at_once`, for experiments that prune, once they are read."""

    def __init__(self, search: ExperimentStudy, *, at_once: bool) -> None:
        self._search = search
        self._at_once = at_once

    async def send_due(self, memory: Memory, *, now_s: float) -> bool:
        """Upload running trials' due measurements; return whether an answer calls for action."""
        due: list[int] = []
        pause_s = max(REPORT_S, len(memory.opened) / REPORTS_A_SECOND)
        for number, opened in memory.opened.items():
            newest = opened.newest
            if number is FINAL or newest is None or newest.ended:
                continue
            if not opened.unreported or not opened.running:
                continue
            is_due = self._at_once or now_s - opened.reported_at_s >= pause_s
            if is_due or len(opened.unreported) > MAX_REPORT:
                opened.reported_at_s = now_s
                due.append(number)
        return await self._send_all(memory, due)

    async def _send_all(self, memory: Memory, due: Sequence[int]) -> bool:
        """Upload for several trials at once, in order.

        After an error, no call is in progress any more.
        """
        free = asyncio.Semaphore(AT_ONCE)

        async def send(number: int) -> bool:
            async with free:
                return await self.send(memory, number)

        try:
            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(send(number)) for number in due]
        except BaseExceptionGroup as errors:
            # An outage passes, so it must not hide another error, whichever came first.
            raise min(errors.exceptions, key=lambda error: isinstance(error, Unavailable)) from None
        return any(call.result() for call in calls)

    async def send(self, memory: Memory, number: int, *, leave: int = 0) -> bool:
        """Upload all measurements of one trial but the newest `leave`.

        Returns whether an answer is the advice to stop or an outcome.
        """
        opened = memory.opened[number]
        is_decided = False
        while len(opened.unreported) > leave and opened.running:
            batch = opened.unreported[:MAX_REPORT]
            try:
                answer = await self._search.report(number, batch)
            except LimitReached:
                # A quota is used up. The newest measurements go with the trial's outcome,
                # which is never refused.
                del opened.unreported[:-MAX_REPORT]
                return is_decided
            del opened.unreported[: len(batch)]
            if isinstance(answer, Trial):
                memory.count(answer)
                opened.running = False
                is_decided = True
            elif answer.should_stop:
                memory.advised[number] = answer.reason
                is_decided = True
        return is_decided
