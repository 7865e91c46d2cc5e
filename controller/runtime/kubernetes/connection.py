"""Requests to an API server and their answers: who we are, how long we wait, what an error is. Knows no kinds.

429, and 503 with Retry-After, are waited for and sent again, whatever was asked. Credentials that have expired or are
refused are read again, once. aiohttp is imported as lazily as the package that brings it: in functions.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import json
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlencode

from controller.runtime.kubernetes import kubeconfig
from controller.runtime.kubernetes.errors import ANONYMOUS, ApiError, BadKubeconfig, NotAllowed, Silent, Unreachable

if TYPE_CHECKING:
    import aiohttp

Raw: TypeAlias = dict[str, Any]  # an object as the server sends it

_TRIES = 6  # one, and five more after a 429
_LONGEST_PAUSE_S = 10.0
_RENEWAL_PAUSE_S = 3.0  # after a renewal that brought nothing: hundreds of requests may ask for one
_CONNECT_S = 5.0
_ANSWER_S = 15.0
_REQUEST_S = 60.0  # the server's own limit for what is no watch
_BUFFER_BYTES = 1 << 16  # per stream, and there are hundreds of logs
_TLS_BUFFER_BYTES = 1 << 15
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # a peer that vanished is noticed in 30 s
_log = logging.getLogger(__name__)


class Connection:
    """`open` one, use it from one loop, close it."""

    def __init__(self, access: kubeconfig.Access, asked: str | None) -> None:
        self.access = access
        self._asked = asked
        self._renewing = asyncio.Lock()
        self._renew_after_s = 0.0  # monotonic
        self._why_not_renewed = ""
        self._rests: list[Any] = []  # the package's, without types
        self._connectors: list[aiohttp.TCPConnector] = []
        self._use(access)

    @classmethod
    async def open(cls, context: str | None) -> Connection:
        """Does not call the server. Raises BadKubeconfig, NotAllowed."""
        return cls(await kubeconfig.load(context, attended=True), context)

    async def call(self, method: str, path: str, query: Mapping[str, str] | None = None,
                    body: Raw | None = None) -> Raw:  # fmt: skip
        repeated = method not in ("GET", "DELETE")
        while True:
            try:
                async with self.answer(method, path, query or {}, body=body) as response:
                    return self.json_of(b"".join([chunk async for chunk in self.chunks(response)]))
            except Unreachable as lost:
                if repeated or isinstance(lost, Silent):
                    raise
                repeated = True

    async def close(self) -> None:
        for rest in self._rests:
            await rest.close()
        for connector in self._connectors:
            await connector.close()

    @asynccontextmanager
    async def answer(self, method: str, path: str, query: Mapping[str, str], *, body: Raw | None = None,
                      silence_s: float | None = None) -> AsyncIterator[Any]:  # fmt: skip
        """The server's good answer, its body unread. silence_s: how long a stream may be silent; None: no stream."""
        url = self.access.server + path + (f"?{urlencode(query)}" if query else "")
        tries, renewed = 0, False
        while True:
            if self.access.credentials.expired():
                await self._renew(self.access, self.access.credentials.authorization())
            access = self.access
            shown = access.credentials.authorization()
            response = await self._send(access, shown, method, url, body, silence_s)
            try:
                if response.status < 300:
                    yield response
                    return
                error = error_of(_status_of(b"".join([chunk async for chunk in self.chunks(response)])), response)
            finally:
                response.close() if not response.content.at_eof() else response.release()
            if error.status == 401 and not renewed and await self._renew(access, shown):
                renewed = True
                continue
            if error.status == 401 or (error.refusal is not None and error.refusal.user == ANONYMOUS):
                raise NotAllowed(self._not_known()) from error
            tries += 1
            patience = error.status == 429 or (error.status == 503 and error.retry_after_s is not None)
            if not patience or tries == _TRIES:
                raise error
            pause_s = 1.0 if error.retry_after_s is None else error.retry_after_s
            await asyncio.sleep(min(pause_s, _LONGEST_PAUSE_S))

    def _use(self, access: kubeconfig.Access) -> None:
        import aiohttp

        # Each TLS connection keeps a buffer of this size; by default of 256 KiB, which is more than all else that a
        # followed log takes. asyncio has no other place to say it. Larger pieces come in several reads.
        asyncio.sslproto.SSLProtocol.max_size = _TLS_BUFFER_BYTES
        connector = aiohttp.TCPConnector(limit=0, ssl=access.rest.ssl_context, socket_factory=_lasting_socket)
        # trust_env: else each request reads ~/.netrc in a thread, and a name found there would shut us out.
        access.configuration.client_session_kwargs = {
            "connector": connector, "read_bufsize": _BUFFER_BYTES, "trust_env": False,
        }  # fmt: skip
        self._connectors.append(connector)
        self._rests.append(access.rest)

    async def _send(self, access: kubeconfig.Access, shown: str, method: str, url: str, body: Raw | None,
                    silence_s: float | None) -> Any:  # fmt: skip
        import aiohttp
        from multidict import CIMultiDict

        timeout = aiohttp.ClientTimeout(
            total=_REQUEST_S if silence_s is None else None,
            sock_connect=_CONNECT_S,
            sock_read=_ANSWER_S if silence_s is None else silence_s,
        )
        headers: MutableMapping[str, str] = {
            "Accept": "application/json",
            "User-Agent": "tuner",
            "Content-Type": "application/json",
        }
        if shown:
            headers["Authorization"] = shown
        if not access.compressed:
            headers["Accept-Encoding"] = "identity"
        if method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        try:
            if access.impersonation:
                headers = CIMultiDict([*headers.items(), *access.impersonation])  # a group has a header each
            answer = await access.rest.request(method, url, headers, body, _request_timeout=timeout)
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        return answer.response

    async def chunks(self, response: Any) -> AsyncIterator[bytes]:
        import aiohttp

        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    def json_of(self, body: bytes) -> Raw:
        """Of a good answer, or a line of one."""
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._unreachable(error) from error
        return value if isinstance(value, dict) else {}

    async def _renew(self, used: kubeconfig.Access, shown: str) -> bool:
        """Read the credentials again (a plugin runs again); False if there are no others than those that were `shown`.

        Raises:
            Unreachable: there are none now, and asking again later may help: while somebody logs in, trials run on.
        """
        async with self._renewing:
            if self.access is not used:
                return True  # somebody else has just done it
            if time.monotonic() < self._renew_after_s:
                if self._why_not_renewed:
                    raise Unreachable(self._why_not_renewed)
                return False
            self._renew_after_s, self._why_not_renewed = time.monotonic() + _RENEWAL_PAUSE_S, ""
            try:
                renewed = await kubeconfig.load(self._asked)
            except BadKubeconfig:  # gone since we started: what is wrong is still that we are not let in
                return False
            except NotAllowed as error:
                self._why_not_renewed = str(error)
                raise Unreachable(str(error)) from error
            if renewed.transport == used.transport:
                if renewed.credentials.authorization() == shown:
                    return False
                renewed = replace(renewed, configuration=used.configuration, rest=used.rest)
            else:
                self._use(renewed)
            _log.info("context=%s credentials renewed", self.access.context)
            self.access, self._renew_after_s = renewed, 0.0
            return True

    def _not_known(self) -> str:
        access = self.access
        return (
            f"{access.server} does not accept the credentials of context {access.context!r} (user {access.user!r}): "
            f"they are wrong or have expired; log in again, and check with: kubectl auth whoami"
        )

    def _unreachable(self, error: Exception) -> Unreachable:
        import aiohttp

        where = f"{self.access.server} (context {self.access.context!r})"
        said = " ".join(str(error).split()) or type(error).__name__
        match error:
            case aiohttp.ClientConnectorCertificateError():
                why = f"is not trusted: {error.certificate_error}; check its cluster's certificate-authority-data"
            case aiohttp.ClientConnectorSSLError() | aiohttp.ClientSSLError():
                why = f"does not speak TLS as expected: {said}; check its cluster's server in the kubeconfig"
            case aiohttp.ClientConnectorDNSError():
                why = "cannot be found: no such host; check its cluster's server in the kubeconfig, VPN and network"
            case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
                why = f"cannot be reached through its proxy: {said}; check proxy-url and HTTPS_PROXY"
            case aiohttp.ClientConnectorError():
                reason = os.strerror(error.errno) if error.errno else said
                why = f"cannot be reached: {reason}; is the cluster up, and this the right context?"
            case aiohttp.SocketTimeoutError():
                return Silent(f"{where} has stopped answering; it may be overloaded or restarting")
            case TimeoutError():
                why = "does not answer; is the cluster up, and does a VPN or firewall stand between?"
            case ValueError():
                why = f"answers in another language than JSON ({said}); is it an API server, and no login page?"
            case _:
                why = f"broke the connection off: {said}; it may be restarting"
        return Unreachable(f"{where} {why}")


def _lasting_socket(address: Any) -> socket.socket:
    """As aiohttp's own, with keep-alive: a connection whose other end vanished without a word must not look fine."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # macOS has them under other names
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _status_of(body: bytes) -> Raw:
    """An error from before the API server itself (a proxy's, a port that speaks TLS) comes as text."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = " ".join(body.decode(errors="replace").split())[:500]
    return value if isinstance(value, dict) else {"message": str(value)}


def error_of(status: Raw, response: Any = None) -> ApiError:
    """Of a `Status` object: an answer's body, or the object of an ERROR event."""
    code = int(response.status if response is not None else status.get("code") or 500)
    details = status.get("details") or {}
    after = (response.headers.get("Retry-After") if response is not None else None) or details.get("retryAfterSeconds")
    message = status.get("message") or f"HTTP {code}"
    return ApiError(
        code,
        status.get("reason") or (response.reason if response is not None else "") or "Unknown",
        message,
        retry_after_s=float(after) if after is not None and str(after).isdigit() else None,
        details=details,
    )
