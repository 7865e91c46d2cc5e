"""The fencing lease: one controller per experiment. A Lease beside the anchor names its holder; every write checks it.

The lease is renewed in the background, so a write costs only a look at the clock. A controller whose lease has expired
(it was frozen, or disconnected) asks the server before it writes again; if another one has taken over meanwhile, it
never writes again. `leaseTransitions` is the epoch, which grows with each holder. Times on the lease are the server's.

A controller of the same state directory takes over immediately: a lock in it shows that its predecessor is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from controller.runtime.kubernetes.client import LEASES, KubernetesClient
from controller.runtime.kubernetes.errors import AccessDenied, ApiError
from controller.runtime.kubernetes.labels import owner_reference
from controller.runtime.kubernetes.objects import LeaseSpec, Raw
from controller.runtime.kubernetes.pod_status import parse_time
from controller.runtime.kubernetes.records import write_in_place
from controller.runtime.kubernetes.server_clock import ServerClock
from controller.runtime.protocol import RuntimeLost
from suggest.errors import FailedPrecondition

DURATION_S = 30  # how long another controller waits for a silent holder
_RENEW_S = 10.0
_MARGIN_S = 5.0  # the holder stops writing this long before others may take over
_CLOSE_S = 2.0
_LOOK_S = 1.0
_TRIES = 5
_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409
_log = logging.getLogger(__name__)


class Superseded(FailedPrecondition):
    """Another controller has taken the experiment over."""


class FencingLease:
    """`check` before each write; `close` lets the next controller in at once.

    holder: returns our identity (`identity`); None: there is no lease. lost: why nothing may be written any more;
    `changed` is called when this is detected.
    """

    def __init__(self, client: KubernetesClient, namespace: str, anchor: Raw, holder: Callable[[], str] | None, *,
                 clock: ServerClock, changed: Callable[[], None]) -> None:  # fmt: skip
        self.lost: Superseded | None = None
        self._client = client
        self._namespace = namespace
        self._name = str(anchor["metadata"]["name"])
        self._labels = dict(anchor["metadata"].get("labels", {}))
        self._who = holder
        self._holder = ""
        self._changed = changed
        self._owner: Raw | None = None
        self._epoch = 0
        self._valid_until_s = float("-inf")
        self._clock = clock
        self._off = holder is None
        self._asking = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    async def check(self, owner: Raw | None = None) -> None:
        """Return if we may write. owner: the anchor as the server returned it; the lease is deleted with it.

        Raises Superseded, RuntimeLost (another controller holds the lease), and what the client raises.
        """
        self._owner = owner or self._owner
        if self.lost is not None:
            raise self.lost
        if self._off or time.monotonic() < self._valid_until_s:
            return
        async with self._asking:
            if time.monotonic() >= self._valid_until_s:
                await self._ask()
        if self._renewing is None and not self._off:
            self._renewing = asyncio.create_task(self._renew())

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        if self._epoch and self.lost is None and not self._off:
            with contextlib.suppress(ApiError, AccessDenied, RuntimeLost, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    lease = await self._client.get(LEASES, self._namespace, self._name)
                    if self._is_ours(lease["spec"]):
                        await self._write(lease, {"holderIdentity": None})
        self._epoch, self._valid_until_s = 0, float("-inf")

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
        if not self._holder and self._who is not None:
            try:
                self._holder = self._who()
            except OSError as error:
                raise RuntimeLost(f"{error.filename}: {error.strerror}; it continues when that is fixed") from error
        for _ in range(_TRIES):
            began_s = time.monotonic()
            try:
                await self._clock.read()
                await self._take(self._clock.now())
            except ApiError as error:
                if error.status == _CONFLICT:  # another controller was faster: read it again
                    continue
                if error.status not in (_FORBIDDEN, _NOT_FOUND):
                    raise
                self._off = True
                _log.warning("a second controller of this experiment would not be detected: %s", error)
                return
            self._valid_until_s = began_s + DURATION_S - _MARGIN_S
            return
        raise RuntimeLost(f"others keep changing lease {self._name} in namespace {self._namespace}")

    async def _take(self, now: datetime) -> None:
        try:
            lease = await self._client.get(LEASES, self._namespace, self._name)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            await self._make(now)
            return
        spec: LeaseSpec = lease.get("spec") or {}
        if self._is_ours(spec):
            await self._write(lease, {"renewTime": _written(now)})
            return
        if self._epoch:
            self.lost = Superseded(
                f"another controller has taken over this experiment ({holder_of(spec) or 'it has ended since'}); its "
                "Jobs keep running, and this controller starts and removes nothing more"
            )
            raise self.lost
        if spec.get("holderIdentity") not in (None, "", self._holder) and (left_s := time_left_s(spec, now)) > 0:
            raise RuntimeLost(held(self._name, self._namespace, spec, left_s))
        epoch = int(spec.get("leaseTransitions") or 0) + 1
        await self._write(lease, self._as_holder(now, epoch))
        self._epoch = epoch

    async def _make(self, now: datetime) -> None:
        about = {"name": self._name, "namespace": self._namespace, "labels": self._labels, **self._owned()}
        body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": about}
        epoch = self._epoch + 1  # also if it was deleted while we held it
        await self._client.create(LEASES, self._namespace, body | {"spec": self._as_holder(now, epoch)})
        self._epoch = epoch

    async def _write(self, lease: Raw, spec: LeaseSpec) -> None:
        """Patch the lease; the server refuses (409) if another client has changed it."""
        about = {"resourceVersion": lease["metadata"]["resourceVersion"], **self._owned()}
        await self._client.patch(LEASES, self._namespace, self._name, {"metadata": about, "spec": spec})

    def _owned(self) -> Raw:
        return {} if self._owner is None else {"ownerReferences": [owner_reference(self._owner)]}

    def _as_holder(self, now: datetime, epoch: int) -> LeaseSpec:
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": DURATION_S,
            "leaseTransitions": epoch,
            "acquireTime": _written(now),
            "renewTime": _written(now),
        }

    def _is_ours(self, spec: LeaseSpec) -> bool:
        return bool(self._epoch) and (spec.get("holderIdentity"), spec.get("leaseTransitions")) == (
            self._holder,
            self._epoch,
        )


async def wait_until_free(
    client: KubernetesClient, namespace: str, name: str, *, print_line: Callable[[str], None]
) -> None:
    """Wait until the lease of that name is free or expired. Raises FailedPrecondition: its holder renews it."""
    clock, first = ServerClock(client), ""
    await clock.read()
    while True:
        try:
            lease = await client.get(LEASES, namespace, name)
        except ApiError as error:
            if error.status in (_FORBIDDEN, _NOT_FOUND):
                return  # written by an earlier release, or not readable: a holder cannot be detected
            raise
        spec: LeaseSpec = lease.get("spec") or {}
        if (left_s := time_left_s(spec, clock.now())) <= 0:
            return
        if first and spec.get("renewTime") != first:
            raise FailedPrecondition(held(name, namespace, spec, DURATION_S))
        if not first:
            first = str(spec.get("renewTime"))
            print_line(
                f"{holder_of(spec)} ran this experiment; waiting up to {left_s:.0f} s to see whether it still runs"
            )
        await asyncio.sleep(min(left_s, _LOOK_S))


def held(name: str, namespace: str, spec: LeaseSpec, left_s: float) -> str:
    """Return the message that another controller holds the lease."""
    return (
        f"another controller runs this experiment: {holder_of(spec)} holds lease {name} in namespace {namespace}; end "
        f"it there with Ctrl-C, or, if that machine is gone, wait {left_s:.0f} s until the lease has run out"
    )


def holder_of(spec: LeaseSpec) -> str:
    return str(spec.get("holderIdentity") or "").rpartition(" ")[0]


def time_left_s(spec: LeaseSpec, now: datetime) -> float:
    """Return the seconds until others may take the lease."""
    renewed = parse_time(spec.get("renewTime"))
    if renewed is None or not spec.get("holderIdentity"):
        return 0.0
    return (renewed - now).total_seconds() + float(spec.get("leaseDurationSeconds") or 0)


def identity(folder: Path) -> str:
    """Return the identity of all controllers that use this folder of an experiment: `host:folder` and a random token.

    A copy of the folder on another host has another identity. Raises OSError.
    """
    file = folder / "holder"
    try:
        identifier = file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        identifier = ""
    if not identifier:
        identifier = secrets.token_hex(8)
        folder.mkdir(parents=True, exist_ok=True)
        write_in_place(file, identifier)
    return f"{socket.gethostname()}:{folder} {identifier}"


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
