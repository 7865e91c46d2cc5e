"""The endpoints of the probes: `/healthz`, and `/readyz`, which is ready as a standby, or as the
leader with a working watch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Self

from controller.operator.leadership import Leadership

_REQUEST_S = 5.0
_LONGEST = 4096  # bytes of a request


class Health:
    """Answers on a port, if there is one, while the context is open."""

    def __init__(self, port: int | None, leadership: Leadership) -> None:
        # Returns why the resources cannot be watched at present.
        self.watch_trouble: Callable[[], str] = lambda: ""
        self._port = port
        self._leadership = leadership
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        if self._port is not None:
            self._server = await asyncio.start_server(self._answer, None, self._port)
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def trouble(self) -> str:
        """Return why the process is not ready; "" if it is."""
        if self._leadership.lost is not None:
            return str(self._leadership.lost)
        return self.watch_trouble()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            async with asyncio.timeout(_REQUEST_S):
                request = await reader.readuntil(b"\r\n")
                path = request.split(b" ")[1] if request.count(b" ") > 1 else b""
                code, text = self._reply(path)
                head = (
                    f"HTTP/1.1 {code}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + text)
                await writer.drain()
        writer.close()

    def _reply(self, path: bytes) -> tuple[str, bytes]:
        if path == b"/healthz":
            return "200 OK", b"ok\n"
        if path != b"/readyz":
            return "404 Not Found", b"there are /healthz and /readyz\n"
        trouble = self.trouble()
        return (
            ("503 Service Unavailable", f"{trouble}\n".encode()) if trouble else ("200 OK", b"ok\n")
        )
