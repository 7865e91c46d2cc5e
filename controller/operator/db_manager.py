"""Katib's DBManager of the cluster: all values of the trials of Katib's experiments, to be read.

Katib's clients send neither TLS nor a token, so the address that a connection comes from says who
asks: a pod reads the trials of its own namespace. From this pod's own loopback, where
`kubectl port-forward` connects, all are read: that takes a right in the namespace of the
installation. Nobody writes here: a trial that pushes its metrics does so to the sidecar in its own
pod, where the name of the DBManager leads to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from controller.core.model import KATIB_SUFFIX, Experiment
from controller.kube.client import PODS, KubernetesClient
from controller.kube.errors import AccessDenied, ApiError, Unreachable
from controller.kube.objects import Raw
from controller.operator.answers import Answers
from controller.operator.hosting import HostedWorkspace
from controller.operator.http_api import ALL_INTERFACES
from controller.operator.katib_status import number_text
from controller.runtime.kubernetes.launch import katib_trial_name
from controller.search import study_name
from suggest.address import Address
from suggest.errors import InvalidArgument, NotFound, PermissionDenied, TunerError, Unavailable
from suggest.katib.observations import microseconds
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.trial import Measurement

SERVICE = "api.v1.beta1.DBManager"
_TRIAL = re.compile(r"(?P<experiment>.+)-[^-]*-(?P<trial>[0-9]{1,9})(?:-r(?P<attempt>[0-9]{1,9}))?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KEPT_S, _DENIED_KEPT_S = 4.0, 30.0
# Requests to the API server at a time.
_AT_ONCE = 16
_CODES = {
    InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}
_READ_ONLY = (
    "nobody writes values here: a trial whose collector is of kind Push reports them in its own "
    "pod, where this name leads to a sidecar"
)
_log = logging.getLogger(__name__)
_Context = grpc.aio.ServicerContext[Any, Any]


class Peers:
    """Finds the namespace of the pod that a connection comes from.

    namespaces: those that the controller may read; none: all.
    """

    def __init__(self, client: KubernetesClient, namespaces: Sequence[str]) -> None:
        self._client = client
        self._namespaces: Sequence[str | None] = namespaces or [None]
        self._asking = asyncio.Semaphore(_AT_ONCE)
        self._known = Answers[str](time.monotonic, _KEPT_S)

    async def namespace_of(self, peer: str) -> str | None:
        """Return the namespace; None: the connection is local, and may read all.

        peer: as gRPC writes it.

        Raises PermissionDenied if it is no pod's, and Unavailable.
        """
        host = _host(peer)
        if host.is_loopback:
            return None
        found = await self._known.get(
            (str(host),), lambda: self._asked(str(host)), denied_kept_s=_DENIED_KEPT_S
        )
        if not found:
            raise PermissionDenied(
                f"no pod has the address {host}, so nobody knows whose values it may read; ask "
                "from a pod without hostNetwork, or by kubectl port-forward"
            )
        return found

    async def _asked(self, address: str) -> str:
        """Return the namespace of the pod with this address; "" if there is none."""
        async with self._asking:
            for namespace in self._namespaces:
                try:
                    pods, _ = await self._client.list(
                        PODS, namespace, fields=f"status.podIP={address}"
                    )
                except (ApiError, Unreachable, AccessDenied) as error:
                    raise Unavailable(
                        f"the API server does not say whose address {address} is: {error}"
                    ) from error
                for pod in pods:
                    if _has_own_address(pod):
                        return str(pod["metadata"]["namespace"])
        return ""


def _has_own_address(pod: Raw) -> bool:
    """Return whether the pod has its address for itself: not its node's, and not an earlier one."""
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return not ended and not pod["spec"].get("hostNetwork")


def _host(peer: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address in `ipv4:10.0.0.7:4711` or `ipv6:%5Bfd00::7%5D:4711`."""
    text = unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]").partition("%")[0]
    host = ipaddress.ip_address(text)
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return mapped or host


class ClusterDbManager(grpc.GenericRpcHandler):
    """Answers the calls of Katib's DBManager."""

    def __init__(self, workspace: HostedWorkspace, peers: Peers) -> None:
        self._workspace = workspace
        self._peers = peers

    # as grpc's own is typed
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        prefix, _, method = handler_call_details.method.lstrip("/").partition("/")
        if prefix != SERVICE:
            return None  # UNIMPLEMENTED
        behavior = self._get if method == "GetObservationLog" else self._refuse
        return grpc.unary_unary_rpc_method_handler(behavior)

    async def _refuse(self, _raw: bytes, context: _Context) -> NoReturn:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, _READ_ONLY)
        raise AssertionError("abort raises")

    async def _get(self, raw: bytes, context: _Context) -> bytes:
        try:
            request = pb.GetObservationLogRequest.FromString(raw)
        except DecodeError:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the message is not a GetObservationLogRequest"
            )
        try:
            namespace = await self._peers.namespace_of(context.peer())
            lines = await self._lines(namespace, request)
        except TunerError as error:
            code = _CODES.get(type(error), grpc.StatusCode.UNAVAILABLE)
            await context.abort(code, str(error))
        except Exception:
            _log.exception("event=bug method=GetObservationLog")
            await context.abort(grpc.StatusCode.INTERNAL, "a bug; the controller's log has it")
        log = pb.ObservationLog(metric_logs=lines)
        return pb.GetObservationLogReply(observation_log=log).SerializeToString()

    async def _lines(
        self, namespace: str | None, request: pb.GetObservationLogRequest
    ) -> list[pb.MetricLog]:
        """Return the values of a trial, in the order of its reports.

        Of an unknown trial and of one in another namespace there are none, as in Katib.
        """
        first, last = _time("start_time", request.start_time), _time("end_time", request.end_time)
        found = self._find(namespace, request.trial_name)
        if found is None:
            return []
        experiment, number = found
        attempts = self._workspace.experiments.attempts_between(experiment.uid, number, number)
        began = {attempt.number: attempt.start_time for attempt in attempts}
        tenant = replace(self._workspace, tenant=experiment.namespace)
        async with tenant.connected("") as studies:
            try:
                measured = await studies.list_measurements(study_name(experiment), number)
            except NotFound:  # no trial has begun, or its study has just been deleted
                return []
        lines = []
        for place, (_, each) in enumerate(measured):
            if request.metric_name not in ("", each.metric):
                continue
            # The store keeps the order of reports, and no times of theirs.
            time = (began.get(each.attempt) or _EPOCH) + timedelta(microseconds=place)
            if (first is None or first <= time) and (last is None or time <= last):
                lines.append(_line(each, time))
        return lines

    def _find(self, namespace: str | None, name: str) -> tuple[Experiment, int] | None:
        """Return the experiment of a trial, and the trial's number."""
        if (match := _TRIAL.fullmatch(name)) is None:
            return None
        number, attempt = int(match["trial"]), int(match["attempt"] or 1)
        for experiment in self._workspace.experiments.named(f"{match['experiment']}{KATIB_SUFFIX}"):
            is_readable = namespace in (None, experiment.namespace)
            if is_readable and katib_trial_name(experiment, number, attempt) == name:
                return experiment, number
        return None


def _line(measured: Measurement, time: datetime) -> pb.MetricLog:
    text = time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    metric = pb.Metric(name=measured.metric, value=number_text(measured.value))
    return pb.MetricLog(time_stamp=text, metric=metric)


def _time(field: str, text: str) -> datetime | None:
    """Raises InvalidArgument."""
    if not text:
        return None
    try:
        return _EPOCH + timedelta(microseconds=microseconds(text))
    except ValueError as error:
        raise InvalidArgument.at(field, str(error)) from None


@asynccontextmanager
async def served(port: int | None, manager: ClusterDbManager) -> AsyncIterator[None]:
    """Serve while the context is open, if there is a port. Raises Unavailable."""
    if port is None:
        yield
        return
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((manager,))
    try:
        server.add_insecure_port(str(Address(host=ALL_INTERFACES, port=port)))
    except RuntimeError as error:
        raise Unavailable(f"--db-manager-port: cannot listen at port {port}: {error}") from error
    await server.start()
    try:
        yield
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await server.stop(1.0)
