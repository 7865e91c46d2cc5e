"""The HTTP API of the controller, which the command line reads through the API server's proxy.

Each request says who sends it: `X-Tuner-Authorization`, because the API server's proxy removes
`Authorization`, which clients that come directly may send instead. Cookies do not count, so no page
of another site can send a request for its visitor.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from controller.operator.access import Access, Caller
from controller.ui.application import status_of
from suggest.errors import TunerError, Unauthenticated

_HEADERS = ("x-tuner-authorization", "authorization")


class HttpApi:
    """The routes below /api/v1."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @property
    def routes(self) -> Sequence[Route]:
        return [Route("/api/v1/whoami", self._whoami)]

    async def _whoami(self, request: Request) -> Response:
        caller = await caller_of(self._access, request.headers)
        return JSONResponse({"name": caller.name, "groups": list(caller.groups)})


async def caller_of(access: Access, headers: Headers) -> Caller:
    """Return who has sent a request with these headers.

    The scheme is `Bearer`, with a token, or `Certificate`, with a statement that the owner of a
    client certificate has signed (`controller.kube.assertion`).

    Raises Unauthenticated, and Unavailable if it is not known.
    """
    found = next((sent for name in _HEADERS if (sent := headers.getlist(name))), [])
    if len(found) != 1:
        raise Unauthenticated("send X-Tuner-Authorization: Bearer TOKEN, once")
    scheme, _, secret = found[0].partition(" ")
    match scheme.lower():
        case "bearer":
            return await access.by_token(secret.strip(), of_api_server=True)
        case "certificate":
            return await access.by_certificate(secret.strip())
    raise Unauthenticated("X-Tuner-Authorization must be Bearer TOKEN or Certificate STATEMENT")


async def error_response(_: Request, error: Exception) -> Response:
    """Return an error as Connect's unary protocol has it."""
    assert isinstance(error, TunerError)
    status = 401 if isinstance(error, Unauthenticated) else status_of(error)
    document = {"code": error.reason.lower(), "message": str(error)}
    return JSONResponse(document, status_code=status, headers={"cache-control": "no-store"})
