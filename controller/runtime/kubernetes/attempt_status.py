"""Derive an attempt's status from its object, its pods and its Kueue Workload.

Pure functions, except for the cache's clock.

One of our own Jobs ends with its container, which is visible a second before the Job's condition.
Every other kind, and a Job that may retry, ends when its conditions say so. Several workers end
together: the first failure is that of the attempt.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from controller.core.attempt import AttemptStatus, Exit
from controller.core.failures import INFEASIBLE_EXIT_CODE, class_by_itself, describe_exit_code
from controller.core.model import FailureClass
from controller.kube.objects import AdmissionCheck, AnyObject, AttemptObject, Node, Pod, Workload
from controller.runtime.kubernetes.collector import collector_status
from controller.runtime.kubernetes.kinds import (
    JOB,
    StatusRules,
    is_suspended,
    lost_labels,
    preset_of,
    status_rules_of,
)
from controller.runtime.kubernetes.labels import COLLECTOR_CONTAINER, JOB_NAME, queue_of
from controller.runtime.kubernetes.logs import PodContainer
from controller.runtime.kubernetes.node_fit import why_on_no_node
from controller.runtime.kubernetes.pod_status import (
    ENDED,
    ITS_POD,
    NO_NODE_S,
    WaitingReason,
    condition,
    container_in,
    container_status,
    crash_loop,
    deletion_asked,
    end_of,
    first_start,
    given_up,
    image_of,
    index_of,
    is_true,
    last_line,
    lost,
    newest_first,
    node_of,
    parse_time,
    phase_of,
    restarts_of,
    started_at,
    terminated,
    true_condition,
    unschedulable_s,
    why_refused,
    why_waiting,
)

NO_CONDITION_S = 600.0  # a Job that retries waits up to six minutes between two pods
UNTOUCHED_S = 60.0  # after which an object without status and pods seems to have no operator
UNSEEN_S = 5.0  # a Job's end may show before its pod's; a pod that does not show by then is gone
# How long a status is cached. The second one holds for an object with conditions, whose end may be
# near, and for an attempt that has not started, which may fail to start.
_BELIEVED_S, _DOUBTED_S = 5.0, 1.0


@dataclass(frozen=True, slots=True)
class _Observed:
    """What is known of an attempt, except its pods. See `status_of`."""

    obj: AttemptObject | None
    rules: StatusRules
    stopped: bool
    now: datetime
    over_since: datetime | None


def status_of(
    name: str,
    obj: AttemptObject | None,
    pods: Sequence[Pod],
    *,
    stopped: bool,
    now: datetime,
    over_since: datetime | None = None,
    refusal: str = "",
    mount_trouble: str = "",
    nodes: Sequence[Node] = (),
) -> AttemptStatus:
    """Return the status of the attempt of that name.

    obj: None if it is gone; `pods` are then its last known pods. stopped: we have ended the
    attempt. over_since: since when the object is seen as `is_over`; None: since it says so.
    refusal: the event that says why a pod could not be created. mount_trouble: a pod's event about
    a volume.
    nodes: those of the cluster, if they are known.
    """
    rules = status_rules_of(obj)
    if obj is not None and is_suspended(obj) and not stopped:
        return AttemptStatus(name, None, waiting=_queued(obj), suspended=True)
    seen = _Observed(obj, rules, stopped, now, over_since)
    members = _members_of(seen, pods)
    end = _end(seen, members)
    decisive = _decisive(members, end)
    expected = workers_in(obj) if ends_by_pods(obj, rules) else 1
    status = AttemptStatus(
        name,
        _start_time(members, expected),
        end,
        node=node_of(decisive.pod) if decisive else "",
        image=image_of(decisive.pod, decisive.container) if decisive else "",
    )
    status = _by_clock_of_server(status, members, now)
    if end is not None or status.start_time is not None:
        return status
    waiting = _waiting(obj, members, refusal, mount_trouble, nodes, now)
    if waiting.start_failure and not stopped:
        failure_class, reason = FailureClass.CONFIGURATION, waiting.start_failure
        return replace(status, exit=Exit(now, failure_class=failure_class, reason=reason))
    return replace(status, waiting=waiting.text)


def _by_clock_of_server(
    status: AttemptStatus, members: tuple[Member, ...], now: datetime
) -> AttemptStatus:
    """Move the times of a node whose clock is wrong: a pod starts between its creation and now.

    The end moves with the start, so that the time between them is that of the node.
    """
    start, end = status.start_time, status.exit
    if start is None:
        return status
    created = (parse_time(member.pod["metadata"].get("creationTimestamp")) for member in members)
    true_start = min(max(start, *filter(None, created)), now)
    if end is not None:
        end = replace(end, time=max(true_start, min(end.time + (true_start - start), now)))
    return replace(status, start_time=true_start, exit=end)


def log_source(obj: AttemptObject | None, pods: Sequence[Pod]) -> PodContainer | None:
    """Return the container with the attempt's log; None: it has not started."""
    main = main_of(ranks_of(pods), status_rules_of(obj))
    if main is None:
        return None
    container = container_in(main, status_rules_of(obj).container)
    started = started_at(main, container)
    if started is None and terminated(main, container) is None:
        return None
    return PodContainer(
        main["metadata"]["name"],
        container,
        str(main["metadata"].get("uid", "")),
        started,
        restarts_of(container_status(main, container)),
    )


def collector_source(obj: AttemptObject | None, pods: Sequence[Pod]) -> PodContainer | None:
    """Return the sidecar with the attempt's measurements; None: none has started."""
    main = main_of(ranks_of(pods), status_rules_of(obj))
    if main is None:
        return None
    status = collector_status(main)
    state = status.get("state") or {}
    if not ("running" in state or "terminated" in state):
        return None
    return PodContainer(
        main["metadata"]["name"],
        COLLECTOR_CONTAINER,
        str(main["metadata"].get("uid", "")),
        first_start(main, status),
        restarts_of(status),
    )


def collector_ended(obj: AttemptObject | None, pods: Sequence[Pod]) -> bool:
    """Return whether the sidecar prints nothing more.

    It ends after the trial. If it ends earlier, it is restarted.
    """
    main = main_of(ranks_of(pods), status_rules_of(obj))
    if main is None or phase_of(main) in ENDED:
        return True
    trial_ended = terminated(main, container_in(main, status_rules_of(obj).container)) is not None
    return trial_ended and "terminated" in (collector_status(main).get("state") or {})


def _queued(obj: AttemptObject) -> str:
    queue = queue_of(obj)
    return f"queued by Kueue (queue {queue})" if queue else "suspended"


# How it ended


def _end(seen: _Observed, members: tuple[Member, ...]) -> Exit | None:
    obj = seen.obj
    if obj is not None and not seen.stopped and (deadline := _deadline(obj, seen)):
        return deadline
    if obj is not None and not ends_by_pods(obj, seen.rules):
        return _by_condition(obj, seen, members)
    ended = [member.end for member in members if member.end is not None]
    failed = [member for member in members if member.failed]
    over = obj is None or is_true(obj, "Failed") or is_true(obj, "Complete")
    if len(ended) < len(members) and not (failed and over):
        # the GPUs are free only after the last worker's end, which may also be the cause
        return None
    if failed:
        return _as_the_attempts(first_of(failed), main=members[0])
    if ended and len(ended) >= workers_in(obj):
        return max(ended, key=lambda end: end.time)
    if obj is None or (seen.stopped and is_suspended(obj)):
        if seen.stopped:
            return Exit(seen.now, unknown=True, stopped=True)
        return lost(seen.now, "its Job was deleted by someone else")
    return _without_pods(obj, seen) if over else None


def _deadline(obj: AttemptObject, seen: _Observed) -> Exit | None:
    """Return the end by the object's own deadline; the controller keeps ours."""
    condition_met = seen.rules.failed(obj)
    if condition_met is None or condition_met.get("reason") != "DeadlineExceeded":
        return None
    reason = (
        f"its {obj.get('kind', 'Job')}'s own deadline passed: "
        f"{condition_met.get('message', 'DeadlineExceeded')}"
    )
    time = _time_of(condition_met) or seen.now
    return Exit(time, failure_class=FailureClass.TIMEOUT, reason=reason)


def _by_condition(obj: AttemptObject, seen: _Observed, members: tuple[Member, ...]) -> Exit | None:
    now = seen.now
    if (condition_met := seen.rules.succeeded(obj)) is not None:
        return Exit(_time_of(condition_met) or now, code=0)
    failed = [member for member in members if member.failed]
    if (condition_met := seen.rules.failed(obj)) is None:
        if seen.stopped:
            return None
        looping = [each for each in failed if crash_loop(each.pod, each.container, now)]
        if looping:
            return _as_the_attempts(first_of(looping), main=members[0])
        return _missing_condition(obj, seen, members)
    if causes := _causes(failed, _time_of(condition_met) or now):
        return _as_the_attempts(first_of(causes), main=members[0])
    return _without_pods(obj, seen)


def _missing_condition(
    obj: AttemptObject, seen: _Observed, members: Sequence[Member]
) -> Exit | None:
    """Return a failure if all pods ended long ago and no condition holds.

    Nothing else would end the attempt.
    """
    ends = [member.end.time for member in members if member.end is not None]
    if not ends or len(ends) < len(members):
        return None
    if (seen.now - max(ends)).total_seconds() < NO_CONDITION_S:
        return None
    kind = obj.get("kind", "Job")
    success = " and ".join(map(str, seen.rules.success))
    failure = " or ".join(map(str, seen.rules.failure))
    reason = (
        f"its pods ended more than {NO_CONDITION_S / 60:.0f} minutes ago, and the {kind} shows "
        f"neither success ({success}) nor failure ({failure}); correct spec.trial.success and "
        f"failure, or check that the operator of {kind} runs"
    )
    return Exit(seen.now, failure_class=FailureClass.CONFIGURATION, reason=reason)


def _causes(failed: Sequence[Member], over: datetime) -> list[Member]:
    """Return the members that failed before their object did, at the time `over`.

    The operator deletes the rest then. Times are whole seconds: a pod deleted in the same second is
    a cause only if no other pod failed by itself.
    """
    asked_at = [(member, _first_asked(member)) for member in failed]
    by_themselves = [member for member, time in asked_at if time is None or time < over]
    return by_themselves or [member for member, time in asked_at if time == over]


def _first_asked(member: Member) -> datetime | None:
    """Return when the pod's deletion was first requested; None: it was not deleted.

    Once its containers have ended, the kubelet deletes the pod again without grace, and the pod
    shows that later time.
    """
    asked_at = deletion_asked(member.pod)
    if asked_at is None:
        return None
    disrupted = true_condition(member.pod, "DisruptionTarget") or {}
    others = (
        parse_time(disrupted.get("lastTransitionTime")),
        member.end.time if member.end else None,
    )
    return min(asked_at, *filter(None, others))


def _without_pods(obj: AttemptObject, seen: _Observed) -> Exit | None:
    """Return the end of an object that has ended while no pod tells how."""
    rules, now = seen.rules, seen.now
    success = rules.succeeded(obj)
    end_condition = (rules.failed(obj) if success is None else success) or {}
    time = _time_of(end_condition)
    if seen.stopped:
        return Exit(time or now, unknown=True, stopped=True)
    since = seen.over_since or time
    if since is not None and (now - since).total_seconds() < UNSEEN_S:
        return None
    time = time or now
    if success is not None:
        return Exit(time, code=0)
    if ends_by_pods(obj, rules):
        return lost(time, "its pod is gone, and how it ended is unknown")
    message = end_condition.get("message") or end_condition.get("reason") or "it does not say why"
    reason = f"its {obj.get('kind', 'Job')} failed: {message}"
    return Exit(time, failure_class=FailureClass.USER_ERROR, reason=reason)


def _as_the_attempts(member: Member, *, main: Member) -> Exit:
    """Return a worker's end as the attempt's.

    Its log is not the attempt's log, so the reason has its last line.
    """
    end = member.end
    assert end is not None
    if end.failure_class is not None:
        return replace(end, reason=f"{member.label}: {end.reason}") if member.label else end
    if member is main or end.stopped:
        return end
    message = last_line((terminated(member.pod, member.container) or {}).get("message"))
    if end.code == INFEASIBLE_EXIT_CODE:
        return replace(end, reason=message)
    if end.out_of_memory:
        reason = f"{member.label} was killed: out of memory (exit code {end.code})"
        return Exit(end.time, failure_class=FailureClass.OUT_OF_MEMORY, reason=reason)
    if end.code is None:
        return end
    reason = f"{member.label}: {describe_exit_code(end.code)}" + (f": {message}" if message else "")
    failure_class = class_by_itself(end.code, message) or FailureClass.USER_ERROR
    return Exit(end.time, failure_class=failure_class, reason=reason)


# What is shown


def _decisive(members: tuple[Member, ...], end: Exit | None) -> Member | None:
    """Return the member whose node is shown: the one that failed first, else the main one."""
    failed = [member for member in members if member.failed]
    if failed and end is not None and end.code != 0:
        return first_of(failed)
    return members[0] if members else None


def _start_time(members: tuple[Member, ...], least: int) -> datetime | None:
    """Return when all workers ran: until then the first ones only wait for the others."""
    times = [member.start_time for member in members]
    known_times = [time for time in times if time is not None]
    return max(known_times) if len(known_times) == len(times) >= least else None


def _waiting(
    obj: AttemptObject | None,
    members: tuple[Member, ...],
    refusal: str,
    mount_trouble: str,
    nodes: Sequence[Node],
    now: datetime,
) -> WaitingReason:
    if not members:
        if obj is not None and (lost_pods := lost_labels(obj)):
            return WaitingReason(lost_pods, start_failure=lost_pods)
        return why_refused(refusal) if refusal else WaitingReason(_untouched(obj, now))
    for member in members:
        if member.start_time is None:
            is_overdue = unschedulable_s(member.pod, now=now) >= NO_NODE_S
            waiting = why_waiting(
                member.pod,
                now=now,
                container=member.container,
                mount_trouble=mount_trouble,
                on_no_node=why_on_no_node(member.pod, nodes) if is_overdue else "",
            )
            if waiting.text:
                return waiting.of(member.label)
    return WaitingReason()


def _untouched(obj: AttemptObject | None, now: datetime) -> str:
    created = parse_time((obj or {}).get("metadata", {}).get("creationTimestamp"))
    if obj is None or created is None or obj.get("status"):
        return ""
    if (now - created).total_seconds() < UNTOUCHED_S:
        return ""
    kind = obj.get("kind", "Job")
    return f"no pods and no status after {UNTOUCHED_S:.0f} s; is the operator of {kind} running?"


def _time_of(condition: AnyObject) -> datetime | None:
    """Return the time of a condition; None for a custom field without a time beside it."""
    keys = ("lastTransitionTime", "endTime", "completionTime", "finishedAt")
    return next(filter(None, (parse_time(condition.get(key)) for key in keys)), None)


# Which pods count


@dataclass(frozen=True, slots=True)
class Member:
    """The newest pod of a rank. label: its rank or name, for people; "" if it is the only one."""

    pod: Pod
    container: str
    label: str
    end: Exit | None

    @property
    def failed(self) -> bool:
        return self.end is not None and self.end.code != 0

    @property
    def start_time(self) -> datetime | None:
        return started_at(self.pod, self.container)


def ranks_of(pods: Sequence[Pod]) -> list[Pod]:
    """Return the newest pod of each rank, in order.

    An attempt that was evicted and requeued has older ones.
    """
    newest: dict[tuple[str, int, str], Pod] = {}
    for pod in sorted(pods, key=newest_first):
        about = pod["metadata"]
        job = (about.get("labels") or {}).get(JOB_NAME, "")
        newest[job, index_of(pod), "" if job else about["name"]] = pod
    return [newest[key] for key in sorted(newest)]


def main_of(ranks: Sequence[Pod], rules: StatusRules) -> Pod | None:
    for pod in ranks:
        about = pod["metadata"]
        marks = {**(about.get("annotations") or {}), **(about.get("labels") or {})}
        if rules.labels.items() <= marks.items():
            return pod
    return None


def _members_of(seen: _Observed, pods: Sequence[Pod]) -> tuple[Member, ...]:
    """Return the members, the main one first."""
    obj, rules = seen.obj, seen.rules
    ranks = ranks_of(pods)
    main = main_of(ranks, rules)
    if main is not None:
        ranks = [main, *(pod for pod in ranks if pod is not main)]
    workers = workers_in(obj) if ends_by_pods(obj, rules) else 0
    if obj is not None and "deletionTimestamp" not in obj.get("metadata", {}):
        deleted = ITS_POD
    else:
        deleted = f"its {(obj or {}).get('kind', 'Job')}"
    members = []
    for pod in ranks:
        container = container_in(pod, rules.container)
        label = f"worker {index_of(pod)} of {workers}" if workers > 1 else pod["metadata"]["name"]
        end = end_of(pod, container, stopped=seen.stopped, now=seen.now, deleted=deleted)
        if _may_be_evicted(seen, pod, end):
            continue
        members.append(Member(pod, container, label if len(ranks) > 1 else "", end))
    return tuple(members)


def _may_be_evicted(seen: _Observed, pod: Pod, end: Exit | None) -> bool:
    """Return whether Kueue may be evicting the attempt.

    Kueue suspends the Job, and the deletion of its pods may show first. Such a pod does not count
    until the Job shows why it is deleted.
    """
    obj = seen.obj
    if obj is None or seen.stopped or not queue_of(obj) or is_true(obj, "Failed"):
        return False
    asked_at = deletion_asked(pod)
    return asked_at is not None and (end is None or end.time >= asked_at)


def workers_in(obj: AttemptObject | None) -> int:
    spec = (obj or {}).get("spec", {})
    # 1 also for an object that is gone
    return int(spec.get("completions") or spec.get("parallelism") or 1)


def ends_by_pods(obj: AttemptObject | None, rules: StatusRules) -> bool:
    """Return whether the attempt ends with its pods.

    This holds for a Job without retries that waits for all pods, and for a deleted object.
    """
    if obj is None:
        return True
    spec = obj.get("spec", {})
    has_its_rules = (rules.success, rules.failure) == (JOB.success, JOB.failure)
    as_a_job = preset_of(obj) is JOB and has_its_rules and not rules.labels
    if not as_a_job or spec.get("backoffLimit") != 0:
        return False
    policies = ("podFailurePolicy", "successPolicy", "backoffLimitPerIndex")
    if any(spec.get(key) is not None for key in policies):
        return False
    workers = workers_in(obj)
    waits_for_all = (spec.get("parallelism") or 1) == workers
    return waits_for_all and (workers == 1 or spec.get("completionMode") == "Indexed")


def first_of(failed: Sequence[Member]) -> Member:
    """Return the member whose failure is the cause: the first one.

    Times are whole seconds. Of several failures in one second, the cause is the one after which a
    Job gave up and deleted the others, or else the one from outside. A worker that ends with
    EX_TEMPFAIL reports the loss of another worker, so it comes last, whatever the clocks say.
    """

    def order(member: Member) -> tuple[bool, datetime, bool, bool]:
        end = member.end
        assert end is not None
        # The exit code counts also if the Job deleted the pod in the same second.
        exit_code = (terminated(member.pod, member.container) or {}).get("exitCode")
        by_itself = end.failure_class is not FailureClass.INFRASTRUCTURE
        return (
            exit_code == os.EX_TEMPFAIL,
            end.time,
            given_up(member.pod, member.container) is None,
            by_itself,
        )

    return min(failed, key=order)


# Why Kueue keeps it waiting

_POD_SET = re.compile(r"couldn't assign flavors to pod set (\S+): ")
# The uids and the path of the workload that preempts it.
_WHOM = re.compile(r" \(UID: [^)]*\)|; preemptor path: .*")


def why_queued(queue: str, workload: Workload | None) -> str:
    """Return why Kueue keeps an object waiting. workload: None if none is known yet."""
    if workload is None:
        return f"queued by Kueue (queue {queue})"
    evicted = true_condition(workload, "Evicted") or {}
    match evicted.get("reason"):
        case None:
            head = f"queued by Kueue (queue {queue})"
        case "Preempted":
            head = f"preempted by Kueue, waits in queue {queue}"
        case reason:
            head = f"evicted by Kueue ({reason}), waits in queue {queue}"
    return ": ".join(part for part in (head, _why_pending(workload)) if part)


def _why_pending(workload: Workload) -> str:
    if workload.get("spec", {}).get("active") is False:
        name = workload["metadata"]["name"]
        return (
            f"its Workload {name} is deactivated; to queue it again, set spec.active of that "
            f"Workload to true"
        )
    reserved = condition(workload, "QuotaReserved") or {}
    if reserved.get("status") == "True":
        checks: list[AdmissionCheck] = (workload.get("status") or {}).get("admissionChecks") or []
        pending = [_pending_check(check) for check in checks if check.get("state") != "Ready"]
        if pending:
            return f"its quota is reserved; pending admission checks: {', '.join(pending)}"
        return ""
    message = _WHOM.sub("", " ".join(str(reserved.get("message", "")).split()))
    message = _POD_SET.sub(
        lambda match: "" if match[1] == "main" else f"pod set {match[1]}: ", message
    )
    if message.startswith("LocalQueue ") and message.endswith(" doesn't exist"):
        message += "; create it, or name another one in spec.trial.queue"
    requeued = condition(workload, "Requeued") or {}
    again_at = ((workload.get("status") or {}).get("requeueState") or {}).get("requeueAt")
    if again_at and requeued.get("status") == "False":
        return f"{message}; queued again at {again_at}"
    return message


def _pending_check(check: AdmissionCheck) -> str:
    message = " ".join(str(check.get("message", "")).split())
    return str(check.get("name", "")) + (f" ({message})" if message else "")


# The cache


class StatusCache:
    """The status of an attempt whose object is unchanged.

    A thousand are read many times a second. A changed object is a new dict in the informer, so the
    same dicts have the same status. No status is kept for long, because it may depend on the time.
    """

    def __init__(self) -> None:
        self._known: tuple[float, AttemptObject, Sequence[Pod], AttemptStatus] | None = None

    def get(self, obj: AttemptObject, pods: Sequence[Pod], *, quiet: bool) -> AttemptStatus | None:
        """Return the cached status; None: derive it again. quiet: no event explains a wait."""
        if self._known is None:
            return None
        until_s, same, same_pods, status = self._known
        if obj is not same or len(pods) != len(same_pods) or time.monotonic() >= until_s:
            return None
        if status.start_time is None and not quiet:
            return None
        return status if all(a is b for a, b in zip(pods, same_pods, strict=True)) else None

    def put(
        self,
        obj: AttemptObject,
        pods: Sequence[Pod],
        status: AttemptStatus,
        *,
        left_s: float | None,
    ) -> None:
        """Keep a status. left_s: seconds until the attempt's timeout."""
        if status.exit is not None:
            self.forget()
            return
        doubted = status.start_time is None or obj.get("status", {}).get("conditions")
        believed_s = _DOUBTED_S if doubted else _BELIEVED_S
        until_s = time.monotonic() + (believed_s if left_s is None else min(believed_s, left_s))
        self._known = until_s, obj, pods, status

    def forget(self) -> None:
        self._known = None
