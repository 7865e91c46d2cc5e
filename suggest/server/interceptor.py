"""Wraps every call to the server: methods run in worker threads,
and every error becomes a status by abort().

This module knows nothing about studies, except that calls that write the same study run one at a
time. It rejects unauthorized calls before reading the request. An unknown exception is a bug: the
client gets an id, and the log has the details.
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

from suggest import deadline, events, threads
from suggest.errors import (
    InvalidArgument,
    RateLimited,
    TimedOut,
    TunerError,
    Unauthenticated,
    Unavailable,
)
from suggest.fair_share import FairShare
from suggest.grpc_status import InternalError, code_of, status_of
from suggest.server import request_sizes
from suggest.server.access import audit
from suggest.server.access.audit import DenialLog
from suggest.server.access.authorization import HEALTH, Authorizer
from suggest.server.access.caller import CALLER, OWN, RIGHTS, Rights, host_of
from suggest.server.call_pool import CallPool
from suggest.server.decoded_size import DecodedSize
from suggest.server.handlers import Handler
from suggest.server.in_flight import HEAVY_BYTES, MAX_CALLS, MAX_STREAMS, CallerLimit, RequestBytes
from suggest.server.limits_file import Limits, RateLimit
from suggest.server.rate_limits import RateLimiter
from suggest.server.rpcs import Rpc, resource_of, rpc_of
from suggest.server.store_health import StoreHealth

log = logging.getLogger(__name__)

SLOW_S = 1.0
LARGE_BYTES = 64 << 10  # a larger request is parsed in a thread, which takes milliseconds
# of a host: calls that need no token or are denied
UNAUTHENTICATED = Limits(RateLimit(rate=100.0, burst=200.0))

# The types of requests, replies and contexts are known to the handlers only.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
# The behavior of a wrapped method: takes the stream with the request.
Behavior: TypeAlias = "Callable[[Any, Context], Awaitable[Any]]"
# Takes a request, which a client in this process hands over as a message,
# and the name of its caller.
Answer: TypeAlias = "Callable[[bytes | Message, Context, str], Coroutine[Any, Any, Reply]]"
T = TypeVar("T")


class Shared:
    """What the gRPC servers of a process share.

    `limits` returns the current limits; None for a server without any.
    """

    def __init__(self, pool: CallPool, limits: Callable[[], Limits] | None) -> None:
        self.pool = pool
        self.rate_limiter = None if limits is None else RateLimiter(limits)
        self.unauthenticated = RateLimiter(lambda: UNAUTHENTICATED)
        self.calls = CallerLimit(
            MAX_CALLS,
            "{caller} has {most} calls in flight; send fewer at once, or wait for the replies",
        )
        self.streams = CallerLimit(
            MAX_STREAMS, "{caller} has {most} streams open; close some first"
        )
        # Callers without a name may come from any number of hosts,
        # so they have a total of their own.
        self.named_requests = RequestBytes(pool.heavy)
        self.unnamed_requests = RequestBytes(pool.heavy)
        self.parsing = FairShare(2)  # a caller has one request in the thread that parses large ones
        self.store_health = StoreHealth()
        self.denial_log = DenialLog()


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Runs handlers in worker threads, coroutine functions in the loop.

    Without an authorizer, it allows every call.
    """

    def __init__(
        self,
        shared: Shared,
        authorizer: Authorizer | None,
        *,
        received_bytes: int,
        certified: bool,
        measure: Callable[[Behavior, str], Behavior] | None,
    ) -> None:
        """Create the interceptor of one server.

        Args:
            received_bytes: The size that its requests may have.
            certified: Clients have certificates, whose names identify them if there are no tokens.
            measure: Wraps the behavior of a method, given by its bare name, to measure its calls.
        """
        self._shared = shared
        self._authorizer = authorizer
        self._received_bytes = received_bytes
        self._certified = certified and authorizer is None
        self._measure = measure
        self._closing = False
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="parse")
        self._stopped = threading.Event()  # computations in progress must stop
        # wrapped handlers by method, so that each is wrapped only once
        self._known: dict[str, Handler] = {}

    @property
    def begun(self) -> int:
        """The number of calls that are being answered."""
        return self._shared.pool.wanted

    async def close(self) -> None:
        """Wait until all calls in progress are done.

        New calls are refused, so that clients retry elsewhere.
        """
        self._closing = True
        await self._shared.pool.idle()
        self._parser.shutdown(wait=False)

    def give_up(self) -> None:
        """Also refuse calls that wait for their turn, and stop computations at their next check."""
        self._stopped.set()
        self._shared.pool.close()

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

        A handler of one request becomes a handler of a stream of requests. Clients see no
        difference, but only such a handler can decide whether to read the request.
        """
        if handler.unary_unary is not None:
            behavior = _freed(self._received(_Method.of(handler, method, serialize=True)))
            if self._measure is not None:
                behavior = self._measure(behavior, method.rpartition("/")[2])
            return grpc.stream_unary_rpc_method_handler(behavior, response_serializer=_serialized)
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
        self,
        behavior: Callable[[Any, Any], Any],
        deserialize: Callable[[bytes], Any] | None,
        *,
        method: str,
    ) -> Callable[[Any, Context], Awaitable[None]]:
        """Wrap the Watch method of health.

        Its handler comes from a library and writes its replies to the context.
        """

        async def watched(requests: object, context: Context) -> None:
            async with self._streaming(method, context):
                request = _read(await _message(context), deserialize, method)
                await behavior(request, context)

        return watched

    @asynccontextmanager
    async def _streaming(self, method: str, context: Context) -> AsyncIterator[None]:
        """Admit a stream and count it. An error of the block ends the call with its status."""
        try:
            await self._admit(method, context)
            caller = CALLER.get() or host_of(context.peer())
            with self._shared.streams.one_more(caller):
                yield
        except TunerError as e:
            await self._refuse(context, e, method)

    async def _admit(self, method: str, context: Context) -> None:
        if self._authorizer is not None:
            await self._authorizer.admit(method, context.invocation_metadata() or ())
        elif self._certified:
            CALLER.set(_certificate_name(context))

    async def _refuse(
        self,
        context: Context,
        error: TunerError,
        method: str,
        entry: audit.AuditEntry | None = None,
    ) -> NoReturn:
        """Refuse the call. `entry` is the audit entry of a call that would change something."""
        peer = context.peer()
        if isinstance(error, Unauthenticated):
            await self._slow_down(peer)
        elif isinstance(error, RateLimited):
            await _pause(error.late_s)
        if entry is not None:
            entry.refused(error, self._shared.denial_log)
        elif audit.denied(error):
            left_out = self._shared.denial_log.take(audit.AuditEntry(method, peer).denial_key)
            if left_out is not None:
                events.warn(
                    "denied",
                    who=CALLER.get() or None,
                    method=method.rpartition("/")[2],
                    reason=error.reason,
                    peer=host_of(peer),
                    suppressed=left_out or None,
                )
        message, metadata = status_of(error)
        await context.abort(code_of(error), message, metadata)
        raise AssertionError("abort() raises")

    async def _slow_down(self, peer: str) -> None:
        """Delay the reply to a host that calls without a token too often."""
        try:
            self._shared.unauthenticated.take(host_of(peer))
        except RateLimited as e:
            await _pause(e.late_s)

    def _received(self, method: _Method) -> Behavior:
        """Admit the caller, read the request, and count what is in flight; then answer."""
        name, path = method.name, method.path
        is_limited = not path.startswith(HEALTH)
        is_recorded = method.rpc.recorded and is_limited
        shared = self._shared
        decoded_size = _decoded_size(path)

        async def received(stream: object, context: Context) -> Any:
            peer = context.peer()
            try:
                await self._admit(path, context)
                if self._authorizer is not None and not self._authorizer.asks(path):
                    await self._slow_down(peer)
                caller = CALLER.get() or host_of(peer)
                if shared.rate_limiter is not None and is_limited:
                    shared.rate_limiter.take(caller)
                requests = shared.named_requests if CALLER.get() else shared.unnamed_requests
                with shared.calls.one_more(caller):
                    async with requests.room(
                        caller, _kind(name, caller), self._received_bytes
                    ) as room:
                        serialized = await room.read(_message(context))
                        room.resize(
                            await self._in_parser(decoded_size.bytes_of, serialized, caller)
                        )
                        reply = await self._answer(method, serialized, context, caller)
            except TunerError as e:
                entry = audit.AuditEntry(name, peer) if is_recorded and audit.recorded() else None
                await self._refuse(context, e, path, entry)
            context.add_done_callback(shared.pool.sending(caller, len(reply.serialized)))
            return reply

        return received

    async def _in_parser(self, function: Callable[[bytes], T], serialized: bytes, caller: str) -> T:
        """Apply the function to a request: to a large one in a single thread.

        The C library keeps memory for each thread that parses.
        """
        if len(serialized) <= LARGE_BYTES:
            return function(serialized)
        parsing = self._shared.parsing
        await parsing.take(caller)
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._parser, function, serialized
            )
        finally:
            parsing.give(caller)

    def answering_inside(self, handler: Handler, method: str, *, rights: Rights | None) -> Answer:
        """Return what answers calls from the server's own process, and maps errors to statuses.

        rights: those of the caller, who is known already; None: on a server with tokens, these
        calls also need one.
        """
        answer = functools.partial(self._answer, _Method.of(handler, method, serialize=False))
        if self._authorizer is None:
            return answer

        async def own(request: bytes | Message, context: Context, caller: str) -> Reply:
            RIGHTS.set(OWN)
            return await answer(request, context, caller)

        if rights is OWN:
            return own

        async def admitted(request: bytes | Message, context: Context, caller: str) -> Reply:
            try:
                if rights is None:
                    await self._admit(method, context)
                else:
                    CALLER.set(rights.name)
                    RIGHTS.set(rights)
                caller = CALLER.get() or caller
                if self._shared.rate_limiter is not None:
                    self._shared.rate_limiter.take(caller)
            except TunerError as e:
                await self._refuse(context, e, method)
            return await answer(request, context, caller)

        return admitted

    async def _answer(
        self, method: _Method, request: bytes | Message, context: Context, caller: str
    ) -> Reply:
        entry = (
            audit.AuditEntry(method.name, context.peer())
            if method.recorded and audit.recorded()
            else None
        )
        is_large = isinstance(request, bytes) and len(request) > HEAVY_BYTES
        try:
            if isinstance(request, bytes):
                request = await self._in_parser(method.read, request, caller)
            else:
                request_sizes.check(request)
            if method.is_coroutine:
                return method.reply(await method.behavior(request, context))
            return await self._carried_out(
                method, request, context, caller, entry, is_large=is_large
            )
        except grpc.aio.AbortError:
            raise
        except TunerError as e:
            # The frames of the traceback hold the request, perhaps megabytes, and one of them holds
            # the error. Only the garbage collector would free such a cycle.
            error = e.with_traceback(None)
            self._shared.store_health.refused(e, writing=method.rpc.writes)
        except Exception as e:
            if threads.is_refused(e):
                error = Unavailable(threads.NO_THREAD_LEFT)
            else:
                bug = secrets.token_hex(4)
                log.exception("method=%s bug=%s", method.path, bug)
                error = InternalError(
                    f"this is a bug of the server; its log has the details under {bug}"
                )
        await self._refuse(context, error, method.path, entry)

    async def _carried_out(
        self,
        method: _Method,
        request: Any,
        context: Context,
        caller: str,
        entry: audit.AuditEntry | None,
        *,
        is_large: bool,
    ) -> Reply:
        resource = resource_of(method.rpc, request)
        if entry is not None:
            entry.request, entry.resource = request, resource
        if self._authorizer is not None:
            await self._authorizer.check(method.path, resource)
        if self._closing:
            raise Unavailable("this server is stopping; send the request again")
        study = "" if resource.study is None else str(resource.study)
        began = time.monotonic()
        given_s = context.time_remaining()
        deadline.begin(given_s, stopped=self._stopped)

        def work() -> Reply:
            behavior = method.behavior
            return method.reply(
                behavior(request, resource)
                if entry is None
                else entry.run(behavior, request, resource)
            )

        running = self._shared.pool.run(
            caller,
            # The copied context gives the thread the caller and the deadline. The thread does not
            # get gRPC's context, because gRPC crashes when that is used after the call has ended.
            functools.partial(contextvars.copy_context().run, work),
            study=_lock_key(method, study),
            kind=_kind(method.name, caller, study),
            is_heavy=is_large,
        )
        # gRPC itself ends a call for which the client set a deadline.
        reply = await (_within(deadline.DEFAULT_S, running) if given_s is None else running)
        if (seconds := time.monotonic() - began) > SLOW_S:
            events.log_event("slow_call", method=method.name, study=study, seconds=seconds)
        self._shared.store_health.answered(writing=method.rpc.writes)
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


def _freed(handler: Behavior) -> Behavior:
    """Free the request of a call that is aborted.

    gRPC keeps the exception by which a call is aborted, and so its traceback, in a reference cycle.
    Through the frames it would also keep the request, until a garbage collection, which may be
    hundreds of large requests later.
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
    """Return the client's name, for example `cert:alice`; "" if there is none.

    It is never a token's name.
    """
    names = context.auth_context().get("x509_common_name", ())
    return f"cert:{next(iter(names)).decode(errors='replace')[:100]}" if names else ""


async def _pause(seconds: float) -> None:
    """Delay the refusal of a client that calls too often.

    Its streams are few, so it cannot flood the event loop.
    """
    if seconds:
        await asyncio.sleep(seconds)


async def _message(context: Context) -> bytes:
    """Return the only message of the stream. Raises InvalidArgument if there is none."""
    serialized: Any = await context.read()
    if serialized is grpc.aio.EOF:
        raise InvalidArgument.at("", "the call contained no request")
    return bytes(serialized)


def _lock_key(method: _Method, study: str) -> str:
    """Return the key under which calls are serialized.

    Calls that propose wait only for each other.
    """
    if not method.rpc.writes or not study:
        return ""
    return f"{method.name} of {study}" if method.rpc.proposes else study


def _kind(method: str, caller: str, study: str = "") -> str:
    """Return the kind of a call: calls of a kind are heavy for some time after one of them was.

    A slow study makes no other study's calls heavy.
    """
    return f"{method} by {caller} of {study}" if study else f"{method} by {caller}"


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
    """Parse a request.

    gRPC itself would answer INTERNAL to a malformed one, although it is the client's error.
    """
    if deserialize is None:
        return serialized
    try:
        request = deserialize(serialized)
    except DecodeError:
        message = f"the bytes sent to {method} are not a request of that method"
        raise InvalidArgument.at("", message) from None
    request_sizes.check(request)
    return request
