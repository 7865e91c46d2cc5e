"""Rate limits: a token bucket per client, one token per call, filled at the client's rate.

Belongs to the server's event loop. The only clock is `now`.
When there are many buckets, full ones are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from suggest.errors import RateLimited
from suggest.server.limits_file import Limits

MAX_LATE_S = 2.0  # longest delay of a refusal
_HEEDED = 50  # refusals without delay, enough for a client that heeds the retry delay
_MANY = 10_000  # clients to remember before quiet ones are forgotten


class RateLimiter:
    """Limits the rate of calls of each client. `limits` returns the current limits."""

    def __init__(
        self, limits: Callable[[], Limits], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}  # by client: (tokens, when)
        # by client: (refusals minus rate * time since, when)
        self._over: dict[str, tuple[float, float]] = {}
        self.refused = 0

    def take(self, client: str) -> None:
        """Take a token for one call. Raises RateLimited."""
        may = self._limits().rate_of(client)
        if may.rate is None or may.burst is None:
            return
        now = self._now()
        tokens, at = self._buckets.get(client, (may.burst, now))
        tokens = min(may.burst, tokens + (now - at) * may.rate)
        if tokens < 1:
            self._buckets[client] = tokens, now
            self.refused += 1
            raise RateLimited(
                f"{client} sends more than {may.rate:g} calls a second (and {may.burst:g} at "
                "once); send fewer, send more in one call, or ask this server's operator for more",
                retry_s=(1 - tokens) / may.rate,
                late_s=self._late_s(client, may.rate, now),
            )
        if client not in self._buckets and len(self._buckets) >= _MANY:
            self._forget(now)
        self._buckets[client] = tokens - 1, now

    def _late_s(self, client: str, rate: float, now: float) -> float:
        """Return how long to delay a refusal.

        It costs as much as a reply, so slow down clients that keep calling.
        """
        over, at = self._over.get(client, (0.0, now))
        over = max(0.0, over - (now - at) * rate) + 1
        if len(self._over) >= _MANY:
            self._over.clear()
        self._over[client] = over, now
        return min(MAX_LATE_S, max(0.0, over - _HEEDED) / rate)

    def _forget(self, now: float) -> None:
        """Forget full buckets, which are the same as new ones.

        If too many others remain, forget all.
        """
        limits = self._limits()
        remaining = {}
        for client, (tokens, at) in self._buckets.items():
            may = limits.rate_of(client)
            if (
                may.rate is not None
                and may.burst is not None
                and tokens + (now - at) * may.rate < may.burst
            ):
                remaining[client] = tokens, at
        self._buckets = remaining if len(remaining) < _MANY else {}
