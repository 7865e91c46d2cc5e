"""Token files for tests, and raw calls with a token,
so that every method of the service can be tested.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import yaml
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from suggest.grpc_status import DETAILS_KEY
from suggest.v1 import suggest_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["SuggestService"]


@dataclass(frozen=True, slots=True)
class Refusal:
    code: grpc.StatusCode
    reason: str
    message: str


def secret(name: str) -> str:
    return f"the-secret-of-{name}-0123456789"


def tokens_file(path: Path, **grants: tuple[Sequence[str] | str, Sequence[str] | str]) -> Path:
    """Write a token file. `grants` are (verbs, namespaces) by name."""
    tokens = {
        name: {
            "sha256": hashlib.sha256(secret(name).encode()).hexdigest(),
            "verbs": verbs if isinstance(verbs, str) else list(verbs),
            "namespaces": namespaces if isinstance(namespaces, str) else list(namespaces),
        }
        for name, (verbs, namespaces) in grants.items()
    }
    path.write_text(yaml.safe_dump({"tokens": tokens}), encoding="utf-8")
    return path


def call(
    channel: grpc.Channel,
    method: str,
    request: Message,
    token: str | None,
    *,
    timeout_s: float = 20,
) -> Message | Refusal:
    """Call a method, given by its bare name, with a token or without (None)."""
    descriptor = SERVICE.methods_by_name[method]
    send = channel.unary_unary(
        f"/{SERVICE.full_name}/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=_message(descriptor.output_type).FromString,
    )
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    try:
        reply: Message = send(request, timeout=timeout_s, metadata=metadata)
    except grpc.RpcError as e:
        return refusal(e)
    return reply


def refusal(error: Any) -> Refusal:
    """Return the refusal that the service sent, with the reason in its details."""
    info = error_details_pb2.ErrorInfo()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            for detail in status_pb2.Status.FromString(value).details:
                detail.Unpack(info)
    return Refusal(error.code(), info.reason, error.details())


def request_about(method: str, study: str) -> Message:
    """Return a request of the method with only the name fields set, for the full name `study`."""
    request = _message(SERVICE.methods_by_name[method].input_type)()
    namespace = "/".join(study.split("/")[:2])
    for field, name in (
        ("parent", namespace if method in ("CreateStudy", "ListStudies") else study),
        ("name", study if method in ("GetStudy", "DeleteStudy") else f"{study}/trials/0"),
        ("study_id", study.rpartition("/")[2]),
    ):
        if field in request.DESCRIPTOR.fields_by_name:
            setattr(request, field, name)
    if method == "UpdateStudy":
        request.study.name = study
    elif method == "UpdateTrial":
        request.trial.name = f"{study}/trials/0"
    return request


def _message(descriptor: Any) -> Any:  # an instance of a class created at run time
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(descriptor)
