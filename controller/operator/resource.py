"""The custom resource Experiment, of Tuner or of Katib: how the controller reads it.

The object is the file: `spec` and `metadata` have the same keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast

from controller.app import cluster_changes
from controller.core.model import KATIB_SUFFIX, ExperimentState, Uid, uid_of_resource
from controller.kube.client import Kind
from controller.kube.custom_resource import EXPERIMENTS as EXPERIMENTS
from controller.kube.custom_resource import KATIB_EXPERIMENTS, KEEP_STUDY
from controller.kube.custom_resource import RESUME as RESUME
from controller.kube.custom_resource import RETRY as RETRY
from controller.kube.objects import KubernetesObject, Raw
from controller.operator.katib_volume import with_volume
from controller.runtime.kubernetes.labels import annotation
from controller.spec import SUSPEND, ConfigMapOf, Document, from_document, read
from suggest.server import admin

# Keeps a deleted resource until its Jobs have ended. A resource has it only while something runs.
FINALIZER = "tuner.dev/stop"
# Asks to go on with what the cluster has, after the controller's state was lost.
RECOVER = "tuner.dev/recover"
NO_PRICES: Mapping[str, float] = MappingProxyType({})
_OF_VERSIONS = ("resourceVersion", "managedFields")  # change with the status


@dataclass(frozen=True, slots=True)
class FromCluster:
    """What other objects of the cluster add to a resource.

    queue: the LocalQueue of its trials unless it names another one. config_map_of: see `read`.
    """

    queue: str | None = None
    config_map_of: ConfigMapOf | None = None


NOTHING_ADDED = FromCluster()


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


def says_it_runs(resource: ExperimentResource) -> bool:
    """Return whether its status says that it runs, by this controller or by an earlier one."""
    return (resource.get("status") or {}).get("state") == ExperimentState.RUNNING.value


def asks_the_same(before: ExperimentResource, after: ExperimentResource) -> bool:
    """Return whether two versions of a resource differ at most in their status."""
    return _asked(before) == _asked(after)


def _asked(resource: ExperimentResource) -> object:
    about = {key: value for key, value in resource["metadata"].items() if key not in _OF_VERSIONS}
    return about, resource.get("spec")


def keeps_study(resource: ExperimentResource) -> bool:
    return annotation(resource, KEEP_STUDY) not in (None, "false")


def file_of(resource: ExperimentResource) -> Raw:
    """Return what the resource says of its experiment, with the runtime that it runs on."""
    kind, about = kind_of(resource), resource["metadata"]
    spec = {key: value for key, value in resource.get("spec", {}).items() if key != SUSPEND}
    if is_katib(resource):
        spec = dict(with_volume(object_name(resource), spec))
    return cluster_changes.file_of(kind, object_name(resource), about, spec)


def document_of(
    resource: ExperimentResource,
    added: FromCluster = NOTHING_ADDED,
    *,
    prices: Mapping[str, float] = NO_PRICES,
) -> Document:
    """Return the experiment. Raises SpecErrors with all problems, in the words of the file.

    prices: of resources, instead of those that it gives them.
    """
    file = file_of(resource)
    if _counts_money(file["spec"]):
        file = {**file, "spec": _priced(file["spec"], prices)}
    document = read(
        json.dumps(file),
        source=f"experiment {object_name(resource)}",
        is_file=False,
        service=lambda spec: admin.check(spec, runs_here=False),
        config_map_of=added.config_map_of,
    )
    return _completed(document, resource["metadata"]["name"], added.queue, prices)


def _counts_money(spec: Mapping[str, Any]) -> bool:
    """Return whether an experiment asks for its cost, so that its trials must have a price."""
    budget = spec.get("budget")
    return "prices" in spec or (isinstance(budget, Mapping) and "cost" in budget)


def _priced(spec: Mapping[str, Any], prices: Mapping[str, float]) -> Mapping[str, Any]:
    """Return the spec with these prices, and those that it gives other resources."""
    own = spec.get("prices", {})
    return {**spec, "prices": {**own, **prices}} if prices and isinstance(own, Mapping) else spec


def _completed(
    document: Document, name: str, queue: str | None, prices: Mapping[str, float]
) -> Document:
    """Return the document with the name that the experiment has in the store, queue and prices."""
    given = cast("Mapping[str, Any]", document.spec.document)
    spec = _priced(given["spec"], prices)
    if queue is not None and "queue" not in spec["trial"]:
        spec = {**spec, "trial": {**spec["trial"], "queue": queue}}
    if spec is given["spec"] and document.spec.name == name:
        return document
    written = {**given, "metadata": {**given["metadata"], "name": name}, "spec": spec}
    completed = replace(from_document(written), is_katib=document.spec.is_katib)
    return replace(document, spec=completed)
