"""The common setup of tests against the small API server:
one server and one client for each test.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from controller.kube.client import KubernetesClient
from tests.kube.fake_api import FakeApi

Test: TypeAlias = Callable[[FakeApi, KubernetesClient], Coroutine[Any, Any, None]]


def with_a_cluster(test: Test) -> Callable[[], None]:
    """Run a test with a new server and a client, on its own loop."""

    async def main() -> None:
        async with FakeApi() as api, api.client() as client:
            await test(api, client)

    def wrapped() -> None:
        asyncio.run(main())

    wrapped.__name__ = test.__name__
    return wrapped


async def eventually(condition: Callable[[], object], *, within_s: float = 10) -> None:
    give_up_at = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.005)
