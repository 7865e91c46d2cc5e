"""The custom resource Experiment, of Tuner or of Katib: how the controller reads it.

The object is the file: `spec` and `metadata` have the same keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from controller.app.experiments import uid_of_resource
from controller.core.model import KATIB_SUFFIX, Uid
from controller.kube.client import Kind
from controller.kube.custom_resource import EXPERIMENTS as EXPERIMENTS
from controller.kube.custom_resource import KATIB_EXPERIMENTS, KEEP_STUDY
from controller.kube.custom_resource import RESUME as RESUME
from controller.kube.custom_resource import RETRY as RETRY
from controller.kube.objects import KubernetesObject, Raw
from controller.runtime.kubernetes.labels import MANAGED_BY, QUEUE
from controller.spec import SUSPEND, Document, read
from suggest.server import admin

# Keeps a deleted resource until its Jobs have ended. A resource has it only while something runs.
FINALIZER = "tuner.dev/stop"
# Asks to go on with what the cluster has, after the controller's state was lost.
RECOVER = "tuner.dev/recover"
RUNTIME = "kubernetes"
_OF_VERSIONS = ("resourceVersion", "managedFields")  # change with the status


class ExperimentResource(KubernetesObject, total=False):
    """The resource as the controller sees it, whatever its kind.

    name: in the store; that of one of Katib's ends with KATIB_SUFFIX. status: Tuner's own.
    whole: the status of the object, which has Tuner's among others.
    """

    spec: dict[str, Any]
    status: dict[str, Any]
    whole: dict[str, Any]


def is_katib(resource: ExperimentResource) -> bool:
    return resource.get("apiVersion") == KATIB_EXPERIMENTS.api_version


def kind_of(resource: ExperimentResource) -> Kind:
    return KATIB_EXPERIMENTS if is_katib(resource) else EXPERIMENTS


def object_name(resource: ExperimentResource) -> str:
    """Return the name of the object itself."""
    return resource["metadata"]["name"].removesuffix(KATIB_SUFFIX)


def owner_of(resource: ExperimentResource) -> Raw:
    """Return what an owner reference, or an Event about it, needs of the object."""
    kind, metadata = kind_of(resource), resource["metadata"]
    about = {
        "name": object_name(resource),
        "namespace": metadata["namespace"],
        "uid": metadata["uid"],
    }
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": about}


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
    kind, about = kind_of(resource), resource["metadata"]
    spec = {key: value for key, value in resource.get("spec", {}).items() if key != SUSPEND}
    if queue is not None:
        spec = _queued_katib(spec, queue) if is_katib(resource) else _queued(spec, queue)
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": object_name(resource),
            "namespace": about["namespace"],
            "labels": {
                key: value
                for key, value in (about.get("labels") or {}).items()
                if key != MANAGED_BY  # Helm and others set it; its Jobs have the controller's
            },
        },
        "spec": {**spec, "runtime": RUNTIME},
    }


def _queued(spec: dict[str, Any], queue: str) -> dict[str, Any]:
    trial = spec.get("trial")
    return {**spec, "trial": {"queue": queue, **trial}} if isinstance(trial, dict) else spec


def _queued_katib(spec: dict[str, Any], queue: str) -> dict[str, Any]:
    """Return the spec with the label of the queue in its template, unless that has one."""
    match spec:
        case {"trialTemplate": {"trialSpec": dict(job)} as template}:
            about = job.get("metadata") or {}
            labels = {QUEUE: queue, **(about.get("labels") or {})}
            job = {**job, "metadata": {**about, "labels": labels}}
            return {**spec, "trialTemplate": {**template, "trialSpec": job}}
    return spec


def document_of(resource: ExperimentResource, queue: str | None = None) -> Document:
    """Return the experiment. Raises SpecErrors with all problems, in the words of the file.

    queue: as for `file_of`.
    """
    document = read(
        json.dumps(file_of(resource, queue)),
        source=f"experiment {object_name(resource)}",
        is_file=False,
        service=lambda spec: admin.check(spec, runs_here=False),
    )
    return _renamed(document, resource["metadata"]["name"])


def _renamed(document: Document, name: str) -> Document:
    """Return the document with the name that the experiment has in the store."""
    spec = document.spec
    if spec.name == name:
        return document
    metadata = {**cast("Mapping[str, object]", spec.document["metadata"]), "name": name}
    written = {**spec.document, "metadata": metadata}
    return replace(document, spec=replace(spec, name=name, document=written))
