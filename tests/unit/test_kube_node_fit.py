"""Whether a node could ever run a pod: what it has in all, its labels and its lasting taints."""

from __future__ import annotations

from typing import Any

import pytest

from controller.runtime.kubernetes.node_fit import why_on_no_node

Raw = dict[str, Any]


def a_node(
    name: str = "gpu-0",
    *,
    labels: Raw | None = None,
    taints: tuple[Raw, ...] = (),
    **allocatable: str,
) -> Raw:
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi", **allocatable}},
    }


def gpus(count: int, **others: str) -> Raw:
    return {"nvidia.com/gpu": str(count), **others}


def a_pod(requests: Raw | None = None, **spec: Any) -> Raw:
    container = {"name": "trial", "resources": {"limits": requests or {"cpu": "1"}}}
    return {"metadata": {"name": "x-0"}, "spec": {"containers": [container], **spec}}


def affinity(*terms: Raw) -> Raw:
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}
        }
    }


def rule(key: str, operator: str, *values: str) -> Raw:
    return {"key": key, "operator": operator, "values": list(values)}


DEDICATED = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
TWO = [
    a_node("gpu-0", labels={"pool": "gpu"}, **gpus(8)),
    a_node("cpu-0", labels={"pool": "cpu", "cores": "64"}),
]


@pytest.mark.parametrize(
    ("pod", "nodes", "reason"),
    [
        pytest.param(a_pod(gpus(8)), TWO, "", id="others use all of its GPUs"),
        pytest.param(
            a_pod(gpus(9)),
            TWO,
            "2 without nvidia.com/gpu 9 (the most is 8)",
            id="more GPUs than any has",
        ),
        pytest.param(
            a_pod(gpus(8, memory="512Gi")),
            [*TWO, a_node("big", memory="1Ti")],
            "3 without nvidia.com/gpu 8 and memory 512Gi together",
            id="no node has both",
        ),
        pytest.param(
            a_pod({"nvidia.com/mig-1g.10gb": "1"}),
            TWO,
            "2 without nvidia.com/mig-1g.10gb 1 (the most is 0)",
            id="a resource that is not offered",
        ),
        pytest.param(a_pod(nodeSelector={"pool": "gpu"}), TWO, "", id="a label of one node"),
        pytest.param(
            a_pod(nodeSelector={"pool": "gpuu"}),
            TWO,
            "2 not selected by nodeSelector pool=gpuu",
            id="a misspelled label",
        ),
        pytest.param(
            a_pod(gpus(1), nodeSelector={"pool": "cpu"}),
            TWO,
            "1 without nvidia.com/gpu 1 (the most is 0), 1 not selected by nodeSelector pool=cpu",
            id="a selector that leaves out the GPUs",
        ),
        pytest.param(
            a_pod(),
            [a_node(taints=(DEDICATED,))],
            "1 with the taint gpu=yes:NoSchedule, which it does not tolerate",
            id="a taint",
        ),
        pytest.param(
            a_pod(tolerations=[{"key": "gpu", "operator": "Exists"}]),
            [a_node(taints=(DEDICATED,))],
            "",
            id="a tolerated taint",
        ),
        pytest.param(
            a_pod(tolerations=[{"operator": "Exists"}]),
            [a_node(taints=(DEDICATED,))],
            "",
            id="every taint is tolerated",
        ),
        pytest.param(
            a_pod(tolerations=[{"key": "gpu", "value": "no", "effect": "NoSchedule"}]),
            [a_node(taints=(DEDICATED,))],
            "1 with the taint gpu=yes:NoSchedule, which it does not tolerate",
            id="another value",
        ),
        pytest.param(
            a_pod(),
            [a_node(taints=({"key": "gpu", "effect": "PreferNoSchedule"},))],
            "",
            id="a taint that is only a preference",
        ),
        pytest.param(
            a_pod(),
            [a_node(taints=({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},))],
            "",
            id="a lost node may come back",
        ),
        pytest.param(
            a_pod(),
            [a_node(taints=({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},))],
            "",
            id="a drained node may be used again",
        ),
        pytest.param(
            a_pod(affinity=affinity({"matchExpressions": [rule("pool", "In", "gpu", "tpu")]})),
            TWO,
            "",
            id="an affinity that holds",
        ),
        pytest.param(
            a_pod(affinity=affinity({"matchExpressions": [rule("pool", "NotIn", "gpu", "cpu")]})),
            TWO,
            "2 not selected by the node affinity",
            id="an affinity that holds nowhere",
        ),
        pytest.param(
            a_pod(
                affinity=affinity(
                    {"matchExpressions": [rule("zone", "Exists")]},
                    {"matchExpressions": [rule("cores", "Gt", "32")]},
                )
            ),
            TWO,
            "",
            id="one of two terms holds",
        ),
        pytest.param(
            a_pod(
                affinity=affinity(
                    {"matchFields": [rule("metadata.name", "NotIn", "gpu-0", "cpu-0")]}
                )
            ),
            TWO,
            "2 not selected by the node affinity",
            id="every node is excluded by name",
        ),
        pytest.param(
            a_pod(affinity=affinity({})),
            TWO,
            "2 not selected by the node affinity",
            id="an empty term",
        ),
        pytest.param(a_pod(gpus(9)), [], "", id="no node is known"),
        pytest.param(
            a_pod(gpus(9)),
            [a_node(labels={"karpenter.sh/nodepool": "default"})],
            "",
            id="an autoscaler may add a node",
        ),
    ],
)
def test_a_pod_waits_unless_no_node_could_ever_run_it(
    pod: Raw, nodes: list[Raw], reason: str
) -> None:
    prefix = f"no node of {len(nodes)} can ever run it: " if reason else ""
    assert why_on_no_node(pod, nodes) == prefix + reason
