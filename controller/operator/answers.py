"""Answers of the API server that are kept for a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_MOST_KEPT = 10_000
Answer = TypeVar("Answer")


class Answers(Generic[Answer]):
    """Answers that are kept for a time. Of equal questions at once, only one is asked."""

    def __init__(self, clock: Callable[[], float], kept_s: float) -> None:
        self._clock = clock
        self._kept_s = kept_s
        self._kept: OrderedDict[tuple[object, ...], tuple[Answer, float]] = OrderedDict()
        self._asking: dict[tuple[object, ...], asyncio.Task[Answer]] = {}

    async def get(
        self,
        question: tuple[object, ...],
        ask: Callable[[], Awaitable[Answer]],
        *,
        denied_kept_s: float = 0.0,
    ) -> Answer:
        """Return the answer. Raises what `ask` raises, which is not kept.

        denied_kept_s: how old a negative answer may be at least.
        """
        kept = self._kept.get(question)
        if kept is not None:
            answer, asked_s = kept
            kept_s = self._kept_s if answer else max(self._kept_s, denied_kept_s)
            if self._clock() < asked_s + kept_s:
                return answer
        task = self._asking.get(question)
        if task is None:
            task = self._asking[question] = asyncio.create_task(self._ask(question, ask))
        # The first caller may go away while the others still wait.
        return await asyncio.shield(task)

    async def _ask(
        self, question: tuple[object, ...], ask: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        # From before the question: what is revoked while it is asked counts from then on.
        asked_s = self._clock()
        try:
            answer = await ask()
        finally:
            del self._asking[question]
        self._kept.pop(question, None)
        self._kept[question] = answer, asked_s
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return answer
