"""The transport against raw sockets, plain and by TLS: what is switched off in the package, limits,
and what people are told of peers that are silent, broken, or not an API server.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from controller.kube import transport as transport_module
from controller.kube.errors import NotResponding, Unreachable
from controller.kube.kubeconfig import ClusterAccess, Credentials, Proxy
from controller.kube.objects import Raw
from controller.kube.transport import Transport
from controller.operator import leadership
from tests.certificates import Authority
from tests.kube.small_cluster import eventually

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def hear(self) -> str:
        """Return a request's line and headers."""
        return (await self.reader.readuntil(b"\r\n\r\n")).decode()

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
    def __init__(self, serve: Serve, tls: ssl.SSLContext | None = None) -> None:
        self._serve = serve
        self._tls = tls
        self.connections = 0
        self.ended = 0
        self._accepted: list[tuple[asyncio.Task[None] | None, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
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
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._accepted.append((asyncio.current_task(), writer))
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._serve(Peer(reader, writer))
        self.ended += 1
        writer.close()


async def answers(peer: Peer) -> None:
    while True:
        await peer.hear()
        await peer.say(OK)


def says(answer: bytes) -> Serve:
    """Return a server that replies to one request with this text, and closes the connection."""

    async def serve(peer: Peer) -> None:
        await peer.hear()
        await peer.say(answer)

    return serve


async def silent(peer: Peer) -> None:
    await peer.gone()


async def half_a_body(peer: Peer) -> None:
    await peer.say(CHUNKED + b"10\r\nhalf")
    await peer.gone()


async def reset_within_the_body(peer: Peer) -> None:
    await peer.hear()
    await peer.say(CHUNKED + b"10\r\nhalf")
    await asyncio.sleep(0.05)
    peer.reset()


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
async def transport_to(
    server: str, tls: ssl.SSLContext = PLAIN, *, proxy: str = ""
) -> AsyncIterator[Transport]:
    access = ClusterAccess(
        context="team",
        user="ana",
        namespace="default",
        server=server,
        tls=tls,
        tls_server_name="",
        verified=True,
        transport="",
        credentials=Credentials(),
        proxy=Proxy(proxy, "proxy-url") if proxy else None,
    )
    made = Transport(access)
    try:
        yield made
    finally:
        await made.close()


async def body_of(
    transport: Transport,
    method: str = "GET",
    target: str = "/",
    body: Raw | None = None,
    *,
    headers: tuple[tuple[str, str], ...] = (),
    silence_s: float = 10,
    total_s: float | None = None,
) -> bytes:
    response = await transport.request(
        method, target, headers, body, silence_s=silence_s, total_s=total_s
    )
    try:
        return b"".join([chunk async for chunk in response.chunks()])
    finally:
        response.close()


async def problem_of(transport: Transport, **limits: float) -> Unreachable:
    with pytest.raises(Unreachable) as caught:
        await body_of(transport, **limits)  # type: ignore[arg-type]
    return caught.value


# What people are told.


@pytest.mark.parametrize(
    ("serve", "explanation"),
    [
        (says(b""), "closed the connection: Server disconnected; it may be restarting"),
        (
            says(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"),
            "closed the connection: .*it may be restarting",
        ),
        (says(CHUNKED + b"5\r\nhel"), "closed the connection: .*it may be restarting"),
        (says(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "closed the connection: invalid HTTP response: "),
        (
            says(b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 18)),
            "closed the connection: invalid HTTP response: ",
        ),
        (reset_within_the_body, "closed the connection: .*it may be restarting"),
    ],
)
def test_a_broken_response_is_reported(serve: Serve, explanation: str) -> None:
    async def check() -> None:
        async with RawServer(serve) as server, transport_to(server.url) as transport:
            problem = await problem_of(transport)
            assert str(problem).startswith(f"{server.url} (context 'team') closed the connection: ")
            with pytest.raises(Unreachable, match=explanation):
                raise problem

    asyncio.run(check())


@pytest.mark.parametrize("serve", [silent, half_a_body])
def test_a_silent_server_is_waited_for_until_the_limit(serve: Serve) -> None:
    async def check() -> None:
        async with RawServer(serve) as server, transport_to(server.url) as transport:
            problem = await problem_of(transport, silence_s=0.05)
            assert isinstance(problem, NotResponding)
            assert "has not answered in time; it may be overloaded, restarting, or waiting" in str(
                problem
            )

    asyncio.run(check())


def test_a_slow_response_has_a_total_limit() -> None:
    async def serve(peer: Peer) -> None:
        await peer.hear()
        await peer.say(CHUNKED)
        while True:
            await peer.say(b"1\r\nx\r\n")
            await asyncio.sleep(0.01)

    async def check() -> None:
        async with RawServer(serve) as server, transport_to(server.url) as transport:
            assert "does not answer; is the cluster up" in str(
                await problem_of(transport, total_s=0.2)
            )

    asyncio.run(check())


def test_a_port_without_a_server_is_reported() -> None:
    async def check() -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            async with transport_to(f"http://127.0.0.1:{reserved.getsockname()[1]}") as transport:
                problem = str(await problem_of(transport))
        assert (
            "cannot be reached: Connection refused; is the cluster up, and this the right context?"
            in problem
        )

    asyncio.run(check())


@asynccontextmanager
async def full_server() -> AsyncIterator[int]:
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
    monkeypatch.setattr(transport_module, "_CONNECT_S", 0.1)

    async def check() -> None:
        async with full_server() as port, transport_to(f"http://127.0.0.1:{port}") as transport:
            assert "does not answer; is the cluster up, and does a VPN" in str(
                await problem_of(transport)
            )

    asyncio.run(check())


def test_a_port_that_does_not_speak_tls_is_reported(trusting: ssl.SSLContext) -> None:
    async def page(peer: Peer) -> None:
        await peer.reader.read(100)
        await peer.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def check() -> None:
        async with (
            RawServer(page) as server,
            transport_to(f"https://127.0.0.1:{server.port}", trusting) as transport,
        ):
            problem = str(await problem_of(transport))
        assert "does not speak TLS as expected: [SSL: WRONG_VERSION_NUMBER]" in problem
        assert "check its cluster's server in the kubeconfig" in problem

    asyncio.run(check())


def test_the_lack_of_a_client_certificate_is_reported_with_the_servers_reason(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    demanding = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cafile=str(authority.own.certificate)
    )
    issued = authority.issue("demanding", "/CN=server", ["127.0.0.1"])
    demanding.load_cert_chain(issued.certificate, issued.key)
    demanding.verify_mode = ssl.CERT_REQUIRED

    async def check() -> None:
        async with (
            RawServer(answers, demanding) as server,
            transport_to(server.url, trusting) as transport,
        ):
            assert "closed the connection: " in str(await problem_of(transport))

    asyncio.run(check())


@pytest.mark.skipif(
    find_spec("kubernetes.aio") is None,
    reason="kubernetes_asyncio always reads the system's authorities",
)
def test_the_systems_authorities_are_not_read_for_a_server_that_has_its_own(
    trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *given: read.append(given))

    async def check() -> None:
        async with transport_to("https://127.0.0.1:1", trusting):
            assert read == []

    asyncio.run(check())


@pytest.mark.parametrize("token", ["secret\r\nX: y", "secret\x00"])
def test_a_request_that_http_cannot_express_is_refused_without_showing_the_token(
    token: str,
) -> None:
    async def check() -> None:
        async with RawServer(answers) as server, transport_to(server.url) as transport:
            with pytest.raises(Unreachable, match="cannot be sent a request") as caught:
                await body_of(transport, headers=(("Authorization", f"Bearer {token}"),))
            assert "secret" not in str(caught.value)
            assert caught.value.__cause__ is None

    asyncio.run(check())


# What is switched off in the package.


def test_the_credentials_of_a_netrc_file_are_not_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heads: list[str] = []

    async def serve(peer: Peer) -> None:
        heads.append(await peer.hear())
        await peer.say(OK)

    async def check() -> None:
        async with RawServer(serve) as server, transport_to(server.url) as transport:
            await body_of(transport, headers=(("Authorization", "Bearer ours"),))

    (tmp_path / ".netrc").write_text("machine 127.0.0.1\nlogin ana\npassword secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    asyncio.run(check())
    assert [line for line in heads[0].splitlines() if "Authorization" in line] == [
        "Authorization: Bearer ours"
    ]


def test_cookies_are_not_kept() -> None:
    heads: list[str] = []

    async def serve(peer: Peer) -> None:
        while True:
            heads.append(await peer.hear())
            await peer.say(
                b"HTTP/1.1 200 OK\r\nSet-Cookie: session=1\r\nContent-Length: 2\r\n\r\nok"
            )

    async def check() -> None:
        async with (
            RawServer(serve) as server,
            transport_to(server.url.replace("127.0.0.1", "localhost")) as transport,
        ):
            for _ in range(2):
                await body_of(transport)

    asyncio.run(check())
    assert len(heads) == 2
    assert not any("Cookie" in head for head in heads)


# Connections.


def test_a_connection_is_used_again() -> None:
    async def check() -> None:
        async with RawServer(answers) as server, transport_to(server.url) as transport:
            for _ in range(3):
                assert await body_of(transport) == b"ok"
            assert server.connections == 1

    asyncio.run(check())


@pytest.mark.parametrize("secure", [False, True])
def test_a_stream_that_is_not_read_stops_the_server(
    secure: bool, tls: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    size = 64 << 20
    sent = 0

    async def serve(peer: Peer) -> None:
        nonlocal sent
        await peer.hear()
        await peer.say(CHUNKED)
        piece = b"x" * (1 << 15)
        for _ in range(size // len(piece)):
            await peer.say(b"8000\r\n%b\r\n" % piece)
            sent += len(piece)
        await peer.say(b"0\r\n\r\n")

    async def check() -> None:
        async with (
            RawServer(serve, tls if secure else None) as server,
            transport_to(server.url, trusting) as transport,
        ):
            response = await transport.request("GET", "/", (), None, silence_s=10, total_s=None)
            before = -1
            while sent != before:
                before = sent
                await asyncio.sleep(0.1)
            assert sent < size  # it waits
            found = 0
            async for chunk in response.chunks():
                found += len(chunk)
            assert found == size
            response.close()

    asyncio.run(check())


@pytest.mark.parametrize("serve", [silent, half_a_body])
def test_cancelling_closes_the_connection(serve: Serve) -> None:
    async def check() -> None:
        async with RawServer(serve) as server, transport_to(server.url) as transport:
            asking = asyncio.create_task(body_of(transport))
            await eventually(lambda: server.connections == 1)
            await asyncio.sleep(0.02)
            assert transport.open_responses == 1
            asking.cancel()
            await asyncio.wait([asking])
            await eventually(lambda: server.ended == 1)
            assert transport.open_responses == 0

    asyncio.run(check())


def test_closing_a_response_early_closes_its_connection() -> None:
    async def check() -> None:
        async with RawServer(half_a_body) as server, transport_to(server.url) as transport:
            response = await transport.request("GET", "/", (), None, silence_s=10, total_s=None)
            assert transport.open_responses == 1
            response.close()
            await eventually(lambda: server.ended == 1)
            assert transport.open_responses == 0

    asyncio.run(check())


def test_tcp_keepalive_detects_a_vanished_peer() -> None:
    made = transport_module._watched_socket(
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))
    )
    with made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 5


def test_no_request_of_a_leader_arrives_after_its_lease_has_passed() -> None:
    made = transport_module._watched_socket(
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))
    )
    with made:
        limit_ms = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert limit_ms <= leadership.MARGIN_S * 1000


# Proxies.


def test_a_proxy_gets_the_absolute_url_of_an_http_server() -> None:
    heads: list[str] = []

    async def serve(peer: Peer) -> None:
        heads.append(await peer.hear())
        await peer.say(OK)

    async def check() -> None:
        async with RawServer(serve) as proxy:
            there = proxy.url.replace("//", "//me:s%40cret@")
            async with transport_to("http://api.example/base path", proxy=there) as transport:
                assert await body_of(transport, target="/a?b=%3D") == b"ok"

    asyncio.run(check())
    assert heads[0].splitlines()[0] == "GET http://api.example/base%20path/a?b=%3D HTTP/1.1"
    assert f"Proxy-Authorization: Basic {base64.b64encode(b'me:s@cret').decode()}" in heads[0]


def test_a_proxy_that_refuses_to_connect_is_reported(trusting: ssl.SSLContext) -> None:
    answer = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"

    async def check() -> None:
        async with RawServer(says(answer)) as proxy:
            there = proxy.url.replace("//", "//me:secret@")
            async with transport_to("https://api.example", trusting, proxy=there) as transport:
                problem = str(await problem_of(transport))
        assert (
            f"through its proxy: 127.0.0.1:{proxy.port} answers 407 Proxy Authentication "
            f"Required; check" in problem
        )
        assert "secret" not in problem

    asyncio.run(check())


def test_a_proxy_that_is_silent_has_a_limit(
    trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "_CONNECTION_S", 0.05)

    async def check() -> None:
        async with (
            RawServer(silent) as proxy,
            transport_to("https://a.example", trusting, proxy=proxy.url) as made,
        ):
            assert f"through its proxy: 127.0.0.1:{proxy.port} does not answer" in str(
                await problem_of(made)
            )
            await eventually(lambda: proxy.ended == 1)

    asyncio.run(check())


def test_an_untrusted_certificate_of_a_proxy_is_refused(tls: ssl.SSLContext) -> None:
    async def check() -> None:
        system = ssl.create_default_context()
        async with (
            RawServer(answers, tls) as proxy,
            transport_to("https://a.example", system, proxy=proxy.url) as made,
        ):
            problem = str(await problem_of(made))
        assert (
            f"through its proxy: 127.0.0.1:{proxy.port}: [SSL: CERTIFICATE_VERIFY_FAILED]"
            in problem
        )

    asyncio.run(check())


def test_a_proxy_without_an_address_is_reported() -> None:
    async def check() -> None:
        async with transport_to("https://a.example", proxy="http://nowhere.invalid:3128") as made:
            assert "through its proxy: nowhere.invalid:3128: no such host" in str(
                await problem_of(made)
            )

    asyncio.run(check())
