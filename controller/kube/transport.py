"""HTTP to one API server through the official `kubernetes` package: raw JSON, streamed responses,
every wait bounded.

Only `ApiClient.call_api` and public settings are used. The package's models drop unknown fields and
cost ten times the CPU; its reader of kubeconfigs continues as anonymous when a plugin fails
(`kubeconfig` has ours). Switched off: its redirects and `~/.netrc`, because the credentials are for
this server only, and cookies.

Where Kubeflow's SDK keeps `kubernetes` below 37, `kubernetes_asyncio` does the same;
`kubernetes.aio` came from it.

Import this module late: it takes a quarter of a second.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NoReturn

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from controller.kube.errors import NotResponding, Unreachable
from controller.kube.kubeconfig import ClusterAccess
from controller.kube.objects import Body

try:
    from kubernetes.aio.client import ApiClient, Configuration
except ModuleNotFoundError:
    from controller.kube.asyncio_client import ApiClient, Configuration

_CONNECT_S = 5.0  # for TCP, and for each TLS handshake
_CONNECTION_S = 20.0  # for all of it: a proxy has to connect, too
_IDLE_S = 15.0
_BUFFER_BYTES = 1 << 16  # of a response that is not read
_TCP = {
    # A vanished peer is detected within 30 s.
    "TCP_KEEPIDLE": 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    # For so many milliseconds the kernel sends a request again, also after the end of the process.
    # When a partition ends later, another controller may have done what the request asks for.
    "TCP_USER_TIMEOUT": 3_000,
}


class Response:
    """A response after its head.

    Close it; before the end of its body, that closes its connection.
    """

    def __init__(self, transport: Transport, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.reason = response.reason or ""
        self._transport = transport
        self._response = response

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises Unreachable."""
        try:
            while chunk := await self._response.content.readany():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            self._transport.raise_unreachable(error)

    async def read(self) -> bytes:
        """Return the body. Raises Unreachable."""
        return b"".join([chunk async for chunk in self.chunks()])

    def close(self) -> None:
        self._transport.open_responses -= 1
        self._response.close()


class Transport:
    """The connections to one server with one set of certificates.

    Use it from one loop, close it.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self.open_responses = 0  # and requests whose response has not begun
        self._server_name = access.full_name
        self._base = str(URL(access.server)).rstrip("/")
        self._proxy = None if access.proxy is None else URL(access.proxy.url)
        self._connector = aiohttp.TCPConnector(
            ssl=access.tls, limit=0, keepalive_timeout=_IDLE_S, socket_factory=_watched_socket
        )
        session = {
            "connector": self._connector,
            "cookie_jar": aiohttp.DummyCookieJar(),
            "middlewares": (self._refuse_redirects,),
            "read_bufsize": _BUFFER_BYTES,
            "trust_env": False,  # no ~/.netrc; proxies of the environment are in `access`
        }
        self._api = ApiClient(
            Configuration(
                client_session_kwargs=session,
                proxy=None if access.proxy is None else access.proxy.url,
                tls_server_name=access.tls_server_name or None,
                # The connector has its own; without any, the system's are read, which takes 30 ms.
                ca_cert_data=b"".join(access.tls.get_ca_certs(binary_form=True)) or None,
            )
        )

    async def request(
        self,
        method: str,
        target: str,
        headers: Sequence[tuple[str, str]],
        body: Body | None,
        *,
        silence_s: float,
        total_s: float | None,
    ) -> Response:
        """Return the response after its head.

        Args:
            silence_s: the longest time without data, also within the body.
            total_s: the limit for the whole exchange; None: no limit.

        Raises Unreachable.
        """
        timeout = aiohttp.ClientTimeout(
            total=total_s, connect=_CONNECTION_S, sock_connect=_CONNECT_S, sock_read=silence_s
        )
        url = URL(self._base + target, encoded=True)
        self.open_responses += 1
        try:
            answer = await self._api.call_api(
                method, url, header_params=CIMultiDict(headers), body=body, _request_timeout=timeout
            )
        except BaseException as error:
            self.open_responses -= 1
            if not isinstance(error, aiohttp.ClientError | OSError | ValueError):
                raise
            self.raise_unreachable(error)
        return Response(self, answer.response)

    async def close(self) -> None:
        """Close all connections, also those of responses in progress."""
        await self._api.close()
        await self._connector.close()

    async def _refuse_redirects(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        response = await handler(request)
        if 300 <= response.status < 400:
            response.close()
            location = (
                response.headers.get("Location") or f"an unknown address (HTTP {response.status})"
            )
            raise Unreachable(
                f"{self._server_name} redirects to {location}; is it an API server or a login "
                "page? check its cluster's server in the kubeconfig"
            )
        return response

    def raise_unreachable(self, error: Exception) -> NoReturn:
        """Raise Unreachable for an error of aiohttp, in a sentence for people."""
        if isinstance(error, aiohttp.SocketTimeoutError):
            raise NotResponding(
                f"{self._server_name} has not answered in time; it may be overloaded, restarting, "
                "or waiting for a webhook"
            ) from error
        if isinstance(error, ValueError) and not isinstance(error, aiohttp.ClientError):
            # Not chained: the error may contain the header, which may be a token.
            raise Unreachable(
                f"{self._server_name} cannot be sent a request: HTTP does not allow a character of "
                "the request; check the token of the user and whom the context impersonates"
            ) from None
        raise Unreachable(f"{self._server_name} {self._explain(error)}") from error

    def _explain(self, error: Exception) -> str:
        if self._is_of_proxy(error):
            return (
                f"cannot be reached through its proxy: {self._proxy_trouble(error)}; check "
                f"proxy-url and HTTPS_PROXY"
            )
        match error:
            case aiohttp.ClientConnectorCertificateError():
                cause = _text(error.certificate_error)
                return f"is not trusted: {cause}; check its cluster's certificate-authority-data"
            case aiohttp.ClientConnectorSSLError():
                cause = _text(error.os_error)
                return (
                    f"does not speak TLS as expected: {cause}; check its cluster's server in "
                    f"the kubeconfig"
                )
            case aiohttp.ClientConnectorDNSError():
                return (
                    "cannot be found: no such host; check its cluster's server in the "
                    "kubeconfig, VPN and network"
                )
            case aiohttp.ClientConnectorError():
                return (
                    f"cannot be reached: {_text(error.os_error)}; is the cluster up, and this "
                    f"the right context?"
                )
            case TimeoutError():
                return "does not answer; is the cluster up, and does a VPN or firewall block it?"
            case aiohttp.ClientResponseError():
                cause = f"invalid HTTP response: {_text(error)[:200]}"
            case _:
                cause = _text(error)
        return f"closed the connection: {cause}; it may be restarting"

    def _is_of_proxy(self, error: Exception) -> bool:
        if self._proxy is None:
            return False
        if isinstance(error, aiohttp.ClientConnectorError):
            return (error.host, error.port) == (self._proxy.host, self._proxy.port)
        return isinstance(error, aiohttp.ClientHttpProxyError | aiohttp.ConnectionTimeoutError)

    def _proxy_trouble(self, error: Exception) -> str:
        assert self._proxy is not None
        address = f"{self._proxy.host_subcomponent}:{self._proxy.port}"
        match error:
            case aiohttp.ClientConnectorDNSError():
                return f"{address}: no such host"
            case aiohttp.ClientConnectorCertificateError():
                return f"{address}: {_text(error.certificate_error)}"
            case aiohttp.ClientConnectorError():
                return f"{address}: {_text(error.os_error)}"
            case aiohttp.ClientHttpProxyError():
                return f"{address} answers {error.status} {error.message}".rstrip()
        return f"{address} does not answer"


def _text(error: BaseException) -> str:
    """Return the message of an error; for an OSError the operating system's text."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and cause.errno:
        return os.strerror(cause.errno)
    return " ".join(str(cause).split()) or type(cause).__name__


def _watched_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket that detects a peer that has vanished without closing."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP.items():
        if hasattr(socket, name):  # macOS has them under other names
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
