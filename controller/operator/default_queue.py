"""The LocalQueue of trials that name none: a label of their Namespace."""

from __future__ import annotations

import time

from controller.kube.client import NAMESPACES, KubernetesClient
from controller.operator.answers import Answers

QUEUE = "tuner.dev/queue"
KEPT_S = 10.0


class DefaultQueues:
    """Reads the labels of namespaces, and remembers them for a short time."""

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client
        self._queues = Answers[str | None](time.monotonic, KEPT_S)

    async def of(self, namespace: str) -> str | None:
        """Return the default queue of a namespace. Raises what the client raises."""
        return await self._queues.get((namespace,), lambda: self._read(namespace))

    async def _read(self, namespace: str) -> str | None:
        found = await self._client.get(NAMESPACES, None, namespace)
        return (found["metadata"].get("labels") or {}).get(QUEUE) or None
