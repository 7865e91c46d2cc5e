"""The custom resource Experiment: how the controller reads it.

The object is the file: `spec` and `metadata` have the same keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from controller.app.experiments import uid_of_resource
from controller.core.model import Uid
from controller.kube.custom_resource import EXPERIMENTS as EXPERIMENTS
from controller.kube.custom_resource import KEEP_STUDY
from controller.kube.custom_resource import RESUME as RESUME
from controller.kube.custom_resource import RETRY as RETRY
from controller.kube.objects import KubernetesObject
from controller.runtime.kubernetes.labels import MANAGED_BY
from controller.spec import SUSPEND, Document, read
from suggest.server import admin

# Keeps a deleted resource until its Jobs have ended. A resource has it only while something runs.
FINALIZER = "tuner.dev/stop"
# Asks to go on with what the cluster has, after the controller's state was lost.
RECOVER = "tuner.dev/recover"
RUNTIME = "kubernetes"
_OF_VERSIONS = ("resourceVersion", "managedFields")  # change with the status


class ExperimentResource(KubernetesObject, total=False):
    spec: dict[str, Any]
    status: dict[str, Any]


def uid_of(resource: ExperimentResource) -> Uid:
    """Return the uid of the experiment that the resource describes."""
    return uid_of_resource(resource["metadata"]["uid"])


def is_suspended(resource: ExperimentResource) -> bool:
    return resource.get("spec", {}).get(SUSPEND) is True


def is_deleted(resource: ExperimentResource) -> bool:
    return "deletionTimestamp" in resource["metadata"]


def asks_the_same(before: ExperimentResource, after: ExperimentResource) -> bool:
    """Return whether two versions of a resource differ at most in their status."""
    return _asked(before) == _asked(after)


def _asked(resource: ExperimentResource) -> object:
    about = {key: value for key, value in resource["metadata"].items() if key not in _OF_VERSIONS}
    return about, resource.get("spec")


def annotation(resource: ExperimentResource, key: str) -> str | None:
    return (resource["metadata"].get("annotations") or {}).get(key)


def keeps_study(resource: ExperimentResource) -> bool:
    return annotation(resource, KEEP_STUDY) not in (None, "false")


def file_of(resource: ExperimentResource, queue: str | None = None) -> Mapping[str, object]:
    """Return what the resource says of its experiment, with the runtime that it runs on.

    queue: the LocalQueue of its trials unless it names another one.
    """
    about = resource["metadata"]
    spec = {key: value for key, value in resource.get("spec", {}).items() if key != SUSPEND}
    trial = spec.get("trial")
    if queue is not None and isinstance(trial, dict):
        spec["trial"] = {"queue": queue, **trial}
    return {
        "apiVersion": EXPERIMENTS.api_version,
        "kind": EXPERIMENTS.kind,
        "metadata": {
            "name": about["name"],
            "namespace": about["namespace"],
            "labels": {
                key: value
                for key, value in (about.get("labels") or {}).items()
                if key != MANAGED_BY  # Helm and others set it; its Jobs have the controller's
            },
        },
        "spec": {**spec, "runtime": RUNTIME},
    }


def document_of(resource: ExperimentResource, queue: str | None = None) -> Document:
    """Return the experiment. Raises SpecErrors with all problems, in the words of the file.

    queue: as for `file_of`.
    """
    return read(
        json.dumps(file_of(resource, queue)),
        source=f"experiment {resource['metadata']['name']}",
        is_file=False,
        service=lambda spec: admin.check(spec, runs_here=False),
    )
