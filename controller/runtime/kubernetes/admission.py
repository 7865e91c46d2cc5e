"""Admission: which attempts wait for room in their namespace,
and the creation of the objects of those admitted.

`AdmissionQueue` decides without asking the cluster, oldest attempt first. Room is what the quotas
leave after the attempts that were admitted and are not counted there yet (`resource_quota`). With a
Kueue queue, Kueue decides about room, and every attempt is admitted at once.

Experiments that share a namespace do not know each other: the quota's room goes to the one that
asks first, which varies. A namespace without a quota cannot fill the cluster with Jobs either, or
this process with what it knows of them: while MOST_WITHOUT_NODE of its attempts wait for a node, no
more are created.

`JobCreations` creates in the background: a create may take long, because of a webhook or a
throttling server, and running trials must not wait for it. The anchor is created once, then the
attempt's objects. Every call may be repeated, also after a crash at any point: names are computed,
and an existing object under a name is adopted or rejected.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from controller.background_tasks import cancelled
from controller.core.attempt import AttemptStatus, Exit
from controller.core.model import FINAL, FailureClass
from controller.kube.client import CONFIG_MAPS, Kind, KubernetesClient
from controller.kube.errors import (
    ApiConflict,
    ApiError,
    ApiForbidden,
    ApiNotFound,
    NotServed,
    rule_for,
    unavailable_webhook,
)
from controller.kube.objects import AnyObject, AttemptObject, LimitRange, Pod, Raw, ResourceQuota
from controller.runtime.kubernetes.informer import Informer
from controller.runtime.kubernetes.job_builder import build_files
from controller.runtime.kubernetes.kinds import kind_of, preset_of
from controller.runtime.kubernetes.labels import UID, attempt_of, owned, parameters_of
from controller.runtime.kubernetes.launch import part_of
from controller.runtime.kubernetes.lease import WriteGuard
from controller.runtime.kubernetes.resource_quota import (
    Demand,
    Reservations,
    demand_of,
    out_of_room,
    reason_to_wait,
    with_defaults,
)
from controller.runtime.protocol import CannotStart, Launch
from suggest.backoff import Backoff

# after a pod was refused although there seemed to be room: another client was faster
_AGAIN_S = 1.0
# After creates that were refused for another reason, of one experiment.
_BACKOFF = Backoff(first_s=0.2, longest_s=30.0, jitter=0.5)
# Attempts of a namespace. The scheduler, Kueue and an autoscaler see enough of the demand in these.
MOST_WITHOUT_NODE = 500


@dataclass(slots=True)
class _Waiting:
    launch: Launch
    objects: Sequence[Raw]
    demand: Demand
    reason: str = ""
    not_before_s: float = 0.0
    # When it was queued, or was last found to have no room.
    due_s: float = field(default_factory=time.monotonic)


class AdmissionQueue:
    """The attempts that wait for room. is_own: this queue decides about room, not Kueue.

    created_after: called when an attempt is on the cluster, with the seconds since it had room.
    """

    def __init__(
        self, *, is_own: bool, created_after: Callable[[float], None] = lambda _s: None
    ) -> None:
        self._own = is_own
        self._created_after = created_after
        self._queue: dict[str, _Waiting] = {}
        self._admitted: dict[str, _Waiting] = {}  # admitted, and not on the cluster yet
        self._reservations = Reservations(time.monotonic)
        self._refused: dict[str, tuple[float, str]] = {}
        # Refused creates in a row, and until when none is sent.
        self._failures = 0
        self._not_before_s = float("-inf")

    @property
    def waiting(self) -> Mapping[str, str]:
        return {name: launch.reason for name, launch in (self._admitted | self._queue).items()}

    def add(
        self, launch: Launch, objects: Sequence[Raw], *, limit_ranges: Sequence[LimitRange]
    ) -> None:
        """Queue an attempt with its objects. Raises ValueError: a resource is not a quantity."""
        waiting = _Waiting(launch, objects, with_defaults(demand_of(objects), limit_ranges))
        if (refused := self._refused.pop(launch.name, None)) is not None:
            waiting.not_before_s, waiting.reason = refused
        self._put(waiting)

    def drop(self, name: str) -> None:
        self._queue.pop(name, None)
        self._admitted.pop(name, None)
        self._refused.pop(name, None)
        self._reservations.forget(name)

    def next(
        self,
        quotas: Sequence[ResourceQuota],
        pods: Iterable[Pod],
        *,
        running: int,
        without_node: int,
        barred: str,
    ) -> tuple[Launch, Sequence[Raw]] | None:
        """Admit and return the oldest waiting attempt if it has room; younger ones never overtake.

        running: attempts on the cluster that have not ended. without_node: those of the namespace
        that wait for a node. barred: why none of the namespace may begin; "" if they may.
        """
        if not self._queue:
            return None
        if barred:
            self._hold(barred)
            admitted = None
        else:
            admitted = self._next(quotas, pods, running=running, without_node=without_node)
        if admitted is None:
            next(iter(self._queue.values())).due_s = time.monotonic()
        return admitted

    def _next(
        self,
        quotas: Sequence[ResourceQuota],
        pods: Iterable[Pod],
        *,
        running: int,
        without_node: int,
    ) -> tuple[Launch, Sequence[Raw]] | None:
        running += len(self._admitted)
        oldest = next(iter(self._queue.values()))
        if oldest.launch.slots is not None and running >= oldest.launch.slots:
            oldest.reason = ""  # it waits for its predecessor to end, not for room
            return None
        if time.monotonic() < max(oldest.not_before_s, self._not_before_s):
            return None
        if without_node + len(self._admitted) >= MOST_WITHOUT_NODE:
            self._hold(f"{without_node} trials of the namespace wait for a node")
            return None
        if not self._own:
            return self._admit(oldest)
        if quotas:
            self._reservations.look(pods)
        else:
            self._reservations.clear()  # without quotas nothing is counted
        if reason := reason_to_wait(oldest.demand, quotas, self._reservations):
            self._hold(reason)
            return None
        return self._admit(oldest)

    def made(self, launch: Launch) -> None:
        """Note that the object is on the cluster now; its pods are not yet."""
        self._failures = 0
        admitted = self._admitted.pop(launch.name, None)
        if admitted is not None:
            self._created_after(time.monotonic() - admitted.due_s)

    def ended(self, name: str) -> None:
        """Note that the pods have ended."""
        self._reservations.ended(name)

    def wait(self, launch: Launch, reason: str = "") -> None:
        """Queue an admitted attempt again.

        A reason means that the cluster refused it, so it is not retried at once.
        """
        waiting = self._admitted.pop(launch.name, None)
        if waiting is not None:
            self._reservations.forget(launch.name)
            if reason:
                waiting.reason, waiting.not_before_s = reason, time.monotonic() + _AGAIN_S
            self._put(waiting)

    def refused(self, name: str, message: str) -> bool:
        """Note a refused pod, and return whether the quota was why.

        After True, delete the object, and the attempt waits again.
        """
        if not self._own or (reason := out_of_room(message)) is None:
            return False
        self._refused[name] = time.monotonic() + _AGAIN_S, reason
        self._reservations.forget(name)
        return True

    def back_off(self, reason: str) -> float | None:
        """Admit none for a while after a refused create, and return for how long.

        None: it was sent before an earlier refusal was known.
        """
        now_s = time.monotonic()
        if now_s < self._not_before_s:
            return None
        pause_s = _BACKOFF.pause_s(self._failures)
        self._failures += 1
        self._not_before_s = now_s + pause_s
        self._hold(f"creating it is tried again later, because the cluster refused one: {reason}")
        return pause_s

    def close(self) -> None:
        self._queue.clear()
        self._admitted.clear()

    def _put(self, waiting: _Waiting) -> None:
        self._queue[waiting.launch.name] = waiting
        self._queue = dict(sorted(self._queue.items(), key=lambda item: _age(item[1].launch)))

    def _hold(self, reason: str) -> None:
        for waiting in self._queue.values():
            waiting.reason = reason

    def _admit(self, waiting: _Waiting) -> tuple[Launch, Sequence[Raw]]:
        waiting.reason = ""
        self._admitted[waiting.launch.name] = self._queue.pop(waiting.launch.name)
        self._reservations.launched(waiting.launch.name, waiting.demand)
        return waiting.launch, waiting.objects


def _age(launch: Launch) -> tuple[bool, int, int]:
    part = part_of(launch)
    return (False, 0, part.attempt) if part.trial is FINAL else (True, part.trial, part.attempt)


# Creating what was admitted


class JobCreations:
    """Creates admitted attempts in the background.

    on_created: called when an attempt is on the cluster. changed: called after any other outcome.

    Attributes:
        refused: Attempts that could not be created, until the runtime removes them.
        requests: The creations under way, by the names of the attempts.
    """

    def __init__(
        self,
        queue: AdmissionQueue,
        creator: JobCreator,
        informer: Informer,
        *,
        on_created: Callable[[Launch, AttemptObject], None],
        changed: Callable[[], None],
    ) -> None:
        self.refused: dict[str, AttemptStatus] = {}
        self.creator = creator
        self.requests = BackgroundRequests(failed=changed)
        self._queue = queue
        self._informer = informer
        self._on_created = on_created
        self._changed = changed

    async def admit(self, *, running: int, without_node: int, barred: str) -> None:
        """Start to create the attempts that there is room for, oldest first.

        The arguments are those of `AdmissionQueue.next`. Raises the error of an earlier creation
        while it lasts.
        """
        while admitted := self._queue.next(
            self._informer.quotas,
            self._informer.pods.objects.values(),
            running=running,
            without_node=without_node,
            barred=barred,
        ):
            launch, objects = admitted
            await self.requests.send(launch.name, self._make(launch, objects))

    async def _make(self, launch: Launch, objects: Sequence[Raw]) -> None:
        try:
            kind, created = await self.creator.make(objects, files=build_files(launch))
            await self._informer.watch(kind)
            # Record first: if that fails, the object is adopted and recorded later.
            self._on_created(launch, created)
            self._queue.made(launch)
            self._informer.put(kind, created)
        except TemporarilyRefused as error:
            self._queue.wait(launch, str(error))
            self._changed()
        except CannotStart as error:
            self._back_off(str(error))
            failed = Exit(datetime.now(UTC), failure_class=error.failure_class, reason=str(error))
            self._queue.drop(launch.name)
            self.refused[launch.name] = AttemptStatus(launch.name, None, failed)
            self._changed()
        except BaseException:
            self._queue.wait(launch)
            raise

    def _back_off(self, reason: str) -> None:
        if (pause_s := self._queue.back_off(reason)) is not None:
            asyncio.get_running_loop().call_later(pause_s, self._changed)


class TemporarilyRefused(Exception):
    """Refused for a temporary reason: a full quota, a predecessor being deleted, a webhook."""


class JobCreator:
    """Creates or adopts objects.

    anchor: the manifest of the object that owns everything of the experiment.
    owner_of: returns an existing object that does so instead; see `ClusterTarget`.
    """

    def __init__(
        self,
        client: KubernetesClient,
        namespace: str,
        anchor: Raw,
        lease: WriteGuard,
        *,
        owner_of: Callable[[], Raw] | None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._manifest = anchor
        self._lease = lease
        self._owner_of = owner_of
        self._owner: Raw | None = None
        self._owning = asyncio.Lock()
        self._files: set[str] = set()  # names of the ConfigMaps with files that exist

    async def make(
        self, objects: Sequence[Raw], *, files: Raw | None
    ) -> tuple[Kind, AttemptObject]:
        """Create or adopt an attempt's objects, and return the last one, the attempt's own.

        files: the ConfigMap that the attempt shares with others.

        Raises CannotStart, TemporarilyRefused, and ApiError where a retry may help.
        """
        owner = await self._anchor()
        await self._lease.check(owner)
        if files is not None and files["metadata"]["name"] not in self._files:
            await self._create(CONFIG_MAPS, owned(files, owner))
            self._files.add(files["metadata"]["name"])
        created: tuple[Kind, AttemptObject] | None = None
        for manifest in objects:
            kind = await self._kind_of(manifest)
            # as created
            created = kind, cast(AttemptObject, await self._create(kind, owned(manifest, owner)))
        assert created is not None
        return created

    def forget_anchor(self) -> None:
        """Look the anchor up again before the next creation.

        Objects whose owner is gone are deleted at once.
        """
        self._owner = None
        self._files.clear()

    async def _kind_of(self, manifest: Raw) -> Kind:
        try:
            return await kind_of(self._client, manifest)
        except ApiNotFound as error:
            preset = preset_of(manifest)
            preset_hint = (
                "" if preset is None else f" ({preset.api_version} is that of {preset.operator})"
            )
            raise CannotStart(
                f"the cluster has no kind {manifest['kind']} in {manifest['apiVersion']}; "
                f"install its operator{preset_hint}"
            ) from error

    async def _anchor(self) -> Raw:
        if self._owner_of is not None:
            return self._owner_of()
        async with self._owning:  # the first of several attempts creates it
            if self._owner is None:
                self._owner = await self._create(CONFIG_MAPS, self._manifest)
            return self._owner

    async def _create(self, kind: Kind, manifest: Raw) -> Raw:
        try:
            return await self._client.create(kind, self._namespace, manifest)
        except ApiError as error:
            return await self._adopted(kind, manifest, error)

    async def _adopted(self, kind: Kind, manifest: Raw, error: ApiError) -> Raw:
        """Return the existing object of that name if it is ours. Raises what the error means."""
        about = manifest["metadata"]
        if not isinstance(error, ApiConflict) or error.reason != "AlreadyExists":
            raise _meaning(kind, about["name"], self._namespace, error) from error
        existing = await self._client.get(kind, self._namespace, about["name"])
        if "deletionTimestamp" in existing["metadata"]:
            raise TemporarilyRefused(f"a {kind.kind} {about['name']} is being deleted") from error
        ours = existing["metadata"].get("labels", {}).get(UID) == about["labels"][UID]
        if ours and attempt_of(existing) == attempt_of(manifest):
            if trouble := other_parameters(manifest, existing, self._namespace):
                raise CannotStart(trouble) from error
            return existing
        raise CannotStart(
            f"namespace {self._namespace} has a {kind.kind} {about['name']} that is not of this "
            "experiment; delete it, or give the experiment another metadata.name"
        ) from error


def other_parameters(manifest: AnyObject, existing: AnyObject, namespace: str) -> str:
    """Return why an object with an attempt's name is not that attempt; "" if it is."""
    expected, has = parameters_of(manifest), parameters_of(existing)
    if expected == has:
        return ""
    return (
        f"namespace {namespace} has a {existing.get('kind', 'Job')} {existing['metadata']['name']} "
        f"with other parameters, {json.dumps(has)} and not {json.dumps(expected)}: it belongs to "
        "an earlier numbering of the trials; delete it"
    )


def _meaning(kind: Kind, name: str, namespace: str, error: ApiError) -> Exception:
    """Return what a refused create means: retry later, a person must act, or the error itself."""
    if isinstance(error, ApiForbidden) and (full := out_of_room(error.message)) is not None:
        return TemporarilyRefused(full)
    if isinstance(error, ApiForbidden) and "is being terminated" in error.message:
        return CannotStart(f"namespace {namespace} is being deleted")
    if rule_for(error):
        return error  # a missing right is not the trial's fault
    if isinstance(error, NotServed):  # it did when the experiment began
        return TemporarilyRefused(f"the cluster does not serve {kind.plural}: {error.message}")
    if isinstance(error, ApiNotFound):
        return CannotStart(f"{error.message}; see kubectl get namespaces")
    if error.status in (400, 403, 422):
        return CannotStart(f"the cluster does not accept {kind.kind} {name}: {error.message}")
    if silent := unavailable_webhook(error):
        return TemporarilyRefused(silent)
    if error.status >= 500 and "webhook" in error.message:
        return CannotStart(f"{error.message}", FailureClass.INFRASTRUCTURE)
    return error


_AT_ONCE = 16  # requests in parallel; more would slow down all clients of the server
_PATIENCE_S = 5.0


class BackgroundRequests:
    """Requests under way, by name.

    failed: called after each failure; the caller sends the request again.
    """

    def __init__(self, *, failed: Callable[[], None]) -> None:
        self._failed = failed
        self._under_way: dict[str, asyncio.Task[Exception | None]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._error: Exception | None = None

    async def send(self, name: str, work: Coroutine[Any, Any, None], *, wait: bool = False) -> None:
        """Start a request under a name that is not under way.

        wait: wait for all requests under way.

        Raises the error of a request that was waited for.
        """
        task = self._under_way[name] = asyncio.create_task(self._do(name, work))
        if wait:
            waited_for = list(self._under_way.values())
        elif self._error is not None:
            waited_for = [task]
        else:
            return
        await asyncio.wait(waited_for)
        for task in waited_for:
            if not task.cancelled() and (error := task.result()) is not None:
                raise error

    def is_under_way(self, name: str) -> bool:
        return name in self._under_way

    async def settle(self, name: str) -> None:
        """Wait until no request of that name is under way."""
        if (task := self._under_way.get(name)) is not None:
            await asyncio.wait([task])

    async def close(self) -> None:
        """Give requests under way _PATIENCE_S to finish, then cancel them."""
        if self._under_way:
            _, late = await asyncio.wait(list(self._under_way.values()), timeout=_PATIENCE_S)
            await cancelled(*late)

    async def _do(self, name: str, work: Coroutine[Any, Any, None]) -> Exception | None:
        try:
            async with self._slots:
                await work
        except Exception as error:  # whatever it is, the next sender gets it
            self._error = error
            self._failed()
            return error
        else:
            self._error = None
            return None
        finally:
            work.close()
            del self._under_way[name]
