"""An attempt from a whole object of the person's own, of any kind. Pure.

The object stays as its writer wrote it. The runtime sets its name and namespace, its owner, its labels on it and on its
pods, the identity of the trial in the environment of its containers, and what its kind's preset says where the writer
has said nothing. A Job, alone or in a JobSet, that does not mention retries has none: the controller retries attempts.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from controller.runtime.kubernetes.kinds import JOB, at, below, foreign_version, is_pod_template, preset_of, put
from controller.runtime.kubernetes.labels import QUEUE, annotations_of, labels_of, metadata
from controller.runtime.kubernetes.objects import Raw
from controller.runtime.protocol import ClusterPart, Launch

_EXPANDED = re.compile(r"\$(?=[$(])|(?<=\$)\$")
_WITHOUT_A_PLACE = ("TUNER_OUTPUT_DIR", "TUNER_CHECKPOINT_DIR")  # the runtime mounts no volume in it


def from_template(launch: Launch, part: ClusterPart) -> Raw:
    obj = cast(Raw, copy.deepcopy(dict(part.manifest or {})))
    preset = preset_of(obj)
    about = obj.get("metadata")
    ours = metadata(launch, part)
    obj["metadata"] = _merged(about, ours, "labels") | {
        "annotations": _mapping(about, "annotations") | annotations_of(launch, part)
    }
    obj["metadata"].pop("generateName", None)
    for place in (preset or JOB).places(obj):
        place["metadata"] = _merged(place.get("metadata"), {"labels": labels_of(part)}, "labels")
        if part.avoid_nodes:
            prefer_others(below(place, "spec"), part.avoid_nodes)
    for container in (preset or JOB).containers(obj):
        _introduce(container, launch)
    for job in _job_specs(obj):
        job.setdefault("backoffLimit", 0)
        job["template"]["spec"].setdefault("restartPolicy", "Never")
    if preset is not None:
        for path, value in preset.defaults.items():
            if at(obj, path) is None:
                put(obj, path, value)
    if queue := part.template.cluster.get("queue"):
        obj["metadata"]["labels"][QUEUE] = queue
        if preset is not None and preset.suspend:
            put(obj, preset.suspend, True)
    return obj


def cannot_be_labelled(manifest: Mapping[str, Any]) -> str:
    """Why the pods of an object could not be found again; "" if they can."""
    preset, obj = preset_of(manifest), copy.deepcopy(dict(manifest))
    if preset is not None and (unfit := preset.unfit(obj)):
        return unfit
    if (preset or JOB).places(obj):
        return ""
    return (
        f"no pod template is found in this {manifest.get('kind')}: its pods would not carry the labels by which they "
        "are found, and no log could be read; use a kind with a pod template, {metadata, spec: {containers: …}}"
    )


def cannot_be_queued(manifest: Mapping[str, Any]) -> str:
    """Why Kueue would let an object pass at once; "" if it would not, or nothing is known of the kind."""
    preset = preset_of(manifest)
    if preset is None or preset.suspend:
        return ""
    return (
        f"Kueue does not queue the kind {preset.kind} of {preset.api_version}; omit queue, or use a kind that it knows"
    )


def warnings(manifest: Mapping[str, Any], path: str) -> Iterator[str]:
    """What a template says that is seldom meant. path: of the template in its file."""
    if foreign := foreign_version(manifest):
        yield f"{path}.apiVersion: {foreign}"
    preset = preset_of(manifest)
    beside = preset is not None and preset.policy_beside
    for place, owner in _owners_of_pods(manifest, path):
        of_pod, of_owner = owner["template"]["spec"].get("restartPolicy"), owner.get("restartPolicy")
        policy = of_owner if beside else of_owner or of_pod
        where = f"{place}.restartPolicy" if beside else f"{place}.template.spec.restartPolicy"
        cure = "what fails is retried by spec.trial.retries; write restartPolicy: Never"
        if policy in ("OnFailure", "Always"):
            yield f"{where}: {policy} restarts a failed program inside the attempt, at most 5 times; {cure}"
        elif policy is None and (preset is None or preset.restarts):
            kind = manifest.get("kind")
            yield f"{where}: without it a {kind} may restart a failed program inside the attempt; {cure}"


def _owners_of_pods(node: object, path: str) -> Iterator[tuple[str, Raw]]:
    """Every mapping with a pod template under `template`, and its path."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _owners_of_pods(item, f"{path}[{index}]")
    elif isinstance(node, dict):
        if is_pod_template(node.get("template")):
            yield path, node
            return
        for key, value in node.items():
            yield from _owners_of_pods(value, f"{path}.{key}")


def prefer_others(spec: Raw, nodes: tuple[str, ...]) -> None:
    """Add to a pod's affinity that it should not run on these nodes. Preferred, not required: with nowhere else to go
    it would wait for ever."""
    # A field selector takes one value each; all of them in one term must hold.
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    path = "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"
    put(spec, path, [*(at(spec, path) or ()), {"weight": 100, "preference": {"matchFields": fields}}])


def as_is(text: str) -> str:
    """Kubernetes would put variables in place of $(NAME); here, as on a laptop, nobody but the program reads it."""
    return _EXPANDED.sub("$$", text)


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
