"""One attempt on several pods: an Indexed Job, a Service that gives its pods names, and what torchrun reads. Pure.

One worker lost ends the attempt as a whole: the Job has no second try, and fails with its first pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.runtime.kubernetes.labels import COMPLETION_INDEX, JOB_NAME, metadata
from controller.runtime.protocol import ClusterPart, Launch

Raw = dict[str, Any]

MASTER_PORT = "29500"


def indexed(count: int) -> Raw:
    """What makes a Job's spec one of `count` ranks."""
    return {} if count == 1 else {"completionMode": "Indexed", "completions": count, "parallelism": count}


def service_for(launch: Launch, part: ClusterPart, owner: Mapping[str, Any] | None) -> Raw:
    spec = {
        "clusterIP": "None",
        # The ranks look for each other before any of them is ready.
        "publishNotReadyAddresses": True,
        "selector": {JOB_NAME: launch.name},
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(launch, part, owner), "spec": spec}


def rendezvous(name: str, count: int, *, port: str = "") -> dict[str, Raw]:
    """Environment variables by name; none for a single pod. `port`: another one than usual."""
    if count == 1:
        return {}
    rank = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{COMPLETION_INDEX}']"}}}
    address, port, size = {"value": f"{name}-0.{name}"}, port or MASTER_PORT, {"value": str(count)}
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": {"value": port},
        "WORLD_SIZE": size,
        "RANK": rank,
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": {"value": port},
        "PET_NNODES": size,
        "PET_NODE_RANK": rank,
        "PET_NPROC_PER_NODE": {"value": "1"},
        "LOCAL_RANK": {"value": "0"},
        "LOCAL_WORLD_SIZE": {"value": "1"},
    }
