"""Why Kueue keeps an attempt waiting, as a table: conditions of its Workload, and the message."""

from __future__ import annotations

from typing import Any

import pytest

from controller.runtime.kubernetes.attempt_status import why_queued
from controller.runtime.kubernetes.kinds import is_suspended

Raw = dict[str, Any]

QUEUED, PREEMPTED = "queued by Kueue (queue team-a)", "preempted by Kueue, waits in queue team-a"
FULL = "insufficient unused quota for cpu in flavor default, 500m more needed"


def workload(*conditions: tuple[str, str, str, str], active: bool = True, **status: Any) -> Raw:
    """conditions: (type, status, reason, message)."""
    keys = ("type", "status", "reason", "message")
    listed = [dict(zip(keys, each, strict=True)) for each in conditions]
    return {
        "metadata": {"name": "job-a"},
        "spec": {"active": active},
        "status": {"conditions": listed, **status},
    }


def pending(message: str, reason: str = "Pending") -> tuple[str, str, str, str]:
    return ("QuotaReserved", "False", reason, message)


RESERVED = ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue gpus")
EVICTED = ("Evicted", "True", "Preempted", "")
TIMED_OUT = ("Evicted", "True", "PodsReadyTimeout", "")
SLOW = "Exceeded the PodsReady timeout user1/job-a"

TABLE = [
    ("Kueue has not made one yet", None, QUEUED),
    ("nothing is said yet", workload(), QUEUED),
    (
        "no quota",
        workload(pending(f"couldn't assign flavors to pod set main: {FULL}")),
        f"{QUEUED}: {FULL}",
    ),
    (
        "no quota for one of several sets of pods",
        workload(pending(f"couldn't assign flavors to pod set worker: {FULL}")),
        f"{QUEUED}: pod set worker: {FULL}",
    ),
    (
        "no such queue",
        workload(pending("LocalQueue team-a doesn't exist", "Inadmissible")),
        f"{QUEUED}: LocalQueue team-a doesn't exist; create it, or name another one in "
        f"spec.trial.queue",
    ),
    (
        "a queue that is stopped",
        workload(pending("LocalQueue team-a is inactive", "Inadmissible")),
        f"{QUEUED}: LocalQueue team-a is inactive",
    ),
    ("preempted", workload(EVICTED, pending(FULL)), f"{PREEMPTED}: {FULL}"),
    (
        "preempted a moment ago",
        workload(
            EVICTED,
            pending(
                "Preempted to accommodate a workload (UID: a, JobUID: b) due to reclamation; "
                "preemptor path: /x"
            ),
        ),
        f"{PREEMPTED}: Preempted to accommodate a workload due to reclamation",
    ),
    (
        "evicted for another reason, and not queued again before a time",
        workload(
            TIMED_OUT,
            pending(SLOW),
            ("Requeued", "False", "PodsReadyTimeout", SLOW),
            requeueState={"count": 1, "requeueAt": "2026-11-23T05:00:00Z"},
        ),
        f"evicted by Kueue (PodsReadyTimeout), waits in queue team-a: {SLOW}; queued again at "
        f"2026-11-23T05:00:00Z",
    ),
    (
        "preempted once, and admitted since",
        workload(("Evicted", "False", "QuotaReserved", ""), RESERVED),
        QUEUED,
    ),
    (
        "its quota is reserved, and a check is left",
        workload(
            RESERVED,
            admissionChecks=[
                {"name": "provisioning", "state": "Pending", "message": "waiting for nodes"},
                {"name": "budget", "state": "Ready", "message": ""},
            ],
        ),
        f"{QUEUED}: its quota is reserved; pending admission checks: provisioning (waiting for "
        f"nodes)",
    ),
    (
        "deactivated",
        workload(
            ("Evicted", "True", "Deactivated", ""),
            pending("The workload is deactivated"),
            active=False,
        ),
        "evicted by Kueue (Deactivated), waits in queue team-a: its Workload job-a is "
        "deactivated; to queue it again, "
        "set spec.active of that Workload to true",
    ),
]


@pytest.mark.parametrize(
    ("shown", "reason"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_the_reason_is_kueues_own(shown: Raw | None, reason: str) -> None:
    assert why_queued("team-a", shown) == reason


SUSPENDED = [{"type": "Suspended", "status": "True"}]


@pytest.mark.parametrize(
    ("spec", "conditions", "expected"),
    [
        ({"suspend": True}, [], True),
        ({"suspend": False}, SUSPENDED, False),
        ({"runPolicy": {"suspend": True}}, [], True),
        ({"runPolicy": {"suspend": False}}, SUSPENDED, False),
        ({"runPolicy": {"cleanPodPolicy": "None"}}, SUSPENDED, True),
        ({}, SUSPENDED, True),
        ({}, [{"type": "Suspended", "status": "False"}], False),
        ({}, [], False),
    ],
    ids=str,
)
def test_an_object_is_suspended_by_its_field_else_by_its_condition(
    spec: Raw, conditions: list[Raw], expected: bool
) -> None:
    kind = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"} if "runPolicy" in spec else {}
    assert is_suspended({**kind, "spec": spec, "status": {"conditions": conditions}}) is expected
