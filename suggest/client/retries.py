"""Retries: when and at which address a client repeats a failed call,
and which error it raises in the end.

A call has one limit, the client's `timeout_s`: the call is retried until then unless the error is
final. There must be no second limit, such as a number of attempts. This module neither sends nor
sleeps; the clients do.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from suggest.address import parse_address
from suggest.backoff import Backoff
from suggest.errors import InvalidArgument, NotOwner, RateLimited
from suggest.lazy_module import LazyModule

if TYPE_CHECKING:
    import grpc

    from suggest import grpc_status
else:
    grpc, grpc_status = LazyModule("grpc"), LazyModule("suggest.grpc_status")

PATIENCE_S = 30.0  # default timeout of a client; longer than a restart of the server takes

LONGEST_PAUSE_S = 1.0  # between attempts
LONGEST_REFUSED_S = 0.2  # between attempts if the service itself answers that it is unavailable
FIRST_AWAY_S = 1.6  # a little longer than the silence after which an owner loses its studies
BACKOFF = Backoff(first_s=0.05, longest_s=LONGEST_PAUSE_S, jitter=0.5)
WARN_AFTER_S = 1.0  # a call that waits longer for a connection logs it

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),  # a proxy for the web usually cannot reach the service
    # The default pauses between connection attempts are longer than the pauses between retries.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Despite its name, this is the timeout of one attempt to connect;
    # a busy machine needs seconds for a handshake.
    ("grpc.min_reconnect_backoff_ms", 10_000),
)

log = logging.getLogger(__name__)


class Attempts:
    """The attempts of one call within its deadline.

    Send the call to `address` with `timeout_s()`; on failure, call `pause_or_raise()`. When a
    service names the owner of a study, `address` becomes the owner's. If that does not answer, it
    becomes the next of `homes`, because the study may have another owner by then.
    """

    def __init__(self, homes: Sequence[str], timeout_s: float, *, start: str = "") -> None:
        self.address = start or homes[0]
        self._homes = homes
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._began = time.monotonic()
        self._pauses = 0
        self._away_s = FIRST_AWAY_S
        self._warned = False
        # homes that cannot be reached due to TLS or another protocol
        self._mismatched: set[str] = set()
        self._followed = False
        self._sent_away = 0
        # the last error that the service itself sent
        self._service_error: grpc.RpcError | None = None
        # an attempt that the service did not answer may have been executed
        self.is_uncertain = False

    def left_s(self) -> float:
        """Return the time until the call's deadline."""
        return max(self._deadline - time.monotonic(), 0.001)

    def timeout_s(self) -> float:
        """Return the timeout of the next attempt, shorter if there is another address.

        It is shorter because a frozen owner never refuses.
        """
        return self.left_s() if self._is_only_home else min(self.left_s(), self._away_s)

    @property
    def _is_only_home(self) -> bool:
        """Whether there is no other address to try."""
        return [self.address] == list(self._homes)

    def _next_home(self) -> str:
        tried = self._homes.index(self.address) if self.address in self._homes else -1
        return self._homes[(tried + 1) % len(self._homes)]

    def pause_or_raise(self, failure: grpc.RpcError) -> float:
        """Return the seconds before the next attempt; without one, raise the service's error."""
        # The frames of its traceback hold these attempts and the channel. Such a cycle leaves it to
        # the garbage collector to free the channel, perhaps while gRPC handles events; gRPC then
        # prints "Bad file descriptor".
        failure.with_traceback(None)
        tried = self.address
        match failure.code():
            case grpc.StatusCode.FAILED_PRECONDITION:
                pause = self._follow(failure)
            # CANCELLED without a cancellation here: gRPC drops unread requests when a server stops.
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
                pause = self._pause_unavailable(failure)
            case grpc.StatusCode.DEADLINE_EXCEEDED if not self._is_only_home:
                self._away_s *= 2
                self.is_uncertain = True
                self.address, pause = self._next_home(), 0.0
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                pause = self._wait_for_room(failure)
            case _:
                pause = None
        if pause is None or time.monotonic() + pause >= self._deadline:
            # An expired deadline is the less helpful error, for example
            # if a locked store keeps answering late.
            late = failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            last = self._service_error if late and self._service_error is not None else failure
            raise grpc_status.error_of(last, address=tried, timeout_s=self._timeout_s) from last
        return pause

    def _pause_unavailable(self, failure: grpc.RpcError) -> float | None:
        tried, refused = self.address, _by_the_service(failure)
        if refused or self._service_error is None:
            self._service_error = failure
        if refused:
            return self._pause(LONGEST_REFUSED_S)
        self.is_uncertain |= not grpc_status.is_without_connection(failure)
        if grpc_status.is_mismatch(failure):
            self._mismatched.add(tried)
            if self._mismatched.issuperset(self._homes):
                return None
        self.address = self._next_home()
        if not self._warned and time.monotonic() - self._began > WARN_AFTER_S:
            self._warned = True
            left_s = max(0.0, self._deadline - time.monotonic())
            log.warning("no suggestion service answers at %s; retrying for %.0f s", tried, left_s)
        return self._pause(LONGEST_REFUSED_S if self._followed else LONGEST_PAUSE_S)

    def _follow(self, failure: grpc.RpcError) -> float | None:
        error = grpc_status.error_of(failure, address=self.address, timeout_s=self._timeout_s)
        if not isinstance(error, NotOwner) or error.address in ("", self.address):
            return None
        try:
            self.address = str(parse_address(error.address))
        except InvalidArgument:
            return None
        first, self._followed, self._service_error = not self._followed, True, failure
        return 0.0 if first else self._pause(LONGEST_REFUSED_S)

    def _wait_for_room(self, failure: grpc.RpcError) -> float | None:
        """Return the pause that the service asked for, longer after each refusal.

        It grows because all refused clients come back.
        """
        error = grpc_status.error_of(failure, address=self.address, timeout_s=self._timeout_s)
        if not isinstance(error, RateLimited):
            return None
        self._service_error = failure
        self._sent_away += 1
        return max(error.retry_s, 0.01) * (1 + random.random() * self._sent_away / 2)

    def _pause(self, longest_s: float) -> float:
        pause_s = BACKOFF.pause_s(self._pauses, longest_s=longest_s)
        self._pauses += 1
        return pause_s


def _by_the_service(failure: grpc.RpcError) -> bool:
    """Return whether the service itself sent the error.

    If nothing answers, gRPC reports UNAVAILABLE itself.
    """
    call: Any = failure  # the errors that grpc raises are also calls, which its types do not show
    return any(key == grpc_status.DETAILS_KEY for key, _ in call.trailing_metadata() or ())
