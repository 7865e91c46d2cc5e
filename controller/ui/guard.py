"""The access control of the page, which every request passes first.

The link that `tuner ui` prints has a token that one browser exchanges for a cookie. Requests must name this machine's
own host (against DNS rebinding) and come from the page itself (against pages on other ports). Requests that change
something must have the token of the page. Every answer forbids scripts and requests that are not the page's own.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OWN_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
TOKEN_HEADER = "x-tuner-token"
SAFE = frozenset({"GET", "HEAD"})
MOST_BODY_BYTES = 1 << 16
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Access:
    """The secrets of one server. The `key` is kept across restarts, so that an open page stays valid."""

    def __init__(self, key: bytes, port: int) -> None:
        self._key = key
        self.cookie_name = f"tuner-ui-{port}"  # browsers share cookies between ports
        self.link_token: str | None = secrets.token_urlsafe(24)

    @property
    def cookie(self) -> str:
        return self._derived(b"cookie")

    @property
    def page_token(self) -> str:
        return self._derived(b"page")

    def _derived(self, purpose: bytes) -> str:
        return hmac.new(self._key, purpose + self.cookie_name.encode(), hashlib.sha256).hexdigest()

    def exchange(self, token: str) -> bool:
        """Return whether `token` is that of the link, which is valid once."""
        if self.link_token is None or not _equal(token, self.link_token):
            return False
        self.link_token = None
        return True


class Guard:
    """The ASGI middleware that checks every request."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._answer(Request(scope))
        await (answer or self._app)(scope, receive, guarded)

    def _answer(self, request: Request) -> Response | None:
        """Return the refusal of a request; None if the request may pass."""
        headers = request.headers
        if _host(headers.get("host", "")) not in OWN_NAMES:
            return _refused("this page is served to this machine only: open it as http://127.0.0.1 or http://localhost")
        if not _from_here(request, headers):
            return _refused("another page sent this request")
        known = _equal(request.cookies.get(self._access.cookie_name, ""), self._access.cookie)
        token = request.query_params.get("token")
        if request.url.path == "/" and request.method in SAFE and token is not None:
            if not known and not self._access.exchange(token):
                return _refused("this link was used before or is of another server; start tuner ui again for a new one")
            page = RedirectResponse("/", status_code=303)
            page.set_cookie(self._access.cookie_name, self._access.cookie, httponly=True, samesite="strict")
            return page
        if not known:
            return _refused("open the link that tuner ui printed: it has the token that this page needs")
        if request.method in SAFE:
            return None
        if not _equal(headers.get(TOKEN_HEADER, ""), self._access.page_token):
            return _refused("the request lacks the token of the page; load the page again")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return PlainTextResponse("expected application/json\n", status_code=415)
        length = headers.get("content-length", "")
        if not length.isascii() or not length.isdigit() or int(length) > MOST_BODY_BYTES:
            return PlainTextResponse(f"expected a body of at most {MOST_BODY_BYTES} bytes\n", status_code=413)
        return None


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())


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
    followed = headers.get("sec-fetch-mode") == "navigate" and request.url.path == "/" and request.method in SAFE
    return site in ("none", "same-origin") or followed


def _refused(why: str) -> Response:
    return PlainTextResponse(f"{why}\n", status_code=403)
