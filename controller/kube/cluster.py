"""What all experiments of a process share of one cluster: a client, the reflectors, the clock,
and the time for reading.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controller.kube.client import Kind, KubernetesClient
from controller.kube.node_prices import NodePrices
from controller.kube.reflector import ObjectT, Reflector
from controller.kube.server_clock import ServerClock

# At most a twentieth of the time is spent reading. A burst of notifications
# may exceed the share briefly: the turns of a few trials, not those of twenty,
# whose ends come in waves and are cheaper together.
_READING_SHARE, _BORROWED_S, _LONGEST_REST_S = 0.05, 0.004, 0.2


class ReadingBudget:
    """The time that the experiments of a process spend reading, beyond their share of it.

    The namespaces that owe any share it: one that reads much rests, and another does not.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._charged_at_s = clock()
        self._owed_s: dict[str, float] = {}  # by namespace; none is zero

    def charge(self, namespace: str, spent_s: float) -> None:
        now_s = self.clock()
        paid_s = self._share * (now_s - self._charged_at_s)
        self._charged_at_s = now_s
        self._owed_s = {of: owed - paid_s for of, owed in self._owed_s.items() if owed > paid_s}
        owed_s = self._owed_s.get(namespace, 0.0) + spent_s
        # the rest of one turn
        self._owed_s[namespace] = min(owed_s, _BORROWED_S + _READING_SHARE * _LONGEST_REST_S)

    def rest_s(self, namespace: str) -> float:
        """Return for how long to rest before reading again."""
        beyond_s = self._owed_s.get(namespace, 0.0) - _BORROWED_S
        return max(0.0, min(beyond_s / self._share, _LONGEST_REST_S))

    @property
    def _share(self) -> float:
        """Return the share of the time of each namespace that owes any."""
        return _READING_SHARE / max(1, len(self._owed_s))


@dataclass(frozen=True, slots=True)
class Bar:
    """Why no attempt may be created; "" if they may. stops: those that run are stopped, too."""

    reason: str = ""
    stops: bool = False


NO_BAR = Bar()


class Cluster:
    """A client and its reflectors. Experiments come and go; close it after the last one.

    labels: selects the objects of the experiments of this process. all_namespaces: they are in
    many; one watch of each kind serves them all, which needs the right to it.

    created_after: called for each created attempt, with the seconds since there was room for it.
    node_prices: of nodes whose resources have other prices than those of the file.
    bar: returns what keeps the attempts of a namespace from running.
    """

    def __init__(
        self, client: KubernetesClient, *, labels: str, all_namespaces: bool = False
    ) -> None:
        self.client = client
        self.labels = labels
        self.reading = ReadingBudget()
        self.clock = ServerClock(client)
        # By namespace and experiment: attempts that were created, and wait for a node.
        self._without_node: dict[tuple[str, str], int] = {}
        self.created_after: Callable[[float], None] = lambda _seconds: None
        self.node_prices = NodePrices(client)
        self.bar: Callable[[str], Bar] = lambda _namespace: NO_BAR
        self._all_namespaces = all_namespaces
        # by kind, namespace and selection
        self._reflectors: dict[tuple[object, ...], Reflector[Any]] = {}

    def reflector(
        self,
        kind: Kind,
        namespace: str,
        *,
        labels: str = "",
        fields: str = "",
        grouped_by: str = "",
        keep: Callable[[ObjectT, ObjectT], None] | None = None,
    ) -> Reflector[ObjectT]:
        """Return the `Reflector` of a kind, which is new if nobody has asked for it."""
        scope = None if self._all_namespaces else namespace
        key = kind, scope, labels, fields, grouped_by
        if key not in self._reflectors:
            self._reflectors[key] = Reflector(
                self.client,
                kind,
                scope,
                labels=labels,
                fields=fields,
                grouped_by=grouped_by,
                keep=keep,
            )
        return self._reflectors[key]

    @property
    def broken_watches(self) -> list[str]:
        """Return the kinds of the watches that are broken at present, one for each watch."""
        return [each.kind.plural for each in self._reflectors.values() if each.trouble]

    def note_without_node(self, namespace: str, experiment: str, count: int) -> None:
        """Note how many attempts of an experiment were created, and wait for a node."""
        if count:
            self._without_node[namespace, experiment] = count
        else:
            self._without_node.pop((namespace, experiment), None)

    def without_node(self, namespace: str) -> int:
        """Return how many attempts of the namespace's experiments wait for a node."""
        return sum(count for (of, _), count in self._without_node.items() if of == namespace)

    async def close(self) -> None:
        await self.close_reflectors()
        await self.client.close()

    async def close_reflectors(self) -> None:
        """Stop watching; the client stays open."""
        await asyncio.gather(*(reflector.close() for reflector in self._reflectors.values()))
