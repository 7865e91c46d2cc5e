"""Prometheus metrics of a server at `/metrics`, and its health at `/healthz`.

The library is loaded only with `--metrics-address`. No label has a value chosen by a client, so the
number of series is bounded by methods times codes. docs/server.md lists the names.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from suggest.address import Address
from suggest.binding import refuse_taken
from suggest.endpoint import Endpoint, PlainReply
from suggest.errors import Unavailable
from suggest.server.access.certificates import KeyPair
from suggest.server.call_pool import CallPool
from suggest.server.interceptor import Behavior, Context
from suggest.server.server_options import metrics_address
from suggest.server.store_health import StoreHealth
from suggest.studies import StudyService

_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The metrics endpoint.

    The constructor binds the address; requests are answered from start() on.

    Raises InvalidArgument, Unavailable.
    """

    def __init__(self, address: str, pair: KeyPair | None) -> None:
        """`pair`: the certificate for an address beyond this machine, served by HTTPS."""
        listening = metrics_address(address)
        self._socket = _listening(listening)
        tls = None if pair is None or listening.private else pair.context
        self._endpoint = Endpoint(self._socket, self._answer, tls=tls)
        # Avoid an unused `_created` series for each metric.
        # (This function has no types in the library.)
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._calls = Histogram(
            "tuner_suggest_call_seconds",
            "How long calls took, from request to reply.",
            ("method", "code"),
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._handed_out = Counter(
            "tuner_suggest_trials_handed_out",
            "Trials in replies to SuggestTrials.",
            registry=self._registry,
        )
        # a lookup by labels takes longer than observing
        self._series: dict[tuple[str, str], Histogram] = {}
        self._taking_calls = True
        self._in_flight = 0

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def measured(self, behavior: Behavior, method: str) -> Behavior:
        """Return the behavior of a method, a bare name, with its calls measured."""

        async def measured(request: object, context: Context) -> Any:
            began = time.monotonic()
            self._in_flight += 1
            reply = None
            code = "CANCELLED"  # unless the call completes
            try:
                reply = await behavior(request, context)
                code = "OK"
                return reply
            except asyncio.CancelledError:
                raise
            except BaseException:
                code = _code(context)
                raise
            finally:
                self._in_flight -= 1
                self._ended(method, code, time.monotonic() - began, reply)

        return measured

    def _ended(self, method: str, code: str, seconds: float, reply: Any) -> None:
        series = self._series.get((method, code))
        if series is None:
            series = self._series[method, code] = self._calls.labels(method, code)
        series.observe(seconds)
        if method == "SuggestTrials" and reply is not None:
            self._handed_out.inc(len(reply.message.trials))

    async def start(self, pool: CallPool, store_health: StoreHealth, studies: StudyService) -> None:
        """Answer requests, with values that are read from these objects at each scrape."""
        self._registry.register(_Collector(lambda: self._in_flight, pool, store_health, studies))
        await self._endpoint.open()

    def stopping(self) -> None:
        """Let /healthz report that the server is stopping."""
        self._taking_calls = False

    async def stop(self) -> None:
        """Answer no more requests."""
        await self._endpoint.close()

    def close(self) -> None:
        """Release the address, also if requests were never answered."""
        self._socket.close()

    def _answer(self, path: str, accepted: str) -> PlainReply:
        match path:
            case "/metrics":
                encode, content_type = choose_encoder(accepted)
                return PlainReply("200 OK", encode(self._registry), content_type)
            case "/healthz" if self._taking_calls:
                return PlainReply("200 OK", b"ok\n")
            case "/healthz":
                return PlainReply("503 Service Unavailable", b"stopping\n")
        return PlainReply("404 Not Found", b"there are /metrics and /healthz\n")


@dataclass(frozen=True, slots=True)
class _Collector:
    """Reads values when they are scraped."""

    in_flight: Callable[[], int]
    pool: CallPool
    store_health: StoreHealth
    studies: StudyService

    def describe(self) -> Iterator[Metric]:
        """Yield nothing. Without this method, the registry would call `collect` at registration."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        workers = self.studies.sessions.workers
        yield GaugeMetricFamily(
            "tuner_suggest_calls_in_flight",
            "Calls that are not answered yet.",
            self.in_flight(),
        )
        waiting = GaugeMetricFamily(
            "tuner_suggest_calls_waiting", "Calls that wait for their turn.", labels=("queue",)
        )
        waiting.add_metric(("study",), self.pool.waiting_for_study)
        waiting.add_metric(("worker",), self.pool.waiting_for_thread)
        yield waiting
        studies, trials = self.studies.sessions.in_memory()
        yield GaugeMetricFamily(
            "tuner_suggest_studies_in_memory", "Studies that this server writes.", studies
        )
        yield GaugeMetricFamily(
            "tuner_suggest_trials_in_memory", "Trials of these studies.", trials
        )
        yield GaugeMetricFamily(
            "tuner_suggest_worker_processes",
            "Worker processes that compute proposals.",
            workers.running,
        )
        yield CounterMetricFamily(
            "tuner_suggest_worker_restarts",
            "Of these, the ones that died or hung.",
            workers.restarts,
        )
        yield CounterMetricFamily(
            "tuner_suggest_worker_busy_seconds",
            "Seconds that worker processes have computed.",
            workers.busy_s,
        )
        yield GaugeMetricFamily(
            "tuner_suggest_worker_requests_waiting",
            "Proposals that wait for a worker process.",
            workers.waiting,
        )
        points = CounterMetricFamily(
            "tuner_suggest_points_given",
            "Points that worker processes computed, or did not in time.",
            labels=("kind",),
        )
        for source, count in self.studies.sessions.points_given().items():
            points.add_metric((source,), count)
        yield points
        errors = CounterMetricFamily(
            "tuner_suggest_store_errors",
            "Calls that failed because of the store.",
            labels=("kind",),
        )
        for kind, count in self.store_health.by_kind().items():
            errors.add_metric((kind,), count)
        yield errors


def _listening(address: Address) -> socket.socket:
    refuse_taken(address)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen()
        return listener
    except OSError as e:
        raise Unavailable(
            f"cannot listen at {address}: {e.strerror or e}; use another --metrics-address"
        ) from e


_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


def _code(context: Context) -> str:
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else _CODES.get(code, "UNKNOWN")
