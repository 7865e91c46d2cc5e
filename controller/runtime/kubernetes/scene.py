"""What the cluster shows of one experiment: its objects, their pods, the namespace's quotas, refused pods.

One reflector a kind, all started together. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from controller.model import FINAL, attempt_name, trial_label
from controller.runtime.kubernetes import news
from controller.runtime.kubernetes.checkup import listed
from controller.runtime.kubernetes.client import EVENTS, JOBS, LIMIT_RANGES, PODS, QUOTAS, Client, Kind
from controller.runtime.kubernetes.errors import ApiError
from controller.runtime.kubernetes.pods import as_gone
from controller.runtime.kubernetes.reflector import Reflector

Raw = dict[str, Any]

TRIAL, ATTEMPT, UID, EXPERIMENT = "tuner.dev/trial", "tuner.dev/attempt", "tuner.dev/uid", "tuner.dev/experiment"


class Scene:
    """`open` it before reading; `changed` is called whenever something looks different."""

    def __init__(self, client: Client, namespace: str, uid: str, *, changed: Callable[[], None]) -> None:
        self._client = client
        self._namespace = namespace
        self._changed = changed
        self._labels = f"{UID}={uid}"
        self.pods = self._of(PODS, news.of_pod)
        self._quotas = Reflector(client, QUOTAS, namespace, changed=changed)
        self._refusals = Reflector(client, EVENTS, namespace, fields="reason=FailedCreate", changed=changed)
        self._mounts = Reflector(client, EVENTS, namespace, fields="reason=FailedMount", changed=changed)
        self._objects = {JOBS: self._of(JOBS, news.of_job)}
        self._adding = asyncio.Lock()
        # As they are now: they hardly ever change, and only defaults are read off them.
        self.limit_ranges: list[Raw] = []
        self._optional = (self._quotas, self._refusals, self._mounts)

    def _of(self, kind: Kind, matters: Callable[[Raw | None, Raw | None], bool] = news.always) -> Reflector:
        return Reflector(
            self._client, kind, self._namespace, labels=self._labels, changed=self._changed, matters=matters
        )

    async def open(self) -> None:
        """Returns when everything was listed once. Raises what the client raises."""
        needed = [reflector.start() for reflector in (self.pods, *self._objects.values())]
        # Without the right to see quotas and events trials run all the same; what is refused is learned later.
        limits = listed(self._client, LIMIT_RANGES, self._namespace)
        # All of them, whatever one says: what was left half begun nobody could close.
        answers = await asyncio.gather(limits, *needed, *map(self._try, self._optional), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        assert not isinstance(answers[0], BaseException)
        self.limit_ranges = answers[0] or []

    @staticmethod
    async def _try(reflector: Reflector) -> None:
        try:
            await reflector.start()
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
        everything = (self.pods, *self._optional, *self._objects.values())
        await asyncio.gather(*(reflector.close() for reflector in everything))

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

    def put(self, kind: Kind, made: Raw) -> None:
        self._objects[kind].put(made)

    def drop(self, kind: Kind, name: str) -> None:
        self._objects[kind].drop(name)

    def pods_by_attempt(self) -> dict[tuple[int, int], list[Raw]]:
        """Those that are gone too, as they were last seen: how a container ended is often told with its pod's end."""
        found: dict[tuple[int, int], list[Raw]] = {}
        # Of several made in the same second the later counts (`members`): what is there, not what is gone.
        for pod in (*map(as_gone, self.pods.deleted.values()), *self.pods.objects.values()):
            if (whose := attempt_of(pod)) is not None:
                found.setdefault(whose, []).append(pod)
        return found

    def forget_the_gone(self) -> None:
        """Nobody asks for what is gone but for pods."""
        for reflector in (*self._optional, *self._objects.values()):
            reflector.deleted.clear()

    def forget_pods(self, whose: tuple[int, int]) -> None:
        for name, pod in list(self.pods.deleted.items()):
            if attempt_of(pod) == whose:
                del self.pods.deleted[name]

    @property
    def calm(self) -> bool:
        """No event of the namespace says that a pod was refused or a volume could not be mounted."""
        return not self._refusals.objects and not self._mounts.objects

    def refusal(self, uid: str) -> str:
        """Why a pod could not be created for the object of that uid; "" if none was refused."""
        return _newest(self._refusals, uid)

    def mount_trouble(self, pods: Sequence[Raw]) -> str:
        """Why a volume of one of the pods cannot be mounted; "" if nothing is known."""
        said = (_newest(self._mounts, pod["metadata"]["uid"]) for pod in pods)
        return next((message for message in said if message), "")


def _newest(events: Reflector, uid: str) -> str:
    about = [event for event in events.objects.values() if event.get("involvedObject", {}).get("uid") == uid]
    newest = max(about, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "", default=None)
    return "" if newest is None else str(newest.get("message", ""))


def attempt_of(found: Raw) -> tuple[int, int] | None:
    """(trial, attempt), as its labels say."""
    labels = found.get("metadata", {}).get("labels", {})
    with contextlib.suppress(KeyError, ValueError):
        trial = labels[TRIAL]
        return FINAL if trial == trial_label(FINAL) else int(trial), int(labels[ATTEMPT])
    return None


def name_of(found: Raw, whose: tuple[int, int]) -> str:
    """The name of the attempt that it belongs to, as its labels say."""
    labels = found["metadata"]["labels"]
    return attempt_name(labels[EXPERIMENT], labels[UID], *whose)
