"""Kueue's objects: a ClusterQueue with GPUs for one namespace,
its LocalQueue and two priorities.
"""

from __future__ import annotations

from tests.cluster.api import Api, Object, RequestRefused
from tests.cluster.kwok import GPU

VERSION = "kueue.x-k8s.io/v1beta2"
QUEUES = f"/apis/{VERSION}"
LOCAL_QUEUE = "team"
QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
PRIORITIES = {"low": 100, "high": 1000}
_FLAVOR = "any-node"


def add_queue(api: Api, namespace: str, *, gpus: int) -> None:
    """Create LOCAL_QUEUE in this namespace with this many GPUs;
    a higher priority preempts a lower one.
    """
    flavor = {"name": _FLAVOR, "resources": [{"name": GPU, "nominalQuota": gpus}]}
    cluster_queue = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "resourceGroups": [{"coveredResources": [GPU], "flavors": [flavor]}],
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    _ensure(api, "ResourceFlavor", f"{QUEUES}/resourceflavors", _FLAVOR, spec={})
    for name, value in PRIORITIES.items():
        _ensure(
            api, "WorkloadPriorityClass", f"{QUEUES}/workloadpriorityclasses", name, value=value
        )
    _ensure(api, "ClusterQueue", f"{QUEUES}/clusterqueues", namespace, spec=cluster_queue)
    local = f"{QUEUES}/namespaces/{namespace}/localqueues"
    _ensure(api, "LocalQueue", local, LOCAL_QUEUE, spec={"clusterQueue": namespace})
    api.until(f"{local}/{LOCAL_QUEUE}", _active)


def workloads(namespace: str) -> str:
    return f"{QUEUES}/namespaces/{namespace}/workloads"


def _ensure(api: Api, kind: str, path: str, name: str, **content: object) -> None:
    try:
        api.post(
            path,
            {
                "apiVersion": VERSION,
                "kind": kind,
                "metadata": {"name": name},
                **content,
            },
        )
    except RequestRefused as refused:
        if refused.code != 409:  # left by an earlier test
            raise


def _active(found: Object) -> bool:
    given = found.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Active" and each["status"] == "True" for each in given)
