"""Stubs of Katib's services, with their methods by name, as the generated ones have them."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from suggest.katib.v1beta1 import api_pb2


class _Stub:
    """A service. Its name is that of the class without `Stub`."""

    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None:
        name = type(self).__name__.removesuffix("Stub")
        service = api_pb2.DESCRIPTOR.services_by_name[name]
        self._methods = {
            method.name: channel.unary_unary(
                f"/{service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            for method in service.methods
        }

    def __getattr__(self, name: str) -> Any:  # a call of any of the methods
        return self._methods[name]


class SuggestionStub(_Stub):
    pass


class EarlyStoppingStub(_Stub):
    pass


class DBManagerStub(_Stub):
    pass
