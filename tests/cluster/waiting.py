"""Wait for a condition with a timeout. No other module in tests/cluster sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def eventually(
    condition: Callable[[], Found],
    *,
    within_s: float = 120,
    every_s: float = 0.05,
    shows: Callable[[], object] = lambda: "",
) -> Found:
    """Return the condition's value once it is true; otherwise raise AssertionError
    with the value of `shows`.

    A condition that runs a command is checked less often,
    so that it does not take the processor from what it waits for.
    """
    end = time.monotonic() + within_s
    while True:
        began = time.monotonic()
        found = condition()
        if found:
            return found
        now = time.monotonic()
        if now > end:
            raise AssertionError(f"not within {within_s:g} s; at the end: {shows()}")
        time.sleep(max(every_s, min(3 * (now - began), 1.0)))
