"""The caller of the current call and its rights: the name and the grant
of its token, or the client's host.

Both are context variables; `suggest.server.interceptor` sets them. `suggest.server.rpcs` defines
which verb a method needs, and the token file who has which grant.
"""

from __future__ import annotations

import enum
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import unquote

from suggest.errors import PermissionDenied


class AccessVerb(enum.Enum):
    READ = "read"  # see studies and trials
    RUN = "run"  # do the work of a client: request, report, complete and add trials
    MANAGE = "manage"  # create, change and delete studies, delete trials


class Rights(Protocol):
    """What an authenticated caller may do. `name` identifies the caller in limits and logs."""

    @property
    def name(self) -> str: ...

    async def check(self, method: str, verb: AccessVerb, namespace: str | None) -> None:
        """Check that the caller may call a method, a bare name, in a namespace.

        None: the request names no namespace, or, badly formed, is refused by its method.

        Raises PermissionDenied, and Unavailable if it is not known.
        """

    async def readable(self) -> frozenset[str] | None:
        """Return the namespaces that the caller may read; None for all. Raises Unavailable."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a token of the token file.

    `name` is the token's name; `namespaces` is None for all namespaces.
    """

    name: str
    verbs: frozenset[AccessVerb]
    namespaces: frozenset[str] | None

    async def check(self, method: str, verb: AccessVerb, namespace: str | None) -> None:
        if verb not in self.verbs:
            raise PermissionDenied(
                f"the token {self.name} lacks the verb {verb.value}, which {method} needs; ask "
                f"the server's operator"
            )
        if not (namespace is None or self.namespaces is None or namespace in self.namespaces):
            raise PermissionDenied(
                f"the token {self.name} is not valid in the namespace {namespace[:80]}; ask the "
                f"server's operator"
            )

    async def readable(self) -> frozenset[str] | None:
        return self.namespaces


UNIX = "unix"
# The rights of the server's own process.
OWN: Final = Grant(UNIX, frozenset(AccessVerb), None)

# The caller and the rights of the current call, in its task and its worker thread.
CALLER: ContextVar[str] = ContextVar("caller", default="")  # the token's name, "" without one
RIGHTS: ContextVar[Rights | None] = ContextVar("rights", default=None)  # None without tokens
# The namespaces that a call which lists those of all may read; None means all.
READABLE: ContextVar[frozenset[str] | None] = ContextVar("readable", default=None)


def host_of(peer: str) -> str:
    """Return the host, who the caller is without a token; no token has its name.

    It is `127.0.0.1` for `ipv4:127.0.0.1:4711`, `::1`
    for `ipv6:%5B::1%5D:4711`, `unix` for a socket.
    """
    kind, _, remainder = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    return unquote(remainder).rpartition(":")[0].removeprefix("[").removesuffix("]")
