"""The sign-in of the page of a server with tokens. The rights are those
of the token, which each call to the service has with it, so that a token
that is revoked or limited meanwhile has effect at once.

Sessions survive a restart of the server, and are valid at each server of its database
(docs/adr/0007). The browser has the id of its session in a cookie; the store has the token,
encrypted and authenticated with that id, under the hash of the id. So neither of the two reveals
the token, and nobody can change it without the id.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from controller.ui.application import body_of
from controller.ui.guard import OWN_NAMES, SAFE, Authenticator, refused
from suggest.errors import InvalidArgument, PermissionDenied, TunerError

log = logging.getLogger(__name__)
SIGN_IN = "/api/sign-in"
IDLE_S = 12 * 3600.0  # a session that is not used ends
STORED_S = 600.0  # between two times that the use of a session is stored
BOARD_S = 60.0  # a board is kept after its last use; open streams use theirs every ten seconds
MOST_SESSIONS = 1000  # in the database
MOST_OF_TOKEN = 200  # of these; a team or a class may share a token
READS_AT_ONCE = 4  # of sessions: a slow store must not take all threads
PAUSE_S = 0.5  # before a wrong token is refused
MOST_TOKEN = 4096  # bytes
ID_BYTES = 32
ID_LENGTH = 43  # characters of these bytes in base64
MAC_BYTES = 32


class StoredSessions(Protocol):
    """Where sessions are stored, see `suggest.storage.page_sessions`.

    Blocking; raises Unavailable and StoreBroken.
    """

    def find(self, key: str) -> tuple[bytes, float] | None: ...

    def begin(
        self,
        key: str,
        sealed: bytes,
        owner: str,
        used_s: float,
        *,
        oldest_s: float,
        most: int,
        most_of_owner: int,
    ) -> None: ...

    def use(self, key: str, used_s: float) -> None: ...

    def end(self, key: str) -> None: ...


class Sessions:
    """The sessions of people who are signed in, found by the hash of their ids.

    Each request reads its session, so one that has ended at another server has ended here. Times
    are seconds since the epoch, which the servers of a database share.
    """

    def __init__(self, stored: StoredSessions, now_s: Callable[[], float] = time.time) -> None:
        self._stored = stored
        self._now_s = now_s
        self._slots = asyncio.Semaphore(READS_AT_ONCE)

    async def token(self, identity: str) -> str | None:
        """Return the token of a session, which counts as used.

        Returns None if there is no such session, or it has ended.

        Raises Unavailable, StoreBroken.
        """
        if len(identity) != ID_LENGTH:
            return None
        key = key_of(identity)
        async with self._slots:
            row = await asyncio.to_thread(self._stored.find, key)
        if row is None:
            return None
        sealed, used_s = row
        token, now_s = _unsealed(sealed, identity), self._now_s()
        # a time far ahead is by a clock that was wrong
        if token is None or abs(now_s - used_s) > IDLE_S:
            return None
        if now_s - used_s > STORED_S:
            try:
                await asyncio.to_thread(self._stored.use, key, now_s)
            except TunerError as error:
                log.warning("the use of a session of the page was not stored: %s", error)
        return token

    async def begin(self, identity: str, token: str) -> None:
        """Store a session. Raises Unavailable, StoreBroken."""
        now_s = self._now_s()
        await asyncio.to_thread(
            self._stored.begin,
            key_of(identity),
            _sealed(token, identity),
            owner_of(token),
            now_s,
            oldest_s=now_s - IDLE_S,
            most=MOST_SESSIONS,
            most_of_owner=MOST_OF_TOKEN,
        )

    async def end(self, identity: str) -> None:
        """Delete a session. Raises Unavailable, StoreBroken: it has not ended."""
        await asyncio.to_thread(self._stored.end, key_of(identity))


def key_of(identity: str) -> str:
    return hashlib.sha256(b"session" + identity.encode()).hexdigest()


def owner_of(token: str) -> str:
    """Return what the sessions of a token have in common.

    Tokens are too long to be guessed from it.
    """
    return hashlib.sha256(b"owner" + token.encode()).hexdigest()


def _sealed(token: str, identity: str) -> bytes:
    """Encrypt the token, and authenticate the result."""
    encrypted = _xor(token.encode(), identity)
    return _mac(encrypted, identity) + encrypted


def _unsealed(sealed: bytes, identity: str) -> str | None:
    """Return the token; None if somebody has changed what is stored."""
    mac, encrypted = sealed[:MAC_BYTES], sealed[MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(encrypted, identity)):
        return None
    return _xor(encrypted, identity).decode()


def _mac(encrypted: bytes, identity: str) -> bytes:
    return hmac.digest(identity.encode(), b"token" + encrypted, "sha256")


def _xor(text: bytes, identity: str) -> bytes:
    """Encrypt or decrypt with a stream cipher.

    Its key, the id, has 256 random bits and encrypts one text only.
    """
    pad = hashlib.shake_256(b"token" + identity.encode()).digest(len(text))
    return bytes(left ^ other for left, other in zip(text, pad, strict=True))


class TokenContent(Protocol):
    """What a token's pages show."""

    async def close(self) -> None: ...


Content = TypeVar("Content", bound=TokenContent)


class TokenAuthenticator(Authenticator, Generic[Content]):
    """Signs in people who have a token.

    With `secure`, the page is served over TLS, maybe to other machines.

    Args:
        connect: Returns the board of a token.
        valid: Returns whether a token is valid now. Raises TunerError if that is not known.
        hint: Tells people where they get a token: a sentence.
        stored: Where sessions are stored.
    """

    def __init__(
        self,
        connect: Callable[[str], Content],
        valid: Callable[[str], Awaitable[bool]],
        *,
        hint: str,
        port: int,
        secure: bool,
        stored: StoredSessions,
    ) -> None:
        self._connect = connect
        self._valid = valid
        self._hint = hint
        self._secure = secure
        self._cookie = "__Host-tuner" if secure else f"tuner-serve-{port}"
        self._sessions = Sessions(stored)
        # By token: however often somebody signs in, studies are read once, and limits hold.
        self._boards: dict[str, Content] = {}
        self._used_s: dict[str, float] = {}  # by token, when its board was used last
        self.names = None if secure else OWN_NAMES

    @property
    def routes(self) -> list[Route]:
        return [
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            Route("/api/sign-out", self._sign_out, methods=["POST"]),
        ]

    async def close(self) -> None:
        for board in self._boards.values():
            await board.close()

    def board(self, request: Request) -> Content:
        """Return the board of a person whose `page_token` was asked for."""
        token: str = request.state.token
        if token not in self._boards:
            self._boards[token] = self._connect(token)
        request.state.board = self._boards[token]
        return self._boards[token]

    async def page_token(self, request: Request) -> str | None:
        identity = self._identity(request)
        token = await self._sessions.token(identity)
        if token is None or not await self._valid(token):
            return None
        request.state.token = token
        await self._close_unused_boards(token)
        # the same for a page that is open meanwhile
        return hmac.digest(identity.encode(), b"page", "sha256").hex()

    async def is_signed_in(self, request: Request) -> bool:
        # a board that was closed is not watched any more
        return await super().is_signed_in(request) and request.state.board is self._boards.get(
            request.state.token
        )

    def public(self, request: Request) -> bool:
        """Return whether it asks for the page's own code, or is the sign-in."""
        path = request.url.path
        return path == SIGN_IN or (path.startswith("/static/") and request.method in SAFE)

    def refusal(self, request: Request, trouble: TunerError | None = None) -> Response:
        # Not 401 if it is not known who this is: a page
        # that is open would be replaced by the sign-in.
        status = 401 if trouble is None else 503
        if request.url.path == "/" and request.method in SAFE:
            page = resources.files("controller.ui") / "static" / "sign-in.html"
            text = page.read_text(encoding="utf-8").replace("{{hint}}", self._hint)
            return Response(text, status_code=status, media_type="text/html")
        return refused("sign in first" if trouble is None else str(trouble), status)

    async def _sign_in(self, request: Request) -> Response:
        token = (await body_of(request)).get("token")
        if not isinstance(token, str) or not token.isascii():
            raise InvalidArgument.at("token", "expected a token")
        token = token.strip()
        if len(token) > MOST_TOKEN or not await self._valid(token):
            await asyncio.sleep(PAUSE_S)
            raise PermissionDenied(f"unknown or revoked token. {self._hint}")
        identity = secrets.token_urlsafe(ID_BYTES)
        await self._sessions.begin(identity, token)
        answer = JSONResponse({"message": "signed in"})
        answer.set_cookie(
            self._cookie, identity, httponly=True, samesite="strict", secure=self._secure
        )
        return answer

    async def _sign_out(self, request: Request) -> Response:
        await self._sessions.end(self._identity(request))
        answer = JSONResponse({"message": "signed out"})
        answer.delete_cookie(self._cookie, httponly=True, samesite="strict", secure=self._secure)
        return answer

    def _identity(self, request: Request) -> str:
        """Return the id of the session, which may not exist."""
        return request.cookies.get(self._cookie, "")

    async def _close_unused_boards(self, token: str) -> None:
        """Count the board of `token` as used, and close those that nobody has used for a while."""
        now_s = time.monotonic()
        self._used_s[token] = now_s
        unused = [other for other, used_s in self._used_s.items() if now_s - used_s > BOARD_S]
        for other in unused:
            del self._used_s[other]
        for board in [self._boards.pop(other) for other in unused if other in self._boards]:
            await board.close()
