"""Which pods of an attempt count, and of several that failed, which is the cause. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.core.model import FailureClass
from controller.runtime.kubernetes.kinds import JOB, Reading, preset_of
from controller.runtime.kubernetes.labels import JOB_NAME, queue_of
from controller.runtime.kubernetes.pod_status import (
    ITS_POD,
    Shown,
    container_in,
    deletion_asked,
    end_of,
    given_up,
    index_of,
    is_true,
    newest_first,
    started_at,
    terminated,
)
from controller.runtime.protocol import Exit

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Member:
    """A pod of the attempt that counts: the newest of its rank. label: which one it is; "" where it is the only one."""

    pod: Shown
    container: str
    label: str
    end: Exit | None

    @property
    def failed(self) -> bool:
        return self.end is not None and self.end.code != 0

    @property
    def start_time(self) -> datetime | None:
        return started_at(self.pod, self.container)


def ranks_of(pods: Sequence[Raw]) -> list[Raw]:
    """The newest pod of each rank, first rank first. What was evicted from a queue and came back has older ones."""
    newest: dict[tuple[str, int, str], Raw] = {}
    for pod in sorted(pods, key=newest_first):
        about = pod["metadata"]
        job = (about.get("labels") or {}).get(JOB_NAME, "")
        newest[job, index_of(pod), "" if job else about["name"]] = pod
    return [newest[key] for key in sorted(newest)]


def main_of(ranks: Sequence[Raw], reading: Reading) -> Raw | None:
    for pod in ranks:
        marks = {**(pod["metadata"].get("annotations") or {}), **(pod["metadata"].get("labels") or {})}
        if all(marks.get(key) == value for key, value in reading.labels.items()):
            return pod
    return None


def members_of(
    obj: Raw | None, pods: Sequence[Raw], reading: Reading, *, stopped: bool, now: datetime
) -> tuple[Member, ...]:
    """The main one first."""
    ranks = ranks_of(pods)
    main = main_of(ranks, reading)
    if main is not None:
        ranks = [main, *(pod for pod in ranks if pod is not main)]
    workers = workers_in(obj) if ends_by_pods(obj, reading) else 0
    if obj is not None and "deletionTimestamp" not in obj.get("metadata", {}):
        deleted = ITS_POD
    else:
        deleted = f"its {(obj or {}).get('kind', 'Job')}"
    members = []
    for pod in ranks:
        container = container_in(pod, reading.container)
        label = f"worker {index_of(pod)} of {workers}" if workers > 1 else pod["metadata"]["name"]
        end = end_of(pod, container, stopped=stopped, now=now, deleted=deleted)
        if _taken_back(obj, pod, end, stopped=stopped):
            continue
        members.append(Member(pod, container, label if len(ranks) > 1 else "", end))
    return tuple(members)


def _taken_back(obj: Raw | None, pod: Raw, end: Exit | None, *, stopped: bool) -> bool:
    """Kueue suspends a Job and its pods go; of the two, the pods may be seen first. What is going is not judged then
    before the Job is."""
    if obj is None or stopped or not queue_of(obj) or is_true(obj, "Failed"):
        return False
    asked = deletion_asked(pod)
    return asked is not None and (end is None or end.time >= asked)


def workers_in(obj: Raw | None) -> int:
    spec = (obj or {}).get("spec", {})
    return int(spec.get("completions") or spec.get("parallelism") or 1)  # 1 also of what is gone: as many as are seen


def ends_by_pods(obj: Raw | None, reading: Reading) -> bool:
    """Whether it ends with its pods: a Job that tries nothing twice and waits for all. What is gone tells no more."""
    if obj is None:
        return True
    spec = obj.get("spec", {})
    as_a_job = preset_of(obj) is JOB and (reading.success, reading.failure) == (JOB.success, JOB.failure)
    if not as_a_job or reading.labels or spec.get("backoffLimit") != 0:
        return False
    if any(spec.get(key) is not None for key in ("podFailurePolicy", "successPolicy", "backoffLimitPerIndex")):
        return False
    several = workers_in(obj) > 1
    return (spec.get("parallelism") or 1) == workers_in(obj) and (
        not several or spec.get("completionMode") == "Indexed"
    )


def first_of(failed: Sequence[Member]) -> Member:
    """The cause. Times are whole seconds: of several at once, it is the one that made a Job give up and delete the
    others, or else what came from outside. A worker that ends with EX_TEMPFAIL says itself that it has lost another,
    whatever the clocks say."""

    def order(member: Member) -> tuple[bool, datetime, bool, bool]:
        end = member.end
        assert end is not None
        # Its own word, also where the Job had it deleted in the same second, when the other was gone.
        said = (terminated(member.pod, member.container) or {}).get("exitCode")
        by_itself = end.failure_class is not FailureClass.INFRASTRUCTURE
        return said == os.EX_TEMPFAIL, end.time, given_up(member.pod, member.container) is None, by_itself

    return min(failed, key=order)
