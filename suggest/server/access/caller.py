"""The caller of the current call and its rights: the name and the grant
of its token, or the client's host.

Both are context variables, available in the call's task and worker thread;
`suggest.server.interceptor` sets them. This module decides nothing: `suggest.server.rpcs` defines
which verb a method needs, and the token file who has which grant.
"""

from __future__ import annotations

import enum
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote


class AccessVerb(enum.Enum):
    READ = "read"  # see studies and trials
    RUN = "run"  # do the work of a client: request, report, complete and add trials
    MANAGE = "manage"  # create, change and delete studies, delete trials


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a token.

    `name` is the token's name; `namespaces` is None for all namespaces.
    """

    name: str
    verbs: frozenset[AccessVerb]
    namespaces: frozenset[str] | None

    def reaches(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


_GRANT: ContextVar[Grant | None] = ContextVar("grant", default=None)


def set_grant(grant: Grant) -> None:
    """Set the grant of this call, in its task and its worker thread."""
    _GRANT.set(grant)


def current_grant() -> Grant | None:
    """Return the grant of this call, None if no token was required."""
    return _GRANT.get()


def readable_namespaces() -> frozenset[str] | None:
    """Return the namespaces that this call may read; None means all."""
    grant = current_grant()
    return None if grant is None else grant.namespaces


UNIX = "unix"

_NAME: ContextVar[str] = ContextVar("caller_name", default="")


class _HasPeer(Protocol):
    """The part of a gRPC context that this module uses."""

    def peer(self) -> str: ...


def caller_of(context: _HasPeer) -> str:
    """Return the token's name; without tokens, `unix` or the host without its port.

    No token has the name of a host.

    Call this only in the call's own task: in a thread the call may be over, and then reading its
    peer crashes gRPC.
    """
    return current_caller() or host_of(context.peer())


def current_caller() -> str:
    """Return the name of the call's token, "" without one.

    Also works in the call's worker thread.
    """
    return _NAME.get()


def set_caller(name: str) -> None:
    """Set the token name of this call, in its task and its worker thread."""
    _NAME.set(name)


def host_of(peer: str) -> str:
    """Return the host.

    It is `127.0.0.1` for `ipv4:127.0.0.1:4711`, `::1`
    for `ipv6:%5B::1%5D:4711`, `unix` for a socket.
    """
    kind, _, remainder = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    return unquote(remainder).rpartition(":")[0].removeprefix("[").removesuffix("]")
