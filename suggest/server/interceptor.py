"""Wraps every call to the server: methods run in worker threads, and every error becomes a status by abort().

This module knows nothing about studies, except that calls that write the same study run one at a time. It rejects
unauthorized calls before reading the request. An unknown exception is a bug: the client gets an id, and the log has the
details.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError, Message

from suggest import deadline, events
from suggest.errors import (
    InvalidArgument,
    RateLimited,
    TimedOut,
    TunerError,
    Unauthenticated,
    Unavailable,
)
from suggest.grpc_status import InternalError, code_of, status_of
from suggest.server import request_sizes
from suggest.server.access import audit
from suggest.server.access.audit import DenialLog
from suggest.server.access.authorization import HEALTH, Authorizer
from suggest.server.access.caller import caller_of, current_caller, host_of, set_caller
from suggest.server.connection_limits import ConnectionLimits
from suggest.server.decoded_size import DecodedSize
from suggest.server.in_flight import ARRIVAL_S, InFlightLimits
from suggest.server.keyed_queue import CallKind, Flow, KeyedQueue
from suggest.server.rate_limits import RateLimiter
from suggest.server.rpcs import Rpc, resource_of, rpc_of
from suggest.server.store_health import StoreHealth

log = logging.getLogger(__name__)

SLOW_S = 1.0
LARGE_BYTES = 8 << 10  # size of a large request, about a hundred measurements
PARSING_S = 0.02  # parsing holds the GIL; after a request that took longer to parse, its caller's next one waits

# The types of requests, replies and contexts are known to the handlers only.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
# Takes a request, which a client in this process hands over as a message, and the name of its caller.
Answer: TypeAlias = "Callable[[bytes | Message, Context, str], Coroutine[Any, Any, Reply]]"
T = TypeVar("T")


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Runs handlers in worker threads, coroutine functions in the loop. Without an authorizer, it allows every call."""

    def __init__(
        self,
        queue: KeyedQueue,
        store_health: StoreHealth,
        authorizer: Authorizer | None,
        rate_limiter: RateLimiter | None,
        *,
        in_flight: InFlightLimits,
        denial_log: DenialLog,
        received_bytes: int,
        certified: bool = False,
    ) -> None:
        """Create the interceptor of one server.

        Args:
            received_bytes: The size that its requests may have.
            certified: Clients have certificates, whose names identify them if there are no tokens.
        """
        self._queue = queue
        self._rate_limiter = rate_limiter
        self._store_health = store_health
        self._authorizer = authorizer
        self._in_flight = in_flight
        self._received_bytes = received_bytes
        self.connections = ConnectionLimits(None)  # replaced once the server's port is known
        self._denial_log = denial_log
        self._certified = certified and authorizer is None
        self._closing = False
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="parse")
        self._stopped = threading.Event()  # computations in progress must stop
        self._known: dict[str, Handler] = {}  # wrapped handlers by method, so that each is wrapped only once

    @property
    def begun(self) -> int:
        """The number of calls that are being answered."""
        return self._queue.wanted

    async def close(self) -> None:
        """Wait until all calls in progress are done. New calls are refused, so that clients retry elsewhere."""
        self._closing = True
        await self._queue.idle()
        self._parser.shutdown(wait=False)

    def give_up(self) -> None:
        """Also refuse calls that wait for their turn, and stop computations at their next check."""
        self._stopped.set()
        self._queue.close()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = str(handler_call_details.method)
        wrapped_handler = self._known.get(method)
        if wrapped_handler is not None:
            return wrapped_handler
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        # gRPC calls this for existing methods only, so clients cannot make the dict grow.
        guarded = self._known[method] = self.wrapped(handler, method)
        return guarded

    def wrapped(self, handler: Handler, method: str) -> Handler:
        """Return the handler that replaces the given one.

        A handler of one request becomes a handler of a stream of requests. Clients see no difference, but only such a
        handler can decide whether to read the request.
        """
        if handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(
                _freed(self._received(self.answering(handler, method), method)), response_serializer=_serialized
            )
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(
                self._streamed(handler.stream_stream, method=method),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        if handler.unary_stream is not None:
            return grpc.stream_stream_rpc_method_handler(
                self._watched(handler.unary_stream, handler.request_deserializer, method=method),
                response_serializer=handler.response_serializer,
            )
        raise NotImplementedError(f"{method}: client streaming is not supported")

    def _streamed(
        self, behavior: Callable[[Any, Any], Any], *, method: str
    ) -> Callable[[Any, Context], AsyncIterator[Any]]:
        """Wrap reflection, whose handler comes from a library."""

        async def streamed(requests: object, context: Context) -> AsyncIterator[Any]:
            async with self._streaming(method, context):
                async for reply in behavior(requests, context):
                    yield reply

        return streamed

    def _watched(
        self, behavior: Callable[[Any, Any], Any], deserialize: Callable[[bytes], Any] | None, *, method: str
    ) -> Callable[[Any, Context], Awaitable[None]]:
        """Wrap the Watch method of health, whose handler comes from a library and writes its replies to the context."""

        async def watched(requests: object, context: Context) -> None:
            async with self._streaming(method, context):
                request = _read(await _message(context), deserialize, method)
                await behavior(request, context)

        return watched

    @asynccontextmanager
    async def _streaming(self, method: str, context: Context) -> AsyncIterator[None]:
        """Admit a stream and count it. An error of the block ends the call with its status."""
        try:
            self._admit(method, context)
            caller = host_of(context.peer()) if self._is_open(method) else caller_of(context)
            async with self._in_flight.streaming(caller):
                yield
        except TunerError as e:
            await self._refuse(context, e, method)

    def _is_open(self, method: str) -> bool:
        """Return whether the method needs no token, as health does, although the server asks for tokens."""
        return self._authorizer is not None and not self._authorizer.asks(method)

    def _admit(self, method: str, context: Context) -> None:
        if self._authorizer is not None:
            self._authorizer.admit(method, context.invocation_metadata() or ())
        elif self._certified:
            set_caller(_certificate_name(context))

    async def _refuse(
        self, context: Context, error: TunerError, method: str, entry: audit.AuditEntry | None = None
    ) -> NoReturn:
        """Refuse the call. `entry` is the audit entry of a call that would change something."""
        peer = context.peer()
        if isinstance(error, Unauthenticated):
            await _pause(self.connections.record_unauthenticated(peer))
        elif isinstance(error, RateLimited):
            await _pause(error.late_s)
        if entry is not None:
            entry.refused(error, self._denial_log)
        elif audit.denied(error):
            left_out = self._denial_log.take(audit.AuditEntry(method, peer).denial_key)
            if left_out is not None:
                events.warn(
                    "denied",
                    who=current_caller() or None,
                    method=method.rpartition("/")[2],
                    reason=error.reason,
                    peer=host_of(peer),
                    suppressed=left_out or None,
                )
        message, metadata = status_of(error)
        await context.abort(code_of(error), message, metadata)
        raise AssertionError("abort() raises")

    def _received(self, answer: Answer, method: str) -> Callable[[Any, Context], Awaitable[Any]]:
        """Wrap `answer`: admit the caller, read the request, and count what the caller has in flight."""
        name = method.rpartition("/")[2]
        is_limited = not method.startswith(HEALTH)
        is_recorded = rpc_of(method).recorded and is_limited
        in_flight = self._in_flight
        decoded_size = _decoded_size(method)

        async def received(stream: object, context: Context) -> Any:
            peer = context.peer()
            caller = ""
            try:
                self._admit(method, context)
                if self._is_open(method):
                    await _pause(self.connections.record_unauthenticated(peer))
                else:
                    self.connections.admitted(peer)
                caller = current_caller() or host_of(peer)
                if self._rate_limiter is not None and is_limited:
                    self._rate_limiter.take(caller)
                in_flight.enter(caller)
            except TunerError as e:
                entry = audit.AuditEntry(name, peer) if is_recorded and audit.recorded() else None
                await self._refuse(context, e, method, entry)
            requests = in_flight.requests(named=bool(current_caller()))
            held = 0
            try:
                async with requests.arriving(caller, self._received_bytes):
                    serialized = await requests.in_time(caller, _message(context), self._received_bytes)
                    size = await self._decoded_bytes(decoded_size, serialized)
                    try:
                        requests.hold_decoded(caller, size)
                    except TunerError:
                        # Only this frame holds the bytes, which must be gone before others arrive.
                        del serialized
                        raise
                    held = size
                reply = await answer(serialized, context, caller)
                context.add_done_callback(self._taken(caller, reply))
                return reply
            except TimeoutError:
                late = TimedOut(
                    f"the request did not arrive within {ARRIVAL_S:g} s, or was slow while others waited; send it again"
                )
                await self._refuse(context, late, method)
            except TunerError as e:
                await self._refuse(context, e, method)
            finally:
                requests.release_decoded(caller, held)
                in_flight.leave(caller)

        return received

    async def _decoded_bytes(self, decoded_size: DecodedSize, serialized: bytes) -> int:
        """Return the size of a request as decoded. A large one is counted in the thread that parses such."""
        if len(serialized) <= LARGE_BYTES:
            return decoded_size.bytes_of(serialized)
        return await asyncio.get_running_loop().run_in_executor(self._parser, decoded_size.bytes_of, serialized)

    def _taken(self, caller: str, reply: Reply) -> Any:  # a callback; grpc's stubs do not export its type
        """Count a reply until it was sent, or the client is gone."""
        size = len(reply.serialized)
        self._in_flight.hold_reply(caller, size)

        def taken(_: object) -> None:
            self._in_flight.release_reply(caller, size)

        return taken

    def answering(self, handler: Handler, method: str, *, serialize: bool = True) -> Answer:
        """Return a coroutine function that answers a caller's request and maps errors to statuses."""
        return functools.partial(self._answer, _Method.of(handler, method, serialize=serialize))

    def answering_inside(self, handler: Handler, method: str) -> Answer:
        """As `answering`, for calls from the server's own process. On a server with tokens, these also need one."""
        answer = self.answering(handler, method, serialize=False)
        if self._authorizer is None:
            return answer

        async def admitted(request: bytes | Message, context: Context, caller: str) -> Reply:
            try:
                self._admit(method, context)
                caller = current_caller() or caller
                if self._rate_limiter is not None:
                    self._rate_limiter.take(caller)
            except TunerError as e:
                await self._refuse(context, e, method)
            return await answer(request, context, caller)

        return admitted

    async def _answer(self, method: _Method, request: bytes | Message, context: Context, caller: str) -> Reply:
        entry = audit.AuditEntry(method.name, context.peer()) if method.recorded and audit.recorded() else None
        try:
            if isinstance(request, bytes):
                return await self._answered(method, request, context, caller, entry)
            request_sizes.check(request)
            return await self._carried_out(method, request, 0, context, caller, entry)
        except grpc.aio.AbortError:
            raise
        except TunerError as e:
            # The frames of the traceback hold the request, perhaps megabytes, and one of them holds the error. Only the
            # garbage collector would free such a cycle.
            error = e.with_traceback(None)
            self._store_health.refused(e, writing=method.rpc.writes)
        except Exception:
            bug = secrets.token_hex(4)
            log.exception("method=%s bug=%s", method.path, bug)
            error = InternalError(f"this is a bug of the server; its log has the details under {bug}")
        await self._refuse(context, error, method.path, entry)

    async def _answered(
        self, method: _Method, serialized: bytes, context: Context, caller: str, entry: audit.AuditEntry | None
    ) -> Reply:
        if method.is_coroutine:
            return method.reply(await method.behavior(method.read(serialized), context))
        size = len(serialized)
        if size <= LARGE_BYTES:
            return await self._carried_out(method, method.read(serialized), size, context, caller, entry)
        if method.rpc.framed:
            request = await asyncio.get_running_loop().run_in_executor(self._parser, method.read, serialized)
            return await self._carried_out(method, request, size, context, caller, entry)
        # Parse a large request only when the caller's previous large one is done, because a parsed request may take
        # thirty times as much memory. Parse in a single thread, because the C library keeps memory for each thread.
        async with self._queue.one_at_a_time(Flow(caller)):
            began = time.monotonic()
            try:
                request = await asyncio.get_running_loop().run_in_executor(self._parser, method.read, serialized)
            finally:
                if (took_s := time.monotonic() - began) > PARSING_S:
                    # No other thread runs during parsing, so limit a caller to a third of the time.
                    await asyncio.sleep(2 * min(took_s, 10 * PARSING_S))
            return await self._carried_out(method, request, size, context, caller, entry)

    async def _carried_out(
        self, method: _Method, request: Any, size: int, context: Context, caller: str, entry: audit.AuditEntry | None
    ) -> Reply:
        resource = resource_of(method.rpc, request)
        if entry is not None:
            entry.request, entry.resource = request, resource
        if self._authorizer is not None:
            self._authorizer.check(method.path, resource)
        if self._closing:
            raise Unavailable("this server is stopping; send the request again")
        study = "" if resource.study is None else str(resource.study)
        flow = Flow(caller, resource.namespace or "")
        began = time.monotonic()
        given_s = context.time_remaining()
        deadline.begin(given_s, stopped=self._stopped)

        def work() -> Reply:
            behavior = method.behavior
            return method.reply(
                behavior(request, resource) if entry is None else entry.run(behavior, request, resource)
            )

        running = self._queue.run(
            _turn(method, study),
            # The copied context gives the thread the caller and the deadline. The thread does not get gRPC's context,
            # because gRPC crashes when that is used after the call has ended.
            functools.partial(contextvars.copy_context().run, work),
            flow=flow,
            kind=_kind(method.name, request, study or flow.namespace, caller, size),
            reply_bytes=lambda reply: len(reply.serialized),
        )
        # gRPC itself ends a call for which the client set a deadline.
        reply = await (_within(deadline.DEFAULT_S, running) if given_s is None else running)
        if (seconds := time.monotonic() - began) > SLOW_S:
            events.log_event("slow_call", method=method.name, study=study, seconds=seconds)
        self._store_health.answered(writing=method.rpc.writes)
        return reply


@dataclass(frozen=True, slots=True)
class _Method:
    """A method as the interceptor calls it."""

    path: str
    name: str  # the last part of the path
    rpc: Rpc
    recorded: bool
    behavior: Any
    is_coroutine: bool
    deserialize: Callable[[bytes], Any] | None
    serializer: Callable[[Any], bytes] | None

    @classmethod
    def of(cls, handler: Handler, path: str, *, serialize: bool) -> _Method:
        rpc, is_coroutine = rpc_of(path), inspect.iscoroutinefunction(handler.unary_unary)
        return cls(
            path,
            path.rpartition("/")[2],
            rpc,
            not is_coroutine and rpc.recorded,
            handler.unary_unary,
            is_coroutine,
            handler.request_deserializer,
            handler.response_serializer if serialize else None,
        )

    def read(self, serialized: bytes) -> Any:
        """Parse a request. Raises InvalidArgument if the bytes are not a request of this method."""
        return _read(serialized, self.deserialize, self.path)

    def reply(self, message: object) -> Reply:
        return Reply(message, b"" if self.serializer is None else self.serializer(message))


@dataclass(frozen=True, slots=True)
class Reply:
    message: Any
    serialized: bytes


def _decoded_size(method: str) -> DecodedSize:
    """Return how the size of the method's request is estimated."""
    service, _, name = method.removeprefix("/").partition("/")
    kind = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name].input_type
    return DecodedSize.of(kind, framed=rpc_of(method).framed)


def _freed(handler: Callable[[Any, Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
    """Free the request of a call that is aborted.

    gRPC keeps the exception by which a call is aborted, and so its traceback, in a reference cycle. Through the frames
    it would also keep the request, until a garbage collection, which may be hundreds of large requests later.
    """

    async def freed(requests: object, context: Context) -> Any:
        try:
            return await handler(requests, context)
        except grpc.aio.AbortError as e:
            e.__context__ = None
            raise e.with_traceback(None) from None

    return freed


def _serialized(reply: Reply) -> bytes:
    return reply.serialized


def _certificate_name(context: Context) -> str:
    """Return the client's name, for example `cert:alice`, which is never a token's name; "" if there is none."""
    names = context.auth_context().get("x509_common_name", ())
    return f"cert:{next(iter(names)).decode(errors='replace')[:100]}" if names else ""


async def _pause(seconds: float) -> None:
    """Delay the refusal of a client that calls too often. Its streams are few, so it cannot flood the event loop."""
    if seconds:
        await asyncio.sleep(seconds)


async def _message(context: Context) -> bytes:
    """Return the only message of the stream. Raises InvalidArgument if there is none."""
    serialized: Any = await context.read()
    if serialized is grpc.aio.EOF:
        raise InvalidArgument.at("", "the call contained no request")
    return bytes(serialized)


def _turn(method: _Method, study: str) -> str:
    """Return the key under which calls are serialized. Calls that propose wait only for each other."""
    if not method.rpc.writes or not study:
        return ""
    return f"{method.name} of {study}" if method.rpc.proposes else study


def _kind(method: str, request: Any, about: str, caller: str, size: int) -> CallKind:
    """Return the kind of a call, whose cost is about proportional to trials requested, page size or kilobytes sent."""
    units = getattr(request, "count", 0) or getattr(request, "page_size", 0) or size / 1024
    return CallKind(f"{method} {about}", f"{method} by {caller}", float(max(1, units)))


async def _within(seconds: float, running: Awaitable[T]) -> T:
    """Await `running` for at most `seconds`. Raises TimedOut."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await running
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimedOut(
            f"not done within {seconds:g} s, the limit of a call without a deadline; "
            "it may still be done: send it again"
        ) from None


def _read(serialized: bytes, deserialize: Callable[[bytes], Any] | None, method: str) -> Any:
    """Parse a request. gRPC itself would answer INTERNAL to a malformed one, although it is the client's error."""
    if deserialize is None:
        return serialized
    try:
        request = deserialize(serialized)
    except DecodeError:
        message = f"the bytes sent to {method} are not a request of that method"
        raise InvalidArgument.at("", message) from None
    request_sizes.check(request)
    return request
