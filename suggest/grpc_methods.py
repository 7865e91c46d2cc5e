"""The methods of a gRPC service, by its descriptor: a stub that calls them, handlers that answer.

They replace the code that a generator would write for each service, and that would be imported
whole by each client. Only methods with one request and one reply are known here.
"""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass


class Stub:
    """The methods of a service on a channel: `stub.GetStudy(request, timeout=10)`."""

    def __init__(self, channel: Any, service: ServiceDescriptor) -> None:
        """channel: of gRPC, of its asyncio, or one that has their `unary_unary`."""
        self._channel = channel
        self._service = service

    def __getattr__(self, name: str) -> Any:  # called once for each method
        method = self._service.methods_by_name.get(name)
        if method is None:
            raise AttributeError(f"{self._service.full_name} has no method {name}")
        call = self._channel.unary_unary(
            f"/{self._service.full_name}/{name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        setattr(self, name, call)
        return call


def handlers_of(
    service: ServiceDescriptor, servicer: object
) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """Return the handlers of all methods, which are those of the servicer with their names."""
    return {
        method.name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
    }
