"""Which changes of an object wake the loop, over the life of an attempt on a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from controller.runtime.kubernetes.informer import job_matters, pod_matters

Raw = dict[str, Any]


def pod(phase: str = "Pending", *, about: Raw | None = None, **status: Any) -> Raw:
    return {"metadata": about or {}, "spec": {}, "status": {"phase": phase, **status}}


def containers(**state: Any) -> list[Raw]:
    return [{"name": "trial", "state": state}]


def scheduled(status: str, message: str = "") -> Raw:
    return {"type": "PodScheduled", "status": status, "message": message}


def job(
    *conditions: str, about: Raw | None = None, suspend: bool | None = None, **status: Any
) -> Raw:
    shown = (
        {"conditions": [{"type": kind, "status": "True"} for kind in conditions]}
        if conditions
        else {}
    )
    return {"metadata": about or {}, "spec": {"suspend": suspend}, "status": {**shown, **status}}


WAITS = pod(containerStatuses=containers(waiting={"reason": "ImagePullBackOff"}))
RUNS = pod("Running", containerStatuses=containers(running={}))
OVER = pod("Running", containerStatuses=containers(terminated={}))
OUT = pod(
    "Running", containerStatuses=containers(running={}), conditions=[{"type": "DisruptionTarget"}]
)
ENDED = pod("Succeeded", containerStatuses=containers(terminated={"exitCode": 0}))
GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
FULL, FULLER = (
    pod(conditions=[scheduled("False", message)]) for message in ("0/4 nodes", "0/5 nodes")
)


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        ("it runs", pod(), RUNS),
        ("its image cannot be had", pod(), WAITS),
        ("there is no node for it", pod(), FULL),
        ("there is none for another reason", FULL, FULLER),
        ("its container has ended, and the pod does not say so", RUNS, OVER),
        ("it has ended", RUNS, ENDED),
        ("it is there, and has ended", None, ENDED),
        ("somebody deletes it", RUNS, {**RUNS, "metadata": GOING}),
        ("it is gone and had not ended", RUNS, None),
        ("it is thrown out", RUNS, OUT),
        ("another has its name", ENDED, pod()),
    ],
)
def test_changes_of_a_pod_are_relevant(change: str, before: Raw | None, after: Raw | None) -> None:
    assert pod_matters(before, after), change


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        ("it was made", None, pod()),
        ("it has a node", pod(), pod(conditions=[scheduled("True")])),
        ("somebody lets go of it", ENDED, {**ENDED, "metadata": {"finalizers": []}}),
        ("it had ended and is deleted", ENDED, {**ENDED, "metadata": GOING}),
        ("it had ended and is gone", ENDED, None),
    ],
)
def test_the_creation_and_cleanup_of_a_pod_are_not_relevant(
    change: str, before: Raw | None, after: Raw | None
) -> None:
    assert not pod_matters(before, after), change


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        ("it was adopted, and had ended", None, job("Complete")),
        ("it has failed", job(), job("Failed")),
        ("a queue has let it go", job(suspend=True), job(suspend=False)),
        ("somebody deletes it", job(), job(about=GOING)),
        ("it is gone", job(), None),
    ],
)
def test_conditions_of_a_job_are_relevant(
    change: str, before: Raw | None, after: Raw | None
) -> None:
    assert job_matters(before, after), change


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        ("we have made it", None, job(suspend=False)),
        ("its pod runs", job(), job(active=1, ready=1)),
        ("its pod has ended", job(active=1), job(uncountedTerminatedPods={"succeeded": ["u"]})),
    ],
)
def test_counts_of_pods_in_a_job_are_not_relevant(
    change: str, before: Raw | None, after: Raw | None
) -> None:
    assert not job_matters(before, after), change
