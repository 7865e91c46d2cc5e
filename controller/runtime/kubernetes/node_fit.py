"""Whether any node of the cluster could ever run a pod, if nothing else ran there. Pure.

A pod without a node usually waits for others to end, and the scheduler's message does not tell that
from a request that no node can ever meet: `Insufficient nvidia.com/gpu` is both. This module
compares the pod with the nodes themselves: what they have in all, their labels, and the taints that
a person has set. A taint that the cluster sets for a while, as on a node that is not ready or is
drained, does not count. In doubt the pod may fit: there may be an autoscaler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal

from controller.kube.objects import (
    Node,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    Taint,
    Toleration,
)
from controller.runtime.kubernetes.resource_quota import demand_of, parse_quantity, shown_amount

# A node pool can grow, also from no node at all, and its new nodes need
# not look like the present ones.
_OF_POOLS = (
    "karpenter.sh/nodepool",
    "karpenter.sh/provisioner-name",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "kubernetes.azure.com/agentpool",
)
# The cluster, its cloud or its autoscaler sets these and removes them.
_PASSING_TAINTS = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "karpenter.sh/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
)


def why_on_no_node(pod: Pod, nodes: Sequence[Node]) -> str:
    """Return why no node could ever run the pod.

    "" if one could, if a pool may grow, or if no node is known.
    """
    if not nodes or any(_is_of_pool(node) for node in nodes):
        return ""
    spec = pod.get("spec", {})
    requests = _requests(pod)
    allowed: list[Node] = []
    obstacles: Counter[str] = Counter()
    for node in nodes:
        if obstacle := _selection(spec, node) or _taint(spec, node):
            obstacles[obstacle] += 1
        elif all(_allocatable(node, name) >= amount for name, amount in requests.items()):
            return ""
        else:
            allowed.append(node)
    told = [f"{count} {obstacle}" for obstacle, count in obstacles.most_common()]
    if allowed:
        told.insert(0, f"{len(allowed)} {_lacking(requests, allowed)}")
    return f"no node of {len(nodes)} can ever run it: {', '.join(told)}"


def _requests(pod: Pod) -> dict[str, Decimal]:
    demand = demand_of([{"kind": "Pod", "metadata": pod["metadata"], "spec": pod.get("spec", {})}])
    prefix = "requests."
    per_pod = demand.per_pod
    return {key.removeprefix(prefix): per_pod[key] for key in per_pod if key.startswith(prefix)}


def _lacking(requests: Mapping[str, Decimal], nodes: Sequence[Node]) -> str:
    """Describe what these nodes do not have, even if they were empty."""
    most = {name: max(_allocatable(node, name) for node in nodes) for name in requests}
    missing = [
        f"{name} {shown_amount(name, amount)} (the most is {shown_amount(name, most[name])})"
        for name, amount in requests.items()
        if most[name] < amount
    ]
    if missing:
        return f"without {' and '.join(missing)}"
    together = " and ".join(
        f"{name} {shown_amount(name, amount)}" for name, amount in requests.items()
    )
    return f"without {together} together"


def _allocatable(node: Node, name: str) -> Decimal:
    return parse_quantity(((node.get("status") or {}).get("allocatable") or {}).get(name, "0"))


def _is_of_pool(node: Node) -> bool:
    """Whether the node belongs to a pool, which may grow."""
    labels = _labels(node)
    return any(label in labels for label in _OF_POOLS)


def _labels(node: Node) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


# Selectors and affinity


def _selection(spec: PodSpec, node: Node) -> str:
    """Return which selection of the pod leaves the node out; "" if none does."""
    labels = _labels(node)
    chosen = (spec.get("nodeSelector") or {}).items()
    unmet = [f"{key}={value}" for key, value in chosen if labels.get(key) != value]
    if unmet:
        return f"not selected by nodeSelector {','.join(unmet)}"
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = (required or {}).get("nodeSelectorTerms") or []
    if required is not None and not any(_term_holds(term, node) for term in terms):
        return "not selected by the node affinity"
    return ""


def _term_holds(term: NodeSelectorTerm, node: Node) -> bool:
    by_label, by_field = term.get("matchExpressions") or [], term.get("matchFields") or []
    name = {"metadata.name": node["metadata"]["name"]}
    if not by_label and not by_field:
        return False  # an empty term selects no node
    has_labels = all(_holds(rule, _labels(node)) for rule in by_label)
    return has_labels and all(_holds(rule, name) for rule in by_field)


def _holds(rule: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(rule["key"]), rule.get("values") or []
    match rule.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            try:
                have, limit = int(value or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return have > limit if operator == "Gt" else have < limit
    return True  # an operator of a later Kubernetes


# Taints


def _taint(spec: PodSpec, node: Node) -> str:
    """Return which lasting taint keeps the pod from the node; "" if none does."""
    tolerations = spec.get("tolerations") or []
    for taint in (node.get("spec") or {}).get("taints") or ():
        key, effect = taint.get("key", ""), taint.get("effect", "")
        if effect == "PreferNoSchedule" or key.startswith(_PASSING_TAINTS):
            continue
        if not any(_tolerates(toleration, taint) for toleration in tolerations):
            return (
                f"with the taint {key}={taint.get('value') or ''}:{effect}, which it does not "
                f"tolerate"
            )
    return ""


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint.get("key"):
        return False
    # the last two are numeric; in doubt it fits
    if toleration.get("operator") in ("Exists", "Gt", "Lt"):
        return True
    return (toleration.get("value") or "") == (taint.get("value") or "")
