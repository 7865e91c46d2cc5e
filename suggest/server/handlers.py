"""gRPC's handlers of methods that are functions of a request and the call's `Resource`.

They are blocking; `suggest.server.interceptor` runs them. A handler may be added to several
servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import grpc

# The types of requests and replies are known to the functions only.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
# By name: the function that answers, and the request's type.
Methods: TypeAlias = Mapping[str, tuple[Callable[[Any, Any], Any], Any]]


def handlers_of(methods: Methods) -> dict[str, Handler]:
    """Return the handlers of a service's methods by name."""
    return {
        name: grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=kind.FromString,
            response_serializer=_serialized,
        )
        for name, (answer, kind) in methods.items()
    }


def add_handlers(server: grpc.aio.Server, by_service: Mapping[str, dict[str, Handler]]) -> None:
    """Add the handlers of each service's methods to a server."""
    for service, handlers in by_service.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def _serialized(reply: Any) -> bytes:  # any message
    serialized: bytes = reply.SerializeToString()
    return serialized
