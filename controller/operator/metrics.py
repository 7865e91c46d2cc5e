"""Prometheus metrics of the controller at `/metrics`.

What a metric is called and means is declared once, in DECLARED: docs/cluster.md has the table. The
number of series is bounded: no label has a value that a tenant can make up. Names of namespaces are
the platform team's, and beyond MOST_NAMESPACES of them one series has the rest.

A standby has the metrics too, without experiments. Values are read when they are scraped, in the
controller's loop; only what happens in a moment is counted as it happens.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from controller.core.model import AttemptState, Event
from controller.core.spending import Spent
from controller.operator.resource import ExperimentResource
from controller.operator.status import PENDING, WAITING, condition_of
from suggest.distribution import VERSION
from suggest.endpoint import PlainReply

MOST_NAMESPACES = 500
OTHER_NAMESPACES = "(others)"  # not a name that a namespace can have
_LAG_EVERY_S = 0.5
_LAG_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_DELAY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ENDED = {state.value for state in AttemptState if state.ended}

# Values of labels, and the number.
Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True)
class Declared:
    """kind: gauge, counter or histogram. name: without the suffix of its samples."""

    name: str
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()


DECLARED: list[Declared] = []


def _declared(kind: str, name: str, meaning: str, *labels: str) -> Declared:
    DECLARED.append(Declared(name, kind, meaning, labels))
    return DECLARED[-1]


_gauge = partial(_declared, "gauge")
_counter = partial(_declared, "counter")
_histogram = partial(_declared, "histogram")

LEADER = _gauge(
    "tuner_controller_leader", "1 if this process holds the lease and may write, else 0."
)
BUILD = _gauge("tuner_controller_build_info", "1, with the version.", "version")
EXPERIMENTS = _gauge(
    "tuner_controller_experiments",
    "Experiments by state, as their statuses have it; pending: not looked at yet.",
    "namespace",
    "state",
)
BLOCKED = _gauge(
    "tuner_controller_experiments_blocked",
    "Experiments that something keeps from running; their condition Running says what.",
    "namespace",
)
TRIALS = _gauge(
    "tuner_controller_trials",
    "Trials that run, and that wait for room, an image or a node.",
    "namespace",
    "state",
)
ATTEMPTS = _counter(
    "tuner_controller_attempts_ended",
    "Ended attempts by state; failed ones by their class of failure.",
    "outcome",
)
DELAY = _histogram(
    "tuner_controller_creation_delay_seconds",
    "From when an attempt had room until its object was created.",
)
REQUESTS = _counter(
    "tuner_controller_api_requests",
    "Requests to the API server by method, WATCH for watches, and code of the response; "
    "error: there was none.",
    "verb",
    "code",
)
REQUESTS_WAITING = _gauge(
    "tuner_controller_api_requests_waiting",
    "Requests to the API server that wait for the share of their namespace in --kube-api-qps.",
)
WATCHES = _gauge(
    "tuner_controller_watches_broken", "Watches that are broken at present, by kind.", "kind"
)
STATUSES = _counter(
    "tuner_controller_status_writes", "Writes of statuses by result: written or refused.", "result"
)
STORE_ERRORS = _counter(
    "tuner_controller_store_errors",
    "Calls that failed because the store of the studies was unavailable or broken.",
    "kind",
)
ARCHIVE_AWAY = _gauge(
    "tuner_controller_archive_away", "1 if the last use of the bucket of logs has failed, else 0."
)
ARCHIVE_BEHIND = _gauge(
    "tuner_controller_archive_experiments_behind",
    "Experiments with logs of ended attempts that the bucket has refused.",
)
GPU_HOURS = _gauge(
    "tuner_controller_month_gpu_hours",
    "GPU-hours that trials have used in this calendar month, in UTC.",
    "namespace",
)
COST = _gauge(
    "tuner_controller_month_cost",
    "Cost of what trials have used in this calendar month, in UTC.",
    "namespace",
)
BUDGETS_SPENT = _gauge("tuner_controller_tenant_budgets_spent", "TenantBudgets that are used up.")
LAG = _histogram(
    "tuner_controller_loop_lag_seconds", "How much too late the event loop ran a timer."
)


@dataclass(slots=True)
class MetricSources:
    """What is read at each scrape; from `resources` on, empty while another controller leads."""

    is_leader: Callable[[], bool]
    api_requests: Mapping[tuple[str, str], int]
    api_requests_waiting: Callable[[], int] = lambda: 0
    resources: Callable[[], Iterable[ExperimentResource]] = tuple
    broken_watches: Callable[[], Iterable[str]] = tuple
    status_writes: Mapping[str, int] = field(default_factory=dict)
    store_errors: Callable[[], Mapping[str, int]] = dict
    archive_is_away: Callable[[], bool] = bool
    archive_behind: Callable[[], int] = int
    used: Callable[[], Mapping[str, Spent]] = dict
    budgets_spent: Callable[[], int] = int


class ControllerMetrics:
    """The metrics of one process. They are up to date while `measure_loop` runs."""

    def __init__(self, sources: MetricSources) -> None:
        # Avoid an unused `_created` series for each metric.
        # (This function has no types in the library.)
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.sources = sources
        self._registry = CollectorRegistry()
        self._ended: Counter[str] = Counter()
        self._delay = Histogram(
            DELAY.name, DELAY.meaning, buckets=_DELAY_S, registry=self._registry
        )
        self._lag = Histogram(LAG.name, LAG.meaning, buckets=_LAG_S, registry=self._registry)
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def attempt_event(self, event: Event) -> None:
        """Count an attempt that has ended."""
        if event.attempt is None or event.kind not in _ENDED:
            return
        failure = event.failure_class
        self._ended[event.kind if failure is None else failure.value] += 1

    def created_after(self, seconds: float) -> None:
        """Count the creation of an attempt, so long after it had room."""
        self._delay.observe(seconds)

    async def measure_loop(self) -> None:
        """Measure how late the loop runs its timers, until it is cancelled."""
        while True:
            due_s = time.monotonic() + _LAG_EVERY_S
            await asyncio.sleep(_LAG_EVERY_S)
            self._lag.observe(max(0.0, time.monotonic() - due_s))

    def answer(self, path: str, accept: str) -> PlainReply:
        if path != "/metrics":
            return PlainReply("404 Not Found", b"there is /metrics\n")
        encode, content_type = choose_encoder(accept)
        return PlainReply("200 OK", encode(self._registry), content_type)

    def describe(self) -> Iterator[Metric]:
        """Yield nothing. Without this method, the registry would call `collect` at registration."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        sources = self.sources
        yield _family(LEADER, [((), float(sources.is_leader()))])
        yield _family(BUILD, [((VERSION,), 1)])
        yield from _of_resources(sources.resources())
        yield _family(ATTEMPTS, _labelled(self._ended))
        yield _family(REQUESTS, sources.api_requests.items())
        yield _family(REQUESTS_WAITING, [((), sources.api_requests_waiting())])
        yield _family(WATCHES, _labelled(Counter(sources.broken_watches())))
        yield _family(STATUSES, _labelled(sources.status_writes))
        yield _family(STORE_ERRORS, _labelled(sources.store_errors()))
        yield _family(ARCHIVE_AWAY, [((), float(sources.archive_is_away()))])
        yield _family(ARCHIVE_BEHIND, [((), sources.archive_behind())])
        yield from _of_usage(sources.used())
        yield _family(BUDGETS_SPENT, [((), sources.budgets_spent())])


def _of_resources(resources: Iterable[ExperimentResource]) -> Iterator[Metric]:
    """Yield what the statuses of all experiments say, by namespace."""
    states: Counter[tuple[str, ...]] = Counter()
    trials: Counter[tuple[str, ...]] = Counter()
    blocked: Counter[tuple[str, ...]] = Counter()
    sizes: Counter[str] = Counter()
    for resource in resources:
        namespace, status = resource["metadata"]["namespace"], resource.get("status") or {}
        sizes[namespace] += 1
        states[namespace, status.get("state", PENDING)] += 1
        blocked[namespace,] += condition_of(status, "Running").get("reason") == WAITING
        for state in ("running", "queued"):
            trials[namespace, state] += status.get(state, 0)
    shown = {namespace for namespace, _ in sizes.most_common(MOST_NAMESPACES)}
    for declared, counted in ((EXPERIMENTS, states), (TRIALS, trials), (BLOCKED, blocked)):
        yield _family(declared, _with_others(counted, shown).items())


def _of_usage(used: Mapping[str, Spent]) -> Iterator[Metric]:
    """Yield what the namespaces have used: those that have used most each for itself."""
    most = sorted(used, key=lambda name: (used[name].cost, used[name].gpu_hours), reverse=True)
    shown = set(most[:MOST_NAMESPACES])
    gpu_hours: dict[tuple[str, ...], float] = {}
    cost: dict[tuple[str, ...], float] = {}
    for namespace, spent in used.items():
        gpu_hours[namespace,], cost[namespace,] = spent.gpu_hours, spent.cost
    yield _family(GPU_HOURS, _with_others(gpu_hours, shown).items())
    yield _family(COST, _with_others(cost, shown).items())


def _with_others(
    counted: Mapping[tuple[str, ...], float], shown: set[str]
) -> dict[tuple[str, ...], float]:
    summed: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for (namespace, *others), number in counted.items():
        label = namespace if namespace in shown else OTHER_NAMESPACES
        summed[label, *others] += number
    return summed


def _labelled(counted: Mapping[str, int]) -> Samples:
    return [((label,), number) for label, number in counted.items()]


def _family(declared: Declared, samples: Samples) -> Metric:
    made = GaugeMetricFamily if declared.kind == "gauge" else CounterMetricFamily
    family = made(declared.name, declared.meaning, labels=declared.labels)
    for labels, number in samples:
        family.add_metric(labels, number)
    return family
