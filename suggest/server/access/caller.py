"""Who sends the call that is being answered: the name of its token, or, where none is asked for, where it comes from.

Known while the call lasts, in its task and in its worker thread (`suggest.server.interceptor` sees to that). Decides
nothing: what a caller may do is said in `suggest.server.access`.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol
from urllib.parse import unquote

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
