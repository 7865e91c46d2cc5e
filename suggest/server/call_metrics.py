"""Around every call, outermost, where a server has metrics: how many are under way, how long each took, how it ended.

It changes nothing about a call, and looks at nothing of it but its reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

# What requests, replies and contexts are is the handlers' affair.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
# method, code, seconds, reply (an `interceptor.Reply`; None: none was sent)
Ended: TypeAlias = Callable[[str, str, float, Any], None]

_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


class Watch(grpc.aio.ServerInterceptor):
    """Belongs to the server's loop. `ended`: told of each call, by the bare name of its method."""

    def __init__(self, ended: Ended) -> None:
        self._ended = ended
        self._known: dict[str, tuple[Handler, Handler]] = {}  # by method: what was wrapped, and as what
        self.in_flight = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = str(handler_call_details.method)
        handler = await continuation(handler_call_details)  # always: the next room may decide for each call
        if handler is None or handler.stream_unary is None:
            return handler  # health and reflection, which last
        known = self._known.get(method)
        if known is None or known[0] is not handler:
            watched = grpc.stream_unary_rpc_method_handler(
                self._watched(handler.stream_unary, method=method.rpartition("/")[2]),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
            known = self._known[method] = handler, watched
        return known[1]

    def _watched(self, behaviour: Callable[[Any, Any], Any], *, method: str) -> Callable[[Any, Context], Any]:
        async def watched(request: Any, context: Context) -> Any:
            began = time.monotonic()
            self.in_flight += 1
            reply = None
            code = "CANCELLED"  # unless it comes to an end
            try:
                reply = await behaviour(request, context)
                code = "OK"
                return reply
            except asyncio.CancelledError:
                raise
            except BaseException:
                code = _code(context)
                raise
            finally:
                self.in_flight -= 1
                self._ended(method, code, time.monotonic() - began, reply)

        return watched


def _code(context: Context) -> str:
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else _CODES.get(code, "UNKNOWN")
