"""The peer of a request to a page is that of its connection, also behind a proxy."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from controller.ui.server import listen, running


def test_the_header_of_a_proxy_does_not_replace_the_peer() -> None:
    peers: list[tuple[str, int]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        assert request.client is not None
        peers.append((request.client.host, request.client.port))
        await JSONResponse({})(scope, receive, send)

    async def ask() -> tuple[str, int]:
        listener = listen("127.0.0.1", (0,), flag="--ui")
        address = listener.getsockname()
        async with running(app, listener, asyncio.Event()):
            reader, writer = await asyncio.open_connection(*address)
            own: tuple[str, int] = writer.get_extra_info("sockname")
            proxy = b"X-Forwarded-For: 192.0.2.1\r\n"
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + proxy + b"Connection: close\r\n\r\n")
            await reader.read()
            writer.close()
            await writer.wait_closed()
        return own

    own = asyncio.run(ask())
    assert peers == [own]
