"""The server of the page: it listens on one port of the loopback interface until a signal ends it.

The key and the port are kept in the state directory (mode 0600), so that an open page works after a restart. There is
no option for other interfaces: the page can delete experiments, and without TLS its cookie could be read in transit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware

from controller.app.workspace import Workspace
from controller.ui.application import application
from controller.ui.board import Board
from controller.ui.experiment_routes import experiment_routes
from controller.ui.guard import Access, Guard
from suggest.errors import FailedPrecondition, Unavailable

ADDRESS = "127.0.0.1"
GRACE_S = 2  # for answers in progress when the server ends


@dataclass(frozen=True, slots=True)
class _StoredAddress:
    key: bytes
    port: int


async def serve(workspace: Workspace, *, port: int | None, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. Calls `say` with the link once requests are answered.

    Args:
        port: None means the last port if it is free, otherwise any.

    Raises:
        FailedPrecondition: The port is in use.
        Unavailable: The state directory cannot be written.
    """
    workspace.state.make()
    file = workspace.state.root / "ui.json"
    kept = _read(file)
    listener = _listen(port, kept.port)
    actual = listener.getsockname()[1]
    _write(file, _StoredAddress(kept.key, actual))
    access = Access(kept.key, actual)
    closing = asyncio.Event()
    board = Board(workspace)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await board.close()

    config = uvicorn.Config(
        application(
            lambda _: board,
            Middleware(Guard, access=access),
            kind="experiments",
            page_token=lambda _: access.page_token,
            closing=closing,
            more=experiment_routes(board, closing),
            lifespan=lifespan,
        ),
        http="h11",
        ws="none",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = _Server(config)

    def end() -> None:
        closing.set()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    try:
        say(f"http://{ADDRESS}:{actual}/?token={access.link_token}")  # the socket listens already
        await server.serve(sockets=[listener])
    finally:
        listener.close()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals, because `serve` does, and uvicorn would send them to this process again at the end."""
        yield


def _listen(port: int | None, last: int) -> socket.socket:
    for wanted in (last, 0) if port is None else (port,):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ADDRESS, wanted))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if port is not None:
                raise FailedPrecondition(
                    f"port {port} of {ADDRESS}: {error.strerror}; choose another with --port, or omit it for a free one"
                ) from error
            continue
        return listener
    raise Unavailable(f"no port of {ADDRESS} is free")


def _read(file: Path) -> _StoredAddress:
    """Read the file; without one, create a new key."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        kept = _StoredAddress(bytes.fromhex(found["key"]), int(found["port"]))
        if len(kept.key) == 32 and 0 <= kept.port < 65536:
            return kept
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return _StoredAddress(secrets.token_bytes(32), 0)


def _write(file: Path, kept: _StoredAddress) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            json.dump({"key": kept.key.hex(), "port": kept.port}, opened)
    except OSError as error:
        raise Unavailable(f"{file}: {error.strerror}") from error
