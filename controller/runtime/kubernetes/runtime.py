"""Trials as objects on a Kubernetes cluster: `controller.runtime.protocol.Runtime` over one
connection.

`observe` derives the attempts' statuses from the informer cache and writes nothing. `reconcile`
does everything that is due: admissions, removals, timeouts, following logs. The state here can be
rebuilt from the cluster, which is the source of truth about what runs, and from `records` in the
controller's store. `attempt` is one row of it. `admission` decides when there is room for an
attempt and creates its objects; `attempt_status` derives its status.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from controller.core.attempt import AttemptStatus, ObjectRecord
from controller.core.model import FINAL, RETAIN, AttemptKey, FailureClass, TrialOrFinal, Uid
from controller.kube.client import JOBS, PODS, SERVICES, Kind
from controller.kube.cluster import Cluster, ReadingBudget
from controller.kube.errors import AccessDenied, ApiError, ApiNotFound, ErrorClassifier
from controller.kube.objects import AttemptObject, Pod, Raw
from controller.kube.request_limit import Sender
from controller.runtime.kubernetes.admission import (
    AdmissionQueue,
    BackgroundRequests,
    JobCreations,
    JobCreator,
    other_parameters,
)
from controller.runtime.kubernetes.attempt import AttemptOnCluster
from controller.runtime.kubernetes.informer import Informer, PodOwner
from controller.runtime.kubernetes.job_builder import build_objects, grace_of, timeout_of
from controller.runtime.kubernetes.kinds import (
    at,
    is_suspended,
    kind_of,
    not_served,
    served_pod_field,
)
from controller.runtime.kubernetes.labels import (
    ANSWERS,
    annotation,
    attempt_labels,
    attempt_named,
    attempt_of,
    name_of,
)
from controller.runtime.kubernetes.launch import part_of
from controller.runtime.kubernetes.lease import FencingLease, LeaseHolder, WriteGuard
from controller.runtime.kubernetes.logs import COLLECTED_LOG, AttemptLog, LogCopying
from controller.runtime.kubernetes.records import Records
from controller.runtime.kubernetes.resource_quota import demand_of, never_fits
from controller.runtime.protocol import LOG_LIMIT_BYTES, CannotStart, Conclusion, Launch
from controller.runtime.provider import ObjectRecords
from suggest import failpoints

_NOTE = failpoints.register("cluster.note")  # that it was made there
_ANSWER = failpoints.register("cluster.answer")
_DELETE = failpoints.register("cluster.delete")
_CONCLUDE = failpoints.register("cluster.conclude")


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """The cluster and namespace of one experiment's objects, and the objects that own them.

    cluster: is shared with other experiments of the process, and stays open when the runtime is
    closed.
    anchor: the object that owns all others, so that deleting it deletes them. It is created with
    the first of them.
    owner_of: returns an existing object that owns all others instead; `anchor` then only gives
    their names. Raises RuntimeLost if it is gone: nothing is created then.
    records: what was done with the objects of attempts.
    folder_of: the folder of a trial's or the final stage's attempt, which need not exist.
    guard: checks each write, or is this controller's identity in a lease of the experiment, which
    does.
    template: the object in the experiment file, if there is one.
    has_collector: the trials' measurements are in the log of a sidecar.
    log_limit_bytes: the cap of each copy of a log on this machine's disk.
    waits_for_quota: attempts wait also where they exceed all that a quota allows, until somebody
    raises it. Otherwise they cannot start, and the person who has started the experiment is told.
    """

    cluster: Cluster
    namespace: str
    uid: Uid
    anchor: Raw
    records: ObjectRecords
    folder_of: Callable[[TrialOrFinal, int], Path]
    guard: WriteGuard | LeaseHolder
    template: Raw | None = None
    has_collector: bool = False
    log_limit_bytes: int = LOG_LIMIT_BYTES
    owner_of: Callable[[], Raw] | None = None
    waits_for_quota: bool = False


class Wakeup:
    """Coalescing wakeup: an event instead of a task per notification, as these are frequent.

    Notifications come in bursts, and each turn of the reader costs more the busier the machine is.
    `wait` therefore rests once the experiments of the process have read for more than their share
    of the time. A single experiment of a few trials stays below the share and is woken at once. A
    notification after `clear` is not lost: the next wait returns at once. Log growth wakes only a
    waiter that asks for it.
    """

    def __init__(self, budget: ReadingBudget, namespace: str) -> None:
        self._budget = budget
        self._namespace = namespace
        self._began_s = budget.clock()
        self._notified = self._growth = False
        self._waits_for_growth = False
        self._wake = asyncio.Event()

    def clear(self) -> None:
        """Note that the reader begins to read."""
        self._notified = self._growth = False
        self._began_s = self._budget.clock()

    def observed(self) -> None:
        """Note that the reader has read everything."""
        self._budget.charge(self._namespace, self._budget.clock() - self._began_s)

    def notify(self) -> None:
        self._notified = True
        self._wake.set()

    def notify_log_growth(self) -> None:
        self._growth = True
        if self._waits_for_growth:
            self._wake.set()

    async def wait(self, within_s: float, *, growth: bool) -> None:
        """Wait for a notification, at most within_s. Only one task may wait at a time."""
        await asyncio.sleep(min(self._budget.rest_s(self._namespace), within_s))
        if self._notified or (growth and self._growth):
            return
        self._waits_for_growth = growth
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._wake.wait()


class _Look(NamedTuple):
    """What the informer shows now.

    attempts: those that have, or had while this process ran, an object or pods.
    leaving: the objects whose attempts were removed, by name. remains: the keys
    of removed attempts that have only pods left.
    """

    attempts: list[AttemptOnCluster]
    leaving: dict[str, AttemptKey]
    remains: list[AttemptKey]


class KubernetesRuntime:
    """The runtime of one experiment. It sends nothing to the cluster before a call needs it.

    `clock`: the monotonic seconds by which a sidecar's end is awaited.
    """

    def __init__(
        self,
        target: ClusterTarget,
        *,
        queue: AdmissionQueue,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._sender = sender = Sender(target.namespace, target.uid)
        self._client = target.cluster.client.on_behalf_of(sender)
        self._queue = queue
        self._clock = clock
        self._records = Records(target.records)
        self._wakeup = Wakeup(target.cluster.reading, target.namespace)
        self._opened: tuple[Informer, JobCreations] | None = None
        self._opening = asyncio.Lock()
        self._attempts: dict[str, AttemptOnCluster] = {}
        # Removed attempts whose objects stay; see RETAIN.
        self._retained: set[AttemptKey] = set()
        # The uids of objects that have an attempt's name but other parameters.
        self._foreign_uids: set[str] = set()
        self._server_clock = target.cluster.clock
        self._lines_are_awaited = True
        self._copying = LogCopying(
            self._client,
            sender,
            grown=self._wakeup.notify_log_growth,
            ended=self._wakeup.notify,
            now=self._server_clock.now,
            is_awaited=lambda: self._lines_are_awaited,
            limit_bytes=target.log_limit_bytes,
        )
        self._deletions = BackgroundRequests(failed=self._wakeup.notify)
        # The statuses that the last reconcile derived, for the next observe.
        self._latest: list[tuple[AttemptOnCluster, AttemptStatus]] | None = None
        self._errors = ErrorClassifier()
        # whether the last check of the quota was for the final stage
        self._looked_for_room: bool | None = None
        self._lease: WriteGuard
        if isinstance(target.guard, LeaseHolder):
            self._lease = FencingLease(
                target.cluster.client,
                target.namespace,
                target.anchor,
                target.guard,
                clock=self._server_clock,
                changed=self._wakeup.notify,
            )
        else:
            self._lease = target.guard
        self._pod_field: str | None = ""  # of the template, as this cluster has it

    # The protocol

    @property
    def shows_at_once(self) -> bool:
        return False

    async def start(self, launch: Launch) -> None:
        await self._client.turns.next(self._sender)  # a turn of the loop may start hundreds
        part = part_of(launch)
        informer, creations = await self._open()
        attempt = self._attempt(informer, launch.name, (part.trial, part.attempt))
        if launch.name in self._queue.waiting or launch.name in creations.refused:
            return
        record = attempt.record
        if existing := informer.find(launch.name):
            self._expect_ours(launch, existing[1], record)
            self._records.created(attempt.key, existing[1]["metadata"]["uid"])
            return
        if record is not None or attempt.removed:
            raise CannotStart(
                "it was created before, and has disappeared", FailureClass.INFRASTRUCTURE
            )
        if part.manifest is not None and (trouble := not_served(part.manifest, self._pod_field)):
            raise CannotStart(trouble)
        objects = build_objects(launch, pod_field=self._pod_field)
        if self._looked_for_room is not (part.trial is FINAL):
            self._looked_for_room = part.trial is FINAL
            quotas = [] if self._target.waits_for_quota else informer.quotas
            if never := never_fits(demand_of(objects), quotas, informer.limit_ranges):
                raise CannotStart(never)
        try:
            self._queue.add(launch, objects, limit_ranges=informer.limit_ranges)
        except ValueError as error:
            raise CannotStart(str(error)) from error
        await self._admit(creations)

    def _expect_ours(
        self, launch: Launch, existing: AttemptObject, record: ObjectRecord | None
    ) -> None:
        """Raise CannotStart if the object has other parameters than the attempt of that number."""
        if record is not None and record.uid == existing["metadata"]["uid"]:
            return
        if trouble := other_parameters(build_objects(launch)[-1], existing, self._target.namespace):
            self._foreign_uids.add(existing["metadata"]["uid"])
            del self._attempts[launch.name]
            self._latest = None
            raise CannotStart(trouble)

    async def stop(self, name: str, *, grace_s: float) -> None:
        informer, creations = await self._open()
        self._queue.drop(name)
        await creations.requests.settle(name)
        attempt = self._find(informer, name)
        if attempt is None or (attempt.existing is None and not attempt.pods):
            return
        if attempt.status().exit is not None:
            return
        attempt.forget_status()
        await self._ask(self._lease.check())
        self._records.stopped(attempt.key, _uid_of(attempt))
        await self._ask(self._end(attempt, attempt.pods, grace_s=grace_s))

    async def remove(self, name: str) -> None:
        await self._client.turns.next(self._sender)
        informer, creations = await self._open()
        self._queue.drop(name)
        await creations.requests.settle(name)
        creations.refused.pop(name, None)
        informer.events.forget(name)
        attempt = self._find(informer, name)
        if attempt is None:
            return
        if attempt.existing is not None:
            await self._ask(self._lease.check())
        # The pods of an attempt whose object was deleted without them.
        is_gone = attempt.existing is None
        orphans = informer.pods_of(attempt.key) if is_gone and not attempt.removed else []
        if attempt.existing is not None or attempt.record is not None:
            self._records.remove(attempt.key)
        if self._deletions.is_under_way(name):
            pass
        elif _is_retained(attempt):
            self._retained.add(attempt.key)
        elif attempt.existing is not None:
            removal = self._remove(informer, attempt, *attempt.existing)
            await self._start_deletion(name, removal)
        elif orphans:
            await self._start_deletion(name, self._delete_pods(orphans, grace_s=0))
        informer.forget_pods(attempt.key)
        self._latest = None
        self._attempts.pop(name, None)
        await attempt.close()

    async def observe(self) -> Mapping[str, AttemptStatus]:
        informer, creations = await self._current()
        latest, self._latest = self._latest, None
        if latest is None:
            attempts = self._look(informer).attempts
            latest = [(attempt, attempt.current_status()) for attempt in attempts]
        statuses = {
            attempt.name: self._barred(await self._priced(attempt.shown_status(status)))
            for attempt, status in latest
        }
        waiting = {
            name: AttemptStatus(name, None, waiting=reason)
            for name, reason in self._queue.waiting.items()
        }
        self._wakeup.observed()
        return waiting | creations.refused | statuses

    async def _priced(self, status: AttemptStatus) -> AttemptStatus:
        """Return the status of an attempt with the prices of its node."""
        node_prices = self._target.cluster.node_prices
        if not node_prices or not status.node:
            return status
        return replace(status, prices=await self._ask(node_prices.of(status.node)))

    def _barred(self, status: AttemptStatus) -> AttemptStatus:
        """Return the status of an attempt with what says that it may not run at present."""
        bar = self._target.cluster.bar(self._target.namespace)
        return status if status.exit or not bar.stops else replace(status, barred=bar.reason)

    async def reconcile(self) -> None:
        informer, creations = await self._open()
        self._wakeup.clear()  # here and not in read_log: growth from now on causes a notification
        if self._trouble(informer) is not None:
            for attempt in self._attempts.values():
                attempt.extend_time_limits()
        await self._current()
        look = self._look(informer)
        for name in look.leaving:
            # The removal was refused, or an earlier controller recorded it and did not finish.
            if not self._deletions.is_under_way(name):
                await self.remove(name)
        for key in look.remains:
            informer.forget_pods(key)  # their deletion by the garbage collector shows later
        self._records.forget_removed(but={*look.leaving.values(), *look.remains, *self._retained})
        latest: list[tuple[AttemptOnCluster, AttemptStatus]] = []
        for attempt in look.attempts:
            status = attempt.cached_status() or await self._reconcile_attempt(informer, attempt)
            if attempt.existing is None:
                # the anchor may be gone too, and have taken this object with it
                creations.creator.forget_anchor()
            if status is not None:
                latest.append((attempt, status))
        await self._admit(creations)
        self._latest = latest

    async def read_log(self, name: str, offset: int, *, limit: int = 1 << 20) -> bytes:
        await self._open()
        if (attempt := self._attempts.get(name)) is None:
            return b""
        return await attempt.log.read(offset, limit)

    async def read_metrics(self, name: str, offset: int, *, limit: int = 1 << 20) -> bytes:
        await self._open()
        if (attempt := self._attempts.get(name)) is None or not self._target.has_collector:
            return b""
        return await attempt.collected.read(offset, limit)

    async def answer(self, name: str, answers: str) -> None:
        informer, _ = await self._open()
        attempt = self._find(informer, name)
        for pod in () if attempt is None else attempt.pods:
            if annotation(pod, ANSWERS) == answers:
                continue
            await self._ask(self._lease.check())
            pod_name, body = pod["metadata"]["name"], {"annotations": {ANSWERS: answers}}
            with _ANSWER, contextlib.suppress(ApiNotFound):
                patched = self._client.patch(
                    PODS, self._target.namespace, pod_name, {"metadata": body}
                )
                await self._ask(patched)

    async def wait(self, within_s: float, *, log_growth: bool) -> None:
        self._lines_are_awaited = log_growth
        if log_growth:
            for attempt in self._attempts.values():
                attempt.log.follow_now()
                attempt.collected.follow_now()
        await self._wakeup.wait(within_s, growth=log_growth)
        await self._client.turns.next(self._sender)

    def now(self) -> datetime:
        return self._server_clock.now()

    def wake(self) -> None:
        self._wakeup.notify()

    async def conclude(self, conclusion: Conclusion) -> None:
        informer, _ = await self._open()
        # No later turn would send those again that have failed.
        for name in self._look(informer).leaving:
            await self._deletions.settle(name)
        for name in self._look(informer).leaving:
            await self.remove(name)
        with _CONCLUDE:
            await self._ask(self._lease.conclude(conclusion))

    def slots(self, gpu: float, workers: int) -> int | None:
        return None  # quota and scheduler decide

    def hurry(self) -> None:
        pass  # a busy API server needs the time that its requests have

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        self._target.cluster.note_without_node(self._target.namespace, self._target.uid, 0)
        for attempt in self._attempts.values():
            await attempt.close()
        self._queue.close()
        if opened is not None:
            informer, creations = opened
            await asyncio.gather(creations.requests.close(), self._deletions.close())
            await self._lease.close()
            await informer.close()

    # Looking

    async def _open(self) -> tuple[Informer, JobCreations]:
        if self._opened is not None:
            return self._opened
        async with self._opening:
            if self._opened is None:
                target, wake = self._target, self._wakeup.notify
                informer = Informer(
                    target.cluster, target.namespace, target.uid, self._stem, changed=wake
                )
                try:
                    await self._ask(self._server_clock.read())
                    await self._ask(self._lease.verify())
                    await self._ask(informer.open())
                    kind = await self._ask(self._watch_template(informer))
                    await self._ask(self._reveal(informer, kind))
                except BaseException:
                    await informer.close()
                    raise
                creator = JobCreator(
                    self._client,
                    target.namespace,
                    target.anchor,
                    self._lease,
                    owner_of=target.owner_of,
                )
                record = self._record_created
                self._opened = (
                    informer,
                    JobCreations(self._queue, creator, informer, on_created=record, changed=wake),
                )
            return self._opened

    @property
    def _stem(self) -> str:
        """Return the common prefix of the names of the experiment's objects."""
        return f"{self._target.anchor['metadata']['name']}-"

    async def _watch_template(self, informer: Informer) -> Kind | None:
        """Watch the kind of the template from the start, and return the kind of the attempts.

        If the server lacks it, the first attempt reports that.
        """
        if self._target.template is None:
            return JOBS
        try:
            kind = await kind_of(self._client, self._target.template)
        except ApiNotFound:
            return None
        self._pod_field = await served_pod_field(self._client, self._target.template)
        await informer.watch(kind)
        return kind

    async def _reveal(self, informer: Informer, kind: Kind | None) -> None:
        """Read the objects that the watch does not show: their labels may be others now.

        Otherwise their attempts would count as lost, and their trials would run twice; or a trial
        would have no log.
        """
        if kind is None:
            return
        anchor = self._target.anchor
        pods = informer.pods_by_attempt()
        lacking: list[PodOwner] = []
        for key, uid in self._records.uids.items():
            name = name_of(anchor, key)
            labels = {**anchor["metadata"]["labels"], **attempt_labels(*key)}
            await informer.reveal(kind, name, uid=uid, labels=labels)
            found = informer.find(name)
            if found is not None and _may_have_more(*found, len(pods.get(key, ()))):
                lacking.append(PodOwner(name, uid, labels))
        await informer.reveal_pods(lacking)

    async def _current(self) -> tuple[Informer, JobCreations]:
        """Return the cache and the creations. Raises what keeps the cluster from being read."""
        if self._lease.lost is not None:
            raise self._lease.lost
        informer, creations = await self._open()
        if (trouble := self._trouble(informer)) is not None:
            raise self._errors.classify(trouble, patient=True)
        return informer, creations

    def _trouble(self, informer: Informer) -> Exception | None:
        denied = (attempt.denied for attempt in self._attempts.values())
        return informer.trouble or next(filter(None, denied), None)

    def _attempt(self, informer: Informer, name: str, key: AttemptKey) -> AttemptOnCluster:
        """Return the attempt of that name, which is known from now on."""
        if (known := self._attempts.get(name)) is not None:
            return known
        directory = self._target.folder_of(*key)
        attempt = self._attempts[name] = AttemptOnCluster(
            name,
            key,
            directory,
            records=self._records,
            informer=informer,
            server_clock=self._server_clock,
            log=AttemptLog(self._copying, directory),
            collected=AttemptLog(replace(self._copying, log=COLLECTED_LOG), directory),
            clock=self._clock,
        )
        return attempt

    def _find(self, informer: Informer, name: str) -> AttemptOnCluster | None:
        """Return the attempt as the informer shows it; None: neither known nor on the cluster."""
        existing = informer.find(name)
        if existing is not None and existing[1]["metadata"]["uid"] in self._foreign_uids:
            existing = None
        attempt = self._attempts.get(name)
        if attempt is None:
            key = None if existing is None else self._key_of(existing[1])
            if key is None:
                return None
            attempt = self._attempt(informer, name, key)
        attempt.see(existing, informer.pods_by_attempt().get(attempt.key, []))
        return attempt

    def _key_of(self, obj: AttemptObject) -> AttemptKey | None:
        """Return the attempt of an object. Its name counts first, because labels may change."""
        return attempt_named(obj["metadata"]["name"], self._stem) or attempt_of(obj)

    def _look(self, informer: Informer) -> _Look:
        """Let each attempt see its object and its pods."""
        pods = informer.pods_by_attempt()
        attempts: dict[str, AttemptOnCluster] = {}
        leaving: dict[str, AttemptKey] = {}
        for kind, name, obj in informer.objects():
            known = self._attempts.get(name)
            key = self._key_of(obj) if known is None else known.key
            if key is None:
                continue
            if obj["metadata"]["uid"] in self._foreign_uids:
                pods.pop(key, None)
            elif self._records.is_removed(key):
                if key not in self._retained:
                    leaving[name] = key
            else:
                attempt = attempts[name] = self._attempt(informer, name, key)
                attempt.created = True
                attempt.see((kind, obj), pods.pop(key, []))
        remains = [key for key in pods if self._records.is_removed(key)]
        known_keys = {attempt.key for attempt in self._attempts.values()}
        for key, found in pods.items():
            if key not in known_keys and key not in remains:
                self._attempt(informer, name_of(found[0], key), key)
        for name, attempt in self._attempts.items():
            if name in attempts:
                continue
            attempt.see(None, pods.get(attempt.key, []))
            if attempt.on_cluster and not attempt.removed:
                attempts[name] = attempt
        return _Look(list(attempts.values()), leaving, remains)

    # Acting

    @property
    def _running(self) -> int:
        """Return the number of attempts on the cluster whose pods have not ended."""
        return sum(attempt.created and not attempt.ended for attempt in self._attempts.values())

    async def _admit(self, creations: JobCreations) -> None:
        cluster, namespace = self._target.cluster, self._target.namespace
        waiting = sum(attempt.waits_for_node for attempt in self._attempts.values())
        cluster.note_without_node(namespace, self._target.uid, waiting)
        without_node = cluster.without_node(namespace)
        admitting = creations.admit(
            running=self._running, without_node=without_node, barred=cluster.bar(namespace).reason
        )
        await self._ask(admitting)

    async def _reconcile_attempt(
        self, informer: Informer, attempt: AttemptOnCluster
    ) -> AttemptStatus | None:
        """Follow the logs, and end the attempt at its timeout.

        None: withdrawn because of the quota; it waits again.
        """
        status = attempt.status()
        if attempt.existing is not None and attempt.lacks_pods(status):
            await self._ask(informer.read_pods(attempt.existing[1]["metadata"]["uid"]))
            attempt.pods_read = True
            attempt.see(attempt.existing, informer.pods_by_attempt().get(attempt.key, []))
            status = attempt.status()
        if attempt.existing is None:
            attempt.follow_logs(status, at_once=True)
        else:
            attempt.explain_wait(status)
            if await self._is_withdrawn(informer, attempt, status):
                return None
            status = attempt.explained(status)
            attempt.follow_logs(status, at_once=self._lines_are_awaited or status.exit is not None)
            if status.exit is None:
                attempt.keep_status(status, left_s=await self._left_s(attempt, status))
        if status.exit is not None:
            self._queue.ended(attempt.name)
        return status

    async def _is_withdrawn(
        self, informer: Informer, attempt: AttemptOnCluster, status: AttemptStatus
    ) -> bool:
        """Delete an object whose pods the quota has refused, and let the attempt wait again."""
        refusal = attempt.refusal(status)
        if not refusal or status.exit is not None or attempt.existing is None:
            return False
        if not self._queue.refused(attempt.name, refusal):
            return False
        kind, obj = attempt.existing
        await self._ask(self._delete(kind, obj))
        informer.drop(kind, attempt.name)
        self._records.forget(attempt.key)
        attempt.created = False
        return True

    async def _left_s(self, attempt: AttemptOnCluster, status: AttemptStatus) -> float | None:
        """Return the seconds until the attempt's timeout, ending it then; None: it has none."""
        limit_s = None if attempt.obj is None else timeout_of(attempt.obj)
        ran_s = attempt.ran_s(status)
        if attempt.obj is None or limit_s is None or ran_s is None:
            return None
        left_s = limit_s - ran_s
        not_terminating = [
            pod for pod in attempt.pods if "deletionTimestamp" not in pod["metadata"]
        ]
        if left_s <= 0 and not_terminating:  # repeat until the deletion shows
            self._records.timed_out(attempt.key, _uid_of(attempt))
            await self._ask(self._end(attempt, not_terminating, grace_s=grace_of(attempt.obj)))
        return left_s

    def _record_created(self, launch: Launch, created: AttemptObject) -> None:
        with _NOTE:
            part = part_of(launch)
            self._records.created((part.trial, part.attempt), created["metadata"]["uid"])
        if (attempt := self._attempts.get(launch.name)) is not None:
            attempt.created = True

    async def _start_deletion(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        others = (attempt for attempt in self._attempts.values() if attempt.name != name)
        is_last = not any(attempt.created and not attempt.ended for attempt in others)
        # Wait for the last one: no later turn would retry it.
        await self._ask(self._deletions.send(name, work, wait=is_last))

    async def _remove(
        self, informer: Informer, attempt: AttemptOnCluster, kind: Kind, obj: AttemptObject
    ) -> None:
        if kind is not JOBS or attempt.status().exit is None:
            # The garbage collector would give them their full grace period.
            await self._delete_pods(attempt.pods, grace_s=0)
        # The Service of `distributed`; a template may name any Service of the namespace.
        if at(obj, "spec.template.spec.subdomain") == attempt.name:
            await self._client.delete(SERVICES, self._target.namespace, attempt.name)
        with _DELETE:
            await self._delete(kind, obj)
        informer.drop(kind, attempt.name)

    async def _end(self, attempt: AttemptOnCluster, pods: Sequence[Pod], *, grace_s: float) -> None:
        """End the attempt within its grace period; without pods it never starts."""
        if attempt.existing is not None and not (pods and attempt.ends_by_pods):
            await self._delete(*attempt.existing)
        await self._delete_pods(pods, grace_s=grace_s)

    async def _delete(self, kind: Kind, obj: AttemptObject) -> None:
        await self._lease.check()
        about = obj["metadata"]
        await self._client.delete(kind, self._target.namespace, about["name"], uid=about["uid"])

    async def _delete_pods(self, pods: Sequence[Pod], *, grace_s: float) -> None:
        await self._lease.check()
        for pod in pods:
            about = pod["metadata"]
            # With a grace of 0 the object would be deleted at once,
            # and the container left to its node.
            least_s = max(1.0, grace_s)
            await self._client.delete(
                PODS, self._target.namespace, about["name"], uid=about["uid"], grace_s=least_s
            )

    # Any: the type of the request's result is not known here
    async def _ask(self, request: Any) -> Any:
        """Await a request. Raises AccessDenied and RuntimeLost, see `ErrorClassifier`."""
        try:
            return await request
        except (ApiError, AccessDenied) as error:
            raise self._errors.classify(error, patient=self._opened is not None) from error


def _is_retained(attempt: AttemptOnCluster) -> bool:
    """Return whether the attempt has ended, and its object is to stay until its owner goes."""
    if attempt.obj is None or attempt.status().exit is None:
        return False
    return annotation(attempt.obj, RETAIN) == "true"


def _may_have_more(kind: Kind, obj: AttemptObject, pods: int) -> bool:
    """Return whether the object may have more pods than those that are shown.

    A Job says how many it has made, some of which may be gone; other kinds have none while they are
    suspended.
    """
    if kind != JOBS:
        return not pods and not is_suspended(obj)
    status = obj.get("status", {})
    made = status.get("active", 0) + status.get("succeeded", 0) + status.get("failed", 0)
    return made > pods


def _uid_of(attempt: AttemptOnCluster) -> str:
    """Return the uid of the attempt's object; "" if only pods are left of it."""
    return "" if attempt.obj is None else attempt.obj["metadata"]["uid"]
