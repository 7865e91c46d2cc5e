"""Authentication and authorization by tokens: a call is checked before its bytes are read, and
again before it runs.

The checks use names only, never studies: a caller without rights in a namespace learns nothing
about its contents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from suggest import names
from suggest.errors import PermissionDenied, Unauthenticated
from suggest.server.access.caller import AccessVerb, current_grant, set_caller, set_grant
from suggest.server.access.tokens import Tokens
from suggest.server.rpcs import Form, Resource, known_rpc

HEALTH = "/grpc.health.v1.Health/"
REFLECTION = ("/grpc.reflection.v1alpha.ServerReflection/", "/grpc.reflection.v1.ServerReflection/")
KEY = "authorization"


class Authorizer:
    """Checks calls against tokens. `tokens` returns the tokens that are valid now."""

    def __init__(self, tokens: Callable[[], Tokens]) -> None:
        self._tokens = tokens

    def admit(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Authenticate the caller of `method`, a full path.

        Health needs no token. Raises Unauthenticated.
        """
        if not self.asks(method):
            return
        credentials = [value for key, value in metadata if key == KEY]
        if len(credentials) != 1:
            raise Unauthenticated(
                "this server requires a token: name a file with yours in TUNER_TOKEN_FILE or with "
                "--token-file, or send it as metadata, authorization: Bearer TOKEN"
            )
        scheme, _, token = str(credentials[0]).partition(" ")
        grant = self._tokens().grant(token.strip()) if scheme.lower() == "bearer" else None
        if grant is None:
            raise Unauthenticated("unknown or revoked token; ask the server's operator for one")
        set_caller(grant.name)
        set_grant(grant)

    def asks(self, method: str) -> bool:
        """Return whether the method needs a token."""
        return not method.startswith(HEALTH)

    def verbs_of(self, token: str) -> frozenset[AccessVerb] | None:
        """Return the verbs of a token; None if it is unknown."""
        grant = self._tokens().grant(token)
        return None if grant is None else grant.verbs

    def check(self, method: str, resource: Resource) -> None:
        """Authorize an admitted caller. Raises PermissionDenied."""
        grant = current_grant()
        if method.startswith((HEALTH, *REFLECTION)):
            return
        assert grant is not None, "admitted first"
        name = method.rpartition("/")[2]
        rpc = known_rpc(name)
        if rpc is None:
            raise PermissionDenied(f"no token permits {name}")
        if rpc.verb not in grant.verbs:
            raise PermissionDenied(
                f"the token {grant.name} lacks the verb {rpc.verb.value}, which {name} needs; ask "
                f"the server's operator"
            )
        namespace = resource.namespace
        if namespace is None or grant.reaches(namespace):
            return  # a request without a namespace is refused by the method
        if namespace == names.ALL and rpc.form is Form.NAMESPACES:
            return  # the method lists only what the caller may read
        raise PermissionDenied(
            f"the token {grant.name} is not valid in the namespace {namespace[:80]}; ask the "
            f"server's operator"
        )
