"""The sign-in of the page of a server with tokens. The rights are those of the token, which each call to the service
has with it, so that a token that is revoked or limited meanwhile has effect at once.

A session lives in this process only, so people sign in again after a restart. The token is kept in memory and never
sent back.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import resources

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from controller.ui.application import body_of
from controller.ui.guard import OWN_NAMES, SAFE, refused
from controller.ui.studies import StudyBoard
from suggest.errors import InvalidArgument, PermissionDenied, Problem

SIGN_IN = "/api/sign-in"
IDLE_S = 12 * 3600.0  # a session that is not used ends
MOST_SESSIONS = 200
PAUSE_S = 0.5  # before a wrong token is refused


@dataclass(slots=True)
class SignedIn:
    """A person who has signed in. `board` calls the service with the person's token, while that is `valid`."""

    board: StudyBoard
    valid: Callable[[], bool]
    page_token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    used: float = field(default_factory=time.monotonic)


class TokenDoor:
    """Lets in those who have a token. With `secure`, the page is served over TLS, maybe to other machines.

    Args:
        connect: Returns the board of a token.
        valid: Returns whether a token is valid now.
    """

    def __init__(
        self, connect: Callable[[str], StudyBoard], valid: Callable[[str], bool], *, port: int, secure: bool
    ) -> None:
        self._connect = connect
        self._valid = valid
        self._secure = secure
        self._cookie = "__Host-tuner" if secure else f"tuner-serve-{port}"
        self._sessions: dict[str, SignedIn] = {}
        self.names = None if secure else OWN_NAMES

    @property
    def routes(self) -> list[Route]:
        return [
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            Route("/api/sign-out", self._sign_out, methods=["POST"]),
        ]

    async def close(self) -> None:
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.board.close()

    def board(self, request: Request) -> StudyBoard:
        session = self._session(request)
        if session is None:
            raise PermissionDenied("signed out; sign in again")
        return session.board

    def page_token(self, request: Request) -> str | None:
        session = self._session(request)
        return None if session is None else session.page_token

    def enter(self, request: Request) -> Response | None:
        return None

    def refusal(self, request: Request) -> Response | None:
        path = request.url.path
        if path == SIGN_IN or (path.startswith("/static/") and request.method in SAFE):
            return None  # the page's own code, which is public
        if path == "/" and request.method in SAFE:
            page = resources.files("controller.ui") / "static" / "sign-in.html"
            return Response(page.read_text(encoding="utf-8"), status_code=401, media_type="text/html")
        return refused("sign in first", status=401)

    async def _sign_in(self, request: Request) -> Response:
        token = (await body_of(request)).get("token")
        if not isinstance(token, str) or not token.isascii():
            raise InvalidArgument([Problem("token", "expected a token")])
        token = token.strip()
        if not self._valid(token):
            await asyncio.sleep(PAUSE_S)
            raise PermissionDenied("unknown or revoked token; ask the server's operator for one")
        await self._forget_idle()
        identity = secrets.token_urlsafe(32)
        self._sessions[identity] = SignedIn(self._connect(token), partial(self._valid, token))
        answer = JSONResponse({"message": "signed in"})
        answer.set_cookie(self._cookie, identity, httponly=True, samesite="strict", secure=self._secure)
        return answer

    async def _sign_out(self, request: Request) -> Response:
        session = self._sessions.pop(request.cookies.get(self._cookie, ""), None)
        if session is not None:
            await session.board.close()
        answer = JSONResponse({"message": "signed out"})
        answer.delete_cookie(self._cookie, httponly=True, samesite="strict", secure=self._secure)
        return answer

    def _session(self, request: Request) -> SignedIn | None:
        session = self._sessions.get(request.cookies.get(self._cookie, ""))
        if session is None or time.monotonic() - session.used > IDLE_S or not session.valid():
            return None
        session.used = time.monotonic()
        return session

    async def _forget_idle(self) -> None:
        by_use = sorted(self._sessions.items(), key=lambda item: item[1].used)
        too_many = max(0, len(by_use) - MOST_SESSIONS + 1)
        old = time.monotonic() - IDLE_S
        for place, (identity, session) in enumerate(by_use):
            if place < too_many or session.used < old:
                del self._sessions[identity]
                await session.board.close()
