"""Connect to the suggestion service: a running one,
or one that this process starts on a private socket.

Callers that only read use `Workspace.reading`, which needs no server for a store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from controller.app.service_names import ServiceCredentials, is_address
from controller.app.state_directory import StateDirectory
from suggest import server as serving
from suggest.client import AsyncClient
from suggest.errors import Unavailable
from suggest.study import Study

# for a call to a shared service; after that, a run waits in its loop, where Ctrl-C works
PATIENCE_S = 10.0
HURRIED_S = 2.0  # how long somebody who has interrupted a run twice waits for a reply


class SessionClient(AsyncClient):
    """A client that can hurry, and keeps the seed of the study that it last met.

    The seed is for provenance.json.
    """

    seed: int | None = None

    def __init__(self, address: str, **options: Any) -> None:  # those of AsyncClient
        super().__init__(address, **options)
        self._hurries = False
        self._limits: set[asyncio.Timeout] = set()  # of the calls in progress

    def hurry(self) -> None:
        """Wait no longer than `HURRIED_S` for each reply, also for those of calls in progress."""
        if self._hurries:
            return
        self._hurries = True
        for limit in self._limits:
            limit.reschedule(asyncio.get_running_loop().time() + HURRIED_S)

    # the overridden method is generic
    async def _send(self, method: str, *rest: Any, **options: Any) -> Any:
        limit = asyncio.timeout(HURRIED_S if self._hurries else None)
        try:
            async with limit:
                self._limits.add(limit)
                reply = await super()._send(method, *rest, **options)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Unavailable(
                f"the suggestion service at {self.address} did not answer within {HURRIED_S:g} s, "
                "which is the limit after a second interruption"
            ) from None
        finally:
            self._limits.discard(limit)
        if isinstance(reply, Study):
            self.seed = reply.seed
        return reply


@asynccontextmanager
async def connected(
    service: str, state: StateDirectory, credentials: ServiceCredentials
) -> AsyncIterator[SessionClient]:
    """Return a client of the service. An embedded service is started, and stopped at the end."""
    if is_address(service):
        client = SessionClient(
            service,
            token_file=credentials.token_file,
            tls_ca=credentials.tls_ca,
            tls_cert=credentials.tls_cert,
            tls_key=credentials.tls_key,
            timeout_s=PATIENCE_S,
        )
        try:
            yield client
        finally:
            await client.close()
        return
    socket = state.service_socket()
    server = serving.Server(state.url_of(service), f"unix:{socket}")
    await server.start()
    try:
        client = SessionClient(f"unix:{socket}", inside=server.inside())
        try:
            yield client
        finally:
            await client.close()
    finally:
        await server.stop()
        socket.unlink(missing_ok=True)
