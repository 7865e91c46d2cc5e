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
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from controller.boot_time import since_boot_s
from controller.ui.application import body_of
from controller.ui.guard import OWN_NAMES, SAFE, refused
from controller.ui.studies import StudyBoard
from controller.ui.visitor import VisitorLimits
from suggest.errors import InvalidArgument, PermissionDenied, TunerError

log = logging.getLogger(__name__)
SIGN_IN = "/api/sign-in"
IDLE_S = 12 * 3600.0  # a session that is not used ends
STORED_S = 600.0  # between two times that the use of a session is stored
CLOCK_S = 3600.0  # a wall clock that has differed for so long is right
REREAD_S = 20.0  # after which a session is read again, because it may have ended at another server
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


@dataclass(slots=True)
class _SignedIn:
    token: str
    used_s: float
    """By the clock of `Sessions`."""
    read_s: float
    """When it was last found in the store, by the monotonic clock."""
    stored_s: float
    """The last use that was stored."""


class Sessions:
    """The sessions that are in use here, which the store has, too.

    They are found by the hash of their ids. Their times are seconds since the epoch, which servers
    share. The wall clock is read at the start; from then on `elapsed_s` counts, so that nobody is
    signed out when the clock is set. A clock that was wrong at the start is noticed, because other
    servers may have the right time.
    """

    def __init__(
        self,
        stored: StoredSessions,
        elapsed_s: Callable[[], float] = since_boot_s,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._stored = stored
        self._elapsed_s = elapsed_s
        self._wall_s = wall_s
        self._epoch_s = wall_s() - elapsed_s()
        self._differs_since_s: float | None = None  # the wall clock, by `elapsed_s`
        self._known: dict[str, _SignedIn] = {}  # the one that was read last comes last
        self._ended = 0  # how many this process has ended
        self._slots = asyncio.Semaphore(READS_AT_ONCE)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def tokens(self) -> set[str]:
        return {session.token for session in self._known.values()}

    async def token(self, identity: str) -> str | None:
        """Return the token of a session, which counts as used.

        Returns None if there is no such session, or it has ended.

        Raises Unavailable, StoreBroken: this process does not know it,
        and the store does not answer.
        """
        if len(identity) != ID_LENGTH:
            return None
        key = key_of(identity)
        session = self._known.get(key)
        if session is None or time.monotonic() - session.read_s > REREAD_S:
            session = await self._read(key, identity)
        now = self._now()  # after the read, during which the times of sessions may be corrected
        if session is None or now - session.used_s > IDLE_S:
            self._known.pop(key, None)
            return None
        session.used_s = now
        if now - session.stored_s > STORED_S:
            session.stored_s = now
            try:
                await asyncio.to_thread(self._stored.use, key, now)
            except TunerError as error:
                log.warning("the use of a session of the page was not stored: %s", error)
        return session.token

    def known(self, identity: str) -> str | None:
        """Return the token of a session that `token` has just returned."""
        session = self._known.get(key_of(identity))
        return None if session is None else session.token

    async def begin(self, identity: str, token: str) -> None:
        """Store a session. Raises Unavailable, StoreBroken."""
        key, now = key_of(identity), self._now()
        await asyncio.to_thread(
            self._stored.begin,
            key,
            _sealed(token, identity),
            owner_of(token),
            now,
            oldest_s=now - IDLE_S,
            most=MOST_SESSIONS,
            most_of_owner=MOST_OF_TOKEN,
        )
        self._keep(key, _SignedIn(token, now, time.monotonic(), now))

    async def end(self, identity: str) -> None:
        """Delete a session. Raises Unavailable, StoreBroken: it has not ended."""
        await asyncio.to_thread(self._stored.end, key_of(identity))
        self._ended += 1
        self.forget(identity)

    def forget(self, identity: str) -> None:
        self._known.pop(key_of(identity), None)

    def _now(self) -> float:
        elapsed_s = self._elapsed_s()
        epoch_s = self._wall_s() - elapsed_s
        if abs(epoch_s - self._epoch_s) < STORED_S:
            self._differs_since_s = None
        elif self._differs_since_s is None:
            self._differs_since_s = elapsed_s
        elif elapsed_s - self._differs_since_s > CLOCK_S:
            for session in self._known.values():
                session.used_s += epoch_s - self._epoch_s
            self._epoch_s, self._differs_since_s = epoch_s, None
        return self._epoch_s + elapsed_s

    def _keep(self, key: str, session: _SignedIn) -> None:
        """Remember a session, and forget those that were not read for a long time, or are too many.

        Twice as many are remembered as stored. Some have ended meanwhile, and are
        forgotten when they are read again: they must not take the places of others,
        whose pages would have to connect again.
        """
        self._known.pop(key, None)
        self._known[key] = session
        since = session.read_s - IDLE_S
        for oldest, session in list(self._known.items()):
            if session.read_s > since and len(self._known) <= 2 * MOST_SESSIONS:
                break
            del self._known[oldest]

    async def _read(self, key: str, identity: str) -> _SignedIn | None:
        try:
            async with self._slots:
                while True:
                    ended = self._ended
                    row = await asyncio.to_thread(self._stored.find, key)
                    if ended == self._ended:  # otherwise it may be the one that has ended meanwhile
                        break
        except TunerError as error:
            if (kept_session := self._known.get(key)) is None:
                raise
            log.warning("whether a session of the page has ended elsewhere is not known: %s", error)
            return kept_session
        if row is None or (token := _unsealed(row[0], identity)) is None:
            return None
        _, stored_s = row
        known, now = self._known.get(key), self._now()
        used_s = max(stored_s, known.used_s) if known is not None else stored_s
        if stored_s - now > STORED_S:  # by a server whose clock is wrong
            used_s = now if known is None else known.used_s
        session = _SignedIn(token, used_s, time.monotonic(), stored_s)
        self._keep(key, session)
        return session


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


class TokenAuthenticator:
    """Signs in people who have a token.

    With `secure`, the page is served over TLS, maybe to other machines.

    Args:
        connect: Returns the board of a token, with the limits of its visitor.
        valid: Returns whether a token is valid now.
        stored: Where sessions are stored.
    """

    def __init__(
        self,
        connect: Callable[[str, VisitorLimits], StudyBoard],
        valid: Callable[[str], bool],
        *,
        port: int,
        secure: bool,
        stored: StoredSessions,
    ) -> None:
        self._connect = connect
        self._valid = valid
        self._secure = secure
        self._cookie = "__Host-tuner" if secure else f"tuner-serve-{port}"
        self._sessions = Sessions(stored)
        # by token: however often somebody signs in, studies are read once
        self._boards: dict[str, StudyBoard] = {}
        # By token, while a board, a stream or a figure has them: streams may outlast the board of
        # somebody signing out.
        self._limits: weakref.WeakValueDictionary[str, VisitorLimits] = (
            weakref.WeakValueDictionary()
        )
        self.names = None if secure else OWN_NAMES

    @property
    def routes(self) -> list[Route]:
        return [
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            Route("/api/sign-out", self._sign_out, methods=["POST"]),
        ]

    async def close(self) -> None:
        await self._close_boards(set())

    def board(self, request: Request) -> StudyBoard:
        identity = self._identity(request)
        token = self._sessions.known(identity)
        if token is None:
            raise PermissionDenied("signed out; sign in again")
        if token not in self._boards:
            limits = self._limits.setdefault(token, VisitorLimits("this token"))
            self._boards[token] = self._connect(token, limits)
        request.state.board = self._boards[token]
        return self._boards[token]

    async def page_token(self, request: Request) -> str | None:
        identity = self._identity(request)
        token = await self._sessions.token(identity)
        if token is not None and not self._valid(token):
            self._sessions.forget(identity)
            token = None
        await self._close_boards(self._sessions.tokens)
        if token is None:
            return None
        # the same for a page that is open meanwhile
        return hmac.digest(identity.encode(), b"page", "sha256").hex()

    async def sign_in_by_link(self, request: Request) -> Response | None:
        return None

    async def is_signed_in(self, request: Request) -> bool:
        if await self.page_token(request) is None:
            return False
        # A board that was closed, because there were too many sessions, is not watched any more.
        token = self._sessions.known(self._identity(request))
        return token is not None and request.state.board is self._boards.get(token)

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
            return Response(
                page.read_text(encoding="utf-8"), status_code=status, media_type="text/html"
            )
        return refused("sign in first" if trouble is None else str(trouble), status)

    async def _sign_in(self, request: Request) -> Response:
        token = (await body_of(request)).get("token")
        if not isinstance(token, str) or not token.isascii():
            raise InvalidArgument.at("token", "expected a token")
        token = token.strip()
        if len(token) > MOST_TOKEN or not self._valid(token):
            await asyncio.sleep(PAUSE_S)
            raise PermissionDenied("unknown or revoked token; ask the server's operator for one")
        identity = secrets.token_urlsafe(ID_BYTES)
        await self._sessions.begin(identity, token)
        await self._close_boards(self._sessions.tokens)
        answer = JSONResponse({"message": "signed in"})
        answer.set_cookie(
            self._cookie, identity, httponly=True, samesite="strict", secure=self._secure
        )
        return answer

    async def _sign_out(self, request: Request) -> Response:
        identity = self._identity(request)
        await self._sessions.end(identity)
        await self._close_boards(self._sessions.tokens)
        answer = JSONResponse({"message": "signed out"})
        answer.delete_cookie(self._cookie, httponly=True, samesite="strict", secure=self._secure)
        return answer

    def _identity(self, request: Request) -> str:
        """Return the id of the session, which may not exist."""
        return request.cookies.get(self._cookie, "")

    async def _close_boards(self, used: set[str]) -> None:
        """Close the boards of tokens that have no session any more."""
        for board in [self._boards.pop(token) for token in self._boards.keys() - used]:
            await board.close()
