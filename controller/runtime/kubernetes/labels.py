"""Labels, annotations and names that tie objects on a cluster to an attempt. Pure.

Every label key, annotation key and API group that the project writes or reads is declared once, in
this module. The labels find all objects of an experiment; the annotations hold what a controller
without its database needs to continue.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping

from controller.core.model import (
    EXPERIMENT_LABEL,
    FINAL,
    UID_LABEL,
    AttemptKey,
    TrialOrFinal,
    attempt_name,
    trial_label,
)
from controller.kube.objects import AnyObject, Raw
from controller.runtime.kubernetes.launch import ClusterPart, part_of
from controller.runtime.protocol import Launch
from suggest.nesting import load_json

MANAGED_BY = "app.kubernetes.io/managed-by"
EXPERIMENT = EXPERIMENT_LABEL
UID = UID_LABEL
TRIAL = "tuner.dev/trial"
ATTEMPT = "tuner.dev/attempt"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"
JOB_UID = "batch.kubernetes.io/controller-uid"

PARAMETERS = "tuner.dev/parameters"
ANSWERS = "tuner.dev/answers"  # of a pod: the parameters that its trial has asked for
TIMEOUT = "tuner.dev/timeout-seconds"
GRACE = "tuner.dev/grace-seconds"
STATUS_RULES = "tuner.dev/reading"  # conditions and primary pod of a template, from its file

# of a Lease, as a label with the state and an annotation with the record of the end
ENDED = "tuner.dev/ended"
HOLDER = "tuner.dev/holder"  # of a Lease: who holds it, or held it last

KUEUE_GROUP = "kueue.x-k8s.io"
JOBSET_GROUP = "jobset.x-k8s.io"
KUBEFLOW_GROUP = "kubeflow.org"
TRAINER_GROUP = "trainer.kubeflow.org"
RAY_GROUP = "ray.io"
VOLCANO_GROUP = "batch.volcano.sh"
ARGO_GROUP = "argoproj.io"
TEKTON_GROUP = "tekton.dev"
QUEUE = f"{KUEUE_GROUP}/queue-name"

# Labels that operators set on their pods.
TRAINING_ROLE = "training.kubeflow.org/job-role"
TRAINING_REPLICA = "training.kubeflow.org/replica-type"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
REPLICATED_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
RAY_NODE_TYPE = "ray.io/node-type"
VOLCANO_TASK = "volcano.sh/task-spec"
VOLCANO_TASK_INDEX = "volcano.sh/task-index"

TRIAL_CONTAINER = "trial"  # the name of the trial's container
COLLECTOR_CONTAINER = "tuner-collector"  # of the sidecar that reads its metrics

LONGEST_LABEL = 63  # the limit of host names and of label values


def experiment_labels(name: str, uid: str) -> dict[str, str]:
    """Return the labels of every object of the experiment."""
    return {MANAGED_BY: "tuner", EXPERIMENT: name, UID: uid}


def attempt_labels(trial: TrialOrFinal, attempt: int) -> dict[str, str]:
    return {TRIAL: trial_label(trial), ATTEMPT: str(attempt)}


def labels_of(part: ClusterPart) -> dict[str, str]:
    return {
        **experiment_labels(part.experiment, part.uid),
        **attempt_labels(part.trial, part.attempt),
    }


def annotations_of(launch: Launch, part: ClusterPart) -> dict[str, str]:
    """Return the annotations of the attempt's own object."""
    cluster = part.template.cluster
    rules = {key: cluster[key] for key in ("success", "failure", "primary") if key in cluster}
    return {
        PARAMETERS: json.dumps(dict(part.parameters)),
        GRACE: f"{launch.grace_s:g}",
        **({} if launch.timeout_s is None else {TIMEOUT: f"{launch.timeout_s:g}"}),
        **({STATUS_RULES: json.dumps(rules)} if rules else {}),
    }


def annotation(obj: AnyObject, key: str) -> str | None:
    """Return the value of an annotation; None if the object lacks it."""
    annotations: Mapping[str, str] = obj.get("metadata", {}).get("annotations") or {}
    return annotations.get(key)


def parameters_of(obj: AnyObject) -> Raw | None:
    """Return the parameters that annotations_of wrote; None if they are missing or unreadable."""
    text = annotation(obj, PARAMETERS)
    try:
        parameters = load_json(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return parameters if isinstance(parameters, dict) else None


def attempt_of(obj: AnyObject) -> AttemptKey | None:
    """Return (trial, attempt) from the labels; None if the object belongs to no attempt."""
    labels = obj.get("metadata", {}).get("labels", {})
    with contextlib.suppress(KeyError, ValueError):
        trial = labels[TRIAL]
        return FINAL if trial == trial_label(FINAL) else int(trial), int(labels[ATTEMPT])
    return None


def attempt_named(name: str, stem: str) -> AttemptKey | None:
    """Return (trial, attempt) from the name of an attempt's object, which nobody can change.

    stem: the common prefix of the names of the experiment's objects. None: it belongs to no
    attempt.
    """
    if not name.startswith(stem) or (match := _NUMBERS.fullmatch(name, len(stem))) is None:
        return None
    trial, attempt = match.groups(default="1")
    return FINAL if trial == trial_label(FINAL) else int(trial), int(attempt)


_NUMBERS = re.compile(rf"(\d+|{trial_label(FINAL)})(?:-r(\d+))?")


def name_of(obj: AnyObject, attempt: AttemptKey) -> str:
    """Return the name of the attempt that the object belongs to, from its labels."""
    labels = obj["metadata"]["labels"]
    return attempt_name(labels[EXPERIMENT], labels[UID], *attempt)


def queue_of(obj: AnyObject | None) -> str:
    return str(((obj or {}).get("metadata", {}).get("labels") or {}).get(QUEUE, ""))


def metadata(launch: Launch, part: ClusterPart) -> Raw:
    """Return the metadata of every object created for an attempt, except its pods."""
    return {"name": launch.name, "namespace": part.namespace, "labels": labels_of(part)}


def owned(manifest: AnyObject, owner: AnyObject) -> Raw:
    """Return the manifest with an owner reference, so that it is deleted with the owner."""
    return {
        **manifest,
        "metadata": {**manifest["metadata"], "ownerReferences": [owner_reference(owner)]},
    }


def owner_reference(owner: AnyObject) -> Raw:
    """Return an owner reference for garbage collection; it is not a controller reference."""
    about = owner["metadata"]
    return {
        "apiVersion": owner.get("apiVersion", "v1"),
        "kind": owner.get("kind", "ConfigMap"),
        "name": about["name"],
        "uid": about["uid"],
    }


def workers_of(part: ClusterPart) -> int:
    """Return the number of pods of an attempt by `distributed`; 1 without it."""
    return part.template.workers if part.manifest is None else 1


def name_problem(launch: Launch) -> str:
    """Return why the cluster would refuse the name; "" if it is fine.

    Hosts of several pods are <name>-<index>.
    """
    part = part_of(launch)
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


def _longest_in(name: str, manifest: AnyObject) -> str:
    """Return the longest host name of a template's pods, for kinds whose naming is known."""
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
    last = replicas - 1 if isinstance(replicas, int) else 0
    return f"{name}-{group.get('name', '')}-{last}-{count - 1}"
