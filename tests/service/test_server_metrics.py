"""A server's metrics for Prometheus, and the events in its log."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from suggest import events
from suggest.client import Client
from suggest.errors import InvalidArgument, NotFound, StoreBroken, StoreUnavailable, Unavailable
from suggest.server import ServerOptions
from suggest.server.store_health import SETTLED_S, StoreHealth
from suggest.study import Algorithm, StudyName, StudySpec
from suggest.trial import Outcome, TrialState
from tests import forked
from tests.conditions import eventually
from tests.service.running import NAME, SPEC, a_server

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
WATCHED = ServerOptions(metrics_address="localhost:0")


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://localhost:{port}{path}", timeout=10) as reply:
        return str(reply.read().decode())


def samples(port: int) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return the samples by name and label values, in the order of the label names."""
    families = text_string_to_metric_families(get(port, "/metrics"))
    return {
        (s.name, tuple(value for _, value in sorted(s.labels.items()))): s.value
        for family in families
        for s in family.samples
    }


def a_search(client: Client) -> None:
    client.create_study(NAME, SPEC, request_id="create")
    for trial in client.suggest(NAME, 3, client_id="c", request_id="r").trials:
        client.complete(NAME, trial.number, Outcome(TrialState.SUCCEEDED, 1.0))
    with pytest.raises(NotFound):
        client.get_study(StudyName("default", "no-such-study"))


def test_calls_studies_and_suggestions_are_counted(tmp_path: Path) -> None:
    with (
        a_server(tmp_path / "studies.db", options=WATCHED) as server,
        Client(server.address) as client,
    ):
        a_search(client)
        refused = ("tuner_suggest_call_seconds_count", ("NOT_FOUND", "GetStudy"))
        # a call is counted after its reply was sent
        eventually(lambda: refused in samples(server.metrics_port))
        stats = samples(server.metrics_port)
        assert stats[refused] == 1
        assert stats["tuner_suggest_call_seconds_count", ("OK", "CompleteTrial")] == 3
        assert stats["tuner_suggest_trials_handed_out_total", ()] == 3
        assert stats["tuner_suggest_studies_in_memory", ()] == 1
        assert stats["tuner_suggest_trials_in_memory", ()] == 3
        assert (
            stats["tuner_suggest_worker_processes", ()]
            == stats["tuner_suggest_worker_restarts_total", ()]
            == 0
        )
        assert stats["tuner_suggest_worker_busy_seconds_total", ()] == 0
        assert stats["tuner_suggest_worker_requests_waiting", ()] == 0
        assert stats["tuner_suggest_calls_in_flight", ()] == 0
        assert (
            stats["tuner_suggest_calls_waiting", ("study",)]
            == stats["tuner_suggest_calls_waiting", ("worker",)]
            == 0
        )
        assert stats["tuner_suggest_store_errors_total", ("unavailable",)] == 0


def test_the_work_of_worker_processes_is_counted(tmp_path: Path) -> None:
    spec = StudySpec(
        SPEC.space, SPEC.objectives, Algorithm("optuna:tpe", seed=7, settings={"startupTrials": 1})
    )
    with (
        a_server(tmp_path / "studies.db", options=WATCHED) as server,
        Client(server.address) as client,
    ):
        client.create_study(NAME, spec, request_id="create")
        for request in ("random", "modeled"):
            (trial,) = client.suggest(NAME, 1, client_id="c", request_id=request).trials
            client.complete(NAME, trial.number, Outcome(TrialState.SUCCEEDED, 1.0))
        stats = samples(server.metrics_port)
        assert stats["tuner_suggest_worker_processes", ()] == 1
        assert stats["tuner_suggest_worker_busy_seconds_total", ()] > 0
        assert stats["tuner_suggest_worker_restarts_total", ()] == 0


def test_metrics_match_the_docs_and_no_label_has_a_value_from_clients(tmp_path: Path) -> None:
    with (
        a_server(tmp_path / "studies.db", options=WATCHED) as server,
        Client(server.address) as client,
    ):
        a_search(client)
        families = list(text_string_to_metric_families(get(server.metrics_port, "/metrics")))
    ours = {family.name for family in families if family.name.startswith("tuner_")}
    listed = re.findall(r"^\| `(tuner_suggest_\w+)", PAGE, re.MULTILINE)
    assert {name.removesuffix("_total") for name in listed} == ours
    labels = {label for family in families for s in family.samples for label in s.labels}
    assert labels == {"method", "code", "le", "queue", "kind"}
    assert "parabola" not in str(families)


def test_only_health_and_metrics_are_served(tmp_path: Path) -> None:
    with a_server(tmp_path / "studies.db", options=WATCHED) as server:
        assert get(server.metrics_port, "/healthz") == "ok\n"
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            get(server.metrics_port, "/etc/passwd")
        refused.value.close()
    assert "metrics" not in [thread.name for thread in threading.enumerate()], (
        "it ends with its server"
    )


def test_a_port_in_use_and_a_socket_are_refused_before_serving(tmp_path: Path) -> None:
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        options = ServerOptions(metrics_address=f"localhost:{port}")
        with (
            pytest.raises(
                Unavailable, match=f"cannot listen at localhost:{port}: Address already in use"
            ),
            a_server(tmp_path / "studies.db", options=options),
        ):
            pass
    with (
        pytest.raises(InvalidArgument, match="is a socket; Prometheus needs HOST:PORT"),
        a_server(tmp_path / "studies.db", options=ServerOptions(metrics_address="unix:/tmp/x")),
    ):
        pass


def test_the_log_has_a_line_for_each_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "suggest.events")
    with a_server(tmp_path / "studies.db") as server, Client(server.address) as client:
        a_search(client)
        client.delete_study(NAME)
        client.create_study(NAME, SPEC, request_id="again")
        client.suggest(NAME, 1, client_id="c", request_id="r")
    lines = [line for line in caplog.messages if line.startswith("event=")]
    assert [line.split()[0].removeprefix("event=") for line in lines] == [
        "start",
        "study_created",
        "study_taken",
        "study_deleted",
        "study_created",
        "study_taken",
        "stopping",
        "study_given_back",
        "stop",
    ]
    assert re.fullmatch(f"event=study_taken study={NAME} uid=[0-9a-f]+ epoch=1", lines[2])
    listed = set(
        re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Read the events")[2], re.MULTILINE)
    )
    assert {line.split()[0].removeprefix("event=") for line in lines} <= listed


def test_a_name_cannot_inject_a_line_or_field_into_the_log() -> None:
    told = events.line(
        "slow_call", study='a"\nevent=stop x=1', seconds=1.23456, nothing="", absent=None
    )
    assert told == 'event=slow_call study="a\\"\\nevent=stop x=1" seconds=1.235'
    assert len(events.line("x", name="é" * 10_000)) < 2000


def test_loss_and_recovery_of_the_store_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    outages = StoreHealth(lambda: now_s)
    outages.answered(writing=True)
    for _ in range(5):
        outages.refused(StoreUnavailable("studies.db: the disk is full"), writing=True)
        now_s += 0.5
        outages.answered(writing=True)  # a call that needs no write
    outages.refused(NotFound("a study"), writing=True)
    outages.answered(writing=False)
    now_s = 102.0 + SETTLED_S
    outages.answered(writing=True)
    outages.refused(StoreBroken("studies.db: damaged"), writing=False)
    lost, found, broken = caplog.messages
    assert (
        lost
        == 'event=store_lost use=writing reason=UNAVAILABLE error="studies.db: the disk is full"'
    )
    assert re.fullmatch(r"event=store_found use=writing seconds=2\.000 failed_calls=5", found)
    assert broken == 'event=store_lost use=reading reason=STORE_BROKEN error="studies.db: damaged"'
    assert outages.errors == {"unavailable": 5, "store_broken": 1}


def test_with_json_logs_every_line_is_json(tmp_path: Path) -> None:
    words = [
        "serve",
        "--storage",
        f"sqlite:///{tmp_path}/s.db",
        "--address",
        "localhost:0",
        "--insecure",
    ]
    server = forked.tuner([*words, "--log-format", "json"], folder=tmp_path, env=os.environ)
    assert server.stderr is not None
    first = json.loads(server.stderr.readline())
    server.terminate()
    rest = [json.loads(line) for line in server.communicate(timeout=30)[1].splitlines()]
    assert server.returncode == 143
    assert first["level"] == "info"
    assert re.fullmatch(
        f"event=start address=localhost:\\d+ storage=sqlite:///{tmp_path}/s.db", first["message"]
    )
    assert [line["message"].split()[0] for line in rest] == ["event=stopping", "event=stop"]
