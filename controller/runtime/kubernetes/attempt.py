"""One attempt on the cluster: its object and pods as last seen,
the copies of its logs, and its status.

It reads and derives; it writes nothing to the cluster. `KubernetesRuntime` has a table of these.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from controller.core.attempt import AttemptStatus, ObjectRecord
from controller.core.model import AttemptKey
from controller.kube.client import JOBS, Kind
from controller.kube.objects import AttemptObject, Pod
from controller.kube.server_clock import ServerClock
from controller.runtime.kubernetes.attempt_status import (
    StatusCache,
    collector_ended,
    collector_source,
    ends_by_pods,
    log_source,
    status_of,
)
from controller.runtime.kubernetes.informer import Informer
from controller.runtime.kubernetes.kinds import is_over, status_rules_of
from controller.runtime.kubernetes.labels import queue_of
from controller.runtime.kubernetes.logs import GONE, SOON_S, AttemptLog, PodContainer
from controller.runtime.kubernetes.pod_status import (
    NO_NODE_S,
    node_of,
    unschedulable_s,
    was_deleted,
)
from controller.runtime.kubernetes.records import Records

# Finds the container whose log is followed, among the pods of an object.
FindSource: TypeAlias = Callable[[AttemptObject | None, Sequence[Pod]], PodContainer | None]

# A kubelet ends a sidecar within seconds of its trial. It never does where the trial cannot start,
# where its container is restarted again and again, and where its node is lost.
SIDECAR_S = 60.0


class AttemptOnCluster:
    """An attempt that was started by this process, or found on the cluster.

    Attributes:
        directory: The attempt's folder on this machine.
        existing: The kind and the object, as last seen; None: the object is gone, or not created
            yet.
        pods: The attempt's pods as last seen, including deleted ones.
        created: This process has seen the attempt on the cluster.
        ended: Its pods have ended.
        pods_read: Its pods were read after the end of its Job, because the watch showed none.
    """

    def __init__(
        self,
        name: str,
        key: AttemptKey,
        directory: Path,
        *,
        records: Records,
        informer: Informer,
        server_clock: ServerClock,
        log: AttemptLog,
        collected: AttemptLog,
        clock: Callable[[], float],
    ) -> None:
        """clock: the monotonic seconds by which a sidecar's end is awaited."""
        self.name = name
        self.key = key
        self.directory = directory
        self.existing: tuple[Kind, AttemptObject] | None = None
        self.pods: Sequence[Pod] = ()
        self.created = False
        self.ended = False
        self.pods_read = False
        self.log = log
        self.collected = collected
        self._records = records
        self._informer = informer
        self._server_clock = server_clock
        self._clock = clock
        # when an end was first derived, while the sidecar may still print
        self._end_seen_s: float | None = None
        self._over_since: datetime | None = None
        self._started: datetime | None = None
        self._cache = StatusCache()

    @property
    def obj(self) -> AttemptObject | None:
        return None if self.existing is None else self.existing[1]

    @property
    def record(self) -> ObjectRecord | None:
        """What was done with the attempt's object; None if none was ever created."""
        return self._records.of(self.key)

    @property
    def removed(self) -> bool:
        """Whether we have deleted the attempt's object for good; it may still exist for a while."""
        return self._records.is_removed(self.key)

    @property
    def on_cluster(self) -> bool:
        """Whether the attempt has, or had while this process ran, an object or pods."""
        return self.created or bool(self.pods)

    @property
    def waits_for_node(self) -> bool:
        """Whether the attempt was created, and none of its pods runs on a node yet."""
        return self.created and not self.ended and not any(map(node_of, self.pods))

    @property
    def ends_by_pods(self) -> bool:
        """Whether the attempt ends with its pods.

        An object that would replace a deleted pod must go itself.
        """
        if self.existing is None:
            return True
        kind, obj = self.existing
        return kind is JOBS and ends_by_pods(obj, status_rules_of(obj))

    def see(self, existing: tuple[Kind, AttemptObject] | None, pods: Sequence[Pod]) -> None:
        """Take what the informer shows now."""
        self.existing, self.pods = existing, pods

    # The status

    def status(self, *, refusal: str = "", mount_trouble: str = "") -> AttemptStatus:
        """Derive the status. refusal, mount_trouble: see `status_of`."""
        record = self.record or ObjectRecord("")
        now, obj = self._server_clock.now(), self.obj
        # A watch of pods may be behind that of their object, however long ago that ended.
        is_known_over = obj is not None and is_over(obj)
        self._over_since = (self._over_since or now) if is_known_over else None
        status = status_of(
            self.name,
            obj,
            self.pods,
            stopped=record.stopped or record.timed_out,
            now=now,
            over_since=self._over_since,
            refusal=refusal,
            mount_trouble=mount_trouble,
            nodes=self._informer.nodes.objects,
        )
        status = replace(status, orphaned=self.existing is None and not self.removed)
        if record.timed_out and status.exit is not None and status.exit.stopped:
            return replace(status, exit=replace(status.exit, timed_out=True, stopped=False))
        return status

    def cached_status(self) -> AttemptStatus | None:
        """Return the status if it cannot have changed since `keep_status`."""
        if self.existing is None:
            return None
        return self._cache.get(self.existing[1], self.pods, quiet=self._informer.events.quiet)

    def current_status(self) -> AttemptStatus:
        return self.cached_status() or self.explained(self.status())

    def explained(self, status: AttemptStatus) -> AttemptStatus:
        """Return the status with the reason for waiting, from events and from Kueue."""
        if self.existing is None or status.start_time is not None or status.exit is not None:
            return status
        obj = self.existing[1]
        if status.suspended:
            if queue_of(obj):
                return replace(status, waiting=self._informer.workloads.why(obj))
            return status
        refusal = self.refusal(status)
        mount_trouble = self._informer.events.mount_trouble(self.pods)
        if refusal or mount_trouble:
            return self.status(refusal=refusal, mount_trouble=mount_trouble)
        return status

    def refusal(self, status: AttemptStatus) -> str:
        """Return why the attempt's pods could not be created; "" if unknown, or if some exist."""
        obj = self.obj
        if obj is None or self.pods or status.suspended:
            return ""
        return self._informer.events.refusal(obj["metadata"]["uid"])

    def shown_status(self, status: AttemptStatus) -> AttemptStatus:
        """Return the status to show.

        An end is shown once the logs are complete: their last lines classify the end.
        """
        if status.exit is None:
            return status
        if self.lacks_pods(status):
            return replace(status, exit=None)
        is_whole = self.collected.is_whole(self._source(collector_source, self.collected))
        if not is_whole or not self.log.is_whole(self._source(log_source, self.log)):
            return replace(status, exit=None)
        if status.exit.code is None or status.exit.stopped or status.exit.timed_out:
            return status  # it was ended from outside, so nobody misses its last lines
        lost, metrics_lost = self.log.trouble, self.collected.trouble
        if not self.pods:  # its object alone says that it has succeeded
            lost = lost if self.log.is_followed else GONE
            metrics_lost = metrics_lost if self.collected.is_followed else GONE
        if lost or metrics_lost:
            return replace(
                status, exit=replace(status.exit, log_end_lost=lost, metrics_end_lost=metrics_lost)
            )
        return status

    def lacks_pods(self, status: AttemptStatus) -> bool:
        """Return whether its Job has ended, and its pods, which say how, were not asked for."""
        if status.exit is None or status.exit.stopped or self.existing is None:
            return False
        kind, obj = self.existing
        return kind == JOBS and is_over(obj) and not self.pods and not self.pods_read

    def explain_wait(self, status: AttemptStatus) -> None:
        """Watch the events, and list the nodes, that would explain why the attempt does not run."""
        events = self._informer.events
        if status.suspended:
            events.forget(self.name)
        elif status.start_time is not None or status.exit is not None:
            events.note_running(self.name)
        elif self.existing is not None:
            events.note_waiting(
                self.name, self.existing[0], self.pods, has_quota=self._informer.has_quota
            )
            now = self._server_clock.now()
            if any(unschedulable_s(pod, now=now) >= NO_NODE_S for pod in self.pods):
                self._informer.nodes.refresh()

    def ran_s(self, status: AttemptStatus) -> float | None:
        """Return for how long the attempt has run, by the API server's clock; None: it waits.

        While the clock of its node is ahead, the start that the status has is now.
        """
        if status.start_time is None:
            self._started = None
            return None
        self._started = min(status.start_time, self._started or status.start_time)
        return (self._server_clock.now() - self._started).total_seconds()

    def keep_status(self, status: AttemptStatus, *, left_s: float | None) -> None:
        """Cache the status while nothing changes. left_s: seconds until the attempt's timeout."""
        source = self._source(log_source, self.log)
        if source is not None and not self.log.is_followed:
            left_s = min(SOON_S, math.inf if left_s is None else left_s)
        collector = self._source(collector_source, self.collected)
        is_collected = collector is None or self.collected.is_of(collector)
        is_read = not self.log.is_followed or self.log.is_of(source)
        if self.existing is not None and is_collected and is_read:
            self._cache.put(self.existing[1], self.pods, status, left_s=left_s)

    def forget_status(self) -> None:
        self._cache.forget()

    # The logs

    def follow_logs(self, status: AttemptStatus, *, at_once: bool) -> None:
        """Follow the logs of containers that count now; read the rest of those that ended."""
        self.log.follow(self._source(log_source, self.log), at_once=at_once)
        self.collected.follow(self._source(collector_source, self.collected), at_once=at_once)
        if self.collected.is_followed and (
            collector_ended(self.obj, self.pods) or self._outlived(status)
        ):
            self.collected.ended()
        if status.exit is not None:
            self.log.ended()
            self.ended = True

    def extend_time_limits(self) -> None:
        """Give up nothing while the cluster does not respond."""
        self._end_seen_s = None
        self.log.extend_time_limit()
        self.collected.extend_time_limit()

    @property
    def denied(self) -> Exception | None:
        """Return the error while a log cannot be copied."""
        return self.log.denied or self.collected.denied

    async def close(self) -> None:
        await asyncio.gather(self.log.close(), self.collected.close())

    def _source(self, find: FindSource, log: AttemptLog) -> PodContainer | None:
        if self.existing is not None:
            return find(self.existing[1], self.pods)
        # The pods may keep running without their object, and their log still counts.
        kept = [pod for pod in self.pods if not was_deleted(pod)]
        return None if log.is_followed else find(None, kept)

    def _outlived(self, status: AttemptStatus) -> bool:
        """Whether the attempt has ended, and no end of its sidecar is to be expected."""
        if status.exit is None:
            self._end_seen_s = None
            return False
        # Not the attempt's start time, which waits for all workers:
        # the first one may have run and reported before.
        has_run = log_source(self.obj, self.pods) is not None
        if not has_run and status.exit.failure_class is not None:
            return True
        if self._end_seen_s is None:
            self._end_seen_s = self._clock()
        return self._clock() - self._end_seen_s >= SIDECAR_S
