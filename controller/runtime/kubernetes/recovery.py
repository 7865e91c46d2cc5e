"""Find what a cluster still has of an experiment whose database is lost:
`tuner resume --from-cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from controller.core.model import FINAL
from controller.kube.client import CONFIG_MAPS, JOBS, Kind, KubernetesClient
from controller.kube.objects import Raw
from controller.runtime.kubernetes.kinds import kind_of
from controller.runtime.kubernetes.labels import (
    EXPERIMENT,
    MANAGED_BY,
    PARAMETERS,
    UID,
    annotation,
    attempt_of,
)
from controller.runtime.kubernetes.lease import end_on_cluster, wait_until_free
from controller.runtime.provider import RecoveredExperiment
from suggest.errors import FailedPrecondition, NotFound
from suggest.nesting import load_json
from suggest.space import Assignment


async def recover(
    name: str, *, context: str | None, namespace: str | None, print_line: Callable[[str], None]
) -> RecoveredExperiment:
    """Find what a cluster still has of an experiment.

    Raises:
        NotFound: The cluster has no such experiment.
        FailedPrecondition: There are several of that name, a controller still runs it, or it has
        ended.
    """
    async with await KubernetesClient.connect(context) as client:
        searched = namespace or client.default_namespace
        labels = f"{EXPERIMENT}={name},{MANAGED_BY}=tuner"
        anchors, _ = await client.list(CONFIG_MAPS, searched, labels=labels)
        if len(anchors) > 1:
            anchors = [
                each for each in anchors if not await end_on_cluster(client, searched, each)
            ] or anchors
        anchor = _only(anchors, name, searched)
        await wait_until_free(client, searched, anchor["metadata"]["name"], print_line=print_line)
        if ending := await end_on_cluster(client, searched, anchor):
            raise FailedPrecondition(
                f"{ending}. Its trials and their results are there. To run it again, choose "
                f"another metadata.name; to "
                f"delete what the cluster keeps of it: kubectl -n {searched} delete configmap "
                f"{anchor['metadata']['name']}"
            )
        uid = anchor["metadata"]["labels"][UID]
        document = load_json(anchor["data"]["experiment"])
        objects = await _objects(client, searched, uid, document)
        _refuse_ended(objects, name, anchor["metadata"]["name"], searched)
        return RecoveredExperiment(uid, client.context, document, _trials(objects))


async def trials_on_cluster(
    client: KubernetesClient, namespace: str, uid: str, document: Mapping[str, object]
) -> dict[int, tuple[Assignment, list[int]]]:
    """Return the parameters and attempt numbers of each trial that has an object."""
    return _trials(await _objects(client, namespace, uid, cast(Raw, document)))


async def _objects(
    client: KubernetesClient, namespace: str, uid: str, document: Raw
) -> Sequence[Raw]:
    kind = await _kind(client, document)
    objects, _ = await client.list(kind, namespace, labels=f"{UID}={uid}")
    return objects


def _only(anchors: Sequence[Raw], name: str, namespace: str) -> Raw:
    if not anchors:
        raise NotFound(
            f"namespace {namespace} has no objects of an experiment {name}; "
            f"see kubectl -n {namespace} get configmaps -l {MANAGED_BY}=tuner"
        )
    if len(anchors) > 1:
        names = ", ".join(anchor["metadata"]["name"] for anchor in anchors)
        raise FailedPrecondition(
            f"namespace {namespace} has several experiments {name} ({names}); delete the "
            f"ConfigMap of those that ended"
        )
    return anchors[0]


async def _kind(client: KubernetesClient, document: Raw) -> Kind:
    """Return the kind of object that the experiment's attempts are."""
    match document["spec"]["trial"].get("template"):
        case {"apiVersion": str(), "kind": str()} as template:
            return await kind_of(client, cast(Raw, template))
    return JOBS


def _refuse_ended(objects: Sequence[Raw], name: str, anchor: str, namespace: str) -> None:
    """Raise FailedPrecondition if the final stage runs.

    The search has ended, and the values of its trials are lost.
    """
    for obj in objects:
        key = attempt_of(obj)
        if key is not None and key[0] is FINAL:
            running = obj["metadata"]["name"]
            raise FailedPrecondition(
                f"the search of {name} has ended, and {running} is its final stage: its trials' "
                f"outcomes are lost with "
                f"the database, so it cannot be resumed. The Job keeps running: kubectl -n "
                f"{namespace} logs -f "
                f"job/{running}. To start over, delete all its objects: kubectl -n {namespace} "
                f"delete configmap "
                f"{anchor}"
            )


def _trials(objects: Sequence[Raw]) -> dict[int, tuple[Assignment, list[int]]]:
    by_number: dict[int, tuple[Assignment, list[int]]] = {}
    for obj in objects:
        key = attempt_of(obj)
        parameters = annotation(obj, PARAMETERS)
        if key is None or parameters is None:
            continue
        trial, attempt = key
        if trial is not FINAL:
            _, attempts = by_number.setdefault(trial, (load_json(parameters), []))
            attempts.append(attempt)
    return by_number
