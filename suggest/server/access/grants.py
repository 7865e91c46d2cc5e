"""What a caller may do: verbs, in some namespaces or in all. The grant of the call that is being answered.

Pure. `suggest.server.rpcs` says which verb a method needs; a file of tokens says who has which grant.
"""

from __future__ import annotations

import enum
from contextvars import ContextVar
from dataclasses import dataclass


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
