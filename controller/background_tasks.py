"""Tasks of an event loop that run beside others: how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


async def cancelled(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks, and return when they have ended. None: there is none. Their errors are lost."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


@asynccontextmanager
async def meanwhile(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines while the context is open. They report their own errors."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        await cancelled(*tasks)
