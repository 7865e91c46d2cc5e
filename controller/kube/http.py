"""HTTP/1.1 to one server: kept connections, TLS, proxies, streamed answers, every wait bounded. Knows no Kubernetes.

TLS is an `ssl.SSLObject` between two memory BIOs: asyncio's own TLS keeps a buffer of 256 KiB for each connection. All
connections of a pool receive into one buffer, which is emptied before asyncio calls the next protocol. h11 writes
requests and reads the heads of responses. `Body` reads their bodies, because h11 takes 4 µs per chunk and a log has one
chunk per line. Do not import h11 at the top: the import takes 7 ms, and h11 belongs to an extra.

A response without a reader occupies at most _HELD_BYTES plus one receive; after that the socket is not read until the
caller reads. The end of a TLS stream without close_notify is an error: anybody on the path can end a TCP connection.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import socket
import ssl
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    import h11


_LINE_BYTES = 1 << 14  # the longest chunk-size line, and the longest trailer
_GUNZIPPED_BYTES = 1 << 16
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_GZIP = 16 + zlib.MAX_WBITS


class Body(Protocol):
    """The framing of a response body. Methods raise ValueError for malformed framing.

    ended: the whole body has been taken. excess: there was data after it.
    """

    ended: bool
    excess: bool

    def take(self, data: bytes) -> bytes:
        """Return the content in these bytes, which may be empty."""

    def end(self) -> None:
        """Note that the connection has ended."""


def body_of(status: int, transfer_encoding: str | None, content_length: str | None) -> Body:
    """Return the framing for a response with these headers, which h11 has checked (RFC 9112, 6.3)."""
    if status in (204, 304):
        return _Sized(0)
    if transfer_encoding is not None:
        return _Chunked()
    return CloseDelimited() if content_length is None else _Sized(int(content_length))


class _Sized:
    def __init__(self, size: int) -> None:
        self._left = size
        self.ended = size == 0
        self.excess = False

    def take(self, data: bytes) -> bytes:
        body = data if len(data) <= self._left else data[: self._left]
        self._left -= len(body)
        self.ended = self._left == 0
        self.excess = len(body) < len(data)
        return body

    def end(self) -> None:
        raise ValueError(f"the connection ended {self._left} bytes before the end of the answer")


class CloseDelimited:
    """A body that ends with the connection."""

    def __init__(self) -> None:
        self.ended = self.excess = False

    def take(self, data: bytes) -> bytes:
        return data

    def end(self) -> None:
        self.ended = True


class _Chunked:
    def __init__(self) -> None:
        self._rest = b""  # the beginning of a line
        self._left = 0  # of a chunk that has begun, with the CRLF after it
        self._trailer: int | None = None  # its bytes so far, after the last chunk
        self.ended = self.excess = False

    def take(self, data: bytes) -> bytes:
        if self._rest and b"\n" not in data:  # do not search again for each byte that arrives
            return self._keep(self._rest + data)
        data, self._rest = self._rest + data, b""
        pieces: list[bytes] = []
        at = self._continued(data, pieces)
        while not self._left and self._trailer is None and (line := _CHUNK_SIZE.match(data, at)):
            start, size = line.end(), int(line[1], 16)
            at = start + size
            if size and data.startswith(b"\r\n", at):  # the usual case: the whole chunk has arrived
                pieces.append(data[start:at])
                at += 2
            elif size:
                self._left = size + 2
                at = start + self._continued(data[start:], pieces)
            else:
                self._trailer = 0
        if self._trailer is not None:
            at = self._end_in(data, at, self._trailer)
        elif not self._left and b"\n" in data[at:]:
            raise ValueError(f"expected the size of a chunk, got {data[at : at + 40]!r}")
        if not self.ended:
            self._keep(data[at:])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _keep(self, rest: bytes) -> bytes:
        if len(rest) > _LINE_BYTES:
            raise ValueError("a line between the chunks of the answer has no end")
        self._rest = rest
        return b""

    def _continued(self, data: bytes, pieces: list[bytes]) -> int:
        """Take the rest of the current chunk; return how many bytes of data were used."""
        inside = max(0, self._left - 2)
        if inside and data:
            pieces.append(data[:inside])
        at = min(inside, len(data))
        self._left -= at
        if 0 < self._left <= 2 and at < len(data):
            mark = data[at : at + self._left]
            if mark != b"\r\n"[2 - self._left :][: len(mark)]:
                raise ValueError("a chunk of the answer is longer than its size")
            at += len(mark)
            self._left -= len(mark)
        return at

    def _end_in(self, data: bytes, at: int, trailer_bytes: int) -> int:
        """Read trailer lines up to the empty one; return the position after them."""
        while not self.ended and (line_end := data.find(b"\r\n", at)) >= 0:
            trailer_bytes += line_end - at
            self.ended = line_end == at
            at = line_end + 2
        self._trailer = trailer_bytes
        if trailer_bytes > _LINE_BYTES:
            raise ValueError("the trailer of the answer is too long")
        self.excess = self.ended and at < len(data)
        return at

    def end(self) -> None:
        raise ValueError("the connection ended in the middle of the answer")


class Gunzip:
    """Decompresses in pieces of bounded size, whatever the compression ratio."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP)
        self._begun = False
        self._rest = b""

    def take(self, data: bytes = b"") -> bytes:
        """Return the next piece; b"" if more input is needed. Raises ValueError."""
        self._rest += data
        self._begun = self._begun or bool(data)
        while self._rest:
            if self._stream.eof:  # another member
                self._stream = zlib.decompressobj(_GZIP)
            try:
                plain = self._stream.decompress(self._rest, _GUNZIPPED_BYTES)
            except zlib.error as error:
                raise ValueError(f"the answer is not valid gzip: {error}") from error
            self._rest = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            if plain:
                return plain
        return b""

    def end(self) -> None:
        """Raise ValueError if the compressed data is incomplete; an empty body is fine."""
        if self._begun and not self._stream.eof:
            raise ValueError("the compressed answer is incomplete")


_CONNECT_S = 5.0  # for TCP, and for each TLS handshake
_TUNNEL_S = 15.0  # for a proxy's response: the proxy has to connect, too
_NEXT_ADDRESS_S = 0.25  # before the next address of a host is tried in parallel (RFC 8305)
_IDLE_S = 15.0
_MOST_IDLE = 100
_RECEIVED_BYTES = 1 << 16  # at most, by one call
_HELD_BYTES = 1 << 16
_PIECE_BYTES = 1 << 13  # memory BIOs never shrink, so they get at most this much at once
_HEAD_BYTES = 1 << 14
_MOST_INFORMATIONAL = 16
_REPEATABLE = ("GET", "DELETE")
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # a vanished peer is detected within 30 s
_PORTS = {"http": 80, "https": 443}
_Address = tuple[int, int, int, Any]  # family, kind, protocol, and what `connect` takes


class HttpError(Exception):
    """The response is missing or incomplete. The message is for people and contains no secrets."""


class HostUnknown(HttpError):
    """The host name has no address."""


class CannotConnect(HttpError):
    """The connection was refused or is not possible."""


class ProxyFailed(HttpError):
    """No connection to the proxy or through it is possible."""


class Untrusted(HttpError):
    """The server's certificate could not be verified."""


class TlsFailed(HttpError):
    """The TLS handshake failed for another reason than the certificate."""


class ReadTimeout(HttpError):
    """The connection is open, but no data arrived in time."""


class HttpTimeout(HttpError):
    """Connecting, or the whole request, took too long."""


class BrokenOff(HttpError):
    """The connection broke, or the response is not HTTP."""


class Unsendable(HttpError):
    """The request contains characters that HTTP does not allow."""


def _error_text(error: BaseException) -> str:
    """Return the message of an error; for an OSError the operating system's text."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(error).split()) or type(error).__name__


class _TlsLayer:
    """One layer of TLS, independent of the transport below it."""

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self.established = False
        self.ended = False  # by close_notify

    def handshake(self) -> bool:
        """Continue the handshake; return whether it is complete. Raises ssl.SSLError."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.established = True
        return True

    def open(self, sealed: bytes | memoryview) -> list[bytes]:
        """Raises ssl.SSLError."""
        self._incoming.write(sealed)
        opened: list[bytes] = []
        if not self.established:
            return opened
        try:
            while piece := self._object.read(_PIECE_BYTES):
                opened.append(piece)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        return opened

    def seal(self, plain: bytes) -> bytes:
        """Encrypt, and return all data that is ready to be sent. Raises ssl.SSLError."""
        while plain:
            plain = plain[self._object.write(plain) :]
        return self._outgoing.read()

    def send_close_notify(self) -> None:
        if self.established:
            with contextlib.suppress(ssl.SSLError):
                self._object.unwrap()


class _Link(asyncio.BufferedProtocol):
    """A connection that sends and receives bytes through layers of TLS. One task at a time may wait for data.

    Args:
        buffer: to receive into; shared by links.
        on_lost: called when the connection is lost.
    """

    def __init__(self, buffer: memoryview, on_lost: Callable[[_Link], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._buffer = buffer
        self._on_lost = on_lost
        self._layers: list[_TlsLayer] = []
        self._received: list[bytes] = []
        self._held_bytes = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._lost = False
        self._failure: HttpError | None = None
        self._transport: asyncio.Transport
        self.idle_since_s: float | None = None  # None: in use
        self.heard = False  # something since `send`

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        try:
            opened = self._opened(self._buffer[:count])
            if self._layers:
                self._flush()
        except ssl.SSLError as error:
            self._fail(BrokenOff(_error_text(error)))
            return
        if opened:
            if self.idle_since_s is not None:  # unrequested data
                self.abort()
                return
            self.heard = True
            self._received += opened
            self._held_bytes += sum(map(len, opened))
            if self._held_bytes > _HELD_BYTES and not self._paused:
                self._paused = True
                self._transport.pause_reading()
        if any(layer.ended for layer in self._layers):
            self._ended = True
            self._transport.close()
        self._wake()

    def eof_received(self) -> None:
        if self._layers and not self._ended:
            when = "without ending TLS" if self._layers[-1].established else "during the TLS handshake"
            self._fail(BrokenOff(f"it ended the connection {when}"))
        else:
            self._ended = True
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        if not self._ended:
            self._fail(BrokenOff("the connection was closed" if error is None else _error_text(error)))
        self._on_lost(self)
        self._wake()

    # Called by the pool.

    def send(self, data: bytes) -> None:
        """Send without waiting: the data is in memory anyway, and a response may start early. Raises BrokenOff."""
        if self._failure is not None or self._ended or self._transport.is_closing():
            raise self._failure or BrokenOff("the connection was closed")
        self.heard = False
        try:
            sealed = []
            for start in range(0, len(data), _PIECE_BYTES):
                piece = data[start : start + _PIECE_BYTES]
                for layer in reversed(self._layers):
                    piece = layer.seal(piece)
                sealed.append(piece)
        except ssl.SSLError as error:
            self._fail(BrokenOff(_error_text(error)))
            raise BrokenOff(_error_text(error)) from error
        self._transport.write(b"".join(sealed))

    async def receive(self, silence_s: float, deadline_s: float | None) -> bytes:
        """b"" at the end. Raises BrokenOff, ReadTimeout, HttpTimeout."""
        while not self._received:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return b""
            await self._wait(silence_s, deadline_s)
        data = self._received[0] if len(self._received) == 1 else b"".join(self._received)
        self._received.clear()
        self._held_bytes = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def start_tls(self, context: ssl.SSLContext, name: str) -> None:
        """Raises Untrusted, TlsFailed, CannotConnect, HttpTimeout."""
        try:
            layer = _TlsLayer(context, name)
        except ValueError as error:
            raise TlsFailed(f"{name!r} cannot be the name in a certificate") from error
        self._layers.append(layer)
        deadline_s = self._loop.time() + _CONNECT_S
        try:
            while not layer.handshake():
                self._flush()
                if self._failure is not None or self._ended:
                    raise CannotConnect(str(self._failure or "it ended the connection"))
                await self._wait(_CONNECT_S, deadline_s)
            self._flush()
            self._received += layer.open(b"")
        except ssl.SSLCertVerificationError as error:
            self._flush()  # the peer gets an alert with the cause
            raise Untrusted(_error_text(error)) from error
        except ssl.SSLError as error:
            self._flush()
            raise TlsFailed(_error_text(error)) from error

    @property
    def reusable(self) -> bool:
        """All is sent and read, and the other end is there."""
        return not (
            self._failure or self._ended or self._received or self._transport.is_closing()
            or self._transport.get_write_buffer_size()
        )  # fmt: skip

    def close(self) -> None:
        """Of an idle connection: tells the other end."""
        for layer in self._layers[-1:]:
            layer.send_close_notify()
            with contextlib.suppress(ssl.SSLError):
                self._flush()
        self._transport.close()

    def abort(self) -> None:
        if not self._lost:  # a transport fails that is aborted after its end
            self._transport.abort()

    def _opened(self, data: memoryview) -> list[bytes]:
        if not self._layers:
            return [bytes(data)]
        opened: list[bytes] = []
        for start in range(0, len(data), _PIECE_BYTES):
            pieces: Sequence[bytes | memoryview] = [data[start : start + _PIECE_BYTES]]
            for layer in self._layers:
                pieces = [plain for piece in pieces for plain in layer.open(piece)]
            opened += pieces  # type: ignore[arg-type]  # there is a layer, so they are bytes
        return opened

    def _flush(self) -> None:
        data = b""
        for layer in reversed(self._layers):
            data = layer.seal(data)
        if data:
            self._transport.write(data)

    def _fail(self, failure: HttpError) -> None:
        self._failure = self._failure or failure
        self.abort()
        self._wake()

    async def _wait(self, silence_s: float, deadline_s: float | None) -> None:
        """For anything to happen."""
        until_s = self._loop.time() + silence_s
        late: type[HttpError] = ReadTimeout
        if deadline_s is not None and deadline_s < until_s:
            until_s, late = deadline_s, HttpTimeout
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_at(until_s, _expire, waiter, late)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _expire(waiter: asyncio.Future[None], late: type[HttpError]) -> None:
    if not waiter.done():
        waiter.set_exception(late("nothing comes"))


class HttpResponse:
    """An answer whose body is read piece by piece. `close` it, whatever has been read."""

    def __init__(self, pool: HttpPool, link: _Link, head: h11.Response, received: bytes, silence_s: float,
                 deadline_s: float | None) -> None:  # fmt: skip
        self.status = head.status_code
        self.reason = head.reason.decode("latin-1")
        self._headers: dict[bytes, bytes] = {}
        for name, value in head.headers:
            self._headers[name] = self._headers[name] + b", " + value if name in self._headers else value
        self._pool = pool
        self._link = link
        self._rest = received
        self._silence_s = silence_s
        self._deadline_s = deadline_s
        self._ended = False
        self._gunzip = Gunzip() if (self.header("Content-Encoding") or "").lower() == "gzip" else None
        self._body = body_of(self.status, self.header("Transfer-Encoding"), self.header("Content-Length"))
        tokens = (self.header("Connection") or "").lower().replace(" ", "").split(",")
        self._keeps = (
            head.http_version == b"1.1" and "close" not in tokens and not isinstance(self._body, CloseDelimited)
        )

    def header(self, name: str) -> str | None:
        value = self._headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    async def read_some(self) -> bytes:
        """b"" at the end. Raises BrokenOff, ReadTimeout, HttpTimeout."""
        try:
            while not self._ended:
                if self._gunzip is not None and (portion := self._gunzip.take()):
                    return portion
                if self._body.ended:
                    self._end()
                elif portion := await self._next():
                    return portion
            return b""
        except ValueError as error:
            self.close()
            raise BrokenOff(str(error)) from error
        except BaseException:
            self.close()
            raise

    async def _next(self) -> bytes:
        """Return the next content; b"" if the received bytes contain none."""
        data, self._rest = self._rest, b""
        data = data or await self._link.receive(self._silence_s, self._deadline_s)
        if not data:
            self._body.end()
            return b""
        portion = self._body.take(data)
        return self._gunzip.take(portion) if self._gunzip is not None and portion else portion

    def _end(self) -> None:
        if self._gunzip is not None:
            self._gunzip.end()
        self._ended = True
        self._pool.take_back(self._link, keep=self._keeps and not self._rest and not self._body.excess)

    def close(self) -> None:
        """Abort the connection unless the whole body has been read."""
        if not self._ended:
            self._ended = True
            self._link.abort()


class HttpPool:
    """A pool of connections to one server. Use it from one loop, close it.

    Args:
        server: an http:// or https:// URL; its path is prefixed to those of the requests.
        tls_server_name: the name in the server's certificate; "": the host of `server`.
        proxy: the URL of a proxy, optionally with user name and password.
    """

    def __init__(
        self, server: str, tls: ssl.SSLContext, *, tls_server_name: str = "", proxy: str | None = None
    ) -> None:
        url = urlsplit(server)
        self._tls = tls if url.scheme == "https" else None
        self._tls_context = tls
        self._host, self._port = _host_and_port(server)
        self._tls_server_name = tls_server_name or self._host.rstrip(".")
        self._prefix = quote(url.path, safe="/%:@!$&'()*+,;=~")
        self._proxy = proxy
        host = _bracketed(self._host).encode("ascii" if self._host.isascii() else "idna").decode()
        self._tunnelled = f"{host}:{self._port}"
        implied = _PORTS[url.scheme] == self._port
        self._headers = [("Host", host if implied else self._tunnelled)]
        if proxy is not None and self._tls is None:
            self._prefix = f"http://{self._tunnelled}{self._prefix}"
            self._headers += _proxy_authorization(proxy)
        self._buffer = memoryview(bytearray(_RECEIVED_BYTES))
        self._links: set[_Link] = set()
        self._idle: list[_Link] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._retired = False

    async def request(self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes | None, *,
                      silence_s: float, total_s: float | None = None) -> HttpResponse:  # fmt: skip
        """Return the response after its head. For GET and DELETE, a dead kept connection is replaced once.

        Args:
            silence_s: the longest time without data, also within the body.
            total_s: the limit for the whole exchange; None: no limit.

        Raises HttpError.
        """
        deadline_s = None if total_s is None else asyncio.get_running_loop().time() + total_s
        idle = self._kept()
        if idle is not None:
            try:
                return await self._exchange(idle, method, target, headers, body, silence_s, deadline_s)
            except BrokenOff:
                if idle.heard or method not in _REPEATABLE:
                    raise
        link = await self._connect(deadline_s)
        return await self._exchange(link, method, target, headers, body, silence_s, deadline_s)

    def retire(self) -> None:
        """Close idle connections and keep none from now on; responses in progress continue."""
        self._retired = True
        for link in self._idle:
            link.close()
        self._idle.clear()

    @property
    def in_use(self) -> bool:
        return len(self._links) > len(self._idle)

    async def close(self) -> None:
        """Close all connections, also those of responses in progress."""
        self.retire()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for link in self._links:
            link.abort()
        await asyncio.sleep(0)  # asyncio closes sockets in its next turn

    def take_back(self, link: _Link, *, keep: bool) -> None:
        """Return a connection to the pool after its response was read completely."""
        if not keep or self._retired or not link.reusable or len(self._idle) >= _MOST_IDLE:
            link.close()
            return
        loop = asyncio.get_running_loop()
        link.idle_since_s = loop.time()
        self._idle.append(link)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_IDLE_S, self._sweep)

    def _kept(self) -> _Link | None:
        """Return the most recently used idle connection, so that the others can expire."""
        while self._idle:
            link = self._idle.pop()
            link.idle_since_s = None
            if link.reusable:
                return link
            link.abort()
        return None

    def _sweep(self) -> None:
        """Close connections that have been idle for _IDLE_S."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() - _IDLE_S
        for link in [link for link in self._idle if link.idle_since_s is None or link.idle_since_s <= until_s]:
            self._idle.remove(link)
            link.close()
        first_s = self._idle[0].idle_since_s if self._idle else None
        self._sweeper = None if first_s is None else loop.call_at(first_s + _IDLE_S, self._sweep)

    def _drop(self, link: _Link) -> None:
        self._links.discard(link)
        if link in self._idle:
            self._idle.remove(link)

    async def _exchange(self, link: _Link, method: str, target: str, headers: Sequence[tuple[str, str]],
                        body: bytes | None, silence_s: float, deadline_s: float | None) -> HttpResponse:  # fmt: skip
        try:
            all_headers = [*self._headers, *headers]
            head, received = await _ask(link, method, self._prefix + target, all_headers, body, silence_s, deadline_s)
            return HttpResponse(self, link, head, received, silence_s, deadline_s)
        except BaseException:
            link.abort()
            raise

    async def _connect(self, deadline_s: float | None) -> _Link:
        """Raises HttpError."""
        try:
            async with asyncio.timeout_at(deadline_s):
                return await (self._connect_directly() if self._proxy is None else self._connect_through(self._proxy))
        except TimeoutError as error:
            raise HttpTimeout("no connection in time") from error

    async def _connect_directly(self) -> _Link:
        link = await self._link_to(self._host, self._port)
        if self._tls is not None:
            await self._secure(link, self._tls, self._tls_server_name)
        return link

    async def _connect_through(self, proxy: str) -> _Link:
        host, port = _host_and_port(proxy)
        authority = f"{_bracketed(host)}:{port}"
        try:
            link = await self._link_to(host, port)
            if proxy.lower().startswith("https:"):
                await self._secure(link, self._tls_context, host.rstrip("."))
        except HostUnknown as error:
            raise ProxyFailed(f"{authority}: no such host") from error
        except HttpTimeout as error:
            raise ProxyFailed(f"{authority} does not answer") from error
        except HttpError as error:
            raise ProxyFailed(f"{authority}: {error}") from error
        if self._tls is None:
            return link
        try:
            headers = [("Host", self._tunnelled), ("User-Agent", "tuner"), *_proxy_authorization(proxy)]
            head, received = await _ask(link, "CONNECT", self._tunnelled, headers, None, _TUNNEL_S, None)
            if head.status_code != 200:
                raise ProxyFailed(f"{authority} answers {head.status_code} {head.reason.decode('latin-1')}".rstrip())
            if received:
                raise ProxyFailed(f"{authority} sent data after its reply to CONNECT")
        except BaseException as error:
            link.abort()
            if isinstance(error, HttpError) and not isinstance(error, ProxyFailed):
                raise ProxyFailed(f"{authority}: {error}") from error
            raise
        await self._secure(link, self._tls, self._tls_server_name)
        return link

    async def _secure(self, link: _Link, context: ssl.SSLContext, name: str) -> None:
        try:
            await link.start_tls(context, name)
        except ReadTimeout as error:
            link.abort()
            raise HttpTimeout(str(error)) from error
        except BaseException:
            link.abort()
            raise

    async def _link_to(self, host: str, port: int) -> _Link:
        """Raises HostUnknown, CannotConnect, HttpTimeout."""
        loop = asyncio.get_running_loop()
        connected = await _socket_to(host, port)
        try:
            _, link = await loop.create_connection(lambda: _Link(self._buffer, self._drop), sock=connected)
        except BaseException:
            connected.close()
            raise
        self._links.add(link)
        return link


async def _ask(link: _Link, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes | None,
               silence_s: float, deadline_s: float | None) -> tuple[h11.Response, bytes]:  # fmt: skip
    """Send a request; return the response head and the data after it. Raises BrokenOff, ReadTimeout, HttpTimeout."""
    import h11

    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
    try:
        sized = [] if body is None else [("Content-Length", str(len(body)))]
        request = h11.Request(
            method=method,
            target=target,
            headers=[(name.encode(), value.encode()) for name, value in (*headers, *sized)],
        )
        writes = [connection.send(request)]
        if body is not None:
            writes.append(connection.send(h11.Data(data=body)))
        writes.append(connection.send(h11.EndOfMessage()))
    except (h11.LocalProtocolError, UnicodeEncodeError):  # the error text has the header, which may be a token
        raise Unsendable("HTTP does not allow a character of the request") from None
    link.send(b"".join(writes))
    informational = 0
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                return event, connection.trailing_data[0]
            if isinstance(event, h11.InformationalResponse):
                informational += 1
                if informational > _MOST_INFORMATIONAL:
                    raise BrokenOff(f"it answers {event.status_code} without end")
                continue
            data = await link.receive(silence_s, deadline_s)
            if not data:
                raise BrokenOff("the server disconnected" + (" in the head of its answer" if link.heard else ""))
            connection.receive_data(data)
    except h11.RemoteProtocolError as error:
        raise BrokenOff(f"it does not answer in HTTP: {_error_text(error)[:200]}") from error


async def _socket_to(host: str, port: int) -> socket.socket:
    """Return a connected socket. All addresses of the host are tried, a quarter of a second apart.

    Raises HostUnknown, CannotConnect, HttpTimeout.
    """
    try:
        addresses = await _addresses_of(host, port)
    except (OSError, UnicodeError) as error:
        raise HostUnknown(_error_text(error)) from error
    errors: list[OSError] = []
    trying: set[asyncio.Task[socket.socket]] = set()
    try:
        async with asyncio.timeout(_CONNECT_S):
            while addresses or trying:
                if addresses:
                    trying.add(asyncio.create_task(_connected(addresses.pop(0))))
                pause_s = _NEXT_ADDRESS_S if addresses else None
                done, trying = await asyncio.wait(trying, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    failure = task.exception()
                    if failure is None:
                        trying |= done - {task}
                        return task.result()
                    if not isinstance(failure, OSError):
                        raise failure
                    errors.append(failure)
    except TimeoutError as error:
        raise HttpTimeout("no connection in time") from error
    finally:
        for task in trying:
            task.add_done_callback(_closed)
            task.cancel()
    raise CannotConnect("; ".join(dict.fromkeys(map(_error_text, errors))))


def _closed(attempt: asyncio.Task[socket.socket]) -> None:
    """Close the socket of an address that connected after another one was chosen."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


async def _addresses_of(host: str, port: int) -> list[_Address]:
    """Return the addresses with alternating families (RFC 8305). Raises OSError, UnicodeError."""
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        resolved = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [(family, kind, protocol, socket_address) for family, kind, protocol, _, socket_address in resolved]
    first = [address for address in addresses if address[0] == addresses[0][0]]
    other_family = [address for address in addresses if address[0] != addresses[0][0]]
    alternating = [address for pair in zip(first, other_family, strict=False) for address in pair]
    return [*alternating, *first[len(other_family) :], *other_family[len(first) :]]


async def _connected(address: _Address) -> socket.socket:
    family, kind, protocol, socket_address = address
    connecting = socket.socket(family, kind, protocol)
    try:
        connecting.setblocking(False)
        keep_alive(connecting)
        await asyncio.get_running_loop().sock_connect(connecting, socket_address)
    except BaseException:
        connecting.close()
        raise
    return connecting


def keep_alive(connection: socket.socket) -> None:
    """Enable TCP keep-alive, which detects a peer that vanished without closing the connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # macOS has them under other names
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", _PORTS[parts.scheme] if parts.port is None else parts.port


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _proxy_authorization(proxy: str) -> list[tuple[str, str]]:
    parts = urlsplit(proxy)
    if parts.username is None:
        return []
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return [("Proxy-Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")]
