"""Around every call to the server: plain methods run in worker threads, every error becomes a status, always by abort.

Nothing about studies is known here but that calls which write the same one take turns. Who may not come is sent away
before the request is read. An error that is not ours is a bug: the client gets an id, the log gets the rest.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import inspect
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError

from suggest import courtesy, deadline, events
from suggest.access import audit
from suggest.access.gate import Gate
from suggest.access.verbs import changes
from suggest.caller import caller_of
from suggest.errors import InvalidArgument, Problem, TimedOut, TunerError, Unavailable
from suggest.serving import sizes
from suggest.serving.outages import Outages
from suggest.serving.rates import Rates
from suggest.serving.subjects import study_of, writes
from suggest.serving.turns import Turns
from suggest.status import InternalError, code_of, status_of

log = logging.getLogger(__name__)

SLOW_S = 1.0
TIDY_EVERY = 250  # calls
LARGE_BYTES = 8 << 10  # of a request: some hundred measurements

# What requests, replies and contexts are is the handlers' affair.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
T = TypeVar("T")


class Guard(grpc.aio.ServerInterceptor):
    """A handler that is no coroutine function runs in a thread, in its turn. Without a gate all may do everything."""

    def __init__(self, turns: Turns, outages: Outages, gate: Gate | None, rates: Rates | None) -> None:
        self._turns = turns
        self._rates = rates
        self._outages = outages
        self._gate = gate
        self._closing = False
        self._known: dict[str, Handler] = {}  # by method: wrapped once, not at each call
        self._since_tidied = 0  # calls

    @property
    def begun(self) -> int:
        """Calls that are being answered."""
        return self._turns.wanted

    async def close(self) -> None:
        """Returns when what was begun is done; whatever comes meanwhile is sent away, to come again elsewhere."""
        self._closing = True
        await self._turns.idle()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        self._tidy()
        method = str(handler_call_details.method)
        known = self._known.get(method)
        if known is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        # Only methods that there are get here: strangers cannot make it grow.
        guarded = self._known[method] = self.wrapped(handler, method)
        return guarded

    def _tidy(self) -> None:
        """gRPC leaves a circle of objects behind for each call. Python counts what is made and freed to know when to
        look for such, and a server that frees as much as it makes deceives it: tens of thousands of them would be freed
        at once, and all calls wait for that."""
        self._since_tidied += 1
        if self._since_tidied == TIDY_EVERY:
            self._since_tidied = 0
            gc.collect(0)

    def wrapped(self, handler: Handler, method: str) -> Handler:
        """What answers in its place."""
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._guarded(handler.unary_unary, handler.request_deserializer, method=method),
                response_serializer=handler.response_serializer,
            )
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(
                self._streamed(handler.stream_stream, method=method),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                self._streamed(handler.unary_stream, method=method),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        raise NotImplementedError(f"{method}: nothing here streams requests only")

    def _streamed(
        self, behaviour: Callable[[Any, Any], Any], *, method: str
    ) -> Callable[[Any, Context], AsyncIterator[Any] | Awaitable[None]]:
        """Of what others wrote (health, reflection): who may come is all that is asked here."""

        async def admitted(context: Context) -> None:
            try:
                self._admit(method, context)
            except TunerError as e:
                await _abort(context, e)

        async def written(request: Any, context: Context) -> None:
            await admitted(context)
            await behaviour(request, context)  # writes its replies to the context

        async def streamed(request: Any, context: Context) -> AsyncIterator[Any]:
            await admitted(context)
            async for reply in behaviour(request, context):
                yield reply

        return written if inspect.iscoroutinefunction(behaviour) else streamed

    def _admit(self, method: str, context: Context) -> None:
        if self._gate is not None:
            self._gate.admit(method, context.invocation_metadata() or ())

    def _guarded(
        self, behaviour: Callable[[Any, Any], Any], deserialize: Callable[[bytes], Any] | None, *, method: str
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        is_coroutine = inspect.iscoroutinefunction(behaviour)
        takes_turns = writes(method)
        name = method.rpartition("/")[2]
        is_change = not is_coroutine and changes(name)

        async def guarded(serialized: bytes, context: Context) -> Any:
            entry = audit.Entry(name, context.peer()) if is_change and audit.recorded() else None
            try:
                self._admit(method, context)
                if self._rates is not None and not is_coroutine:
                    self._rates.take(caller_of(context))
                request = _read(serialized, deserialize, method)
                if entry is not None:
                    entry.request = request
                if self._gate is not None:
                    self._gate.check(method, request)
                if is_coroutine:
                    return await behaviour(request, context)
                if self._closing:
                    raise Unavailable("this server is being stopped; send it again")
                study = study_of(request) if takes_turns else ""
                began = time.monotonic()
                given_s = context.time_remaining()
                deadline.begin(given_s)
                courtesy.begin(self._turns.at_work)
                # In the thread too, it is known who calls, and until when. It does not get the context: gRPC crashes
                # when asked about a call that has gone meanwhile.
                run = contextvars.copy_context().run
                large = len(serialized) > LARGE_BYTES
                answer = functools.partial(courtesy.at_length, behaviour) if large else behaviour
                if entry is None:
                    work = functools.partial(run, answer, request, None)
                else:
                    work = functools.partial(run, entry.run, answer, request)
                # gRPC ends what has a deadline of its own.
                running = self._turns.run(study, work, large=large)
                reply = await (_within(deadline.DEFAULT_S, running) if given_s is None else running)
                if (seconds := time.monotonic() - began) > SLOW_S:
                    events.tell("slow_call", method=name, study=study_of(request), seconds=seconds)
                self._outages.answered(writing=takes_turns)
                return reply
            except grpc.aio.AbortError:
                raise
            except TunerError as e:
                error = e
                if entry is not None:
                    entry.refused(e)
                self._outages.refused(e, writing=takes_turns)
            except Exception:
                bug = secrets.token_hex(4)
                log.exception("method=%s bug=%s", method, bug)
                error = InternalError(f"this is a bug of the server; its log has the details under {bug}")
            await _abort(context, error)

        return guarded


async def _within(seconds: float, running: Awaitable[T]) -> T:
    """Raises TimedOut."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await running
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimedOut(
            f"not done within {seconds:g} s, which is what a call without a deadline gets; "
            "it may be done yet: send it again"
        ) from None


async def _abort(context: Context, error: TunerError) -> None:
    message, metadata = status_of(error)
    await context.abort(code_of(error), message, metadata)


def _read(serialized: bytes, deserialize: Callable[[bytes], Any] | None, method: str) -> Any:
    """gRPC would answer INTERNAL to what cannot be parsed; whose fault it is must be said."""
    if deserialize is None:
        return serialized
    try:
        request = deserialize(serialized)
    except DecodeError:
        message = f"the bytes sent to {method} are no request of that method"
        raise InvalidArgument([Problem("", message)]) from None
    sizes.check(request)
    return request
