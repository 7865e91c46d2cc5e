"""All experiments of the controller: a `ManagedExperiment` for each resource, and their statuses.

The reflectors of the resources say which of them has changed. Statuses are written when they
differ from what the resource shows; while an experiment runs, at most once in STATUS_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, count
from typing import cast

from controller.background_tasks import cancelled
from controller.core.attempt import RuntimeLost
from controller.core.model import Uid
from controller.kube.client import Kind, KubernetesClient
from controller.kube.custom_resource import EXPERIMENTS
from controller.kube.errors import ApiConflict, ApiError, ApiForbidden, ApiNotFound
from controller.kube.objects import KubernetesObject, Raw
from controller.kube.reflector import Key, Reflector
from controller.kube.request_limit import Sender
from controller.operator import events
from controller.operator.experiment_kind import ExperimentKind, ExperimentKinds
from controller.operator.experiments import AWAY_S, HostedExperiments, StoreAway
from controller.operator.hosting import HostedWorkspace
from controller.operator.leadership import Leadership
from controller.operator.managed import ManagedExperiment
from controller.operator.resource import (
    ExperimentResource,
    kind_of,
    object_name,
    says_it_runs,
    uid_of,
)
from controller.operator.status import (
    AMOUNTS,
    ARCHIVE_AWAY,
    condition_of,
    status_of,
    waiting_status,
)
from suggest.backoff import Backoff
from suggest.errors import TunerError
from suggest.fair_share import FairShare

STATUS_S = 1.0  # between two looks at an experiment that runs
# Between two statuses that differ only in amounts: each of thousands would be another one with
# every look, and each is a conflict for an edit that comes at that moment.
AMOUNTS_S = 30.0
# Statuses that are written at the same time; those of a single namespace may be half of them. An
# experiment takes turns with each of them: of 10,000 that are applied at once, those that may run
# would begin after the statuses of all the others.
_WRITES_AT_ONCE = 32
_LOOKS = 4  # in that time, at one that has just begun or changed
WRITTEN, REFUSED = "written", "refused"  # statuses
_DETACH_S = 15.0
_BACKOFF = Backoff(first_s=0.5, longest_s=15.0, jitter=0.5)
_STATUS_BACKOFF = Backoff(first_s=1.0, longest_s=30.0, jitter=0.5)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Watched:
    """The resources of one kind, in one namespace or in all."""

    kind: ExperimentKind
    reflector: Reflector[KubernetesObject]

    def find(self, namespace: str, name: str) -> ExperimentResource | None:
        found = self._object(namespace, name)
        return None if found is None else self.kind.seen(found)

    def is_left(self, namespace: str, name: str) -> bool:
        """Return whether the object exists, and another controller is to run it."""
        found = self._object(namespace, name)
        return found is not None and self.kind.seen(found) is None

    def _object(self, namespace: str, name: str) -> KubernetesObject | None:
        if not name.endswith(self.kind.suffix):
            return None
        return self.reflector.objects.get((namespace, name.removesuffix(self.kind.suffix)))

    @property
    def all(self) -> Iterator[ExperimentResource]:
        seen = map(self.kind.seen, self.reflector.objects.values())
        return (resource for resource in seen if resource is not None)


class ExperimentResources:
    """The custom resources of all namespaces that the controller watches.

    listener: called with the key of each resource that was added, changed or deleted. Names are
    those of the store.
    """

    def __init__(
        self, client: KubernetesClient, namespaces: Sequence[str], kinds: ExperimentKinds
    ) -> None:
        self._client = client
        self.kinds = kinds
        self.listener: Callable[[Key], None] = lambda _key: None
        self._troubles: dict[_Watched, str] = {}  # why some could not be listed the last time
        self._later: list[asyncio.Task[None]] = []  # lists these
        scopes: Sequence[str | None] = namespaces or [None]
        self._watched = [self._watch(kind, scope) for scope in scopes for kind in kinds]

    def _watch(self, kind: ExperimentKind, scope: str | None) -> _Watched:
        def changed(key: Key) -> None:
            self.listener((key[0], key[1] + kind.suffix))

        return _Watched(kind, Reflector(self._client, kind.kind, scope, changed=changed))

    async def start(self) -> None:
        """Return after the first lists. Each is tried again until the server answers.

        A definition may be missing for a while, as may a right. While those of other kinds than
        Tuner's are, the experiments of Tuner's do not wait for them.
        """
        await asyncio.gather(*map(self._list, self._watched))

    async def _list(self, watched: _Watched, *, waits: bool = False) -> None:
        kind = watched.kind.kind
        for failures in count():
            try:
                await watched.reflector.start()
            except (ApiError, TunerError, RuntimeLost) as error:
                if str(error) != self._troubles.get(watched):
                    name = f"{kind.plural} of {kind.api_version}"
                    _log.warning("%s cannot be listed: %s", name, error)
                self._troubles[watched] = str(error)
                is_absent = isinstance(error, ApiForbidden | ApiNotFound)  # a right or a definition
                if is_absent and kind != EXPERIMENTS and not waits:
                    self._later.append(asyncio.create_task(self._list(watched, waits=True)))
                    return
                await asyncio.sleep(_BACKOFF.pause_s(failures))
            else:
                self._troubles.pop(watched, None)
                return

    def find(self, namespace: str, name: str) -> ExperimentResource | None:
        found = (each.find(namespace, name) for each in self._watched)
        return next((resource for resource in found if resource is not None), None)

    def is_left(self, namespace: str, name: str) -> bool:
        """Return whether the object exists, and another controller is to run it."""
        return any(each.is_left(namespace, name) for each in self._watched)

    def put(self, kind: Kind, patched: Raw) -> None:
        """Show what a patch returned, at once."""
        about = patched["metadata"]
        key = about["namespace"], about["name"]
        for watched in self._watched:
            if watched.kind.kind == kind and key in watched.reflector.objects:
                watched.reflector.put(cast(KubernetesObject, patched))

    async def write_status(
        self, client: KubernetesClient, resource: ExperimentResource, status: Raw
    ) -> None:
        """Write the status of the object, and of no later one of its name.

        Its fields belong to this manager, except in Katib's resources: their clients send back what
        they have read of owners, and that would be out of date (ADR 32).

        Raises ApiError: 404 or 409 if it has changed or gone, which comes with an event.
        """
        kind, about = kind_of(resource), resource["metadata"]
        namespace, name, uid = about["namespace"], object_name(resource), about["uid"]
        if kind == EXPERIMENTS:
            known = self.find(namespace, about["name"])
            newest = resource if known is None or uid_of(known) != uid else known
            # A uid would not ensure that it is this version: see `KubernetesClient.replace_status`.
            version = {"resourceVersion": newest["metadata"]["resourceVersion"]}
            body = {"metadata": version, "status": status}
            written = await client.apply(
                kind, namespace, name, body, subresource="status", force=True
            )
        else:
            written = await client.replace_status(kind, namespace, name, status, uid=uid)
        self.put(kind, written)

    async def show_waiting(self, guard: Leadership, trouble: str) -> None:
        """Say in the statuses why nothing runs, while no experiment can be read."""
        for resource in list(self.all):
            about, before = resource["metadata"], resource.get("status") or {}
            now = datetime.now(UTC)
            status = waiting_status(before, about.get("generation", 0), trouble, now)
            if status == before:
                continue
            try:
                await guard.check()
                whole = self.kinds.of(resource).whole(resource, status)
                await self.write_status(self._client, resource, whole)
            except ApiError as error:
                key = about["namespace"], about["name"]
                _log.warning("status of %s/%s cannot be written: %s", *key, error)
            except (TunerError, RuntimeLost) as error:
                _log.warning("statuses cannot be written: %s", error)
                return

    @property
    def trouble(self) -> str:
        """Return why the resources cannot be watched at present; "" if they can."""
        troubles = (each.reflector.trouble for each in self._watched)
        return next(filter(None, chain(self._troubles.values(), troubles)), "")

    @property
    def all(self) -> Iterator[ExperimentResource]:
        return chain.from_iterable(each.all for each in self._watched)

    @property
    def keys(self) -> list[Key]:
        """Return namespace and name of each."""
        about = (resource["metadata"] for resource in self.all)
        return [(each["namespace"], each["name"]) for each in about]

    @property
    def namespaces(self) -> frozenset[str]:
        """Return the namespaces that have experiments."""
        return frozenset(each["metadata"]["namespace"] for each in self.all)

    @property
    def broken_watches(self) -> list[str]:
        return [each.reflector.kind.plural for each in self._watched if each.reflector.trouble]

    async def close(self) -> None:
        await cancelled(*self._later)
        await asyncio.gather(*(each.reflector.close() for each in self._watched))


class Manager:
    """Runs the experiments of all resources until it is cancelled; then their Jobs run on."""

    def __init__(
        self,
        workspace: HostedWorkspace,
        resources: ExperimentResources,
        experiments: HostedExperiments,
    ) -> None:
        self._workspace = workspace
        self._resources = resources
        self._experiments = experiments
        self._managed: dict[Key, ManagedExperiment] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._dirty: set[Key] = set()
        self._hurried: set[Key] = set()  # changed again while their statuses are written
        self.status_writes = Counter({WRITTEN: 0, REFUSED: 0})
        self._writes: dict[Key, asyncio.Task[None]] = {}  # under way
        self._places = FairShare(_WRITES_AT_ONCE)
        self._written_s: dict[Key, float] = {}  # when each status was written last
        # How often in a row a status was refused, and until when it is not written again.
        self._refusals: dict[Key, tuple[int, float]] = {}

    def resource_changed(self, key: Key) -> None:
        """Look at the experiment of the resource, now or when `run` has begun."""
        managed = self._managed.get(key)
        if managed is None:
            managed = self._managed[key] = ManagedExperiment(
                *key,
                workspace=replace(self._workspace, tenant=key[0]),
                kinds=self._resources.kinds,
                experiments=self._experiments,
                changed=lambda: self._dirty.add(key),
                hurry=lambda: self._hurry(key),
            )
            self._tasks[key] = asyncio.create_task(self._manage(key, managed))
        managed.resource_changed()
        self._dirty.add(key)

    async def run(self) -> None:
        """Raises StoreAway, having released the lease, when the database is away for AWAY_S."""
        try:
            self._resources.listener = self.resource_changed
            # Running experiments first: there may be thousands of others.
            for resource in sorted(self._resources.all, key=says_it_runs, reverse=True):
                about = resource["metadata"]
                self.resource_changed((about["namespace"], about["name"]))
            for key in self._experiments.namespaced_names():
                self.resource_changed(key)
            was_away = ""
            was_behind = self._experiments.behind
            while True:
                if was_away and not self._experiments.away:
                    for each in self._managed.values():
                        each.notify()  # without waiting for the end of its pause
                was_away = self._experiments.away
                if self._experiments.away_s > AWAY_S:
                    # First, because to detach takes longer; nothing is written without the lease.
                    await self._workspace.guard.release()
                    raise StoreAway(was_away)
                behind = self._experiments.behind
                if behind is not None and behind != was_behind:
                    was_behind = behind
                    self._notify_archived(behind)
                managed = self._managed
                self._dirty.update(key for key in managed if managed[key].is_running)
                for _ in range(_LOOKS):
                    self._write_statuses()
                    await asyncio.sleep(STATUS_S / _LOOKS)
                    self._dirty.update(key for key in managed if managed[key].has_just_begun)
        finally:
            await self._detach()

    def _notify_archived(self, behind: frozenset[Uid]) -> None:
        """Look at the experiments whose statuses say something else of their logs."""
        for resource in list(self._resources.all):
            shown = condition_of(resource.get("status") or {}, ARCHIVE_AWAY).get("status")
            about = resource["metadata"]
            managed = self._managed.get((about["namespace"], about["name"]))
            if managed is not None and (shown == "True") != (uid_of(resource) in behind):
                managed.notify()

    async def _manage(self, key: Key, managed: ManagedExperiment) -> None:
        await managed.run()
        del self._managed[key], self._tasks[key]
        self._refusals.pop(key, None)
        self._written_s.pop(key, None)

    async def _detach(self) -> None:
        """Let go of all experiments in the time that a pod has to end.

        What has not ended by then ends with the process, and the next controller finds it so.
        """
        for task in self._tasks.values():
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DETACH_S):
                await asyncio.gather(*self._tasks.values(), return_exceptions=True)
                detaching = (managed.detach() for managed in self._managed.values())
                await asyncio.gather(*detaching, return_exceptions=True)
                await asyncio.gather(*self._writes.values())
                self._dirty.update(self._managed)
                self._refusals.clear()
                self._write_statuses()
                await asyncio.gather(*self._writes.values())
        self._hurried.clear()  # no other write begins
        for writing in self._writes.values():
            writing.cancel()
        for managed in self._managed.values():
            managed.abandon()

    def _write_statuses(self) -> None:
        """Begin to write the statuses that may have changed, and wait for none of them."""
        for key in list(self._dirty):
            self._begin_write(key)

    def _hurry(self, key: Key) -> None:
        """Write this status without waiting for the next look at all of them."""
        self._dirty.add(key)
        if key in self._writes:
            self._hurried.add(key)
        else:
            self._begin_write(key)

    def _begin_write(self, key: Key) -> None:
        _, not_before_s = self._refusals.get(key, (0, 0.0))
        is_early = key in self._writes or time.monotonic() < not_before_s
        if is_early or not self._workspace.guard.holds:
            return
        self._dirty.discard(key)
        self._writes[key] = asyncio.create_task(self._write_status(key))

    async def _write_status(self, key: Key) -> None:
        """Write the status of a resource if it has changed; a refused one later again."""
        client = self._workspace.cluster.client
        await self._places.take(key[0])
        try:
            await client.turns.next(Sender(*key))
            managed, resource = self._managed.get(key), self._resources.find(*key)
            if managed is not None and resource is not None:
                await self._write_changed(managed, resource)
            self._refusals.pop(key, None)
        except (ApiError, TunerError, RuntimeLost) as error:
            self._refused(key, error)
        except Exception as error:  # one experiment's bug must not end all others
            if key not in self._refusals:
                _log.exception("experiment=%s/%s", *key)
            self._refused(key, error)
        finally:
            self._places.give(key[0])
            del self._writes[key]
            if key in self._hurried:
                self._hurried.discard(key)
                self._begin_write(key)

    def _refused(self, key: Key, error: Exception) -> None:
        failures, _ = self._refusals.get(key, (0, 0.0))
        self._refusals[key] = failures + 1, time.monotonic() + _STATUS_BACKOFF.pause_s(failures)
        self._dirty.add(key)
        # It has changed or gone meanwhile, and that comes with an event.
        is_told = isinstance(error, ApiConflict | ApiNotFound)
        # Without the lease none is written, which is told once.
        if is_told or not self._workspace.guard.holds:
            return
        self.status_writes[REFUSED] += 1
        if not failures:
            _log.warning("status of %s/%s cannot be written: %s", *key, error)

    async def _write_changed(
        self, managed: ManagedExperiment, resource: ExperimentResource
    ) -> None:
        key = managed.namespace, managed.name
        if managed.says_more_soon:
            self._dirty.add(key)
            return
        seen, before = managed.observation(resource), resource.get("status")
        if seen is None:
            return
        status = status_of(seen, datetime.now(UTC))
        about, kind = resource["metadata"], self._resources.kinds.of(resource)
        sender = Sender(about["namespace"], about["uid"])
        client = self._workspace.cluster.client.on_behalf_of(sender)
        await self._workspace.guard.check()
        try:
            whole = await kind.shown(client, self._workspace, resource, seen, status)
            if whole == kind.whole(resource, before or {}):
                managed.park()
                return
            now_s = time.monotonic()
            amounts = {name: status[name] for name in AMOUNTS if name in status}
            differs = whole != kind.whole(resource, {**(before or {}), **amounts})
            pause_s = STATUS_S if differs else AMOUNTS_S
            is_early = key in self._written_s and now_s < self._written_s[key] + pause_s
            if is_early and managed.is_running:
                return  # and so it is looked at again
            await self._resources.write_status(client, resource, whole)
        except (ApiConflict, ApiNotFound):
            raise
        except ApiError as error:
            with contextlib.suppress(ApiError):
                await events.tell_unwritten(client, resource, error, status)
            raise
        self._written_s[key] = now_s
        self.status_writes[WRITTEN] += 1
        await events.tell(client, resource, before=before, now=status)
