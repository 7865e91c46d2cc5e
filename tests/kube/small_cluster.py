"""What tests of single parts against the small API server share: one server and one client each, and patience."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from controller.runtime.kubernetes.client import KubernetesClient
from tests.kube.fake_api import FakeApi

Test: TypeAlias = Callable[[FakeApi, KubernetesClient], Coroutine[Any, Any, None]]


def with_a_cluster(test: Test) -> Callable[[], None]:
    """As a decorator: the test gets a fresh server and a client of it, on a loop of its own."""

    async def main() -> None:
        async with FakeApi() as api, api.client() as client:
            await test(api, client)

    def wrapped() -> None:
        asyncio.run(main())

    wrapped.__name__ = test.__name__
    return wrapped


async def eventually(condition: Callable[[], bool], *, within_s: float = 10) -> None:
    give_up_at = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.005)
