"""The fencing lease: one controller per experiment. A Lease beside the anchor names its holder;
every write checks it.

The lease is renewed in the background, so a write costs only a look at the clock. A controller
whose lease has expired (it was frozen, or disconnected) asks the server before it writes again; if
another one has taken over meanwhile, it never writes again. `leaseTransitions` is the epoch, which
grows with each holder. Times on the lease are the server's.

A controller of the same state directory takes over immediately: a lock in it shows
that its predecessor is dead. One of a state directory that has run the experiment
before, and whose successor has run it since, is refused also when the lease is free:
it would run trials again whose results it lacks.

The lease also records how the experiment has ended, in the same write as the fencing, and
before the holder saves that end: between the two only the same state directory may continue,
and it ends the experiment again. KEPT_S after its end, the next controller in the namespace
deletes what the cluster keeps of an experiment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import NoReturn, Protocol

from controller.background_tasks import cancelled
from controller.core.attempt import RuntimeLost
from controller.core.model import ExperimentState
from controller.kube.client import CONFIG_MAPS, LEASES, KubernetesClient
from controller.kube.errors import (
    LEASE_SETTLE_S,
    AccessDenied,
    ApiConflict,
    ApiError,
    ApiForbidden,
    ApiNotFound,
    ErrorClassifier,
    NotServed,
)
from controller.kube.objects import AnyObject, LeaseSpec, Raw
from controller.kube.server_clock import ServerClock
from controller.phrases import command
from controller.runtime.kubernetes.labels import (
    ENDED,
    EXPERIMENT,
    HOLDER,
    MANAGED_BY,
    annotation,
    owner_reference,
)
from controller.runtime.kubernetes.pod_status import parse_time
from controller.runtime.kubernetes.small_file import write_in_place
from controller.runtime.protocol import Conclusion
from suggest.errors import FailedPrecondition
from suggest.nesting import load_json

KEPT_S = 30 * 24 * 3600.0  # after the experiment's end
EXPERIMENT_LEASE_S = 30  # how long another controller waits for a silent holder
_RENEW_S = 10.0
_MARGIN_S = 5.0  # the holder stops writing this long before others may take over
_CLOSE_S = 2.0
_POLL_S = 1.0
_TRIES = 5
_log = logging.getLogger(__name__)


class Superseded(FailedPrecondition):
    """Another controller has taken the experiment over."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """What the controllers of a state directory remember of the lease.

    Attributes:
        token: tells them from those of a new directory at the same path.
        epoch: the last one under which they held the lease; 0: they never did.
        time: when they took or left it, by the server's clock.
        ended: they recorded the end of the experiment.
    """

    token: str
    epoch: int = 0
    time: str = ""
    ended: bool = False


class LeaseHolder:
    """All controllers that use this folder of an experiment.

    A copy of the folder on another host is another holder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "holder"

    @property
    def tenure(self) -> Tenure:
        """Return what is remembered; a new token the first time. Raises OSError."""
        try:
            text = self._file.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            text = ""
        if text:
            return Tenure(**json.loads(text))
        new = Tenure(secrets.token_hex(8))
        self._write(new)
        return new

    @property
    def identity(self) -> str:
        """Return `host:folder` and the token. Raises OSError."""
        return f"{socket.gethostname()}:{self._folder} {self.tenure.token}"

    def remember(self, *, epoch: int, now: datetime, ended: bool = False) -> None:
        """Raises OSError."""
        self._write(replace(self.tenure, epoch=epoch, time=format_time(now), ended=ended))

    def _write(self, tenure: Tenure) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_in_place(self._file, json.dumps(asdict(tenure)))


class WriteGuard(Protocol):
    """What a runtime asks before it writes: whether this controller may still control.

    lost: why nothing may be written any more. Methods raise Superseded, RuntimeLost (another
    controller may write now), and what the client raises.
    """

    @property
    def lost(self) -> Superseded | None: ...

    async def verify(self) -> None:
        """Return unless another controller has run the experiment since. Only reads."""

    async def check(self, owner: Raw | None = None) -> None:
        """Return if this controller may write now.

        owner: the object that owns all others, as the server returned it.
        """

    async def conclude(self, conclusion: Conclusion) -> None:
        """Record how the experiment has ended."""

    async def close(self) -> None:
        """Let the next controller in."""


class FencingLease:
    """`check` before each write; `close` lets the next controller in at once.

    lost: why nothing may be written any more; `changed` is called
    when this is detected.
    """

    def __init__(
        self,
        client: KubernetesClient,
        namespace: str,
        anchor: Raw,
        holder: LeaseHolder,
        *,
        clock: ServerClock,
        changed: Callable[[], None],
    ) -> None:
        self.lost: Superseded | None = None
        self._client = client
        self._namespace = namespace
        self._name = str(anchor["metadata"]["name"])
        self._labels = dict(anchor["metadata"].get("labels", {}))
        self._holder = holder
        self._identity = ""
        self._changed = changed
        self._owner: Raw | None = None
        self._epoch = 0
        self._valid_until_s = float("-inf")
        self._clock = clock
        self._disabled = False
        self._errors = ErrorClassifier(settle_s=LEASE_SETTLE_S)
        self._asking = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    async def verify(self) -> None:
        """Return unless another controller has run the experiment since we did. Only reads.

        Raises Superseded, RuntimeLost, and what the client raises.
        """
        with _holder_file_errors():
            self._identity, has_held = self._holder.identity, self._holder.tenure.epoch > 0
        if not has_held:
            return
        await self._clock.read()
        try:
            lease = await self._find()
        except ApiForbidden:
            return
        self._refuse_successor(lease, self._clock.now())

    async def conclude(self, conclusion: Conclusion) -> None:
        """Record how the experiment has ended, unless the cluster has nothing of it.

        Raises as `check` does.
        """
        try:
            if not self._epoch and await self._find() is None:
                return
            await self.check()
            if not self._disabled:
                async with self._asking:
                    await self._conclude(conclusion)
        except ApiForbidden as error:
            self._disable(error)

    async def _conclude(self, conclusion: Conclusion) -> None:
        for _ in range(_TRIES):
            now, state = self._clock.now(), conclusion.state.value
            record = {"state": state, "reason": conclusion.reason, "best": conclusion.best}
            text = json.dumps(record | {"time": format_time(now)})
            metadata = {"labels": {ENDED: state}, "annotations": {ENDED: text}}
            try:
                await self._take(now)
                lease = await self._client.get(LEASES, self._namespace, self._name)
                await self._write(lease, {}, metadata)
            except (ApiConflict, ApiNotFound):
                continue
            with _holder_file_errors():
                self._holder.remember(epoch=self._epoch, now=now, ended=True)
            return
        raise self._contended()

    def _disable(self, error: ApiError) -> None:
        self._disabled = True
        _log.warning("a second controller of this experiment would not be detected: %s", error)

    async def check(self, owner: Raw | None = None) -> None:
        """Return if we may write.

        owner: the anchor as the server returned it; the lease is deleted with it.

        Raises Superseded, RuntimeLost (another controller holds the lease),
        and what the client raises.
        """
        self._owner = owner or self._owner
        if self.lost is not None:
            raise self.lost
        if self._disabled or time.monotonic() < self._valid_until_s:
            return
        async with self._asking:
            if time.monotonic() >= self._valid_until_s:
                await self._ask()
        if self._renewing is None and not self._disabled:
            self._renewing = asyncio.create_task(self._renew())

    async def close(self) -> None:
        """Release the lease, and sweep the namespace if we held it."""
        await cancelled(self._renewing)
        if self._epoch and self.lost is None and not self._disabled:
            with contextlib.suppress(ApiError, AccessDenied, RuntimeLost, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._release()
                    await sweep(self._client, self._namespace, self._clock.now())
        self._epoch, self._valid_until_s = 0, float("-inf")

    async def _release(self) -> None:
        lease = await self._client.get(LEASES, self._namespace, self._name)
        if not self._is_ours(lease["spec"]):
            return
        with contextlib.suppress(OSError):  # it has the time of the acquisition
            self._holder.remember(
                epoch=self._epoch, now=self._clock.now(), ended=self._holder.tenure.ended
            )
        await self._write(lease, {"holderIdentity": None})

    async def _renew(self) -> None:
        """Renew the lease. Errors are ignored: the first write after its expiry reports them."""
        while self.lost is None:
            await asyncio.sleep(_RENEW_S)
            with contextlib.suppress(ApiError, AccessDenied, RuntimeLost, Superseded):
                async with self._asking:
                    await self._ask()
        self._changed()

    async def _ask(self) -> None:
        """Acquire or renew the lease."""
        if not self._identity:
            with _holder_file_errors():
                self._identity = self._holder.identity
        for _ in range(_TRIES):
            began_s = time.monotonic()
            try:
                await self._clock.read()
                await self._take(self._clock.now())
            except ApiConflict:  # another controller was faster: read it again
                continue
            except (ApiForbidden, ApiNotFound) as error:
                if self._epoch and isinstance(error, NotServed):
                    raise  # it was served before
                # It had the right: an API server that has just started refuses everything.
                if self._epoch and error.refusal is not None:
                    refused = self._errors.classify(error, patient=True)
                    if isinstance(refused, RuntimeLost):
                        raise refused from error
                self._disable(error)
                return
            self._valid_until_s = began_s + EXPERIMENT_LEASE_S - _MARGIN_S
            return
        raise self._contended()

    def _contended(self) -> RuntimeLost:
        return RuntimeLost(
            f"others keep changing lease {self._name} in namespace {self._namespace}"
        )

    async def _find(self) -> Raw | None:
        try:
            return await self._client.get(LEASES, self._namespace, self._name)
        except ApiNotFound:
            return None

    async def _take(self, now: datetime) -> None:
        lease = await self._find()
        if lease is None:
            if not self._epoch:
                self._refuse_successor(None, now)
            await self._make(now)
            return
        spec: LeaseSpec = lease.get("spec") or {}
        if self._is_ours(spec):
            await self._write(lease, {"renewTime": format_time(now)})
            return
        if self._epoch:
            self._lose(lease)
        self._refuse_successor(lease, now)
        is_held = spec.get("holderIdentity") not in (None, "", self._identity)
        if is_held and time_left_s(spec, now) > 0:
            raise RuntimeLost(busy_message(self._name, self._namespace, spec))
        epoch = int(spec.get("leaseTransitions") or 0) + 1
        # It goes on, whatever was recorded of its end.
        metadata = {"labels": {ENDED: None}, "annotations": {ENDED: None, HOLDER: self._identity}}
        holding = held(self._identity, epoch, EXPERIMENT_LEASE_S, format_time(now))
        await self._write(lease, holding, metadata)
        self._remember_tenure(epoch, now)

    async def _make(self, now: datetime) -> None:
        about = {
            "name": self._name,
            "namespace": self._namespace,
            "labels": self._labels,
            "annotations": {HOLDER: self._identity},
            **self._owned(),
        }
        body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": about}
        with _holder_file_errors():
            before = self._holder.tenure.epoch
        epoch = max(self._epoch, before) + 1  # also if it was deleted while we held it
        holding = held(self._identity, epoch, EXPERIMENT_LEASE_S, format_time(now))
        await self._client.create(LEASES, self._namespace, body | {"spec": holding})
        self._remember_tenure(epoch, now)

    def _remember_tenure(self, epoch: int, now: datetime) -> None:
        with _holder_file_errors():
            self._holder.remember(epoch=epoch, now=now)
        self._epoch = epoch

    def _lose(self, lease: Raw) -> NoReturn:
        """Raise Superseded: the lease that we held is another's."""
        successor = holder_of(lease.get("spec") or {}) or "it has ended since"
        self.lost = Superseded(
            f"another controller has taken over this experiment ({successor}); its Jobs keep "
            "running, and this controller starts and removes nothing more"
        )
        raise self.lost

    def _refuse_successor(self, lease: Raw | None, now: datetime) -> None:
        """Raise Superseded if another state directory may have taken over.

        It may have run the experiment since this one, or has ended it.
        """
        with _holder_file_errors():
            tenure = self._holder.tenure
        if self._is_latest(lease, tenure, now):
            return
        self.lost = Superseded(self._successor(lease, tenure, now))
        raise self.lost

    def _is_latest(self, lease: Raw | None, tenure: Tenure, now: datetime) -> bool:
        if lease is None:
            # Somebody has deleted it. An end elsewhere since is not swept before KEPT_S.
            left = parse_time(tenure.time)
            return tenure.ended or left is None or (now - left).total_seconds() <= KEPT_S
        spec: LeaseSpec = lease.get("spec") or {}
        if self._identity in (annotation(lease, HOLDER), spec.get("holderIdentity")):
            return True
        if not tenure.epoch:  # it has never run the experiment, and takes it over as it is
            conclusion = conclusion_of(lease)
            return conclusion is None or not conclusion.state.finished
        return tenure.epoch == spec.get("leaseTransitions")

    def _successor(self, lease: Raw | None, tenure: Tenure, now: datetime) -> str:
        """Return what another state directory has done, and what a person can do here."""
        name = self._labels.get(EXPERIMENT, self._name)
        forget = command("delete", name, "--local-only")
        if lease is None:
            return (
                f"the cluster has nothing of {name} any more; since {tenure.time[:10]}, when it "
                f"last ran from here, it may have ended elsewhere; to forget it here: {forget}"
            )
        if (conclusion := conclusion_of(lease)) is not None and conclusion.state.finished:
            return (
                f"{describe_end(name, conclusion, last_holder(lease))}; to forget what is "
                f"here: {forget}"
            )
        spec: LeaseSpec = lease.get("spec") or {}
        if time_left_s(spec, now) > 0:
            return busy_message(self._name, self._namespace, spec)
        return (
            f"{last_holder(lease)} has run {name} since, and the results of its trials are not "
            f"here; continue it there, or rebuild it here: {forget}, then "
            f"{command('resume', name, '--from-cluster')}"
        )

    async def _write(self, lease: Raw, spec: LeaseSpec, metadata: Raw | None = None) -> None:
        """Patch the lease; the server refuses (409) if another client has changed it."""
        about = {
            "resourceVersion": lease["metadata"]["resourceVersion"],
            **self._owned(),
            **(metadata or {}),
        }
        await self._client.patch(
            LEASES, self._namespace, self._name, {"metadata": about, "spec": spec}
        )

    def _owned(self) -> Raw:
        return {} if self._owner is None else {"ownerReferences": [owner_reference(self._owner)]}

    def _is_ours(self, spec: LeaseSpec) -> bool:
        held_by = spec.get("holderIdentity"), spec.get("leaseTransitions")
        return bool(self._epoch) and held_by == (self._identity, self._epoch)


@contextlib.contextmanager
def _holder_file_errors() -> Iterator[None]:
    """Raise RuntimeLost for an OSError of the holder's file."""
    try:
        yield
    except OSError as error:
        raise RuntimeLost(
            f"{error.filename}: {error.strerror}; it continues when that is fixed"
        ) from error


async def sweep(client: KubernetesClient, namespace: str, now: datetime) -> None:
    """Delete what the cluster keeps of long-ended experiments: the anchor, which owns the lease."""
    leases, _ = await client.list(LEASES, namespace, labels=f"{MANAGED_BY}=tuner,{ENDED}")
    for lease in leases:
        ended_at, name = parse_time(_record_of_end(lease).get("time")), lease["metadata"]["name"]
        if ended_at is None or (now - ended_at).total_seconds() <= KEPT_S:
            continue
        for owner in lease["metadata"].get("ownerReferences") or ():
            if owner["name"] == name:
                await client.delete(CONFIG_MAPS, namespace, name, uid=owner["uid"])


async def end_on_cluster(client: KubernetesClient, namespace: str, anchor: AnyObject) -> str:
    """Return how this anchor's experiment ended, for people; "" if it may go on, or if unknown."""
    try:
        lease = await client.get(LEASES, namespace, anchor["metadata"]["name"])
    except (ApiForbidden, ApiNotFound):
        return ""
    conclusion = conclusion_of(lease)
    if conclusion is None or not conclusion.state.finished:
        return ""
    return describe_end(anchor["metadata"]["labels"][EXPERIMENT], conclusion, last_holder(lease))


def describe_end(name: str, conclusion: Conclusion, elsewhere: str) -> str:
    """Return `digits has succeeded elsewhere (host:folder): all 20 trials are done; best: …`."""
    text = f"{name} has {conclusion.state.value} elsewhere ({elsewhere}): {conclusion.reason}"
    match conclusion.best:
        case {"trial": number, "values": {**values}}:
            scores = ", ".join(f"{metric} {value}" for metric, value in values.items())
            return f"{text}; best: {scores} (trial {number})"
    return text


def conclusion_of(lease: AnyObject) -> Conclusion | None:
    """Return what `conclude` recorded; None if nothing, or if a person has edited it."""
    match _record_of_end(lease):
        case {"state": str(state), "reason": str(reason), "best": dict() | None as best}:
            with contextlib.suppress(ValueError):
                return Conclusion(ExperimentState(state), reason, best)
    return None


def _record_of_end(lease: AnyObject) -> Raw:
    try:
        record = load_json(annotation(lease, ENDED) or "{}")
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


async def wait_until_free(
    client: KubernetesClient, namespace: str, name: str, *, print_line: Callable[[str], None]
) -> None:
    """Wait until the lease of that name is free or expired.

    Raises FailedPrecondition: its holder renews it.
    """
    clock, first = ServerClock(client), ""
    await clock.read()
    while True:
        try:
            lease = await client.get(LEASES, namespace, name)
        except (ApiForbidden, ApiNotFound):
            return  # not written, or not readable: a holder cannot be detected
        spec: LeaseSpec = lease.get("spec") or {}
        if (left_s := time_left_s(spec, clock.now())) <= 0:
            return
        if first and spec.get("renewTime") != first:
            raise FailedPrecondition(busy_message(name, namespace, spec))
        if not first:
            first = str(spec.get("renewTime"))
            print_line(
                f"{holder_of(spec)} ran this experiment; waiting up to {left_s:.0f} s to see "
                f"whether it still runs"
            )
        await asyncio.sleep(min(left_s, _POLL_S))


def busy_message(name: str, namespace: str, spec: LeaseSpec) -> str:
    """Return the message that another controller holds the lease.

    It is the same until another one does.
    """
    return (
        f"another controller runs this experiment: {holder_of(spec)} holds lease {name} in "
        f"namespace {namespace}; end it there with Ctrl-C, or, if that machine is gone, wait until "
        f"the lease has run out, {EXPERIMENT_LEASE_S} s after its last renewal"
    )


def last_holder(lease: AnyObject) -> str:
    """Return `host:folder` of the controller that holds the lease, or that held it last."""
    return (annotation(lease, HOLDER) or "").rpartition(" ")[0]


def holder_of(spec: LeaseSpec) -> str:
    return str(spec.get("holderIdentity") or "").rpartition(" ")[0]


def time_left_s(spec: LeaseSpec, now: datetime) -> float:
    """Return the seconds until others may take the lease."""
    renewed = parse_time(spec.get("renewTime"))
    if renewed is None or not spec.get("holderIdentity"):
        return 0.0
    return (renewed - now).total_seconds() + float(spec.get("leaseDurationSeconds") or 0)


def held(identity: str, epoch: int, duration_s: int, now: str) -> LeaseSpec:
    """Return the spec of a Lease that this holder takes now.

    duration_s: the Lease of an experiment and that of the controller last differently.
    """
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": duration_s,
        "leaseTransitions": epoch,
        "acquireTime": now,
        "renewTime": now,
    }


def format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
