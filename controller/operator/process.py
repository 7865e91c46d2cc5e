"""The process of `tuner controller`: waits for the lease, then manages all resources until SIGTERM.

Only the holder of the lease opens the store, and waits for one that is away. A process that has
lost the lease ends, and its pod starts again as a standby.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount

from controller.app.state_directory import StateDirectory
from controller.background_tasks import meanwhile
from controller.core.model import UID_LABEL
from controller.experiment_store import StaleEpoch
from controller.kube.client import KubernetesClient
from controller.kube.cluster import Cluster
from controller.kube.custom_resource import TENANT_BUDGETS
from controller.kube.node_prices import NodePrices
from controller.kube.request_limit import PER_S
from controller.operator import watched_trials
from controller.operator.access import Access
from controller.operator.certificate import own_certificate
from controller.operator.db_manager import ClusterDbManager, Peers, served
from controller.operator.default_queue import DefaultQueues
from controller.operator.experiment_kind import ExperimentKind, ExperimentKinds
from controller.operator.experiments import AWAY_S, HostedExperiments, StoreAway
from controller.operator.hosting import RUNNING_EXPERIMENTS, HostedWorkspace
from controller.operator.http_api import ALL_INTERFACES, HttpApi, error_response
from controller.operator.katib import KatibExperiments, KatibSelection
from controller.operator.leader_label import leader_label
from controller.operator.leadership import RENEW_S, Leadership
from controller.operator.manager import ExperimentResources, Manager
from controller.operator.metrics import ControllerMetrics, MetricSources
from controller.operator.page import ClusterBoard, PageAuthenticator, PageProxy, page
from controller.operator.policy import NO_EXCEPTIONS, Policy
from controller.operator.rpc_access import ClusterAuthenticator
from controller.operator.tenant_budgets import BudgetClock, TenantBudgets
from controller.operator.webhook import Webhook, registered
from controller.ui.server import LimitedListener, listen, running
from suggest.address import Address
from suggest.backoff import Backoff
from suggest.endpoint import Endpoint, PlainReply
from suggest.errors import StoreBroken, TunerError, Unavailable
from suggest.fair_share import FairShare
from suggest.server import Protection, Server, ServerOptions

_BACKOFF = Backoff(first_s=0.5, longest_s=5.0)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """namespaces: those that are watched; none: all. Ports: None: no endpoint; 0: any.

    storage: the URL of a PostgreSQL database for studies and experiments; "": SQLite in `state`.
    tls: the files of the certificate of the HTTP and gRPC ports and of its key; None: the
    controller makes one. page_proxy: signs people in to the page. webhook: the
    ValidatingWebhookConfiguration that leads to the HTTP port; "": none.
    katib: which of Katib's Experiments are run as well; None: none. db_manager_port: of Katib's
    DBManager, without TLS.
    archive: the bucket of logs, which keeps them up to an age and a size; "": none.
    requests_per_s: to the API server, without those of the process itself.
    running_experiments: how many run at a time; the others wait.
    clock: says which month it is, for the budgets of tenants; None: the API server's.
    """

    state: StateDirectory
    storage: str = ""
    context: str | None = None
    namespaces: Sequence[str] = ()
    health_port: int | None = None
    metrics_port: int | None = None
    http_port: int | None = None
    grpc_port: int | None = None
    tls: tuple[Path, Path] | None = None
    page_proxy: PageProxy | None = None
    webhook: str = ""
    katib: KatibSelection | None = None
    db_manager_port: int | None = None
    archive: str = ""
    keep_logs_s: float | None = None
    keep_logs_bytes: int | None = None
    policy: Policy = NO_EXCEPTIONS
    requests_per_s: float = PER_S
    running_experiments: int = RUNNING_EXPERIMENTS
    clock: BudgetClock | None = None


_OK = PlainReply("200 OK", b"ok\n")


class Health:
    """The answers to the probes: `/healthz`, and `/readyz`.

    Ready is a standby that reads the lease, or the leader with working watches and a store.
    """

    def __init__(self, leadership: Leadership) -> None:
        # Returns what keeps the leader from its work at present.
        self.leader_trouble: Callable[[], str] = lambda: ""
        self._leadership = leadership

    def trouble(self) -> str:
        """Return why the process is not ready; "" if it is."""
        if self._leadership.lost is not None:
            return str(self._leadership.lost)
        return self._leadership.trouble or self.leader_trouble()

    def answer(self, path: str, _accept: str) -> PlainReply:
        match path:
            case "/healthz":
                return _OK
            case "/readyz":
                trouble = self.trouble()
                unavailable = PlainReply("503 Service Unavailable", f"{trouble}\n".encode())
                return unavailable if trouble else _OK
        return PlainReply("404 Not Found", b"there are /healthz and /readyz\n")


async def run_controller(options: ControllerOptions) -> None:
    """Run until SIGTERM or SIGINT, or until another controller has taken over.

    Raises Superseded then, and what the client, the store and the service raise at the start.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    connecting = KubernetesClient.connect(options.context, requests_per_s=options.requests_per_s)
    async with await connecting as client:
        namespace = os.environ.get("POD_NAMESPACE") or client.default_namespace
        identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{secrets.token_hex(4)}"
        leadership = Leadership(client, namespace, identity, on_lost=stop.set)
        client.fence_with(leadership.require)
        health = Health(leadership)
        async with (
            Endpoint(options.health_port, health.answer),
            _measured(options.metrics_port, client, leadership) as metrics,
        ):

            async def lead() -> None:
                """Lead until the store is away for too long."""
                await leadership.acquire()
                _log.info("event=leader identity=%s epoch=%d", identity, leadership.epoch)
                pod = os.environ.get("POD_NAME", "")
                hosts = _hosts(namespace)
                try:
                    async with (
                        _manager(options, client, leadership, health, metrics, hosts) as manager,
                        leader_label(client, namespace, pod),
                    ):
                        await manager.run()
                except StoreAway as error:
                    _log.warning("event=resigned error=%s", error)
                finally:
                    await leadership.release()

            async def lead_again() -> None:
                await asyncio.to_thread(Server.prepare)
                while True:
                    await lead()
                    # Let a standby be the first, because it may reach the database.
                    await asyncio.sleep(2 * RENEW_S)

            await _until(asyncio.create_task(lead_again()), stop)
        if leadership.lost is not None:
            raise leadership.lost


async def _until(task: asyncio.Task[None], stop: asyncio.Event) -> None:
    """Wait for the task, and cancel it when a stop is asked. Raises the error of the task."""
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def _measured(
    port: int | None, client: KubernetesClient, leadership: Leadership
) -> AsyncIterator[ControllerMetrics]:
    """Serve metrics if there is a port for them, and yield them."""
    sources = MetricSources(
        is_leader=lambda: leadership.holds,
        api_requests=client.requests,
        api_requests_waiting=lambda: client.requests_waiting,
    )
    metrics = ControllerMetrics(sources)
    async with Endpoint(port, metrics.answer), meanwhile(metrics.measure_loop()):
        yield metrics


@asynccontextmanager
async def _manager(
    options: ControllerOptions,
    client: KubernetesClient,
    leadership: Leadership,
    health: Health,
    metrics: ControllerMetrics,
    hosts: Sequence[str],
) -> AsyncIterator[Manager]:
    """Open the watches, the store and the service. hosts: the controller's names in the cluster."""
    options.state.make()
    # New for each leader: another one may change the resources in between.
    katib = [] if options.katib is None else [KatibExperiments(options.katib)]
    kinds = ExperimentKinds([ExperimentKind(), *katib])
    resources = ExperimentResources(client, options.namespaces, kinds)
    access = Access(client)
    authenticator = ClusterAuthenticator(access, lambda: resources.namespaces)
    policy = options.policy
    cluster = Cluster(client, labels=UID_LABEL, all_namespaces=not options.namespaces)
    cluster.created_after = metrics.created_after
    cluster.node_prices = NodePrices(client, policy.node_label, policy.node_prices)
    standby = metrics.sources

    def stand_by() -> None:
        health.leader_trouble, metrics.sources = lambda: "", standby

    async with AsyncExitStack() as stack:
        stack.callback(stand_by)
        stack.push_async_callback(cluster.close_reflectors)
        stack.push_async_callback(resources.close)
        scopes: Sequence[str | None] = options.namespaces or [None]
        pairs = product(scopes, katib)
        watching = (watched_trials.follow(client, scope, kind) for scope, kind in pairs)
        await stack.enter_async_context(meanwhile(*watching))
        health.leader_trouble = lambda: resources.trouble
        await resources.start()
        waiting = _StoreWait(leadership, resources, health)
        server = await _server(options, hosts, authenticator, leadership, waiting)
        stack.push_async_callback(server.stop)
        experiments = await _store(options, server, leadership, waiting)
        stack.enter_context(contextlib.closing(experiments))
        health.leader_trouble = lambda: resources.trouble or experiments.away
        clock = options.clock or cluster.clock
        experiments.now = clock.now
        budgets = TenantBudgets(
            client, experiments, clock, options.namespaces, has_prices=bool(policy.prices)
        )
        await budgets.start()
        cluster.bar = budgets.bar
        experiments.budget_of = budgets.said
        workspace = HostedWorkspace(
            options.state,
            server=server,
            experiments=experiments,
            cluster=cluster,
            guard=leadership,
            policy=policy,
            queues=DefaultQueues(client),
            find=resources.find,
            is_left=resources.is_left,
            put=resources.put,
            running=FairShare(options.running_experiments),
            on_event=metrics.attempt_event,
        )
        manager = Manager(workspace, resources, experiments)
        metrics.sources = replace(
            standby,
            resources=lambda: resources.all,
            broken_watches=lambda: [
                *resources.broken_watches,
                *cluster.broken_watches,
                *([TENANT_BUDGETS.plural] if budgets.unread else []),
            ],
            status_writes=manager.status_writes,
            store_errors=server.store_errors,
            archive_is_away=lambda: experiments.archive_is_away,
            archive_behind=lambda: len(experiments.behind or ()),
            used=lambda: budgets.used,
            budgets_spent=lambda: budgets.spent,
        )
        board = ClusterBoard(workspace, experiments, resources)
        storage = options.state.url_of(options.storage)
        api = HttpApi(access, experiments, server, authenticator, resources, storage)
        webhook = Webhook(
            client=client,
            name=options.webhook,
            certificate=Path(server.certificate),
            policy=policy,
            kinds=kinds,
            experiments=experiments,
        )
        db_manager = ClusterDbManager(workspace, Peers(client, options.namespaces))
        async with (
            meanwhile(budgets.follow()),
            _http(options, server, access, api, board, webhook),
            served(options.db_manager_port, db_manager),
            _archiving(options, experiments),
        ):
            yield manager


@asynccontextmanager
async def _archiving(
    options: ControllerOptions, experiments: HostedExperiments
) -> AsyncIterator[None]:
    """Copy the logs of ended attempts to the bucket meanwhile, if there is one."""
    if not options.archive:
        yield
        return
    # Its library is installed where a bucket is used.
    from controller.operator.log_archive import Archiver, LogArchive, Retention

    retention = Retention(options.keep_logs_s, options.keep_logs_bytes)
    experiments.archiver = Archiver(LogArchive(options.archive), experiments, retention)
    async with meanwhile(experiments.archiver.run()):
        yield


@dataclass(slots=True)
class _StoreWait:
    """The leader waits for its volume or its database, and the statuses say why nothing runs."""

    leadership: Leadership
    resources: ExperimentResources
    health: Health
    failures: int = 0

    async def pause(self, trouble: str) -> None:
        _log.warning("event=storeAway error=%s", trouble)
        self.health.leader_trouble = partial(str, trouble)
        await self.resources.show_waiting(self.leadership, trouble)
        await asyncio.sleep(_BACKOFF.pause_s(self.failures))
        self.failures += 1


async def _store(
    options: ControllerOptions, server: Server, leadership: Leadership, waiting: _StoreWait
) -> HostedExperiments:
    """Open the store of experiments and the service, which starts; wait for what is away or broken.

    A store that a newer version has upgraded is broken to this one, whose pod may be replaced soon.

    Raises StoreAway after AWAY_S, if another leader may reach the database.
    """
    began_s = time.monotonic()
    while True:
        try:
            # In a thread, because it waits for the database.
            experiments = await asyncio.to_thread(
                HostedExperiments, options.state, options.storage, leadership.fence
            )
        except StaleEpoch as stale:
            _log.warning("event=epochRaised above=%d", stale.epoch)
            await leadership.exceed(stale.epoch)
            continue
        except (Unavailable, StoreBroken) as error:
            trouble = str(error)
        else:
            try:
                await server.start()
            except (Unavailable, StoreBroken) as error:
                experiments.close()
                trouble = str(error)
            except BaseException:
                experiments.close()
                raise
            else:
                return experiments
        if options.storage and time.monotonic() - began_s > AWAY_S:
            raise StoreAway(trouble)
        await waiting.pause(trouble)


def _hosts(namespace: str) -> Sequence[str]:
    """Return the names under which clients reach the Service, and `kubectl port-forward`."""
    name = f"tuner.{namespace}"
    return [name, f"{name}.svc", f"{name}.svc.cluster.local", "localhost"]


async def _server(
    options: ControllerOptions,
    hosts: Sequence[str],
    authenticator: ClusterAuthenticator,
    leadership: Leadership,
    waiting: _StoreWait,
) -> Server:
    """Return the suggestion service, which other machines reach if there is a port for it.

    Waits while the volume has no room for its certificate.
    """
    folder = options.state.root / "tls"
    files = options.tls
    while files is None:
        try:
            files = own_certificate(folder, hosts, datetime.now(UTC))
        except OSError as error:
            await waiting.pause(f"{folder}: {error.strerror}; its certificate cannot be written")
    certificate, key = files
    protection = Protection(
        tls_cert=str(certificate), tls_key=str(key), authenticator=authenticator
    )
    port = options.grpc_port
    address = Address(host="127.0.0.1") if port is None else Address(host=ALL_INTERFACES, port=port)
    return Server(
        options.state.url_of(options.storage),
        str(address),
        protection=protection,
        options=ServerOptions(limits=""),
        claim=leadership.check_store,
    )


def _tls(server: Server, proxy: PageProxy | None) -> ssl.SSLContext:
    """Return the context of a new connection to the HTTP port."""
    context = server.current_ssl_context()
    if proxy is None or proxy.certificate is None:
        return context
    return proxy.certificate.request(context)


@asynccontextmanager
async def _http(
    options: ControllerOptions,
    server: Server,
    access: Access,
    api: HttpApi,
    board: ClusterBoard,
    webhook: Webhook,
) -> AsyncIterator[None]:
    """Serve API, webhook and page while the context is open, if there is a port for them."""
    port = options.http_port
    if port is None:
        yield
        return
    closing = asyncio.Event()
    authenticator = PageAuthenticator(
        board, access, options.page_proxy, port=port, stored=server.page_sessions()
    )
    shown = page(authenticator, closing, sign_in="proxy" if options.page_proxy else "token")
    routes = [*api.routes, *webhook.routes, Mount("/", shown)]
    app = Starlette(routes=routes, exception_handlers={TunerError: error_response})
    listener = listen(ALL_INTERFACES, (port,), flag="--http-port")
    limited = LimitedListener(listener, server.max_connections // 2)
    tls = partial(_tls, server, options.page_proxy)
    try:
        async with running(app, limited, closing, tls=tls), registered(webhook):
            yield
    finally:
        await authenticator.close()
        await board.close()
