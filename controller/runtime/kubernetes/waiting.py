"""Why a pod does not run yet, and from when on that is no waiting any more but a mistake in the file. Pure.

What time may mend is given time: a registry that hiccups, a claim that is being provided, a full cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from controller.runtime.kubernetes import explain
from controller.runtime.kubernetes.pods import Shown, condition, container_in, node_of, parse_time

USUAL_S = 5.0  # to be started; nothing is said before, since every change of what is said is written down
IMAGE_S = 20.0
CLAIM_S = 20.0
MOUNT_S = 120.0  # the kubelet itself tries for two minutes before it says more than that it waits
HICCUP_S = 300.0
UNSCHEDULABLE_S = 30 * 60.0

_PULLING = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed"})
_NEVER = frozenset({"InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
_PASSING = (
    "timeout", "timed out", "deadline exceeded", "connection refused", "connection reset", "no such host", "EOF",
    "too many requests", "toomanyrequests", "TLS handshake", "temporarily", "try again", "service unavailable",
    "is reserved for", "unreachable", "object has been modified", "failed calling webhook", "being terminated",
    "status unknown for quota",
)  # fmt: skip


# Of an MPIJob's worker that could not be created; why not is in another event, if anywhere.
NO_CAUSE = "Created worker pod: "


@dataclass(frozen=True, slots=True)
class Waiting:
    """text: for the table of trials. hopeless: why it will never run as it stands; "" while there is hope."""

    text: str = ""
    hopeless: str = ""


def why(pod: Shown, *, now: datetime, container: str = "", mount_trouble: str = "") -> Waiting:
    """Of a pod whose container has not started. mount_trouble: the kubelet's newest event about its volumes."""
    container = container_in(pod, container)
    if not node_of(pod):
        return _without_node(pod, container, now)
    age_s = _age_s(pod, now)
    for name, reason, message in _said(pod):
        text = f"{reason}: {explain.cleaned(message)}" if message else reason
        hopeless = _hopeless(pod, name, reason, message, age_s)
        if hopeless or reason not in ("ContainerCreating", "PodInitializing"):
            return Waiting(text, hopeless)
    if mount_trouble:
        reason = explain.mount(pod, container, mount_trouble)
        return Waiting(reason, reason if age_s >= MOUNT_S else "")
    return Waiting(f"its container is being made on node {node_of(pod)}" if age_s >= USUAL_S else "")


def why_refused(message: str) -> Waiting:
    """Of an object whose pod could not be created, by the event that says so."""
    if message.startswith(NO_CAUSE):
        return Waiting("its operator could not create a pod, and says no reason; see the operator's log")
    said = explain.admission(message)
    return Waiting(said, "" if "exceeded quota" in message or _may_pass(message) else said)


def _without_node(pod: Shown, container: str, now: datetime) -> Waiting:
    scheduled = condition(pod, "PodScheduled") or {}
    message = explain.cleaned(scheduled.get("message"))
    match scheduled.get("reason"):
        case "SchedulingGated":
            return Waiting("held back by a scheduling gate of its pod")
        case "Unschedulable":
            waited_s = _since(scheduled.get("lastTransitionTime"), now)
            if (missing := explain.missing_claim(pod, container, message)) and waited_s >= CLAIM_S:
                return Waiting(missing, missing)
            hopeless = f"no node took it for {UNSCHEDULABLE_S / 60:.0f} minutes: {message}"
            return Waiting(missing or f"Unschedulable: {message}", hopeless if waited_s >= UNSCHEDULABLE_S else "")
    return Waiting()


def _said(pod: Shown) -> Iterator[tuple[str, str, str]]:
    """(container, reason, message) of each that waits; those that come first at start-up come first."""
    status = pod.get("status", {})
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = (each.get("state") or {}).get("waiting")
        if state:
            yield each.get("name", ""), state.get("reason", ""), state.get("message", "")


def _hopeless(pod: Shown, container: str, reason: str, message: str, age_s: float) -> str:
    patience_s = HICCUP_S if _may_pass(message) else 0.0
    if reason in _PULLING:
        explained, patience_s = explain.image(pod, container, reason, message), max(patience_s, IMAGE_S)
    elif reason in _NEVER:
        explained = explain.image(pod, container, reason, message)
    elif reason in ("CreateContainerConfigError", "CreateContainerError"):
        explained = explain.start(pod, container, message) or explain.container_config(pod, container, message)
    elif reason == "RunContainerError":
        explained = explain.start(pod, container, message)
        if not explained:
            return f"its container cannot be started: {explain.cleaned(message)}" if age_s >= HICCUP_S else ""
    else:
        return ""
    return explained if age_s >= patience_s else ""


def _may_pass(message: str) -> bool:
    lowered = message.lower()
    return any(sign.lower() in lowered for sign in _PASSING)


def _age_s(pod: Shown, now: datetime) -> float:
    """Since the kubelet took it."""
    return _since(pod.get("status", {}).get("startTime") or pod.get("metadata", {}).get("creationTimestamp"), now)


def _since(text: object, now: datetime) -> float:
    time = parse_time(text)
    return 0.0 if time is None else (now - time).total_seconds()
