"""A minimal client of the API server for tests: JSON in, JSON out.

It shares no code with the tuner's client, so that a test can see what that client misses. It is
synchronous: a test can call it from a thread while something runs. Connections are kept for later
requests: a TLS handshake is most of the processor time of a poll, here and in the API server.
"""

from __future__ import annotations

import functools
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import urllib3

from tests.cluster.waiting import eventually

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
CORE = "/api/v1"
BATCH = "/apis/batch/v1"


class RequestRefused(Exception):
    """An error response. `status` is the server's Status object, or the text of the response."""

    def __init__(self, code: int, status: Object) -> None:
        super().__init__(f"{code} {status.get('reason', '')}: {status.get('message', '')}")
        self.code = code
        self.status = status


@dataclass(frozen=True, slots=True)
class Api:
    """One server, as the user of a token or of a client certificate and its key."""

    server: str
    authority: str  # PEM
    token: str
    pair: tuple[str, str] | None = None

    def get(self, path: str, **query: str) -> Object:
        return json.loads(self._text("GET", path, query))

    def post(self, path: str, body: Object, **query: str) -> Object:
        return json.loads(self._text("POST", path, query, body))

    def put(self, path: str, body: Object) -> Object:
        return json.loads(self._text("PUT", path, {}, body))

    def patch(self, path: str, body: Object | list[Object], *, kind: str = MERGE) -> Object:
        return json.loads(self._text("PATCH", path, {}, body, kind))

    def delete(self, path: str, **query: str) -> None:
        """Delete an object; a missing one is not an error."""
        try:
            self._text("DELETE", path, query)
        except RequestRefused as refused:
            if refused.code != 404:
                raise

    def items(self, path: str, **query: str) -> list[Object]:
        return self.get(path, **query)["items"]

    def find(self, path: str) -> Object | None:
        try:
            return self.get(path)
        except RequestRefused as refused:
            if refused.code == 404:
                return None
            raise

    def text(self, path: str, **query: str) -> str:
        """Return a body that is not JSON, such as a log or metrics."""
        return self._text("GET", path, query)

    def logs(self, namespace: str, pod: str, **query: str) -> str:
        return self.text(f"{CORE}/namespaces/{namespace}/pods/{pod}/log", **query)

    def watch(self, path: str, *, seconds: int = 30, **query: str) -> Iterator[Object]:
        """Yield events until the server ends the watch,
        which it does after `seconds` at the latest.
        """
        asked = {"watch": "true", "timeoutSeconds": str(seconds), **query}
        with self._open(path, asked, within_s=seconds + 10) as response:
            for line in response:
                yield json.loads(line)

    def stream(self, path: str, *, seconds: float = 30, **query: str) -> Iterator[str]:
        """Yield lines as they arrive; raise TimeoutError if none arrives for `seconds`."""
        with self._open(path, query, within_s=seconds) as response:
            for line in response:
                yield line.decode().rstrip("\n")

    def until(self, path: str, holds: Callable[[Object], Any], *, within_s: float = 120) -> Any:
        """Get an object until `holds` is true of it, and return what it returned.

        After an outage of the API server the controllers list again only after
        a pause of up to a minute.
        """

        def now() -> Any:
            found = self.find(path)
            return found is not None and holds(found)

        return eventually(now, within_s=within_s, shows=lambda: json.dumps(self.find(path)))

    def _text(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Object | list[Object] | None = None,
        kind: str = "application/json",
    ) -> str:
        try:
            response = _connections(self.authority, self.pair).request(
                method,
                self._url(path, query),
                body=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": kind, **self._login()},
                timeout=30,
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(f"{method} {path}: {error}") from error
        text = response.data.decode(errors="replace")
        if response.status >= 400:
            raise RequestRefused(response.status, _status(text))
        return text

    def _open(self, path: str, query: dict[str, str], *, within_s: float) -> Any:
        """Return the http.client.HTTPResponse of a GET, which urllib's stubs do not promise."""
        request = urllib.request.Request(self._url(path, query), headers=self._login())
        trusted = _trusting(self.authority, self.pair)
        try:
            return urllib.request.urlopen(request, timeout=within_s, context=trusted)
        except urllib.error.HTTPError as error:
            with error:
                raise RequestRefused(
                    error.code, _status(error.read().decode(errors="replace"))
                ) from None

    def _url(self, path: str, query: dict[str, str]) -> str:
        return f"{self.server}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")

    def _login(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


@functools.cache
def _connections(authority: str, pair: tuple[str, str] | None) -> urllib3.PoolManager:
    return urllib3.PoolManager(ssl_context=_trusting(authority, pair))


def _trusting(authority: str, pair: tuple[str, str] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority)
    if pair:
        context.load_cert_chain(*pair)
    return context


def _status(text: str) -> Object:
    try:
        status = json.loads(text)
    except ValueError:
        return {"message": text}
    return status if isinstance(status, dict) else {"message": text}
