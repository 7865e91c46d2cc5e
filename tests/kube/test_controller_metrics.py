"""What `tuner controller` exports for Prometheus, and the answers to probes."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from controller.core.model import AttemptState, Event, FailureClass
from controller.operator import metrics
from controller.operator.metrics import DECLARED, OTHER_NAMESPACES, ControllerMetrics, MetricSources
from controller.operator.resource import ExperimentResource
from suggest.endpoint import Endpoint
from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE, Installation, on_a_cluster
from tests.kube.operated import experiment as resource
from tests.ports import free_port

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).resolve().parents[2]
Sample = tuple[str, tuple[str, ...]]


def read(text: str) -> dict[Sample, float]:
    """Return the samples by name and label values, in the order of the label names."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(sources: MetricSources) -> dict[Sample, float]:
    return read(ControllerMetrics(sources).answer("/metrics", "").body.decode())


async def scraped_from(installed: Installation) -> dict[Sample, float]:
    def get() -> str:
        url = f"http://localhost:{installed.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as reply:
            return str(reply.read().decode())

    return read(await asyncio.to_thread(get))


@on_a_cluster()
async def test_a_search_is_counted(installed: Installation) -> None:
    installed.apply(resource())
    await installed.until_state("succeeded")
    found = await scraped_from(installed)
    assert found["tuner_controller_leader", ()] == 1
    assert found["tuner_controller_experiments", (NAMESPACE, "succeeded")] == 1
    assert found["tuner_controller_attempts_ended_total", ("succeeded",)] == 3
    assert found["tuner_controller_creation_delay_seconds_count", ()] == 3
    assert found["tuner_controller_status_writes_total", ("written",)] >= 1
    assert found["tuner_controller_status_writes_total", ("refused",)] == 0
    assert found["tuner_controller_store_errors_total", ("broken",)] == 0
    assert found["tuner_controller_api_requests_total", ("200", "WATCH")] >= 3
    assert found["tuner_controller_api_requests_total", ("201", "POST")] >= 3
    assert found["process_resident_memory_bytes", ()] > 0


@on_a_cluster(Script(lines=("score=0.5",), forever=True))
async def test_running_and_waiting_trials_are_counted_by_namespace(installed: Installation) -> None:
    installed.apply(resource(parallelism=2))
    await installed.until(lambda: installed.status().get("running") == 2)
    found = await scraped_from(installed)
    assert found["tuner_controller_trials", (NAMESPACE, "running")] == 2
    assert found["tuner_controller_trials", (NAMESPACE, "queued")] == 0
    assert found["tuner_controller_experiments_blocked", (NAMESPACE,)] == 0


def in_namespace(namespace: str, **status: object) -> ExperimentResource:
    return {"metadata": {"name": "a", "namespace": namespace, "uid": "u"}, "status": status}


def test_the_number_of_series_is_bounded_whatever_tenants_do() -> None:
    most = metrics.MOST_NAMESPACES
    resources = [in_namespace(f"ns{n}", state="running", running=1) for n in range(most + 20)]
    resources += [in_namespace(f"ns{n}", state="paused") for n in range(most)]
    found = scraped(MetricSources(lambda: True, {}, resources=lambda: resources))
    kept = [labels for name, labels in found if name == "tuner_controller_experiments_blocked"]
    assert len(kept) == most + 1
    assert found["tuner_controller_experiments", (OTHER_NAMESPACES, "running")] == 20
    assert found["tuner_controller_trials", (OTHER_NAMESPACES, "running")] == 20


def test_an_experiment_that_cannot_go_on_is_counted_as_blocked() -> None:
    waiting = {"type": "Running", "status": "False", "reason": "Waiting"}
    blocked = in_namespace("a", state="running", conditions=[waiting])
    found = scraped(MetricSources(lambda: True, {}, resources=lambda: [blocked, in_namespace("a")]))
    assert found["tuner_controller_experiments_blocked", ("a",)] == 1
    assert found["tuner_controller_experiments", ("a", "pending")] == 1


def test_broken_watches_are_counted_by_kind() -> None:
    found = scraped(
        MetricSources(lambda: True, {}, broken_watches=lambda: ["pods", "jobs", "pods"])
    )
    assert found["tuner_controller_watches_broken", ("pods",)] == 2
    assert found["tuner_controller_watches_broken", ("jobs",)] == 1


def test_ended_attempts_are_counted_by_outcome() -> None:
    measured = ControllerMetrics(MetricSources(lambda: False, {}))
    for kind, failure in (
        ("created", None),
        ("running", None),
        ("failed", FailureClass.INFRASTRUCTURE),
        ("pruned", None),
    ):
        measured.attempt_event(Event(NOW, kind, "", 0, 1, failure_class=failure))
    # An end of the experiment is not one of an attempt.
    measured.attempt_event(Event(NOW, "succeeded", ""))
    found = read(measured.answer("/metrics", "").body.decode())
    ended = {
        labels: number
        for (name, labels), number in found.items()
        if name == "tuner_controller_attempts_ended_total"
    }
    assert ended == {("infrastructure",): 1, ("pruned",): 1}


def test_an_outcome_is_a_state_or_a_class_of_failure() -> None:
    states = {state.value for state in AttemptState}
    assert not states & {failure.value for failure in FailureClass}


def test_the_documentation_has_every_metric() -> None:
    page = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    for declared in DECLARED:
        name = declared.name + ("_total" if declared.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in declared.labels)
        meaning = declared.meaning.rstrip(".")
        assert f"| `{name}` | {declared.kind} | {labels} | {meaning} |\n" in page


def test_every_metric_that_is_exported_is_declared_and_the_other_way_round() -> None:
    sources = MetricSources(lambda: True, {("GET", "200"): 1}, store_errors=lambda: {"broken": 1})
    text = ControllerMetrics(sources).answer("/metrics", "").body.decode()
    exported = {
        (family.name, family.type)
        for family in text_string_to_metric_families(text)
        if family.name.startswith("tuner_")
    }
    assert exported == {(declared.name, declared.kind) for declared in DECLARED}


def test_an_endpoint_answers_what_it_has_and_survives_nonsense() -> None:
    async def check() -> None:
        measured = ControllerMetrics(MetricSources(lambda: True, {}))
        port = free_port()
        async with Endpoint(port, measured.answer):
            for nonsense in (b"", b"\r\n\r\n", b"GET\r\n\r\n", b"\xff" * 20_000):
                reader, writer = await asyncio.open_connection("localhost", port)
                writer.write(nonsense)
                writer.write_eof()
                await reader.read()
                writer.close()
            assert await asyncio.to_thread(code, port, "/metrics?x=1") == 200
            assert await asyncio.to_thread(code, port, "/other") == 404

    asyncio.run(check())


def code(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://localhost:{port}{path}", timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as refused:
        return refused.code
