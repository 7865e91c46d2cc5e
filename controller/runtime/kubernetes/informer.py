"""The informer cache of one experiment: its objects, their pods, the namespace's quotas, events,
and Kueue's Workloads.

It is a view of the cluster's reflectors, which all experiments of a process share; those of Jobs,
pods and quotas are started together. This module decides nothing and writes nothing.

Predicates select the changes that wake the reader: an attempt's Job and pod change a dozen times,
and three of these changes show what becomes of the attempt. No other change is lost: a reader sees
the whole state, and reads at least every half second.

Events say why pods could not be created or volumes not mounted. The API server reads every event of
the namespace from its store for each new watch of them, and there are as many events as all other
changes together. So `EventWatcher` watches them only once something has waited for long or may be
refused by a quota; its first list shows earlier events. There is one watch per reason, because a
field selector takes one value.

A TrainJob creates a JobSet, which creates Jobs, and the event that says why pods are refused is
about a Job. Not every operator copies our labels to such children, so `OwnerLookup` follows owner
references upwards: one GET per object, in the background, remembered by uid. It looks up only names
that begin like our attempts' names: operators derive a child's name from its parent's. A name alone
proves nothing: after a restart a child of the same name has another owner.

Kueue's Workloads are watched from the first attempt that waits in a queue. They carry no label of
ours and are found by the uid of the object that owns them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

from controller.background_tasks import cancelled
from controller.core.model import AttemptKey
from controller.kube.client import (
    EVENTS,
    JOBS,
    LIMIT_RANGES,
    NODES,
    PODS,
    QUOTAS,
    Kind,
    KubernetesClient,
    list_allowed,
)
from controller.kube.cluster import Cluster
from controller.kube.errors import (
    AccessDenied,
    ApiError,
    ApiForbidden,
    ApiNotFound,
    Unreachable,
)
from controller.kube.objects import (
    AttemptObject,
    EventObject,
    KubernetesObject,
    LimitRange,
    Node,
    ObjectReference,
    Pod,
    Raw,
    ResourceQuota,
    Workload,
    WorkloadStatus,
)
from controller.kube.reflector import (
    AGAIN_S,
    LazyView,
    MissingRights,
    ObjectT,
    Reflector,
    ReflectorView,
    always,
)
from controller.kube.request_limit import Sender
from controller.runtime.kubernetes.attempt_status import why_queued
from controller.runtime.kubernetes.kinds import NOT_INSTALLED, kind_of, served
from controller.runtime.kubernetes.labels import (
    JOB_UID,
    JOBSET_GROUP,
    KUBEFLOW_GROUP,
    RAY_GROUP,
    TRAINER_GROUP,
    UID,
    attempt_of,
    queue_of,
)
from controller.runtime.kubernetes.pod_status import (
    ENDED,
    NO_CAUSE,
    as_deleted,
    keep_first_deletion,
    phase_of,
)

_log = logging.getLogger(__name__)


# Events about refused pods and volumes


_LONG_S = 10.0  # for a pod to appear, or for its containers to start on a node
_FIRST_S = 1.0  # for the first pod of a run: a problem of that one affects all

_NOT_MOUNTED = ("FailedMount",)
_REFUSED = "FailedCreate"  # the reason used by the Job controller and most operators
# By API group: the reasons of the Training Operator for a pod, of JobSet for a Job,
# and of KubeRay for its pods.
_OTHERS = {
    KUBEFLOW_GROUP: ("FailedCreatePod", "MPIJobFailed"),
    JOBSET_GROUP: ("JobCreationFailed",),
    TRAINER_GROUP: ("JobCreationFailed",),
    RAY_GROUP: ("FailedToCreateHeadPod", "FailedToCreateWorkerPod"),
}
_USUAL = ("FailedCreatePod",)
_REASONS = (
    _REFUSED,
    *_USUAL,
    *dict.fromkeys(chain.from_iterable(_OTHERS.values())),
    *_NOT_MOUNTED,
)


class EventWatcher:
    """Watches events, once they are needed; `changed` is called for each new one."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        notices: MissingRights,
        owners: OwnerLookup,
        *,
        changed: Callable[[], None],
    ) -> None:
        self._owners = owners

        def watched(reason: str) -> LazyView[EventObject]:
            async def make() -> ReflectorView[EventObject]:
                events: Reflector[EventObject] = cluster.reflector(
                    EVENTS, namespace, fields=f"reason={reason}"
                )
                return events.view(namespace, changed=changed)

            return LazyView(make, notices, without="why a pod is refused, or not started")

        self._watched = {reason: watched(reason) for reason in _REASONS}
        # By attempt: the reasons of events that would explain the wait, and since when they apply.
        self._waiting: dict[str, tuple[Sequence[str], float]] = {}
        self._has_had_pods = False

    def note_waiting(self, name: str, kind: Kind, pods: Sequence[Pod], *, has_quota: bool) -> None:
        """Note that the attempt of that name has an object of that kind and does not run yet."""
        reasons: Sequence[str] = ()
        if not pods:
            reasons = _reasons_of(kind)
        elif any(pod.get("spec", {}).get("nodeName") for pod in pods):
            reasons = _NOT_MOUNTED
        now_s = time.monotonic()
        before, since_s = self._waiting.get(name, ((), now_s))
        if before != reasons:
            since_s = now_s
        self._waiting[name] = reasons, since_s
        self._has_had_pods |= bool(pods)
        long_s = _LONG_S if self._has_had_pods else _FIRST_S
        if not pods and has_quota:
            long_s = 0.0
        if now_s - since_s >= long_s:
            for reason in reasons:
                self._watched[reason].open()

    def note_running(self, name: str) -> None:
        """Note that the attempt runs or has run."""
        self._has_had_pods = True
        self.forget(name)

    def forget(self, name: str) -> None:
        """Stop explaining an attempt that is gone or not expected to run now."""
        self._waiting.pop(name, None)

    @property
    def quiet(self) -> bool:
        """Whether no watched event is known in the namespace."""
        return not any(watched.objects for watched in self._watched.values())

    def refusal(self, uid: str) -> str:
        """Return why no pod could be created for that uid or an object it owns; "" if unknown."""
        reasons = [reason for reason in self._watched if reason not in _NOT_MOUNTED]
        return self._newest(
            reasons, lambda about: about.get("uid") == uid or uid in self._owners.above(about)
        )

    def mount_trouble(self, pods: Sequence[Pod]) -> str:
        """Return why a volume of one of the pods cannot be mounted; "" if unknown."""
        uids = {pod["metadata"]["uid"] for pod in pods}
        return self._newest(_NOT_MOUNTED, lambda about: about.get("uid") in uids)

    async def close(self) -> None:
        await asyncio.gather(
            self._owners.close(), *(watched.close() for watched in self._watched.values())
        )

    def _newest(self, reasons: Sequence[str], is_meant: Callable[[ObjectReference], bool]) -> str:
        """Return the message of the newest matching event with one of these reasons, or ""."""
        events = chain.from_iterable(self._watched[reason].objects.values() for reason in reasons)
        matching = [event for event in events if is_meant(event.get("involvedObject") or {})]
        newest = max(matching, key=_weight, default=None)
        return "" if newest is None else str(newest.get("message", ""))


def _weight(event: EventObject) -> tuple[bool, str]:
    """Order events by time; an event that names no cause comes last."""
    when = event.get("lastTimestamp") or event.get("eventTime") or ""
    return not str(event.get("message", "")).startswith(NO_CAUSE), when


def _reasons_of(kind: Kind) -> Sequence[str]:
    if kind == JOBS:
        return (_REFUSED,)
    return (_REFUSED, *_OTHERS.get(kind.api_version.rpartition("/")[0], _USUAL))


NODES_S = 300.0  # between two lists of the nodes, which are large


class NodeList:
    """The cluster's nodes, listed while a pod waits for one.

    Empty until then, and without the right to list them.
    """

    def __init__(
        self, client: KubernetesClient, notices: MissingRights, *, changed: Callable[[], None]
    ) -> None:
        self.objects: Sequence[Node] = ()
        self._client = client
        self._notices = notices
        self._changed = changed
        self._listed_s = float("-inf")
        self._listing: asyncio.Task[None] | None = None

    def refresh(self) -> None:
        """List the nodes in the background, unless that was tried a short while ago."""
        if time.monotonic() - self._listed_s >= NODES_S:
            self._listed_s = time.monotonic()
            self._listing = asyncio.create_task(self._list())

    async def close(self) -> None:
        await cancelled(self._listing)

    async def _list(self) -> None:
        without = "whether a node could ever run a waiting pod"
        try:
            nodes, _ = await self._client.list(NODES, None)
        except ApiForbidden as error:
            self._notices.denied(error, without=without)
        except (ApiError, AccessDenied, Unreachable) as error:
            _log.info("not shown for now: %s: %s", without, error)
        else:
            self.objects = cast(Sequence[Node], nodes)  # of the kind that was listed
            self._changed()


DEPTH = 4  # TrainJob, JobSet, Job, and one to spare
# requests in parallel: all attempts of a large experiment may be refused in the same second
_AT_ONCE = 8


class OwnerLookup:
    """Finds the owners of objects that events are about.

    stem: the common prefix of our attempts' names. is_attempt: whether an attempt's object has that
    uid; nothing above it is looked up. on_found: called when `above` has something new.
    """

    def __init__(
        self,
        client: KubernetesClient,
        namespace: str,
        stem: str,
        notices: MissingRights,
        *,
        is_attempt: Callable[[str], bool],
        on_found: Callable[[], None],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._stem = stem
        self._notices = notices
        self._is_attempt = is_attempt
        self._found = on_found
        self._above: dict[str, frozenset[str]] = {}
        self._climbing: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def above(self, involved: ObjectReference) -> frozenset[str]:
        """Return the uids of all owners that are known yet. involved: the reference in an event."""
        uid = str(involved.get("uid", ""))
        if uid not in self._above and str(involved.get("name", "")).startswith(self._stem):
            self._above[uid] = frozenset()
            if not self._is_attempt(uid):
                task = asyncio.create_task(self._follow_owners(uid, involved))
                self._climbing.add(task)
                task.add_done_callback(self._climbing.discard)
        return self._above.get(uid, frozenset())

    async def is_owned(self, obj: KubernetesObject, uid: str, *, without: str) -> bool:
        """Return whether the object of that uid is above this one, now.

        without: what is lacking without the right to read what is between them. Raises what the
        client raises for other reasons.
        """
        owner = _nearest_owner(obj)
        for _ in range(DEPTH):
            if owner is None or owner["uid"] == uid:
                break
            try:
                owner = await self._owner_of(owner)
            except ApiForbidden as error:
                self._notices.denied(error, without=without)
                return False
        return owner is not None and owner["uid"] == uid

    async def close(self) -> None:
        await cancelled(*self._climbing)

    async def _follow_owners(self, uid: str, at: ObjectReference) -> None:
        for _ in range(DEPTH):
            try:
                owner = await self._owner_of(at)
            except ApiForbidden as error:
                without = f"why the pods of a {at.get('kind')} are refused"
                return self._notices.denied(error, without=without)
            except Exception:  # whatever the error is, the next event or the next turn asks again
                return await self._forget(uid)
            if owner is None:
                return
            self._above[uid] |= {owner["uid"]}
            self._found()
            if self._is_attempt(owner["uid"]):
                return
            at = owner

    async def _owner_of(self, at: ObjectReference) -> ObjectReference | None:
        """Return the owner; None if there is none or the object is gone.

        Raises what the client raises.
        """
        try:
            async with self._slots:
                kind = await kind_of(self._client, at)
                owned_object = await self._client.get(kind, self._namespace, at["name"])
        except ApiNotFound:
            return None
        if owned_object["metadata"]["uid"] != at["uid"]:
            return None
        return _nearest_owner(owned_object)

    async def _forget(self, uid: str) -> None:
        await asyncio.sleep(AGAIN_S)
        self._above.pop(uid, None)


def _nearest_owner(obj: KubernetesObject | Raw) -> ObjectReference | None:
    """Return the owner that controls the object, or else its first one."""
    owners = obj["metadata"].get("ownerReferences") or []
    controlling = (owner for owner in owners if owner.get("controller"))
    return next(controlling, owners[0] if owners else None)


# Kueue's Workloads


class Workloads:
    """Kueue's Workloads of the namespace, by the object that owns them.

    is_attempt: whether an attempt's object has that uid. changed: called
    when the Workload of an attempt changed.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        notices: MissingRights,
        *,
        is_attempt: Callable[[str], bool],
        changed: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._is_attempt = is_attempt
        self._changed = changed
        self._by_owner: dict[str, Workload] | None = None
        self._installed = True
        self._watched = LazyView(self._make, notices, without="why Kueue keeps a trial waiting")

    def why(self, obj: AttemptObject) -> str:
        """Return why this object, which is suspended and has a queue, waits.

        The first call starts the watch.
        """
        self._watched.open()
        if not self._installed:
            return f"{why_queued(queue_of(obj), None)}: {NOT_INSTALLED}"
        if self._by_owner is None:
            self._by_owner = {}
            for workload in self._watched.objects.values():
                self._by_owner |= dict.fromkeys(_owners_of(workload), workload)
        return why_queued(queue_of(obj), self._by_owner.get(obj["metadata"]["uid"]))

    async def close(self) -> None:
        await self._watched.close()

    async def _make(self) -> ReflectorView[Workload] | None:
        kind = await served(self._cluster.client, "Workload")
        if kind is None:
            self._installed = False
            self._changed()
            return None
        workloads: Reflector[Workload] = self._cluster.reflector(kind, self._namespace)
        return workloads.view(self._namespace, changed=self._listed, matters=self._matters)

    def _listed(self) -> None:
        self._by_owner = None
        self._changed()

    def _matters(self, before: Workload | None, after: Workload | None) -> bool:
        """Wake the reader only for our attempts: the namespace may have many others' Workloads."""
        self._by_owner = None
        is_ours = any(map(self._is_attempt, _owners_of(after or before or {})))
        return is_ours and _workload_state(before) != _workload_state(after)


# All kinds of one experiment


@dataclass(frozen=True, slots=True)
class PodOwner:
    """The object of an attempt, and the labels that its pods were given."""

    name: str
    uid: str
    labels: Mapping[str, str]

    def may_own(self, pod: Pod) -> bool:
        """Return whether the pod is named after it: operators derive a name from its owner's."""
        return pod["metadata"]["name"].startswith(f"{self.name}-")


class Informer:
    """The view of the cluster: `open` it before reading.

    `changed` is called after every change that matters.

    stem: the common prefix of the names of all objects of the experiment.
    """

    def __init__(
        self, cluster: Cluster, namespace: str, uid: str, stem: str, *, changed: Callable[[], None]
    ) -> None:
        client = cluster.client.on_behalf_of(Sender(namespace, uid))
        self._client = client
        self._cluster = cluster
        self._namespace = namespace
        self._uid = uid
        self._changed = changed
        self.pods: ReflectorView[Pod] = self._of(PODS, pod_matters, keep_first_deletion)
        self.pods.keeps_deleted = True
        quotas: Reflector[ResourceQuota] = cluster.reflector(QUOTAS, namespace)
        self._quotas = quotas.view(namespace, changed=changed)
        self._quotas_shown = False
        notices = MissingRights()
        self._owners = OwnerLookup(
            client, namespace, stem, notices, is_attempt=self._has, on_found=changed
        )
        self.events = EventWatcher(cluster, namespace, notices, self._owners, changed=changed)
        self.workloads = Workloads(
            cluster, namespace, notices, is_attempt=self._has, changed=changed
        )
        self.nodes = NodeList(client, notices, changed=changed)
        self._objects: dict[Kind, ReflectorView[AttemptObject]] = {
            JOBS: self._of(JOBS, job_matters)
        }
        self._adding = asyncio.Lock()
        # Listed once: they hardly ever change, and only defaults are read from them.
        self.limit_ranges: list[LimitRange] = []

    def _of(
        self,
        kind: Kind,
        matters: Callable[[ObjectT | None, ObjectT | None], bool] = always,
        keep: Callable[[ObjectT, ObjectT], None] | None = None,
    ) -> ReflectorView[ObjectT]:
        """Return the view of the experiment's own objects of a kind."""
        reflector: Reflector[ObjectT] = self._cluster.reflector(
            kind, self._namespace, labels=self._cluster.labels, grouped_by=UID, keep=keep
        )
        return reflector.view(self._namespace, self._uid, changed=self._changed, matters=matters)

    async def open(self) -> None:
        """Return after every kind was listed once. Raises what the client raises."""
        needed = [
            self.pods.reflector.start(),
            *(view.reflector.start() for view in self._objects.values()),
        ]
        # Trials also run without the right to see quotas;
        # a refusal then shows when a pod is created.
        limits = list_allowed(self._client, LIMIT_RANGES, self._namespace)
        # Wait for all, whatever one raises: what is still starting could not be closed.
        answers = await asyncio.gather(
            limits, *needed, self._start_quotas(), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        assert not isinstance(answers[0], BaseException)
        self.limit_ranges = answers[0] or []

    async def _start_quotas(self) -> None:
        with contextlib.suppress(ApiForbidden):
            await self._quotas.reflector.start()
            self._quotas_shown = True

    async def watch(self, kind: Kind) -> None:
        """Show the objects of one more kind from now on."""
        async with self._adding:
            if kind not in self._objects:
                view: ReflectorView[AttemptObject] = self._of(kind)
                await view.reflector.start()
                self._objects[kind] = view

    async def close(self) -> None:
        """Stop looking. The reflectors go on for other experiments."""
        await asyncio.gather(self.events.close(), self.workloads.close(), self.nodes.close())
        self.pods.close()
        self._quotas.close()
        for view in self._objects.values():
            view.close()

    @property
    def trouble(self) -> Exception | None:
        """Return why the cluster cannot be watched at present; None if it can."""
        errors = [view.reflector.error for view in self._objects.values()]
        return next(filter(None, [*errors, self.pods.reflector.error]), None)

    @property
    def quotas(self) -> list[ResourceQuota]:
        """Return no quotas without the right to see them: a wait on old ones would never end."""
        is_readable = self._quotas.reflector.error is None
        return list(self._quotas.objects.values()) if is_readable else []

    @property
    def has_quota(self) -> bool:
        """Whether the namespace has a quota, or this is unknown."""
        is_known = self._quotas_shown and self._quotas.reflector.error is None
        return not is_known or bool(self._quotas.objects)

    def objects(self) -> Iterator[tuple[Kind, str, AttemptObject]]:
        for kind, view in self._objects.items():
            for name, obj in view.objects.items():
                yield kind, name, obj

    def find(self, name: str) -> tuple[Kind, AttemptObject] | None:
        for kind, view in self._objects.items():
            obj = view.objects.get(name)
            if obj is not None:
                return kind, obj
        return None

    def _has(self, uid: str) -> bool:
        """Whether an attempt's object of that uid is shown."""
        return any(obj["metadata"]["uid"] == uid for _, _, obj in self.objects())

    def put(self, kind: Kind, created: AttemptObject) -> None:
        self._objects[kind].reflector.put(created)

    def drop(self, kind: Kind, name: str) -> None:
        self._objects[kind].drop(name)

    async def reveal(self, kind: Kind, name: str, *, uid: str, labels: Mapping[str, str]) -> None:
        """Show an attempt's object, if it exists, although somebody has changed its labels."""
        if self.find(name) is not None:
            return
        listed, _ = await self._client.list(kind, self._namespace, fields=f"metadata.name={name}")
        found = cast(list[AttemptObject], listed)  # of the kind that was listed
        meant = [obj for obj in found if obj["metadata"]["uid"] == uid]
        self._objects[kind].reflector.reveal(meant, labels)

    async def read_pods(self, job_uid: str) -> None:
        """Show the pods of a Job now: their watch may be behind that of the Job, or stalled."""
        for pod in await self._list_pods(labels=f"{JOB_UID}={job_uid}"):
            self.pods.reflector.put(pod)

    async def reveal_pods(self, owners: Sequence[PodOwner]) -> None:
        """Show the pods of attempts' objects, although somebody has changed their labels.

        They are known by their names and their owners, some of which may be in between.
        """
        listed = await self._list_pods() if owners else []
        for owner in owners:
            pods = [pod for pod in listed if owner.may_own(pod)]
            without = f"the pods of {owner.name}, whose labels somebody has changed"
            owned = [
                pod for pod in pods if await self._owners.is_owned(pod, owner.uid, without=without)
            ]
            self.pods.reflector.reveal(owned, owner.labels)

    async def _list_pods(self, **selection: str) -> list[Pod]:
        listed, _ = await self._client.list(PODS, self._namespace, **selection)
        return cast(list[Pod], listed)

    def pods_by_attempt(self) -> dict[AttemptKey, list[Pod]]:
        """Return the pods, deleted ones as last seen: this often shows how a container ended."""
        by_attempt: dict[AttemptKey, list[Pod]] = {}
        existing = self.pods.objects
        # A deleted pod does not count once another pod has its name.
        gone = self.pods.deleted.items()
        deleted = [as_deleted(pod) for name, pod in gone if name not in existing]
        # If pods were created in the same second, the last in the list counts:
        # existing ones, not deleted ones.
        for pod in (*deleted, *existing.values()):
            if (attempt := attempt_of(pod)) is not None:
                by_attempt.setdefault(attempt, []).append(pod)
        return by_attempt

    def pods_of(self, attempt: AttemptKey) -> list[Pod]:
        """Return the existing pods of an attempt that are not being deleted."""
        pods = (pod for pod in self.pods.objects.values() if attempt_of(pod) == attempt)
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def forget_pods(self, attempt: AttemptKey) -> None:
        for name, pod in list(self.pods.deleted.items()):
            if attempt_of(pod) == attempt:
                del self.pods.deleted[name]


def job_matters(before: AttemptObject | None, after: AttemptObject | None) -> bool:
    """Ignore the counts of pods in a Job's status: the pods themselves are watched."""
    return after is None or _job_state(before or {}) != _job_state(after)


def pod_matters(before: Pod | None, after: Pod | None) -> bool:
    """Ignore that a pod was created and scheduled, and how it is cleaned up after its end."""
    if after is None:
        return before is None or phase_of(before) not in ENDED
    return _pod_state(before or {}) != _pod_state(after)


def _job_state(job: AttemptObject) -> tuple[object, ...]:
    is_suspended = job.get("spec", {}).get("suspend") or False
    is_going = "deletionTimestamp" in job.get("metadata", {})
    return is_suspended, job.get("status", {}).get("conditions"), is_going


def _pod_state(pod: Pod) -> tuple[object, ...]:
    status, phase = pod.get("status", {}), phase_of(pod)
    containers = status.get("containerStatuses")
    if phase in ENDED:
        return phase, containers
    troubles = [
        condition
        for condition in status.get("conditions") or ()
        if condition.get("type") == "DisruptionTarget"
        or (condition.get("type"), condition.get("status")) == ("PodScheduled", "False")
    ]
    going = pod.get("metadata", {}).get("deletionTimestamp")
    begins, inits = phase in ("", "Pending"), status.get("initContainerStatuses")
    return begins or phase, status.get("reason"), containers, inits, troubles, going


def _owners_of(obj: KubernetesObject) -> Iterator[str]:
    for owner in obj.get("metadata", {}).get("ownerReferences") or ():
        yield str(owner.get("uid", ""))


def _workload_state(workload: Workload | None) -> tuple[object, ...]:
    status: WorkloadStatus = (workload or {}).get("status") or {}
    active = (workload or {}).get("spec", {}).get("active")
    return active, status.get("conditions"), status.get("admissionChecks")
