"""The server process: from its settings to a graceful stop.

The same server runs for `tuner serve` and embedded in `tuner run` (on a private socket, in the
controller's loop). This module decides nothing about studies, and imports nothing expensive before
a server is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from suggest import events
from suggest.address import Address, parse_address
from suggest.binding import import_grpc_quietly
from suggest.server.access.caller import OWN, UNIX, Rights
from suggest.server.access.protection import LoadedProtection, Protection
from suggest.server.descriptors import max_connections, raise_descriptor_limit
from suggest.server.server_options import LimitsFile, ServerOptions
from suggest.url_redaction import redacted_url

if TYPE_CHECKING:
    import ssl

    from suggest.server.grpc_servers import GrpcServers
    from suggest.server.in_process import InProcessChannel
    from suggest.storage.ownership import Claim
    from suggest.storage.page_sessions import PageSessions

__all__ = ["Companion", "Protection", "Server", "ServerOptions", "serve"]

GRACE_S = 10.0
# A thread that computes keeps the GIL for so long while others wait for it. A small call waits for
# it several times, and gRPC's own thread once for each call that it accepts.
SWITCH_S = 0.001
NO_PROTECTION = Protection()  # sufficient for a socket
NO_OPTIONS = ServerOptions()


# What runs in the server's process and loop while it serves, such as the web page.
Companion: TypeAlias = Callable[["Server"], contextlib.AbstractAsyncContextManager[object]]


class Server:
    """A gRPC server, which belongs to the event loop that starts it.

    `storage_url` is sqlite:///PATH or postgresql+psycopg://HOST/DATABASE, `sync` is normal or full.
    `advertise` is where other processes reach the server, if not at `address`. With a `claim` it
    takes the studies in PostgreSQL from other servers (see `suggest.storage.ownership.Claim`).

    Raises:
        InvalidArgument: the protection does not suffice for the address, or the folder of
        checkpoints is not writable.
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
        claim: Claim | None = None,
    ) -> None:
        self._storage_url = storage_url
        self._claim = claim
        self._address = parse_address(address)
        self._sync = sync
        self._advertised = str(parse_address(advertise)) if advertise else ""
        self._protection = protection
        self._options = options
        self._started: GrpcServers | None = None
        self._katib: tuple[Address, ...] = ()
        metrics = parse_address(options.metrics_address) if options.metrics_address else None
        protection.check(self._address, metrics, katib=bool(options.katib))
        options.check_checkpoints()

    @staticmethod
    def prepare() -> None:
        """Import what `start` needs, so that a standby starts a second sooner. Blocking."""
        import_grpc_quietly()
        from suggest.server import grpc_servers  # noqa: F401 - see `_open`

        _import_algorithms()

    @property
    def address(self) -> str:
        """The address on which the server listens, with the actual port."""
        return str(self._address)

    @property
    def certificate(self) -> str:
        """The file of the certificate; "" without TLS."""
        return self._protection.tls_cert

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
        return self._servers.metrics_port

    @property
    def max_connections(self) -> int:
        """How many connections a port may have, which leaves file descriptors for the store."""
        return max_connections()

    async def start(self) -> None:
        """Open the store and listen.

        Raises:
            Unavailable: the address is in use, or the store does not answer.
            StoreBroken: the store cannot be used.
            InvalidArgument: a setting, or a file of the protection, is invalid.
        """
        protection = LoadedProtection(self._protection)
        limits_file = None if self._options.limits is None else LimitsFile(self._options.limits)
        # In a thread, because imports and disk access would block the loop for too long.
        servers = await asyncio.to_thread(self._open, protection, limits_file)
        try:
            await servers.start(self._address, self._advertised)
        except BaseException:
            await asyncio.to_thread(servers.close)
            raise
        self._started = servers
        self._address, self._katib = servers.address, servers.katib_addresses
        katib = ",".join(self.katib_addresses)
        events.log_event("start", address=self.address, storage=self.storage, katib=katib)

    def inside(
        self, *, trusted: bool = False, rights: Rights | None = None, caller: str = UNIX
    ) -> InProcessChannel:
        """Return a channel for clients in the server's own loop. The server must be running.

        trusted: they need no token, and may do everything.
        rights: those of a caller whom the server's owner has authenticated, and who needs no token.
        caller: who they are in the shares of threads and memory, unless their rights say it.
        """
        return self._servers.inside(rights=OWN if trusted else rights, caller=caller)

    def verbs_of(self, token: str) -> frozenset[str] | None:
        """Return the names of the verbs that the token permits; None if it is unknown.

        Without tokens, all.
        """
        return self._servers.protection.verbs_of(token)

    def store_errors(self) -> Mapping[str, int]:
        """Return how many calls have failed because of the store, by what it was."""
        return self._servers.store_health.by_kind()

    def page_sessions(self) -> PageSessions:
        """Return the sessions of the page in the server's store. Their methods block."""
        return self._servers.store.page_sessions

    def current_ssl_context(self) -> ssl.SSLContext:
        """Return a context with the current certificate of a server with TLS."""
        context = self.ssl_context()
        assert context is not None, "the server has no TLS"
        return context

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return a context with the server's current certificate; None without TLS."""
        pair = self._servers.protection.pair
        return None if pair is None else pair.context()

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Refuse new calls, finish calls in progress within `grace_s`, and release the studies.

        May be repeated.
        """
        servers, self._started = self._started, None
        if servers is None:
            return
        events.log_event("stopping", address=self.address, calls=servers.calls)
        await servers.drain(grace_s)
        await asyncio.to_thread(servers.close)
        if self._address.path:
            Path(self._address.path).unlink(missing_ok=True)
        events.log_event("stop", address=self.address)

    @property
    def _servers(self) -> GrpcServers:
        assert self._started is not None, "a server is started first"
        return self._started

    def _open(self, protection: LoadedProtection, limits_file: LimitsFile | None) -> GrpcServers:
        import_grpc_quietly()
        # Now, because it imports gRPC, SQLAlchemy and the samplers.
        from suggest.server.grpc_servers import GrpcServers

        return GrpcServers(
            self._storage_url,
            sync=self._sync,
            protection=protection,
            limits_file=limits_file,
            options=self._options,
            claim=self._claim,
        )


def serve(server: Server, *, announce: bool, companion: Companion | None) -> int:
    """Run the server until SIGTERM or SIGINT and return the exit code (143, 130).

    A second signal ends it at once.

    `announce` prints the address to stderr, for a process that waits for it. `companion` is entered
    while the server runs. Raises as Server.start() does, and what `companion` raises.
    """
    raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_S)
    _import_algorithms()
    return asyncio.run(_serve(server, companion, announce=announce))


def _import_algorithms() -> None:
    """Import all algorithms and pruning rules, and what they import when a study needs it.

    A later import may find no file descriptor left. Only models are imported with the first
    proposal of their algorithm.
    """
    # Here, because they take a second.
    import multiprocessing.connection  # noqa: F401 - for worker processes

    from suggest import pruners
    from suggest.samplers import by_fidelity, registry  # noqa: F401

    registry.algorithms()
    pruners.rules()


async def _serve(server: Server, companion: Companion | None, *, announce: bool) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(received: int) -> None:
        if ended.done():
            # safe: everything acknowledged is in the store, and the next start cleans up
            os._exit(128 + received)
        ended.set_result(128 + received)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    await server.start()
    try:
        async with contextlib.nullcontext() if companion is None else companion(server):
            if announce:
                katib = (
                    f", Katib at {' and '.join(server.katib_addresses)}"
                    if server.katib_addresses
                    else ""
                )
                announcement = f"listening on {server.address}, storage {server.storage}{katib}"
                with contextlib.suppress(OSError):  # a log on a full disk must not stop the server
                    print(announcement, file=sys.stderr, flush=True)
            code = await ended
    finally:
        await server.stop()
    return code
