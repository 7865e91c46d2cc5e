"""Build the objects of one attempt: our own Job, or the user's template of any kind. Pure.

A dry run prints exactly what is sent. Our Job has no retries: each attempt is one Job with one pod
(or one pod per rank and a headless Service), and the controller decides what follows its end. One
lost worker ends the attempt as a whole. The Job has no deadline either: time in a queue does not
count, so the controller keeps the time. Its pods follow the restricted profile of the pod security
standards, which every namespace accepts.

A template stays as the user wrote it. The builder sets its name, namespace and owner, our labels on
it and on its pods, the identity of the trial in the environment of its containers, and the defaults
of its kind's preset where the user has set nothing. A Job, alone or in a JobSet, that does not
mention retries gets none: the controller retries attempts. The namespace's own policy decides
whether a template may run.
"""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Iterator, Mapping, Set
from decimal import Decimal
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, cast

from controller.core.model import ExperimentSpec, Resources, Uid, short_name
from controller.kube.objects import AnyObject, Raw
from controller.runtime.kubernetes.collector import add_collector, has_collector
from controller.runtime.kubernetes.kinds import (
    JOB,
    KEPT_S,
    append,
    at,
    below,
    containers_in,
    default,
    foreign_version,
    is_pod_template,
    mappings,
    pod_templates,
    preset_of,
    primary_template,
    put,
    reporting_step,
)
from controller.runtime.kubernetes.labels import (
    ANSWERS,
    COLLECTOR_CONTAINER,
    COMPLETION_INDEX,
    GRACE,
    JOB_NAME,
    QUEUE,
    TIMEOUT,
    TRIAL_CONTAINER,
    UID,
    annotation,
    annotations_of,
    experiment_labels,
    labels_of,
    metadata,
    workers_of,
)
from controller.runtime.kubernetes.launch import ClusterPart, part_of
from controller.runtime.kubernetes.resource_quota import shown_amount
from controller.runtime.protocol import Launch
from controller.runtime.trial_files import DIRECTORY, TrialFiles
from controller.runtime.trial_variables import PARAMETER_ANSWERS
from suggest.errors import Problem


def build_objects(launch: Launch, *, pod_field: str | None = "") -> list[Raw]:
    """Return the objects to create, in this order; the last is the attempt's own object.

    pod_field: what `kinds.served_pod_field` returns for the template.
    """
    part = part_of(launch)
    if part.manifest is not None:
        return [from_template(launch, part, pod_field)]
    job = _job(launch, part)
    return [job] if workers_of(part) == 1 else [service_for(launch, part), job]


def anchor(spec: ExperimentSpec, uid: Uid) -> Raw:
    """Return the object that owns all others of the experiment.

    It contains the experiment's specification, for recovery without the database.
    """
    labels = experiment_labels(spec.name, uid)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": short_name(spec.name, uid), "labels": labels},
        "data": {"experiment": json.dumps(dict(spec.document))},
    }


def build_files(launch: Launch) -> Raw | None:
    """Return the ConfigMap with the launch's files; None if it has none, or they were sent before.

    All attempts with the same files share it.
    """
    part = part_of(launch)
    if part.files is None or part.files.contents is None:
        return None
    return files_object(part.files, part.namespace, part.experiment, part.uid)


def files_object(files: TrialFiles, namespace: str, experiment: str, uid: Uid) -> Raw:
    """Return the ConfigMap with files to send."""
    assert files.contents is not None, "they were sent before"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name_of_files(experiment, uid, files),
            "namespace": namespace,
            "labels": experiment_labels(experiment, uid),
        },
        "immutable": True,
        "binaryData": _binary_data(tuple(sorted(files.contents.items()))),
    }


def name_of_files(experiment: str, uid: Uid, files: TrialFiles) -> str:
    """Return the name of the ConfigMap with the files of an experiment."""
    return f"{short_name(*(files.sent_with or (experiment, uid)))}-files-{files.digest}"


def files_in(obj: AnyObject, files: TrialFiles) -> TrialFiles:
    """Return files that were sent before, with their contents from the ConfigMap."""
    data = obj["binaryData"]
    keys = {path: _key(place, path) for place, path in enumerate(files.paths)}
    return TrialFiles.of({path: base64.b64decode(data[key]) for path, key in keys.items()})


@lru_cache(maxsize=1)
def _binary_data(contents: tuple[tuple[str, bytes], ...]) -> dict[str, str]:
    return {
        _key(place, path): base64.b64encode(content).decode()
        for place, (path, content) in enumerate(contents)
    }


def _key(place: int, path: str) -> str:
    """Return the key of a file. A key has no slash, so the path is in the volume's items."""
    return f"{place}.{path.rpartition('/')[2]}"


def timeout_of(obj: AnyObject) -> float | None:
    """Return the timeout that build_objects wrote on the object."""
    seconds = annotation(obj, TIMEOUT)
    return None if seconds is None else float(seconds)


def grace_of(obj: AnyObject) -> float:
    return float(annotation(obj, GRACE) or 30)


def _job(launch: Launch, part: ClusterPart) -> Raw:
    about = _marked(metadata(launch, part), part)
    about["annotations"] = about.get("annotations", {}) | annotations_of(launch, part)
    queue = part.template.cluster.get("queue")
    if queue:
        about["labels"] = about["labels"] | {QUEUE: queue}
    spec: Raw = {
        "backoffLimit": 0,
        # No replacement pod while the first still holds its GPU.
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": KEPT_S,
        **({"suspend": True} if queue else {}),
        **indexed(workers_of(part)),
        "template": {"metadata": _marked({}, part), "spec": _pod_spec(launch, part)},
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
        # Process 1 of a PID namespace ignores SIGTERM unless it handles it. In a namespace shared
        # with the pause container an ordinary program ends at once and frees its GPU, instead of
        # using up its grace period.
        "shareProcessNamespace": True,
        "securityContext": pod_security(cluster),
        "containers": [_container(launch, part) | {"volumeMounts": mounts}],
        "volumes": volumes,
    }
    if part.parent_checkpoint and _claim_of(part):
        spec["initContainers"] = [_parent_copier(launch, part, spec["containers"][0])]
    if part.collection is not None:
        add_collector(spec, spec["containers"][0], part.collection)
    if workers_of(part) > 1:
        spec["subdomain"] = launch.name
    if affinity := cluster.get("affinity"):
        spec["affinity"] = copy.deepcopy(affinity)  # which gets the nodes to avoid
    if part.avoid_nodes:
        prefer_others(spec, part.avoid_nodes)
    if constraints := cluster.get("topologySpread"):
        # Without a selector a constraint would count no pods: count those of the experiment.
        own = {"labelSelector": {"matchLabels": {UID: part.uid}}}
        spec["topologySpreadConstraints"] = [{**own, **each} for each in _list(constraints)]
    if names := cluster.get("imagePullSecrets"):
        spec["imagePullSecrets"] = [{"name": name} for name in _list(names)]
    for ours, theirs in (
        ("nodeSelector", "nodeSelector"),
        ("tolerations", "tolerations"),
        ("priorityClass", "priorityClassName"),
        ("schedulerName", "schedulerName"),
        ("runtimeClass", "runtimeClassName"),
        ("serviceAccount", "serviceAccountName"),
    ):
        if cluster.get(ours):
            spec[theirs] = cluster[ours]
    return spec


def _marked(about: object, part: ClusterPart) -> Raw:
    """Return the metadata of an object or its pods: the file's labels and annotations, our labels.

    Those of a template take precedence over the file's others, and our labels over all.
    """
    theirs = about if isinstance(about, dict) else {}
    cluster = part.template.cluster
    labels = {
        **part.labels,
        **_mapping(cluster.get("labels")),
        **_mapping(theirs.get("labels")),
        **labels_of(part),
    }
    annotations = {**_mapping(cluster.get("annotations")), **_mapping(theirs.get("annotations"))}
    return {**theirs, "labels": labels, **({"annotations": annotations} if annotations else {})}


def _container(launch: Launch, part: ClusterPart) -> Raw:
    policy = part.template.cluster.get("imagePullPolicy")
    resources = _resources(part.template.resources)
    directory = part.template.working_dir or ("" if part.files is None else DIRECTORY)
    return {
        "name": TRIAL_CONTAINER,
        "image": part.template.image,
        **({"imagePullPolicy": policy} if policy else {}),
        "command": [as_is(word) for word in launch.command],
        **({"workingDir": directory} if directory else {}),
        "env": env_of(launch, part),
        # Limits equal requests: no trial depends on what another does not use at the moment.
        **({"resources": {"requests": resources, "limits": resources}} if resources else {}),
        "securityContext": container_security(part.template.cluster),
        # The status then has the last lines, also of workers whose log is not followed.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


PARENT_COPIER = "tuner-parent"
# The copy gets its name when it is complete: the container may be killed, or its node lost, at any
# moment. The first rank copies for all.
_COPY = """\
set -e
from=$1 to=$2 partial=$3
if [ "${JOB_COMPLETION_INDEX:-0}" != 0 ]; then
  until [ -e "$to" ]; do sleep 1; done
fi
[ -e "$to" ] && exit 0
rm -rf "$partial"
if [ -d "$from" ]; then cp -Rp "$from" "$partial"; else mkdir "$partial"; fi
[ -e "$to" ] || mv "$partial" "$to"
"""


# what the copier has of the trial's container
_COPIED = ("image", "imagePullPolicy", "securityContext")
# resources that a quota may require of each container
_QUOTA = ("cpu", "memory", "ephemeral-storage")


def _parent_copier(launch: Launch, part: ClusterPart, trial: Raw) -> Raw:
    """Return the init container that makes the trial's folder on the claim: a copy of its parent's.

    It runs the trial's own image, whose user and security it shares, so
    that no other image has to be pulled. The kubelet makes the folder
    that the trial's container mounts only after this one has ended.
    """
    to = launch.env["TUNER_CHECKPOINT_DIR"]
    folder = to.rpartition("/")[0]
    of_all = short_name(part.experiment, part.uid)
    whole = {"name": _CHECKPOINTS, "mountPath": folder, "subPath": of_all}
    partial = f"{folder}/{launch.name}.partial"
    resources = {}
    for kind, amounts in _mapping(trial.get("resources")).items():
        if kind in ("requests", "limits"):
            resources[kind] = {name: amounts[name] for name in _QUOTA if name in amounts}
    return {
        "name": PARENT_COPIER,
        **{key: trial[key] for key in _COPIED if key in trial},
        "command": ["sh", "-c", _COPY, "sh", part.parent_checkpoint, to, partial],
        **({"resources": resources} if any(resources.values()) else {}),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [whole],
    }


def _resources(resources: Resources) -> dict[str, str]:
    amounts: dict[str, str] = {}
    if resources.cpu is not None:
        thousandths = max(1, round(resources.cpu * 1000))
        amounts["cpu"] = shown_amount("cpu", Decimal(thousandths) / 1000)
    if resources.memory_bytes is not None:
        amounts["memory"] = shown_amount("memory", Decimal(resources.memory_bytes))
    if resources.gpu:
        amounts["nvidia.com/gpu"] = f"{resources.gpu:g}"
    if resources.ephemeral_storage_bytes is not None:
        disk = Decimal(resources.ephemeral_storage_bytes)
        amounts["ephemeral-storage"] = shown_amount("ephemeral-storage", disk)
    amounts |= {name: str(count) for name, count in resources.extended.items() if count}
    return amounts


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


MASTER_PORT = "29500"


def indexed(count: int) -> Raw:
    """Return the fields that give a Job `count` ranks."""
    if count == 1:
        return {}
    return {"completionMode": "Indexed", "completions": count, "parallelism": count}


def service_for(launch: Launch, part: ClusterPart) -> Raw:
    spec = {
        "clusterIP": "None",
        # The ranks resolve each other's names before any of them is ready.
        "publishNotReadyAddresses": True,
        "selector": {JOB_NAME: launch.name},
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _marked(metadata(launch, part), part),
        "spec": spec,
    }


def rendezvous(name: str, count: int, *, port: str) -> dict[str, Raw]:
    """Return the rendezvous variables by name; none for a single pod.

    `port`: overrides MASTER_PORT.
    """
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


def env_of(launch: Launch, part: ClusterPart) -> list[Raw]:
    """Return the environment: rendezvous, then file variables and trial identity, then secrets."""
    env: dict[str, Raw] = rendezvous(
        launch.name, workers_of(part), port=launch.env.get("MASTER_PORT", "")
    )
    env |= {name: {"value": as_is(value)} for name, value in launch.env.items()}
    env |= {
        name: {"valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}}
        for name, secret in part.secrets.items()
    }
    return [{"name": name, **source} for name, source in env.items()]


_SHARED_MEMORY = "/dev/shm"
_CHECKPOINTS = "tuner-checkpoints"
_EXECUTABLE = 0o555  # a ConfigMap keeps no modes, and a file may be a script


def mounts_of(launch: Launch, part: ClusterPart) -> tuple[list[Raw], list[Raw]]:
    """Return the pod's volumes and its container's mounts; a user's replaces ours at its path."""
    of_trial = [
        _declared_mount(name, cast(Raw, volume))
        for name, volume in _mapping(part.template.cluster.get("volumes")).items()
    ]
    mount_paths = {mount["mountPath"].rstrip("/") for _, mount in of_trial}
    of_trial += [
        pair for pair in _our_mounts(launch, part) if pair[1]["mountPath"] not in mount_paths
    ]
    volumes = {volume["name"]: volume for volume, _ in of_trial}
    return list(volumes.values()), [mount for _, mount in of_trial]


def _declared_mount(name: str, volume: Raw) -> tuple[Raw, Raw]:
    read_only = {"readOnly": True} if volume.get("readOnly") else {}
    if claim := volume.get("claim"):
        source: Raw = {"persistentVolumeClaim": {"claimName": claim, **read_only}}
    elif nfs := volume.get("nfs"):
        source = {"nfs": {**nfs, **read_only}}
    else:
        source = {"emptyDir": volume.get("emptyDir") or {}}
    return {"name": name, **source}, {"name": name, "mountPath": volume["mount"], **read_only}


def _our_mounts(launch: Launch, part: ClusterPart) -> list[tuple[Raw, Raw]]:
    cluster = part.template.cluster
    pairs = [
        _scratch("tuner-tmp", "/tmp"),
        _scratch("tuner-output", launch.env["TUNER_OUTPUT_DIR"]),
    ]
    if part.files is not None:
        name, paths = name_of_files(part.experiment, part.uid, part.files), part.files.paths
        items = [{"key": _key(place, path), "path": path} for place, path in enumerate(paths)]
        source = {"name": name, "items": items, "defaultMode": _EXECUTABLE}
        mount = {"name": "tuner-files", "mountPath": DIRECTORY, "readOnly": True}
        pairs.append(({"name": "tuner-files", "configMap": source}, mount))
    if answers := launch.env.get(PARAMETER_ANSWERS):
        pairs.append(_answers_mount(PurePosixPath(answers)))
    if size := cluster.get("shm"):
        shared = {"name": "tuner-shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
        pairs.append((shared, {"name": "tuner-shm", "mountPath": _SHARED_MEMORY}))
    claim = _claim_of(part)
    if claim is None:
        return [*pairs, _scratch(_CHECKPOINTS, launch.env["TUNER_CHECKPOINT_DIR"])]
    return [*pairs, _checkpoint_mount(launch, part, claim)]


def _answers_mount(file: PurePosixPath) -> tuple[Raw, Raw]:
    """Return the volume that shows the annotation ANSWERS, which the kubelet keeps up to date."""
    name, field = "tuner-parameters", f"metadata.annotations['{ANSWERS}']"
    items = [{"path": file.name, "fieldRef": {"fieldPath": field}}]
    mount = {"name": name, "mountPath": str(file.parent), "readOnly": True}
    return {"name": name, "downwardAPI": {"items": items}}, mount


def _checkpoint_mount(launch: Launch, part: ClusterPart, claim: str) -> tuple[Raw, Raw]:
    """Return the volume of a claim for checkpoints, and the mount of the trial's folder.

    There is a folder for each trial in a folder for each experiment. The kubelet creates both, so
    the path exists as on a laptop.
    """
    path = launch.env["TUNER_CHECKPOINT_DIR"]
    folder = f"{short_name(part.experiment, part.uid)}/{path.rpartition('/')[2]}"
    volume = {"name": _CHECKPOINTS, "persistentVolumeClaim": {"claimName": claim}}
    return volume, {"name": _CHECKPOINTS, "mountPath": path, "subPath": folder}


def _claim_of(part: ClusterPart) -> str | None:
    """Return the claim for checkpoints; None if they end with the attempt."""
    claim: str | None = _mapping(part.template.cluster.get("checkpoints")).get("claim")
    return claim


def _scratch(name: str, at: str) -> tuple[Raw, Raw]:
    return {"name": name, "emptyDir": {}}, {"name": name, "mountPath": at}


def _mapping(value: object) -> AnyObject:
    return value if isinstance(value, Mapping) else {}


# owns the files in a claim for checkpoints; the number is arbitrary but must not change
_GROUP = 65532


def pod_security(cluster: Mapping[str, object]) -> Raw:
    """Return the pod's security context. The user is the image's, which must not be root."""
    context: Raw = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if "checkpoints" in cluster:
        # A new volume belongs to root, and the image's user could not write to it.
        context |= {"fsGroup": _GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def container_security(cluster: Mapping[str, object]) -> Raw:
    """Return the container's security context, read-only unless the file allows writes."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": cluster.get("readOnlyRootFilesystem", True),
    }


# Objects from a template


_EXPANDED = re.compile(r"\$(?=[$(])|(?<=\$)\$")
_OUTPUT_DIR, _CHECKPOINT_DIR = "TUNER_OUTPUT_DIR", "TUNER_CHECKPOINT_DIR"


def from_template(launch: Launch, part: ClusterPart, pod_field: str | None) -> Raw:
    obj = cast(Raw, copy.deepcopy(dict(part.manifest or {})))
    preset = preset_of(obj)
    shape = preset or JOB
    if pod_field:
        default(obj, f"spec.{pod_field}", [])
    about = _marked(obj.get("metadata"), part) | {"name": launch.name, "namespace": part.namespace}
    annotations = about.get("annotations", {}) | annotations_of(launch, part)
    obj["metadata"] = about | {"annotations": annotations}
    obj["metadata"].pop("generateName", None)
    for template in shape.templates(obj):
        template[shape.pod_metadata] = _marked(template.get(shape.pod_metadata), part)
        if part.avoid_nodes:
            spec = template
            for section in filter(None, shape.pod_spec.split(".")):
                spec = below(spec, section)
            prefer_others(spec, part.avoid_nodes)
    claim = _claim_of(part)
    not_mounted = {_OUTPUT_DIR} if claim else {_OUTPUT_DIR, _CHECKPOINT_DIR}
    for container in shape.containers(obj):
        _add_environment(container, launch, not_mounted)
    if answers := launch.env.get(PARAMETER_ANSWERS):
        _add_answers(obj, PurePosixPath(answers))
    if claim:
        _add_checkpoints(at(obj, "spec.template.spec"), launch, part, claim)
    if part.collection is not None and not has_collector(obj):
        reporting = _reporting_pod(obj, part.template.cluster)
        assert reporting is not None, "cannot_be_collected refuses it"
        primary = _primary(reporting, part, shape.primary_pod(obj).container)
        add_collector(reporting, primary, part.collection)
    for job in _job_specs(obj):
        default(job, "backoffLimit", 0)
        default(job, "template.spec.restartPolicy", "Never")
    if preset is not None:
        for path, value in preset.defaults.items():
            default(obj, path, value)
    if queue := part.template.cluster.get("queue"):
        obj["metadata"]["labels"][QUEUE] = queue
        if preset is not None and preset.suspend:
            put(obj, preset.suspend, True)
    return obj


def cannot_be_labeled(manifest: AnyObject) -> str:
    """Return why the pods of an object could not get our labels; "" if they can."""
    preset, obj = preset_of(manifest), copy.deepcopy(dict(manifest))
    if preset is not None and (unfit := preset.unfit(obj)):
        return unfit
    if (preset or JOB).templates(obj):
        return ""
    return (
        f"no pod template is found in this {manifest.get('kind')}: its pods would not carry the "
        "labels by which they are found, and no log could be read; use a kind with a pod "
        "template, {metadata, spec: {containers: …}}"
    )


def cannot_be_queued(manifest: AnyObject) -> str:
    """Return why Kueue would not queue an object; "" if it would, or if the kind is unknown."""
    preset = preset_of(manifest)
    if preset is None or preset.suspend:
        return ""
    return (
        f"Kueue does not queue the kind {preset.kind} of {preset.api_version}; omit queue, or "
        f"use a kind that it knows"
    )


def cannot_be_collected(manifest: AnyObject, cluster: Mapping[str, object]) -> str:
    """Return why the metrics of an object could not be collected; "" if they can.

    cluster: the keys beside it.
    """
    obj = copy.deepcopy(dict(manifest))
    if has_collector(obj) or _reporting_pod(obj, cluster) is not None:
        return ""
    kind = manifest.get("kind")
    if kind == "TrainJob":
        return (
            f"the pods of a {kind} are those of its runtime; print the metrics, or add the "
            f"container {COLLECTOR_CONTAINER} there and name it in the {kind}, as "
            "docs/operators.md shows"
        )
    return (
        f"the pod template of this {kind} that reports the metrics is not known, so the collector "
        f"cannot be added; print the metrics, or add the container {COLLECTOR_CONTAINER} to the "
        "primary pod's initContainers, as docs/kubernetes.md shows"
    )


def cannot_be_answered(manifest: AnyObject) -> str:
    """Return why the pods of an object could not be told parameters; "" if they can."""
    if any(pod_templates(manifest)):
        return ""
    return (
        f"no pod template is found in this {manifest.get('kind')}, so the volume with the answers "
        "cannot be added, and its trials cannot ask for parameters (defineByRun); write "
        "spec.parameters, or use a kind with a pod template, {metadata, spec: {containers: …}}"
    )


def _reporting_pod(obj: Raw, cluster: Mapping[str, object]) -> Raw | None:
    """Return the spec of the pod that reports the metrics, or a Workflow's template in its place.

    None: it is not known. cluster: the keys beside the object.
    """
    labels = _primary_labels(cluster)
    if (step := reporting_step(obj, labels)) is not None:
        return step
    template = primary_template(obj, labels)
    return None if template is None else template["spec"]


def _primary_labels(cluster: Mapping[str, object]) -> Mapping[str, str]:
    """Return the labels by which the file names the primary pod; {} if it does not."""
    labels = _mapping(_mapping(cluster.get("primary")).get("labels"))
    return cast("Mapping[str, str]", labels)


def warnings(manifest: AnyObject, path: str) -> Iterator[Problem]:
    """Yield warnings about settings that are seldom intended.

    path: the template's path in its file.
    """
    if foreign := foreign_version(manifest):
        yield Problem(f"{path}.apiVersion", foreign)
    preset = preset_of(manifest)
    beside = preset is not None and preset.policy_beside
    for place, owner in _owners_of_pods(manifest, path):
        of_pod = owner["template"]["spec"].get("restartPolicy")
        of_owner = owner.get("restartPolicy")
        policy = of_owner if beside else of_owner or of_pod
        key_path = f"{place}.restartPolicy" if beside else f"{place}.template.spec.restartPolicy"
        cure = "what fails is retried by spec.trial.retries; write restartPolicy: Never"
        what = "a failed program inside the attempt"
        if policy in ("OnFailure", "Always"):
            yield Problem(key_path, f"{policy} restarts {what}, at most 5 times; {cure}")
        elif policy is None and (preset is None or preset.restarts):
            kind = manifest.get("kind")
            yield Problem(key_path, f"without it a {kind} may restart {what}; {cure}")


def _owners_of_pods(node: object, path: str) -> Iterator[tuple[str, Raw]]:
    """Yield every mapping that has a pod template under `template`, with its path."""
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
    """Add a preferred node affinity against these nodes.

    If it were required, the pod would wait forever for another node.
    """
    # matchFields takes one value per requirement; all requirements of a term must hold.
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    path = "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"
    ours = {"weight": 100, "preference": {"matchFields": fields}}
    put(spec, path, [*(at(spec, path) or ()), ours])


def as_is(text: str) -> str:
    """Escape $(NAME), which Kubernetes expands; on a laptop it reaches the program unchanged."""
    return _EXPANDED.sub("$$", text)


def _primary(spec: Raw, part: ClusterPart, usual: str = "") -> Raw:
    """Return the container that runs the trial: the file's, the kind's `usual` or the first."""
    chosen = _mapping(part.template.cluster.get("primary")).get("container")
    name, containers = chosen or usual or TRIAL_CONTAINER, containers_in(spec)
    return next((each for each in containers if each.get("name") == name), containers[0])


def _job_specs(obj: Raw) -> Iterator[Raw]:
    """Yield the spec of a Job, or of the Jobs that a JobSet creates."""
    match obj:
        case {"kind": "Job", "spec": {"template": {"spec": {"containers": list()}}} as spec}:
            yield spec
        case {"kind": "JobSet", "spec": {"replicatedJobs": [*groups]}}:
            for group in groups:
                match group:
                    case {
                        "template": {"spec": {"template": {"spec": {"containers": list()}}} as spec}
                    }:
                        yield spec


def _add_checkpoints(spec: Raw, launch: Launch, part: ClusterPart, claim: str) -> None:
    """Mount the trial's folder of the claim in the container that runs the trial.

    The parent's checkpoint is mounted with it.
    """
    trial = _primary(spec, part)
    volume, mount = _checkpoint_mount(launch, part, claim)
    append(spec, "volumes", volume)
    append(trial, "volumeMounts", mount)
    if part.parent_checkpoint:
        spec["initContainers"] = [
            _parent_copier(launch, part, trial),
            *(spec.get("initContainers") or ()),
        ]


def _add_answers(obj: Raw, file: PurePosixPath) -> None:
    """Show the answers in all containers of all pods: the primary pod asks for all of them."""
    for template in pod_templates(obj):
        spec = template["spec"]
        volume, mount = _answers_mount(file)
        append(spec, "volumes", volume)
        for key in ("initContainers", "containers"):
            for container in mappings(spec.get(key)):
                append(container, "volumeMounts", mount)


def _add_environment(container: Raw, launch: Launch, not_mounted: Set[str]) -> None:
    """Add the trial's environment to a container; variables that the user has set stay.

    not_mounted: the variables of folders that no volume of a template has.
    """
    env = list(container.get("env") or ())
    names = {variable.get("name") for variable in env if isinstance(variable, dict)}
    env += [
        {"name": name, "value": as_is(value)}
        for name, value in launch.env.items()
        if name not in names and name not in not_mounted
    ]
    container["env"] = env
