"""An attempt from a whole object of the person's own, of any kind. Pure.

It stays what its writer wrote. Set by us: its name and namespace, our labels on it and on every pod template in it, its
owner, and who the trial is in the environment of its containers. A Job, by itself or in a JobSet, that says nothing of
retries has none: what is tried again is decided outside.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, cast

from controller.runtime.kubernetes.demand import pod_templates
from controller.runtime.kubernetes.environment import as_is
from controller.runtime.kubernetes.naming import QUEUE, annotations_of, labels_of, metadata
from controller.runtime.protocol import ClusterPart, Launch

Raw = dict[str, Any]

_WITHOUT_A_PLACE = ("TUNER_OUTPUT_DIR", "TUNER_CHECKPOINT_DIR")  # no volume of ours is mounted in it
_SUSPENDED = frozenset({"Job", "JobSet", "TrainJob"})  # by spec.suspend; Kueue's webhook does it for the others
SAFETY_NET_S = 7 * 24 * 3600  # long enough for a detached controller to come back and look


def from_template(launch: Launch, part: ClusterPart, owner: Mapping[str, Any] | None) -> Raw:
    obj = cast(Raw, copy.deepcopy(dict(part.manifest or {})))
    about = obj.get("metadata")
    ours = metadata(launch, part, owner)
    obj["metadata"] = _merged(about, ours, "labels") | {
        "annotations": _mapping(about, "annotations") | annotations_of(launch, part)
    }
    obj["metadata"].pop("generateName", None)
    for template in pod_templates(obj):
        template["metadata"] = _merged(template.get("metadata"), {"labels": labels_of(part)}, "labels")
        for container in _containers(template["spec"]):
            _introduce(container, launch)
    for job in _job_specs(obj):
        job.setdefault("backoffLimit", 0)
        job["template"]["spec"].setdefault("restartPolicy", "Never")
    spec = obj.get("spec")
    if obj.get("kind") == "Job" and isinstance(spec, dict):
        spec.setdefault("ttlSecondsAfterFinished", SAFETY_NET_S)
    if queue := part.template.cluster.get("queue"):
        obj["metadata"]["labels"][QUEUE] = queue
        if obj.get("kind") in _SUSPENDED and isinstance(spec, dict):
            spec["suspend"] = True
    return obj


def _job_specs(obj: Raw) -> Iterator[Raw]:
    """Of the Job itself, or of the Jobs that a JobSet makes."""
    match obj:
        case {"kind": "Job", "spec": {"template": {"spec": {"containers": list()}}} as spec}:
            yield spec
        case {"kind": "JobSet", "spec": {"replicatedJobs": [*groups]}}:
            for group in groups:
                match group:
                    case {"template": {"spec": {"template": {"spec": {"containers": list()}}} as spec}}:
                        yield spec


def _containers(spec: Raw) -> Iterator[Raw]:
    for key in ("initContainers", "containers"):
        for container in spec.get(key) or ():
            if isinstance(container, dict):
                yield container


def _introduce(container: Raw, launch: Launch) -> None:
    """What the person has set there stays."""
    env = list(container.get("env") or ())
    known = {each.get("name") for each in env if isinstance(each, dict)}
    env += [
        {"name": name, "value": as_is(value)}
        for name, value in launch.env.items()
        if name not in known and name not in _WITHOUT_A_PLACE
    ]
    container["env"] = env


def _merged(theirs: object, ours: Raw, inside: str) -> Raw:
    """Ours win, key by key; the mapping `inside` is merged itself."""
    kept = theirs if isinstance(theirs, dict) else {}
    return {**kept, **ours, inside: {**_mapping(kept, inside), **ours[inside]}}


def _mapping(of: object, key: str) -> Raw:
    value = of.get(key) if isinstance(of, dict) else None
    return value if isinstance(value, dict) else {}
