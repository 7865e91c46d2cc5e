"""The server of the page: it listens on one port of the loopback interface until a signal ends it.

The key and the port are kept in the state directory (mode 0600), so that an open page works after a
restart. There is no option for other interfaces: the page can delete experiments, and without TLS
its cookie could be read in transit.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import uvicorn
from starlette.middleware import Middleware
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from controller.app.workspace import Workspace
from controller.ui.application import application, changing_routes
from controller.ui.board import Board
from controller.ui.experiment_routes import controlling_routes, reading_routes
from controller.ui.guard import Guard, LinkAuthenticator
from controller.ui.stored_address import StoredAddress
from controller.ui.vega import VegaBundle
from suggest.endpoint import renewed
from suggest.errors import FailedPrecondition, Unavailable

ADDRESS = "127.0.0.1"
GRACE_S = 2  # for answers in progress when the server ends


async def serve(
    workspace: Workspace, *, port: int | None, optuna: bool, print_link: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM. Calls `print_link` with the link once requests are answered.

    Args:
        optuna: Serve optuna-dashboard instead of the page.
        port: None means the last port if it is free, otherwise any.

    Raises:
        FailedPrecondition: The port is in use.
        Unavailable: The state directory cannot be written.
    """
    workspace.state.make()
    file = workspace.state.root / "ui.json"
    stored = StoredAddress.read(file)
    listener = listen(ADDRESS, (stored.port, 0) if port is None else (port,), flag="--port")
    actual = listener.getsockname()[1]
    StoredAddress(stored.key, actual).write(file)
    authenticator = LinkAuthenticator(stored.key, actual)
    board = Board(workspace)
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)
    try:
        closing = asyncio.Event()
        app = _dashboard(board, authenticator) if optuna else _page(board, authenticator, closing)
        async with running(app, listener, closing):
            # the socket listens already
            print_link(f"http://{ADDRESS}:{actual}/?token={authenticator.link_token}")
            await ending.wait()
    finally:
        await board.close()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _page(board: Board, authenticator: LinkAuthenticator, closing: asyncio.Event) -> ASGIApp:
    return application(
        lambda _: board,
        Middleware(Guard, authenticator=authenticator),
        kind="experiments",
        closing=closing,
        vega=VegaBundle(),
        routes_of_kind=[
            *reading_routes(lambda _: board, closing),
            *controlling_routes(board, closing),
            *changing_routes(lambda _: board, "experiments"),
        ],
    )


def _dashboard(board: Board, authenticator: LinkAuthenticator) -> ASGIApp:
    from controller.ui.optuna_page import optuna_application  # lazy: it imports Optuna

    return optuna_application(board, authenticator)


@contextlib.asynccontextmanager
async def running(
    app: ASGIApp,
    listener: socket.socket,
    closing: asyncio.Event,
    *,
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> AsyncIterator[None]:
    """Answer requests of the listener, and close it at the end.

    `closing` is set first, so that streams end. `tls` returns the context
    of a new connection; None for no TLS.
    """
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
        ssl_context_factory=None if tls is None else lambda *_: renewed(tls),
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        closing.set()
        server.should_exit = True
        await serving
        listener.close()


class _Protocol(H11Protocol):
    """Adds `client_certificate` to the state of each request.

    It is what `ssl.SSLSocket.getpeercert` returns: empty without a verified certificate.
    """

    def connection_made(  # type: ignore[override]  # as in uvicorn's own
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        shown = transport.get_extra_info("peercert") or {}
        self.app_state = self.app_state | {"client_certificate": shown}


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals: the caller does, and uvicorn would send them again at the end."""
        yield


class LimitedListener(socket.socket):
    """A listening socket that closes connections over a limit as soon as it has accepted them.

    There may be `most` in all, and half as many of a host. uvicorn has no such limits, and does not
    know connections in their TLS handshake.
    """

    def __init__(self, listener: socket.socket, most: int) -> None:
        super().__init__(listener.family, listener.type, listener.proto, listener.detach())
        self._most = most
        self._open: Counter[str] = Counter()  # by host

    def accept(self) -> tuple[socket.socket, Any]:  # addresses differ by family
        """Raises ConnectionAbortedError for a connection too many, as if the peer had closed it."""
        accepted, address = super().accept()
        host = address[0]
        if self._open.total() >= self._most or self._open[host] >= self._most // 2:
            accepted.close()
            raise ConnectionAbortedError
        self._open[host] += 1
        return _Accepted(accepted, partial(self._closed_one, host)), address

    def _closed_one(self, host: str) -> None:
        self._open[host] -= 1
        if not self._open[host]:
            del self._open[host]


class _Accepted(socket.socket):
    """A connection that calls `on_close` once, when it is closed."""

    def __init__(self, accepted: socket.socket, on_close: Callable[[], None]) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self._on_close = on_close

    def close(self) -> None:
        was_open = self.fileno() >= 0
        super().close()
        if was_open:
            self._on_close()


def listen(host: str, ports: Sequence[int], *, flag: str) -> socket.socket:
    """Listen at the first of the ports that is free; 0 is any. `flag` chooses a port.

    Raises FailedPrecondition, Unavailable.
    """
    for candidate in ports:
        listener = socket.socket(
            socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM
        )
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if len(ports) == 1:
                raise FailedPrecondition(
                    f"port {candidate} of {host}: {error.strerror}; choose another with {flag}, "
                    "or omit it for a free one"
                ) from error
            continue
        return listener
    raise Unavailable(f"no port of {host} is free")
