"""`tuner serve --ui`: the page of a server's studies, in the server's process and loop.

People sign in with their tokens, or, on a server without tokens, by the link that is printed. What
needs a controller is not offered.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route

from controller.ui.application import application, changing_routes
from controller.ui.guard import Guard, LinkAuthenticator
from controller.ui.server import LimitedListener, listen, running
from controller.ui.shared_reader import Mark, clock_mark, file_mark
from controller.ui.sign_in import StoredSessions, TokenAuthenticator
from controller.ui.stored_address import StoredAddress
from controller.ui.studies import StudyBoard
from controller.ui.vega import VegaBundle
from suggest.address import Address
from suggest.client import AsyncClient, Channel
from suggest.errors import InvalidArgument

# the name of the channel to the server in this process; tokens are not sent to sockets
INSIDE = "localhost:0"
NO_VERBS: frozenset[str] = frozenset()


class StudyServer(Protocol):
    """The part of `suggest.server.Server` that the page needs."""

    def inside(self) -> Channel: ...

    def verbs_of(self, token: str) -> frozenset[str] | None: ...

    @property
    def max_connections(self) -> int: ...

    def page_sessions(self) -> StoredSessions: ...

    def ssl_context(self) -> ssl.SSLContext | None: ...

    def current_ssl_context(self) -> ssl.SSLContext: ...


def check(address: Address, *, tokens: bool, tls: bool) -> None:
    """Refuse a page that is open by mistake. Raises InvalidArgument."""
    if address.path:
        raise InvalidArgument.at("ui", f"{address} is a socket; browsers need HOST:PORT")
    if not address.private and not (tokens and tls):
        raise InvalidArgument.at(
            "ui",
            f"people on other machines would reach the page at {address}; add --tokens, --tls-cert "
            "and --tls-key, or use a loopback address and a tunnel",
        )


@asynccontextmanager
async def serve_page(
    server: StudyServer,
    address: Address,
    *,
    tokens: bool,
    sqlite: Path | None,
    source: str,
    print_link: Callable[[str], None],
) -> AsyncIterator[None]:
    """Serve the page while the block runs. Calls `print_link` with its address.

    Args:
        tokens: The server has tokens, with which people sign in.
        sqlite: The database, whose times show changes; the key of the page and its port are stored
            beside it, in a file named after the port, because several servers may share the
            database. None for other stores.
        source: What the page calls the store.

    Raises FailedPrecondition if the port is in use, Unavailable if nothing can be stored.
    """
    host = "127.0.0.1" if address.host == "localhost" else address.host
    listener, key = _listen(host, address.port, sqlite)
    port: int = listener.getsockname()[1]
    listener = LimitedListener(listener, server.max_connections // 2)
    tls = server.ssl_context() is not None

    def mark() -> Mark:
        return clock_mark() if sqlite is None else file_mark(sqlite)

    def board(token: str) -> StudyBoard:
        # Nothing of the environment: the page has the rights of its visitors,
        # not those of the server's operator.
        client = AsyncClient(
            INSIDE, token=token, tls_ca="", tls_cert="", tls_key="", inside=server.inside()
        )
        return StudyBoard(
            client,
            source=source,
            mark=mark,
            verbs=lambda: server.verbs_of(token) or NO_VERBS,
            visitor="this token" if token else "this link",
        )

    access = _by_token(server, board, port) if tokens else _by_link(key, board, port)
    closing = asyncio.Event()
    app = application(
        access.board,
        Middleware(Guard, authenticator=access.authenticator),
        kind="studies",
        closing=closing,
        vega=VegaBundle(),
        sign_in="token" if tokens else "link",
        routes_of_kind=[*access.routes, *changing_routes(access.board, "studies")],
    )
    try:
        async with running(app, listener, closing, tls=server.current_ssl_context if tls else None):
            name = f"[{host}]" if ":" in host else host
            print_link(f"{'https' if tls else 'http'}://{name}:{port}/{access.query}")
            yield
    finally:
        await access.close()


def _listen(host: str, port: int, sqlite: Path | None) -> tuple[socket.socket, bytes]:
    """Return a listening socket, on last time's port if any will do, and the page's key."""
    file = None
    if sqlite is not None:
        suffix = f"-{port}" if port else ""
        file = sqlite.with_name(f"{sqlite.name}-page{suffix}.json")
    stored = StoredAddress(secrets.token_bytes(32), 0) if file is None else StoredAddress.read(file)
    listener = listen(host, (port,) if port else (stored.port, 0), flag="--ui")
    if file is not None:
        StoredAddress(stored.key, listener.getsockname()[1]).write(file)
    return listener, stored.key


@dataclass(frozen=True, slots=True)
class _Access:
    """How people get in, and which studies each of them sees. query: of the printed link."""

    authenticator: LinkAuthenticator | TokenAuthenticator[StudyBoard]
    board: Callable[[Request], StudyBoard]
    close: Callable[[], Awaitable[None]]
    routes: Sequence[Route] = ()
    query: str = ""


def _by_token(server: StudyServer, board: Callable[[str], StudyBoard], port: int) -> _Access:
    async def is_valid(token: str) -> bool:
        return server.verbs_of(token) is not None

    authenticator = TokenAuthenticator(
        board,
        is_valid,
        hint="The server's operator gives you one.",
        port=port,
        secure=server.ssl_context() is not None,
        stored=server.page_sessions(),
    )
    return _Access(authenticator, authenticator.board, authenticator.close, authenticator.routes)


def _by_link(key: bytes, board: Callable[[str], StudyBoard], port: int) -> _Access:
    authenticator = LinkAuthenticator(key, port, prefix="tuner-serve")
    shared = board("")
    return _Access(
        authenticator,
        lambda request: shared,
        shared.close,
        query=f"?token={authenticator.link_token}",
    )
