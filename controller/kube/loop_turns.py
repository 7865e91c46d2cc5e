"""Turns in the event loop, which all experiments of a process share with its lease and its page.

Work between two awaits blocks the loop, so a thousand tasks that are ready at the same moment
would block it for the sum of their work. A task that begins a piece of work takes a turn: only a
few begin in one pass over the ready callbacks, and namespaces, then their experiments, share these.
"""

from __future__ import annotations

import asyncio

from controller.kube.request_limit import Sender
from suggest.fair_share import FairShare

# A single namespace has half of them. A piece takes some milliseconds: a step of an experiment, a
# turn of its loop, what it does with an answer of the API server, or a chunk of a log.
_IN_ONE_PASS = 4


class LoopTurns:
    def __init__(self) -> None:
        self._shares = FairShare(_IN_ONE_PASS)

    async def next(self, sender: Sender) -> None:
        """Wait until a piece of work may begin, which is then done before the next await."""
        await self._shares.take(sender.namespace, part=sender.experiment)
        asyncio.get_running_loop().call_soon(self._shares.give, sender.namespace)
