"""The server process: one gRPC server on one address over one store, from binding to a graceful stop.

The same server runs for `tuner serve` and embedded in `tuner run` (on a private socket, in the controller's loop). This
module decides nothing about studies, and imports nothing expensive before a server is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from suggest import events
from suggest.address import Address, parse_address
from suggest.binding import bind, import_grpc_quietly
from suggest.server.access.protection import RECHECK_S, LoadedProtection, Protection
from suggest.server.server_options import LimitsFile, ServerOptions
from suggest.url_redaction import redacted_url

if TYPE_CHECKING:
    import ssl

    import grpc

    from suggest.server.access.audit import DenialLog
    from suggest.server.access.authorization import Authorizer
    from suggest.server.connection_limits import ConnectionLimits
    from suggest.server.in_process import InProcessChannel
    from suggest.server.interceptor import CallInterceptor
    from suggest.server.katib_service import Methods
    from suggest.server.server_metrics import Metrics
    from suggest.server.service import SuggestServicer
    from suggest.storage.page_sessions import PageSessions
    from suggest.storage.sql_store import StudyStore
    from suggest.studies import StudyService

__all__ = ["Companion", "Protection", "Server", "ServerOptions", "serve"]

log = logging.getLogger(__name__)

SERVICE = "tuner.suggest.v1.SuggestService"
WORKERS = 8  # worker threads, of which a single caller gets half
GRACE_S = 10.0
COMPUTING_S = 5.0  # how much of GRACE_S passes before computations in progress are stopped
NO_PROTECTION = Protection()  # sufficient for a socket
NO_OPTIONS = ServerOptions()
SENDING_S = 0.2
LEFT_OUT_S = 10.0  # interval at which the number of denied calls left out of the audit log is written
MAX_DESCRIPTORS = 1 << 20
RECEIVED_BYTES = 4 << 20  # of a request
_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it
    ("grpc.max_concurrent_streams", 100),  # per connection; further calls wait in the client
    ("grpc.server_handshake_timeout_ms", 10_000),  # TLS and the HTTP/2 preface
    ("grpc.max_connection_idle_ms", 15 * 60_000),  # clients reconnect by themselves
    ("grpc.keepalive_time_ms", 60_000),  # release the resources of clients that are gone
    ("grpc.keepalive_timeout_ms", 20_000),
    # Calls that the loop has not seen yet. With a lower limit, gRPC would drop calls of any caller when one sends many.
    ("grpc.server.max_pending_requests", 10_000),
    ("grpc.server.max_pending_requests_hard_limit", 20_000),
    ("grpc.http2.bdp_probe", 0),  # probing would enlarge the buffers of requests that are not read yet
    ("grpc.compression_enabled_algorithms_bitset", 1),  # no compression: a small request must not expand to a large one
)
MAX_CONNECTIONS = 10_000


# What runs in the server's process and loop while it serves, such as the web page.
Companion: TypeAlias = Callable[["Server"], contextlib.AbstractAsyncContextManager[object]]


class Server:
    """A gRPC server, which belongs to the event loop that starts it.

    `storage_url` is sqlite:///PATH or postgresql+psycopg://HOST/DATABASE, `sync` is normal or full. `advertise` is
    where other processes reach the server, if not at `address`.

    Raises:
        InvalidArgument: the protection does not suffice for the address, or the folder of checkpoints is not writable.
    """

    def __init__(
        self,
        storage_url: str,
        address: str,
        *,
        sync: str = "normal",
        advertise: str = "",
        protection: Protection = NO_PROTECTION,
        options: ServerOptions = NO_OPTIONS,
    ) -> None:
        self._storage_url = storage_url
        self._asked = parse_address(address)
        self._sync = sync
        self._advertised = str(parse_address(advertise)) if advertise else ""
        self._bound = self._asked
        self._started: _Started | None = None
        self._protection = protection
        self._options = options
        self._metrics_port = 0
        metrics = options.metrics_address
        self._katib: tuple[Address, ...] = ()
        protection.check(self._asked, parse_address(metrics) if metrics else None, katib=bool(options.katib))
        options.check_checkpoints()

    @property
    def address(self) -> str:
        """The address on which the server listens, with the actual port."""
        return str(self._bound)

    @property
    def storage(self) -> str:
        """The URL of the store, without secrets."""
        return redacted_url(self._storage_url)

    @property
    def katib_addresses(self) -> tuple[str, ...]:
        """The addresses for Katib's clients, with the actual ports."""
        return tuple(map(str, self._katib))

    @property
    def metrics_port(self) -> int:
        """The port of the metrics, 0 without metrics."""
        return self._metrics_port

    async def start(self) -> None:
        """Open the store and listen.

        Raises:
            Unavailable: the address is in use, or the store does not answer.
            StoreBroken: the store cannot be used.
            InvalidArgument: a setting, or a file of the protection, is invalid.
        """
        loaded_protection = LoadedProtection(self._protection)
        limits_file = None if self._options.limits is None else LimitsFile(self._options.limits)
        with contextlib.ExitStack() as undo:
            executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="suggest")
            undo.callback(executor.shutdown)
            # In a thread, because imports and disk access would block the loop for too long.
            store: StudyStore = await asyncio.get_running_loop().run_in_executor(
                executor, self._open_store, limits_file
            )
            undo.callback(store.close)
            self._started = await self._listen(store, executor, loaded_protection, limits_file, undo)
            undo.pop_all()
        katib = ",".join(self.katib_addresses)
        events.log_event("start", address=self.address, storage=self.storage, katib=katib)

    def inside(self) -> InProcessChannel:
        """Return a channel for clients in the server's own loop. The server must be running."""
        from suggest.server.in_process import InProcessChannel

        return InProcessChannel(self._running.servicer, self._running.interceptor)

    def verbs_of(self, token: str) -> frozenset[str] | None:
        """Return the names of the verbs that the token permits; None if it is unknown. Without tokens, all."""
        return self._running.protection.verbs_of(token)

    def limit_connections(self, port: int) -> ConnectionLimits:
        """Limit the connections of a port of this process as those of the server, from before it listens."""
        connections = self._running.connections
        connections.watch(port)
        return connections

    def page_sessions(self) -> PageSessions:
        """Return the sessions of the page in the server's store. Their methods block."""
        return self._running.store.page_sessions

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return a context with the server's current certificate; None without TLS."""
        pair = self._running.protection.pair
        return None if pair is None else pair.context()

    @property
    def _running(self) -> _Started:
        assert self._started is not None, "a server is started first"
        return self._started

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Refuse new calls, finish calls in progress within `grace_s`, and release the studies. May be repeated."""
        started, self._started = self._started, None
        if started is None:
            return
        events.log_event("stopping", address=self.address, calls=started.interceptor.begun)
        await started.drain(grace_s)
        await asyncio.get_running_loop().run_in_executor(None, started.close)
        if self._bound.path:
            Path(self._bound.path).unlink(missing_ok=True)
        events.log_event("stop", address=self.address)

    def _open_store(self, limits_file: LimitsFile | None) -> StudyStore:
        from suggest.server.admin import open_store

        _import_what_errors_need()

        store = open_store(self._storage_url, sync=self._sync)
        if limits_file is None:
            return store
        from suggest.server.quota import QuotaStore

        return QuotaStore(store, limits_file.now)

    async def _listen(
        self,
        store: StudyStore,
        executor: ThreadPoolExecutor,
        loaded_protection: LoadedProtection,
        limits_file: LimitsFile | None,
        undo: contextlib.ExitStack,
    ) -> _Started:
        import_grpc_quietly()
        from suggest.server.service import SuggestServicer
        from suggest.studies import StudyService
        from suggest.v1.suggest_pb2_grpc import add_SuggestServiceServicer_to_server

        shared = _Shared(self._options, executor, loaded_protection, limits_file)
        undo.callback(shared.close)
        interceptor = shared.interceptor(loaded_protection.authorizer, RECEIVED_BYTES)
        server = shared.server(interceptor, RECEIVED_BYTES)
        self._bound = shared.bound(server, self._asked)
        studies = StudyService(store, address=self._advertised or self.address)
        servicer = SuggestServicer(studies)
        add_SuggestServiceServicer_to_server(servicer, server)
        health = await _add_health_and_reflection(server, (SERVICE,))
        listeners = [_Listener(server, health, interceptor)]
        if self._options.katib or not self._bound.path:  # Katib's clients know no sockets
            from suggest.server import katib_service

            katib = katib_service.handlers(studies, store.observations, self._options.katib_checkpoints)
            katib_service.add_handlers(server, katib)
            await _report_serving(health, katib_service.HEALTH_NAMES)
            if self._options.katib:
                listeners.append(await self._listen_for_katib(shared, katib))
        connections = await self._accept(listeners, shared, undo)
        self._metrics_port = shared.start_metrics(studies)
        files = [watched for watched in (loaded_protection, limits_file) if watched is not None and watched.change]
        tasks = [asyncio.create_task(_log_suppressed_denials(shared.denial_log))]
        if files:
            tasks.append(asyncio.create_task(_reload_files(files)))
        return _Started(
            listeners, servicer, studies, store, executor, tasks, connections, shared.metrics, loaded_protection
        )

    async def _accept(
        self, listeners: Sequence[_Listener], shared: _Shared, undo: contextlib.ExitStack
    ) -> ConnectionLimits:
        """Start the servers and the limits on their connections."""
        from suggest.server.connection_limits import ConnectionLimits

        connections = ConnectionLimits(
            None if self._bound.path else self._bound.port,
            also=[katib_server.port for katib_server in self._katib],
            limit=shared.most_connections,
        )
        for listener in listeners:
            listener.interceptor.connections = connections
            await listener.server.start()
        connections.start()
        undo.callback(connections.close)
        return connections

    async def _listen_for_katib(self, shared: _Shared, handlers: Mapping[str, Methods]) -> _Listener:
        """Bind the ports that serve Katib's services only, because their clients send no token and large requests."""
        from suggest.server import katib_service

        interceptor = shared.interceptor(None, katib_service.MAX_REQUEST_BYTES)
        server = shared.server(interceptor, katib_service.MAX_REQUEST_BYTES)
        host = self._asked.host or "127.0.0.1"
        self._katib = tuple(shared.bound(server, Address(host=host, port=port)) for port in self._options.katib)
        katib_service.add_handlers(server, handlers)
        health = await _add_health_and_reflection(server, katib_service.SERVICES)
        await _report_serving(health, katib_service.HEALTH_NAMES)
        return _Listener(server, health, interceptor)


class _Shared:
    """What the gRPC servers of the process share, and how each is made with it."""

    def __init__(
        self,
        options: ServerOptions,
        executor: ThreadPoolExecutor,
        protection: LoadedProtection,
        limits_file: LimitsFile | None,
    ) -> None:
        from suggest.server.access.audit import DenialLog
        from suggest.server.in_flight import InFlightLimits
        from suggest.server.keyed_queue import KeyedQueue
        from suggest.server.rate_limits import RateLimiter
        from suggest.server.store_health import StoreHealth

        self._pair = protection.pair
        self._certified = protection.certified
        self.metrics: Metrics | None = None
        if options.metrics_address:
            from suggest.server.server_metrics import Metrics

            self.metrics = Metrics(options.metrics_address, self._pair)
        self._in_flight = InFlightLimits()
        self._queue = KeyedQueue(executor, workers=WORKERS, full=self._in_flight.full)
        self._in_flight.on_released = self._queue.look_again
        self._store_health = StoreHealth()
        self._rate_limiter = None if limits_file is None else RateLimiter(limits_file.now)
        self.denial_log = DenialLog()
        self.most_connections = min(MAX_CONNECTIONS, descriptor_limit() // 2)  # leave descriptors for the store

    def start_metrics(self, studies: StudyService) -> int:
        """Answer requests for metrics, if there is an address for them. Return its port, otherwise 0."""
        if self.metrics is None:
            return 0
        self.metrics.start(self._queue, self._store_health, studies)
        return self.metrics.port

    def close(self) -> None:
        if self.metrics is not None:
            self.metrics.close()

    def interceptor(self, authorizer: Authorizer | None, received_bytes: int) -> CallInterceptor:
        from suggest.server.interceptor import CallInterceptor

        return CallInterceptor(
            self._queue,
            self._store_health,
            authorizer,
            self._rate_limiter,
            in_flight=self._in_flight,
            denial_log=self.denial_log,
            received_bytes=received_bytes,
            certified=self._certified,
        )

    def server(self, interceptor: CallInterceptor, received_bytes: int) -> grpc.aio.Server:
        import grpc

        return grpc.aio.server(
            interceptors=[interceptor] if self.metrics is None else [self.metrics.calls, interceptor],
            options=[
                *_OPTIONS,
                ("grpc.max_receive_message_length", received_bytes),
                ("grpc.max_allowed_incoming_connections", self.most_connections),
            ],
        )

    def bound(self, server: grpc.aio.Server, address: Address) -> Address:
        # Each port needs credentials of its own.
        return bind(server, address, None if self._pair is None else self._pair.credentials())


@dataclass(frozen=True, slots=True)
class _Listener:
    """One gRPC server of the process. All of them share the store, the studies and the queue."""

    server: grpc.aio.Server
    health: Any  # an untyped package's
    interceptor: CallInterceptor


@dataclass(frozen=True, slots=True)
class _Started:
    _listeners: Sequence[_Listener]  # the first one is the service's own
    servicer: SuggestServicer
    _studies: StudyService
    store: StudyStore
    _executor: ThreadPoolExecutor
    _background: Sequence[asyncio.Task[None]]
    connections: ConnectionLimits
    _metrics: Metrics | None
    protection: LoadedProtection

    @property
    def interceptor(self) -> CallInterceptor:
        return self._listeners[0].interceptor

    async def drain(self, grace_s: float) -> None:
        """Report the stop to health checks, answer calls in progress, and refuse new calls."""
        for task in self._background:
            task.cancel()
        for listener in self._listeners:
            await listener.health.enter_graceful_shutdown()
        if self._metrics is not None:
            self._metrics.stopping()
        # Drain before gRPC stops, because gRPC drops calls that have arrived but were not handled yet without a status.
        giving_up = asyncio.get_running_loop().call_later(min(grace_s, COMPUTING_S), self._give_up)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                asyncio.gather(*(listener.interceptor.close() for listener in self._listeners)), grace_s
            )
        giving_up.cancel()
        self._give_up()
        # Replies still have to be sent. Do not wait for all calls, because one that watches health never ends.
        await asyncio.gather(*(listener.server.stop(min(grace_s, SENDING_S)) for listener in self._listeners))

    def _give_up(self) -> None:
        for listener in self._listeners:
            listener.interceptor.give_up()

    def close(self) -> None:
        self.connections.close()
        self._executor.shutdown(cancel_futures=True)
        try:
            self._studies.close()
        finally:
            self.store.close()
            if self._metrics is not None:
                self._metrics.close()


async def _log_suppressed_denials(denial_log: DenialLog) -> None:
    """Write the numbers of denied calls left out of the audit log once no more come, until cancelled."""
    while True:
        await asyncio.sleep(LEFT_OUT_S)
        for peer, calls in denial_log.over():
            events.warn("denied", peer=peer, suppressed=calls)


async def _reload_files(files: Sequence[LoadedProtection | LimitsFile]) -> None:
    """Reload tokens, certificates and limits when their files change, until cancelled."""
    while True:
        await asyncio.sleep(RECHECK_S)
        for file in files:
            try:
                await asyncio.to_thread(file.look)  # not in a worker thread, since all of them may be busy
            except Exception:  # a bug, which must not keep revoked tokens valid
                log.exception("files that may have changed cannot be looked at; trying again")


def serve(server: Server, *, announce: bool = True, companion: Companion | None = None) -> int:
    """Run the server until SIGTERM or SIGINT and return the exit code (143, 130). A second signal ends it at once.

    `announce` prints the address to stderr, for a process that waits for it. `companion` is entered while the server
    runs. Raises as Server.start() does, and what `companion` raises.
    """
    raise_descriptor_limit()
    _import_algorithms()
    return asyncio.run(_serve(server, companion, announce=announce))


def _import_algorithms() -> None:
    """Import all algorithms and pruning rules, because a later import may find no file descriptor left.

    Also what they import when a study needs it. Only models are imported with the first proposal of their algorithm.
    """
    import multiprocessing.connection  # noqa: F401  for worker processes

    from suggest import pruners
    from suggest.samplers import by_fidelity, registry  # noqa: F401

    registry.algorithms()
    pruners.rules()


def _import_what_errors_need() -> None:
    """Import the modules that handle errors before the first error.

    That error may be a lack of file descriptors, and an import needs one.
    """
    import difflib  # noqa: F401

    from google.protobuf import any_pb2  # noqa: F401
    from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # noqa: F401


def descriptor_limit() -> int:
    """Return how many files and connections this process may have open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if limit == resource.RLIM_INFINITY else limit


def raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors as far as allowed: each connection and each study being written takes one.

    `tuner run` must not call this: trials would inherit the limit, and programs that use select() fail with high
    descriptor numbers.
    """
    now, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_DESCRIPTORS if hard_limit == resource.RLIM_INFINITY else min(hard_limit, MAX_DESCRIPTORS)
    for limit in (target, 10_240):  # macOS reports no limit, but has one
        if limit > now:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
                return


async def _serve(server: Server, companion: Companion | None, *, announce: bool) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(received: int) -> None:
        if ended.done():
            os._exit(128 + received)  # safe: everything acknowledged is in the store, and the next start cleans up
        ended.set_result(128 + received)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    await server.start()
    try:
        async with contextlib.nullcontext() if companion is None else companion(server):
            if announce:
                katib = f", Katib at {' and '.join(server.katib_addresses)}" if server.katib_addresses else ""
                announcement = f"listening on {server.address}, storage {server.storage}{katib}"
                with contextlib.suppress(OSError):  # a log on a full disk must not stop the server
                    print(announcement, file=sys.stderr, flush=True)
            code = await ended
    finally:
        await server.stop()
    return code


async def _add_health_and_reflection(server: grpc.aio.Server, services: Sequence[str]) -> Any:
    """Add the health service and reflection, both for the names `services`, and return the health servicer."""
    # Both packages are untyped.
    from grpc_health.v1 import health, health_pb2_grpc  # type: ignore[import-untyped]
    from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

    import suggest.v1.suggest_pb2  # noqa: F401  reflection only knows modules that are loaded

    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await _report_serving(servicer, services)
    reflection.enable_server_reflection((*services, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return servicer


async def _report_serving(health: Any, names: Sequence[str]) -> None:  # an untyped package's
    from grpc_health.v1 import health_pb2

    for name in names:
        await health.set(name, health_pb2.HealthCheckResponse.SERVING)
