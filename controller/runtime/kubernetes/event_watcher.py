"""The event watcher: what events say of pods that could not be created and volumes that could not be mounted.

The API server reads every event of the namespace from its store for each new watch of them, and events are as many as
all other changes together. So they are watched only once something has waited for long, or may be refused by a quota;
the first list shows what was said before. One watch for each reason: a field selector takes one value.

A TrainJob makes a JobSet, that makes Jobs, and the event that says why pods are refused is about a Job. Not every
operator copies our labels to such children, so owner references are followed upwards: one GET for each object, in the
background, remembered by uid. Only names that begin as our attempts' do are looked up: operators derive a child's name
from its parent's. A name alone proves nothing: a child of an earlier life has the same one, and another owner.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from controller.runtime.kubernetes.client import EVENTS, JOBS, Kind, KubernetesClient
from controller.runtime.kubernetes.errors import ApiError
from controller.runtime.kubernetes.kinds import kind_of
from controller.runtime.kubernetes.labels import JOBSET_GROUP, KUBEFLOW_GROUP, RAY_GROUP, TRAINER_GROUP
from controller.runtime.kubernetes.objects import Raw
from controller.runtime.kubernetes.pod_status import NO_CAUSE
from controller.runtime.kubernetes.reflector import LazyReflector, MissingRights, Reflector

_LONG_S = 10.0  # to wait for a pod, or for its containers on a node
_FIRST_S = 1.0  # to wait for the first pod of all: what is wrong with that one is wrong with all

_NOT_MOUNTED = ("FailedMount",)
_REFUSED = "FailedCreate"  # the Job controller's word, and that of most others
# Of other kinds, by the group: the Training Operator's words for a pod, JobSet's for a Job, KubeRay's for its pods.
_OTHERS = {
    KUBEFLOW_GROUP: ("FailedCreatePod", "MPIJobFailed"),
    JOBSET_GROUP: ("JobCreationFailed",),
    TRAINER_GROUP: ("JobCreationFailed",),
    RAY_GROUP: ("FailedToCreateHeadPod", "FailedToCreateWorkerPod"),
}
_USUAL = ("FailedCreatePod",)
_REASONS = (_REFUSED, *_USUAL, *dict.fromkeys(each for group in _OTHERS.values() for each in group), *_NOT_MOUNTED)


class EventWatcher:
    """`changed` is called whenever there is a new one."""

    def __init__(
        self,
        client: KubernetesClient,
        namespace: str,
        notices: MissingRights,
        owners: OwnerLookup,
        *,
        changed: Callable[[], None],
    ) -> None:
        self._owners = owners

        def watched(reason: str) -> LazyReflector:
            async def make() -> Reflector:
                return Reflector(client, EVENTS, namespace, fields=f"reason={reason}", changed=changed)

            return LazyReflector(make, notices, without="why a pod is refused, or not started")

        self._watched = {reason: watched(reason) for reason in _REASONS}
        # By attempt: the reasons of events that would explain it, and since when it is so.
        self._waiting: dict[str, tuple[Sequence[str], float]] = {}
        self._has_had_pods = False

    def note_waiting(self, name: str, kind: Kind, pods: Sequence[Raw], *, has_quota: bool) -> None:
        """The attempt of that name has an object of that kind, and does not run yet."""
        placed = any(pod.get("spec", {}).get("nodeName") for pod in pods)
        reasons = _NOT_MOUNTED if placed else () if pods else _reasons_of(kind)
        now_s = time.monotonic()
        before, since_s = self._waiting.get(name, ((), now_s))
        if before != reasons:
            since_s = now_s
        self._waiting[name] = reasons, since_s
        self._has_had_pods |= bool(pods)
        long_s = 0.0 if not pods and has_quota else _LONG_S if self._has_had_pods else _FIRST_S
        if now_s - since_s >= long_s:
            for reason in reasons:
                self._watched[reason].open()

    def note_running(self, name: str) -> None:
        """Or has run."""
        self._has_had_pods = True
        self.forget(name)

    def forget(self, name: str) -> None:
        """It is gone, or is not expected to run now."""
        self._waiting.pop(name, None)

    @property
    def quiet(self) -> bool:
        """Nobody in the namespace complains, as far as is known."""
        return not any(watched.objects for watched in self._watched.values())

    def refusal(self, uid: str) -> str:
        """Why a pod could not be created for the object of that uid, or for one that it owns; "" if none was."""
        reasons = [reason for reason in self._watched if reason not in _NOT_MOUNTED]
        return self._newest(reasons, lambda about: about.get("uid") == uid or uid in self._owners.above(about))

    def mount_trouble(self, pods: Sequence[Raw]) -> str:
        """Why a volume of one of the pods cannot be mounted; "" if nothing is known."""
        uids = {pod["metadata"]["uid"] for pod in pods}
        return self._newest(_NOT_MOUNTED, lambda about: about.get("uid") in uids)

    def forget_the_gone(self) -> None:
        for watched in self._watched.values():
            watched.forget_the_gone()

    async def close(self) -> None:
        await asyncio.gather(self._owners.close(), *(watched.close() for watched in self._watched.values()))

    def _newest(self, reasons: Sequence[str], is_meant: Callable[[Raw], bool]) -> str:
        """What the newest event of these reasons says whose involvedObject is meant; "" if there is none."""
        events = [
            event
            for reason in reasons
            for event in self._watched[reason].objects.values()
            if is_meant(event.get("involvedObject") or {})
        ]
        newest = max(events, key=_weight, default=None)
        return "" if newest is None else str(newest.get("message", ""))


def _weight(event: Raw) -> tuple[bool, str]:
    """By time, but one that names no cause only where there is no other."""
    when = event.get("lastTimestamp") or event.get("eventTime") or ""
    return not str(event.get("message", "")).startswith(NO_CAUSE), when


def _reasons_of(kind: Kind) -> Sequence[str]:
    if kind == JOBS:
        return (_REFUSED,)
    return (_REFUSED, *_OTHERS.get(kind.api_version.rpartition("/")[0], _USUAL))


DEPTH = 4  # TrainJob, JobSet, Job, and one to spare
_AT_ONCE = 8  # requests: every attempt of a large experiment may be refused in the same second
_AGAIN_S = 5.0


class OwnerLookup:
    """stem: how the names of our attempts begin. is_attempt: whether an attempt's object has that uid; nothing above it
    is looked up. found: called when `above` has something new."""

    def __init__(self, client: KubernetesClient, namespace: str, stem: str, notices: MissingRights, *,
                 is_attempt: Callable[[str], bool], found: Callable[[], None]) -> None:  # fmt: skip
        self._client = client
        self._namespace = namespace
        self._stem = stem
        self._notices = notices
        self._is_attempt = is_attempt
        self._found = found
        self._above: dict[str, frozenset[str]] = {}
        self._climbing: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def above(self, involved: Raw) -> frozenset[str]:
        """The uids of its owners and theirs, as far as they are known yet. involved: as an event refers to it."""
        uid = str(involved.get("uid", ""))
        if uid not in self._above and str(involved.get("name", "")).startswith(self._stem):
            self._above[uid] = frozenset()
            if not self._is_attempt(uid):
                task = asyncio.create_task(self._climb(uid, involved))
                self._climbing.add(task)
                task.add_done_callback(self._climbing.discard)
        return self._above.get(uid, frozenset())

    async def close(self) -> None:
        for task in self._climbing:
            task.cancel()
        await asyncio.gather(*self._climbing, return_exceptions=True)

    async def _climb(self, uid: str, at: Raw) -> None:
        for _ in range(DEPTH):
            try:
                owner = await self._owner_of(at)
            except ApiError as error:
                if error.status == 403:
                    self._notices.denied(error, without=f"why the pods of a {at.get('kind')} are refused")
                    return
                return await self._forget(uid)
            except Exception:  # whatever is in the way, the next event or the next look asks again
                return await self._forget(uid)
            if owner is None:
                return
            self._above[uid] |= {owner["uid"]}
            self._found()
            if self._is_attempt(owner["uid"]):
                return
            at = owner

    async def _owner_of(self, at: Raw) -> Raw | None:
        """None: it has none, or is gone. Raises what the client raises."""
        try:
            async with self._turns:
                shown = await self._client.get(await kind_of(self._client, at), self._namespace, at["name"])
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        about = shown["metadata"]
        if about["uid"] != at["uid"]:
            return None
        owners = about.get("ownerReferences") or []
        return next((each for each in owners if each.get("controller")), owners[0] if owners else None)

    async def _forget(self, uid: str) -> None:
        await asyncio.sleep(_AGAIN_S)
        self._above.pop(uid, None)
