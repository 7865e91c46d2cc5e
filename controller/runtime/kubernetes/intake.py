"""What the gate lets in is made on the cluster, and the gate is told what became of it.

A create may take long, for a webhook or a server that asks for patience, and trials that run must not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from controller.runtime.kubernetes.client import Kind
from controller.runtime.kubernetes.errands import Errands
from controller.runtime.kubernetes.gate import Gate
from controller.runtime.kubernetes.informer import Informer
from controller.runtime.kubernetes.maker import Maker, NotNow
from controller.runtime.protocol import CannotStart, Exit, Launch, Sighting

Raw = dict[str, Any]


class Intake:
    """made: it is on the cluster. changed: something else became of it; look again."""

    def __init__(self, gate: Gate, maker: Maker, informer: Informer, *, made: Callable[[Launch, Kind, Raw], None],
                 changed: Callable[[], None]) -> None:  # fmt: skip
        self.refused: dict[str, Sighting] = {}  # what could not be made, and why: to be shown until it is forgotten
        self._gate = gate
        self._maker = maker
        self._informer = informer
        self._made = made
        self._changed = changed
        self._errands = Errands(failed=changed)

    async def admit(self, *, running: int) -> None:
        """Begin to make what there is room for, oldest first. running: attempts on the cluster that have not ended.
        Raises what an earlier one met that could not be made, as long as it lasts."""
        while launch := self._gate.next(self._informer.quotas, self._informer.pods.objects.values(), running=running):
            await self._errands.send(launch.name, self._make(launch))

    def forget_anchor(self) -> None:
        self._maker.forget_anchor()

    async def settle(self, name: str) -> None:
        """Until it is made or was refused, if it is being made."""
        await self._errands.settle(name)

    async def close(self) -> None:
        await self._errands.close()

    async def _make(self, launch: Launch) -> None:
        try:
            kind, made = await self._maker.make(launch)
            await self._informer.watch(kind)
            self._made(launch, kind, made)  # first: what cannot be written down is adopted later, and then it can
            self._gate.made(launch)
            self._informer.put(kind, made)
        except NotNow as error:
            self._gate.wait(launch, str(error))
            self._changed()
        except CannotStart as error:
            failed = Exit(datetime.now(UTC), failure_class=error.failure_class, reason=str(error))
            self._gate.drop(launch.name)
            self.refused[launch.name] = Sighting(launch.name, None, failed)
            self._changed()
        except BaseException:
            self._gate.wait(launch)
            raise
