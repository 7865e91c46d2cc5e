"""Which objects own the one that an event is about.

A TrainJob makes a JobSet, that makes Jobs, and the event that says why pods are refused is about a Job. Not every
operator copies our labels to such children, so owner references are followed upwards: one GET for each object, in the
background, remembered by uid. Only names that begin as our attempts' do are looked up: operators derive a child's name
from its parent's. A name alone proves nothing: a child of an earlier life has the same one, and another owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from controller.runtime.kubernetes.client import Client
from controller.runtime.kubernetes.errors import ApiError
from controller.runtime.kubernetes.kinds import kind_of
from controller.runtime.kubernetes.reflector import MissingRights

Raw = dict[str, Any]

DEPTH = 4  # TrainJob, JobSet, Job, and one to spare
_AT_ONCE = 8  # requests: every attempt of a large experiment may be refused in the same second
_AGAIN_S = 5.0


class Owners:
    """stem: how the names of our attempts begin. is_attempt: whether an attempt's object has that uid; nothing above it
    is looked up. found: called when `above` has something new."""

    def __init__(self, client: Client, namespace: str, stem: str, notices: MissingRights, *,
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
