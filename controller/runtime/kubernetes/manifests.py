"""One attempt as the objects that are created for it. Pure: what is printed by a dry run is what is sent.

The Job retries nothing and hides nothing: each attempt is one Job with one pod (or one of each rank), and what becomes
of it is decided outside. It has no deadline either: the time in a queue does not count, so the controller keeps time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.core.model import Resources
from controller.runtime.kubernetes.environment import as_is, env_of
from controller.runtime.kubernetes.kinds import KEPT_S
from controller.runtime.kubernetes.labels import (
    GRACE,
    QUEUE,
    TIMEOUT,
    annotations_of,
    labels_of,
    metadata,
    name_problem,
    workers_of,
)
from controller.runtime.kubernetes.mounts import mounts_of
from controller.runtime.kubernetes.security import container_security, pod_security
from controller.runtime.kubernetes.template import from_template, prefer_others
from controller.runtime.kubernetes.workers import indexed, service_for
from controller.runtime.protocol import ClusterPart, Launch

Raw = dict[str, Any]

CONTAINER = "trial"

__all__ = ["grace_of", "job_for", "labels_of", "name_problem", "timeout_of"]


def job_for(launch: Launch, *, owner: Mapping[str, Any] | None) -> list[Raw]:
    """What to create, in this order; the last is the attempt's own object. `owner` as the server answered it."""
    part = _part(launch)
    if part.manifest is not None:
        return [from_template(launch, part, owner)]
    job = _job(launch, part, owner)
    count = workers_of(part)
    return [job] if count == 1 else [service_for(launch, part, owner), job]


def timeout_of(obj: Mapping[str, Any]) -> float | None:
    """What job_for was told, read off the object."""
    seconds = _annotation(obj, TIMEOUT)
    return None if seconds is None else float(seconds)


def grace_of(obj: Mapping[str, Any]) -> float:
    return float(_annotation(obj, GRACE) or 30)


def _annotation(obj: Mapping[str, Any], key: str) -> str | None:
    annotations: Mapping[str, str] = obj.get("metadata", {}).get("annotations") or {}
    return annotations.get(key)


def _part(launch: Launch) -> ClusterPart:
    assert launch.cluster is not None, "a launch for a cluster says what the cluster needs"
    return launch.cluster


def _job(launch: Launch, part: ClusterPart, owner: Mapping[str, Any] | None) -> Raw:
    about = metadata(launch, part, owner)
    about["annotations"] = annotations_of(launch, part)
    queue = part.template.cluster.get("queue")
    if queue:
        about["labels"] = about["labels"] | {QUEUE: queue}
    spec: Raw = {
        "backoffLimit": 0,
        # No second pod while the first still holds its GPU.
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": KEPT_S,
        **({"suspend": True} if queue else {}),
        **indexed(workers_of(part)),
        "template": {"metadata": {"labels": labels_of(part)}, "spec": _pod_spec(launch, part)},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}


def _pod_spec(launch: Launch, part: ClusterPart) -> Raw:
    cluster = part.template.cluster
    volumes, mounts = mounts_of(launch, part)
    spec: Raw = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": max(1, round(launch.grace_s)),
        "automountServiceAccountToken": "serviceAccount" in cluster,
        "enableServiceLinks": False,
        # The first process of a process namespace ignores SIGTERM unless it handles it: shared with the pause container
        # an ordinary program ends when it is asked to, and frees its GPU, instead of sitting out its grace.
        "shareProcessNamespace": True,
        "securityContext": pod_security(cluster),
        "containers": [_container(launch, part) | {"volumeMounts": mounts}],
        "volumes": volumes,
    }
    if workers_of(part) > 1:
        spec["subdomain"] = launch.name
    if part.avoid_nodes:
        prefer_others(spec, part.avoid_nodes)
    if names := cluster.get("imagePullSecrets"):
        spec["imagePullSecrets"] = [{"name": name} for name in _list(names)]
    for ours, theirs in (
        ("nodeSelector", "nodeSelector"),
        ("tolerations", "tolerations"),
        ("priorityClass", "priorityClassName"),
        ("serviceAccount", "serviceAccountName"),
    ):
        if cluster.get(ours):
            spec[theirs] = cluster[ours]
    return spec


def _container(launch: Launch, part: ClusterPart) -> Raw:
    policy = part.template.cluster.get("imagePullPolicy")
    resources = _resources(part.template.resources)
    return {
        "name": CONTAINER,
        "image": part.template.image,
        **({"imagePullPolicy": policy} if policy else {}),
        "command": [as_is(word) for word in launch.command],
        **({"workingDir": part.template.working_dir} if part.template.working_dir else {}),
        "env": env_of(launch, part),
        # What is asked for is what is had: no trial lives on what another does not use just now.
        **({"resources": {"requests": resources, "limits": resources}} if resources else {}),
        "securityContext": container_security(part.template.cluster),
        # The last lines, also of a worker whose log nobody follows.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _resources(asked: Resources) -> dict[str, str]:
    amounts = {
        "cpu": "" if asked.cpu is None else _cores(asked.cpu),
        "memory": "" if asked.memory_bytes is None else _bytes(asked.memory_bytes),
        "nvidia.com/gpu": f"{asked.gpu:g}" if asked.gpu else "",
        "ephemeral-storage": "" if asked.ephemeral_storage_bytes is None else _bytes(asked.ephemeral_storage_bytes),
        **{name: str(count) if count else "" for name, count in asked.extended.items()},
    }
    return {name: amount for name, amount in amounts.items() if amount}


def _cores(cores: float) -> str:
    thousandths = max(1, round(cores * 1000))
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def _bytes(amount: int) -> str:
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    return str(amount)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
