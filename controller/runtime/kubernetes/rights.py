"""What the runtime does on a cluster, as rights: deploy/rbac.yaml grants these, and a check-up asks for each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from controller.runtime.kubernetes.client import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    LIMIT_RANGES,
    PODS,
    QUOTAS,
    SERVICES,
    Client,
    Kind,
)


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


ALL_OF_AN_ATTEMPT = ("create", "get", "list", "watch", "delete")
RIGHTS = (
    Right(CONFIG_MAPS, ("create", "get", "delete")),
    Right(CONFIG_MAPS, ("list",), without="tuner resume --from-cluster"),
    Right(JOBS, ALL_OF_AN_ATTEMPT),
    Right(PODS, ("list", "watch", "delete")),
    Right(PODS, ("get",), "log"),
    Right(SERVICES, ("create", "get", "delete"), without="spec.trial.distributed"),
    Right(QUOTAS, ("list", "watch"), without="waiting for room before a Job is made"),
    Right(EVENTS, ("list", "watch"), without="why a pod is refused"),
    Right(LIMIT_RANGES, ("list",), without="what never fits a LimitRange, before anything runs"),
)


async def missing_rights(
    client: Client, namespace: str, rights: Sequence[Right] = RIGHTS
) -> list[tuple[Right, tuple[str, ...]]]:
    """Those with verbs that the server denies us. Raises what the client raises."""

    async def denied(right: Right) -> tuple[Right, tuple[str, ...]]:
        asked = (client.review(verb, right.kind, namespace, subresource=right.subresource) for verb in right.verbs)
        allowed = await asyncio.gather(*asked)
        return right, tuple(verb for verb, may in zip(right.verbs, allowed, strict=True) if not may)

    return [(right, verbs) for right, verbs in await asyncio.gather(*map(denied, rights)) if verbs]
