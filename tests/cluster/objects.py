"""Objects that tests of a cluster create, and accessors of their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.api import BATCH, CORE, Api, Object
from tests.cluster.kwok import GPU


def job(
    name: str,
    *,
    gpus: int = 1,
    image: str = "trial",
    command: Sequence[str] = (),
    limits: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **environment: str,
) -> Object:
    """Return a Job with one pod and no retry; `environment` determines the life
    of a fake pod (see kwok.py).
    """
    container: dict[str, Any] = {
        "name": "trial",
        "image": image,
        "imagePullPolicy": "Never",
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "resources": {"limits": {**({GPU: str(gpus)} if gpus else {}), **(limits or {})}},
    }
    if command:
        container["command"] = list(command)
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    spec = {
        "backoffLimit": 0,
        "template": {"metadata": {"labels": dict(labels or {})}, "spec": pod},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def jobs(namespace: str, name: str = "") -> str:
    return f"{BATCH}/namespaces/{namespace}/jobs" + (f"/{name}" if name else "")


def pods(namespace: str, name: str = "") -> str:
    return f"{CORE}/namespaces/{namespace}/pods" + (f"/{name}" if name else "")


def conditions(found: Object) -> dict[str, str]:
    """Return type and reason of each condition that is true."""
    given = found.get("status", {}).get("conditions") or ()
    return {one["type"]: one.get("reason", "") for one in given if one["status"] == "True"}


def ended(job: Object) -> dict[str, str]:
    """Return the condition that ended it, if any."""
    return {
        kind: reason for kind, reason in conditions(job).items() if kind in ("Complete", "Failed")
    }


def pod_of(api: Api, namespace: str, job: str) -> Object | None:
    return next(
        iter(api.items(pods(namespace), labelSelector=f"batch.kubernetes.io/job-name={job}")), None
    )


def terminated(pod: Object) -> Object:
    """Return the `terminated` state of its first container; empty while it has not ended."""
    for status in pod.get("status", {}).get("containerStatuses") or ():
        return dict(status["state"].get("terminated") or {})
    return {}


def quota(name: str, **hard: str) -> Object:
    """`hard`: resource names of a ResourceQuota, with _ in place of dots, dashes and slashes."""
    return {
        "metadata": {"name": name},
        "spec": {"hard": {_quota_name(key): value for key, value in hard.items()}},
    }


def disk(name: str, namespace: str, folder: Path, *, claim: str = "tuner-studies") -> Object:
    """Create a volume on this machine for the claim, in place of a storage class."""
    return {
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": namespace, "name": claim},
        },
    }


def _quota_name(key: str) -> str:
    return {"gpus": f"requests.{GPU}", "jobs": "count/jobs.batch"}.get(key, key.replace("_", "."))
