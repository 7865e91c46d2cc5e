"""The label by which the Service `tuner` finds the pod of the leader: only the leader listens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from controller.background_tasks import meanwhile
from controller.kube.client import PODS, KubernetesClient
from controller.kube.errors import AccessDenied, ApiError, ApiNotFound, Unreachable
from controller.kube.objects import Raw

ROLE = "tuner.dev/role"
_LEADER = "leader"
_RETRY_S = 2.0
_log = logging.getLogger(__name__)


@asynccontextmanager
async def leader_label(client: KubernetesClient, namespace: str, pod: str) -> AsyncIterator[None]:
    """Mark the pod as the leader's while the context is open, and no other pod.

    pod: "" for a process that is not in a pod.
    """
    if not pod:
        yield
        return
    async with meanwhile(mark(client, namespace, pod)):
        yield


async def mark(client: KubernetesClient, namespace: str, pod: str) -> None:
    """Try until it is done, or there is no such pod: the process does not run in one."""
    trouble = ""
    while True:
        try:
            await _unmark_others(client, namespace, pod)
            try:
                await client.patch(PODS, namespace, pod, _labeled(_LEADER))
            except ApiNotFound as error:
                _log.warning("the Service cannot lead to this controller: %s", error)
        except (ApiError, AccessDenied, Unreachable) as error:
            if str(error) != trouble:
                trouble = str(error)
                _log.warning("the Service cannot lead to this controller: %s", error)
            await asyncio.sleep(_RETRY_S)
        else:
            return


async def _unmark_others(client: KubernetesClient, namespace: str, pod: str) -> None:
    """Unmark earlier leaders whose process has ended without doing so, or is frozen."""
    marked, _ = await client.list(PODS, namespace, labels=f"{ROLE}={_LEADER}")
    for other in marked:
        if other["metadata"]["name"] != pod:
            await client.patch(PODS, namespace, other["metadata"]["name"], _labeled(None))


def _labeled(role: str | None) -> Raw:
    return {"metadata": {"labels": {ROLE: role}}}
