"""Create the objects of admitted attempts on the cluster, in the background, and tell the queue what became of each.

The anchor is created once, then an attempt's objects. A name that is taken is adopted or refused. Every call may be
repeated, also after a crash at any point: names are computed, and existing objects are read first. A create may take
long, for a webhook or a server that asks for patience, and trials that run must not wait for it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

from controller.core.model import FailureClass
from controller.runtime.kubernetes.admission import AdmissionQueue
from controller.runtime.kubernetes.client import CONFIG_MAPS, Kind, KubernetesClient
from controller.runtime.kubernetes.errors import ApiError, rule_for, silent_webhook
from controller.runtime.kubernetes.informer import Informer
from controller.runtime.kubernetes.kinds import kind_of, preset_of
from controller.runtime.kubernetes.labels import UID, attempt_of, owned, parameters_of
from controller.runtime.kubernetes.lease import FencingLease
from controller.runtime.kubernetes.objects import Raw
from controller.runtime.kubernetes.resource_quota import out_of_room
from controller.runtime.protocol import AttemptStatus, CannotStart, Exit, Launch


class JobCreations:
    """made: it is on the cluster. changed: something else became of it; look again."""

    def __init__(self, queue: AdmissionQueue, creator: JobCreator, informer: Informer, *,
                 made: Callable[[Launch, Kind, Raw], None], changed: Callable[[], None]) -> None:  # fmt: skip
        self.refused: dict[str, AttemptStatus] = {}  # what could not be created, until it is forgotten
        self._queue = queue
        self._creator = creator
        self._informer = informer
        self._made = made
        self._changed = changed
        self._requests = BackgroundRequests(failed=changed)

    async def admit(self, *, running: int) -> None:
        """Begin to make what there is room for, oldest first. running: attempts on the cluster that have not ended.
        Raises what an earlier one met that could not be made, as long as it lasts."""
        while admitted := self._queue.next(
            self._informer.quotas, self._informer.pods.objects.values(), running=running
        ):
            launch, objects = admitted
            await self._requests.send(launch.name, self._make(launch, objects))

    def forget_anchor(self) -> None:
        self._creator.forget_anchor()

    async def settle(self, name: str) -> None:
        """Until it is made or was refused, if it is being made."""
        await self._requests.settle(name)

    async def close(self) -> None:
        await self._requests.close()

    async def _make(self, launch: Launch, objects: Sequence[Raw]) -> None:
        try:
            kind, made = await self._creator.make(objects)
            await self._informer.watch(kind)
            self._made(launch, kind, made)  # first: what cannot be written down is adopted later, and then it can
            self._queue.made(launch)
            self._informer.put(kind, made)
        except NotNow as error:
            self._queue.wait(launch, str(error))
            self._changed()
        except CannotStart as error:
            failed = Exit(datetime.now(UTC), failure_class=error.failure_class, reason=str(error))
            self._queue.drop(launch.name)
            self.refused[launch.name] = AttemptStatus(launch.name, None, failed)
            self._changed()
        except BaseException:
            self._queue.wait(launch)
            raise


_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409


class NotNow(Exception):
    """The object was refused for a reason that passes: no room in the quota, its predecessor, a silent webhook."""


class JobCreator:
    """anchor: the manifest of the object that owns everything of the experiment."""

    def __init__(self, client: KubernetesClient, namespace: str, anchor: Raw, lease: FencingLease) -> None:
        self._client = client
        self._namespace = namespace
        self._manifest = anchor
        self._lease = lease
        self._owner: Raw | None = None
        self._owning = asyncio.Lock()

    async def make(self, objects: Sequence[Raw]) -> tuple[Kind, Raw]:
        """Create an attempt's objects, the last of which is its own. That one, new or adopted.

        Raises CannotStart, NotNow, and ApiError where asking again may help.
        """
        owner = await self._anchor()
        await self._lease.check(owner)
        made: tuple[Kind, Raw] | None = None
        for manifest in objects:
            kind = await self._kind_of(manifest)
            made = kind, await self._create(kind, owned(manifest, owner))
        assert made is not None
        return made

    def forget_anchor(self) -> None:
        """It may be gone, and what is made for an owner that is gone is deleted at once. Look again before the next."""
        self._owner = None

    async def _kind_of(self, manifest: Raw) -> Kind:
        try:
            return await kind_of(self._client, manifest)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            preset = preset_of(manifest)
            known = "" if preset is None else f" ({preset.api_version} is that of {preset.operator})"
            raise CannotStart(
                f"the cluster has no kind {manifest['kind']} in {manifest['apiVersion']}; install its operator{known}"
            ) from error

    async def _anchor(self) -> Raw:
        async with self._owning:  # the first of several makes it
            if self._owner is None:
                self._owner = await self._create(CONFIG_MAPS, self._manifest)
            return self._owner

    async def _create(self, kind: Kind, manifest: Raw) -> Raw:
        try:
            return await self._client.create(kind, self._namespace, manifest)
        except ApiError as error:
            return await self._adopted(kind, manifest, error)

    async def _adopted(self, kind: Kind, manifest: Raw, error: ApiError) -> Raw:
        """The object that exists under the name, if it is ours. Raises what the error means otherwise."""
        about = manifest["metadata"]
        if error.status != _CONFLICT or error.reason != "AlreadyExists":
            raise _meaning(kind, about["name"], self._namespace, error) from error
        there = await self._client.get(kind, self._namespace, about["name"])
        if "deletionTimestamp" in there["metadata"]:
            raise NotNow(f"a {kind.kind} {about['name']} is being deleted") from error
        ours = there["metadata"].get("labels", {}).get(UID) == about["labels"][UID]
        if ours and attempt_of(there) == attempt_of(manifest):
            if trouble := other_parameters(manifest, there, self._namespace):
                raise CannotStart(trouble) from error
            return there
        raise CannotStart(
            f"namespace {self._namespace} has a {kind.kind} {about['name']} that is not of this experiment; "
            f"delete it, or give the experiment another metadata.name"
        ) from error


def other_parameters(wanted: Raw, there: Raw, namespace: str) -> str:
    """Why an object that has the name of an attempt is not that attempt; "" if it is."""
    asked, has = parameters_of(wanted), parameters_of(there)
    if asked == has:
        return ""
    return (
        f"namespace {namespace} has a {there.get('kind', 'Job')} {there['metadata']['name']} with other parameters, "
        f"{json.dumps(has)} and not {json.dumps(asked)}: it "
        "belongs to an earlier numbering of the trials; delete it"
    )


def _meaning(kind: Kind, name: str, namespace: str, error: ApiError) -> Exception:
    """What a refused create says: no room now, or something that a person must change, or nothing new."""
    if error.status == _FORBIDDEN and (full := out_of_room(error.message)) is not None:
        return NotNow(full)
    if error.status == _FORBIDDEN and "is being terminated" in error.message:
        return CannotStart(f"namespace {namespace} is being deleted")
    if rule_for(error):
        return error  # no fault of the trial's
    if error.status == _NOT_FOUND:
        return CannotStart(f"{error.message}; see kubectl get namespaces, and kubectl api-resources for its kind")
    if error.status in (400, 403, 422):
        return CannotStart(f"the cluster does not accept {kind.kind} {name}: {error.message}")
    if silent := silent_webhook(error):
        return NotNow(silent)
    if error.status >= 500 and "webhook" in error.message:
        return CannotStart(f"{error.message}", FailureClass.INFRASTRUCTURE)
    return error


_AT_ONCE = 16  # a server that is asked for more keeps everybody waiting
_PATIENCE_S = 5.0


class BackgroundRequests:
    """failed: called after each failure; who wants it done sends it again."""

    def __init__(self, *, failed: Callable[[], None]) -> None:
        self._failed = failed
        self._under_way: dict[str, asyncio.Task[Exception | None]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._error: Exception | None = None

    async def send(self, name: str, work: Coroutine[Any, Any, None], *, wait: bool = False) -> None:
        """Under a name that is not under way. wait: for all of them. Raises what an request raised that was waited
        for."""
        task = self._under_way[name] = asyncio.create_task(self._do(name, work))
        if wait:
            waited_for = list(self._under_way.values())
        elif self._error is not None:
            waited_for = [task]
        else:
            return
        await asyncio.wait(waited_for)
        for each in waited_for:
            if not each.cancelled() and (error := each.result()) is not None:
                raise error

    def is_under_way(self, name: str) -> bool:
        return name in self._under_way

    async def settle(self, name: str) -> None:
        """Until it is not under way (any more)."""
        if (task := self._under_way.get(name)) is not None:
            await asyncio.wait([task])

    async def close(self) -> None:
        """What is under way is finished, if the cluster is quick about it."""
        if self._under_way:
            _, late = await asyncio.wait(list(self._under_way.values()), timeout=_PATIENCE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _do(self, name: str, work: Coroutine[Any, Any, None]) -> Exception | None:
        try:
            async with self._turns:
                await work
        except Exception as error:  # whatever it is, the next sender is told
            self._error = error
            self._failed()
            return error
        else:
            self._error = None
            return None
        finally:
            work.close()
            del self._under_way[name]
