"""The gRPC servers of a process over one store: their ports, and a graceful stop.

It imports gRPC, SQLAlchemy and the samplers, so `suggest.server.process`
imports it when a server starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib  # noqa: F401 - for errors
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import any_pb2  # noqa: F401 - for errors
from google.rpc import (  # type: ignore[import-untyped]
    error_details_pb2,  # noqa: F401 - for errors
    status_pb2,  # noqa: F401 - for errors
)

# Both packages are untyped.
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from suggest import events
from suggest.address import Address
from suggest.binding import bind
from suggest.server.access.authorization import Authorizer
from suggest.server.access.caller import Rights
from suggest.server.access.protection import RECHECK_S, LoadedProtection
from suggest.server.admin import open_store
from suggest.server.call_pool import CallPool
from suggest.server.descriptors import max_connections
from suggest.server.handlers import add_handlers
from suggest.server.in_process import InProcessChannel
from suggest.server.interceptor import CallInterceptor, Shared
from suggest.server.quota import QuotaStore
from suggest.server.server_options import LimitsFile, ServerOptions
from suggest.server.service import handlers
from suggest.server.store_health import StoreHealth
from suggest.studies import StudyService
from suggest.wire import SERVICE

if TYPE_CHECKING:
    from suggest.storage.ownership import Claim

log = logging.getLogger(__name__)

THREADS = 8  # worker threads; a single caller gets half of them
COMPUTING_S = 5.0  # how much of the grace period passes before computations in progress are stopped
SENDING_S = 0.2
# interval at which the number of denied calls left out of the audit log is written
LEFT_OUT_S = 10.0
RECEIVED_BYTES = 4 << 20  # of a request
_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it
    ("grpc.max_concurrent_streams", 100),  # per connection; further calls wait in the client
    ("grpc.server_handshake_timeout_ms", 10_000),  # TLS and the HTTP/2 preface
    ("grpc.max_connection_idle_ms", 15 * 60_000),  # clients reconnect by themselves
    ("grpc.keepalive_time_ms", 60_000),  # release the resources of clients that are gone
    ("grpc.keepalive_timeout_ms", 20_000),
    # Calls that the loop has not seen yet. With a lower limit, gRPC would drop calls of any caller
    # when one sends many.
    ("grpc.server.max_pending_requests", 10_000),
    ("grpc.server.max_pending_requests_hard_limit", 20_000),
    # probing would enlarge the buffers of requests that are not read yet
    ("grpc.http2.bdp_probe", 0),
    # no compression: a small request must not expand to a large one
    ("grpc.compression_enabled_algorithms_bitset", 1),
)


@dataclass(frozen=True, slots=True)
class _Listener:
    """One gRPC server of the process.

    All of them share the store, the studies and the limits on callers.
    """

    server: grpc.aio.Server
    health: Any  # an untyped package's
    interceptor: CallInterceptor


class GrpcServers:
    """The server of the service, and one for Katib's clients if there are ports for them.

    The constructor and close() block. Call close() also if start() raises.
    """

    def __init__(
        self,
        storage_url: str,
        *,
        sync: str,
        protection: LoadedProtection,
        limits_file: LimitsFile | None,
        options: ServerOptions,
        claim: Claim | None,
    ) -> None:
        """Open the store. Raises InvalidArgument, Unavailable, StoreBroken."""
        self.protection = protection
        self._limits_file = limits_file
        self._options = options
        limits = None if limits_file is None else limits_file.now
        store = open_store(storage_url, sync=sync, claim=claim)
        self.store = store if limits is None else QuotaStore(store, limits)
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="suggest")
        self._pool = CallPool(self._executor, threads=THREADS)
        self._shared = Shared(self._pool, limits)
        self._studies: StudyService | None = None
        self._listeners: list[_Listener] = []
        self._background: list[asyncio.Task[None]] = []
        self._metrics = None
        if options.metrics_address:
            # Only an operator who wants metrics needs the library.
            from suggest.server.server_metrics import Metrics

            self._metrics = Metrics(options.metrics_address, protection.pair)
        self.address = Address()
        self.katib_addresses: tuple[Address, ...] = ()

    @property
    def metrics_port(self) -> int:
        """The port of the metrics, 0 without metrics."""
        return 0 if self._metrics is None else self._metrics.port

    @property
    def store_health(self) -> StoreHealth:
        return self._shared.store_health

    @property
    def calls(self) -> int:
        """The number of calls that are being answered."""
        return self._pool.wanted

    def inside(self, *, rights: Rights | None, caller: str) -> InProcessChannel:
        """Return a channel for clients in the servers' own loop."""
        interceptor = self._listeners[0].interceptor
        return InProcessChannel(self._handlers, interceptor, rights=rights, caller=caller)

    async def start(self, address: Address, advertised: str) -> None:
        """Listen at the address. Raises Unavailable: it is in use."""
        listener = await self._listener(self.protection.authorizer, RECEIVED_BYTES, (SERVICE,))
        self.address = self._bind(listener, address)
        studies = self._studies = StudyService(self.store, address=advertised or str(self.address))
        self._handlers = handlers(studies)
        add_handlers(listener.server, {SERVICE: self._handlers})
        self._listeners = [listener]
        if self._options.katib or not self.address.path:
            await self._serve_katib(studies, listener, address.host or "127.0.0.1")
        for each in self._listeners:
            await each.server.start()
        if self._metrics is not None:
            await self._metrics.start(self._pool, self._shared.store_health, studies)
        self._background.append(asyncio.create_task(self._log_suppressed_denials()))
        files = [
            file
            for file in (self.protection, self._limits_file)
            if file is not None and file.change
        ]
        if files:
            self._background.append(asyncio.create_task(_reload_files(files)))

    async def drain(self, grace_s: float) -> None:
        """Report the stop to health checks, answer calls in progress, and refuse new calls."""
        for task in self._background:
            task.cancel()
        for listener in self._listeners:
            await listener.health.enter_graceful_shutdown()
        if self._metrics is not None:
            self._metrics.stopping()
        # Drain before gRPC stops, because gRPC drops calls that have arrived but were not handled
        # yet without a status.
        giving_up = asyncio.get_running_loop().call_later(min(grace_s, COMPUTING_S), self._give_up)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                asyncio.gather(*(listener.interceptor.close() for listener in self._listeners)),
                grace_s,
            )
        giving_up.cancel()
        self._give_up()
        # Replies still have to be sent. Do not wait for all calls,
        # because one that watches health never ends.
        await asyncio.gather(
            *(listener.server.stop(min(grace_s, SENDING_S)) for listener in self._listeners)
        )
        if self._metrics is not None:
            await self._metrics.stop()

    def close(self) -> None:
        """Release the studies, and close the store."""
        self._executor.shutdown(cancel_futures=True)
        try:
            if self._studies is not None:
                self._studies.close()
        finally:
            self.store.close()
            if self._metrics is not None:
                self._metrics.close()

    def _give_up(self) -> None:
        for listener in self._listeners:
            listener.interceptor.give_up()

    async def _listener(
        self, authorizer: Authorizer | None, received_bytes: int, services: Sequence[str]
    ) -> _Listener:
        """Return a server with health and reflection for the names of services."""
        interceptor = CallInterceptor(
            self._shared,
            authorizer,
            received_bytes=received_bytes,
            certified=self.protection.certified,
            measure=None if self._metrics is None else self._metrics.measured,
        )
        server = grpc.aio.server(
            interceptors=[interceptor],
            options=[
                *_OPTIONS,
                ("grpc.max_receive_message_length", received_bytes),
                ("grpc.max_allowed_incoming_connections", max_connections()),
            ],
        )
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        await _report_serving(servicer, services)
        reflection.enable_server_reflection(
            (*services, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        return _Listener(server, servicer, interceptor)

    def _bind(self, listener: _Listener, address: Address) -> Address:
        # Each port needs credentials of its own.
        pair = self.protection.pair
        return bind(listener.server, address, None if pair is None else pair.credentials())

    async def _serve_katib(self, studies: StudyService, own: _Listener, host: str) -> None:
        """Serve Katib's services at the own port, and at ports that serve them only.

        Katib's clients send no token and large requests.
        """
        # A private service on a socket has no clients of Katib's, and starts faster without.
        from suggest.server import katib_service

        by_service = katib_service.handlers(
            studies, self.store.observations, self._options.katib_checkpoints
        )
        add_handlers(own.server, by_service)
        await _report_serving(own.health, katib_service.HEALTH_NAMES)
        if not self._options.katib:
            return
        listener = await self._listener(
            None, katib_service.MAX_REQUEST_BYTES, katib_service.SERVICES
        )
        self.katib_addresses = tuple(
            self._bind(listener, Address(host=host, port=port)) for port in self._options.katib
        )
        add_handlers(listener.server, by_service)
        await _report_serving(listener.health, katib_service.HEALTH_NAMES)
        self._listeners.append(listener)

    async def _log_suppressed_denials(self) -> None:
        """Log how many denied calls the audit log left out, once no more come; until cancelled."""
        while True:
            await asyncio.sleep(LEFT_OUT_S)
            for peer, calls in self._shared.denial_log.over():
                events.warn("denied", peer=peer, suppressed=calls)


async def _reload_files(files: Sequence[LoadedProtection | LimitsFile]) -> None:
    """Reload tokens, certificates and limits when their files change, until cancelled."""
    while True:
        await asyncio.sleep(RECHECK_S)
        for file in files:
            try:
                # not in a worker thread, since all of them may be busy
                await asyncio.to_thread(file.look)
            except Exception:  # a bug, which must not keep revoked tokens valid
                log.exception("files that may have changed cannot be looked at; trying again")


async def _report_serving(servicer: Any, names: Sequence[str]) -> None:  # an untyped package's
    for name in names:
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
