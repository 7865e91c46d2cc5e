"""The prices of nodes: an attempt costs what the node does on which it starts."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from types import MappingProxyType

from controller.kube.client import NODES, KubernetesClient
from controller.kube.errors import ApiForbidden, ApiNotFound
from controller.kube.reflector import MissingRights

NODE_S = 600.0


class NodePrices:
    """The prices of resources of nodes, by the value of one of their labels.

    A node is read when an attempt begins on it, and again after NODE_S.
    """

    def __init__(
        self,
        client: KubernetesClient,
        label: str = "",
        by_value: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    ) -> None:
        self._client = client
        self._label = label
        self._by_value = by_value
        self._known: dict[str, tuple[float, Mapping[str, float]]] = {}
        self._rights = MissingRights()

    def __bool__(self) -> bool:
        return bool(self._by_value)

    async def of(self, node: str) -> Mapping[str, float]:
        """Return the prices of a node: none of its own if it is gone, or must not be read."""
        read_s, prices = self._known.get(node, (-math.inf, {}))
        now_s = time.monotonic()
        if now_s < read_s + NODE_S:
            return prices
        try:
            found = await self._client.get(NODES, None, node)
        except ApiForbidden as error:
            self._rights.denied(error, without="the prices of nodes")
            found = {"metadata": {}}
        except ApiNotFound:
            found = {"metadata": {}}
        value = (found["metadata"].get("labels") or {}).get(self._label, "")
        self._known[node] = now_s, self._by_value.get(value, {})
        return self._known[node][1]
