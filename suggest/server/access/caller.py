"""Who makes the current call, and what they may do: the name and the grant of its token, or the host it comes from.

Known while the call lasts, in its task and in its worker thread; `suggest.server.interceptor` sets both. Decides
nothing: `suggest.server.rpcs` says which verb a method needs, and a file of tokens who has which grant.
"""

from __future__ import annotations

import enum
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote


class Verb(enum.Enum):
    READ = "read"  # see studies and trials
    RUN = "run"  # what workers do: ask for trials, report, end and add them
    MANAGE = "manage"  # make, change and remove studies, remove trials


@dataclass(frozen=True, slots=True)
class Grant:
    """`name`: the token's. `namespaces`: None means all."""

    name: str
    verbs: frozenset[Verb]
    namespaces: frozenset[str] | None

    def reaches(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


_GRANT: ContextVar[Grant | None] = ContextVar("grant", default=None)


def hold(grant: Grant) -> None:
    """From here on, this call (this task, and its worker thread) is made under the grant."""
    _GRANT.set(grant)


def held() -> Grant | None:
    """Of this call. None: no token was asked for."""
    return _GRANT.get()


def readable_namespaces() -> frozenset[str] | None:
    """Those that this call may see; None means all."""
    grant = held()
    return None if grant is None else grant.namespaces


UNIX = "unix"

_NAME: ContextVar[str] = ContextVar("caller_name", default="")


class _Peered(Protocol):
    """What is asked of a gRPC context."""

    def peer(self) -> str: ...


def caller_of(context: _Peered) -> str:
    """The token's name; without tokens `unix` or the host, without its port. No token is named like a host.

    Only in the call's own task: in a thread the call may be over, and gRPC crashes when asked whose it was.
    """
    return name() or host_of(context.peer())


def name() -> str:
    """Of the call's token; "" without one. In the call's worker thread too."""
    return _NAME.get()


def known_as(name: str) -> None:
    """From here on, this call (this task) is by the token of that name."""
    _NAME.set(name)


def host_of(peer: str) -> str:
    """`127.0.0.1` of `ipv4:127.0.0.1:4711`, `::1` of `ipv6:%5B::1%5D:4711`, `unix` of every socket."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    return unquote(rest).rpartition(":")[0].removeprefix("[").removesuffix("]")
