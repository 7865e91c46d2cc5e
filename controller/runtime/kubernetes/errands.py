"""Requests that are sent while whoever wants them goes on with other things, a few at a time, one per name.

One that fails is told to whoever sends the next, which is then waited for: trouble slows the sender down, and only it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

_AT_ONCE = 16  # a server that is asked for more keeps everybody waiting
_PATIENCE_S = 5.0


class Errands:
    """failed: called after each failure; who wants it done sends it again."""

    def __init__(self, *, failed: Callable[[], None]) -> None:
        self._failed = failed
        self._under_way: dict[str, asyncio.Task[Exception | None]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._error: Exception | None = None

    async def send(self, name: str, work: Coroutine[Any, Any, None], *, wait: bool = False) -> None:
        """Under a name that is not under way. wait: for all of them. Raises what an errand raised that was waited
        for."""
        task = self._under_way[name] = asyncio.create_task(self._do(name, work))
        if wait:
            waited_for = list(self._under_way.values())
        elif self._error is not None:
            waited_for = [task]
        else:
            return
        await asyncio.wait(waited_for)
        for each in waited_for:
            if not each.cancelled() and (error := each.result()) is not None:
                raise error

    def is_under_way(self, name: str) -> bool:
        return name in self._under_way

    async def settle(self, name: str) -> None:
        """Until it is not under way (any more)."""
        if (task := self._under_way.get(name)) is not None:
            await asyncio.wait([task])

    async def close(self) -> None:
        """What is under way is finished, if the cluster is quick about it."""
        if self._under_way:
            _, late = await asyncio.wait(list(self._under_way.values()), timeout=_PATIENCE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _do(self, name: str, work: Coroutine[Any, Any, None]) -> Exception | None:
        try:
            async with self._turns:
                await work
        except Exception as error:  # whatever it is, the next sender is told
            self._error = error
            self._failed()
            return error
        else:
            self._error = None
            return None
        finally:
            work.close()
            del self._under_way[name]
