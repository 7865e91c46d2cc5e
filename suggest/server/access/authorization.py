"""Who is let in: each call of a server with tokens passes here, before its bytes are read and again before it is done.

Looks at names in the request only, never at a study: whoever may not read a namespace learns nothing of what is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from suggest import names
from suggest.errors import PermissionDenied, Unauthenticated
from suggest.server.access.caller import known_as
from suggest.server.access.grants import Grant, held, hold
from suggest.server.access.tokens import Tokens
from suggest.server.access.verbs import NEEDS, Need, resource

HEALTH = "/grpc.health.v1.Health/"
REFLECTION = ("/grpc.reflection.v1alpha.ServerReflection/", "/grpc.reflection.v1.ServerReflection/")
KEY = "authorization"


class Authorizer:
    """`tokens`: those that hold now."""

    def __init__(self, tokens: Callable[[], Tokens]) -> None:
        self._tokens = tokens

    def admit(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """The caller is known from here on; health is for everybody. `method`: a whole path. Raises Unauthenticated."""
        if not self.asks(method):
            return
        given = [value for key, value in metadata if key == KEY]
        if len(given) != 1:
            raise Unauthenticated(
                "this server asks for a token: name a file with yours in TUNER_TOKEN_FILE or by --token-file, or send "
                "it as metadata, authorization: Bearer TOKEN"
            )
        scheme, _, token = str(given[0]).partition(" ")
        grant = self._tokens().grant(token.strip()) if scheme.lower() == "bearer" else None
        if grant is None:
            raise Unauthenticated("this server does not know that token, or not any more; ask its operator for one")
        known_as(grant.name)
        hold(grant)

    def asks(self, method: str) -> bool:
        """Whether the method needs a token."""
        return not method.startswith(HEALTH)

    def check(self, method: str, request: Any) -> None:
        """Raises PermissionDenied. For a caller that was admitted."""
        grant = held()
        if method.startswith((HEALTH, *REFLECTION)):
            return
        assert grant is not None, "admitted first"
        name = method.rpartition("/")[2]
        needs = NEEDS.get(name)
        if needs is None:
            raise PermissionDenied(f"no token opens {name}")
        for need in needs:
            _check(grant, name, need, request)


def _check(grant: Grant, method: str, need: Need, request: Any) -> None:
    if need.verb not in grant.verbs:
        raise PermissionDenied(
            f"the token {grant.name} may not {need.verb.value}, which {method} needs; its operator can change that"
        )
    if not need.field:
        return
    namespace = names.namespace_in(resource(request, need))
    if namespace is None:
        return  # it names nothing, and the method will say so
    if not (grant.reaches(namespace) or (need.filtered and namespace == names.ALL)):
        raise PermissionDenied(
            f"the token {grant.name} is not for the namespace {namespace[:80]}; its operator can change that"
        )
