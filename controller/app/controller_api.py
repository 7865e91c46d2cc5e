"""The controller of a cluster, as a person's command line reads it: requests through the API
server's proxy to the Service `tuner`, with the credentials of the kubeconfig.

The API server removes the header Authorization before it passes a request on. So the controller
gets the token in a header of its own, or, from those who sign in with a client certificate, a
statement signed with its key (`controller.kube.assertion`). The requests have a loop of their own
in a thread, because those who read experiments wait for each answer.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from controller.kube.client import KubernetesClient
from controller.kube.errors import AccessDenied, ApiError, BackendError, line_of_role
from controller.kube.kubeconfig import ClusterAccess
from suggest.errors import (
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    StoreBroken,
    TunerError,
    Unauthenticated,
    Unavailable,
)

AUDIENCE = "tuner"
AUTHORIZATION = "X-Tuner-Authorization"
OFFSET = "X-Tuner-Offset"  # of the bytes of a log that a response has
PAGE = 1000  # trials of one response with attempts
PAGE_OF_EXPERIMENTS = 250
NAMESPACE_VARIABLE = "TUNER_CONTROLLER_NAMESPACE"
_NAMESPACE = "tuner-system"
_SERVICE = "https:tuner:https"
_SIGNED_S = 30.0  # how long a statement is used, which is half of its life
_ERRORS: Mapping[str, type[TunerError]] = {
    kind.reason.lower(): kind
    for kind in (
        FailedPrecondition,
        NotFound,
        PermissionDenied,
        StoreBroken,
        Unauthenticated,
        Unavailable,
    )
}
T = TypeVar("T")
P = ParamSpec("P")
# What `ControllerApi.call` calls: a coroutine function whose first argument is the client.
Work: TypeAlias = Callable[Concatenate[KubernetesClient, P], Coroutine[Any, Any, T]]


class ControllerApi:
    """Reads from the controller of the cluster of one context."""

    def __init__(self, context: str | None) -> None:
        self._context = context
        self.namespace = os.environ.get(NAMESPACE_VARIABLE) or _NAMESPACE
        self._client: KubernetesClient | None = None
        self._connecting: asyncio.Lock | None = None
        self._identity = _Identity()

    @property
    def context(self) -> str:
        """Return the name of the context. Raises BadKubeconfig, AccessDenied."""

        async def name_of(client: KubernetesClient) -> str:
            return client.context

        return self._context or self.call(name_of)

    def call(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of `work` with the client, in the thread of the requests."""
        return self._begin(work, *args, **kwargs).result()

    async def acall(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `call`, while other tasks of the caller's loop run."""
        return await asyncio.wrap_future(self._begin(work, *args, **kwargs))

    def _begin(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        async def with_client() -> T:
            return await work(await self._connected(), *args, **kwargs)

        return asyncio.run_coroutine_threadsafe(with_client(), _loop())

    async def get(self, client: KubernetesClient, path: str, /, **query: str) -> Any:  # JSON
        """Return the document at a path. Raises TunerError, ApiError and RuntimeLost."""
        body, _ = await self.exchange(client, "GET", path, query)
        return json.loads(body)

    async def exchange(
        self,
        client: KubernetesClient,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes | None = None,
    ) -> tuple[bytes, Mapping[str, str]]:
        """Return the body and the headers of a response. Raises as `get`."""
        with self._explaining(client):
            place, headers_of = (self.namespace, _SERVICE, path), self._identity.headers
            async with client.proxied(
                method, *place, query, body=body, headers_of=headers_of
            ) as response:
                return await response.read(), response.headers

    async def download(
        self, client: KubernetesClient, path: str, query: Mapping[str, str], file: IO[bytes]
    ) -> None:
        """Write the body at a path into the file. Raises as `get`."""
        with self._explaining(client):
            place, headers_of = (self.namespace, _SERVICE, path), self._identity.headers
            async with client.proxied(
                "GET", *place, query, is_download=True, headers_of=headers_of
            ) as response:
                async for chunk in response.chunks():
                    file.write(chunk)

    @contextmanager
    def _explaining(self, client: KubernetesClient) -> Iterator[None]:
        try:
            yield
        except BackendError as error:
            raise _ERRORS.get(error.code, Unavailable)(str(error)) from error
        except ApiError as error:
            raise self._explained(error, client) from error

    async def _connected(self) -> KubernetesClient:
        self._connecting = self._connecting or asyncio.Lock()
        async with self._connecting:
            if self._client is None:
                self._client = await KubernetesClient.connect(self._context)
                atexit.register(self._close)
        return self._client

    def _close(self) -> None:
        if self._client is not None:
            asyncio.run_coroutine_threadsafe(self._client.close(), _loop()).result(timeout=5)

    def _explained(self, error: ApiError, client: KubernetesClient) -> Exception:
        """Return what an error of the API server says about the way to the controller."""
        where = f"{client.access.full_name}: the Service {self.namespace}/tuner"
        if error.status == 404:
            return NotFound(
                f"{where} does not exist: no controller is installed there; install it as "
                f"docs/cluster.md says, or name its namespace in {NAMESPACE_VARIABLE}"
            )
        if error.status == 403:
            line = line_of_role("", "services/proxy", ["get", "create"])
            return PermissionDenied(
                f"{error}; to read from the controller, a Role in {self.namespace} must have: "
                f"{line}"
            )
        if error.status in (502, 503, 504):
            return Unavailable(
                f"{where} does not answer ({error}); the controller is away, and trials go on; "
                f"see: kubectl get pods -n {self.namespace}"
            )
        return error


class _Identity:
    """What tells the controller who sends a request."""

    def __init__(self) -> None:
        self._statement = ""
        self._signed_for: tuple[bytes, bytes] | None = None
        self._until = 0.0

    def headers(self, access: ClusterAccess) -> Sequence[tuple[str, str]]:
        """Raises AccessDenied if the credentials say nothing that the controller can verify."""
        if access.impersonation:
            raise AccessDenied(
                f"context {access.context!r} acts as another user (`as` in the kubeconfig), which "
                "the controller cannot verify; use a context without it"
            )
        if authorization := access.credentials.authorization():
            if not authorization.startswith("Bearer "):
                raise AccessDenied(
                    f"context {access.context!r} signs in with {access.credentials.source}, which "
                    "the controller cannot verify; use a token or a client certificate"
                )
            return [(AUTHORIZATION, authorization)]
        if access.client_certificate is None:
            raise AccessDenied(f"context {access.context!r} has no credentials; log in first")
        return [(AUTHORIZATION, f"Certificate {self._signed(access.client_certificate)}")]

    def _signed(self, pair: tuple[bytes, bytes]) -> str:
        now = datetime.now(UTC)
        if self._signed_for != pair or now.timestamp() > self._until:
            # Only for certificates: it loads a library of cryptography.
            from controller.kube import assertion

            certificate, key = pair
            self._statement = assertion.signed(certificate, key, audience=AUDIENCE, now=now)
            self._signed_for, self._until = pair, now.timestamp() + _SIGNED_S
        return self._statement


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop of the requests, in a thread that ends with the process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="tuner-requests", daemon=True).start()
    return loop


class ServiceChannel:
    """Implements `suggest.client.Channel`: the suggestion service of the controller, over HTTP.

    As in Connect's unary protocol, each method is a path, and messages are bodies.
    """

    def __init__(self, api: ControllerApi) -> None:
        self._api = api

    # Any: messages, and the functions that read and write them
    def unary_unary(self, method: str, **serializers: Any) -> Callable[..., Any]:
        async def call(request: Any, **_settings: object) -> Any:
            body = serializers["request_serializer"](request)
            reply, _ = await self._api.acall(self._api.exchange, "POST", method, {}, body)
            return serializers["response_deserializer"](reply)

        return call

    async def close(self) -> None:
        """Do nothing: the connections are the API's."""
