"""Authentication and authorization by tokens: a call is checked before its bytes are read, and
again before it runs.

The checks use names only, never studies: a caller without rights in a namespace learns nothing
about its contents.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from suggest import names
from suggest.errors import PermissionDenied, Unauthenticated
from suggest.server.access.caller import CALLER, READABLE, RIGHTS, Rights
from suggest.server.rpcs import Form, Resource, known_rpc

HEALTH = "/grpc.health.v1.Health/"
REFLECTION = ("/grpc.reflection.v1alpha.ServerReflection/", "/grpc.reflection.v1.ServerReflection/")
KEY = "authorization"


class TokenReader(Protocol):
    """Knows whose a token is: a token file, or somebody whom the server's owner asks."""

    async def rights_of(self, token: str) -> Rights:
        """Return the rights of a token. Raises Unauthenticated, and Unavailable if not known."""


class Authorizer:
    """Checks calls against the rights of their tokens."""

    def __init__(self, authenticator: TokenReader) -> None:
        self._authenticator = authenticator

    async def admit(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Authenticate the caller of `method`, a full path.

        Health needs no token. Raises Unauthenticated, and Unavailable if it is not known.
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
        # No token is empty.
        is_token = scheme.lower() == "bearer"
        rights = await self._authenticator.rights_of(token.strip() if is_token else "")
        CALLER.set(rights.name)
        RIGHTS.set(rights)

    def asks(self, method: str) -> bool:
        """Return whether the method needs a token."""
        return not method.startswith(HEALTH)

    async def check(self, method: str, resource: Resource) -> None:
        """Authorize an admitted caller. Raises PermissionDenied, and Unavailable if not known."""
        rights = RIGHTS.get()
        if method.startswith((HEALTH, *REFLECTION)):
            return
        assert rights is not None, "admitted first"
        name = method.rpartition("/")[2]
        rpc = known_rpc(name)
        if rpc is None:
            raise PermissionDenied(f"no token permits {name}")
        if resource.namespace == names.ALL and rpc.form is Form.NAMESPACES:
            await rights.check(name, rpc.verb, None)
            # the method lists only what the caller may read
            READABLE.set(await rights.readable())
        else:
            await rights.check(name, rpc.verb, resource.namespace)
