"""The API server's clock: objects carry its times, so ages and leases must be compared with it.

It is read once for all experiments, and after AGAIN_S for those that begin then. From then on the
seconds since then are added, so that neither a wrong wall clock of this machine nor a change of it
ends a trial early or lets another controller take over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from controller.boot_time import since_boot_s
from controller.kube.client import KubernetesClient
from controller.kube.errors import ApiError

AGAIN_S = 3600.0  # two clocks drift apart


class ServerClock:
    def __init__(
        self, client: KubernetesClient, elapsed_s: Callable[[], float] = since_boot_s
    ) -> None:
        self._client = client
        self._elapsed_s = elapsed_s
        self._read: tuple[datetime, float] | None = None  # the server's time, and `elapsed_s` then
        self._reading = asyncio.Lock()

    async def read(self) -> None:
        """Read the server's time, unless it is known.

        A server that does not tell it has this machine's.
        """
        async with self._reading:
            if self._read is not None and self._elapsed_s() - self._read[1] < AGAIN_S:
                return
            try:
                date = await self._client.clock()
            except ApiError:
                date = None
            self._read = date or datetime.now(UTC), self._elapsed_s()

    def now(self) -> datetime:
        """Return the server's time; this machine's before the first `read`."""
        if self._read is None:
            return datetime.now(UTC)
        date, at_s = self._read
        return date + timedelta(seconds=self._elapsed_s() - at_s)
