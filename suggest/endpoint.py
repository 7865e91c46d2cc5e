"""A port that answers GET requests for a few fixed paths: the kubelet's probes, and Prometheus.

It runs in the loop of its program, so answers may read what belongs to the loop. A client that
is slow, sends too much or goes away costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

_REQUEST_S = 5.0
_LONGEST = 8192  # bytes of a request's head


@dataclass(frozen=True, slots=True)
class PlainReply:
    status: str
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


def renewed(tls: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """Return a context that takes the newest certificate at each handshake.

    So it is renewed without a restart.
    """
    context = tls()

    def renew(
        connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext
    ) -> None:
        connection.context = tls()

    context.sni_callback = renew
    return context


class Endpoint:
    """Answers at a place, if there is one, while it is open.

    place: a port of all interfaces, or a socket that is bound. answer: called with the path and the
    header Accept. tls: returns the context of a new connection; None for no TLS.
    """

    def __init__(
        self,
        place: int | socket.socket | None,
        answer: Callable[[str, str], PlainReply],
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._place = place
        self._answer = answer
        self._tls = None if tls is None else renewed(tls)
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        if isinstance(self._place, int):
            self._server = await asyncio.start_server(
                self._connected, None, self._place, limit=_LONGEST, ssl=self._tls
            )
        elif self._place is not None:
            self._server = await asyncio.start_server(
                self._connected, sock=self._place, limit=_LONGEST, ssl=self._tls
            )

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broken = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        with contextlib.suppress(*broken):
            async with asyncio.timeout(_REQUEST_S):
                request, *headers = (
                    (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                )
                words = request.split(" ")
                path = words[1].partition("?")[0] if len(words) > 1 else ""
                reply = self._answer(path, _header(headers, "accept"))
                head = (
                    f"HTTP/1.1 {reply.status}\r\nContent-Type: {reply.content_type}\r\n"
                    f"Content-Length: {len(reply.body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + reply.body)
                await writer.drain()
        writer.close()


def _header(lines: list[str], name: str) -> str:
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return ""
