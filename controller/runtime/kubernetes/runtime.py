"""Trials as objects on a Kubernetes cluster: `controller.runtime.protocol.Runtime` over one connection.

`observe` derives the attempts' statuses from the informer cache and writes nothing. `reconcile` does everything that is
due: admissions, removals, timeouts, following logs. The state here can be rebuilt from the cluster, which is the source
of truth about what runs, and from the attempts' folders. `admission` decides when there is room for an attempt and
creates its objects; `attempt_status` derives its status.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from controller.core.attempt import AttemptStatus
from controller.core.model import FINAL, AttemptKey, FailureClass, TrialOrFinal, Uid
from controller.kube.client import JOBS, PODS, SERVICES, Kind, KubernetesClient
from controller.kube.errors import AccessDenied, ApiError, ErrorClassifier
from controller.kube.objects import AttemptObject, Pod, Raw
from controller.kube.server_clock import ServerClock
from controller.runtime import log_file
from controller.runtime.kubernetes.admission import (
    AdmissionQueue,
    BackgroundRequests,
    JobCreations,
    JobCreator,
    other_parameters,
)
from controller.runtime.kubernetes.attempt_status import (
    StatusCache,
    collector_ended,
    collector_source,
    ends_by_pods,
    log_source,
    status_of,
)
from controller.runtime.kubernetes.informer import Informer
from controller.runtime.kubernetes.job_builder import build_objects, grace_of, timeout_of
from controller.runtime.kubernetes.kinds import at, kind_of, not_served, served_pod_field, status_rules_of
from controller.runtime.kubernetes.labels import attempt_of, name_of, queue_of
from controller.runtime.kubernetes.lease import FencingLease, LeaseHolder
from controller.runtime.kubernetes.logs import (
    COLLECTED_LOG,
    SOON_S,
    TRIAL_LOG,
    LogFollower,
    LogFollowers,
    PodContainer,
)
from controller.runtime.kubernetes.pod_status import NO_NODE_S, unschedulable_s, was_deleted
from controller.runtime.kubernetes.records import Record, Records
from controller.runtime.kubernetes.resource_quota import demand_of, never_fits
from controller.runtime.protocol import LOG_LIMIT_BYTES, CannotStart, Conclusion, Launch
from suggest import failpoints

BEFORE_NOTE, AFTER_NOTE = failpoints.register("cluster.note")  # that it was made there
BEFORE_DELETE, AFTER_DELETE = failpoints.register("cluster.delete")
BEFORE_CONCLUDE, AFTER_CONCLUDE = failpoints.register("cluster.conclude")


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """The cluster and namespace of one experiment's objects, and the objects that own them.

    anchor: the object that owns all others, so that deleting it deletes them. folder_of: the folder of a trial's or the
    final stage's attempt. template: the object in the experiment file, if there is one. holder: the identity of this
    controller in the lease; None: there is no lease, because no other controller can exist. has_collector: the trials'
    measurements are in the log of a sidecar. log_limit_bytes: the cap of each copy of a log on this machine's disk.
    """

    client: KubernetesClient
    namespace: str
    uid: Uid
    anchor: Raw
    folder_of: Callable[[TrialOrFinal, int], Path]
    template: Raw | None = None
    holder: LeaseHolder | None = None
    has_collector: bool = False
    log_limit_bytes: int = LOG_LIMIT_BYTES


# Finds the container whose log is followed, among the pods of an object.
FindSource: TypeAlias = Callable[[AttemptObject | None, Sequence[Pod]], PodContainer | None]

# At most a twentieth of the time is spent reading. A burst of notifications may borrow from the time to come: the turns
# of a few trials, not those of twenty, whose ends come in waves and are cheaper together.
_READING_SHARE, _BORROWED_S, _LONGEST_REST_S = 0.05, 0.004, 0.2
# A kubelet ends a sidecar within seconds of its trial. It never does where the trial cannot start, where its container
# is restarted again and again, and where its node is lost.
SIDECAR_S = 60.0


class Wakeup:
    """Coalescing wakeup: one future instead of a task per notification, because notifications are frequent.

    Notifications come in bursts, and each turn of the reader costs more the busier the machine is. `wait` therefore
    rests once reading has taken more than its share of the time. A single experiment of a few trials stays below the
    share and is woken at once. A notification after `clear` is not lost: the next wait returns at once. Log growth
    wakes only a waiter that asks for it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = self._observed_s = clock()
        self._owed_s = 0.0  # seconds of reading beyond the share so far
        self._notified = self._growth = False
        self._waiting: asyncio.Future[None] | None = None
        self._waits_for_growth = False

    def clear(self) -> None:
        """Note that the reader begins to read."""
        self._notified = self._growth = False
        self._began_s = self._clock()

    def observed(self) -> None:
        """Note that the reader has read everything."""
        now_s = self._clock()
        since_s, self._observed_s = now_s - self._observed_s, now_s
        owed_s = max(0.0, self._owed_s - _READING_SHARE * since_s) + now_s - self._began_s
        self._owed_s = min(owed_s, _BORROWED_S + _READING_SHARE * _LONGEST_REST_S)  # the rest of one turn

    def notify(self) -> None:
        self._notified = True
        self._wake()

    def notify_log_growth(self) -> None:
        self._growth = True
        if self._waits_for_growth:
            self._wake()

    async def wait(self, within_s: float, *, growth: bool) -> None:
        """Wait for a notification, at most within_s. Only one task may wait at a time."""
        rest_s = (self._owed_s - _BORROWED_S) / _READING_SHARE
        await asyncio.sleep(max(0.0, min(rest_s, within_s, _LONGEST_REST_S)))
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


class _ObservedAttempt(NamedTuple):
    """An attempt with its object and pods in the cache. existing: the kind and the object; None: it is gone."""

    name: str
    key: AttemptKey
    existing: tuple[Kind, AttemptObject] | None
    pods: Sequence[Pod]

    @property
    def obj(self) -> AttemptObject | None:
        return None if self.existing is None else self.existing[1]


class KubernetesRuntime:
    """The runtime of one experiment. It sends nothing to the cluster before the first call that needs it.

    `clock`: the monotonic seconds by which a sidecar's end is awaited.
    """

    def __init__(
        self, target: ClusterTarget, *, queue: AdmissionQueue, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._target = target
        self._queue = queue
        self._clock = clock
        self._records = Records()
        self._wakeup = Wakeup()
        self._opened: tuple[Informer, JobCreations] | None = None
        self._opening = asyncio.Lock()
        self._keys: dict[str, AttemptKey] = {}
        grown, ended = self._wakeup.notify_log_growth, self._wakeup.notify
        self._server_clock = ServerClock(target.client)
        self._followers, self._collected = self._copies = tuple(
            LogFollowers(
                target.client,
                target.namespace,
                log,
                grown=grown,
                ended=ended,
                now=self._server_clock.now,
                limit_bytes=target.log_limit_bytes,
            )
            for log in (TRIAL_LOG, COLLECTED_LOG)
        )
        self._end_seen_s: dict[str, float] = {}  # when an end was first derived, while the sidecar may still print
        self._made: set[str] = set()  # seen on the cluster by this process
        self._over: set[str] = set()  # those of them whose pods have ended
        self._leaving = BackgroundRequests(failed=self._wakeup.notify)
        self._status_cache = StatusCache()
        # Left by the last reconcile, for the next observe.
        self._latest: list[tuple[_ObservedAttempt, AttemptStatus]] | None = None
        self._errors = ErrorClassifier()
        self._looked_for_room: bool | None = None  # whether the last check of the quota was for the final stage
        self._lines_are_awaited = True
        self._log_times = log_file.LogTimes()
        self._lease = FencingLease(
            target.client, target.namespace, target.anchor, target.holder, clock=self._server_clock,
            changed=self._wakeup.notify,
        )  # fmt: skip
        self._pod_field: str | None = ""  # of the template, as this cluster has it
        self._strange: set[str] = set()  # uids of objects that have an attempt's name but other parameters

    @property
    def _client(self) -> KubernetesClient:
        return self._target.client

    # The protocol

    @property
    def shows_at_once(self) -> bool:
        return False

    async def start(self, launch: Launch) -> None:
        part = launch.cluster
        assert part is not None, "a launch for a cluster says what the cluster needs"
        informer, creations = await self._open()
        self._keys[launch.name] = part.trial, part.attempt
        if launch.name in self._queue.waiting or launch.name in creations.refused:
            return
        record = self._records.of(launch.directory)
        if existing := informer.find(launch.name):
            self._expect_ours(launch, existing[1], record)
            return
        if record is not None and (record.removed or record.uid):
            raise CannotStart("it was created before, and has disappeared", FailureClass.INFRASTRUCTURE)
        if part.manifest is not None and (trouble := not_served(part.manifest, self._pod_field)):
            raise CannotStart(trouble)
        objects = build_objects(launch, pod_field=self._pod_field)
        if self._looked_for_room is not (part.trial is FINAL):
            self._looked_for_room = part.trial is FINAL
            quotas = informer.quotas
            if never := never_fits(demand_of(objects), quotas, informer.limit_ranges):
                raise CannotStart(never)
        try:
            self._queue.add(launch, objects, limit_ranges=informer.limit_ranges)
        except ValueError as error:
            raise CannotStart(str(error)) from error
        await self._ask(creations.admit(running=self._busy))

    def _forget(self, name: str) -> None:
        self._latest = None
        self._keys.pop(name, None)
        self._made.discard(name)
        self._over.discard(name)
        self._end_seen_s.pop(name, None)
        self._status_cache.forget(name)

    def _expect_ours(self, launch: Launch, existing: AttemptObject, record: Record | None) -> None:
        """Raise CannotStart if the object has other parameters than the attempt of that number."""
        if record is not None and record.uid == existing["metadata"]["uid"]:
            return
        if trouble := other_parameters(build_objects(launch)[-1], existing, self._target.namespace):
            self._strange.add(existing["metadata"]["uid"])
            self._forget(launch.name)
            raise CannotStart(trouble)

    async def stop(self, name: str, *, grace_s: float) -> None:
        informer, creations = await self._open()
        self._queue.drop(name)
        await creations.settle(name)
        existing = informer.find(name)
        attempt = self._keys.get(name) if existing is None else attempt_of(existing[1])
        if attempt is None:
            return
        observed = _ObservedAttempt(name, attempt, existing, informer.pods_by_attempt().get(attempt, []))
        pods = observed.pods
        if (existing is None and not pods) or self._status_of(observed).exit is not None:
            return
        self._status_cache.forget(name)
        await self._ask(self._lease.check())
        self._records.note(self._target.folder_of(*attempt), stopped=True)
        if existing is None:
            await self._ask(self._delete_pods(pods, grace_s=grace_s))
        else:
            kind, obj = existing
            await self._ask(self._end(kind, name, obj, pods, grace_s=grace_s))

    async def remove(self, name: str) -> None:
        self._log_times.forget(name)
        informer, creations = await self._open()
        self._queue.drop(name)
        await creations.settle(name)
        creations.refused.pop(name, None)
        existing = informer.find(name)
        if existing is not None and existing[1]["metadata"]["uid"] in self._strange:
            existing = None
        if existing is not None:
            await self._ask(self._lease.check())
        attempt = self._keys.get(name) or (attempt_of(existing[1]) if existing else None)
        # The pods of an attempt whose object was deleted without them.
        orphans = (
            informer.pods_of(attempt)
            if existing is None and attempt is not None and not self._is_removed(attempt)
            else []
        )
        if attempt is not None and (existing or self._records.of(self._target.folder_of(*attempt))):
            self._records.note(self._target.folder_of(*attempt), removed=True)
        if existing is not None and not self._leaving.is_under_way(name):
            kind, obj = existing
            running: Sequence[Pod] = []
            if attempt is not None:
                observed = _ObservedAttempt(name, attempt, existing, informer.pods_by_attempt().get(attempt, []))
                if kind is not JOBS or self._status_of(observed).exit is None:
                    running = observed.pods
            await self._start_removal(name, self._remove(informer, kind, obj, running))
        elif orphans and not self._leaving.is_under_way(name):
            await self._start_removal(name, self._delete_pods(orphans, grace_s=0))
        if (started := self._keys.get(name)) is not None:
            informer.forget_pods(started)
        self._forget(name)
        informer.events.forget(name)
        for followers in self._copies:
            await followers.drop(name)

    async def _start_removal(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        # Wait for the last removal: no later turn would retry it.
        await self._ask(self._leaving.send(name, work, wait=not (self._made - self._over - {name})))

    async def _remove(self, informer: Informer, kind: Kind, obj: AttemptObject, running: Sequence[Pod]) -> None:
        name = obj["metadata"]["name"]
        await self._delete_pods(running, grace_s=0)  # the garbage collector would give them their full grace period
        if service := at(obj, "spec.template.spec.subdomain"):
            await self._client.delete(SERVICES, self._target.namespace, service)
        failpoints.reach(BEFORE_DELETE)
        await self._delete(kind, name, obj)
        failpoints.reach(AFTER_DELETE)
        informer.drop(kind, name)

    async def observe(self) -> Mapping[str, AttemptStatus]:
        informer, creations = await self._current()
        statuses: dict[str, AttemptStatus] = {}
        latest, self._latest = self._latest, None
        if latest is None:
            latest = [(observed, self._current_status(informer, observed)) for observed in self._attempts(informer)[0]]
        for observed, status in latest:
            statuses[observed.name] = self._shown_status(observed, status)
        waiting = {name: AttemptStatus(name, None, waiting=reason) for name, reason in self._queue.waiting.items()}
        self._wakeup.observed()
        return waiting | creations.refused | statuses

    async def reconcile(self) -> None:
        informer, creations = await self._open()
        self._wakeup.clear()  # here and not in read_log: growth from now on causes a notification
        informer.clear_deleted()
        if self._trouble(informer) is not None:
            for followers in self._copies:
                followers.extend_time_limit()
            self._end_seen_s.clear()
        await self._current()
        attempts, leaving, removed = self._attempts(informer)
        for name in leaving:
            # The removal was refused, or an earlier controller recorded it and did not finish.
            if not self._leaving.is_under_way(name):
                await self.remove(name)
        for attempt in removed:
            informer.forget_pods(attempt)  # their deletion by the garbage collector shows later
        latest: list[tuple[_ObservedAttempt, AttemptStatus]] = []
        for observed in attempts:
            status = self._cached(informer, observed)
            if observed.existing is None:
                status = self._finish_without_object(observed)
                creations.forget_anchor()  # the anchor may be gone too, and have taken this object with it
            elif status is None:
                status = await self._reconcile_attempt(informer, observed, *observed.existing)
            if status is not None:
                latest.append((observed, status))
        await self._ask(creations.admit(running=self._busy))
        self._latest = latest

    async def read_log(self, name: str, offset: int, *, limit: int = 1 << 20) -> bytes:
        await self._open()
        if (attempt := self._keys.get(name)) is None:
            return b""
        directory = self._target.folder_of(*attempt)
        if data := await self._followers.read(name, directory, offset, limit):
            self._log_times.note(name, directory / TRIAL_LOG.file, offset + len(data))
        return data

    async def read_metrics(self, name: str, offset: int, *, limit: int = 1 << 20) -> bytes:
        await self._open()
        if (attempt := self._keys.get(name)) is None or not self._target.has_collector:
            return b""
        return await self._collected.read(name, self._target.folder_of(*attempt), offset, limit)

    async def wait(self, within_s: float, *, log_growth: bool) -> None:
        self._lines_are_awaited = log_growth
        if log_growth:
            for followers in self._copies:
                followers.follow_all_now()
        await self._wakeup.wait(within_s, growth=log_growth)

    async def conclude(self, conclusion: Conclusion) -> None:
        await self._open()
        failpoints.reach(BEFORE_CONCLUDE)
        await self._ask(self._lease.conclude(conclusion))
        failpoints.reach(AFTER_CONCLUDE)

    def slots(self, gpu: float, workers: int) -> int | None:
        return None  # quota and scheduler decide

    def hurry(self) -> None:
        pass  # a busy API server needs the time that its requests have

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        for followers in self._copies:
            await followers.close()
        self._queue.close()
        if opened is not None:
            informer, creations = opened
            await asyncio.gather(creations.close(), self._leaving.close())
            await self._lease.close()
            await informer.close()
        await self._target.client.close()

    def _is_removed(self, attempt: AttemptKey) -> bool:
        """Whether we have deleted the attempt's object for good; it may still exist for a while."""
        record = self._records.of(self._target.folder_of(*attempt))
        return record is not None and record.removed

    # Looking

    async def _open(self) -> tuple[Informer, JobCreations]:
        if self._opened is not None:
            return self._opened
        async with self._opening:
            if self._opened is None:
                target = self._target
                stem = f"{target.anchor['metadata']['name']}-"
                informer = Informer(target.client, target.namespace, target.uid, stem, changed=self._wakeup.notify)
                try:
                    await self._ask(self._server_clock.read())
                    await self._ask(self._lease.verify())
                    await self._ask(informer.open())
                    await self._ask(self._watch_template(informer))
                except BaseException:
                    await informer.close()
                    raise
                creator = JobCreator(target.client, target.namespace, target.anchor, self._lease)
                record, wake = self._record_created, self._wakeup.notify
                self._opened = informer, JobCreations(self._queue, creator, informer, on_created=record, changed=wake)
            return self._opened

    async def _watch_template(self, informer: Informer) -> None:
        """Watch the kind of the template from the start. If the server lacks it, the first attempt reports that."""
        if self._target.template is None:
            return
        try:
            kind = await kind_of(self._client, self._target.template)
        except ApiError as error:
            if error.status != 404:
                raise
            return
        self._pod_field = await served_pod_field(self._client, self._target.template)
        await informer.watch(kind)

    async def _current(self) -> tuple[Informer, JobCreations]:
        """Return the cache and the creations. Raises what keeps the cluster from being read."""
        if self._lease.lost is not None:
            raise self._lease.lost
        informer, creations = await self._open()
        if (trouble := self._trouble(informer)) is not None:
            raise self._errors.classify(trouble, patient=True)
        return informer, creations

    def _trouble(self, informer: Informer) -> Exception | None:
        return informer.trouble or self._followers.unreadable() or self._collected.unreadable()

    def _attempts(self, informer: Informer) -> tuple[list[_ObservedAttempt], list[str], list[AttemptKey]]:
        """Return the attempts that have, or had while this process ran, an object or pods on the cluster.

        Of removed attempts, return the names of objects that still exist, and the keys of those with pods only.
        """
        pods = informer.pods_by_attempt()
        by_name: dict[str, _ObservedAttempt] = {}
        leaving: list[str] = []
        removed: list[AttemptKey] = []
        for kind, name, obj in informer.objects():
            attempt = self._keys.get(name) or attempt_of(obj)
            if attempt is None:
                continue
            if obj["metadata"]["uid"] in self._strange:
                pods.pop(attempt, None)
            elif self._is_removed(attempt):
                leaving.append(name)
            else:
                self._keys[name] = attempt
                self._made.add(name)
                by_name[name] = _ObservedAttempt(name, attempt, (kind, obj), pods.pop(attempt, []))
        started = set(self._keys.values())
        for attempt, remaining in pods.items():
            if self._is_removed(attempt):
                removed.append(attempt)
            elif attempt not in started:
                self._keys[name_of(remaining[0], attempt)] = attempt
        for name, attempt in self._keys.items():
            if name not in by_name and not self._is_removed(attempt) and (name in self._made or attempt in pods):
                by_name[name] = _ObservedAttempt(name, attempt, None, pods.get(attempt, []))
        return list(by_name.values()), leaving, removed

    def _cached(self, informer: Informer, observed: _ObservedAttempt) -> AttemptStatus | None:
        if observed.existing is None:
            return None
        return self._status_cache.get(observed.name, observed.existing[1], observed.pods, quiet=informer.events.quiet)

    def _current_status(self, informer: Informer, observed: _ObservedAttempt) -> AttemptStatus:
        cached = self._cached(informer, observed)
        return cached or self._explained(informer, observed, self._status_of(observed))

    def _shown_status(self, observed: _ObservedAttempt, status: AttemptStatus) -> AttemptStatus:
        """Return the status to show. An end is shown once the logs are complete: their last lines classify the end."""
        if status.exit is None:
            return status
        collected = self._collected.is_whole(observed.name, self._source(observed, collector_source, self._collected))
        if not collected or not self._followers.is_whole(observed.name, self._log_source(observed)):
            return replace(status, exit=None)
        if status.exit.code is None or status.exit.stopped or status.exit.timed_out:
            return status  # it was ended from outside, so nobody misses its last lines
        lost, metrics_lost = self._followers.trouble(observed.name), self._collected.trouble(observed.name)
        if lost or metrics_lost:
            return replace(status, exit=replace(status.exit, log_end_lost=lost, metrics_end_lost=metrics_lost))
        return status

    def _explained(self, informer: Informer, observed: _ObservedAttempt, status: AttemptStatus) -> AttemptStatus:
        """Return the status with the reason for waiting, from events and from Kueue."""
        if observed.existing is None or status.start_time is not None or status.exit is not None:
            return status
        obj = observed.existing[1]
        if status.suspended:
            return replace(status, waiting=informer.workloads.why(obj)) if queue_of(obj) else status
        refusal = "" if observed.pods else informer.events.refusal(obj["metadata"]["uid"])
        mount_trouble = informer.events.mount_trouble(observed.pods)
        if refusal or mount_trouble:
            return self._status_of(observed, refusal=refusal, mount_trouble=mount_trouble)
        return status

    def _log_source(self, observed: _ObservedAttempt) -> PodContainer | None:
        return self._source(observed, log_source, self._followers)

    def _source(self, observed: _ObservedAttempt, find: FindSource, followers: LogFollowers) -> PodContainer | None:
        if observed.existing is not None:
            return find(observed.existing[1], observed.pods)
        # The pods may keep running without their object, and their log still counts.
        existing = [pod for pod in observed.pods if not was_deleted(pod)]
        return None if followers.has(observed.name) else find(None, existing)

    def _collect(self, observed: _ObservedAttempt, status: AttemptStatus, directory: Path, *, at_once: bool) -> bool:
        """Follow the collector's log; return whether it is followed, or there is none yet."""
        source = self._source(observed, collector_source, self._collected)
        follower = self._collected.follow(observed.name, source, directory, at_once=at_once)
        if follower is not None and (collector_ended(observed.obj, observed.pods) or self._outlived(observed, status)):
            follower.ended()
        return source is None or self._collected.is_of(observed.name, source)

    def _outlived(self, observed: _ObservedAttempt, status: AttemptStatus) -> bool:
        """Whether the attempt has ended, and no end of its sidecar is to be expected."""
        if status.exit is None:
            self._end_seen_s.pop(observed.name, None)
            return False
        # Not the attempt's start time, which waits for all workers: the first one may have run and reported before.
        has_run = log_source(observed.obj, observed.pods) is not None
        if not has_run and status.exit.failure_class is not None:
            return True
        now_s = self._clock()
        return now_s - self._end_seen_s.setdefault(observed.name, now_s) >= SIDECAR_S

    def _status_of(self, observed: _ObservedAttempt, *, refusal: str = "", mount_trouble: str = "") -> AttemptStatus:
        record = self._records.of(self._target.folder_of(*observed.key)) or Record()
        status = status_of(
            observed.name,
            observed.obj,
            observed.pods,
            stopped=record.stopped or record.timed_out,
            now=self._server_clock.now(),
            refusal=refusal,
            mount_trouble=mount_trouble,
            nodes=() if self._opened is None else self._opened[0].nodes.objects,
        )
        if record.timed_out and status.exit is not None and status.exit.stopped:
            return replace(status, exit=replace(status.exit, timed_out=True, stopped=False))
        return status

    # Acting

    @property
    def _busy(self) -> int:
        """Return the number of attempts on the cluster whose pods have not ended."""
        return len(self._made - self._over)

    async def _reconcile_attempt(
        self, informer: Informer, observed: _ObservedAttempt, kind: Kind, obj: AttemptObject
    ) -> AttemptStatus | None:
        """Follow the log, and end the attempt at its timeout. None: withdrawn because of the quota; it waits again."""
        name, pods, directory = observed.name, observed.pods, self._target.folder_of(*observed.key)
        status = self._status_of(observed)
        if status.suspended:
            informer.events.forget(name)
        elif status.start_time is None and status.exit is None:
            informer.events.note_waiting(name, kind, pods, has_quota=informer.has_quota)
            if any(unschedulable_s(pod, now=self._server_clock.now()) >= NO_NODE_S for pod in pods):
                informer.nodes.refresh()
        else:
            informer.events.note_running(name)
        refusal = "" if pods or status.suspended else informer.events.refusal(obj["metadata"]["uid"])
        if refusal and status.exit is None and self._queue.refused(name, refusal):
            await self._ask(self._delete(kind, name, obj))
            informer.drop(kind, name)
            self._records.forget(directory)
            self._made.discard(name)
            return None
        status = self._explained(informer, observed, status)
        source = self._log_source(observed)
        at_once = self._lines_are_awaited or status.exit is not None
        follower = self._followers.follow(name, source, directory, at_once=at_once)
        is_collected = self._collect(observed, status, directory, at_once=at_once)
        if status.exit is not None:
            self._note_end(name, follower)
            return status
        left_s = None
        if (limit_s := timeout_of(obj)) is not None and status.start_time is not None:
            left_s = limit_s - (self._server_clock.now() - status.start_time).total_seconds()
            deaf = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
            if left_s <= 0 and deaf:  # repeat until the deletion shows
                self._records.note(directory, timed_out=True)
                await self._ask(self._end(kind, name, obj, deaf, grace_s=grace_of(obj)))
        if follower is None and source is not None:
            left_s = min(SOON_S, math.inf if left_s is None else left_s)
        if is_collected and (follower is None or self._followers.is_of(name, source)):
            self._status_cache.put(name, obj, pods, status, left_s=left_s)
        return status

    def _finish_without_object(self, observed: _ObservedAttempt) -> AttemptStatus:
        directory = self._target.folder_of(*observed.key)
        follower = self._followers.follow(observed.name, self._log_source(observed), directory, at_once=True)
        status = self._status_of(observed)
        self._collect(observed, status, directory, at_once=True)
        if status.exit is not None:
            self._note_end(observed.name, follower)
        return status

    def _note_end(self, name: str, follower: LogFollower | None) -> None:
        if follower is not None:
            follower.ended()
        self._over.add(name)
        self._queue.ended(name)

    def _record_created(self, launch: Launch, created: AttemptObject) -> None:
        failpoints.reach(BEFORE_NOTE)
        self._records.note(launch.directory, uid=created["metadata"]["uid"])
        failpoints.reach(AFTER_NOTE)
        self._made.add(launch.name)

    async def _end(self, kind: Kind, name: str, obj: AttemptObject, pods: Sequence[Pod], *, grace_s: float) -> None:
        """End the attempt within its grace period; without pods it never starts.

        An object that would replace a deleted pod, such as a Job with a backoffLimit, is deleted itself.
        """
        if pods and kind is JOBS and ends_by_pods(obj, status_rules_of(obj)):
            await self._delete_pods(pods, grace_s=grace_s)
            return
        await self._delete(kind, name, obj)
        await self._delete_pods(pods, grace_s=grace_s)

    async def _delete(self, kind: Kind, name: str, obj: AttemptObject) -> None:
        await self._lease.check()
        await self._client.delete(kind, self._target.namespace, name, uid=obj["metadata"]["uid"])

    async def _delete_pods(self, pods: Sequence[Pod], *, grace_s: float) -> None:
        await self._lease.check()
        for pod in pods:
            about = pod["metadata"]
            # With a grace of 0 the object would be deleted at once, and the container left to its node.
            least_s = max(1.0, grace_s)
            await self._client.delete(PODS, self._target.namespace, about["name"], uid=about["uid"], grace_s=least_s)

    async def _ask(self, request: Any) -> Any:
        """Await a request. Raises AccessDenied and RuntimeLost, see `ErrorClassifier`."""
        try:
            return await request
        except (ApiError, AccessDenied) as error:
            raise self._errors.classify(error, patient=self._opened is not None) from error
