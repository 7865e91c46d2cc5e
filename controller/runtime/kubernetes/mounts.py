"""What a trial finds in its file system beside its image: scratch, checkpoints, shared memory, its volumes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from controller.core.model import short_name
from controller.runtime.protocol import ClusterPart, Launch

Raw = dict[str, Any]

_SHARED_MEMORY = "/dev/shm"


def mounts_of(launch: Launch, part: ClusterPart) -> tuple[list[Raw], list[Raw]]:
    """(volumes of the pod, mounts of its container). Where a volume of the person's own is, none of ours comes."""
    wanted = [_own(name, cast(Raw, volume)) for name, volume in _mapping(part.template.cluster.get("volumes")).items()]
    taken = {mount["mountPath"].rstrip("/") for _, mount in wanted}
    wanted += [pair for pair in _ours(launch, part) if pair[1]["mountPath"] not in taken]
    volumes = {volume["name"]: volume for volume, _ in wanted}
    return list(volumes.values()), [mount for _, mount in wanted]


def _own(name: str, volume: Raw) -> tuple[Raw, Raw]:
    read_only = {"readOnly": True} if volume.get("readOnly") else {}
    if claim := volume.get("claim"):
        source: Raw = {"persistentVolumeClaim": {"claimName": claim, **read_only}}
    elif nfs := volume.get("nfs"):
        source = {"nfs": {**nfs, **read_only}}
    else:
        source = {"emptyDir": volume.get("emptyDir") or {}}
    return {"name": name, **source}, {"name": name, "mountPath": volume["mount"], **read_only}


def _ours(launch: Launch, part: ClusterPart) -> list[tuple[Raw, Raw]]:
    cluster = part.template.cluster
    pairs = [_scratch("tuner-tmp", "/tmp"), _scratch("tuner-output", launch.env["TUNER_OUTPUT_DIR"])]
    if size := cluster.get("shm"):
        shared = {"name": "tuner-shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
        pairs.append((shared, {"name": "tuner-shm", "mountPath": _SHARED_MEMORY}))
    at = launch.env["TUNER_CHECKPOINT_DIR"]
    claim = _mapping(cluster.get("checkpoints")).get("claim")
    if claim is None:
        return [*pairs, _scratch("tuner-checkpoints", at)]
    # The trial's own folder of the experiment's own: the kubelet makes both, so the path is there as on a laptop.
    folder = f"{short_name(part.experiment, part.uid)}/{at.rpartition('/')[2]}"
    kept = {"name": "tuner-checkpoints", "persistentVolumeClaim": {"claimName": claim}}
    return [*pairs, (kept, {"name": "tuner-checkpoints", "mountPath": at, "subPath": folder})]


def _scratch(name: str, at: str) -> tuple[Raw, Raw]:
    return {"name": name, "emptyDir": {}}, {"name": name, "mountPath": at}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
