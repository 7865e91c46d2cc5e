"""The PersistentVolumeClaim that Katib has beside an experiment. Pure.

For `pbt` it holds the folders of the checkpoints, and Katib mounts it in every trial. For the
resumePolicy FromVolume, Katib keeps the state of its suggestion service there. Tuner's is in its
store, but Katib's clients look for the claim.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from controller.kube.objects import Raw
from controller.runtime.kubernetes.kinds import append

FROM_VOLUME = "FromVolume"
_PBT = "pbt"
_VOLUME = "suggestion-volume"


def claim_of(experiment: str, spec: Mapping[str, Any]) -> Raw | None:
    """Return the claim of an experiment, without its owner; None if it has none."""
    match spec.get("algorithm"):
        case {"algorithmName": str(algorithm)}:
            about = {"name": f"{experiment}-{algorithm}"}
        case _:
            return None
    if with_volume(experiment, spec) is not spec:
        return {"metadata": about, "spec": _asked("ReadWriteMany", "5Gi")}
    if spec.get("resumePolicy") != FROM_VOLUME:
        return None
    # No storage class, and a volume that does not exist: it takes up no storage.
    nowhere = {"storageClassName": "", "volumeName": "nothing-is-stored"}
    return {"metadata": about, "spec": {**_asked("ReadWriteOnce", "1Mi"), **nowhere}}


def _asked(mode: str, size: str) -> Raw:
    return {"accessModes": [mode], "resources": {"requests": {"storage": size}}}


def with_volume(experiment: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the spec of pbt with the volume of the checkpoints in its template.

    One that mounts a volume there itself is returned as it is, like that of another algorithm.
    """
    folder = _trial_dir(spec)
    if folder is None:
        return spec
    whole = copy.deepcopy(spec)
    found = _primary(whole)
    if found is None:
        return spec
    pod, container = found
    if any(_is_at(mount, folder) for mount in container.get("volumeMounts") or ()):
        return spec
    claim = {"claimName": f"{experiment}-{_PBT}"}
    volume = {"name": _VOLUME, "persistentVolumeClaim": claim}
    append(pod, "volumes", volume)
    append(container, "volumeMounts", {"name": _VOLUME, "mountPath": folder})
    return whole


def _primary(spec: Mapping[str, Any]) -> tuple[Raw, Raw] | None:
    """Return the pod in the template of a Job, and its primary container."""
    match spec:
        case {
            "trialTemplate": {
                "primaryContainerName": name,
                "trialSpec": {
                    "kind": "Job",
                    "spec": {"template": {"spec": {"containers": list(containers)} as pod}},
                },
            }
        }:
            pass
        case _:
            return None
    for container in containers:
        if isinstance(container, dict) and container.get("name") == name:
            return pod, container
    return None


def _is_at(mount: object, folder: str) -> bool:
    match mount:
        case {"mountPath": str(path)}:
            return path.rstrip("/") == folder.rstrip("/")
    return False


def _trial_dir(spec: Mapping[str, Any]) -> str | None:
    """Return where a trial of pbt expects its checkpoint."""
    match spec.get("algorithm"):
        case {"algorithmName": "pbt", "algorithmSettings": list(settings)}:
            pass
        case _:
            return None
    for setting in settings:
        match setting:
            case {"name": "suggestion_trial_dir", "value": str(folder)}:
                return folder
    return None
