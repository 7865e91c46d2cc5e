"""The sign-in of the page of a server with tokens. The rights are those of the token, which each call to the service
has with it, so that a token that is revoked or limited meanwhile has effect at once.

Sessions survive a restart of the server (docs/adr/0030). The browser has the id of its session in a cookie; the file of
sessions has the token, encrypted with that id, under the hash of the id. So neither of the two reveals the token.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from controller.ui import kept_file
from controller.ui.application import body_of
from controller.ui.guard import OWN_NAMES, SAFE, refused
from controller.ui.studies import StudyBoard
from suggest.errors import InvalidArgument, PermissionDenied, Problem, Unavailable

log = logging.getLogger(__name__)
SIGN_IN = "/api/sign-in"
IDLE_S = 12 * 3600.0  # a session that is not used ends
STORED_S = 600.0  # between two times that the use of a session is stored
MOST_SESSIONS = 200
PAUSE_S = 0.5  # before a wrong token is refused
MOST_TOKEN = 4096  # bytes


@dataclass(slots=True)
class StoredSession:
    sealed: bytes
    """The token, encrypted with the id of the session."""
    used: float
    """Seconds since the epoch."""


class Sessions:
    """The sessions in a file, or in memory without one. They are found by the hash of their ids."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._stored: dict[str, StoredSession] = {}
        for key, found in ({} if file is None else kept_file.read(file)).items():
            with suppress(KeyError, TypeError, ValueError):
                self._stored[key] = StoredSession(bytes.fromhex(found["sealed"]), float(found["used"]))

    def token(self, identity: str) -> str | None:
        """Return the token of a session, which counts as used; None if there is no such session, or it has ended."""
        session, now = self._stored.get(key_of(identity)), time.time()
        if session is None or now - session.used > IDLE_S:
            return None
        if now - session.used > STORED_S:
            session.used = now
            self._write()
        return _xor(session.sealed, identity).decode("ascii", errors="replace")

    def begin(self, identity: str, token: str) -> set[str]:
        """Store a session, and return the keys of those that have ended or that there is no more room for."""
        oldest = time.time() - IDLE_S
        by_use = sorted(self._stored, key=lambda key: self._stored[key].used)
        too_many = len(by_use) - MOST_SESSIONS + 1
        ended = {key for place, key in enumerate(by_use) if place < too_many or self._stored[key].used < oldest}
        for key in ended:
            del self._stored[key]
        self._stored[key_of(identity)] = StoredSession(_xor(token.encode(), identity), time.time())
        self._write()
        return ended

    def end(self, identity: str) -> None:
        if self._stored.pop(key_of(identity), None) is not None:
            self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        content = {key: {"sealed": it.sealed.hex(), "used": it.used} for key, it in self._stored.items()}
        try:
            kept_file.write(self._file, content)
        except Unavailable as error:
            log.warning("sessions of the page will end with the server: %s", error)


def key_of(identity: str) -> str:
    return hashlib.sha256(b"session" + identity.encode()).hexdigest()


def _xor(text: bytes, identity: str) -> bytes:
    """Encrypt or decrypt with a stream cipher. Its key, the id, has 256 random bits and encrypts one text only."""
    pad = hashlib.shake_256(b"token" + identity.encode()).digest(len(text))
    return bytes(one ^ other for one, other in zip(text, pad, strict=True))


class TokenDoor:
    """Lets in those who have a token. With `secure`, the page is served over TLS, maybe to other machines.

    Args:
        connect: Returns the board of a token.
        valid: Returns whether a token is valid now.
        file: Where sessions are stored; None for in memory only.
    """

    def __init__(
        self,
        connect: Callable[[str], StudyBoard],
        valid: Callable[[str], bool],
        *,
        port: int,
        secure: bool,
        file: Path | None,
    ) -> None:
        self._connect = connect
        self._valid = valid
        self._secure = secure
        self._cookie = "__Host-tuner" if secure else f"tuner-serve-{port}"
        self._sessions = Sessions(file)
        self._boards: dict[str, StudyBoard] = {}  # by the keys of sessions
        self.names = None if secure else OWN_NAMES

    @property
    def routes(self) -> list[Route]:
        return [
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            Route("/api/sign-out", self._sign_out, methods=["POST"]),
        ]

    async def close(self) -> None:
        await self._close(set(self._boards))

    def board(self, request: Request) -> StudyBoard:
        identity = self._identity(request)
        token = self._sessions.token(identity)
        if token is None:
            raise PermissionDenied("signed out; sign in again")
        key = key_of(identity)
        if key not in self._boards:
            self._boards[key] = self._connect(token)
        return self._boards[key]

    def page_token(self, request: Request) -> str | None:
        identity = self._identity(request)
        token = self._sessions.token(identity)
        if token is None or not self._valid(token):
            return None
        return hmac.digest(identity.encode(), b"page", "sha256").hex()  # the same for a page that is open meanwhile

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
        if len(token) > MOST_TOKEN or not self._valid(token):
            await asyncio.sleep(PAUSE_S)
            raise PermissionDenied("unknown or revoked token; ask the server's operator for one")
        identity = secrets.token_urlsafe(32)
        await self._close(self._sessions.begin(identity, token))
        answer = JSONResponse({"message": "signed in"})
        answer.set_cookie(self._cookie, identity, httponly=True, samesite="strict", secure=self._secure)
        return answer

    async def _sign_out(self, request: Request) -> Response:
        identity = self._identity(request)
        self._sessions.end(identity)
        await self._close({key_of(identity)})
        answer = JSONResponse({"message": "signed out"})
        answer.delete_cookie(self._cookie, httponly=True, samesite="strict", secure=self._secure)
        return answer

    def _identity(self, request: Request) -> str:
        """Return the id of the session, which may not exist."""
        return request.cookies.get(self._cookie, "")

    async def _close(self, keys: set[str]) -> None:
        for key in keys & self._boards.keys():
            await self._boards.pop(key).close()
