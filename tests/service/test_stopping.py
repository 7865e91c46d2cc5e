"""A graceful stop: calls in progress are answered, new ones refused,
and clients continue with the next server.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from suggest.client import Client
from suggest.server import Server, ServerOptions, call_pool
from suggest.study import Algorithm, StudyName, StudySpec
from suggest.trial import Outcome, TrialState
from suggest.v1 import suggest_pb2 as pb
from suggest.v1.suggest_pb2_grpc import SuggestServiceStub
from tests.conditions import eventually
from tests.service.running import NAME, SPEC, a_process, a_server

SLOW = StudyName("default", "slow")
# Optuna's TPE, asked for many trials at once without any outcome, computes for a second.
SLOW_SPEC = StudySpec(
    SPEC.space, SPEC.objectives, Algorithm("optuna:tpe", seed=1, settings={"startupTrials": 1})
)


def slow_calls(
    client: Client, calls: int, pool: ThreadPoolExecutor, *, count: int
) -> list[Future[int]]:
    def ask(number: int) -> int:
        return len(client.suggest(SLOW, count, client_id="c", request_id=f"slow-{number}").trials)

    return [pool.submit(ask, number) for number in range(calls)]


def a_slow_study(client: Client) -> None:
    client.create_study(SLOW, SLOW_SPEC, request_id="slow")
    for number, trial in enumerate(
        client.suggest(SLOW, 5, client_id="c", request_id="first").trials
    ):
        client.complete(SLOW, trial.number, Outcome(TrialState.SUCCEEDED, float(number)))


def test_a_slow_study_does_not_delay_the_others(tmp_path: Path) -> None:
    with (
        a_server(tmp_path / "studies.db") as server,
        Client(server.address, timeout_s=60) as client,
    ):
        client.create_study(NAME, SPEC, request_id="create")
        a_slow_study(client)
        with ThreadPoolExecutor(16) as pool:
            slow = slow_calls(client, 16, pool, count=12)
            eventually(lambda: any(call.done() for call in slow))
            before = sum(call.done() for call in slow)
            for number in range(5):
                client.suggest(NAME, 1, client_id="c", request_id=f"r{number}")
            # With eight threads in order of arrival, the first call alone would have waited for
            # eight of the slow ones.
            assert sum(call.done() for call in slow) - before < 8
            assert [call.result() for call in slow] == [12] * 16


def in_flight(server: Server) -> int:
    with urllib.request.urlopen(
        f"http://localhost:{server.metrics_port}/metrics", timeout=10
    ) as reply:
        found = re.search(rb"^tuner_suggest_calls_in_flight (\d+)", reply.read(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def told_of_health(address: str, begun: threading.Event) -> list[int]:
    """Collect the reported health until the server is gone."""
    told = list[int]()
    with grpc.insecure_channel(address) as channel, contextlib.suppress(grpc.RpcError):
        for reply in health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=60
        ):
            told.append(reply.status)
            begun.set()
    return told


def test_calls_in_progress_are_answered_and_health_reports_the_stop(tmp_path: Path) -> None:
    options = ServerOptions(metrics_address="localhost:0")
    watched = threading.Event()
    with ThreadPoolExecutor(8) as pool:
        with a_server(tmp_path / "studies.db", options=options) as server:
            client = Client(server.address, timeout_s=60)
            a_slow_study(client)
            health = pool.submit(told_of_health, server.address, watched)
            assert watched.wait(30)
            slow = slow_calls(client, 4, pool, count=12)
            eventually(lambda: in_flight(server) + sum(call.done() for call in slow) >= 4)
        assert [call.result() for call in slow] == [12] * 4, "also those that waited for their turn"
        assert health.result() == [
            health_pb2.HealthCheckResponse.SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        ]
        client.close()


def test_clients_do_not_notice_a_replaced_server(folder: Path) -> None:
    address = f"unix:{folder}/s.sock"
    with Client(address, timeout_s=60) as client, ThreadPoolExecutor(4) as pool:
        with a_process(folder / "studies.db", address) as server:
            client.create_study(NAME, SPEC, request_id="create")
            enough = threading.Event()
            load = [pool.submit(search, client, f"w{worker}", enough) for worker in range(4)]
            eventually(lambda: len(client.list_trials(NAME)) > 8)
            assert server.stop() == 128 + signal.SIGTERM
        with a_process(folder / "studies.db", address):
            there = len(client.list_trials(NAME))
            eventually(lambda: len(client.list_trials(NAME)) > there + 8)
            enough.set()
            answered = sorted(number for worker in load for number in worker.result())
            assert answered == [trial.number for trial in client.list_trials(NAME)], (
                "nothing lost, nothing twice"
            )


def search(client: Client, worker: str, enough: threading.Event) -> list[int]:
    answered = list[int]()
    while not enough.is_set():
        [trial] = client.suggest(
            NAME, 1, client_id=worker, request_id=f"{worker}-{len(answered)}"
        ).trials
        client.complete(NAME, trial.number, Outcome(TrialState.SUCCEEDED, 1.0))
        answered.append(trial.number)
    return answered


def test_a_second_signal_ends_it_at_once(folder: Path) -> None:
    with (
        a_process(folder / "studies.db", f"unix:{folder}/s.sock") as server,
        Client(server.address, timeout_s=60) as client,
        grpc.insecure_channel(server.address) as channel,
        ThreadPoolExecutor(2) as pool,
    ):
        a_slow_study(client)
        asked = pb.SuggestTrialsRequest(
            parent=str(SLOW), count=1000, client_id="c", request_id="endless"
        )
        call = SuggestServiceStub(channel).SuggestTrials.future(asked, timeout=60)
        health = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=60
        )
        next(health)
        stopped = pool.submit(server.stop)
        assert next(health).status == health_pb2.HealthCheckResponse.NOT_SERVING
        os.kill(server.pid, signal.SIGINT)
        assert stopped.result() == 128 + signal.SIGINT
        assert call.code() is grpc.StatusCode.UNAVAILABLE, (
            "what was being computed is not waited for"
        )


def test_a_study_whose_suggestions_take_long_leaves_those_of_other_studies_light(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_pool, "HEAVY_S", 0.0)
    other = StudyName("default", "other")
    with (
        a_server(tmp_path / "studies.db") as server,
        Client(server.address, timeout_s=20) as client,
    ):
        for study in (NAME, other):
            client.create_study(study, SPEC, request_id="create")
        client.suggest(NAME, 1, client_id="c", request_id="r")
        heavy_threads = server._servers._pool._heavy_threads
        heavy_threads.add("somebody", heavy_threads.total)
        assert len(client.suggest(other, 1, client_id="c", request_id="r").trials) == 1
        heavy_threads.give("somebody", heavy_threads.total)


def test_a_thread_that_computes_keeps_the_gil_for_a_millisecond_at_most(folder: Path) -> None:
    program = """
import contextlib, os, signal, sys
from suggest.server import Server, serve

@contextlib.asynccontextmanager
async def companion(server):
    print(f"{sys.getswitchinterval():.4f}", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    yield

serve(Server(f"sqlite:///{sys.argv[1]}/s.db", f"unix:{sys.argv[1]}/s.sock"), announce=True, companion=companion)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "0.0010\n", done.stderr
