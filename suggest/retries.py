"""How both clients treat a call that did not get through: when to send it again, and what to raise in the end.

No I/O and no clock of its own: the clients wait and send.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from suggest.errors import TunerError

if TYPE_CHECKING:
    import grpc

# About 3 s in all: a server that is restarted meanwhile goes unnoticed.
PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),  # the service is near; a proxy for the web is not the way to it
    # Default pauses between connection attempts outlast ours.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class Attempts:
    """One call's attempts within its deadline: `timeout_s()` for each, `pause_or_raise()` after a failed one."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._pauses: Iterator[float] = iter(PAUSES_S)
        self._told: grpc.RpcError | None = None  # why it was not available, by its own words

    def timeout_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.001)

    def pause_or_raise(self, failure: grpc.RpcError) -> float:
        """Seconds to wait before the next attempt; raises the service's error if there should be none."""
        import grpc

        if failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED and self._told is not None:
            failure = self._told  # that time is up says less: a locked store answers late, and then says that it is
        pause = next(self._pauses, None)
        unavailable = failure.code() is grpc.StatusCode.UNAVAILABLE
        if unavailable:
            self._told = failure
        if pause is None or not unavailable or time.monotonic() + pause >= self._deadline:
            raise self._error(failure) from failure
        return pause

    def _error(self, failure: grpc.RpcError) -> TunerError:
        from suggest.status import error_of

        return error_of(failure, address=self._address, timeout_s=self._timeout_s)
