"""Which controller of an installation writes: a Lease that one of them holds.

A standby does not compare clocks: it takes the Lease over once it has seen the same record for
CONTROLLER_LEASE_S. It looks every LOOK_S, and when that time is over. The holder renews the Lease
every RENEW_S, and stops writing MARGIN_S before another one could take over; `check`, before every
write, is a look at the clock. `leaseTransitions` is the epoch. Why the times are what they are: ADR
31.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import Connection

from controller.background_tasks import cancelled
from controller.core.attempt import RuntimeLost
from controller.experiment_store import Fence
from controller.kube.client import LEASES, KubernetesClient
from controller.kube.errors import (
    LEASE_SETTLE_S,
    AccessDenied,
    ApiConflict,
    ApiError,
    ApiNotFound,
    ErrorClassifier,
    Unreachable,
)
from controller.kube.objects import LeaseSpec, Raw
from controller.runtime.kubernetes.lease import Superseded, format_time, held
from controller.runtime.protocol import Conclusion

NAME = "tuner-controller"
# The margin is for so long the kernel sends a request again that is not acknowledged
# (`controller.kube.transport`): none arrives after the takeover.
CONTROLLER_LEASE_S, RENEW_S, MARGIN_S = 8, 2.0, 3.0
# How late a standby may see a renewal, and how soon the holder repeats one that has failed.
LOOK_S = 1.0
_CALL_S = 3.0  # so that a renewal that gets no answer can be repeated in time
_CLOSE_S = 2.0
_log = logging.getLogger(__name__)


class Leadership:
    """Implements `controller.runtime.kubernetes.lease.WriteGuard` for all experiments of a process.

    identity: of this process, another one after each start. on_lost: called when another controller
    has taken over; nothing may be written any more.
    """

    def __init__(
        self,
        client: KubernetesClient,
        namespace: str,
        identity: str,
        *,
        on_lost: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lost: Superseded | None = None
        self.trouble = ""  # why the lease could not be read or renewed the last time
        self.epoch = 0
        self._raised_to = 0  # what `exceed` has asked for: the answer may be lost
        self._client = client
        self._namespace = namespace
        self._identity = identity
        self._on_lost = on_lost
        self._clock = clock
        self._valid_until_s = float("-inf")
        # A record, and when it will have been the same for as long as a lease lasts.
        self._seen: object = None
        self._silent_at_s = float("-inf")
        self._version = ""  # of the Lease, as this process has written it last
        self._renewing: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()  # the lease
        self._errors = ErrorClassifier(settle_s=LEASE_SETTLE_S)

    @property
    def holds(self) -> bool:
        return self.lost is None and self._clock() < self._valid_until_s

    async def acquire(self) -> None:
        """Return once this process holds the lease, and renew it from then on.

        Raises AccessDenied if the right to the lease is missing for LEASE_SETTLE_S, and ApiError.
        """
        # An epoch of an earlier leadership was given up.
        self.epoch, self._raised_to, self._version = 0, 0, ""
        while True:
            try:
                if await self._try():
                    break
            except (Unreachable, ApiError, AccessDenied) as error:
                self._require_passing(error)
                self._tell(f"the lease {NAME} cannot be read: {error}")
            await asyncio.sleep(min(LOOK_S, RENEW_S, self._silent_in_s))
        self._renewing = asyncio.create_task(self._renew())

    @property
    def fence(self) -> Fence:
        """Return what lets a store refuse the writes of earlier holders."""
        return Fence(self.epoch, self._identity)

    def check_store(self, connection: Connection) -> None:
        """Raise NotOwner if a later holder has the store. Implements `suggest`'s `Claim`."""
        self.fence.check(connection)

    async def exceed(self, epoch: int) -> None:
        """Raise the epoch above that of a store. It is lower if somebody has deleted the lease.

        Raises Superseded if another controller holds the lease, and as `acquire`.
        """
        while self.epoch <= epoch:
            try:
                async with asyncio.timeout(_CALL_S), self._changing:
                    await self._raise_to(epoch + 1)
            # Somebody has changed or deleted it meanwhile; the next renewal creates it again.
            except (ApiConflict, ApiNotFound):
                await asyncio.sleep(min(LOOK_S, RENEW_S))
            except (Unreachable, ApiError, AccessDenied, TimeoutError) as error:
                self._require_passing(error)
                await asyncio.sleep(min(LOOK_S, RENEW_S))

    async def _raise_to(self, epoch: int) -> None:
        if self.lost is not None:
            raise self.lost
        lease = await self._client.get(LEASES, self._namespace, NAME)
        if not self._is_ours(lease.get("spec") or {}):
            self._lose()
            await self.check()
        self._raised_to = epoch
        await self._write(_version_of(lease), {"leaseTransitions": epoch})
        self.epoch = epoch

    async def verify(self) -> None:
        await self.check()

    async def check(self, owner: Raw | None = None) -> None:
        self.require()

    def require(self) -> None:
        """Raise if this process may not write now."""
        if self.lost is not None:
            raise self.lost
        if not self.holds:
            raise RuntimeLost(f"the lease {NAME} could not be renewed in time")

    async def conclude(self, conclusion: Conclusion) -> None:
        """Do nothing: the status of the resource says how its experiment has ended."""

    async def close(self) -> None:
        """Do nothing: the lease is that of the process, which calls `release`."""

    async def release(self) -> None:
        """Give the lease up, so that another controller need not wait for its end.

        Afterwards `acquire` may be called again.
        """
        await cancelled(self._renewing)
        if not self.holds:
            return
        self._valid_until_s = float("-inf")
        with contextlib.suppress(ApiError, AccessDenied, Unreachable, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                lease = await self._client.get(LEASES, self._namespace, NAME)
                if self._is_ours(lease.get("spec") or {}):
                    await self._write(_version_of(lease), {"holderIdentity": None})

    def _require_passing(self, error: Exception) -> None:
        """Raise the error unless the same request may succeed in a moment, and nobody need act."""
        if isinstance(error, ApiError) and error.refusal is None:
            if not error.is_of_server:
                raise error
        elif isinstance(error, ApiError | AccessDenied):
            found = self._errors.classify(error, patient=True)
            if isinstance(found, AccessDenied):
                raise found from error

    async def _renew(self) -> None:
        while self.lost is None:
            await asyncio.sleep(min(LOOK_S, RENEW_S) if self.trouble else RENEW_S)
            try:
                if not await self._try():
                    self._lose()
            except Exception as error:  # a leader that no longer renews would hang forever
                self._tell(f"the lease {NAME} could not be renewed: {error}")

    def _tell(self, trouble: str) -> None:
        """Log why the lease could not be read or renewed, once: it is tried each second."""
        if trouble != self.trouble:
            _log.warning("%s", trouble)
        self.trouble = trouble

    def _lose(self) -> None:
        self.lost = Superseded(
            f"this controller has lost the lease {NAME}: another controller holds it now"
        )
        self._on_lost()

    async def _try(self) -> bool:
        """Acquire or renew the lease, and return whether this process holds it."""
        began_s = self._clock()
        try:
            async with asyncio.timeout(_CALL_S), self._changing:
                taken = await self._take()
        except TimeoutError as error:
            raise Unreachable(f"the API server has not answered for {_CALL_S:g} s") from error
        except ApiConflict:
            # To a standby, another one was faster. To the holder, it was perhaps an own renewal
            # that was given up: the next look tells.
            if self.epoch:
                raise
            taken = False
        if self.trouble:
            _log.info("the lease %s can be read and renewed again", NAME)
        self.trouble = ""
        if taken:
            self._valid_until_s = began_s + CONTROLLER_LEASE_S - MARGIN_S
        return taken

    async def _take(self) -> bool:
        now = format_time(datetime.now(UTC))
        if self.epoch and await self._renewed(now):
            return True
        try:
            lease = await self._client.get(LEASES, self._namespace, NAME)
        except ApiNotFound:
            epoch = self.epoch + 1
            about = {"name": NAME, "namespace": self._namespace}
            body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": about}
            holding = held(self._identity, epoch, CONTROLLER_LEASE_S, now)
            await self._client.create(LEASES, self._namespace, {**body, "spec": holding})
            # Not before: a standby that another one outran remains a standby.
            self.epoch = epoch
            return True
        spec: LeaseSpec = lease.get("spec") or {}
        if self._is_ours(spec):
            await self._write(_version_of(lease), {"renewTime": now})
            return True
        if self.epoch:
            return False
        # Its own, if the answer to an earlier request was lost.
        holder = spec.get("holderIdentity") or self._identity
        if holder != self._identity and not self._is_silent(spec):
            return False
        epoch = int(spec.get("leaseTransitions") or 0) + 1
        await self._write(_version_of(lease), held(self._identity, epoch, CONTROLLER_LEASE_S, now))
        self.epoch = epoch
        return True

    async def _renewed(self, now: str) -> bool:
        """Renew the lease without reading it; False: somebody else has changed it meanwhile."""
        if not self._version:
            return False
        try:
            await self._write(self._version, {"renewTime": now})
        except (ApiConflict, ApiNotFound):
            self._version = ""
            return False
        return True

    def _is_silent(self, spec: LeaseSpec) -> bool:
        """Return whether the record has been the same for as long as a lease lasts."""
        record = tuple(sorted((key, str(value)) for key, value in spec.items()))
        if record != self._seen:
            lasts_s = float(spec.get("leaseDurationSeconds") or CONTROLLER_LEASE_S)
            self._seen, self._silent_at_s = record, self._clock() + lasts_s
        return self._clock() >= self._silent_at_s

    @property
    def _silent_in_s(self) -> float:
        """Return when to look whether the record is still the same; RENEW_S if it is over."""
        left_s = self._silent_at_s - self._clock()
        return left_s if left_s > 0 else RENEW_S

    def _is_ours(self, spec: LeaseSpec) -> bool:
        is_known = spec.get("leaseTransitions") in (self.epoch, self._raised_to)
        return bool(self.epoch) and spec.get("holderIdentity") == self._identity and is_known

    async def _write(self, version: str, spec: LeaseSpec) -> None:
        """Patch this version of the lease; the server refuses (409) if there is a later one."""
        about = {"resourceVersion": version}
        patched = await self._client.patch(
            LEASES, self._namespace, NAME, {"metadata": about, "spec": spec}
        )
        self._version = _version_of(patched)


def _version_of(lease: Raw) -> str:
    return str(lease["metadata"]["resourceVersion"])
