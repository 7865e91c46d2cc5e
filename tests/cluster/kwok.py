"""Fake nodes and pods: kwok changes their states, and a log server (go/logs)
serves what they would print.

Environment variables of a pod's first container determine its life,
so that an experiment file can set them:

    KWOK_RUN         how long it runs, as Go writes durations: 2s, 150ms (default 1s)
    KWOK_EXIT        the exit code (default 0; 137 if it was OOMKilled or has a reason of the pod)
    KWOK_RUN_1, KWOK_EXIT_1, KWOK_LOG_1
                     the same, for the pod of completion index 1 of an Indexed Job
    KWOK_REASON      the container's reason: OOMKilled, ContainerCannotRun (default Completed or
                     Error)
    KWOK_POD_REASON  the pod's own reason: Evicted, DeadlineExceeded
    KWOK_START       how long it is being created before it runs (default 0s)
    KWOK_WAITING     it never runs and waits with this reason: ImagePullBackOff,
                     CreateContainerConfigError
    KWOK_CRASHES     it restarts in place this often, waiting in CrashLoopBackOff, before it ends
                     as configured
    KWOK_LOG         the lines it prints; a line that begins with "+1.5s " appears that long after
                     the start; {uid} in them is a number derived from the pod's uid
    KWOK_LOG_EVERY   the lines are repeated at this interval while it runs; {n} in them counts the
                     rounds from 1

A followed log ends with its pod, as on a real node. The addresses
of pods do not answer, and there is no exec.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.pki import Certificate

HOST = "127.0.0.1"
GPU = "nvidia.com/gpu"
STAGES = Path(__file__).with_name("stages.yaml")


def configuration(*, port: int, log_port: int, serving: Certificate) -> str:
    """Return the options that `kwok -c` reads, as JSON, which is YAML."""
    options = {
        "enableCRDs": [],
        "cidr": "10.244.0.0/16",
        "nodeIP": HOST,
        "nodePort": log_port,  # the address from which the API server requests logs
        "serverAddress": f"{HOST}:{port}",
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "manageNodesWithAnnotationSelector": "kwok.x-k8s.io/node=fake",
        # Such a file replaces all defaults, and none of these may be zero.
        "nodeLeaseParallelism": 4,
        "nodePlayStageParallelism": 4,
        "podPlayStageParallelism": 8,
        "podsOnNodeSyncParallelism": 4,
        "nodeLeaseDurationSeconds": 40,
    }
    kind = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "metadata": {"name": "kwok"},
    }
    return json.dumps({**kind, "options": options})


def node(
    name: str,
    *,
    gpus: int = 8,
    cpu: str = "64",
    memory: str = "256Gi",
    labels: dict[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
) -> dict[str, Any]:
    """Return the manifest of a node. Its GPUs are only a number that scheduler and quota count."""
    has = {"cpu": cpu, "memory": memory, "pods": "1000", "ephemeral-storage": "1Ti", GPU: str(gpus)}
    return {
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                **(labels or {}),
            },
        },
        "spec": {"taints": taints or []},
        "status": {"capacity": has, "allocatable": has},
    }
