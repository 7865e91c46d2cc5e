"""Sessions of the page of a server end everywhere, are bounded,
and are not needed for what is public.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware

from controller.ui import application, sign_in
from controller.ui.guard import Guard
from controller.ui.live_table import Event
from controller.ui.shared_reader import clock_mark
from controller.ui.sign_in import ID_BYTES, Sessions, StoredSessions, TokenAuthenticator
from controller.ui.studies import StudyBoard
from controller.ui.vega import VegaBundle
from controller.ui.visitor import MOST_STREAMS
from suggest.client import AsyncClient
from suggest.errors import Unavailable
from suggest.server import Server
from tests.service.running import a_server

TOKEN = "a-token"
PATIENCE_S = 30.0


class Trouble:
    """Sessions in a database that can be down."""

    def __init__(self, stored: StoredSessions) -> None:
        self._stored = stored
        self.down = False

    def find(self, key: str) -> tuple[bytes, float] | None:
        if self.down:
            raise Unavailable("the database is down")
        return self._stored.find(key)

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
    ) -> None:
        self._stored.begin(
            key, sealed, owner, used_s, oldest_s=oldest_s, most=most, most_of_owner=most_of_owner
        )

    def use(self, key: str, used_s: float) -> None:
        self._stored.use(key, used_s)

    def end(self, key: str) -> None:
        self._stored.end(key)


async def is_valid(token: str) -> bool:
    return token == TOKEN


class Page:
    """The page of one server of the database."""

    def __init__(self, server: Server, stored: StoredSessions) -> None:
        self._server = server
        self.opened = asyncio.Event()
        self.boards: list[StudyBoard] = []
        self.closed: list[StudyBoard] = []
        self.authenticator = TokenAuthenticator(
            self._connect,
            is_valid,
            hint="Ask for one.",
            port=1,
            secure=False,
            stored=stored,
        )
        self._app: Starlette = application.application(
            self.authenticator.board,
            Middleware(Guard, authenticator=self.authenticator),
            kind="studies",
            closing=asyncio.Event(),
            vega=VegaBundle(),
            sign_in="token",
            routes_of_kind=self.authenticator.routes,
        )

    def browser(self, cookies: httpx.Cookies | None = None) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self._app)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", cookies=cookies)

    async def signed_in(self) -> httpx.AsyncClient:
        browser = self.browser()
        assert (await browser.post("/api/sign-in", json={"token": TOKEN})).status_code == 200
        index = (await browser.get("/")).text
        browser.headers["x-tuner-token"] = index.partition('name="page-token" content="')[
            2
        ].partition('"')[0]
        return browser

    async def watching(self, browser: httpx.AsyncClient) -> asyncio.Task[httpx.Response]:
        """Open the list, which ends only with the session."""
        self.opened.clear()
        stream = asyncio.create_task(browser.get("/api/stream"))
        await asyncio.wait_for(self.opened.wait(), PATIENCE_S)
        return stream

    def _connect(self, token: str) -> StudyBoard:
        page = self

        class Board(StudyBoard):
            async def follow_list(self) -> AsyncIterator[Event]:
                async for event in super().follow_list():
                    yield event
                    page.opened.set()  # the first one was sent

            async def close(self) -> None:
                page.closed.append(self)
                await super().close()

        client = AsyncClient(self._server.address, token=token)
        self.boards.append(
            Board(client, source="here", mark=clock_mark, verbs=frozenset, visitor="this token")
        )
        return self.boards[-1]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with a_server(tmp_path / "s.db") as server:
        yield server


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often whether those who read streams are still signed in."""
    monkeypatch.setattr(application, "HEARTBEAT_S", 0.05)


def run(server: Server, see: Callable[[Page, Page, Trouble], Awaitable[None]]) -> None:
    """Call `see` with the pages of two servers of one database,
    and the sessions that the second one reads.
    """

    async def pages() -> None:
        stored = Trouble(server.page_sessions())
        one, other = Page(server, server.page_sessions()), Page(server, stored)
        try:
            await see(one, other, stored)
        finally:
            await one.authenticator.close()
            await other.authenticator.close()

    asyncio.run(pages())


@pytest.mark.usefixtures("often")
def test_an_open_page_ends_with_its_session_that_ends_at_another_server(server: Server) -> None:
    async def see(one: Page, other: Page, _: Trouble) -> None:
        browser = await one.signed_in()
        at_other = other.browser(browser.cookies)
        stream = await other.watching(at_other)
        assert (await browser.post("/api/sign-out", json={})).status_code == 200
        assert "event: list" in (await asyncio.wait_for(stream, PATIENCE_S)).text
        assert (await at_other.get("/")).status_code == 401

    run(server, see)


def test_streams_that_outlast_a_session_count_as_those_of_its_token(server: Server) -> None:
    async def see(one: Page, _: Page, __: Trouble) -> None:
        browser = await one.signed_in()
        assert (await browser.get("/api/studies/default/none/trials/0")).status_code == 404
        with ExitStack() as streams:
            for _stream in range(MOST_STREAMS):
                streams.enter_context(one.boards[0].limits.streaming())
            assert (await browser.post("/api/sign-out", json={})).status_code == 200
            again = await one.signed_in()
            refused = await asyncio.wait_for(again.get("/api/stream"), PATIENCE_S)
            assert refused.status_code == 429
        assert (await again.get("/api/studies/default/none/trials/0")).status_code == 404

    run(server, see)


def test_a_board_is_closed_when_nobody_has_used_it_for_a_while(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_in, "BOARD_S", -1.0)

    async def see(one: Page, _: Page, __: Trouble) -> None:
        browser = await one.signed_in()
        for _again in range(2):
            answer = await browser.get("/api/studies/default/none/trials/0")
            assert answer.status_code == 404
        assert (len(one.boards), one.closed) == (2, one.boards[:1])

    run(server, see)


@pytest.mark.usefixtures("often")
def test_sessions_beyond_the_limit_end_with_their_streams(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_in, "MOST_SESSIONS", 2)

    async def see(one: Page, _: Page, __: Trouble) -> None:
        streams = [await one.watching(await one.signed_in()) for _ in range(4)]
        await asyncio.wait_for(asyncio.gather(*streams[:2]), PATIENCE_S)
        assert (len(one.boards), one.closed) == (1, []), "all sessions of a token watch the same"
        for stream in streams[2:]:
            assert not stream.done()
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    run(server, see)


def test_a_token_that_signs_in_often_ends_its_own_sessions_only(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_in, "MOST_OF_TOKEN", 2)
    monkeypatch.setattr(sign_in, "MOST_SESSIONS", 4)

    async def see() -> None:
        sessions = Sessions(server.page_sessions())
        mine, *others = (secrets.token_urlsafe(ID_BYTES) for _ in range(6))
        await sessions.begin(mine, TOKEN)
        for identity in others:
            await sessions.begin(identity, "another-token")
        tokens = [await sessions.token(identity) for identity in (mine, *others)]
        assert tokens == [TOKEN, None, None, None, "another-token", "another-token"]

    asyncio.run(see())


def test_a_session_that_nobody_uses_ends(server: Server) -> None:
    now_s = 1e9

    async def see() -> None:
        nonlocal now_s
        sessions = Sessions(server.page_sessions(), lambda: now_s)
        used, unused = (secrets.token_urlsafe(ID_BYTES) for _ in range(2))
        for identity in (used, unused):
            await sessions.begin(identity, TOKEN)
        now_s += sign_in.IDLE_S - 1
        assert await sessions.token(used) == TOKEN
        now_s += 2
        assert [await sessions.token(identity) for identity in (used, unused)] == [TOKEN, None]

    asyncio.run(see())


def test_a_session_of_a_server_whose_clock_was_days_ahead_has_ended(server: Server) -> None:
    async def see() -> None:
        ahead = Sessions(server.page_sessions(), lambda: 1e9 + 10 * sign_in.IDLE_S)
        identity = secrets.token_urlsafe(ID_BYTES)
        await ahead.begin(identity, TOKEN)
        assert await Sessions(server.page_sessions(), lambda: 1e9).token(identity) is None

    asyncio.run(see())


def test_an_old_cookie_does_not_hide_the_sign_in_while_the_database_is_down(server: Server) -> None:
    async def see(one: Page, other: Page, stored: Trouble) -> None:
        browser = other.browser((await one.signed_in()).cookies)
        stored.down = True
        index = await browser.get("/")
        assert (index.status_code, "Sign in" in index.text) == (503, True)
        assert (await browser.get("/static/sign-in.js")).status_code == 200
        assert (await browser.post("/api/sign-in", json={"token": "wrong"})).status_code == 403
        stream = await browser.get("/api/stream")
        assert (stream.status_code, stream.text) == (503, "the database is down\n")
        stored.down = False
        assert (await browser.get("/")).status_code == 200

    run(server, see)


def test_a_session_whose_token_was_replaced_in_the_database_has_ended(server: Server) -> None:
    stored, identity, known, other = (
        server.page_sessions(),
        secrets.token_urlsafe(ID_BYTES),
        b"a-token",
        b"b-token",
    )
    key = sign_in.key_of(identity)

    async def see() -> None:
        await Sessions(stored).begin(identity, known.decode())
        assert await Sessions(stored).token(identity) == known.decode()
        found = stored.find(key)
        assert found is not None
        sealed, used_s = found
        first, last = sealed[: -len(known)], sealed[-len(known) :]
        replaced = first + bytes(a ^ b ^ c for a, b, c in zip(last, known, other, strict=True))
        stored.end(key)
        stored.begin(key, replaced, "owner", used_s, oldest_s=0.0, most=9, most_of_owner=9)
        assert await Sessions(stored).token(identity) is None

    asyncio.run(see())
