"""A port that answers GET requests for a few fixed paths: the kubelet's probes, and Prometheus.

It runs in the controller's own loop, so answers may read what belongs to the loop. A client that
is slow, sends too much or goes away costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
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


class Endpoint:
    """Answers on a port, if there is one, while the context is open.

    answer: called with the path and the header Accept.
    """

    def __init__(self, port: int | None, answer: Callable[[str, str], PlainReply]) -> None:
        self._port = port
        self._answer = answer
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        if self._port is not None:
            self._server = await asyncio.start_server(
                self._connected, None, self._port, limit=_LONGEST
            )
        return self

    async def __aexit__(self, *_error: object) -> None:
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
