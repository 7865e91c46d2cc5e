"""Around every call to the server: plain methods run in worker threads, every error becomes a status, always by abort.

Nothing about studies is known here but that calls which write the same one take turns. An error that is not ours is a
bug: the client gets an id, the log gets the rest.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from suggest.errors import InvalidArgument, Problem, TunerError, Unavailable
from suggest.outages import Outages
from suggest.status import InternalError, code_of, status_of
from suggest.subjects import study_of, writes
from suggest.turns import Turns

log = logging.getLogger(__name__)

# What requests, replies and contexts are is the handlers' affair.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class _Garbage:
    """Stands for a request that is no message of the right type."""


class Guard(grpc.aio.ServerInterceptor):
    """Applies to all unary methods; a handler that is no coroutine function runs in a thread, in its turn."""

    def __init__(self, turns: Turns, outages: Outages) -> None:
        self._turns = turns
        self._outages = outages
        self._closing = False
        self._known: dict[str, Handler] = {}  # by method: wrapped once, not at each call

    def close(self) -> None:
        """What was begun goes on; whatever comes now is sent away, to come again when another server is there."""
        self._closing = True

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = str(handler_call_details.method)
        known = self._known.get(method)
        if known is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        # Only methods that there are get here: strangers cannot make it grow.
        guarded = self._known[method] = grpc.unary_unary_rpc_method_handler(
            self._guarded(handler.unary_unary, method=method),
            request_deserializer=_lenient(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )
        return guarded

    def _guarded(
        self, behaviour: Callable[[Any, Any], Any], *, method: str
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        is_coroutine = inspect.iscoroutinefunction(behaviour)
        takes_turns = writes(method)

        async def guarded(request: Any, context: Context) -> Any:
            try:
                if isinstance(request, _Garbage):
                    raise InvalidArgument([Problem("", f"the bytes sent to {method} are no request of that method")])
                if is_coroutine:
                    return await behaviour(request, context)
                if self._closing:
                    raise Unavailable("this server is being stopped; send it again")
                study = study_of(request) if takes_turns else ""
                # In the thread too, it is known who calls.
                work = functools.partial(contextvars.copy_context().run, behaviour, request, context)
                reply = await self._turns.run(study, work)
                self._outages.answered(writing=takes_turns)
                return reply
            except grpc.aio.AbortError:
                raise
            except TunerError as e:
                error = e
                self._outages.refused(e, writing=takes_turns)
            except Exception:
                bug = secrets.token_hex(4)
                log.exception("method=%s bug=%s", method, bug)
                error = InternalError(f"this is a bug of the server; its log has the details under {bug}")
            message, metadata = status_of(error)
            await context.abort(code_of(error), message, metadata)

        return guarded


def _lenient(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """gRPC would answer INTERNAL to what cannot be parsed; whose fault it is must be said."""
    if deserialize is None:
        return None

    def read(serialized: bytes) -> Any:
        try:
            return deserialize(serialized)
        except DecodeError:
            return _Garbage()

    return read
