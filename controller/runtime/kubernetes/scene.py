"""What the cluster shows of one experiment: its objects, their pods, the namespace's quotas, complaints about them,
and what Kueue says.

One reflector a kind, all started together. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from controller.core.model import AttemptKey
from controller.runtime.kubernetes import news
from controller.runtime.kubernetes.checkup import listed
from controller.runtime.kubernetes.client import JOBS, LIMIT_RANGES, PODS, QUOTAS, Client, Kind
from controller.runtime.kubernetes.complaints import Complaints
from controller.runtime.kubernetes.errors import ApiError
from controller.runtime.kubernetes.kueue import Workloads
from controller.runtime.kubernetes.labels import UID, attempt_of
from controller.runtime.kubernetes.notices import Notices
from controller.runtime.kubernetes.owners import Owners
from controller.runtime.kubernetes.pod_status import as_gone, keep_first_deletion
from controller.runtime.kubernetes.reflector import Reflector

Raw = dict[str, Any]


class Scene:
    """`open` it before reading; `changed` is called whenever something looks different. stem: how the names of all its
    objects begin."""

    def __init__(self, client: Client, namespace: str, uid: str, stem: str, *, changed: Callable[[], None]) -> None:
        self._client = client
        self._namespace = namespace
        self._changed = changed
        self._labels = f"{UID}={uid}"
        self.pods = self._of(PODS, news.of_pod, keep_first_deletion)
        self._quotas = Reflector(client, QUOTAS, namespace, changed=changed)
        self._quotas_shown = False
        notices = Notices()
        owners = Owners(client, namespace, stem, notices, is_attempt=self._has, found=changed)
        self.complaints = Complaints(client, namespace, notices, owners, changed=changed)
        self.workloads = Workloads(client, namespace, notices, is_attempt=self._has, changed=changed)
        self._objects = {JOBS: self._of(JOBS, news.of_job)}
        self._adding = asyncio.Lock()
        # As they are now: they hardly ever change, and only defaults are read off them.
        self.limit_ranges: list[Raw] = []

    def _of(
        self,
        kind: Kind,
        matters: Callable[[Raw | None, Raw | None], bool] = news.always,
        keep: Callable[[Raw, Raw], None] | None = None,
    ) -> Reflector:
        return Reflector(
            self._client, kind, self._namespace, labels=self._labels, changed=self._changed, matters=matters, keep=keep
        )

    async def open(self) -> None:
        """Returns when everything was listed once. Raises what the client raises."""
        needed = [reflector.start() for reflector in (self.pods, *self._objects.values())]
        # Without the right to see quotas trials run all the same; what is refused is learned later.
        limits = listed(self._client, LIMIT_RANGES, self._namespace)
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
        optional = (self.complaints.close(), self.workloads.close())
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
        self.complaints.forget_the_gone()
        self.workloads.forget_the_gone()

    def forget_pods(self, whose: AttemptKey) -> None:
        for name, pod in list(self.pods.deleted.items()):
            if attempt_of(pod) == whose:
                del self.pods.deleted[name]
