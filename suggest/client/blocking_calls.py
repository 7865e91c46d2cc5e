"""The methods of `AsyncClient`, blocking.

Each method of `AsyncClient` is a coroutine over a transport. The transport in this module blocks,
so the coroutine runs to its end in the caller's thread: there is no event loop and no other thread,
and Ctrl-C interrupts the call itself.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from suggest.client.async_client import AsyncClient
from suggest.client.retries import Attempts
from suggest.lazy_module import LazyModule

if TYPE_CHECKING:
    import grpc
else:
    grpc = LazyModule("grpc")

P = ParamSpec("P")
T = TypeVar("T")


class BlockingTransport(AsyncClient):
    """An AsyncClient whose coroutines never suspend.

    Thread-safe. A forked process must create its own client.
    """

    def __init__(self, address: str, **settings: Any) -> None:  # those of AsyncClient
        self._connecting = threading.Lock()
        super().__init__(address, **settings)

    async def _exchange(
        self, method: Any, request: Any, attempts: Attempts, **settings: Any
    ) -> Any:
        return method(request, timeout=attempts.timeout_s(), **settings)

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it blocks on purpose

    def _connected(self, address: str) -> Mapping[str, Any]:
        with self._connecting:
            return super()._connected(address)

    def _channel_api(self) -> Any:
        return grpc

    async def _close_channel(self, channel: Any) -> None:
        channel.close()


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("a blocking transport does not suspend")


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingCalls, P], T]:
    """Turn a method of `AsyncClient` into a blocking one, with its signature and docstring."""

    @functools.wraps(method)
    def blocking(calls: BlockingCalls, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _run(method(calls._transport, *args, **kwargs))

    return blocking


class BlockingCalls:
    """The calls of a client over one transport."""

    def __init__(self, transport: BlockingTransport) -> None:
        self._transport = transport
        self.address = transport.address

    create_study = _blocking(AsyncClient.create_study)
    get_study = _blocking(AsyncClient.get_study)
    list_studies = _blocking(AsyncClient.list_studies)
    study_summaries = _blocking(AsyncClient.study_summaries)
    update_study = _blocking(AsyncClient.update_study)
    delete_study = _blocking(AsyncClient.delete_study)
    validate = _blocking(AsyncClient.validate)
    algorithms = _blocking(AsyncClient.algorithms)
    add_trial = _blocking(AsyncClient.add_trial)
    import_trials = _blocking(AsyncClient.import_trials)
    get_trial = _blocking(AsyncClient.get_trial)
    list_trials = _blocking(AsyncClient.list_trials)
    trials_page = _blocking(AsyncClient.trials_page)
    latest_page = _blocking(AsyncClient.latest_page)
    update_trial = _blocking(AsyncClient.update_trial)
    delete_trial = _blocking(AsyncClient.delete_trial)
    suggest = _blocking(AsyncClient.suggest)
    report = _blocking(AsyncClient.report)
    decide_parameter = _blocking(AsyncClient.decide_parameter)
    renew_leases = _blocking(AsyncClient.renew_leases)
    complete = _blocking(AsyncClient.complete)
    reopen_trials = _blocking(AsyncClient.reopen_trials)
    list_measurements = _blocking(AsyncClient.list_measurements)
    optimal_trials = _blocking(AsyncClient.optimal_trials)
    estimate = _blocking(AsyncClient.estimate)
    close = _blocking(AsyncClient.close)
