"""Conversion between errors and gRPC statuses: the table that server and client share.

A status carries google.rpc.ErrorInfo (reason, metadata) and, for invalid arguments,
google.rpc.BadRequest with every problem. Nothing else about the inside of the server is sent.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import grpc

from suggest.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    LeaseExpired,
    LimitReached,
    NotFound,
    NotOwner,
    PermissionDenied,
    Problem,
    RateLimited,
    StoreBroken,
    StudyBusy,
    TimedOut,
    TunerError,
    Unauthenticated,
    Unavailable,
)

DOMAIN = "tuner.dev"
DETAILS_KEY = "grpc-status-details-bin"

# Most specific first, because the first matching class decides.
_CODES: tuple[tuple[type[TunerError], grpc.StatusCode], ...] = (
    (InvalidArgument, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (FailedPrecondition, grpc.StatusCode.FAILED_PRECONDITION),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (PermissionDenied, grpc.StatusCode.PERMISSION_DENIED),
    (RateLimited, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (LimitReached, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TimedOut, grpc.StatusCode.DEADLINE_EXCEEDED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (StoreBroken, grpc.StatusCode.DATA_LOSS),
)
_BY_REASON: dict[str, type[TunerError]] = {kind.reason: kind for kind, _ in _CODES}
_BY_REASON[LeaseExpired.reason] = LeaseExpired
_LATER = {c.reason: c for c in (RateLimited, StudyBusy)}
# A gRPC peer may refuse metadata of more than 8 KiB, which contains the message twice, escaped.
_MAX_MESSAGE = 1000
_MAX_PROBLEMS = 3000
# Texts in gRPC's errors about a connection. WRONG_VERSION_NUMBER is a server without TLS. The error
# of a client without TLS at a server with TLS ("Socket closed") looks like a restart, so it is not
# listed and the call is retried.
_MISMATCHES = (
    "CERTIFICATE_VERIFY_FAILED",
    "Hostname Verification Check failed",
    "WRONG_VERSION_NUMBER",
    "Trying to connect an http1.x server",
)

# How gRPC's errors begin if no request was sent.
_NO_CONNECTION = ("failed to connect", "DNS resolution failed", "errors resolving ")


class InternalError(TunerError):
    """A bug in the server. The id in the message is also in the server's log."""

    reason = "INTERNAL"


def code_of(error: TunerError) -> grpc.StatusCode:
    return next(
        (code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL
    )


def status_of(error: TunerError) -> tuple[str, tuple[tuple[str, bytes], ...]]:
    """Return the message and the trailing metadata to abort a call with."""
    # Imported here because most processes never have an error.
    from google.protobuf.any_pb2 import Any as AnyMessage
    from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    if isinstance(error, NotOwner):
        info.metadata["address"] = error.address
    if isinstance(error, LimitReached):
        info.metadata["limit"] = error.limit
    details = [info]
    if isinstance(error, InvalidArgument):
        details.append(_bad_request(error))
    if isinstance(error, RateLimited):
        details.append(_retry_info(error))
    if isinstance(error, LimitReached):
        violation = error_details_pb2.QuotaFailure.Violation(
            subject=error.subject, description=_shortened(str(error), 500)
        )
        details.append(error_details_pb2.QuotaFailure(violations=[violation]))
    message = _shortened(str(error), _MAX_MESSAGE)
    status = status_pb2.Status(code=code_of(error).value[0], message=message)
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return message, ((DETAILS_KEY, status.SerializeToString()),)


def error_of(failure: grpc.RpcError, *, address: str, timeout_s: float) -> TunerError:
    """Return the error that a client raises for a failed call to `address`."""
    # The errors that grpc raises are also calls, with metadata as pairs,
    # which its types do not show.
    call: Any = failure
    code: grpc.StatusCode = call.code()
    message: str = call.details() or code.name.lower()
    for key, value in call.trailing_metadata() or ():
        if key == DETAILS_KEY:
            return _from_details(value, message)
    match code:
        case grpc.StatusCode.UNAVAILABLE if is_mismatch(failure):
            return Unavailable(
                f"no connection to {address}: client and server do not agree on TLS; name the "
                "server's authority with --tls-ca or TUNER_TLS_CA, or omit it if the server does "
                f"not use TLS: {message}"
            )
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return Unavailable(
                f"no suggestion service answers at {address}, tried for {timeout_s:g} s; check "
                "that it is running, and that both sides use TLS or neither does (--tls-ca, "
                f"TUNER_TLS_CA): {message}"
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unavailable(
                f"the suggestion service at {address} did not answer within {timeout_s:g} s"
            )
        case grpc.StatusCode.UNIMPLEMENTED:
            return Unavailable(
                f"the server at {address} is not a suggestion service, or an older version "
                f"({message})"
            )
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidArgument.at("", message)
        case grpc.StatusCode.UNAUTHENTICATED:  # without details, so from a proxy in between
            return Unauthenticated(
                f"the server at {address} does not accept this client ({message})"
            )
        case grpc.StatusCode.PERMISSION_DENIED:
            return PermissionDenied(f"the server at {address} denies permission ({message})")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return InvalidArgument.at(
                "", f"larger than the service at {address} accepts ({message})"
            )
    return InternalError(f"the suggestion service at {address} failed: {message}")


def is_mismatch(failure: grpc.RpcError) -> bool:
    """Return whether gRPC failed to connect because of TLS or another protocol.

    Waiting does not cure these.
    """
    call: Any = failure  # as in error_of
    message: str = call.details() or ""
    return call.code() is grpc.StatusCode.UNAVAILABLE and any(
        sign in message for sign in _MISMATCHES
    )


def is_without_connection(failure: grpc.RpcError) -> bool:
    """Return whether there was no connection, so that the request was certainly not sent."""
    call: Any = failure  # as in error_of
    return call.code() is grpc.StatusCode.UNAVAILABLE and (call.details() or "").startswith(
        _NO_CONNECTION
    )


def _bad_request(error: InvalidArgument) -> Any:  # google.rpc has no types
    from google.rpc import error_details_pb2

    bad, room = error_details_pb2.BadRequest(), _MAX_PROBLEMS
    for i, problem in enumerate(error.problems):
        description, path = _shortened(problem.message, 500), _shortened(problem.path, 200)
        room -= len(description.encode()) + len(path.encode())
        if room < 0:
            remaining = len(error.problems) - i
            bad.field_violations.add(
                description=f"and {remaining} more problem{'' if remaining == 1 else 's'}"
            )
            break
        bad.field_violations.add(field=path, description=description)
    return bad


def _retry_info(error: RateLimited) -> Any:  # google.rpc has no types
    from google.rpc import error_details_pb2

    info = error_details_pb2.RetryInfo()
    # rounded down, the retry would come too early
    info.retry_delay.FromMilliseconds(ceil(error.retry_s * 1000))
    return info


def _from_details(serialized: bytes, message: str) -> TunerError:
    from google.rpc import error_details_pb2, status_pb2

    info = error_details_pb2.ErrorInfo()
    bad = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    for detail in status_pb2.Status.FromString(serialized).details:
        # Unpack returns whether the detail has that type.
        detail.Unpack(info) or detail.Unpack(bad) or detail.Unpack(retry)
    if info.reason == InvalidArgument.reason:
        return InvalidArgument(
            [Problem(v.field, v.description) for v in bad.field_violations]
            or [Problem("", message)]
        )
    if info.reason == NotOwner.reason:
        return NotOwner(message, address=info.metadata["address"])
    if info.reason in _LATER:
        return _LATER[info.reason](message, retry_s=retry.retry_delay.ToMilliseconds() / 1000)
    if info.reason == LimitReached.reason:
        return LimitReached(message, limit=info.metadata["limit"])
    return _BY_REASON.get(info.reason, InternalError)(message)


def _shortened(text: str, limit: int) -> str:
    if len(text.encode()) <= limit:
        return text
    return text.encode()[:limit].decode(errors="ignore") + "…"
