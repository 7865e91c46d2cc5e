"""What events say of pods that could not be made and volumes that could not be mounted: listened to only where needed.

A server keeps no events at hand: for each watch of them it takes every event of the namespace out of its store once
more, and they are as many as all other changes together. So nobody listens before something has waited for long, or
might be refused by a quota. Nothing is lost by it: the first list tells what was said before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from controller.runtime.kubernetes.client import EVENTS, ApiError, Client
from controller.runtime.kubernetes.reflector import Reflector

Raw = dict[str, Any]

_LONG_S = 10.0  # to wait for a pod, or for its containers on a node
_FIRST_S = 1.0  # to wait for the first pod of all: what is wrong with that one is wrong with all
_AGAIN_S = 5.0
_log = logging.getLogger(__name__)


class Complaints:
    """`changed` is called whenever there is a new one."""

    def __init__(self, client: Client, namespace: str, *, changed: Callable[[], None]) -> None:
        self._refused, self._not_mounted = (
            _Ear(Reflector(client, EVENTS, namespace, fields=f"reason={reason}", changed=changed))
            for reason in ("FailedCreate", "FailedMount")
        )
        # By attempt: who would hear of it, and since when it is so.
        self._waiting: dict[str, tuple[_Ear | None, float]] = {}
        self._has_had_pods = False

    def heed(self, name: str, pods: Sequence[Raw], *, has_quota: bool) -> None:
        """The attempt of that name has an object, and does not run yet."""
        placed = any(pod.get("spec", {}).get("nodeName") for pod in pods)
        ear = self._not_mounted if placed else None if pods else self._refused
        now_s = time.monotonic()
        before, since_s = self._waiting.get(name, (None, now_s))
        if before is not ear:
            since_s = now_s
        self._waiting[name] = ear, since_s
        self._has_had_pods |= bool(pods)
        long_s = 0.0 if ear is self._refused and has_quota else _LONG_S if self._has_had_pods else _FIRST_S
        if ear is not None and now_s - since_s >= long_s:
            ear.open()

    def runs(self, name: str) -> None:
        """Or has run."""
        self._has_had_pods = True
        self.forget(name)

    def forget(self, name: str) -> None:
        """It is gone."""
        self._waiting.pop(name, None)

    @property
    def none(self) -> bool:
        """Nobody in the namespace complains, as far as is known."""
        return not self._refused.events and not self._not_mounted.events

    def refusal(self, uid: str) -> str:
        """Why a pod could not be created for the object of that uid; "" if none was refused."""
        return self._refused.newest(uid)

    def mount_trouble(self, pods: Sequence[Raw]) -> str:
        """Why a volume of one of the pods cannot be mounted; "" if nothing is known."""
        said = (self._not_mounted.newest(pod["metadata"]["uid"]) for pod in pods)
        return next((message for message in said if message), "")

    def forget_the_gone(self) -> None:
        for ear in (self._refused, self._not_mounted):
            ear.forget_the_gone()

    async def close(self) -> None:
        await asyncio.gather(self._refused.close(), self._not_mounted.close())


class _Ear:
    """Listens from `open` on, once and for all."""

    def __init__(self, reflector: Reflector) -> None:
        self._reflector = reflector
        self._opening: asyncio.Task[None] | None = None

    @property
    def events(self) -> dict[str, Raw]:
        return self._reflector.objects

    def open(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        """Whatever is in the way at first. Without the right to see events trials run all the same."""
        while True:
            try:
                return await self._reflector.start()
            except ApiError as error:
                if error.status == 403:
                    return None
                why: Exception = error
            except Exception as error:
                why = error
            _log.info("kind=events cannot be listed: %s", why)
            await asyncio.sleep(_AGAIN_S)

    def newest(self, uid: str) -> str:
        if not self.events:
            return ""
        about = [event for event in self.events.values() if event.get("involvedObject", {}).get("uid") == uid]
        newest = max(about, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "", default=None)
        return "" if newest is None else str(newest.get("message", ""))

    def forget_the_gone(self) -> None:
        self._reflector.deleted.clear()

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await self._reflector.close()
