"""Kubernetes Events about custom resources: one for each change of state, and for each refusal."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from controller.kube.client import EVENTS, KubernetesClient
from controller.kube.errors import ApiConflict, ApiError, ApiForbidden
from controller.kube.objects import Raw
from controller.operator.resource import ExperimentResource, owner_of
from controller.operator.status import ARCHIVE_AWAY, PENDING, condition_of, shortened, time_text

_WARNINGS = ("paused", "failed", "invalid")


async def tell(
    client: KubernetesClient,
    resource: ExperimentResource,
    *,
    before: Mapping[str, Any] | None,
    now: Mapping[str, Any],
) -> None:
    """Create the Events of a change of the status.

    An event that is repeated, by the next controller for example, counts in the first one's object.
    """
    for kind, reason, message in _changes(before or {}, now):
        await record(client, owner_of(resource), kind=kind, reason=reason, message=message)


async def tell_unwritten(
    client: KubernetesClient, resource: ExperimentResource, error: ApiError, now: Mapping[str, Any]
) -> None:
    """Create the Event of a status that the API server refuses, as that of a very large object."""
    would_be = f"{now['state']}: {now.get('reason', '')}".removesuffix(": ")
    message = shortened(f"{error}; the status would be {would_be}")
    about = owner_of(resource)
    await record(client, about, kind="Warning", reason="StatusNotWritten", message=message)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if now["state"] not in (before.get("state"), PENDING):  # what has not begun is no news
        kind = "Warning" if now["state"] in _WARNINGS else "Normal"
        yield kind, now["state"].capitalize(), now.get("reason") or f"it is {now['state']}"
    accepted = condition_of(now, "Accepted")
    earlier = condition_of(before, "Accepted")
    is_new = (earlier.get("status"), earlier.get("message")) != ("False", accepted["message"])
    if accepted["reason"] == "ChangeRefused" and is_new:
        yield "Warning", "ChangeRefused", accepted["message"]
    away, was_away = condition_of(now, ARCHIVE_AWAY), condition_of(before, ARCHIVE_AWAY)
    if away and away["status"] != was_away.get("status"):
        yield "Warning" if away["status"] == "True" else "Normal", away["reason"], away["message"]


async def record(
    client: KubernetesClient, involved: Raw, *, kind: str, reason: str, message: str
) -> None:
    """Create an Event. The right to do so may be missing.

    involved: the object that it is about. kind: Normal or Warning.
    """
    about = involved["metadata"]
    time = time_text(datetime.now(UTC))
    digest = hashlib.sha256(f"{about['uid']} {reason} {message}".encode()).hexdigest()[:10]
    name = f"{about['name']}.{digest}"
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": about["namespace"]},
        "involvedObject": {
            "apiVersion": involved["apiVersion"],
            "kind": involved["kind"],
            "namespace": about["namespace"],
            "name": about["name"],
            "uid": about["uid"],
        },
        "type": kind,
        "reason": reason,
        "message": message,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": "tuner-controller"},
    }
    try:
        await client.create(EVENTS, about["namespace"], event)
    except ApiForbidden:
        pass
    except ApiConflict:
        with contextlib.suppress(ApiError):
            await client.patch(EVENTS, about["namespace"], name, {"lastTimestamp": time})
