"""Sessions of the page of a server end everywhere, are bounded,
and are not needed for what is public.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
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
from controller.ui.visitor import MOST_STREAMS, VisitorLimits
from suggest.client import AsyncClient
from suggest.errors import Unavailable
from suggest.server import Server
from tests.service.running import a_server

TOKEN = "a-token"
PATIENCE_S = 30.0


class Trouble:
    """Sessions in a database that can be down, or answer only when the test lets it."""

    def __init__(self, stored: StoredSessions) -> None:
        self._stored = stored
        self.down = False
        self.found = threading.Event()
        self.answers = threading.Event()
        self.answers.set()

    def find(self, key: str) -> tuple[bytes, float] | None:
        if self.down:
            raise Unavailable("the database is down")
        found = self._stored.find(key)
        self.found.set()
        assert self.answers.wait(PATIENCE_S)
        return found

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


class Page:
    """The page of one server of the database."""

    def __init__(self, server: Server, stored: StoredSessions) -> None:
        self._server = server
        self.opened = asyncio.Event()
        self.boards: list[StudyBoard] = []
        self.closed: list[StudyBoard] = []
        self.authenticator = TokenAuthenticator(
            self._connect, lambda token: token == TOKEN, port=1, secure=False, stored=stored
        )
        self._app: Starlette = application.application(
            self.authenticator.board,
            Middleware(Guard, authenticator=self.authenticator),
            kind="studies",
            closing=asyncio.Event(),
            vega=VegaBundle(),
            signs_in=True,
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

    def _connect(self, token: str, limits: VisitorLimits) -> StudyBoard:
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
            Board(client, source="here", mark=clock_mark, verbs=frozenset, limits=limits)
        )
        return self.boards[-1]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with a_server(tmp_path / "s.db") as server:
        yield server


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at sessions often."""
    monkeypatch.setattr(application, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(sign_in, "REREAD_S", 0.0)


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
        assert other.closed == other.boards != []

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
            assert (refused.status_code, len(one.boards)) == (429, 2)
        assert (await again.get("/api/studies/default/none/trials/0")).status_code == 404

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


def test_a_server_remembers_at_most_twice_as_many_sessions_as_the_database(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_in, "MOST_SESSIONS", 3)

    async def see() -> None:
        sessions, others = Sessions(server.page_sessions()), Sessions(server.page_sessions())
        for _ in range(10):
            identity = secrets.token_urlsafe(ID_BYTES)
            await others.begin(identity, TOKEN)
            assert await sessions.token(identity) == TOKEN
        assert [len(each) for each in (sessions, others)] == [6, 6]

    asyncio.run(see())


@pytest.mark.usefixtures("often")
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


@pytest.mark.usefixtures("often")
def test_sessions_end_by_a_clock_that_nobody_sets(server: Server) -> None:
    elapsed_s = 0.0

    async def see() -> None:
        nonlocal elapsed_s
        sessions = Sessions(server.page_sessions(), lambda: elapsed_s)
        used, unused = (secrets.token_urlsafe(ID_BYTES) for _ in range(2))
        for identity in (used, unused):
            await sessions.begin(identity, TOKEN)
        elapsed_s += sign_in.IDLE_S - 1
        assert await sessions.token(used) == TOKEN
        elapsed_s += 2
        assert [await sessions.token(identity) for identity in (used, unused)] == [TOKEN, None]

    asyncio.run(see())


@pytest.mark.usefixtures("often")
def test_a_session_that_a_server_with_a_later_clock_used_ends_in_time(server: Server) -> None:
    elapsed_s = 0.0

    async def see() -> None:
        nonlocal elapsed_s
        ahead_s = 0.0
        here = Sessions(server.page_sessions(), lambda: elapsed_s)
        later = Sessions(server.page_sessions(), lambda: ahead_s)
        ahead_s = 10 * sign_in.IDLE_S
        identity = secrets.token_urlsafe(ID_BYTES)
        await later.begin(identity, TOKEN)
        assert await here.token(identity) == TOKEN
        elapsed_s += sign_in.IDLE_S + 1
        assert await here.token(identity) is None

    asyncio.run(see())


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("wrong_by_s", [2 * sign_in.IDLE_S, -2 * sign_in.IDLE_S])
def test_a_clock_that_was_wrong_at_the_start_harms_no_session_an_hour_after_it_was_set(
    server: Server, wrong_by_s: float
) -> None:
    elapsed_s, wall_s = 0.0, 1e9 + wrong_by_s

    async def see() -> None:
        nonlocal elapsed_s, wall_s
        wrong = Sessions(server.page_sessions(), lambda: elapsed_s, lambda: wall_s)
        own, another, last = (secrets.token_urlsafe(ID_BYTES) for _ in range(3))
        await wrong.begin(own, TOKEN)
        wall_s = 1e9
        assert await wrong.token(own) == TOKEN
        elapsed_s, wall_s = elapsed_s + sign_in.CLOCK_S + 1, wall_s + sign_in.CLOCK_S + 1
        assert await wrong.token(own) == TOKEN
        right = Sessions(server.page_sessions(), lambda: elapsed_s, lambda: wall_s)
        await right.begin(another, TOKEN)
        await wrong.begin(last, TOKEN)
        for sessions in (right, wrong):
            assert await sessions.token(another) == TOKEN
            assert await sessions.token(last) == TOKEN
        assert await wrong.token(own) == TOKEN

    asyncio.run(see())


@pytest.mark.usefixtures("often")
def test_signing_out_wins_against_a_request_that_reads_the_session_meanwhile(
    server: Server,
) -> None:
    async def see() -> None:
        stored = Trouble(server.page_sessions())
        sessions, identity = Sessions(stored), secrets.token_urlsafe(ID_BYTES)
        await sessions.begin(identity, TOKEN)
        stored.answers.clear()
        request = asyncio.create_task(sessions.token(identity))
        assert await asyncio.to_thread(stored.found.wait, PATIENCE_S)
        await sessions.end(identity)
        stored.answers.set()
        assert await asyncio.wait_for(request, PATIENCE_S) is None
        assert sessions.known(identity) is None

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
