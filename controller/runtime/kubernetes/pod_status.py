"""The status of one pod: how it ended (`Exit`), or why it does not run yet. Pure.

An exit code alone is passed on, and `controller.core.failures` classifies it. Where it is not
enough (an eviction, a command that was not found), the failure class and the reason come from here.
Temporary problems are given time: an unreachable registry, a claim that is being provisioned, a
full cluster. Messages of kubelets, schedulers and admission are kept without their technical
prefixes, between the meaning and the cure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.core.attempt import Exit
from controller.core.failures import INFEASIBLE_EXIT_CODE, class_by_itself, describe_exit_code
from controller.core.metric_lines import has_word
from controller.core.model import FailureClass
from controller.kube.objects import (
    AnyObject,
    Container,
    ContainerStateTerminated,
    ContainerStatus,
    EnvVar,
    Pod,
    PodStatus,
    StatusCondition,
)
from controller.runtime.kubernetes.labels import (
    COLLECTOR_CONTAINER,
    COMPLETION_INDEX,
    TRIAL_CONTAINER,
)

ENDED = ("Succeeded", "Failed")  # the final phases

_DEFAULT_GRACE_S = 30
_LOST_TRACK = "ContainerStatusUnknown"  # of a node about a container of its own


def parse_time(text: object) -> datetime | None:
    """Parse a timestamp; None also for the epoch, the kubelet's value for what never happened."""
    if not isinstance(text, str) or not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.year > 1970 else None


def condition(obj: AnyObject, kind: str) -> StatusCondition | None:
    """Return the condition of that type, whatever its status; the last if there are several."""
    conditions: list[StatusCondition] = obj.get("status", {}).get("conditions") or []
    return next((each for each in reversed(conditions) if each.get("type") == kind), None)


def true_condition(obj: AnyObject, kind: str) -> StatusCondition | None:
    """Return the condition of that type if it holds."""
    found = condition(obj, kind)
    return found if found is not None and found.get("status") == "True" else None


def is_true(obj: AnyObject, kind: str) -> bool:
    return true_condition(obj, kind) is not None


def node_of(pod: Pod) -> str:
    return str(pod.get("spec", {}).get("nodeName") or "")


def container_in(pod: Pod, preferred: str) -> str:
    """Return the trial container's name: the wanted one, ours, or the first, as kubectl does."""
    names = [container["name"] for container in pod.get("spec", {}).get("containers") or ()]
    for name in (preferred, TRIAL_CONTAINER):
        if name in names:
            return name
    return names[0] if names else ""


def container_status(pod: Pod, name: str) -> ContainerStatus:
    """Return the status of a container; {} until the kubelet has reported one."""
    statuses: list[ContainerStatus] = pod.get("status", {}).get("containerStatuses") or []
    return next((status for status in statuses if status.get("name") == name), ContainerStatus())


def started_at(pod: Pod, name: str) -> datetime | None:
    """Return when the container first started: a restart in place does not change it."""
    return first_start(pod, container_status(pod, name))


def first_start(pod: Pod, status: ContainerStatus) -> datetime | None:
    """Return when the container with this status first started.

    The status has the current start and the previous one. After two restarts the first is unknown,
    as is any of a container that its node has lost track of. The pod's start is used instead, which
    is earlier by the time of the image pull.
    """
    state = status.get("state") or {}
    before = (status.get("lastState") or {}).get("terminated") or {}
    ended = state.get("terminated") or {}
    start = parse_time((state.get("running") or ended).get("startedAt"))
    of_pod = parse_time(pod.get("status", {}).get("startTime"))
    if not (restarts := restarts_of(status)):
        return start or (of_pod if ended.get("reason") == _LOST_TRACK else None)
    earlier = parse_time(before.get("startedAt"))
    first = earlier if restarts == 1 else of_pod
    return first or earlier or start


def restarts_of(status: ContainerStatus) -> int:
    """Return how often a container was restarted."""
    return int(status.get("restartCount") or 0)


def terminated(pod: Pod, name: str) -> ContainerStateTerminated | None:
    """Return how the container ended for good; None while it runs, waits, or will be restarted."""
    for_good = phase_of(pod) in ENDED or pod.get("spec", {}).get("restartPolicy") == "Never"
    state = container_status(pod, name).get("state") or {}
    return state.get("terminated") if for_good else None


def phase_of(pod: Pod) -> str:
    return str(pod.get("status", {}).get("phase") or "")


def image_of(pod: Pod, name: str) -> str:
    """Return the container's image, with its digest if a registry has it.

    An image that was loaded into a node has an id there, by which no node can pull it.
    """
    status = container_status(pod, name)
    by_digest = str(status.get("imageID") or "").rpartition("://")[2]
    return by_digest if "@" in by_digest else str(status.get("image") or "")


def deletion_asked(pod: Pod) -> datetime | None:
    """Return when the deletion was requested; deletionTimestamp is the end of the grace period."""
    deadline = parse_time(pod.get("metadata", {}).get("deletionTimestamp"))
    if deadline is None:
        return None
    grace = pod["metadata"].get("deletionGracePeriodSeconds")
    return deadline - timedelta(seconds=_DEFAULT_GRACE_S if grace is None else grace)


def keep_first_deletion(before: Pod, after: Pod) -> None:
    """Write into `after` when the deletion was first requested.

    Once its containers have ended, the kubelet deletes a pod again without grace, and the pod then
    shows that later deletion alone. A container that ended between the two would seem to have ended
    before the deletion was requested.
    """
    first, last = deletion_asked(before), deletion_asked(after)
    if first is not None and last is not None and first < last:
        about = after["metadata"]
        grace = about.get("deletionGracePeriodSeconds")
        grace_s = _DEFAULT_GRACE_S if grace is None else grace
        about["deletionGracePeriodSeconds"] = grace_s + (last - first).total_seconds()


def as_deleted(pod: Pod) -> Pod:
    """Return the last state of a deleted pod, marked as ended."""
    status = pod.get("status", {})
    if status.get("phase") in ENDED:
        return pod
    return {**pod, "status": {**status, "phase": "Failed", "gone": True}}


def was_deleted(pod: Pod) -> bool:
    """Whether the pod was deleted before its end was seen."""
    return pod.get("status", {}).get("gone") is True


def index_of(pod: Pod) -> int:
    """Return the pod's rank in an Indexed Job; 0 in others."""
    about = pod.get("metadata", {})
    for of in (about.get("annotations") or {}, about.get("labels") or {}):
        if str(of.get(COMPLETION_INDEX, "")).isdigit():
            return int(of[COMPLETION_INDEX])
    return 0


def newest_first(pod: Pod) -> tuple[bool, str]:
    """Return a sort key for descending order: pods that are not being deleted, then the newest."""
    about = pod.get("metadata", {})
    return "deletionTimestamp" not in about, str(about.get("creationTimestamp", ""))


# What messages of the cluster mean

_PREFIX = re.compile(r"(rpc error: code = \w+ desc = |Error: |Error response from daemon: )")
_EXEC = re.compile(
    r'exec: \\?"(?P<command>[^"\\]+)\\?": '
    r"(?P<why>executable file not found|stat |no such file|permission denied|is a directory)"
)
_MOUNT_AT = re.compile(r'to rootfs at \\?"(?P<path>[^"\\]+)')
_VOLUME = re.compile(r'(?:for volume |volumes=\[|volumeMount )"?(?P<name>[a-z0-9-]+)')
_CLAIM = re.compile(r'persistentvolumeclaim "(?P<name>[^"]+)" (?P<why>not found|is being deleted)')
_SECRET = re.compile(
    r'secret "?(?P<name>[a-z0-9.-]+)"? not found|in Secret [^/]+/(?P<in>[a-z0-9.-]+)'
)
_ADMISSION = re.compile(
    r'^Error creating: |^job "[^"]+" creation failed with error: |^Failed to create (head|worker) '
    r"Pod \S+, "
    r'|^(pods?|jobs\.batch) "[^"]+" is forbidden: '
)


def cleaned(message: object) -> str:
    """Return a message on one line, without the prefixes of gRPC and container runtimes."""
    return _PREFIX.sub("", " ".join(str(message or "").split()))


def explain_image(pod: Pod, container: str, reason: str, message: str) -> str:
    name, detail = _spec(pod, container).get("image", ""), cleaned(message)
    if container == COLLECTOR_CONTAINER:
        cure = (
            "push it to a registry that the nodes can pull from (make image-collector), and "
            "name it in"
        )
        source = "spec.metrics.collectorImage or TUNER_COLLECTOR_IMAGE"
        return f"the collector's image {name} cannot be pulled: {detail or reason}; {cure} {source}"
    if reason == "ErrImageNeverPull":
        return (
            f"image {name} is not on node {node_of(pod)}, and imagePullPolicy: Never does not "
            f"let it be pulled"
        )
    if reason == "InvalidImageName":
        return f"image {name} is not a valid image name: {detail}"
    return (
        f"image {name} cannot be pulled: {detail or reason}; check its name, and "
        f"imagePullSecrets if it is private"
    )


def explain_config(pod: Pod, container: str, message: str) -> str:
    """Explain why the kubelet cannot create a container."""
    spec, detail = _spec(pod, container), cleaned(message)
    if "image will run as root" in detail:
        return (
            f"image {spec.get('image', '')} runs as root, which is not allowed here; build it "
            f"with USER 1000"
        )
    if "has non-numeric user" in detail:
        return (
            f"image {spec.get('image', '')} names its user, and only a number can be checked "
            f"here; write USER 1000"
        )
    if match := _SECRET.search(detail):
        name = match["name"] or match["in"]
        users = [env["name"] for env in spec.get("env") or () if _secret_of(env) == name]
        if users:
            return f"env {', '.join(users)}: {detail}"
    elif match := _VOLUME.search(detail):
        return _mount(pod, container, match["name"], detail)
    return f"its container cannot be created: {detail}"


def explain_start(pod: Pod, container: str, message: str) -> str:
    """Explain why a created container could not be started; "" if the file is not the cause."""
    detail = cleaned(message)
    name = _spec(pod, container).get("image", "")
    if "mount" in detail and (at := _MOUNT_AT.search(detail)):
        return f"mount {at['path']} failed: {detail}"
    if match := _EXEC.search(detail):
        command = match["command"]
        if match["why"] == "permission denied":
            return f"command {command} in image {name} may not be executed (permission denied)"
        if match["why"] == "is a directory":
            return f"command {command} in image {name} is a directory"
        return f"command {command} was not found in image {name}"
    if "no such file or directory" in detail or "chdir to cwd" in detail:
        return f"the command could not be started in image {name}: {detail}"
    return ""


def explain_mount(pod: Pod, container: str, message: str) -> str:
    """Explain why the node cannot mount a volume."""
    detail = cleaned(message)
    if match := _VOLUME.search(detail):
        return _mount(pod, container, match["name"], detail)
    return f"a volume cannot be mounted: {detail}"


def missing_claim(pod: Pod, container: str, message: str) -> str:
    """Explain that a pod without a node waits for a missing claim; "" otherwise."""
    match = _CLAIM.search(message)
    if match is None:
        return ""
    missing = f"the claim {match['name']} is not in the namespace"
    for volume in pod.get("spec", {}).get("volumes") or ():
        if (volume.get("persistentVolumeClaim") or {}).get("claimName") == match["name"]:
            return _mount(pod, container, volume["name"], missing)
    return missing


def explain_refusal(message: str) -> str:
    """Explain why a pod may not be created."""
    detail = cleaned(message)
    while (shorter := _ADMISSION.sub("", detail)) != detail:
        detail = shorter
    if "violates PodSecurity" in detail:
        return f"the namespace's pod security profile does not allow it: {detail}"
    if "must specify" in detail:
        return f"a quota of the namespace requires trial.resources that the file omits: {detail}"
    return f"the cluster does not allow its pod to be created: {detail}"


def _mount(pod: Pod, container: str, name: str, detail: str) -> str:
    for mounted in _spec(pod, container).get("volumeMounts") or ():
        if mounted.get("name") == name:
            return f"volume {name} (at {mounted.get('mountPath')}) cannot be mounted: {detail}"
    return f"volume {name} cannot be mounted: {detail}"


def _spec(pod: Pod, container: str) -> Container:
    named = (each for each in _containers(pod) if each.get("name") == container)
    return next(named, Container())


def _containers(pod: Pod) -> Iterator[Container]:
    spec = pod.get("spec", {})
    yield from spec.get("containers") or ()
    yield from spec.get("initContainers") or ()


def _secret_of(env: EnvVar) -> str:
    return str(((env.get("valueFrom") or {}).get("secretKeyRef") or {}).get("name", ""))


# How it ended

GIVEN_UP_S = 30.0  # after the end of a pod's grace period: its node does not respond
MOST_RESTARTS = 5  # with the kubelet's back-off of 10, 20, 40… s that is after five minutes
NOTICED_S = 10.0  # a Job notices a restart within this time
ITS_POD = "its pod"  # the deleted thing, unless it is the object that owns the pod
KILLED = frozenset({137, 143})  # 128 + SIGKILL, 128 + SIGTERM

_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted by a pod of a higher priority",
    "DeletionByTaintManager": "node {node} was lost or tainted: its pods were removed",
    "EvictionByEvictionAPI": "evicted from node {node} on request, as when it is drained",
    "TerminationByKubelet": "evicted by node {node}",
    "DeletionByPodGC": "node {node} is gone, and so is its pod",
}
_CONTAINER_FAILED_TO_START = frozenset({"StartError", "ContainerCannotRun"})


def end_of(pod: Pod, container: str, *, stopped: bool, now: datetime, deleted: str) -> Exit | None:
    """Return how the pod ended; None while it runs or will run.

    `stopped`: we asked it to end. `deleted`: what was deleted,
    for the reason of an end by deletion.
    """
    ended = terminated(pod, container)
    asked_at = deletion_asked(pod)
    if ended is None:
        return _without_container(
            pod, container, stopped=stopped, now=now, asked_at=asked_at, deleted=deleted
        )
    time = parse_time(ended.get("finishedAt")) or asked_at or now
    code = int(ended.get("exitCode", 0))
    was_ending = asked_at is not None and time >= asked_at
    # A node's clock may be behind the server's: after our request to end,
    # a signal is taken as ours.
    by_signal = asked_at is not None and code in KILLED and ended.get("reason") != "OOMKilled"
    if stopped and (was_ending or by_signal):
        return Exit(time, code=code, stopped=True)
    if eviction := _eviction(pod, time):
        return eviction
    if ended.get("reason") == "OOMKilled":
        return Exit(time, code=code or 137, out_of_memory=True)
    if ended.get("reason") in _CONTAINER_FAILED_TO_START:
        return _never_started(pod, container, time, str(ended.get("message", "")))
    if deleted == ITS_POD and was_ending and (failure := given_up(pod, container)):
        return failure
    if was_ending:
        return lost(time, f"{deleted} was deleted by someone else (exit code {code})")
    if ended.get("reason") == _LOST_TRACK:
        return lost(time, f"node {node_of(pod)} has lost track of its container")
    if ended.get("signal"):
        return Exit(time, signal=int(ended["signal"]))
    if code in KILLED:
        return lost(time, f"killed from outside (exit code {code}), not for lack of memory")
    return Exit(time, code=code)


def _without_container(
    pod: Pod,
    container: str,
    *,
    stopped: bool,
    now: datetime,
    asked_at: datetime | None,
    deleted: str,
) -> Exit | None:
    """Return the end of a pod whose container never ended or whose node can no longer report it."""
    match phase_of(pod):
        case "Succeeded":
            return Exit(now, code=0)
        case "Failed":
            # Our deletion may be all that is known: the end may come while no watch is open.
            if stopped and (asked_at is not None or was_deleted(pod)):
                return Exit(asked_at or now, unknown=True, stopped=True)
            otherwise = "its pod failed and does not say why"
            if was_deleted(pod):
                otherwise = f"{deleted} was deleted by someone else"
            eviction = _eviction(pod, asked_at or now) or _start_up(pod, now)
            return eviction or lost(asked_at or now, _pod_message(pod, otherwise))
    if asked_at is None:
        return crash_loop(pod, container, now)
    node, grace_s = node_of(pod), pod["metadata"].get("deletionGracePeriodSeconds") or 0
    if node and now < asked_at + timedelta(seconds=grace_s + GIVEN_UP_S):
        return None
    if stopped:
        return Exit(asked_at, unknown=True, stopped=True)
    explanation = f"{deleted} was deleted by someone else before it ran"
    if node:
        explanation = f"node {node} does not answer: its pod could not be ended"
    return _eviction(pod, asked_at) or lost(asked_at, explanation)


def _eviction(pod: Pod, time: datetime) -> Exit | None:
    """Return the end of a pod that was evicted or disrupted before `time`; None: it was not."""
    disruption = true_condition(pod, "DisruptionTarget")
    if disruption is not None:
        since = parse_time(disruption.get("lastTransitionTime"))
        if since is not None and since > time:
            return None
        why = str(disruption.get("reason") or "disrupted")
        cause = _DISRUPTIONS.get(why, why).format(node=node_of(pod))
        return lost(time, _with(cause, disruption.get("message")))
    status: PodStatus = pod.get("status", {})
    reason, message = str(status.get("reason") or ""), cleaned(status.get("message"))
    match reason:
        case "":
            return None
        case "DeadlineExceeded":
            passed = _with("its pod's own deadline passed", message)
            return Exit(time, failure_class=FailureClass.TIMEOUT, reason=passed)
        # it exceeded its own limit, which would happen on any node
        case "Evicted" if "limit" in message:
            return Exit(time, failure_class=FailureClass.USER_ERROR, reason=_evicted(pod, message))
        case "Evicted":
            return lost(time, _evicted(pod, message))
    # NodeLost, a node's shutdown, or OutOfcpu of a node that was fuller than the scheduler knew.
    return lost(time, _with(f"node {node_of(pod)} rejected or ended it ({reason})", message))


def _never_started(pod: Pod, container: str, time: datetime, message: str) -> Exit:
    explanation = explain_start(pod, container, message)
    if explanation:
        return Exit(time, failure_class=FailureClass.CONFIGURATION, reason=explanation)
    return lost(time, f"node {node_of(pod)} could not start its container: {cleaned(message)}")


def _start_up(pod: Pod, now: datetime) -> Exit | None:
    """Return the end by a failed init container; None: none failed."""
    for status in _init_statuses(pod):
        ended = (status.get("state") or {}).get("terminated") or {}
        if not ended.get("exitCode"):
            continue
        name, time = str(status.get("name")), parse_time(ended.get("finishedAt")) or now
        if ended.get("reason") in _CONTAINER_FAILED_TO_START:
            return _never_started(pod, name, time, str(ended.get("message", "")))
        failure = FailureClass.USER_ERROR
        if ended.get("reason") == "OOMKilled":
            failure = FailureClass.OUT_OF_MEMORY
        reason = f"its init container {name} ended with exit code {ended['exitCode']}"
        message = last_line(ended.get("message"))
        return Exit(time, failure_class=failure, reason=_with(reason, message))
    return None


def _init_statuses(pod: Pod) -> Sequence[ContainerStatus]:
    return pod.get("status", {}).get("initContainerStatuses") or ()


def crash_loop(pod: Pod, container: str, now: datetime) -> Exit | None:
    """Return the end of a pod whose (init) container failed again after MOST_RESTARTS restarts.

    Kubernetes would restart it forever. None: it runs, or may still recover.
    """
    for status in (*_init_statuses(pod), container_status(pod, container)):
        state, restarts = status.get("state") or {}, restarts_of(status)
        if "running" in state or restarts < MOST_RESTARTS:
            continue
        last = state.get("terminated") or (status.get("lastState") or {}).get("terminated") or {}
        name = status.get("name")
        which = "its container" if name == container else f"its init container {name}"
        return _by_last(last, f"{which} was restarted {restarts} times, last after", now)
    return None


def given_up(pod: Pod, container: str) -> Exit | None:
    """Return the end of a pod that its Job deleted: restarts in place used up the backoffLimit.

    A Job then deletes all its pods. None: the pod was deleted for another reason.
    """
    status, asked_at = container_status(pod, container), deletion_asked(pod)
    last = (status.get("lastState") or {}).get("terminated") or {}
    again = parse_time((terminated(pod, container) or {}).get("startedAt"))
    if not last.get("exitCode") or asked_at is None or again is None:
        return None
    if (asked_at - again).total_seconds() > NOTICED_S:
        return None
    return _by_last(last, "its container was restarted, and its pod then deleted, after", asked_at)


def _by_last(last: ContainerStateTerminated, fact: str, now: datetime) -> Exit:
    """Return the end by the last failure of a restarted container.

    fact: the beginning of the reason.
    """
    time = parse_time(last.get("finishedAt")) or now
    code, message = int(last.get("exitCode", 0)), last_line(last.get("message"))
    if code == INFEASIBLE_EXIT_CODE:
        return Exit(time, code=code)
    reason = f"{fact} {describe_exit_code(code)}" + (f": {message}" if message else "")
    if last.get("reason") == "OOMKilled":
        return Exit(time, failure_class=FailureClass.OUT_OF_MEMORY, reason=f"{reason} (OOMKilled)")
    failure_class = class_by_itself(code, message) or FailureClass.USER_ERROR
    return Exit(time, failure_class=failure_class, reason=reason)


def last_line(message: object) -> str:
    """Return a termination message's last line: it has the end of a failed container's log."""
    lines = [line for line in str(message or "").splitlines() if has_word(line)]
    return lines[-1].strip() if lines else ""


def lost(time: datetime, reason: str) -> Exit:
    return Exit(time, failure_class=FailureClass.INFRASTRUCTURE, reason=reason)


def _evicted(pod: Pod, message: str) -> str:
    return _with(f"evicted by node {node_of(pod)}", message)


def _pod_message(pod: Pod, otherwise: str) -> str:
    status: PodStatus = pod.get("status", {})
    return _with(str(status.get("reason") or otherwise), status.get("message"))


def _with(fact: str, message: object) -> str:
    detail = cleaned(message)
    return f"{fact}: {detail}" if detail else fact


# Why it does not run yet

USUAL_S = 5.0  # for a container to start; no reason is shown before, since every change is recorded
# for an image that the registry does not have or does not give; another pull may be under way
IMAGE_S = 20.0
CLAIM_S = 20.0
MOUNT_S = 120.0  # the kubelet retries for two minutes before it reports a cause
HICCUP_S = 300.0  # for what may pass: an unreachable registry, a webhook that is restarting
NO_NODE_S = 300.0  # without a node: a node that could run it may be joining

_PULLING = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed"}
)
_NEVER = frozenset({"InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
_PASSING = re.compile(
    r"timeout|timed out|deadline exceeded|connection refused|connection reset|dial tcp"
    r"|no such host|name resolution|server misbehaving|\bEOF\b|too ?many ?requests|TLS handshake"
    r"|temporar|try again|service unavailable|bad gateway|internal server error|is reserved for"
    r"|unreachable|object has been modified|failed calling webhook|being terminated"
    r"|status unknown for quota",
    re.IGNORECASE,
)
# Older kubelets do not repeat the cause while they wait between two pulls.
_NO_CAUSE_OF_PULL = re.compile(r'Back-off pulling image "[^"]*"\.?')


# What the scheduler appends about other pods and device claims that it could evict.
_PREEMPTION = re.compile(r"( no new claims to deallocate,)? preemption: .*$")


# The event of an MPIJob's worker that could not be created;
# the cause is in another event, if anywhere.
NO_CAUSE = "Created worker pod: "


@dataclass(frozen=True, slots=True)
class WaitingReason:
    """text: for the table of trials.

    start_failure: why it can never run without a change; "" while it may run.
    """

    text: str = ""
    start_failure: str = ""

    def of(self, label: str) -> WaitingReason:
        """Return the reason as that of one of several pods; label: "" for the only one."""
        if not label:
            return self
        failure = self.start_failure and f"{label}: {self.start_failure}"
        return WaitingReason(f"{label}: {self.text}", failure)


def why_waiting(
    pod: Pod, *, now: datetime, container: str = "", mount_trouble: str = "", on_no_node: str = ""
) -> WaitingReason:
    """Return why a pod's container has not started.

    mount_trouble: the newest event about its volumes. on_no_node: why no node
    could ever run it; "" if one could.
    """
    container = container_in(pod, container)
    if not node_of(pod):
        return _unscheduled(pod, container, on_no_node, now)
    age_s = _age_s(pod, now)
    for name, reason, message in _waiting_states(pod):
        since_s = min(age_s, _initialized_s(pod, name, now))
        start_failure = _start_failure(pod, name, reason, message, since_s)
        if start_failure or reason not in ("ContainerCreating", "PodInitializing"):
            return WaitingReason(_with(reason, message), start_failure)
    if mount_trouble:
        reason = explain_mount(pod, container, mount_trouble)
        return WaitingReason(reason, reason if age_s >= MOUNT_S else "")
    return WaitingReason(
        f"its container is being created on node {node_of(pod)}" if age_s >= USUAL_S else ""
    )


def why_refused(message: str) -> WaitingReason:
    """Return why an object's pod could not be created, from the message of the event."""
    if message.startswith(NO_CAUSE):
        return WaitingReason(
            "its operator could not create a pod and does not say why; see the operator's log"
        )
    explanation = explain_refusal(message)
    waits = "exceeded quota" in message or _may_pass(message)
    return WaitingReason(explanation, "" if waits else explanation)


def unschedulable_s(pod: Pod, *, now: datetime) -> float:
    """Return how long the scheduler has found no node for the pod; 0 if it has one."""
    scheduled = condition(pod, "PodScheduled") or {}
    if node_of(pod) or scheduled.get("reason") != "Unschedulable":
        return 0.0
    return _since(scheduled.get("lastTransitionTime"), now)


def _unscheduled(pod: Pod, container: str, on_no_node: str, now: datetime) -> WaitingReason:
    """Return why the pod has no node.

    It waits as long as any node could run it, however long others use them.
    """
    scheduled = condition(pod, "PodScheduled") or {}
    message = _PREEMPTION.sub("", cleaned(scheduled.get("message")))
    match scheduled.get("reason"):
        case "SchedulingGated":
            return WaitingReason("held back by a scheduling gate of its pod")
        case "Unschedulable":
            claim = missing_claim(pod, container, message)
            if claim and unschedulable_s(pod, now=now) >= CLAIM_S:
                return WaitingReason(claim, claim)
            return WaitingReason(claim or f"Unschedulable: {message}", on_no_node)
    return WaitingReason()


def _waiting_states(pod: Pod) -> Iterator[tuple[str, str, str]]:
    """Yield (container, reason, message) of each waiting container, in the order of start-up."""
    status = pod.get("status", {})
    for container in (*_init_statuses(pod), *(status.get("containerStatuses") or ())):
        state = (container.get("state") or {}).get("waiting")
        if state:
            yield container.get("name", ""), state.get("reason", ""), state.get("message", "")


def _start_failure(pod: Pod, container: str, reason: str, message: str, age_s: float) -> str:
    # A name of an image may have any of these words.
    cause = message.replace(_spec(pod, container).get("image") or " ", "")
    patience_s = HICCUP_S if _may_pass(cause) else 0.0
    if reason in _PULLING:
        if reason == "RegistryUnavailable" or _NO_CAUSE_OF_PULL.fullmatch(message):
            patience_s = HICCUP_S
        explained = explain_image(pod, container, reason, message)
        patience_s = max(patience_s, IMAGE_S)
    elif reason in _NEVER:
        explained = explain_image(pod, container, reason, message)
    elif reason in ("CreateContainerConfigError", "CreateContainerError"):
        about = pod, container, message
        explained = explain_start(*about) or explain_config(*about)
    elif reason == "RunContainerError":
        explained = explain_start(pod, container, message)
        if not explained:
            explained, patience_s = f"its container cannot be started: {cleaned(message)}", HICCUP_S
    else:
        return ""
    return explained if age_s >= patience_s else ""


def _may_pass(message: str) -> bool:
    return _PASSING.search(message) is not None


def _age_s(pod: Pod, now: datetime) -> float:
    """Return the seconds since the kubelet accepted the pod, or since the pod was created if the
    clock of its node is wrong.
    """
    exists_s = _since(pod.get("metadata", {}).get("creationTimestamp"), now)
    accepted = pod.get("status", {}).get("startTime")
    accepted_s = exists_s if accepted is None else _since(accepted, now)
    return accepted_s if 0 <= accepted_s <= exists_s else exists_s


def _initialized_s(pod: Pod, container: str, now: datetime) -> float:
    """Return the seconds since the init containers ended; no other container starts before that."""
    ended = true_condition(pod, "Initialized") or {}
    inits = pod.get("spec", {}).get("initContainers") or ()
    is_init = any(init.get("name") == container for init in inits)
    if is_init or parse_time(ended.get("lastTransitionTime")) is None:
        return math.inf
    return _since(ended["lastTransitionTime"], now)


def _since(text: object, now: datetime) -> float:
    time = parse_time(text)
    return 0.0 if time is None else (now - time).total_seconds()
