"""The status of an attempt, derived from its Job and its pods as API servers return them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.core.attempt import AttemptStatus, Exit
from controller.core.model import FailureClass
from controller.runtime.kubernetes.attempt_status import collector_source, log_source, status_of
from controller.runtime.kubernetes.labels import STATUS_RULES
from controller.runtime.kubernetes.logs import PodContainer
from controller.runtime.kubernetes.pod_status import as_deleted, image_of, parse_time

Raw = dict[str, Any]

CREATED = datetime(2026, 11, 21, 9, 40, 0, tzinfo=UTC)
INFRASTRUCTURE, CONFIGURATION = FailureClass.INFRASTRUCTURE, FailureClass.CONFIGURATION
USER_ERROR, OUT_OF_MEMORY, TIMEOUT = (
    FailureClass.USER_ERROR,
    FailureClass.OUT_OF_MEMORY,
    FailureClass.TIMEOUT,
)
DIGEST = "registry.example/digits@sha256:abc"


def at(seconds: float) -> datetime:
    return CREATED + timedelta(seconds=seconds)


def stamp(seconds: float) -> str:
    return at(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def a_job(
    *,
    conditions: tuple[Raw, ...] = (),
    queue: str = "",
    suspend: bool | None = None,
    reading: Raw | None = None,
    kind: str = "Job",
    **spec: Any,
) -> Raw:
    spec = {"backoffLimit": 0, "template": {}, **spec} | (
        {} if suspend is None else {"suspend": suspend}
    )
    about: Raw = {"name": "x-0", "creationTimestamp": stamp(0), "labels": {}}
    if queue:
        about["labels"] = {"kueue.x-k8s.io/queue-name": queue}
    if reading is not None:
        about["annotations"] = {STATUS_RULES: json.dumps(reading)}
    version = "batch/v1" if kind == "Job" else "jobset.x-k8s.io/v1alpha2"
    status = {"conditions": list(conditions)}
    return {"apiVersion": version, "kind": kind, "metadata": about, "spec": spec, "status": status}


def a_condition(
    type_: str, reason: str = "", message: str = "", *, after: float = 9, status: str = "True"
) -> Raw:
    found = {"type": type_, "status": status, "lastTransitionTime": stamp(after)}
    return (
        found | ({"reason": reason} if reason else {}) | ({"message": message} if message else {})
    )


FAILED = a_condition(
    "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
)


def a_pod(
    state: Raw | None = None,
    *,
    phase: str = "Running",
    index: int | None = None,
    node: str = "gpu-7",
    reason: str = "",
    message: str = "",
    conditions: tuple[Raw, ...] = (),
    deleted: float | None = None,
    grace_s: int = 30,
    name: str = "",
    created: float = 0,
    labels: Raw | None = None,
    containers: tuple[str, ...] = ("trial",),
    init: tuple[Raw, ...] = (),
) -> Raw:
    """A pod. `state` is that of its first container, `deleted` the time of its deletion."""
    about: Raw = {"name": name or f"x-0-{index or 0}", "creationTimestamp": stamp(created)}
    about["labels"] = {"batch.kubernetes.io/job-name": "x-0", **(labels or {})}
    if index is not None:
        about["annotations"] = {"batch.kubernetes.io/job-completion-index": str(index)}
    if deleted is not None:
        about |= {
            "deletionTimestamp": stamp(deleted + grace_s),
            "deletionGracePeriodSeconds": grace_s,
        }
    env = [{"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "api"}}}]
    spec: Raw = {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": each,
                "image": "registry.example/digits:3",
                "env": env,
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
            for each in containers
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "cifar10"}}],
    }
    status: Raw = {"phase": phase, "conditions": list(conditions), "startTime": stamp(created + 1)}
    if node:
        spec["nodeName"] = node
    if reason:
        status |= {"reason": reason, "message": message}
    if state is not None:
        status["containerStatuses"] = [
            {"name": containers[0], "state": state, "imageID": DIGEST, "image": "x"}
        ]
    if init:
        status["initContainerStatuses"] = list(init)
    return {"metadata": about, "spec": spec, "status": status}


RUNNING: Raw = {"running": {"startedAt": stamp(2)}}


def ended(
    code: int, reason: str = "Error", *, after: float = 5, message: str = "", start: str = stamp(2)
) -> Raw:
    terminated: Raw = {
        "exitCode": code,
        "reason": reason,
        "startedAt": start,
        "finishedAt": stamp(after),
    }
    return {"terminated": terminated | ({"message": message} if message else {})}


def waiting(reason: str, message: str = "") -> Raw:
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def look(
    obj: Raw | None,
    *pods: Raw,
    stopped: bool = False,
    now: float = 10,
    refusal: str = "",
    mount_trouble: str = "",
    nodes: Sequence[Raw] = (),
) -> AttemptStatus:
    return status_of(
        "x-0",
        obj,
        pods,
        stopped=stopped,
        now=at(now),
        refusal=refusal,
        mount_trouble=mount_trouble,
        nodes=nodes,
    )


def end_of(
    obj: Raw | None, *pods: Raw, stopped: bool = False, now: float = 10, nodes: Sequence[Raw] = ()
) -> Exit:
    found = look(obj, *pods, stopped=stopped, now=now, nodes=nodes).exit
    assert found is not None
    return found


def lost(after: float, reason: str) -> Exit:
    return Exit(at(after), failure_class=INFRASTRUCTURE, reason=reason)


# One pod


def test_a_running_container_is_a_running_attempt_with_its_node_and_image() -> None:
    assert look(a_job(), a_pod(RUNNING)) == AttemptStatus("x-0", at(2), node="gpu-7", image=DIGEST)


def test_an_attempt_has_ended_when_its_container_has_whatever_its_job_says() -> None:
    pod = a_pod(ended(0, "Completed"), phase="Succeeded")
    assert look(a_job(), pod) == AttemptStatus("x-0", at(2), Exit(at(5), code=0), "gpu-7", DIGEST)


@pytest.mark.parametrize("ahead_s", [-7200, -60, 60, 7200])
def test_an_attempt_runs_between_its_pods_creation_and_now_whatever_the_clock_of_its_node(
    ahead_s: int,
) -> None:
    running = a_pod({"running": {"startedAt": stamp(2 + ahead_s)}})
    start = look(a_job(), running, now=3).start_time
    assert start == at(0 if ahead_s < 0 else 3)
    state = ended(0, "Completed", start=stamp(2 + ahead_s), after=7 + ahead_s)
    status = look(a_job(), a_pod(state, phase="Succeeded"), now=8)
    assert status.exit is not None
    # What was seen first counts as the start.
    assert status.exit.time == at(5 if ahead_s < 0 else 8)


@pytest.mark.parametrize("ahead_s", [-7200, 7200])
def test_patience_with_an_image_does_not_depend_on_the_clock_of_its_node(ahead_s: int) -> None:
    pod = a_pod(waiting("ErrImagePull", "not found"), phase="Pending")
    pod["status"]["startTime"] = stamp(ahead_s)
    assert look(a_job(), pod, now=10).exit is None
    assert end_of(a_job(), pod, now=21).failure_class is CONFIGURATION


def test_it_has_ended_also_while_containers_beside_it_run_on() -> None:
    assert end_of(a_job(), a_pod(ended(0), containers=("trial", "proxy"))) == Exit(at(5), code=0)


@pytest.mark.parametrize("code", [1, 2, 42, 126, 127, 128, 134, 139, 255])
def test_an_exit_code_that_explains_the_end_is_passed_on(code: int) -> None:
    assert end_of(a_job(conditions=(FAILED,)), a_pod(ended(code), phase="Failed")) == Exit(
        at(5), code=code
    )


def test_a_kill_for_memory_is_named_beside_the_exit_code() -> None:
    assert end_of(a_job(), a_pod(ended(137, "OOMKilled"), phase="Failed")) == Exit(
        at(5), code=137, out_of_memory=True
    )


@pytest.mark.parametrize("code", [137, 143])
def test_a_kill_from_an_unknown_source_counts_as_infrastructure(code: int) -> None:
    expected = lost(5, f"killed from outside (exit code {code}), not for lack of memory")
    assert end_of(a_job(), a_pod(ended(code), phase="Failed")) == expected


def test_a_signal_counts_where_the_runtime_tells_it() -> None:
    state = ended(139)
    state["terminated"]["signal"] = 11
    assert end_of(a_job(), a_pod(state, phase="Failed")) == Exit(at(5), signal=11)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("PreemptionByScheduler", "preempted by a pod of a higher priority"),
        ("DeletionByTaintManager", "node gpu-7 was lost or tainted: its pods were removed"),
        ("EvictionByEvictionAPI", "evicted from node gpu-7 on request, as when it is drained"),
        ("TerminationByKubelet", "evicted by node gpu-7"),
        ("DeletionByPodGC", "node gpu-7 is gone, and so is its pod"),
    ],
)
def test_a_disruption_is_an_infrastructure_failure_whatever_the_exit_code(
    reason: str, expected: str
) -> None:
    disrupted = a_condition("DisruptionTarget", reason, "as it says", after=4)
    for code in (0, 1, 143):
        pod = a_pod(ended(code), phase="Failed", conditions=(disrupted,), deleted=4)
        assert end_of(a_job(), pod) == lost(5, f"{expected}: as it says")


def test_a_pod_that_ended_before_its_disruption_is_judged_by_its_own_exit() -> None:
    disrupted = a_condition("DisruptionTarget", "EvictionByEvictionAPI", after=7)
    pod = a_pod(ended(0), phase="Succeeded", conditions=(disrupted,), deleted=7)
    assert end_of(a_job(), pod) == Exit(at(5), code=0)


def test_an_eviction_names_the_node_and_what_its_kubelet_says() -> None:
    message = "The node was low on resource: memory."
    disrupted = a_condition("DisruptionTarget", "TerminationByKubelet", message, after=5)
    pod = a_pod(
        ended(137), phase="Failed", reason="Evicted", message=message, conditions=(disrupted,)
    )
    assert end_of(a_job(), pod) == lost(5, f"evicted by node gpu-7: {message}")
    before_it_ran = a_pod(phase="Failed", reason="Evicted", message=message)
    assert end_of(a_job(), before_it_ran) == lost(10, f"evicted by node gpu-7: {message}")


def test_an_eviction_for_exceeding_its_own_limit_is_not_retried() -> None:
    message = "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi."
    pod = a_pod(ended(137), phase="Failed", reason="Evicted", message=message)
    expected = Exit(at(5), failure_class=USER_ERROR, reason=f"evicted by node gpu-7: {message}")
    assert end_of(a_job(), pod) == expected


def test_a_node_fuller_than_the_scheduler_knew_is_an_infrastructure_failure() -> None:
    pod = a_pod(phase="Failed", reason="OutOfcpu", message="Node didn't have enough resource: cpu")
    reason = "node gpu-7 rejected or ended it (OutOfcpu): Node didn't have enough resource: cpu"
    assert end_of(a_job(), pod) == lost(10, reason)


def test_a_pods_own_deadline_is_a_timeout() -> None:
    pod = a_pod(
        phase="Failed",
        reason="DeadlineExceeded",
        message="Pod was active on the node longer than 60 s",
    )
    assert end_of(a_job(), pod).failure_class is TIMEOUT


def test_a_jobs_own_deadline_is_a_timeout_though_its_pods_were_deleted() -> None:
    over = a_condition(
        "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
    )
    reason = "its Job's own deadline passed: Job was active longer than specified deadline"
    expected = Exit(at(9), failure_class=TIMEOUT, reason=reason)
    assert (
        end_of(a_job(conditions=(over,)), a_pod(ended(143, after=8), phase="Failed", deleted=7))
        == expected
    )
    assert end_of(a_job(conditions=(over,))) == expected


def test_an_init_container_whose_command_is_not_in_the_image_is_a_configuration_failure() -> None:
    message = OCI + 'exec: "sh": executable file not found in $PATH: unknown'
    state = {
        "terminated": {
            "exitCode": 128,
            "reason": "StartError",
            "finishedAt": stamp(3),
            "message": message,
        }
    }
    pod = a_pod(
        waiting("PodInitializing"), phase="Failed", init=({"name": "tuner-parent", "state": state},)
    )
    end = end_of(a_job(), pod)
    assert end is not None
    assert end.failure_class is FailureClass.CONFIGURATION
    assert end.reason.startswith("command sh was not found in image")


def test_an_init_container_that_failed_is_named_with_its_last_line() -> None:
    init = {
        "name": "data",
        "state": {"terminated": {"exitCode": 2, "finishedAt": stamp(3), "message": "a\nno room\n"}},
    }
    pod = a_pod(waiting("PodInitializing"), phase="Failed", init=(init,))
    reason = "its init container data ended with exit code 2: no room"
    assert end_of(a_job(), pod) == Exit(at(3), failure_class=USER_ERROR, reason=reason)


# Asked to end, by us or by others


def test_an_attempt_that_we_stopped_ended_because_of_the_stop() -> None:
    pod = a_pod(ended(143, after=7), phase="Failed", deleted=6)
    assert end_of(a_job(), pod, stopped=True) == Exit(at(7), code=143, stopped=True)
    at_once = a_pod(ended(0, after=6), phase="Succeeded", deleted=6)
    assert end_of(a_job(), at_once, stopped=True) == Exit(at(6), code=0, stopped=True)


def test_a_stop_is_recognized_even_if_the_clock_of_the_node_is_behind() -> None:
    behind = a_pod(ended(143, after=3), phase="Failed", deleted=6)
    assert end_of(a_job(), behind, stopped=True) == Exit(at(3), code=143, stopped=True)
    for_memory = a_pod(ended(137, "OOMKilled", after=3), phase="Failed", deleted=6)
    assert end_of(a_job(), for_memory, stopped=True) == Exit(at(3), code=137, out_of_memory=True)


def test_an_attempt_that_ended_before_the_signal_is_judged_by_its_own_exit() -> None:
    assert end_of(a_job(), a_pod(ended(0), phase="Succeeded", deleted=6), stopped=True) == Exit(
        at(5), code=0
    )
    assert end_of(a_job(), a_pod(ended(3), phase="Failed"), stopped=True) == Exit(at(5), code=3)


def test_a_stopped_attempt_without_objects_counts_as_stopped() -> None:
    assert end_of(None, stopped=True) == Exit(at(10), unknown=True, stopped=True)
    assert end_of(a_job(conditions=(FAILED,)), stopped=True) == Exit(
        at(9), unknown=True, stopped=True
    )
    assert end_of(a_job(queue="a", suspend=True), stopped=True) == Exit(
        at(10), unknown=True, stopped=True
    )


def test_a_pod_that_is_asked_to_end_runs_until_it_has() -> None:
    status = look(a_job(), a_pod(RUNNING, deleted=6), stopped=True, now=20)
    assert (status.exit, status.start_time) == (None, at(2))


def test_a_pod_deleted_by_hand_is_an_infrastructure_failure() -> None:
    pod = a_pod(ended(143, after=7), phase="Failed", deleted=6)
    assert end_of(a_job(), pod) == lost(7, "its pod was deleted by someone else (exit code 143)")


def test_a_job_deleted_by_hand_is_an_infrastructure_failure_once_its_pod_has_ended() -> None:
    assert look(None, a_pod(RUNNING, deleted=6)).exit is None
    pod = a_pod(ended(0, after=7), phase="Succeeded", deleted=6)
    assert end_of(None, pod) == lost(7, "its Job was deleted by someone else (exit code 0)")
    assert end_of(None) == lost(10, "its Job was deleted by someone else")


def test_a_pod_that_ended_before_its_job_was_deleted_is_judged_by_its_own_exit() -> None:
    assert end_of(None, a_pod(ended(0), phase="Succeeded", deleted=6)) == Exit(at(5), code=0)


def test_a_pod_on_an_unreachable_node_is_given_up() -> None:
    pod = a_pod(RUNNING, deleted=6)
    assert look(a_job(), pod, now=65).exit is None
    assert end_of(a_job(), pod, now=67) == lost(
        6, "node gpu-7 does not answer: its pod could not be ended"
    )
    tainted = a_pod(
        RUNNING,
        deleted=6,
        conditions=(a_condition("DisruptionTarget", "DeletionByTaintManager", after=6),),
    )
    assert end_of(a_job(), tainted, now=67) == lost(
        6, "node gpu-7 was lost or tainted: its pods were removed"
    )
    assert end_of(a_job(), pod, stopped=True, now=67) == Exit(at(6), unknown=True, stopped=True)


def test_a_stopped_pod_that_was_never_seen_again_counts_as_stopped() -> None:
    pod = as_deleted(a_pod(RUNNING))
    assert end_of(a_job(), pod, stopped=True) == Exit(at(10), unknown=True, stopped=True)
    assert end_of(a_job(), pod) == lost(10, "its pod was deleted by someone else")


def test_without_its_pod_the_status_of_the_job_decides() -> None:
    assert look(a_job(conditions=(FAILED,)), now=12).exit is None
    assert end_of(a_job(conditions=(FAILED,)), now=15) == lost(
        9, "its pod is gone, and how it ended is unknown"
    )
    complete = a_job(conditions=(a_condition("Complete", "CompletionsReached"),))
    assert end_of(complete, now=15) == Exit(at(9), code=0)


def test_the_end_of_a_job_counts_once_its_pods_are_seen() -> None:
    assert look(a_job(conditions=(a_condition("Complete"),)), a_pod(RUNNING), now=30).exit is None


# Not running yet


def test_a_normal_start_has_no_reason() -> None:
    assert look(a_job()) == AttemptStatus("x-0", None)
    assert look(a_job(), a_pod(phase="Pending", node="")) == AttemptStatus("x-0", None)
    made = look(a_job(), a_pod(waiting("ContainerCreating"), phase="Pending"), now=3)
    assert (made.waiting, made.node) == ("", "gpu-7")


def test_a_container_that_is_created_slowly_is_reported() -> None:
    pod = a_pod(waiting("ContainerCreating"), phase="Pending")
    assert look(a_job(), pod).waiting == "its container is being created on node gpu-7"


def a_node(*, gpus: int) -> Raw:
    return {"metadata": {"name": "gpu-7"}, "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}}


def an_unschedulable(message: str) -> Raw:
    condition = a_condition("PodScheduled", "Unschedulable", message, after=1, status="False")
    return a_pod(phase="Pending", node="", conditions=(condition,))


FULL = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."


def test_a_pod_without_a_node_waits_as_long_as_others_use_the_gpus() -> None:
    pod = an_unschedulable(
        f"{FULL} preemption: 0/4 nodes are available: 4 No preemption victims found."
    )
    for nodes in ([], [a_node(gpus=8)]):
        status = look(a_job(), pod, now=7 * 24 * 3600, nodes=nodes)
        assert (status.exit, status.waiting) == (None, f"Unschedulable: {FULL}")


def test_a_pod_that_fits_on_no_node_fails_once_a_new_node_would_have_joined() -> None:
    pod = an_unschedulable(FULL)
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "16"}}
    assert look(a_job(), pod, now=299, nodes=[a_node(gpus=8)]).exit is None
    reason = "no node of 1 can ever run it: 1 without nvidia.com/gpu 16 (the most is 8)"
    expected = Exit(at(302), failure_class=CONFIGURATION, reason=reason)
    assert end_of(a_job(), pod, now=302, nodes=[a_node(gpus=8)]) == expected


def test_a_missing_claim_is_named_with_its_mount() -> None:
    pod = an_unschedulable(
        '0/1 nodes are available: persistentvolumeclaim "cifar10" not found. preemption: no'
    )
    reason = "volume data (at /data) cannot be mounted: the claim cifar10 is not in the namespace"
    assert look(a_job(), pod).waiting == reason
    assert end_of(a_job(), pod, now=30) == Exit(at(30), failure_class=CONFIGURATION, reason=reason)


def test_a_suspended_job_waits_whatever_its_pods_do() -> None:
    queued = a_job(
        queue="team-a", suspend=True, conditions=(a_condition("Suspended", "JobSuspended"),)
    )
    going = a_pod(ended(143, after=7), phase="Failed", deleted=6)
    assert look(queued, going) == AttemptStatus(
        "x-0", None, waiting="queued by Kueue (queue team-a)", suspended=True
    )
    assert look(a_job(suspend=True)).waiting == "suspended"


def test_kueue_takes_pods_back_before_its_job_is_seen_suspended() -> None:
    admitted = a_job(
        queue="team-a", suspend=False, conditions=(a_condition("Suspended", status="False"),)
    )
    going = a_pod(ended(143, after=7), phase="Failed", deleted=6)
    assert look(admitted, going) == AttemptStatus("x-0", None)
    again = a_pod(RUNNING, created=8, name="x-0-again")
    assert look(admitted, going, again).start_time == at(8)
    assert end_of(admitted, a_pod(ended(3), phase="Failed")) == Exit(at(5), code=3)


PULL = (
    'Back-off pulling image "registry.example/digits:3": rpc error: code = NotFound desc = not '
    "found"
)


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
def test_an_image_that_cannot_be_pulled_is_a_configuration_failure_after_a_while(
    reason: str,
) -> None:
    pod = a_pod(waiting(reason, PULL), phase="Pending")
    message = 'Back-off pulling image "registry.example/digits:3": not found'
    assert look(a_job(), pod).waiting == f"{reason}: {message}"
    cure = "check its name, and imagePullSecrets if it is private"
    expected = f"image registry.example/digits:3 cannot be pulled: {message}; {cure}"
    assert end_of(a_job(), pod, now=21) == Exit(
        at(21), failure_class=CONFIGURATION, reason=expected
    )


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("ErrImagePull", "dial tcp 10.0.0.1:443: i/o timeout"),
        (
            "ErrImagePull",
            'failed to do request: Head "https://r.example/v2/": dial tcp 10.0.0.1:443: no route '
            "to host",
        ),
        ("ErrImagePull", "lookup r.example on 10.96.0.10:53: server misbehaving"),
        (
            "ErrImagePull",
            "unexpected status from HEAD request to https://r.example/v2/: 502 Bad Gateway",
        ),
        (
            "ErrImagePull",
            'failed to copy: httpReadSeeker: failed open: Get "https://r.example/v2/": EOF',
        ),
        (
            "ImagePullBackOff",
            'Back-off pulling image "a:3": ErrImagePull: dial tcp: lookup r.example: no such host',
        ),
        ("RegistryUnavailable", "image registry unavailable"),
        # A kubelet before 1.31, between two tries.
        ("ImagePullBackOff", 'Back-off pulling image "registry.example/digits:3"'),
    ],
)
def test_an_unreachable_registry_is_waited_for(reason: str, message: str) -> None:
    pod = a_pod(waiting(reason, message), phase="Pending")
    assert look(a_job(), pod, now=299).exit is None
    assert end_of(a_job(), pod, now=301).failure_class is CONFIGURATION


@pytest.mark.parametrize(
    "message",
    [
        'failed to resolve reference "registry.example/timeout-eof:3": '
        "registry.example/timeout-eof:3: not found",
        "failed to authorize: failed to fetch anonymous token: unexpected status: 401 Unauthorized",
        "pull access denied, repository does not exist or may require authorization",
    ],
)
def test_an_image_that_the_registry_refuses_is_not_waited_for(message: str) -> None:
    pod = a_pod(waiting("ErrImagePull", message), phase="Pending")
    pod["spec"]["containers"][0]["image"] = "registry.example/timeout-eof:3"
    assert end_of(a_job(), pod, now=21).failure_class is CONFIGURATION


def test_patience_with_a_registry_begins_when_the_init_containers_have_ended() -> None:
    initialized = a_condition("Initialized", after=600)
    pod = a_pod(waiting("ErrImagePull", "i/o timeout"), phase="Pending", conditions=(initialized,))
    assert look(a_job(), pod, now=800).exit is None
    assert end_of(a_job(), pod, now=901).failure_class is CONFIGURATION


def test_a_stopped_attempt_is_not_a_configuration_failure() -> None:
    assert (
        look(
            a_job(), a_pod(waiting("ErrImagePull", PULL), phase="Pending"), stopped=True, now=30
        ).exit
        is None
    )


IMAGE = "registry.example/digits:3"
OCI = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
    "runc create failed: "
)
EXEC = OCI + "unable to start container process: exec: "
MOUNT = (
    OCI + 'unable to start container process: error during container init: error mounting "/x" to '
    'rootfs at "/data": '
)


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        (
            "InvalidImageName",
            "couldn't parse it",
            f"image {IMAGE} is not a valid image name: couldn't parse it",
        ),
        (
            "ErrImageNeverPull",
            'Container image "x" is not present with pull policy of Never',
            f"image {IMAGE} is not on node gpu-7, and imagePullPolicy: Never does not let it be "
            f"pulled",
        ),
        (
            "CreateContainerConfigError",
            "container has runAsNonRoot and image will run as root (pod: ...)",
            f"image {IMAGE} runs as root, which is not allowed here; build it with USER 1000",
        ),
        (
            "CreateContainerConfigError",
            "container has runAsNonRoot and image has non-numeric user (app), cannot verify user "
            "is non-root",
            f"image {IMAGE} names its user, and only a number can be checked here; write USER 1000",
        ),
        (
            "CreateContainerConfigError",
            'secret "keys" not found',
            'env API_KEY: secret "keys" not found',
        ),
        (
            "CreateContainerConfigError",
            "couldn't find key api in Secret user1/keys",
            "env API_KEY: couldn't find key api in Secret user1/keys",
        ),
        (
            "CreateContainerConfigError",
            'failed to prepare subPath for volumeMount "data" of container "trial"',
            "volume data (at /data) cannot be mounted: "
            'failed to prepare subPath for volumeMount "data" of container "trial"',
        ),
        (
            "RunContainerError",
            EXEC + '"trian.py": executable file not found in $PATH: unknown',
            f"command trian.py was not found in image {IMAGE}",
        ),
    ],
)
def test_a_permanent_error_is_a_configuration_failure_at_once(
    reason: str, message: str, expected: str
) -> None:
    pod = a_pod(waiting(reason, message), phase="Pending")
    assert end_of(a_job(), pod, now=2) == Exit(at(2), failure_class=CONFIGURATION, reason=expected)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            EXEC + '"trian.py": executable file not found in $PATH: unknown',
            f"command trian.py was not found in image {IMAGE}",
        ),
        (
            EXEC + '"/x.py": stat /x.py: no such file or directory: unknown',
            f"command /x.py was not found in image {IMAGE}",
        ),
        (
            EXEC + '"./train.py": permission denied: unknown',
            f"command ./train.py in image {IMAGE} may not be executed (permission denied)",
        ),
        (
            MOUNT + "not a directory: unknown",
            f"mount /data failed: {MOUNT}not a directory: unknown",
        ),
    ],
)
def test_a_container_that_cannot_be_started_is_a_configuration_failure_with_the_reason(
    message: str, expected: str
) -> None:
    never = ended(128, "StartError", message=message, start="1970-01-01T00:00:00Z")
    found = look(a_job(conditions=(FAILED,)), a_pod(never, phase="Failed"))
    assert (found.start_time, found.exit) == (
        None,
        Exit(at(5), failure_class=CONFIGURATION, reason=expected),
    )


def test_a_node_that_cannot_start_containers_is_an_infrastructure_failure() -> None:
    message = OCI + "nvidia-container-cli: initialization error: nvml error: driver not loaded"
    pod = a_pod(ended(128, "StartError", message=message), phase="Failed")
    assert end_of(a_job(), pod) == lost(5, f"node gpu-7 could not start its container: {message}")


def test_a_volume_that_the_node_cannot_mount_is_named_and_given_two_minutes() -> None:
    event = (
        'MountVolume.SetUp failed for volume "data" : mount failed: exit status 32\nOutput: '
        "access denied by server"
    )
    pod = a_pod(waiting("ContainerCreating"), phase="Pending")
    message = (
        'volume data (at /data) cannot be mounted: MountVolume.SetUp failed for volume "data" : '
        "mount failed: exit status 32 Output: access denied by server"
    )
    assert look(a_job(), pod, mount_trouble=event).waiting == message
    found = look(a_job(), pod, mount_trouble=event, now=130).exit
    assert found == Exit(at(130), failure_class=CONFIGURATION, reason=message)


def test_a_pod_that_admission_refuses_is_a_configuration_failure_and_one_without_room_waits() -> (
    None
):
    policy = (
        'Error creating: pods "x-0-abc" is forbidden: violates PodSecurity '
        '"restricted:latest": privileged'
    )
    reason = (
        "the namespace's pod security profile does not allow it: violates PodSecurity "
        '"restricted:latest": privileged'
    )
    assert look(a_job(), refusal=policy).exit == Exit(
        at(10), failure_class=CONFIGURATION, reason=reason
    )
    full = (
        'Error creating: pods "x-0-abc" is forbidden: exceeded quota: q, requested: pods=1, '
        "used: pods=4"
    )
    waits = look(a_job(), refusal=full)
    assert (waits.exit, "exceeded quota: q" in waits.waiting) == (None, True)
    assert look(a_job(), a_pod(RUNNING), refusal=policy).exit is None


# Several workers


def workers(
    *pods: Raw, conditions: tuple[Raw, ...] = (), stopped: bool = False, now: float = 10
) -> AttemptStatus:
    job = a_job(completionMode="Indexed", completions=2, parallelism=2, conditions=conditions)
    return look(job, *pods, stopped=stopped, now=now)


OK = ended(0, "Completed")


def test_workers_run_when_all_of_them_do() -> None:
    second = a_pod({"running": {"startedAt": stamp(4)}}, index=1)
    assert workers(a_pod(RUNNING, index=0), second).start_time == at(4)
    assert workers(a_pod(RUNNING, index=0)) == AttemptStatus(
        "x-0", None, node="gpu-7", image=DIGEST
    )
    pending = workers(
        a_pod(RUNNING, index=0), a_pod(waiting("ErrImagePull", "no"), phase="Pending", index=1)
    )
    assert (pending.start_time, pending.waiting) == (None, "worker 1 of 2: ErrImagePull: no")


def test_workers_have_succeeded_when_all_have() -> None:
    done = a_pod(OK, phase="Succeeded", index=0)
    assert workers(done, a_pod(RUNNING, index=1)).exit is None
    late = a_pod(ended(0, after=6), phase="Succeeded", index=1)
    assert workers(done, late).exit == Exit(at(6), code=0)
    assert workers(done).exit is None


def test_the_first_worker_to_fail_is_the_attempts_end_and_is_named() -> None:
    first = a_pod(
        ended(1, message="Traceback\nValueError: shape\n"), phase="Failed", index=1, node="gpu-8"
    )
    dragged = a_pod(ended(1, after=6), phase="Failed", index=0)
    killed = a_pod(ended(137, after=9), phase="Failed", index=0, deleted=6)
    expected = Exit(
        at(5), failure_class=USER_ERROR, reason="worker 1 of 2: exit code 1: ValueError: shape"
    )
    for other in (dragged, killed):
        found = workers(other, first)
        assert (found.exit, found.node) == (expected, "gpu-8")


def test_the_slot_of_workers_is_free_when_the_last_has_ended() -> None:
    failed, running = a_pod(ended(1), phase="Failed", index=1), a_pod(RUNNING, index=0, deleted=6)
    assert workers(failed, running).exit is None
    assert workers(failed, running, conditions=(FAILED,)).exit is not None


def test_a_worker_that_was_lost_is_the_cause_of_those_that_miss_it() -> None:
    gone = a_pod(ended(137), phase="Failed", index=1, node="gpu-8")
    found = workers(a_pod(ended(1), phase="Failed", index=0), gone)
    assert found.exit == lost(
        5, "worker 1 of 2: killed from outside (exit code 137), not for lack of memory"
    )
    assert found.node == "gpu-8"


def test_a_worker_that_reports_a_lost_one_is_not_the_cause_even_if_the_job_deletes_it_at_once() -> (
    None
):
    missing = a_pod(ended(75, after=6), phase="Failed", index=0, deleted=6)
    for after in (6, 7):
        gone = a_pod(ended(143, after=after), phase="Failed", index=1, deleted=5, grace_s=1)
        expected = lost(after, "worker 1 of 2: its pod was deleted by someone else (exit code 143)")
        assert workers(missing, gone).exit == expected


def test_the_first_rank_decides_and_infeasible_holds_for_any_rank() -> None:
    zero = a_pod(ended(3), phase="Failed", index=0)
    assert workers(
        zero, a_pod(ended(143, after=7), phase="Failed", index=1, deleted=6)
    ).exit == Exit(at(5), code=3)
    bad = a_pod(ended(42, message="epoch=2 accuracy=0.4\ntoo wide\n"), phase="Failed", index=1)
    found = workers(a_pod(ended(1, after=6), phase="Failed", index=0), bad)
    assert found.exit == Exit(at(5), code=42, reason="too wide")


def test_a_worker_killed_for_memory_is_out_of_memory() -> None:
    killed = a_pod(ended(137, "OOMKilled"), phase="Failed", index=1)
    reason = "worker 1 of 2 was killed: out of memory (exit code 137)"
    found = workers(a_pod(ended(1, after=6), phase="Failed", index=0), killed)
    assert found.exit == Exit(at(5), failure_class=OUT_OF_MEMORY, reason=reason)


def test_a_worker_can_report_its_own_failure_class() -> None:
    text = "cifar10.py: out of memory: the GPU has no room"
    lacking = a_pod(ended(1, message=f"...\n{text}\n"), phase="Failed", index=1)
    reason = f"worker 1 of 2: exit code 1: {text}"
    found = workers(a_pod(ended(143, after=6), phase="Failed", index=0, deleted=5), lacking)
    assert found.exit == Exit(at(5), failure_class=OUT_OF_MEMORY, reason=reason)
    missing = a_pod(ended(75), phase="Failed", index=1)
    found = workers(a_pod(ended(75, after=6), phase="Failed", index=0), missing)
    assert found.exit == lost(5, "worker 1 of 2: exit code 75")


def test_a_crashed_worker_is_an_infrastructure_failure() -> None:
    crashed = a_pod(
        ended(134, message="ProcessGroupNCCL's watchdog got stuck"), phase="Failed", index=1
    )
    reason = (
        "worker 1 of 2: exit code 134 (its program crashed: SIGABRT): ProcessGroupNCCL's "
        "watchdog got stuck"
    )
    assert workers(a_pod(ended(1, after=6), phase="Failed", index=0), crashed).exit == lost(
        5, reason
    )


def test_stopped_workers_have_ended_when_the_last_has() -> None:
    first = a_pod(ended(143, after=7), phase="Failed", index=0, deleted=6)
    assert workers(first, a_pod(RUNNING, index=1, deleted=6), stopped=True).exit is None
    last = a_pod(ended(0, after=8), phase="Succeeded", index=1, deleted=6)
    assert workers(first, last, stopped=True).exit == Exit(at(7), code=143, stopped=True)


# Objects that end by their conditions


def test_a_job_that_may_try_again_ends_when_it_says_so() -> None:
    failed = a_pod(ended(1), phase="Failed", name="x-0-a")
    second = a_pod(ended(0, after=8, start=stamp(7)), phase="Succeeded", name="x-0-b", created=6)
    assert look(a_job(backoffLimit=2), failed).exit is None
    complete = a_condition("Complete", "CompletionsReached")
    assert end_of(a_job(backoffLimit=2, conditions=(complete,)), failed, second) == Exit(
        at(9), code=0
    )
    assert end_of(a_job(backoffLimit=2, conditions=(FAILED,)), failed) == Exit(at(5), code=1)


def test_a_job_set_ends_by_its_conditions_and_fails_as_its_pod_did() -> None:
    leader = a_pod(ended(0), phase="Succeeded", labels={"role": "leader"}, name="leader")
    reading = {"primary": {"labels": {"role": "leader"}, "container": "main"}}
    assert look(a_job(kind="JobSet", reading=reading), leader).exit is None
    done = a_job(kind="JobSet", conditions=(a_condition("Completed", "AllJobsCompleted"),))
    assert end_of(done, leader) == Exit(at(9), code=0)
    failed = a_job(
        kind="JobSet",
        conditions=(a_condition("Failed", "FailedJobs", "first failed job: x-0-w-0"),),
    )
    assert end_of(failed, a_pod(ended(3), phase="Failed")) == Exit(at(5), code=3)
    reason = "its JobSet failed: first failed job: x-0-w-0"
    assert end_of(failed, leader, now=20) == Exit(at(9), failure_class=USER_ERROR, reason=reason)


def test_conditions_of_the_file_are_used() -> None:
    reading = {
        "success": {"type": "Succeeded", "status": "True"},
        "failure": {"type": "Broken", "status": "True"},
    }
    kind = {"reading": reading, "kind": "PyTorchJob"}
    assert end_of(a_job(**kind, conditions=(a_condition("Succeeded"),))) == Exit(at(9), code=0)
    assert look(a_job(**kind, conditions=(a_condition("Failed"),))).exit is None
    turned = (a_condition("Succeeded"), a_condition("Succeeded", status="False"))
    assert look(a_job(**kind, conditions=turned)).exit is None


def test_pods_that_the_operator_deletes_after_a_failure_are_not_the_cause() -> None:
    worker = a_pod(ended(1, after=9), phase="Failed", name="x-0-w", index=1)
    failed = a_job(
        kind="JobSet", conditions=(a_condition("Failed", "FailedJobs", "first failed job: x-0-w"),)
    )

    def master(deleted: float) -> Raw:
        return a_pod(ended(143, after=deleted), phase="Failed", name="x-0-m", deleted=deleted)

    own = Exit(at(9), failure_class=USER_ERROR, reason="x-0-w: exit code 1")
    assert end_of(failed, worker, master(9)) == own
    assert end_of(failed, worker, master(12)) == own
    assert end_of(failed, master(12), now=20).reason == "its JobSet failed: first failed job: x-0-w"
    by_hand = "x-0-m: its pod was deleted by someone else (exit code 143)"
    assert end_of(failed, master(8), worker).reason == by_hand
    assert end_of(failed, master(9)) == lost(9, by_hand.removeprefix("x-0-m: "))


def a_volcano_job(**state: Any) -> Raw:
    return a_job(kind="Job", tasks=[]) | {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "status": {"state": state},
    }


def test_the_time_and_message_beside_a_status_field_are_read() -> None:
    aborted = a_volcano_job(phase="Aborted", lastTransitionTime=stamp(9), message="policy AbortJob")
    assert look(aborted).exit is None  # its pods may be seen a moment later
    reason = "its Job failed: policy AbortJob"
    assert end_of(aborted, now=20) == Exit(at(9), failure_class=USER_ERROR, reason=reason)
    assert end_of(a_volcano_job(phase="Completed"), now=20) == Exit(at(20), code=0)


# Objects that do not say how they have ended


def test_an_object_that_never_says_how_it_ended_ends_its_attempt_after_ten_minutes() -> None:
    pods = (
        a_pod(ended(0, after=5), phase="Succeeded", name="a"),
        a_pod(ended(0, after=60), name="b", phase="Succeeded"),
    )
    assert look(a_job(kind="JobSet"), *pods, now=659).exit is None
    exit = end_of(a_job(kind="JobSet"), *pods, now=661)
    assert exit == Exit(
        at(661),
        failure_class=CONFIGURATION,
        reason="its pods ended more than 10 minutes ago, and the JobSet shows neither success "
        "({type: Completed}) nor "
        "failure ({type: Failed}); correct spec.trial.success and failure, or check that the "
        "operator of JobSet runs",
    )
    reading = {
        "success": {"path": "status.phase", "equals": "Done"},
        "failure": {"type": "Up", "status": "False"},
    }
    reason = end_of(a_job(kind="Widget", reading=reading), *pods, now=661).reason
    assert (
        "success ({path: status.phase, equals: Done}) nor failure ({type: Up, status: False})"
        in reason
    )


def test_an_object_without_an_end_is_given_time_while_a_pod_runs_or_it_is_suspended_or_stopped() -> (
    None
):
    done, runs = a_pod(ended(0), phase="Succeeded", name="a"), a_pod(RUNNING, name="b")
    assert look(a_job(kind="JobSet"), done, runs, now=9999).exit is None
    assert look(a_job(kind="JobSet"), done, now=9999, stopped=True).exit is None
    assert look(a_job(kind="JobSet", suspend=True), done, now=9999).exit is None


def test_an_object_without_a_status_names_its_operator() -> None:
    new = a_job(kind="JobSet") | {"status": {}}
    message = "no pods and no status after 60 s; is the operator of JobSet running?"
    assert (look(new, now=59).waiting, look(new, now=61).waiting) == ("", message)
    assert look(a_job(kind="JobSet"), now=61).waiting == ""  # it has a status
    assert look(new, a_pod(None, phase="Pending", node=""), now=61).waiting != message
    assert look(new, now=61, refusal='pods "x" is forbidden: exceeded quota: q').waiting != message


def test_an_evicted_pod_is_the_cause_though_it_shows_a_later_deletion() -> None:
    """The Training Operator marks its object as failed when the eviction begins, before the
    kubelet's last deletion.
    """
    evicted: Raw = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    evicted["lastTransitionTime"] = stamp(5)
    main = a_pod(ended(143, after=8), phase="Failed", conditions=(evicted,), deleted=9, grace_s=0)
    over: Raw = {
        "type": "Failed",
        "status": "True",
        "lastTransitionTime": stamp(5),
        "message": "1 Master failed",
    }
    assert end_of(a_job(kind="JobSet", conditions=(over,)), main).failure_class is INFRASTRUCTURE


# Containers that are restarted in place


def restarted(
    state: Raw, times: int, *, code: int = 1, message: str = "", reason: str = "Error"
) -> Raw:
    """A pod of an operator whose container was last restarted after this exit code."""
    pod = a_pod(state, labels={"role": "leader"}, name="leader")
    pod["spec"]["restartPolicy"] = "OnFailure"
    last = {"terminated": ended(code, reason, message=message, start=stamp(3))["terminated"]}
    pod["status"]["containerStatuses"][0] |= {"restartCount": times, "lastState": last}
    return pod


BACK_OFF = waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container")
JOB_SET = a_job(kind="JobSet")


def test_an_attempt_that_is_restarted_in_place_began_with_its_first_start() -> None:
    again: Raw = {"running": {"startedAt": stamp(8)}}
    assert look(JOB_SET, restarted(again, 1)).start_time == at(3)
    # as the pod: the first start is not told any more
    assert look(JOB_SET, restarted(again, 2)).start_time == at(1)
    assert look(JOB_SET, restarted(BACK_OFF, 2)).start_time == at(1)


def test_a_container_that_its_node_has_lost_track_of_began_with_its_pod() -> None:
    unknown: Raw = {"exitCode": 137, "reason": "ContainerStatusUnknown"}
    pod = a_pod({"terminated": unknown | {"startedAt": None, "finishedAt": None}}, phase="Failed")
    status = look(a_job(), pod)
    assert status.start_time == at(1)
    assert status.exit == lost(10, "node gpu-7 has lost track of its container")


def test_a_crash_loop_is_an_end_after_five_restarts() -> None:
    assert look(JOB_SET, restarted(BACK_OFF, 4)).exit is None
    assert look(JOB_SET, restarted({"running": {"startedAt": stamp(8)}}, 5)).exit is None
    assert end_of(JOB_SET, restarted(BACK_OFF, 5, message="KeyError: 'lr'")) == Exit(
        at(5),
        failure_class=FailureClass.USER_ERROR,
        reason="its container was restarted 5 times, last after exit code 1: KeyError: 'lr'",
    )


def test_a_crash_loop_is_judged_by_how_it_ended_last() -> None:
    assert end_of(JOB_SET, restarted(BACK_OFF, 5, code=42)) == Exit(at(5), code=42)
    killed = end_of(JOB_SET, restarted(BACK_OFF, 5, code=137, reason="OOMKilled"))
    assert killed.failure_class is FailureClass.OUT_OF_MEMORY
    assert end_of(JOB_SET, restarted(BACK_OFF, 5, code=75)).failure_class is INFRASTRUCTURE


def test_a_crash_loop_of_a_worker_is_the_attempts_end() -> None:
    worker = restarted(BACK_OFF, 5)
    worker["metadata"] |= {"name": "worker", "labels": {}}
    leader = a_pod(RUNNING, name="leader")
    leader["metadata"]["labels"] = {}
    message = "worker: its container was restarted 5 times, last after exit code 1"
    assert end_of(JOB_SET, leader, worker).reason == message


def test_a_crash_loop_that_we_stopped_was_stopped() -> None:
    gone = restarted(BACK_OFF, 5)
    gone["metadata"] |= {"deletionTimestamp": stamp(4), "deletionGracePeriodSeconds": 0}
    assert look(JOB_SET, gone, stopped=True).exit is None  # its object has not said so yet
    assert end_of(None, gone, stopped=True, now=99).stopped


def test_a_job_that_gives_up_restarting_failed_by_its_program() -> None:
    """With backoffLimit 0 the Job deletes the pod after the first restart,
    and SIGTERM ends the second run.
    """
    gone = restarted(ended(143, start=stamp(5), after=6), 1)
    gone["metadata"] |= {"deletionTimestamp": stamp(5), "deletionGracePeriodSeconds": 0}
    gone["status"]["phase"] = "Failed"
    message = "its container was restarted, and its pod then deleted, after exit code 1"
    judged = end_of(a_job(), gone)
    assert (judged.failure_class, judged.reason) == (FailureClass.USER_ERROR, message)
    assert end_of(None, gone).failure_class is INFRASTRUCTURE, (
        "the object was deleted, not given up"
    )
    other = a_pod(ended(143, after=6), phase="Failed", index=1, deleted=5, grace_s=0)
    cause = workers(other, gone).exit
    assert cause is not None
    assert cause.reason == f"worker 0 of 2: {message}", (
        "the other was deleted for it, in the same second"
    )
    long_ago = restarted(ended(143, start=stamp(5), after=99), 1)
    long_ago["metadata"] |= {"deletionTimestamp": stamp(60), "deletionGracePeriodSeconds": 0}
    long_ago["status"]["phase"] = "Failed"
    assert end_of(a_job(), long_ago, now=100).failure_class is INFRASTRUCTURE


# Whose log


def test_the_log_is_that_of_the_trial_container() -> None:
    assert log_source(a_job(), [a_pod(waiting("ContainerCreating"), phase="Pending")]) is None
    assert log_source(a_job(), []) is None
    assert log_source(a_job(), [a_pod(RUNNING)]) == PodContainer("x-0-0", "trial")
    assert log_source(a_job(), [a_pod(ended(3), phase="Failed")]) == PodContainer("x-0-0", "trial")
    assert log_source(a_job(), [a_pod(RUNNING, containers=("main", "log"))]) == PodContainer(
        "x-0-0", "main"
    )


def test_the_log_of_a_container_and_of_its_sidecar_has_their_restarts() -> None:
    sidecar: Raw = {"name": "tuner-collector", "restartCount": 2, "state": RUNNING}
    pod = a_pod(RUNNING, init=(sidecar,))
    pod["status"]["containerStatuses"][0]["restartCount"] = 1
    sources = log_source(a_job(), [pod]), collector_source(a_job(), [pod])
    assert [source and source.restarts for source in sources] == [1, 2]


def test_the_log_of_several_workers_is_that_of_the_first() -> None:
    pods = [a_pod(RUNNING, index=1), a_pod(RUNNING, index=0)]
    assert log_source(a_job(), pods) == PodContainer("x-0-0", "trial")


def test_the_log_is_that_of_the_primary_pod_if_the_file_names_one() -> None:
    reading = {"primary": {"labels": {"role": "leader"}, "container": "main"}}
    leader = a_pod(
        RUNNING, labels={"role": "leader"}, name="leader", containers=("main", "log"), index=7
    )
    worker = a_pod(RUNNING, labels={"role": "worker"}, name="a-worker")
    assert log_source(a_job(kind="JobSet", reading=reading), [worker, leader]) == PodContainer(
        "leader", "main"
    )


# Small readings


def test_the_zero_time_of_a_kubelet_is_not_a_time() -> None:
    assert [parse_time(text) for text in (None, "", "1970-01-01T00:00:00Z", "soon")] == [None] * 4
    assert parse_time("2026-11-21T09:40:00Z") == CREATED


@pytest.mark.parametrize(
    ("image_id", "digest"),
    [
        (DIGEST, DIGEST),
        ("docker-pullable://x@sha256:1", "x@sha256:1"),
        ("sha256:1", "x:3"),  # loaded into the node
        ("", "x:3"),
    ],
)
def test_an_image_is_known_by_its_digest(image_id: str, digest: str) -> None:
    pod = {
        "status": {"containerStatuses": [{"name": "trial", "imageID": image_id, "image": "x:3"}]}
    }
    assert image_of(pod, "trial") == digest
