"""The access control of the page, which every request passes first.

Requests must name a host of the page (against DNS rebinding) and come from the page itself (against
other pages). Requests that change something must have the token of the page. Each request counts
for its connection, whose limits are the server's. An `Authenticator` decides who may sign in: by
the link that `tuner ui` prints (`LinkAuthenticator`), or by a token of the server
(`controller.ui.sign_in`). Every answer forbids scripts and requests that are not the page's own.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from abc import ABC, abstractmethod
from functools import partial
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from suggest.errors import TunerError

OWN_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
TOKEN_HEADER = "x-tuner-token"
SAFE = frozenset({"GET", "HEAD"})
MOST_BODY_BYTES = 1 << 16
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src "
    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Authenticator(ABC):
    """Decides who is signed in.

    names: the hosts that requests may name; None if TLS vouches for the name.
    """

    names: frozenset[str] | None = OWN_NAMES

    @abstractmethod
    async def page_token(self, request: Request) -> str | None:
        """Return the token of the page of a person who is signed in; None for anybody else.

        Raises TunerError.
        """

    async def sign_in_by_link(self, request: Request) -> Response | None:
        """Answer a request that signs in by a link; None for any other request."""
        return None

    async def is_signed_in(self, request: Request) -> bool:
        """Return whether a signed-in person may still read a stream. Raises TunerError."""
        return await self.page_token(request) is not None

    def public(self, request: Request) -> bool:
        """Return whether anybody may send this request."""
        return False

    @abstractmethod
    def refusal(self, request: Request, trouble: TunerError | None = None) -> Response:
        """Answer a request without a session. trouble: why it is not known if there is one."""


class LinkAuthenticator(Authenticator):
    """Signs in the browser that opens the link, which has a token that is valid once.

    The `key` is kept across restarts, so that an open page stays valid.
    """

    def __init__(self, key: bytes, port: int, *, prefix: str = "tuner-ui") -> None:
        self._key = key
        self.cookie_name = f"{prefix}-{port}"  # browsers share cookies between ports
        self.link_token: str | None = secrets.token_urlsafe(24)

    async def page_token(self, request: Request) -> str | None:
        has_cookie = equal(request.cookies.get(self.cookie_name, ""), self._derived(b"cookie"))
        return self._derived(b"page") if has_cookie else None

    async def sign_in_by_link(self, request: Request) -> Response | None:
        token = request.query_params.get("token")
        if request.url.path != "/" or request.method not in SAFE or token is None:
            return None
        if await self.page_token(request) is None and not self._exchange(token):
            return refused(
                "this link was used before or is of another server; start the server again for a "
                "new one"
            )
        page = RedirectResponse("/", status_code=303)
        page.set_cookie(
            self.cookie_name, self._derived(b"cookie"), httponly=True, samesite="strict"
        )
        return page

    def refusal(self, request: Request, trouble: TunerError | None = None) -> Response:
        return refused("open the link that tuner printed: it has the token that this page needs")

    def _derived(self, purpose: bytes) -> str:
        return hmac.new(self._key, purpose + self.cookie_name.encode(), hashlib.sha256).hexdigest()

    def _exchange(self, token: str) -> bool:
        """Return whether `token` is that of the link."""
        if self.link_token is None or not equal(token, self.link_token):
            return False
        self.link_token = None
        return True


class Guard:
    """The ASGI middleware that checks every request. policy: the content security policy."""

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        policy: str = POLICY,
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._headers = HEADERS | {"content-security-policy": policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
            await send(message)

        answer = await self._answer(Request(scope))
        await (answer or self._app)(scope, receive, guarded)

    async def _answer(self, request: Request) -> Response | None:
        """Return the refusal of a request; None if the request may pass.

        Then its state has the token of the page, unless it is public, and what long answers call to
        be sure that the person is still signed in.
        """
        headers = request.headers
        if (
            self._authenticator.names is not None
            and _host(headers.get("host", "")) not in self._authenticator.names
        ):
            return refused(
                "this page is served to this machine only: open it as http://127.0.0.1 or "
                "http://localhost"
            )
        if not _from_here(request, headers):
            return refused("another page sent this request")
        if request.method not in SAFE:
            if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                return PlainTextResponse("expected application/json\n", status_code=415)
            length = headers.get("content-length", "")
            if not length.isascii() or not length.isdigit() or int(length) > MOST_BODY_BYTES:
                return PlainTextResponse(
                    f"expected a body of at most {MOST_BODY_BYTES} bytes\n", status_code=413
                )
        if (answer := await self._authenticator.sign_in_by_link(request)) is not None:
            return answer
        if self._authenticator.public(request):
            return None
        try:
            page_token = await self._authenticator.page_token(request)
        except TunerError as error:
            return self._authenticator.refusal(request, error)
        if page_token is None:
            return self._authenticator.refusal(request)
        if request.method not in SAFE and not equal(headers.get(TOKEN_HEADER, ""), page_token):
            return refused("the request lacks the token of the page; load the page again")
        request.state.page_token = page_token
        request.state.is_signed_in = partial(self._is_signed_in, request)
        return None

    async def _is_signed_in(self, request: Request) -> bool:
        try:
            return await self._authenticator.is_signed_in(request)
        except TunerError:
            return False  # not known: the page asks again


def equal(received: str, expected: str) -> bool:
    return hmac.compare_digest(received.encode(errors="surrogateescape"), expected.encode())


def refused(reason: str, status: int = 403) -> Response:
    return PlainTextResponse(f"{reason}\n", status_code=status)


def _host(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _from_here(request: Request, headers: Headers) -> bool:
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host"):
        return False
    site = headers.get("sec-fetch-site", "none")
    # A link to the page may be on any site, but all other requests must come from the page.
    followed = (
        headers.get("sec-fetch-mode") == "navigate"
        and request.url.path == "/"
        and request.method in SAFE
    )
    return site in ("none", "same-origin") or followed
