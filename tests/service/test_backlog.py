"""Calls that pile up while a server stalls are all answered,
without being refused and sent again.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from suggest.client import AsyncClient
from tests.service.running import NAME, SPEC, ServerProcess


class CountingClient(AsyncClient):
    """A client that counts how often it paused before it sent a call again."""

    pauses = 0

    async def _sleep(self, seconds: float) -> None:
        self.pauses += 1
        await super()._sleep(seconds)


def test_calls_that_pile_up_while_the_server_is_frozen_are_answered_at_the_first_attempt(
    tmp_path: Path,
) -> None:
    async def life(server: ServerProcess) -> tuple[int, int]:
        async with CountingClient(server.address) as client:
            await client.create_study(NAME, SPEC, request_id="create")
            os.kill(server.pid, signal.SIGSTOP)
            calls = [asyncio.create_task(client.get_study(NAME)) for _ in range(500)]
            await asyncio.sleep(0)
            os.kill(server.pid, signal.SIGCONT)
            return len({study.uid for study in await asyncio.gather(*calls)}), client.pauses

    server = ServerProcess(tmp_path / "s.db", f"unix:{tmp_path}/s")
    try:
        assert asyncio.run(life(server)) == (1, 0)
    finally:
        server.stop()
