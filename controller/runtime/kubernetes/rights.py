"""The rights that the runtime needs on a cluster.

deploy/rbac.yaml grants RIGHTS and QUEUE_RIGHTS; a preflight check asks for those that are needed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from controller.runtime.kubernetes.client import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    LEASES,
    LIMIT_RANGES,
    PODS,
    QUOTAS,
    SERVICES,
    Kind,
    KubernetesClient,
)
from controller.runtime.kubernetes.errors import ApiError
from controller.runtime.kubernetes.kinds import kind_of, preset_of
from controller.runtime.kubernetes.kueue import served
from controller.runtime.kubernetes.labels import KUEUE_GROUP, queue_of
from controller.runtime.kubernetes.objects import Raw


@dataclass(frozen=True, slots=True)
class Right:
    """without: what is lost without it; "" = nothing works."""

    kind: Kind
    verbs: tuple[str, ...]
    subresource: str = ""
    without: str = ""

    @property
    def group(self) -> str:
        return self.kind.api_version.rpartition("/")[0]

    @property
    def resource(self) -> str:
        return self.kind.plural + (f"/{self.subresource}" if self.subresource else "")

    def rule(self, verbs: tuple[str, ...]) -> str:
        """The line that a Role lacks."""
        group = self.group or '""'
        return f"- {{apiGroups: [{group}], resources: [{self.resource}], verbs: [{', '.join(verbs)}]}}"


_RULES = Kind("authorization.k8s.io/v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", False)
ALL_OF_AN_ATTEMPT = ("create", "get", "list", "watch", "delete")
RIGHTS = (
    Right(CONFIG_MAPS, ("create", "get", "delete")),
    Right(CONFIG_MAPS, ("list",), without="tuner resume --from-cluster"),
    Right(JOBS, ALL_OF_AN_ATTEMPT),
    Right(PODS, ("list", "watch", "delete")),
    Right(PODS, ("get",), "log"),
    Right(SERVICES, ("create", "get", "delete"), without="spec.trial.distributed"),
    Right(LEASES, ("create", "get", "patch"), without="noticing a second controller of the same experiment"),
    Right(QUOTAS, ("list", "watch"), without="waiting for room before a Job is made"),
    Right(EVENTS, ("list", "watch"), without="why a pod is refused"),
    Right(LIMIT_RANGES, ("list",), without="what never fits a LimitRange, before anything runs"),
)
# Asked for where a file names a queue.
QUEUE_RIGHTS = (
    Right(Kind(f"{KUEUE_GROUP}/v1beta1", "workloads", "Workload"), ("list", "watch"),
          without="why Kueue keeps a trial waiting"),
    Right(Kind(f"{KUEUE_GROUP}/v1beta1", "localqueues", "LocalQueue"), ("list",),
          without="whether spec.trial.queue exists, before anything runs"),
)  # fmt: skip


async def missing_rights(
    client: KubernetesClient, namespace: str, rights: Sequence[Right] = RIGHTS
) -> list[tuple[Right, tuple[str, ...]]]:
    """Those with verbs that the server denies us. Raises what the client raises.

    All rules are read at once; what they do not grant is asked for one by one, since others than rules may grant it.
    """
    rules = await _rules(client, namespace)

    async def denied(right: Right) -> tuple[Right, tuple[str, ...]]:
        open_verbs = [verb for verb in right.verbs if not any(_grants(rule, right, verb) for rule in rules)]
        asked = (client.review(verb, right.kind, namespace, subresource=right.subresource) for verb in open_verbs)
        allowed = await asyncio.gather(*asked)
        return right, tuple(verb for verb, may in zip(open_verbs, allowed, strict=True) if not may)

    return [(right, verbs) for right, verbs in await asyncio.gather(*map(denied, rights)) if verbs]


async def rights_to(client: KubernetesClient, objects: Sequence[Raw]) -> list[Right]:
    """What trials need beyond RIGHTS: the kind of their template, what its operator makes, their queue. None to a kind
    that the server lacks."""
    found = []
    for manifest in objects:
        with contextlib.suppress(ApiError):
            kind = await kind_of(client, manifest)
            if kind in (JOBS, SERVICES):
                continue
            found.append(Right(kind, ALL_OF_AN_ATTEMPT))
            if (preset := preset_of(manifest)) is not None and preset.between is not None:
                found.append(
                    Right(Kind(*preset.between), ("get",), without=f"why the pods of a {kind.kind} are refused")
                )
    return found + (list(QUEUE_RIGHTS) if any(map(queue_of, objects)) and await served(client, "Workload") else [])


async def _rules(client: KubernetesClient, namespace: str) -> list[Raw]:
    """Those that hold for us without exceptions; [] where the server does not tell."""
    body = {"apiVersion": _RULES.api_version, "kind": _RULES.kind, "spec": {"namespace": namespace}}
    try:
        answer = await client.create(_RULES, None, body)
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return []
    return [rule for rule in answer["status"].get("resourceRules") or () if not rule.get("resourceNames")]


def _grants(rule: Raw, right: Right, verb: str) -> bool:
    asked = (("verbs", verb), ("apiGroups", right.group), ("resources", right.resource))
    return all({"*", wanted} & set(rule.get(key) or ()) for key, wanted in asked)


async def list_allowed(client: KubernetesClient, kind: Kind, namespace: str | None) -> list[Raw] | None:
    """None: we may not look."""
    try:
        found, _ = await client.list(kind, namespace)
    except ApiError as error:
        if error.status != 403:
            raise
        return None
    return found
