"""Admission: which attempts wait for room in their namespace, and the creation of the objects of those admitted.

`AdmissionQueue` decides without asking the cluster, oldest attempt first. Room is what the quotas leave after the
attempts that were admitted and are not counted there yet (`resource_quota`), within this experiment's fair share. With
a Kueue queue both are decided by Kueue, and every attempt is admitted at once.

Fair share: experiments of one state directory that run in one namespace take turns, the one with the fewest running
attempts first. Each experiment writes to a small file of its own how many of its attempts run there and how many wait
for room. A file counts while its writer holds its lock and has written within STALE_S: the lock is released when the
process ends, and the time limit covers a process that hangs and file systems without locks. Two experiments that read
at the same moment may both start an attempt, so shares are equal to within one trial. Experiments of different state
directories have no shares: the quota's room goes to whoever asks first.

`JobCreations` creates in the background: a create may take long, because of a webhook or a throttling server, and
running trials must not wait for it. The anchor is created once, then the attempt's objects. Every call may be repeated,
also after a crash at any point: names are computed, and an existing object under a name is adopted or rejected.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from controller.core.attempt import AttemptStatus, Exit
from controller.core.model import FINAL, FailureClass
from controller.runtime.kubernetes.client import CONFIG_MAPS, Kind, KubernetesClient
from controller.runtime.kubernetes.errors import ApiError, rule_for, unavailable_webhook
from controller.runtime.kubernetes.informer import Informer
from controller.runtime.kubernetes.job_builder import build_files
from controller.runtime.kubernetes.kinds import kind_of, preset_of
from controller.runtime.kubernetes.labels import UID, attempt_of, owned, parameters_of
from controller.runtime.kubernetes.lease import FencingLease
from controller.runtime.kubernetes.objects import AnyObject, AttemptObject, LimitRange, Pod, Raw, ResourceQuota
from controller.runtime.kubernetes.resource_quota import (
    Demand,
    Reservations,
    demand_of,
    out_of_room,
    reason_to_wait,
    with_defaults,
)
from controller.runtime.protocol import CannotStart, Launch

_AGAIN_S = 1.0  # after a pod was refused although there seemed to be room: another client was faster
_FAIR_SHARE = "FairShare: another experiment of this state directory waits for the namespace and has fewer running"


@dataclass(slots=True)
class _Waiting:
    launch: Launch
    objects: Sequence[Raw]
    demand: Demand
    reason: str = ""
    not_before_s: float = 0.0


class AdmissionQueue:
    """The attempts that wait for room.

    is_own: this queue decides about room, not Kueue. shares: the other experiments that want room in the namespace.
    """

    def __init__(self, *, is_own: bool, shares: FairShares | None = None) -> None:
        self._own = is_own
        self._shares = shares
        self._queue: dict[str, _Waiting] = {}
        self._admitted: dict[str, _Waiting] = {}  # admitted, and not on the cluster yet
        self._reservations = Reservations(time.monotonic)
        self._refused: dict[str, tuple[float, str]] = {}

    @property
    def waiting(self) -> Mapping[str, str]:
        return {name: launch.reason for name, launch in (self._admitted | self._queue).items()}

    def add(self, launch: Launch, objects: Sequence[Raw], *, limit_ranges: Sequence[LimitRange]) -> None:
        """Queue an attempt with the objects to create for it. Raises ValueError: a resource is not a quantity."""
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
        self, quotas: Sequence[ResourceQuota], pods: Iterable[Pod], *, running: int
    ) -> tuple[Launch, Sequence[Raw]] | None:
        """Admit and return the oldest waiting attempt if there is room for it; younger ones never overtake it.

        running: attempts on the cluster that have not ended. Call this at least every second: it publishes the share
        that other experiments read.
        """
        running += len(self._admitted)
        above_fair_share = self._above_fair_share(quotas, running)
        if not self._queue:
            return None
        oldest = next(iter(self._queue.values()))
        if oldest.launch.slots is not None and running >= oldest.launch.slots:
            oldest.reason = ""  # it waits for its predecessor to end, not for room
            return None
        if time.monotonic() < oldest.not_before_s:
            return None
        if not self._own:
            return self._admit(oldest)
        if quotas:
            self._reservations.look(pods)
        else:
            self._reservations.clear()  # without quotas nothing is counted
        oldest.reason = reason_to_wait(oldest.demand, quotas, self._reservations) or (
            _FAIR_SHARE if above_fair_share else ""
        )
        if not oldest.reason:
            return self._admit(oldest)
        for younger in list(self._queue.values())[1:]:
            younger.reason = oldest.reason
        return None

    def made(self, launch: Launch) -> None:
        """Note that the object is on the cluster now; its pods are not yet."""
        self._admitted.pop(launch.name, None)

    def ended(self, name: str) -> None:
        """Note that the pods have ended."""
        self._reservations.ended(name)

    def wait(self, launch: Launch, reason: str = "") -> None:
        """Queue an admitted attempt again. A reason means that the cluster refused it, so it is not retried at once."""
        waiting = self._admitted.pop(launch.name, None)
        if waiting is not None:
            self._reservations.forget(launch.name)
            if reason:
                waiting.reason, waiting.not_before_s = reason, time.monotonic() + _AGAIN_S
            self._put(waiting)

    def refused(self, name: str, message: str) -> bool:
        """Note a refused pod. Return True if the quota was why: delete the object, and the attempt waits again."""
        if not self._own or (reason := out_of_room(message)) is None:
            return False
        self._refused[name] = time.monotonic() + _AGAIN_S, reason
        self._reservations.forget(name)
        return True

    def close(self) -> None:
        self._queue.clear()
        self._admitted.clear()
        if self._shares is not None:
            self._shares.close()

    def _put(self, waiting: _Waiting) -> None:
        self._queue[waiting.launch.name] = waiting
        self._queue = dict(sorted(self._queue.items(), key=lambda item: _age(item[1].launch)))

    def _admit(self, waiting: _Waiting) -> tuple[Launch, Sequence[Raw]]:
        self._admitted[waiting.launch.name] = self._queue.pop(waiting.launch.name)
        self._reservations.launched(waiting.launch.name, waiting.demand)
        return waiting.launch, waiting.objects

    def _above_fair_share(self, quotas: Sequence[ResourceQuota], running: int) -> bool:
        """Whether another experiment waits and has less. Without a quota all get what they want."""
        if self._shares is None or not quotas or not self._own:
            return False
        now_s = time.time()
        try:
            mine = self._shares.publish(running, len(self._queue), now_s=now_s)
        except OSError:
            return False  # the disk fails: others see no share of ours, and this experiment continues
        return not may_start(mine, self._shares.others(now_s=now_s))


def _age(launch: Launch) -> tuple[bool, int, int]:
    part = launch.cluster
    assert part is not None
    return (False, 0, part.attempt) if part.trial is FINAL else (True, part.trial, part.attempt)


STALE_S = 5.0
_REFRESH_S = 1.0
_FILE_BYTES = 256  # one write over the old content: a reader sees the old or the new


@dataclass(frozen=True, slots=True)
class Share:
    """running: attempts admitted and not ended. waiting: attempts that wait for room, not for a person or a pause."""

    uid: str
    running: int
    waiting: int


def may_start(mine: Share, other_shares: Sequence[Share]) -> bool:
    """Whether no waiting experiment has fewer running attempts; of equals, the first by uid may start."""
    return all(not other.waiting or (mine.running, mine.uid) < (other.running, other.uid) for other in other_shares)


class FairShares:
    """This experiment's file, and the others beside it. Times are wall-clock seconds."""

    def __init__(self, state_dir: Path, *, server: str, namespace: str, uid: str) -> None:
        cluster = sha256(server.encode()).hexdigest()[:8]
        self._folder = state_dir / "shares" / f"{cluster}-{namespace}"
        self._uid = uid
        self._file: int | None = None
        self._written: tuple[Share, float] | None = None

    def publish(self, running: int, waiting: int, *, now_s: float) -> Share:
        """Write our share. Call it at least every second or two, and before `others`. Raises OSError."""
        mine = Share(self._uid, running, waiting)
        if self._written is None or self._written[0] != mine or now_s - self._written[1] >= _REFRESH_S:
            if self._file is None:
                self._file = self._open()
            text = json.dumps({"running": running, "waiting": waiting, "heartbeat": now_s})
            os.pwrite(self._file, text.encode().ljust(_FILE_BYTES), 0)
            self._written = mine, now_s
        return mine

    def others(self, *, now_s: float) -> list[Share]:
        """Return the shares of the other live experiments, and delete the files of dead ones."""
        own_file = f"{self._uid}.json"
        try:
            paths = sorted(path for path in self._folder.iterdir() if path.suffix == ".json" and path.name != own_file)
        except OSError:
            return []
        return [share for path in paths if (share := _read(path, now_s)) is not None]

    def close(self) -> None:
        """Delete our file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                (self._folder / f"{self._uid}.json").unlink()
            os.close(self._file)
            self._file = self._written = None

    def _open(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._uid}.json"
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            with contextlib.suppress(OSError):  # this file system has no locks; the heartbeat is enough
                fcntl.flock(file, fcntl.LOCK_SH)  # a reader holds it only for a moment
            # A reader may have deleted it as a dead one's before we had the lock.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), path.stat()):
                    return file
            os.close(file)


def _read(path: Path, now_s: float) -> Share | None:
    try:
        with path.open("rb+", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pass  # its writer lives, or there are no locks
            else:
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    path.unlink()
                return None
            content = json.loads(file.read(_FILE_BYTES))
        share = Share(path.stem, int(content["running"]), int(content["waiting"]))
        return share if abs(now_s - content["heartbeat"]) < STALE_S else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # gone, or not written yet


# Creating what was admitted


class JobCreations:
    """Creates admitted attempts in the background.

    on_created: called when an attempt is on the cluster. changed: called after any other outcome.
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
        # Attempts that could not be created, until the runtime removes them.
        self.refused: dict[str, AttemptStatus] = {}
        self._queue = queue
        self._creator = creator
        self._informer = informer
        self._on_created = on_created
        self._changed = changed
        self._requests = BackgroundRequests(failed=changed)

    async def admit(self, *, running: int) -> None:
        """Start to create the attempts that there is room for, oldest first.

        running: attempts on the cluster that have not ended. Raises the error of an earlier creation while it lasts.
        """
        while admitted := self._queue.next(
            self._informer.quotas, self._informer.pods.objects.values(), running=running
        ):
            launch, objects = admitted
            await self._requests.send(launch.name, self._make(launch, objects))

    def forget_anchor(self) -> None:
        self._creator.forget_anchor()

    async def settle(self, name: str) -> None:
        """Wait until a creation under way has ended."""
        await self._requests.settle(name)

    async def close(self) -> None:
        await self._requests.close()

    async def _make(self, launch: Launch, objects: Sequence[Raw]) -> None:
        try:
            kind, created = await self._creator.make(objects, files=build_files(launch))
            await self._informer.watch(kind)
            # Record first: if that fails, the object is adopted and recorded later.
            self._on_created(launch, created)
            self._queue.made(launch)
            self._informer.put(kind, created)
        except TemporarilyRefused as error:
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


class TemporarilyRefused(Exception):
    """The object was refused for a temporary reason: a full quota, a predecessor that is being deleted, a webhook."""


class JobCreator:
    """Creates or adopts objects. anchor: the manifest of the object that owns everything of the experiment."""

    def __init__(self, client: KubernetesClient, namespace: str, anchor: Raw, lease: FencingLease) -> None:
        self._client = client
        self._namespace = namespace
        self._manifest = anchor
        self._lease = lease
        self._owner: Raw | None = None
        self._owning = asyncio.Lock()
        self._files: set[str] = set()  # names of the ConfigMaps with files that exist

    async def make(self, objects: Sequence[Raw], *, files: Raw | None = None) -> tuple[Kind, AttemptObject]:
        """Create or adopt an attempt's objects, and return the last one, which is the attempt's own.

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
            created = kind, cast(AttemptObject, await self._create(kind, owned(manifest, owner)))  # as created
        assert created is not None
        return created

    def forget_anchor(self) -> None:
        """Look the anchor up again before the next creation: objects whose owner is gone are deleted at once."""
        self._owner = None
        self._files.clear()

    async def _kind_of(self, manifest: Raw) -> Kind:
        try:
            return await kind_of(self._client, manifest)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            preset = preset_of(manifest)
            preset_hint = "" if preset is None else f" ({preset.api_version} is that of {preset.operator})"
            raise CannotStart(
                f"the cluster has no kind {manifest['kind']} in {manifest['apiVersion']}; "
                f"install its operator{preset_hint}"
            ) from error

    async def _anchor(self) -> Raw:
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
        """Return the existing object of that name if it is ours. Raises what the error means otherwise."""
        about = manifest["metadata"]
        if error.status != _CONFLICT or error.reason != "AlreadyExists":
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
            f"namespace {self._namespace} has a {kind.kind} {about['name']} that is not of this experiment; "
            f"delete it, or give the experiment another metadata.name"
        ) from error


def other_parameters(manifest: AnyObject, existing: AnyObject, namespace: str) -> str:
    """Return why an object with an attempt's name is not that attempt; "" if it is."""
    expected, has = parameters_of(manifest), parameters_of(existing)
    if expected == has:
        return ""
    return (
        f"namespace {namespace} has a {existing.get('kind', 'Job')} {existing['metadata']['name']} with other "
        f"parameters, {json.dumps(has)} and not {json.dumps(expected)}: it "
        "belongs to an earlier numbering of the trials; delete it"
    )


def _meaning(kind: Kind, name: str, namespace: str, error: ApiError) -> Exception:
    """Return what a refused create means: retry later, a person must act, or the error itself."""
    if error.status == _FORBIDDEN and (full := out_of_room(error.message)) is not None:
        return TemporarilyRefused(full)
    if error.status == _FORBIDDEN and "is being terminated" in error.message:
        return CannotStart(f"namespace {namespace} is being deleted")
    if rule_for(error):
        return error  # a missing right is not the trial's fault
    if error.status == _NOT_FOUND:
        return CannotStart(f"{error.message}; see kubectl get namespaces, and kubectl api-resources for its kind")
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
    """Requests under way, by name. failed: called after each failure; the caller sends the request again."""

    def __init__(self, *, failed: Callable[[], None]) -> None:
        self._failed = failed
        self._under_way: dict[str, asyncio.Task[Exception | None]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._error: Exception | None = None

    async def send(self, name: str, work: Coroutine[Any, Any, None], *, wait: bool = False) -> None:
        """Start a request under a name that is not under way. wait: wait for all requests under way.

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
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

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
