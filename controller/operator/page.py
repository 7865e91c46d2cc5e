"""The page in the cluster: the experiments of the namespaces that a visitor may see, for reading.

People change experiments through the API server, with their own rights. The API server is asked
again what a visitor may see, so what the page sends, also streams, ends with the permission.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import secrets
import ssl
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request

from controller.app.local_experiments import LocalExperiments
from controller.background_tasks import cancelled
from controller.core.model import Experiment
from controller.folders import AttemptFolders
from controller.operator.access import KEPT_S, Access, Caller
from controller.operator.experiments import HostedExperiments
from controller.operator.hosting import HostedWorkspace
from controller.operator.manager import ExperimentResources
from controller.operator.resource import ExperimentResource
from controller.operator.status import PENDING
from controller.report.record import ExperimentRecord, TrialRecord
from controller.ui.application import Events, application
from controller.ui.board import Board
from controller.ui.experiment_routes import reading_routes
from controller.ui.guard import Guard
from controller.ui.live_table import Encoded, Event, Json
from controller.ui.shared_reader import Mark, SharedReader, clock_mark, when_changed
from controller.ui.sign_in import StoredSessions, TokenAuthenticator
from controller.ui.vega import VegaBundle
from controller.ui.visitor import VisitorLimits
from suggest.errors import PermissionDenied, Unauthenticated, Unavailable

LIST_S = 1.0
MOST_LISTED = 1000
MOST_BUDGETS = 20  # in the list
_MOST_READERS = 50
_MOST_NAMED = 1000
_SYSTEM = "system:"
_HINT = "Make one with: kubectl create token SERVICEACCOUNT --audience tuner"


class ClusterBoard(Board):
    """What the pages of all visitors share: the readers of experiments that somebody looks at."""

    def __init__(
        self,
        workspace: HostedWorkspace,
        experiments: HostedExperiments,
        resources: ExperimentResources,
    ) -> None:
        super().__init__(workspace)
        self.resources = resources
        self._hosted = experiments

    def experiments(self) -> LocalExperiments:
        return self._hosted

    def mark(self, experiment: Experiment) -> Mark:
        # Every experiment of the cluster changes the store.
        return clock_mark()

    async def log_file(self, experiment: Experiment, trial: TrialRecord, attempt: int) -> Path:
        for known in trial.attempts:
            if known.number == attempt:
                await self._hosted.available_log(experiment.uid, known)
        return await super().log_file(experiment, trial, attempt)

    def summary(self, record: ExperimentRecord, loaded: bool) -> Json:
        return super().summary(record, loaded) | {"actions": {}}

    def reader(self, experiment: Experiment) -> SharedReader[ExperimentRecord]:
        reader = super().reader(experiment)
        self.readers[experiment.uid] = self.readers.pop(experiment.uid)
        if len(self.readers) > _MOST_READERS:
            # Streams keep theirs until they end.
            del self.readers[next(iter(self.readers))]
        return reader


class VisitorBoard:
    """What one visitor sees: `controller.ui.experiment_routes.ExperimentContent`.

    caller: returns who looks, whose rights may change at any time. Raises Unauthenticated, and
    Unavailable if that is not known.
    """

    def __init__(
        self,
        board: ClusterBoard,
        access: Access,
        caller: Callable[[], Awaitable[Caller]],
        limits: VisitorLimits,
    ) -> None:
        self.limits = limits
        self._board = board
        self._access = access
        self._caller = caller

    async def _check(self, namespace: str) -> None:
        """Raises PermissionDenied, Unauthenticated, Unavailable."""
        await self._access.check(await self._caller(), "get", namespace)

    async def close(self) -> None:
        """Do nothing: the board is everybody's."""

    async def follow_list(self) -> Events:
        try:
            async for event in when_changed("list", self._list, every_s=LIST_S):
                yield event
        except Unauthenticated:
            return  # the page connects again, and is told so

    async def _list(self) -> Encoded:
        resources = self._board.resources
        try:
            readable = await self._access.readable(await self._caller(), resources.namespaces)
        except (PermissionDenied, Unavailable) as error:
            return Encoded.of({"searches": [], "trouble": str(error), "source": ""})
        seen = list(resources.all)
        if readable is not None:
            seen = [each for each in seen if each["metadata"]["namespace"] in readable]
        seen.sort(key=lambda each: each["metadata"]["creationTimestamp"], reverse=True)
        searches = [list_entry(resource) for resource in seen[:MOST_LISTED]]
        more = len(seen) - len(searches)
        lines = self._budgets({entry["namespace"] for entry in searches})
        lines += [f"{more} older ones are not shown"] if more else []
        source = "\n".join(lines)
        return Encoded.of({"searches": searches, "trouble": "", "source": source})

    def _budgets(self, namespaces: Collection[str]) -> list[str]:
        """Return what is used of some of the TenantBudgets of these namespaces."""
        experiments = self._board.experiments()
        said = [(each, experiments.tenant_budget(each)) for each in sorted(namespaces)]
        lines = [f"TenantBudget of {name}: {words}" for name, words in said if words]
        more = len(lines) - MOST_BUDGETS
        return lines[:MOST_BUDGETS] + ([f"and of {more} other namespaces"] if more > 0 else [])

    def follow(
        self, namespace: str, name: str, position: str, trials: frozenset[int] | None
    ) -> Events:
        return self.permitted(namespace, self._board.follow(namespace, name, position, trials))

    async def permitted(self, namespace: str, events: Events) -> Events:
        """Yield the events until the visitor may not see the namespace any more."""
        following: asyncio.Future[Event] | None = None
        try:
            while True:
                await self._check(namespace)
                if following is None:
                    following = asyncio.ensure_future(anext(events))
                elif following.done():
                    event, following = following.result(), None
                    yield event
                    continue
                # Also while there is nothing new, so that a page does not stay open.
                await asyncio.wait({following}, timeout=KEPT_S)
        except StopAsyncIteration:
            return
        except PermissionDenied as error:
            yield "gone", Encoded.of({"message": str(error)})
        except (Unauthenticated, Unavailable):
            return  # the page connects again, and is told so
        finally:
            await cancelled(following)

    async def experiment(self, namespace: str, name: str) -> Experiment:
        await self._check(namespace)
        return self._board.find(namespace, name)

    async def record(self, namespace: str, name: str) -> ExperimentRecord:
        await self._check(namespace)
        return await self._board.record(namespace, name)

    async def drawn(
        self, namespace: str, name: str, figure: str, trials: Sequence[int]
    ) -> ExperimentRecord:
        await self._check(namespace)
        return await self._board.drawn(namespace, name, figure, trials)

    async def trial(self, namespace: str, name: str, number: int) -> Json:
        await self._check(namespace)
        return await self._board.trial(namespace, name, number) | {"actions": {}}

    async def log_file(self, experiment: Experiment, trial: TrialRecord, attempt: int) -> Path:
        return await self._board.log_file(experiment, trial, attempt)

    def folder(self, experiment: Experiment, number: int, attempt: int) -> AttemptFolders:
        return self._board.folder(experiment, number, attempt)


def list_entry(resource: ExperimentResource) -> Json:
    """Return a resource as the list of the page shows it."""
    about, spec, status = resource["metadata"], resource["spec"], resource.get("status", {})
    return {
        "namespace": about["namespace"],
        "name": about["name"],
        "state": status.get("state", PENDING),
        "why": status.get("reason", ""),
        "metric": spec["objective"]["metric"],
        "best": status.get("best"),
        "startTime": about["creationTimestamp"],
        "trials": status.get("trials", {}),
        "done": int(status.get("done", "0").partition("/")[0]),
        "budget": {"trials": (spec.get("budget") or {}).get("trials")},
        "loaded": True,
    }


@dataclass(frozen=True, slots=True)
class ProxyCertificate:
    """The client certificate of a proxy, as `--requestheader-*` of the API server name one.

    authorities: PEM. allowed_names: its common name must be one of them.
    """

    authorities: str
    allowed_names: frozenset[str]

    def request(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Return the context of a server, which asks clients for the certificate from now on.

        Clients without one may connect; those with one of another authority cannot.

        Raises ssl.SSLError: `authorities` has no certificates.
        """
        context.load_verify_locations(cadata=self.authorities)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def is_shown_by(self, request: Request) -> bool:
        """Return whether the connection of a request has the certificate."""
        shown = getattr(request.state, "client_certificate", {})
        subject = itertools.chain.from_iterable(shown.get("subject", ()))
        names = [value for key, value in subject if key == "commonName"]
        return len(names) == 1 and names[0] in self.allowed_names


@dataclass(frozen=True, slots=True)
class PageProxy:
    """A proxy that signs people in, and names them in headers.

    It cannot name the users and groups of the cluster's own parts.

    networks: from which it connects; none: any, with a certificate. certificate: None: none is
    needed, from the networks. Requests of others are not believed.
    """

    networks: tuple[IPv4Network | IPv6Network, ...]
    user_header: str
    groups_header: str = ""
    certificate: ProxyCertificate | None = None

    def sends(self, request: Request) -> bool:
        """Return whether the request comes from the proxy."""
        if self.certificate is not None:
            if not self.certificate.is_shown_by(request):
                return False
            if not self.networks:
                return True
        if request.client is None:
            return False
        address = ip_address(request.client.host)
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)

    def caller(self, request: Request) -> Caller | None:
        """Return whom the proxy names; None: nobody, or more than one."""
        users = request.headers.getlist(self.user_header)
        if len(users) != 1 or not users[0] or users[0].startswith(_SYSTEM):
            return None
        listed = request.headers.getlist(self.groups_header) if self.groups_header else []
        named = [group.strip() for group in ",".join(listed).split(",")]
        groups = [group for group in named if group and not group.startswith(_SYSTEM)]
        return Caller(users[0], groups=(*groups, "system:authenticated"))


class PageAuthenticator(TokenAuthenticator[VisitorBoard]):
    """Signs people in with a token, or believes the proxy."""

    def __init__(
        self,
        board: ClusterBoard,
        access: Access,
        proxy: PageProxy | None,
        *,
        port: int,
        stored: StoredSessions,
    ) -> None:
        self._access = access
        self._shared = board
        self._proxy = proxy
        self._key = secrets.token_bytes(32)
        # By the user whom the proxy names. The last one that was used is at the end.
        self._limits: dict[str, VisitorLimits] = {}
        super().__init__(
            self._board_of_token, self._is_valid, hint=_HINT, port=port, secure=True, stored=stored
        )

    def board(self, request: Request) -> VisitorBoard:
        if not self._is_proxied(request):
            return super().board(request)
        caller: Caller = request.state.caller
        limits = self._limits.pop(caller.name, None) or VisitorLimits("this visitor")
        self._limits[caller.name] = limits
        if len(self._limits) > _MOST_NAMED:
            del self._limits[next(iter(self._limits))]
        return self._board_of(partial(_known, caller), limits)

    async def page_token(self, request: Request) -> str | None:
        if not self._is_proxied(request):
            return await super().page_token(request)
        request.state.caller = caller = self._named_by_proxy(request)
        return hmac.digest(self._key, caller.name.encode(), "sha256").hex()

    async def is_signed_in(self, request: Request) -> bool:
        # A proxy answers for whom it has let in as long as it keeps the connection.
        return self._is_proxied(request) or await super().is_signed_in(request)

    def _is_proxied(self, request: Request) -> bool:
        return self._proxy is not None and self._proxy.sends(request)

    def _named_by_proxy(self, request: Request) -> Caller:
        assert self._proxy is not None
        caller = self._proxy.caller(request)
        if caller is None:
            raise Unauthenticated(f"the proxy must send {self._proxy.user_header} once")
        return caller

    def _board_of_token(self, token: str) -> VisitorBoard:
        caller = partial(self._access.by_token, token, of_api_server=True)
        return self._board_of(caller, VisitorLimits("this token"))

    def _board_of(
        self, caller: Callable[[], Awaitable[Caller]], limits: VisitorLimits
    ) -> VisitorBoard:
        return VisitorBoard(self._shared, self._access, caller, limits)

    async def _is_valid(self, token: str) -> bool:
        try:
            await self._access.by_token(token, of_api_server=True)
        except Unauthenticated:
            return False
        return True


async def _known(caller: Caller) -> Caller:
    return caller


def page(authenticator: PageAuthenticator, closing: asyncio.Event, *, sign_in: str) -> Starlette:
    return application(
        authenticator.board,
        Middleware(Guard, authenticator=authenticator),
        kind="experiments",
        closing=closing,
        vega=VegaBundle(),
        sign_in=sign_in,
        routes_of_kind=[
            *authenticator.routes,
            *reading_routes(authenticator.board, closing),
        ],
    )
