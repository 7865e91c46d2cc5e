"""Calls from the event loop in which the server runs: the same handlers,
deadlines and errors, without a socket.

Messages are handed over, and never serialized. An embedded service is called twice
per trial. Over gRPC, two of three milliseconds would be spent on moving bytes
through four threads of the same process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from suggest.grpc_status import error_of
from suggest.server.access.caller import Rights
from suggest.server.handlers import Handler
from suggest.server.interceptor import CallInterceptor, Reply
from suggest.wire import METHODS

Metadata = Sequence[tuple[str, str | bytes]]


class InProcessChannel:
    """Implements `suggest.client.Channel`."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        interceptor: CallInterceptor,
        *,
        rights: Rights | None,
        caller: str,
    ) -> None:
        """handlers: of the service's methods, by name.

        caller: who the client is in the shares of threads and memory.
        """
        self._caller = caller
        self._answers = {
            (path := METHODS[name].path): interceptor.answering_inside(handler, path, rights=rights)
            for name, handler in handlers.items()
        }

    def unary_unary(self, method: str, **serializers: object) -> Callable[..., Awaitable[Any]]:
        """Return a callable that takes and returns messages, as a method of gRPC does.

        It raises AioRpcError.
        """
        answer = self._answers[method]

        # the signature of a method of gRPC
        async def call(request: Any, *, timeout: float, metadata: Metadata) -> Any:  # noqa: ASYNC109
            context: Any = _Context(time.monotonic() + timeout, metadata)
            # Each call has its own task, because the caller and the deadline
            # are context variables of the task.
            answering: asyncio.Task[Reply] = asyncio.create_task(
                answer(request, context, self._caller)
            )
            try:
                async with asyncio.timeout(timeout):
                    return (await answering).message
            except TimeoutError:
                raise _refused(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None

        return call

    async def exchange(self, method: str, request: bytes, *, timeout_s: float) -> bytes:
        """As `unary_unary` with serialized messages, for protocols other than gRPC.

        Raises the TunerError of the call.
        """
        try:
            reply = await self.unary_unary(method)(request, timeout=timeout_s, metadata=())
        except grpc.aio.AioRpcError as failure:
            raise error_of(failure, address="this server", timeout_s=timeout_s) from failure
        serialized: bytes = reply.SerializeToString()
        return serialized

    async def close(self) -> None:
        """Do nothing: the server belongs to the caller."""


@dataclass(frozen=True, slots=True)
class _Context:
    """The part of `grpc.aio.ServicerContext` that `interceptor` uses."""

    end_s: float
    metadata: Metadata

    def peer(self) -> str:
        return "unix:"

    def invocation_metadata(self) -> Metadata:
        return self.metadata

    def time_remaining(self) -> float:
        return self.end_s - time.monotonic()

    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: Metadata
    ) -> NoReturn:
        raise _refused(code, details, trailing_metadata)


def _refused(code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)
