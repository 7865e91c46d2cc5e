"""Wait for a coroutine from code that is not asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from suggest.errors import TunerError

Result = TypeVar("Result")


def waited_for(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run the coroutine and return its result, even if this thread has a running event loop.

    In a notebook, it has one.

    Raises what it raises; a TunerError without the frames of the coroutine, because its message
    says all to people.
    """
    try:
        if not in_event_loop():
            return asyncio.run(coroutine)
        executor = ThreadPoolExecutor(1, thread_name_prefix="tuner-query")
        result = executor.submit(asyncio.run, coroutine)
        executor.shutdown(wait=False)
        return result.result()
    except TunerError as error:
        raise error.with_traceback(None) from None


def in_event_loop() -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
