"""What the pods of a file lean on, looked up: secrets, claims, accounts, classes, images, room. Changes nothing.

A thing that may not be looked at is no finding: trials need fewer rights than this, and start without.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from controller.runtime.kubernetes.checkup import lacking
from controller.runtime.kubernetes.client import (
    CONFIG_MAPS,
    LIMIT_RANGES,
    NODES,
    QUOTAS,
    SECRETS,
    Client,
    Kind,
)
from controller.runtime.kubernetes.demand import demand_of
from controller.runtime.kubernetes.errors import ApiError
from controller.runtime.kubernetes.findings import Finding, Level, fail, ok, warn
from controller.runtime.kubernetes.kueue import NOT_INSTALLED, served
from controller.runtime.kubernetes.labels import queue_of
from controller.runtime.kubernetes.pod_status import condition
from controller.runtime.kubernetes.rehearsal import Answer, Verdict, pods_of, rehearse
from controller.runtime.kubernetes.resource_quota import never_fits
from controller.runtime.kubernetes.rights import list_allowed, missing_rights, rights_to

Raw = dict[str, Any]

CLAIMS = Kind("v1", "persistentvolumeclaims", "PersistentVolumeClaim")
ACCOUNTS = Kind("v1", "serviceaccounts", "ServiceAccount")
CLASSES = Kind("scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", namespaced=False)
_OURS = ("system-node-critical", "system-cluster-critical")


@dataclass(frozen=True, slots=True)
class Leaned:
    """key: which one of a secret's or a config map's; "" = all of it."""

    kind: Kind
    name: str
    key: str = ""


async def check_needs(client: Client, namespace: str, objects: Sequence[Raw], *, anchor: Raw) -> AsyncIterator[Finding]:
    """objects: one attempt's. Raises what the client raises."""
    for right, verbs in await missing_rights(client, namespace, await rights_to(client, objects)):
        yield lacking(right, verbs, namespace)
    for queue in filter(None, map(queue_of, objects)):
        if (found := await check_queue(client, namespace, queue)) is not None:
            yield found
    pods = pods_of(objects)
    nodes = await list_allowed(client, NODES, None)
    for image, policy in dict.fromkeys(image for pod in pods for image in _images(pod["spec"])):
        yield _image(image, policy, nodes)
    for leaned in dict.fromkeys(leaned for pod in pods for leaned in _leaned(pod["spec"])):
        found = await _look(client, namespace, leaned)
        if found is not None:
            yield found
    never = await no_room(client, namespace, objects, nodes=nodes or [])
    yield (
        fail("room", never) if never else ok("room", "a trial fits" + ("" if nodes else ", as far as is seen of nodes"))
    )
    for verdict in await rehearse(client, namespace, [anchor, *objects, *pods]):
        yield _told(verdict)


async def check_queue(client: Client, namespace: str, queue: str) -> Finding | None:
    """Whether Kueue can admit what the LocalQueue of that name is given; None: we may not look. Raises what the client
    raises."""
    what = f"queue {queue}"
    kind = await served(client, "LocalQueue")
    if kind is None:
        return fail(what, NOT_INSTALLED)
    queues = await list_allowed(client, kind, namespace)
    if queues is None:
        return None
    by_name = {each["metadata"]["name"]: each for each in queues}
    if queue not in by_name:
        others = ", ".join(sorted(by_name)) or "none"
        return fail(
            what,
            f"LocalQueue {queue} is not in {namespace}; create it, or name another one in spec.trial.queue: {others}",
        )
    local = by_name[queue]
    cluster_queue = (local.get("spec") or {}).get("clusterQueue", "")
    active = condition(local, "Active") or {}
    if active.get("status") == "False":
        of = "" if active.get("reason") == "Stopped" else f"ClusterQueue {cluster_queue}: "
        return warn(what, f"{of}{active.get('message') or active.get('reason')}; trials wait until it is active")
    return ok(what, f"ClusterQueue {cluster_queue}")


async def no_queue(client: Client, namespace: str, objects: Sequence[Raw]) -> str:
    """Why Kueue will admit none of them before somebody changes the file or the cluster; "" if it may, or is unknown.
    Raises what the client raises."""
    found = [await check_queue(client, namespace, queue) for queue in filter(None, map(queue_of, objects))]
    return "; ".join(each.detail for each in found if each is not None and each.level is Level.FAIL)


async def no_room(client: Client, namespace: str, objects: Sequence[Raw], *, nodes: Sequence[Raw]) -> str:
    """Why an attempt as a whole can never run, as far as we may look; "" if it can."""
    quotas = await list_allowed(client, QUOTAS, namespace) or []
    limit_ranges = await list_allowed(client, LIMIT_RANGES, namespace) or []
    return never_fits(demand_of(objects), quotas, limit_ranges, nodes)


def _told(verdict: Verdict) -> Finding:
    what = f"dry run {verdict.kind}"
    match verdict.answer:
        case Answer.ACCEPTED:
            return ok(what, verdict.answer.value)
        case Answer.WAITS | Answer.UNCHECKED:
            return warn(what, f"{verdict.answer.value}: {verdict.why}")
        case Answer.REFUSED:
            return fail(what, f"{verdict.answer.value}: {verdict.why}")
        case Answer.NOT_ALLOWED:
            return fail(what, f"{verdict.answer.value}: {verdict.why}", rights=True)


def _images(spec: Raw) -> Iterator[tuple[str, str]]:
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        yield container.get("image", ""), container.get("imagePullPolicy", "")


def _image(image: str, policy: str, nodes: Sequence[Raw] | None) -> Finding:
    """Registries are the nodes' business, with their own credentials: what can be seen from here is what they have."""
    if not image:
        return fail("image", "a container names none; set spec.trial.image")
    having = sum(image in _names_on(node) for node in nodes or ())
    if having:
        return ok("image", f"{image} is on {having} of {len(nodes or ())} nodes already")
    if policy == "Never":
        return warn("image", f"{image} is seen on no node, and imagePullPolicy: Never pulls none; load it there")
    return ok("image", f"{image} is pulled by the first trial; only then does it show whether it can be")


def _names_on(node: Raw) -> set[str]:
    """As people write them, and as the runtime spells them out."""
    images = node.get("status", {}).get("images") or ()
    names = {name for image in images for name in image.get("names") or ()}
    return names | {name.removeprefix("docker.io/").removeprefix("library/") for name in names}


def _leaned(spec: Raw) -> Iterator[Leaned]:
    for secret in spec.get("imagePullSecrets") or ():
        yield Leaned(SECRETS, secret.get("name", ""))
    for volume in spec.get("volumes") or ():
        match volume:
            case {"persistentVolumeClaim": {"claimName": str(name)}}:
                yield Leaned(CLAIMS, name)
            case {"secret": {"secretName": str(name)} as source} if not source.get("optional"):
                yield Leaned(SECRETS, name)
            case {"configMap": {"name": str(name)} as source} if not source.get("optional"):
                yield Leaned(CONFIG_MAPS, name)
    if account := spec.get("serviceAccountName"):
        yield Leaned(ACCOUNTS, account)
    if (chosen := spec.get("priorityClassName")) and chosen not in _OURS:
        yield Leaned(CLASSES, chosen)
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        yield from _of_environment(container)


def _of_environment(container: Raw) -> Iterator[Leaned]:
    for each in (*(container.get("env") or ()), *(container.get("envFrom") or ())):
        source = each.get("valueFrom") or each
        for word, kind in (("secret", SECRETS), ("configMap", CONFIG_MAPS)):
            ref = source.get(f"{word}KeyRef") or source.get(f"{word}Ref")
            if ref and not ref.get("optional"):
                yield Leaned(kind, ref.get("name", ""), ref.get("key", ""))


async def _look(client: Client, namespace: str, leaned: Leaned) -> Finding | None:
    what = f"{leaned.kind.kind} {leaned.name}"
    where = f" in {namespace}" if leaned.kind.namespaced else ""
    try:
        found = await client.get(leaned.kind, namespace if leaned.kind.namespaced else None, leaned.name)
    except ApiError as error:
        if error.status == 404:
            return fail(what, f"is not there{where}; make it, or correct the file")
        if error.status != 403:
            raise
        return None
    if leaned.key and leaned.key not in {**(found.get("data") or {}), **(found.get("binaryData") or {})}:
        keys = ", ".join(sorted(found.get("data") or {})) or "none"
        return fail(what, f"has no key {leaned.key}; its keys are {keys}")
    phase = found.get("status", {}).get("phase", "") if leaned.kind is CLAIMS else ""
    if phase == "Lost":
        return fail(what, "has lost its volume; make another one")
    return ok(what, "is there" + (f", {phase}" if phase else ""))
