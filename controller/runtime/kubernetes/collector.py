"""The sidecar that reads a trial's metrics on a cluster, and its state in a pod. Pure.

It is a native sidecar, an init container with `restartPolicy: Always`: it starts before the trial,
does not keep the Job from completing, and is sent SIGTERM once the trial has ended. Its log has the
collected lines, which the controller follows like the trial's own. It needs no shell, no shared
process namespace and no right on the cluster, and mounts only the volume with the files, read-only.
`trial_image/collector` is its program.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import assert_never

from controller.core.model import (
    Collection,
    KatibReports,
    MetricsFile,
    MetricsFormat,
    PrometheusEndpoint,
)
from controller.kube.objects import ContainerStatus, Pod, Raw
from controller.runtime.kubernetes.kinds import (
    JOB,
    append,
    at,
    containers_in,
    mappings,
    pod_steps,
    preset_of,
)
from controller.runtime.kubernetes.labels import COLLECTOR_CONTAINER
from controller.runtime.kubernetes.launch import REPORTS_ADDRESS
from controller.runtime.trial_variables import DB_MANAGER_NAMES

# the trial's output folder, and its endpoint's port unless the file has another
OUTPUT, PORT = "/tuner/output", 8080
VOLUME, NAMESPACE_VOLUME = "tuner-metrics", "tuner-namespace"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
# Limits equal requests, so that the pod keeps its quality of service.
# It takes 5 MB and a hundredth of a CPU.
RESOURCES = {"cpu": "100m", "memory": "32Mi"}


def has_collector(obj: Raw) -> bool:
    """Whether the user's pod template, or a change of one on the cluster, has the sidecar."""
    preset = preset_of(obj) or JOB
    pods = [at(template, "spec") for template in preset.templates(copy.deepcopy(obj))]
    for pod in (*pods, *pod_steps(obj)):
        containers = mappings(at(pod, "initContainers"))
        if any(container.get("name") == COLLECTOR_CONTAINER for container in containers):
            return True
    return False


def add_collector(spec: Raw, trial: Raw, collection: Collection) -> None:
    """Add the sidecar, and the volume that it shares with the trial's container.

    spec: of a pod, or a Workflow's template. The sidecar's image is pulled by the same policy as
    the trial's.
    """
    mounts: list[Raw] = []
    if isinstance(collection.source, MetricsFile):
        mount = _shared_mount(spec, trial, str(PurePosixPath(OUTPUT, collection.source.folder)))
        mounts = [{**mount, "readOnly": True}]
    sidecar = {
        "name": COLLECTOR_CONTAINER,
        "image": collection.image,
        **({"imagePullPolicy": trial["imagePullPolicy"]} if "imagePullPolicy" in trial else {}),
        "args": list(_arguments(collection)),
        "restartPolicy": "Always",
        "resources": {"requests": RESOURCES, "limits": RESOURCES},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({"volumeMounts": mounts} if mounts else {}),
    }
    if isinstance(collection.source, KatibReports):
        # Katib's SDK reports to a name, which is the sidecar's own address
        # in this pod: nothing leaves it.
        alias = {"ip": REPORTS_ADDRESS.partition(":")[0], "hostnames": list(DB_MANAGER_NAMES)}
        append(spec, "hostAliases", alias)
        if spec.get("automountServiceAccountToken") is False:
            _show_namespace(spec)
    # First, so that it also reads what the user's init containers write.
    spec["initContainers"] = [sidecar, *(spec.get("initContainers") or ())]


def _show_namespace(spec: Raw) -> None:
    """Give the containers the file with their namespace.

    Katib's SDK reads it where a token would be mounted.

    A container with a volume of its own there, such as a projected token, keeps it.
    """
    without = []
    for container in containers_in(spec):
        mounts = container.get("volumeMounts") or ()
        if all(mount["mountPath"].rstrip("/") != _ACCOUNT for mount in mounts):
            without.append(container)
    if not without:
        return
    field = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    append(spec, "volumes", {"name": NAMESPACE_VOLUME, "downwardAPI": {"items": [field]}})
    mount = {"name": NAMESPACE_VOLUME, "mountPath": _ACCOUNT, "readOnly": True}
    for each in without:
        append(each, "volumeMounts", mount)


def _arguments(collection: Collection) -> Iterator[str]:
    match collection.source:
        case MetricsFile(format=MetricsFormat.TENSORBOARD) as source:
            yield from ("tensorboard", str(PurePosixPath(OUTPUT, source.path)), *collection.names)
        case MetricsFile() as source:
            yield from ("file", str(PurePosixPath(OUTPUT, source.path)))
        case PrometheusEndpoint() as endpoint:
            yield from ("prometheus", str(endpoint.port or PORT), endpoint.path, *collection.names)
        case KatibReports():
            yield from ("reports", REPORTS_ADDRESS)
        case _:
            assert_never(collection.source)


def _shared_mount(spec: Raw, trial: Raw, folder: str) -> Raw:
    """Return the mount of the trial's container that holds the folder; a new one if there is none.

    A volume of the user's that holds it is shared. Below one of ours the folder would be missing,
    so it is a volume of its own.
    """
    mounts: list[Raw] = trial.get("volumeMounts") or []
    around = [mount for mount in mounts if PurePosixPath(folder).is_relative_to(mount["mountPath"])]
    nearest = max(around, key=lambda mount: len(mount["mountPath"]), default=None)
    if nearest is not None and (
        nearest["mountPath"] == folder or not nearest["name"].startswith("tuner-")
    ):
        return nearest
    mount = {"name": VOLUME, "mountPath": folder}
    append(spec, "volumes", {"name": VOLUME, "emptyDir": {}})
    append(trial, "volumeMounts", mount)
    return mount


def collector_status(pod: Pod) -> ContainerStatus:
    """Return the status of the sidecar; {} until the kubelet has reported one."""
    statuses: list[ContainerStatus] = pod.get("status", {}).get("initContainerStatuses") or []
    return next(
        (status for status in statuses if status.get("name") == COLLECTOR_CONTAINER),
        ContainerStatus(),
    )
