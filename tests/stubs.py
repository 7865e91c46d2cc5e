"""Stubs of the services, with the names that generated code gives them."""

from __future__ import annotations

from typing import Any

from suggest.grpc_methods import Stub
from suggest.katib.v1beta1 import api_pb2
from suggest.v1 import suggest_pb2


class SuggestServiceStub(Stub):
    def __init__(self, channel: Any) -> None:
        super().__init__(channel, suggest_pb2.DESCRIPTOR.services_by_name["SuggestService"])


class SuggestionStub(Stub):
    def __init__(self, channel: Any) -> None:
        super().__init__(channel, api_pb2.DESCRIPTOR.services_by_name["Suggestion"])


class EarlyStoppingStub(Stub):
    def __init__(self, channel: Any) -> None:
        super().__init__(channel, api_pb2.DESCRIPTOR.services_by_name["EarlyStopping"])


class DBManagerStub(Stub):
    def __init__(self, channel: Any) -> None:
        super().__init__(channel, api_pb2.DESCRIPTOR.services_by_name["DBManager"])
