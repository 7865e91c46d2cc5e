"""The informer cache of one experiment: its objects, their pods, the namespace's quotas, events, and Kueue's Workloads.

One reflector per kind, all started together. The predicates say which changes are worth a wakeup: an attempt's Job and
pod change a dozen times, and what becomes of the attempt shows in three of these changes. Nothing is lost with the
others, because a reader sees the whole state, and reads at least every half second. Nothing is decided here, and
nothing is written to the cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

from controller.core.model import AttemptKey
from controller.runtime.kubernetes.client import JOBS, LIMIT_RANGES, PODS, QUOTAS, Kind, KubernetesClient
from controller.runtime.kubernetes.errors import ApiError
from controller.runtime.kubernetes.event_watcher import EventWatcher, OwnerLookup
from controller.runtime.kubernetes.kueue import Workloads
from controller.runtime.kubernetes.labels import UID, attempt_of
from controller.runtime.kubernetes.pod_status import ENDED, as_gone, keep_first_deletion, phase_of
from controller.runtime.kubernetes.reflector import MissingRights, Reflector, always
from controller.runtime.kubernetes.rights import list_allowed

Raw = dict[str, Any]


class Informer:
    """`open` it before reading; `changed` is called whenever something looks different. stem: how the names of all its
    objects begin."""

    def __init__(
        self, client: KubernetesClient, namespace: str, uid: str, stem: str, *, changed: Callable[[], None]
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._changed = changed
        self._labels = f"{UID}={uid}"
        self.pods = self._of(PODS, pod_matters, keep_first_deletion)
        self._quotas = Reflector(client, QUOTAS, namespace, changed=changed)
        self._quotas_shown = False
        notices = MissingRights()
        owners = OwnerLookup(client, namespace, stem, notices, is_attempt=self._has, found=changed)
        self.events = EventWatcher(client, namespace, notices, owners, changed=changed)
        self.workloads = Workloads(client, namespace, notices, is_attempt=self._has, changed=changed)
        self._objects = {JOBS: self._of(JOBS, job_matters)}
        self._adding = asyncio.Lock()
        # As they are now: they hardly ever change, and only defaults are read off them.
        self.limit_ranges: list[Raw] = []

    def _of(
        self,
        kind: Kind,
        matters: Callable[[Raw | None, Raw | None], bool] = always,
        keep: Callable[[Raw, Raw], None] | None = None,
    ) -> Reflector:
        return Reflector(
            self._client, kind, self._namespace, labels=self._labels, changed=self._changed, matters=matters, keep=keep
        )

    async def open(self) -> None:
        """Returns when everything was listed once. Raises what the client raises."""
        needed = [reflector.start() for reflector in (self.pods, *self._objects.values())]
        # Without the right to see quotas trials run all the same; what is refused is learned later.
        limits = list_allowed(self._client, LIMIT_RANGES, self._namespace)
        # All of them, whatever one says: what was left half begun nobody could close.
        answers = await asyncio.gather(limits, *needed, self._start_quotas(), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        assert not isinstance(answers[0], BaseException)
        self.limit_ranges = answers[0] or []

    async def _start_quotas(self) -> None:
        try:
            await self._quotas.start()
            self._quotas_shown = True
        except ApiError as error:
            if error.status != 403:
                raise

    async def watch(self, kind: Kind) -> None:
        """Objects of one more kind are shown from now on."""
        async with self._adding:
            if kind not in self._objects:
                reflector = self._of(kind)
                await reflector.start()
                self._objects[kind] = reflector

    async def close(self) -> None:
        reflectors = (self.pods, self._quotas, *self._objects.values())
        optional = (self.events.close(), self.workloads.close())
        await asyncio.gather(*optional, *(reflector.close() for reflector in reflectors))

    @property
    def trouble(self) -> Exception | None:
        """Why the cluster cannot be heard at present; None if it can."""
        for reflector in (*self._objects.values(), self.pods):
            if reflector.error is not None:
                return reflector.error
        return None

    @property
    def quotas(self) -> list[Raw]:
        """None where they may not be seen (any more): waiting by old news would never end."""
        return [] if self._quotas.error is not None else list(self._quotas.objects.values())

    @property
    def has_quota(self) -> bool:
        """There is one, or nobody knows."""
        return not self._quotas_shown or self._quotas.error is not None or bool(self._quotas.objects)

    def objects(self) -> Iterator[tuple[Kind, str, Raw]]:
        for kind, reflector in self._objects.items():
            for name, found in reflector.objects.items():
                yield kind, name, found

    def find(self, name: str) -> tuple[Kind, Raw] | None:
        for kind, reflector in self._objects.items():
            found = reflector.objects.get(name)
            if found is not None:
                return kind, found
        return None

    def _has(self, uid: str) -> bool:
        """An object of that uid is shown."""
        return any(found["metadata"]["uid"] == uid for _, _, found in self.objects())

    def put(self, kind: Kind, made: Raw) -> None:
        self._objects[kind].put(made)

    def drop(self, kind: Kind, name: str) -> None:
        self._objects[kind].drop(name)

    def pods_by_attempt(self) -> dict[AttemptKey, list[Raw]]:
        """Those that are gone too, as they were last seen: how a container ended is often told with its pod's end."""
        found: dict[AttemptKey, list[Raw]] = {}
        there = self.pods.objects
        # A pod whose name another one has taken over counts no more; how it ended was that life's.
        gone = [as_gone(pod) for name, pod in self.pods.deleted.items() if name not in there]
        # Of several made in the same second the later counts (`members`): what is there, not what is gone.
        for pod in (*gone, *there.values()):
            if (whose := attempt_of(pod)) is not None:
                found.setdefault(whose, []).append(pod)
        return found

    def pods_of(self, whose: AttemptKey) -> list[Raw]:
        """Those of an attempt that are there, and that nobody deletes."""
        there = self.pods.objects.values()
        return [pod for pod in there if attempt_of(pod) == whose and "deletionTimestamp" not in pod["metadata"]]

    def forget_the_gone(self) -> None:
        """Nobody asks for what is gone but for pods."""
        for reflector in (self._quotas, *self._objects.values()):
            reflector.deleted.clear()
        self.events.forget_the_gone()
        self.workloads.forget_the_gone()

    def forget_pods(self, whose: AttemptKey) -> None:
        for name, pod in list(self.pods.deleted.items()):
            if attempt_of(pod) == whose:
                del self.pods.deleted[name]


def job_matters(before: Raw | None, after: Raw | None) -> bool:
    """Its pods tell the rest: how many there are and run is only counted in it."""
    return after is None or _said_by_job(before or {}) != _said_by_job(after)


def pod_matters(before: Raw | None, after: Raw | None) -> bool:
    """Not that it was made and found a node, nor how it is cleared away once it has ended."""
    if after is None:
        return before is None or phase_of(before) not in ENDED
    return _said_by_pod(before or {}) != _said_by_pod(after)


def _said_by_job(job: Raw) -> tuple[object, ...]:
    suspended = job.get("spec", {}).get("suspend") or False
    return suspended, job.get("status", {}).get("conditions"), "deletionTimestamp" in job.get("metadata", {})


def _said_by_pod(pod: Raw) -> tuple[object, ...]:
    status, phase = pod.get("status", {}), phase_of(pod)
    containers = status.get("containerStatuses")
    if phase in ENDED:
        return phase, containers
    troubles = [
        each
        for each in status.get("conditions") or ()
        if each.get("type") == "DisruptionTarget" or (each.get("type"), each.get("status")) == ("PodScheduled", "False")
    ]
    going = pod.get("metadata", {}).get("deletionTimestamp")
    begins = phase in ("", "Pending")
    return begins or phase, status.get("reason"), containers, status.get("initContainerStatuses"), troubles, going


_REST, _LONGEST_REST_S = 19, 0.2


class Wakeup:
    """Coalescing wakeup: one future instead of a task per notification, because notifications are frequent.

    They come in bursts, and each turn of the reader costs, the more the busier the machine is: `wait` first rests, so
    that at most a twentieth of the time is spent reading. A notification after `clear` is not lost: the next wait
    returns at once. Log growth wakes only a waiter that asks for it.
    """

    def __init__(self) -> None:
        self._began_s = self._cost_s = 0.0
        self._notified = self._growth = False
        self._waiting: asyncio.Future[None] | None = None
        self._waits_for_growth = False

    def clear(self) -> None:
        """The reader begins to read."""
        self._notified = self._growth = False
        self._began_s = time.monotonic()

    def observed(self) -> None:
        """It has read everything."""
        self._cost_s = time.monotonic() - self._began_s

    def notify(self) -> None:
        self._notified = True
        self._wake()

    def notify_log_growth(self) -> None:
        self._growth = True
        if self._waits_for_growth:
            self._wake()

    async def wait(self, within_s: float, *, growth: bool) -> None:
        """One at a time."""
        await asyncio.sleep(min(_REST * self._cost_s, within_s, _LONGEST_REST_S))
        if self._notified or (growth and self._growth):
            return
        loop = asyncio.get_running_loop()
        self._waiting, self._waits_for_growth = loop.create_future(), growth
        patience = loop.call_later(within_s, self._wake)
        try:
            await self._waiting
        finally:
            patience.cancel()
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
