"""What ties objects on a cluster to an attempt: names, labels, annotations, owners. Pure.

The labels find everything of an experiment; the annotations hold what a controller without its database needs to go on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from controller.core.model import trial_label
from controller.runtime.protocol import ClusterPart, Launch
from suggest.nesting import load_json

Raw = dict[str, Any]

MANAGED_BY = "app.kubernetes.io/managed-by"
EXPERIMENT = "tuner.dev/experiment"
UID = "tuner.dev/uid"
TRIAL = "tuner.dev/trial"
ATTEMPT = "tuner.dev/attempt"
QUEUE = "kueue.x-k8s.io/queue-name"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"

PARAMETERS = "tuner.dev/parameters"
TIMEOUT = "tuner.dev/timeout-seconds"
GRACE = "tuner.dev/grace-seconds"
READING = "tuner.dev/reading"  # conditions and primary pod of a template, as its file gives them

LONGEST_LABEL = 63  # of a host name, and of a label's value


def labels_of(part: ClusterPart) -> dict[str, str]:
    return {
        MANAGED_BY: "tuner",
        EXPERIMENT: part.experiment,
        UID: part.uid,
        TRIAL: trial_label(part.trial),
        ATTEMPT: str(part.attempt),
    }


def annotations_of(launch: Launch, part: ClusterPart) -> dict[str, str]:
    """Of the attempt's own object."""
    reading = {
        key: part.template.cluster[key] for key in ("success", "failure", "primary") if key in part.template.cluster
    }
    return {
        PARAMETERS: json.dumps(dict(part.parameters)),
        GRACE: f"{launch.grace_s:g}",
        **({} if launch.timeout_s is None else {TIMEOUT: f"{launch.timeout_s:g}"}),
        **({READING: json.dumps(reading)} if reading else {}),
    }


def parameters_of(obj: Mapping[str, Any]) -> Raw | None:
    """As annotations_of has written them; None: it says nothing of them that can be read."""
    said = (obj.get("metadata", {}).get("annotations") or {}).get(PARAMETERS)
    try:
        found = load_json(said) if isinstance(said, str) else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def metadata(launch: Launch, part: ClusterPart, owner: Mapping[str, Any] | None) -> Raw:
    """Of every object made for an attempt but its pods."""
    return {
        "name": launch.name,
        "namespace": part.namespace,
        "labels": labels_of(part),
        **({} if owner is None else {"ownerReferences": [owner_reference(owner)]}),
    }


def owner_reference(owner: Mapping[str, Any]) -> Raw:
    """No controller reference: nobody controls by it, it is there to be collected by."""
    about = owner["metadata"]
    return {
        "apiVersion": owner.get("apiVersion", "v1"),
        "kind": owner.get("kind", "ConfigMap"),
        "name": about["name"],
        "uid": about["uid"],
    }


def workers_of(part: ClusterPart) -> int:
    """Pods of an attempt by `distributed`; 1 without it."""
    return part.template.workers if part.manifest is None else 1


def name_problem(launch: Launch) -> str:
    """Why the cluster would not take this name; "" if it does. Of many pods, each host is <name>-<index>."""
    part = launch.cluster
    assert part is not None
    longest = launch.name
    if (workers := workers_of(part)) > 1:
        longest = f"{launch.name}-{workers - 1}"
    elif part.manifest is not None:
        longest = _longest_in(launch.name, part.manifest)
    if len(longest) <= LONGEST_LABEL:
        return ""
    return (
        f"{longest} has {len(longest)} characters, and a host name at most {LONGEST_LABEL}; "
        f"shorten metadata.name by {len(longest) - LONGEST_LABEL}"
    )


def _longest_in(name: str, manifest: Mapping[str, Any]) -> str:
    """The longest host name among the pods of a template, for the kinds whose way of naming is known."""
    match manifest:
        case {"kind": "Job", "spec": {"completionMode": "Indexed", "completions": int(count)}}:
            return f"{name}-{count - 1}"
        case {"kind": "JobSet", "spec": {"replicatedJobs": [*groups]}}:
            return max((_in_group(name, group) for group in groups), key=len, default=name)
    return name


def _in_group(name: str, group: object) -> str:
    if not isinstance(group, dict):
        return name
    match group.get("template"):
        case {"spec": {"completions": int(count)}} | {"spec": {"parallelism": int(count)}}:
            pass
        case _:
            count = 1
    replicas = group.get("replicas", 1)
    return f"{name}-{group.get('name', '')}-{replicas - 1 if isinstance(replicas, int) else 0}-{count - 1}"
