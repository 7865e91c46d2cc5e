"""The HTTP client of an API server against raw sockets, plain and by TLS: bodies, kept connections, limits, and peers
that are silent, slow, broken or lie."""

from __future__ import annotations

import asyncio
import base64
import gzip
import random
import shutil
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from controller.kube import http
from controller.kube.http import (
    BrokenOff,
    CannotConnect,
    Gunzip,
    HostUnknown,
    HttpError,
    HttpPool,
    HttpTimeout,
    ProxyFailed,
    ReadTimeout,
    TlsFailed,
    Unsendable,
    Untrusted,
    body_of,
)
from tests.certificates import Authority
from tests.kube.small_cluster import eventually

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Peer:
    """The server's end of one connection."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number  # 1 for the first connection
        self.reader = reader
        self.writer = writer

    async def hear(self) -> str:
        """Return a request's line and headers, and read its body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        for line in head.splitlines():
            if line.startswith("content-length: ") or line.startswith("Content-Length: "):
                await self.reader.readexactly(int(line[16:]))
        return head

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        with suppress(OSError):
            await self.reader.read()


Serve = Callable[[Peer], Awaitable[None]]


class RawServer:
    def __init__(self, serve: Serve, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self._serve = serve
        self._tls = tls
        self._host = host
        self.connections = 0
        self.ended = 0
        self._accepted: list[tuple[asyncio.Task[Any] | None, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(self._accept, self._host, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close everything; a leak would be a warning in another test."""
        self._server.close()
        await self._server.wait_closed()
        for task, writer in self._accepted:
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
            with suppress(AttributeError):  # asyncio's, for a transport that has ended already
                writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._accepted.append((asyncio.current_task(), writer))
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._serve(Peer(self.connections, reader, writer))
        self.ended += 1
        writer.close()


def says(answer: bytes) -> Serve:
    """Return a server that replies to one request with this text, and closes the connection."""

    async def serve(peer: Peer) -> None:
        await peer.hear()
        await peer.say(answer)

    return serve


async def answers(peer: Peer) -> None:
    while True:
        await peer.hear()
        await peer.say(OK)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> ssl.SSLContext:
    return authority.server_context()


@pytest.fixture
def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.own.certificate))


PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # not used


@asynccontextmanager
async def pool_of(server: str, context: ssl.SSLContext = PLAIN, **settings: Any) -> AsyncIterator[HttpPool]:
    pool = HttpPool(server, context, **settings)
    try:
        yield pool
    finally:
        await pool.close()


async def asked(pool: HttpPool, method: str = "GET", target: str = "/", body: bytes | None = None, *,
                headers: list[tuple[str, str]] | None = None, silence_s: float = 10,
                total_s: float | None = None) -> bytes:  # fmt: skip
    """Return the whole body of the reply."""
    response = await pool.request(method, target, headers or [], body, silence_s=silence_s, total_s=total_s)
    found = b""
    while piece := await response.read_some():
        found += piece
    return found


async def failure(serve: Serve, **limits: float) -> HttpError:
    """Return the client's error for a server that behaves like this."""
    async with RawServer(serve) as server, pool_of(server.url) as pool:
        with pytest.raises(HttpError) as caught:
            await asked(pool, **limits)  # type: ignore[arg-type]
    return caught.value


# Bodies.


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (CHUNKED + chunked(b"one\n", b"two\n", b"x" * 100_000), b"one\ntwo\n" + b"x" * 100_000),
        (CHUNKED + b"3;name=value\r\none\r\n0\r\nX-Trailer: 1\r\n\r\n", b"one"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil it ends", b"until it ends"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"old"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n" + OK, b"ok"),
    ],
)
def test_bodies_are_read_to_the_end(
    answer: bytes, body: bytes, secure: bool, tls: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    async def check() -> None:
        async with RawServer(says(answer), tls if secure else None) as server, pool_of(server.url, trusting) as pool:
            assert await asked(pool) == body

    asyncio.run(check())


def test_chunks_may_be_split_at_any_byte() -> None:
    randoms = random.Random(1)
    for _ in range(2000):
        chunks = [randoms.randbytes(randoms.choice([1, 2, 3, 5, 20])) for _ in range(randoms.randint(0, 6))]
        wire = chunked(*chunks)[:-2] + randoms.choice([b"", b"X: y\r\n"]) + b"\r\n"
        body, found = body_of(200, "chunked", None), b""
        while wire:
            assert not body.ended
            cut = randoms.choice([1, 2, 3, 7, 100])
            found += body.take(wire[:cut])
            wire = wire[cut:]
        assert (body.ended, body.excess, found) == (True, False, b"".join(chunks))


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        (b"+5\r\nhello\r\n", "size of a chunk"),
        (b"0x5\r\nhello\r\n", "size of a chunk"),
        (b"5\nhello\n", "size of a chunk"),
        (b"-1\r\n", "size of a chunk"),
        (b"\r\n", "size of a chunk"),
        (b"f" * 16 + b"\r\n", "size of a chunk"),
        (b"3\r\nhello\r\n", "longer than its size"),
        (b"3\r\nhe", "in the middle"),
        (b"3\r\nhel\r\n", "in the middle"),
        (b"0\r\nX: y\r\n", "in the middle"),
        (b"5;" + b"x" * 20_000, "has no end"),
        (b"0\r\n" + b"X: y\r\n" * 5000, "too long"),
    ],
)
@pytest.mark.parametrize("cut", [1, 1 << 20])
def test_invalid_chunks_are_errors(wire: bytes, why: str, cut: int) -> None:
    body = body_of(200, "chunked", None)

    def take_all() -> None:
        for start in range(0, len(wire), cut):
            body.take(wire[start : start + cut])
        body.end()

    with pytest.raises(ValueError, match=why):
        take_all()


def test_a_compressed_body_is_unpacked_in_bounded_pieces() -> None:
    gunzip, text = Gunzip(), b"a" * 10_000_000
    found = [gunzip.take(gzip.compress(text) + gzip.compress(b"") * 3000 + gzip.compress(b"end"))]
    while found[-1]:
        found.append(gunzip.take())
    gunzip.end()
    assert b"".join(found) == text + b"end"
    assert max(map(len, found)) <= 1 << 16


@pytest.mark.parametrize(
    ("body", "why"),
    [(gzip.compress(b"some text", mtime=0)[:-3], "incomplete"), (b"plain", "not valid gzip")],
)
def test_a_compressed_body_that_is_damaged_is_an_error(body: bytes, why: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    error = asyncio.run(failure(says(head % len(body) + body)))
    assert isinstance(error, BrokenOff)
    assert why in str(error)


def test_a_compressed_body_is_decompressed() -> None:
    async def check() -> None:
        packed = gzip.compress(b"some text" * 10_000)
        answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
        pieces = [packed[start : start + 7] for start in range(0, len(packed), 7)]
        async with RawServer(says(answer + chunked(*pieces))) as server, pool_of(server.url) as pool:
            assert await asked(pool) == b"some text" * 10_000

    asyncio.run(check())


# Connections that are kept.


@pytest.mark.parametrize("secure", [False, True])
def test_a_connection_is_used_again(secure: bool, tls: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    async def check() -> None:
        async with RawServer(answers, tls if secure else None) as server, pool_of(server.url, trusting) as pool:
            for method in ("GET", "POST", "DELETE") * 5:
                body = b"x" * 100_000 if method == "POST" else None
                assert await asked(pool, method, body=body) == b"ok"
            assert server.connections == 1

    asyncio.run(check())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: Close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\n",
        CHUNKED + chunked(b"ok") + b"\r\n",
    ],
)
def test_a_connection_is_not_used_again_when_that_could_go_wrong(answer: bytes) -> None:
    async def serve(peer: Peer) -> None:
        while True:
            await peer.hear()
            await peer.say(answer)

    async def check() -> None:
        async with RawServer(serve) as server, pool_of(server.url) as pool:
            for _ in range(3):
                assert await asked(pool) == b"ok"
            assert server.connections == 3
            await eventually(lambda: server.ended == 3)

    asyncio.run(check())


@pytest.mark.parametrize("secure", [False, True])
def test_a_connection_that_the_server_closes_while_it_is_idle_is_not_used(
    secure: bool, tls: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    async def check() -> None:
        async with RawServer(says(OK), tls if secure else None) as server, pool_of(server.url, trusting) as pool:
            for turn in (1, 2):
                assert await asked(pool, "POST", body=b"{}") == b"ok"
                await eventually(lambda turn=turn: server.ended == turn and not pool._idle)  # type: ignore[misc]

    asyncio.run(check())


@pytest.mark.parametrize("how", ["reset", "end"])
@pytest.mark.parametrize("method", ["GET", "DELETE", "POST", "PATCH"])
def test_a_kept_connection_found_dead_is_replaced_only_for_what_may_be_repeated(method: str, how: str) -> None:
    heard: list[str] = []

    async def serve(peer: Peer) -> None:
        while True:
            heard.append((await peer.hear()).split()[0])
            if len(heard) == 2:
                return peer.reset() if how == "reset" else None
            await peer.say(OK)

    async def check() -> None:
        async with RawServer(serve) as server, pool_of(server.url) as pool:
            await asked(pool)
            if method in ("GET", "DELETE"):
                assert await asked(pool, method) == b"ok"
                assert heard == ["GET", method, method]
            else:
                with pytest.raises(BrokenOff):
                    await asked(pool, method, body=b"{}")
                assert heard == ["GET", method]

    asyncio.run(check())


def test_a_request_on_a_new_connection_is_not_repeated() -> None:
    async def check() -> None:
        async def serve(peer: Peer) -> None:
            await peer.hear()

        async with RawServer(serve) as server, pool_of(server.url) as pool:
            with pytest.raises(BrokenOff, match="the server disconnected"):
                await asked(pool)
            assert server.connections == 1

    asyncio.run(check())


def test_an_unsolicited_reply_closes_a_kept_connection() -> None:
    async def serve(peer: Peer) -> None:
        await peer.hear()
        await peer.say(OK)
        await asyncio.sleep(0.02)
        await peer.say(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        await peer.gone()

    async def check() -> None:
        async with RawServer(serve) as server, pool_of(server.url) as pool:
            assert await asked(pool) == b"ok"
            await eventually(lambda: server.ended == 1)
            assert await asked(pool) == b"ok"
            assert server.connections == 2

    asyncio.run(check())


def test_few_connections_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_MOST_IDLE", 3)
    all_there = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.hear()
        if peer.number == 8:
            all_there.set()
        await all_there.wait()
        await peer.say(OK)
        await peer.gone()

    async def check() -> None:
        async with RawServer(serve) as server, pool_of(server.url) as pool:
            await asyncio.gather(*(asked(pool) for _ in range(8)))
            await eventually(lambda: server.ended == 5)
            assert (server.connections, len(pool._links)) == (8, 3)

    asyncio.run(check())


@pytest.mark.parametrize("secure", [False, True])
def test_a_connection_that_is_not_used_for_long_is_closed(
    secure: bool, tls: ssl.SSLContext, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_IDLE_S", 0.05)

    async def check() -> None:
        async with RawServer(answers, tls if secure else None) as server, pool_of(server.url, trusting) as pool:
            for turn in (1, 2):
                await asked(pool)
                await eventually(lambda turn=turn: server.ended == turn and not pool._links)  # type: ignore[misc]

    asyncio.run(check())


# What is not read is not held.


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("form", ["chunks", "until the end"])
def test_a_stream_that_is_not_read_stops_the_server(
    form: str, secure: bool, tls: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    size = 64 << 20
    sent = 0

    async def serve(peer: Peer) -> None:
        nonlocal sent
        await peer.hear()
        await peer.say(CHUNKED if form == "chunks" else b"HTTP/1.1 200 OK\r\n\r\n")
        piece = b"x" * (1 << 15)
        for _ in range(size // len(piece)):
            await peer.say(b"8000\r\n%b\r\n" % piece if form == "chunks" else piece)
            sent += len(piece)
        if form == "chunks":
            await peer.say(b"0\r\n\r\n")

    async def check() -> None:
        async with RawServer(serve, tls if secure else None) as server, pool_of(server.url, trusting) as pool:
            response = await pool.request("GET", "/", [], None, silence_s=10)
            (link,) = pool._links
            before = -1
            while sent != before:
                before = sent
                await asyncio.sleep(0.1)
            assert sent < size  # it waits
            assert sum(map(len, link._received)) <= http._HELD_BYTES + http._RECEIVED_BYTES
            found = 0
            while piece := await response.read_some():
                found += len(piece)
            assert found == size

    asyncio.run(check())


# Limits, and who gives up.


async def silent(peer: Peer) -> None:
    await peer.gone()


async def half_a_head(peer: Peer) -> None:
    await peer.say(b"HTTP/1.1 200 OK\r\nContent-Ty")
    await peer.gone()


async def half_a_body(peer: Peer) -> None:
    await peer.say(CHUNKED + b"10\r\nhalf")
    await peer.gone()


@pytest.mark.parametrize("serve", [silent, half_a_head, half_a_body])
def test_a_silent_server_is_waited_for_until_the_timeout(serve: Serve) -> None:
    assert isinstance(asyncio.run(failure(serve, silence_s=0.05)), ReadTimeout)


def test_a_slow_response_has_a_total_limit() -> None:
    async def serve(peer: Peer) -> None:
        await peer.hear()
        await peer.say(CHUNKED)
        while True:
            await peer.say(b"1\r\nx\r\n")
            await asyncio.sleep(0.01)

    assert isinstance(asyncio.run(failure(serve, total_s=0.2)), HttpTimeout)


def test_a_response_without_a_total_limit_may_be_slow() -> None:
    async def serve(peer: Peer) -> None:
        await peer.hear()
        await peer.say(CHUNKED)
        for _ in range(10):
            await peer.say(b"1\r\nx\r\n")
            await asyncio.sleep(0.02)
        await peer.say(b"0\r\n\r\n")

    async def check() -> None:
        async with RawServer(serve) as server, pool_of(server.url) as pool:
            assert await asked(pool, silence_s=5) == b"x" * 10

    asyncio.run(check())


@pytest.mark.parametrize("serve", [silent, half_a_head, half_a_body])
def test_cancelling_closes_the_connection(serve: Serve) -> None:
    async def check() -> None:
        async with RawServer(serve) as server, pool_of(server.url) as pool:
            asking = asyncio.create_task(asked(pool))
            await eventually(lambda: server.connections == 1)
            await asyncio.sleep(0.02)
            asking.cancel()
            await asyncio.wait([asking])
            await eventually(lambda: server.ended == 1)
            assert asking.cancelled()
            assert not pool._links

    asyncio.run(check())


@pytest.mark.parametrize("secure", [False, True])
def test_closing_a_response_early_closes_its_connection(
    secure: bool, tls: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    async def check() -> None:
        async with RawServer(half_a_body, tls if secure else None) as server, pool_of(server.url, trusting) as pool:
            response = await pool.request("GET", "/", [], None, silence_s=10)
            response.close()
            await eventually(lambda: server.ended == 1)
            assert not pool._links

    asyncio.run(check())


def test_closing_a_pool_aborts_responses_and_retiring_it_does_not() -> None:
    go_on = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.hear()
        if peer.number == 1:
            await peer.say(OK)
            return await peer.gone()
        await peer.say(CHUNKED + b"3\r\none\r\n")
        await go_on.wait()
        await peer.say(b"3\r\ntwo\r\n")
        await peer.gone()

    async def check() -> None:
        async with RawServer(serve) as server, pool_of(server.url) as pool:
            first = await pool.request("GET", "/", [], None, silence_s=10)
            followed = await pool.request("GET", "/", [], None, silence_s=10)
            assert await first.read_some() == b"ok"
            assert await first.read_some() == b""
            assert await followed.read_some() == b"one"
            assert len(pool._idle) == 1
            pool.retire()
            await eventually(lambda: server.ended == 1)
            assert pool.in_use
            go_on.set()
            assert await followed.read_some() == b"two"
            await pool.close()
            with pytest.raises(BrokenOff):
                await followed.read_some()
            await eventually(lambda: server.ended == 2)

    asyncio.run(check())


def test_a_server_may_answer_before_it_has_read_the_request() -> None:
    async def serve(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await asyncio.sleep(0.1)

    async def check() -> None:
        async with RawServer(serve) as server, pool_of(server.url) as pool:
            response = await pool.request("POST", "/", [], b"x" * (32 << 20), silence_s=10)
            assert (response.status, response.reason, await response.read_some()) == (413, "Too Large", b"big")
            response.close()

    asyncio.run(check())


# What is no answer.


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x0a",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 18),
        b"x" * (1 << 18),
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
    ],
)
def test_an_invalid_reply_is_an_error(answer: bytes) -> None:
    async def serve(peer: Peer) -> None:
        await peer.hear()
        await peer.say(answer)
        await peer.gone()

    assert isinstance(asyncio.run(failure(serve)), BrokenOff)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "the server disconnected"),
        (b"HTTP/1.1 200 O", "disconnected in the head of its answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", "2 bytes before the end"),
        (CHUNKED + b"5\r\nhel", "in the middle of the answer"),
        (CHUNKED + b"5\r\nhello\r\n", "in the middle of the answer"),
        (CHUNKED + b"zz\r\n", "expected the size of a chunk, got b'zz"),
    ],
)
@pytest.mark.parametrize("secure", [False, True])
def test_a_truncated_response_is_an_error(
    answer: bytes, why: str, secure: bool, tls: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    async def check() -> None:
        async with RawServer(says(answer), tls if secure else None) as server, pool_of(server.url, trusting) as pool:
            with pytest.raises(BrokenOff, match=why):
                await asked(pool)

    asyncio.run(check())


def test_a_reset_is_an_error_even_in_a_response_without_a_length() -> None:
    async def serve(peer: Peer) -> None:
        await peer.hear()
        await peer.say(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await asyncio.sleep(0.05)
        peer.reset()

    assert str(asyncio.run(failure(serve))) == "Connection reset by peer"


def test_tls_that_ends_without_close_notify_is_an_error(tls: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    async def serve(peer: Peer) -> None:
        await peer.hear()
        await peer.say(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await asyncio.sleep(0.05)
        peer.writer.transport.abort()

    async def check() -> None:
        async with RawServer(serve, tls) as server, pool_of(server.url, trusting) as pool:
            with pytest.raises(BrokenOff, match="without ending TLS"):
                await asked(pool)

    asyncio.run(check())


@pytest.mark.parametrize("token", ["secret\r\nX: y", "secret\x00", "secret\udc80"])
def test_a_request_that_http_cannot_express_is_refused_without_showing_the_token(token: str) -> None:
    async def check() -> None:
        async with RawServer(answers) as server, pool_of(server.url) as pool:
            with pytest.raises(Unsendable) as caught:
                await asked(pool, headers=[("Authorization", f"Bearer {token}")])
            assert "secret" not in str(caught.value)
            assert caught.value.__cause__ is None

    asyncio.run(check())


# The way to the server.


def test_an_untrusted_certificate_is_reported_with_the_message_of_openssl(tls: ssl.SSLContext) -> None:
    async def check() -> None:
        async with RawServer(answers, tls) as server, pool_of(server.url, ssl.create_default_context()) as pool:
            with pytest.raises(Untrusted, match=r"^\[SSL: CERTIFICATE_VERIFY_FAILED\] certificate verify failed"):
                await asked(pool)

    asyncio.run(check())


def test_the_name_of_a_certificate_is_verified(tls: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    async def check() -> None:
        async with RawServer(answers, tls) as server:
            for name, works in (("", True), ("api.example", True), ("other.example", False)):
                async with pool_of(server.url, trusting, tls_server_name=name) as pool:
                    if works:
                        assert await asked(pool) == b"ok"
                        continue
                    with pytest.raises(Untrusted, match="Hostname mismatch"):
                        await asked(pool)
            await eventually(lambda: server.ended == 2)

    asyncio.run(check())


def test_a_client_certificate_is_shown_and_its_lack_is_an_error(
    authority: Authority, tls: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    async def check() -> None:
        demanding = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.own.certificate))
        issued = authority.issue("demanding", "/CN=server", ["127.0.0.1"])
        demanding.load_cert_chain(issued.certificate, issued.key)
        demanding.verify_mode = ssl.CERT_REQUIRED
        async with RawServer(answers, demanding) as server:
            async with pool_of(server.url, trusting) as pool:
                with pytest.raises(BrokenOff):
                    await asked(pool)
            mine = authority.issue("ana", "/CN=ana")
            trusting.load_cert_chain(mine.certificate, mine.key)
            async with pool_of(server.url, trusting) as pool:
                assert await asked(pool) == b"ok"

    asyncio.run(check())


def test_a_port_that_does_not_speak_tls_is_reported(trusting: ssl.SSLContext) -> None:
    async def page(peer: Peer) -> None:
        await peer.reader.read(100)
        await peer.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def hangs_up(peer: Peer) -> None:
        await peer.reader.read(1000)

    async def check() -> None:
        async with RawServer(page) as server, pool_of(server.url.replace("http", "https"), trusting) as pool:
            with pytest.raises(TlsFailed, match="WRONG_VERSION_NUMBER"):
                await asked(pool)
        async with RawServer(hangs_up) as server, pool_of(server.url.replace("http", "https"), trusting) as pool:
            with pytest.raises(CannotConnect, match="during the TLS handshake"):
                await asked(pool)

    asyncio.run(check())


def test_a_handshake_that_hangs_has_a_limit(trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_CONNECT_S", 0.1)

    async def check() -> None:
        async with RawServer(silent) as server, pool_of(server.url.replace("http", "https"), trusting) as pool:
            with pytest.raises(HttpTimeout):
                await asked(pool)
            await eventually(lambda: server.ended == 1)

    asyncio.run(check())


def test_a_host_without_an_address_and_a_port_without_a_server_are_reported() -> None:
    async def check() -> None:
        async with pool_of("http://nowhere.invalid:6443") as pool:
            with pytest.raises(HostUnknown):
                await asked(pool)
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            async with pool_of(f"http://127.0.0.1:{reserved.getsockname()[1]}") as pool:
                with pytest.raises(CannotConnect, match=r"^Connection refused$"):
                    await asked(pool)

    asyncio.run(check())


@asynccontextmanager
async def why_unschedulable() -> AsyncIterator[int]:
    """Return the port of a server that accepts no connection, so that clients get no reply."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first = [socket.socket() for _ in range(4)]
        for each in first:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        try:
            yield full.getsockname()[1]
        finally:
            for each in first:
                each.close()


def test_connecting_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_CONNECT_S", 0.1)

    async def check() -> None:
        async with why_unschedulable() as port, pool_of(f"http://127.0.0.1:{port}") as pool:
            with pytest.raises(HttpTimeout):
                await asked(pool)

    asyncio.run(check())


def test_another_address_is_tried_while_the_first_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with RawServer(answers) as server, why_unschedulable() as port:
            tcp = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            found = [(*tcp, ("127.0.0.1", 1)), (*tcp, ("127.0.0.1", port)), (*tcp, ("127.0.0.1", server.port))]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            async with pool_of("http://api.example") as pool:
                assert await asked(pool) == b"ok"

    asyncio.run(check())


def test_addresses_of_two_families_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    six = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", (f"::{n}", 1, 0, 0)) for n in range(3)]
    four = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", 1)) for n in range(1)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: six + four)
    addresses = asyncio.run(http._addresses_of("api.example", 1))
    assert [where[0] for _, _, _, where in addresses] == ["::0", "127.0.0.0", "::1", "::2"]


def test_an_ipv6_server_is_reached() -> None:
    heads: list[str] = []

    async def serve(peer: Peer) -> None:
        heads.append(await peer.hear())
        await peer.say(OK)

    async def check() -> None:
        try:
            async with RawServer(serve, host="::1") as server, pool_of(server.url + "/base path") as pool:
                assert await asked(pool, target="/a?b=c") == b"ok"
        except OSError:
            pytest.skip("this machine has no IPv6")
        assert heads[0].splitlines()[:2] == ["GET /base%20path/a?b=c HTTP/1.1", f"Host: [::1]:{server.port}"]

    asyncio.run(check())


def test_tcp_keepalive_detects_a_vanished_peer() -> None:
    async def check() -> None:
        async with RawServer(answers) as server, pool_of(server.url) as pool:
            await asked(pool)
            (link,) = pool._links
            made = link._transport.get_extra_info("socket")
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 5

    asyncio.run(check())


# Proxies.


def test_a_proxy_gets_the_absolute_url_of_an_http_server() -> None:
    heads: list[str] = []

    async def serve(peer: Peer) -> None:
        heads.append(await peer.hear())
        await peer.say(OK)

    async def check() -> None:
        async with RawServer(serve) as proxy:
            there = proxy.url.replace("//", "//me:s%40cret@")
            async with pool_of("http://api.example/base", proxy=there) as pool:
                assert await asked(pool, target="/a") == b"ok"
        shown = base64.b64encode(b"me:s@cret").decode()
        assert heads[0].splitlines()[:3] == [
            "GET http://api.example:80/base/a HTTP/1.1",
            "Host: api.example",
            f"Proxy-Authorization: Basic {shown}",
        ]

    asyncio.run(check())


@pytest.mark.parametrize("proxy_secure", [False, True])
def test_a_stream_passes_through_a_tunnel_unchanged(
    proxy_secure: bool, tls: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    body = random.Random(2).randbytes(3_000_000)

    async def serve(peer: Peer) -> None:
        await peer.hear()
        await peer.say(CHUNKED + chunked(*(body[start : start + 10_007] for start in range(0, len(body), 10_007))))
        await peer.gone()

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
        target.close()

    async def check() -> None:
        async with RawServer(serve, tls) as server:

            async def tunnel(peer: Peer) -> None:
                assert (await peer.hear()).startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n")
                await peer.say(b"HTTP/1.1 200 Connection established\r\n\r\n")
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                try:
                    await asyncio.gather(copy(peer.reader, writer), copy(reader, peer.writer))
                finally:
                    writer.transport.abort()

            async with (
                RawServer(tunnel, tls if proxy_secure else None) as proxy,
                pool_of(server.url, trusting, proxy=proxy.url) as pool,
            ):
                assert await asked(pool, "POST", body=b"x" * 200_000) == body

    asyncio.run(check())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "answers 407 Proxy Auth"),
        (b"HTTP/1.1 200 OK\r\n\r\nand more", "sent data after"),
        (b"garbage\r\n\r\n", "does not answer in HTTP"),
        (b"", "the server disconnected"),
    ],
)
def test_a_proxy_that_refuses_to_connect_is_reported(answer: bytes, why: str, trusting: ssl.SSLContext) -> None:
    async def check() -> None:
        async with RawServer(says(answer)) as proxy:
            there = proxy.url.replace("//", "//me:secret@")
            async with pool_of("https://api.example", trusting, proxy=there) as pool:
                with pytest.raises(ProxyFailed, match=f"^127.0.0.1:{proxy.port}.*{why}") as caught:
                    await asked(pool)
                assert "secret" not in str(caught.value)
                await eventually(lambda: not pool._links)

    asyncio.run(check())


def test_a_proxy_that_is_silent_has_a_limit(trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_TUNNEL_S", 0.05)

    async def check() -> None:
        async with RawServer(silent) as proxy, pool_of("https://api.example", trusting, proxy=proxy.url) as pool:
            with pytest.raises(ProxyFailed):
                await asked(pool)
            await eventually(lambda: proxy.ended == 1)

    asyncio.run(check())


def test_an_untrusted_certificate_of_a_proxy_is_refused(tls: ssl.SSLContext) -> None:
    async def check() -> None:
        context = ssl.create_default_context()
        async with RawServer(answers, tls) as proxy, pool_of("https://api.example", context, proxy=proxy.url) as pool:
            with pytest.raises(ProxyFailed, match="CERTIFICATE_VERIFY_FAILED"):
                await asked(pool)

    asyncio.run(check())
