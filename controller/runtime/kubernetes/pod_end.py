"""How one pod ended -> `Exit`. Pure.

An exit code is passed on where it tells the whole story; `controller.core.failures` judges it. Where it does not (a
node that threw the pod out, a program that was never found), the class and the sentence come from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from controller.core.failures import INFEASIBLE_EXIT_CODE, called, class_by_itself
from controller.core.model import FailureClass
from controller.runtime.kubernetes import explain
from controller.runtime.kubernetes.pods import (
    Shown,
    condition,
    container_status,
    deletion_asked,
    is_gone,
    is_true,
    node_of,
    parse_time,
    phase_of,
    restarts_of,
    terminated,
)
from controller.runtime.protocol import Exit

GIVEN_UP_S = 30.0  # past the end of a pod's grace: its node is not there to end it
MOST_RESTARTS = 5  # with the kubelet's back-off of 10, 20, 40… s that is after five minutes
NOTICED_S = 10.0  # by a Job, that a container was restarted
ITS_POD = "its pod"  # what was deleted, if not the object that it belongs to
KILLED = frozenset({137, 143})  # 128 + SIGKILL, 128 + SIGTERM

_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted by a pod of a higher priority",
    "DeletionByTaintManager": "node {node} lost or tainted: its pods were removed",
    "EvictionByEvictionAPI": "evicted from node {node} on request, as when it is drained",
    "TerminationByKubelet": "evicted by node {node}",
    "DeletionByPodGC": "node {node} is gone, and its pod with it",
}
_CONTAINER_FAILED_TO_START = frozenset({"StartError", "ContainerCannotRun"})


def end_of(pod: Shown, container: str, *, stopped: bool, now: datetime, deleted: str = ITS_POD) -> Exit | None:
    """None while it runs or will. `stopped`: we had asked. `deleted`: what somebody has deleted, should it be that."""
    ended = terminated(pod, container)
    asked = deletion_asked(pod)
    if ended is None:
        return _without_container(pod, container, stopped=stopped, now=now, asked=asked, deleted=deleted)
    time = parse_time(ended.get("finishedAt")) or asked or now
    code = int(ended.get("exitCode", 0))
    was_ending = asked is not None and time >= asked
    # A node's clock may be behind the server's: what a signal ended that we had asked to end, our signal ended.
    by_signal = asked is not None and code in KILLED and ended.get("reason") != "OOMKilled"
    if stopped and (was_ending or by_signal):
        return Exit(time, code=code, stopped=True)
    if thrown_out := _thrown_out(pod, time):
        return thrown_out
    if ended.get("reason") == "OOMKilled":
        return Exit(time, code=code or 137, out_of_memory=True)
    if ended.get("reason") in _CONTAINER_FAILED_TO_START:
        return _never_started(pod, container, time, str(ended.get("message", "")))
    if deleted == ITS_POD and was_ending and (failure := given_up(pod, container)):
        return failure
    if was_ending:
        return _lost(time, f"{deleted} was deleted by somebody else (exit code {code})")
    if ended.get("reason") == "ContainerStatusUnknown":
        return _lost(time, f"node {node_of(pod)} has lost track of its container")
    if ended.get("signal"):
        return Exit(time, signal=int(ended["signal"]))
    if code in KILLED:
        return _lost(time, f"killed from outside: exit code {code}, not for memory")
    return Exit(time, code=code)


def _without_container(
    pod: Shown, container: str, *, stopped: bool, now: datetime, asked: datetime | None, deleted: str
) -> Exit | None:
    """A pod can end without its container ever having, or with a node that cannot say so any more."""
    match phase_of(pod):
        case "Succeeded":
            return Exit(now, code=0)
        case "Failed":
            # That we had it deleted may be all that is known: its end comes and goes while a watch is away.
            if stopped and (asked is not None or is_gone(pod)):
                return Exit(asked or now, unknown=True, stopped=True)
            thrown_out = _thrown_out(pod, asked or now) or _start_up(pod, now)
            otherwise = (
                f"{deleted} was deleted by somebody else" if is_gone(pod) else "its pod failed and does not say why"
            )
            return thrown_out or _lost(asked or now, _told(pod, otherwise))
    if asked is None:
        return crash_loop(pod, container, now)
    grace_s = pod["metadata"].get("deletionGracePeriodSeconds") or 0
    unanswered = node_of(pod) and now < asked + timedelta(seconds=grace_s + GIVEN_UP_S)
    if unanswered:
        return None
    if stopped:
        return Exit(asked, unknown=True, stopped=True)
    thrown_out = _thrown_out(pod, asked)
    if node_of(pod):
        why = f"node {node_of(pod)} does not answer: its pod could not be ended"
        return thrown_out or _lost(asked, why)
    return thrown_out or _lost(asked, f"{deleted} was deleted by somebody else before it ran")


def _thrown_out(pod: Shown, time: datetime) -> Exit | None:
    """By the cluster, for reasons of its own, before `time`: what had ended before is judged by itself."""
    disruption = condition(pod, "DisruptionTarget") if is_true(pod, "DisruptionTarget") else None
    if disruption is not None:
        since = parse_time(disruption.get("lastTransitionTime"))
        if since is None or since <= time:
            known = _DISRUPTIONS.get(str(disruption.get("reason")), str(disruption.get("reason") or "disrupted"))
            return _lost(time, _with(known.format(node=node_of(pod)), disruption.get("message")))
        return None
    status = pod.get("status", {})
    reason, message = str(status.get("reason") or ""), explain.cleaned(status.get("message"))
    match reason:
        case "":
            return None
        case "DeadlineExceeded":
            return Exit(
                time, failure_class=FailureClass.TIMEOUT, reason=_with("its pod's own deadline passed", message)
            )
        case "Evicted" if "limit" in message:  # its own limit, not the node's need: it would happen again anywhere
            return Exit(time, failure_class=FailureClass.USER_ERROR, reason=_evicted(pod, message))
        case "Evicted":
            return _lost(time, _evicted(pod, message))
    # NodeLost, a node's shutdown, OutOfcpu and the like of a node that was fuller than the scheduler knew.
    return _lost(time, _with(f"node {node_of(pod)} did not keep it ({reason})", message))


def _never_started(pod: Shown, container: str, time: datetime, message: str) -> Exit:
    why = explain.start(pod, container, message)
    if why:
        return Exit(time, failure_class=FailureClass.CONFIGURATION, reason=why)
    return _lost(time, f"node {node_of(pod)} could not start its container: {explain.cleaned(message)}")


def _start_up(pod: Shown, now: datetime) -> Exit | None:
    """A step before the trial's own container that failed."""
    for each in pod.get("status", {}).get("initContainerStatuses") or ():
        ended: Mapping[str, object] = (each.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            time = parse_time(ended.get("finishedAt")) or now
            reason = f"its init container {each.get('name')} ended with exit code {ended['exitCode']}"
            failure = FailureClass.OUT_OF_MEMORY if ended.get("reason") == "OOMKilled" else FailureClass.USER_ERROR
            return Exit(time, failure_class=failure, reason=_with(reason, last_line(ended.get("message"))))
    return None


def crash_loop(pod: Shown, container: str, now: datetime) -> Exit | None:
    """Its container, or one that comes before it, was restarted in place MOST_RESTARTS times and is down again: nobody
    would ever call that an end. None: it runs, or may still recover."""
    for status in (*(pod.get("status", {}).get("initContainerStatuses") or ()), container_status(pod, container)):
        state = status.get("state") or {}
        if "running" in state or restarts_of(status) < MOST_RESTARTS:
            continue
        last = state.get("terminated") or (status.get("lastState") or {}).get("terminated") or {}
        what = "its container" if status.get("name") == container else f"its init container {status.get('name')}"
        return _by_last(last, f"{what} was restarted {restarts_of(status)} times, last after", now)
    return None


def given_up(pod: Shown, container: str) -> Exit | None:
    """Of a pod that was deleted though its object was not: its container had failed and was being restarted. A Job
    deletes such a pod, and all others, once restarts in place have used up its backoffLimit. None: it was not that."""
    status, asked = container_status(pod, container), deletion_asked(pod)
    last = (status.get("lastState") or {}).get("terminated") or {}
    again = parse_time((terminated(pod, container) or {}).get("startedAt"))
    if not last.get("exitCode") or asked is None or again is None or (asked - again).total_seconds() > NOTICED_S:
        return None
    return _by_last(last, "its container was restarted, and its pod then deleted, after", asked)


def _by_last(last: Mapping[str, Any], what: str, now: datetime) -> Exit:
    """last: how a container that was restarted had ended. what: a sentence that goes on with its exit code."""
    time = parse_time(last.get("finishedAt")) or now
    code, said = int(last.get("exitCode", 0)), last_line(last.get("message"))
    if code == INFEASIBLE_EXIT_CODE:
        return Exit(time, code=code)
    reason = f"{what} {called(code)}" + (f": {said}" if said else "")
    if last.get("reason") == "OOMKilled":
        return Exit(time, failure_class=FailureClass.OUT_OF_MEMORY, reason=f"{reason} (OOMKilled)")
    failure_class = class_by_itself(code, said) or FailureClass.USER_ERROR
    return Exit(time, failure_class=failure_class, reason=reason)


def last_line(message: object) -> str:
    """Of what a container said last, which its status carries if it failed."""
    lines = [line for line in str(message or "").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def _lost(time: datetime, reason: str) -> Exit:
    return Exit(time, failure_class=FailureClass.INFRASTRUCTURE, reason=reason)


def _evicted(pod: Shown, message: str) -> str:
    return _with(f"evicted by node {node_of(pod)}", message)


def _told(pod: Shown, otherwise: str) -> str:
    status = pod.get("status", {})
    return _with(str(status.get("reason") or otherwise), status.get("message"))


def _with(what: str, message: object) -> str:
    said = explain.cleaned(message)
    return f"{what}: {said}" if said else what
