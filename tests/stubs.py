"""Stubs of the services, with a method for each of the proto's, as other languages generate them.

Made from the descriptors: the product needs no stubs, and the clients in `tests/clients` that are
not Python have generated ones.
"""

from __future__ import annotations

from typing import Any, ClassVar

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from suggest.katib.v1beta1 import api_pb2
from suggest.v1 import suggest_pb2

KATIB = api_pb2.DESCRIPTOR.services_by_name


class Stub:
    """channel: of gRPC, blocking or not."""

    service: ClassVar[ServiceDescriptor]

    def __init__(self, channel: Any) -> None:
        for method in self.service.methods:
            call = channel.unary_unary(
                f"/{self.service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, call)

    # Any: a method of the service, as `__init__` has set it
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class SuggestServiceStub(Stub):
    service = suggest_pb2.DESCRIPTOR.services_by_name["SuggestService"]


class SuggestionStub(Stub):
    service = KATIB["Suggestion"]


class EarlyStoppingStub(Stub):
    service = KATIB["EarlyStopping"]


class DBManagerStub(Stub):
    service = KATIB["DBManager"]
