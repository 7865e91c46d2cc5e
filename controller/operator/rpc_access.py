"""Who may call the suggestion service in a cluster: people and pods by the verbs on `experiments`
that Kubernetes gives them in the namespace of a study.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from controller.operator.access import Access, Caller
from suggest.server.access.caller import AccessVerb

_VERBS: Mapping[AccessVerb, str] = {
    AccessVerb.READ: "get",
    AccessVerb.RUN: "update",
    AccessVerb.MANAGE: "update",
}
# Where Kubernetes' verbs tell more apart.
_VERBS_OF_METHODS: Mapping[str, str] = {
    "CreateStudy": "create",
    "DeleteStudy": "delete",
    "DeleteTrial": "delete",
    "ListStudies": "list",
}


def verb_of(method: str, verb: AccessVerb) -> str:
    """Return the verb on `experiments` that a method needs. `verb`: that of the table of RPCs."""
    return _VERBS_OF_METHODS.get(method, _VERBS[verb])


@dataclass(frozen=True, slots=True)
class ClusterRights:
    """Implements `suggest.server.access.caller.Rights`."""

    caller: Caller
    access: Access
    namespaces: Callable[[], Collection[str]]

    @property
    def name(self) -> str:
        # The service knows callers without a token as `unix`, or by their host.
        return f"user:{self.caller.name}"

    async def check(self, method: str, verb: AccessVerb, namespace: str | None) -> None:
        if namespace is not None:
            await self.access.check(self.caller, verb_of(method, verb), namespace)

    async def readable(self) -> frozenset[str] | None:
        return await self.access.readable(self.caller, self.namespaces())


@dataclass(frozen=True, slots=True)
class ClusterAuthenticator:
    """Implements `suggest.server.access.authorization.TokenReader`.

    namespaces: Returns those that may have studies.
    """

    access: Access
    namespaces: Callable[[], Collection[str]]

    async def rights_of(self, token: str) -> ClusterRights:
        return self.rights_for(await self.access.by_token(token))

    def rights_for(self, caller: Caller) -> ClusterRights:
        return ClusterRights(caller, self.access, self.namespaces)
