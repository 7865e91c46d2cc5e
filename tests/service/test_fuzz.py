"""The service answers any request quickly, never with an internal error,
and without leaking resources.

`make fuzz` sends many more random requests; FUZZ_REQUESTS sets their number.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc

# hypothesis checks for it, perhaps during the import in the server's thread
import numpy  # noqa: F401
import pytest
from hypothesis import HealthCheck, given, settings

from suggest.client import Client
from suggest.study import Algorithm, StudyName, StudySpec
from suggest.trial import Outcome, TrialState
from tests.service.requests_drawn import METHODS, SERVICE, STUDIES, requests, valid_requests
from tests.service.running import SPEC, a_server

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "150"))
LONG = REQUESTS > 1000
WITHIN_S = 10.0
GROWTH_MB = 60.0  # allowed growth of the process, in which hypothesis remembers its examples
_BUGS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED)
_OUTAGES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.CANCELLED)


@dataclass
class Sent:
    """The number of each kind of reply, and the resources of the process half-way."""

    codes: Counter[str] = field(default_factory=Counter)
    held: list[tuple[int, int, float]] = field(default_factory=list)

    def answer(self, code: grpc.StatusCode) -> None:
        self.codes[code.name] += 1
        if self.codes.total() in (REQUESTS // 2, REQUESTS):
            self.held.append(held())


def held() -> tuple[int, int, float]:
    """Threads beside the server's pool, which may grow to its limit; files, megabytes."""
    open_files = Path("/proc/self/fd")
    files = len(list(open_files.iterdir())) if open_files.exists() else 0
    status = Path("/proc/self/status")
    resident = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
    threads = sum(not thread.name.startswith("suggest_") for thread in threading.enumerate())
    return threads, files, int(resident[1]) / 1024 if resident else 0.0


def make_studies(client: Client) -> None:
    """Create the studies that do not exist."""
    there = {study.name for study in client.list_studies("default")}
    for name in STUDIES[:3]:
        known = StudyName("default", name.rpartition("/")[2])
        if known in there:
            continue
        spec = StudySpec(
            SPEC.space,
            SPEC.objectives,
            Algorithm("random" if known.study == "grid" else known.study, 7),
        )
        client.create_study(known, spec, request_id="create")
        for trial in client.suggest(known, 3, client_id="client", request_id="first").trials[:1]:
            client.complete(known, trial.number, Outcome(TrialState.SUCCEEDED, 1.0))


def test_no_request_triggers_a_bug_or_leaks_resources(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with a_server(tmp_path / "studies.db") as server, Client(server.address) as client:
        make_studies(client)
        with grpc.insecure_channel(
            server.address, options=[("grpc.enable_http_proxy", 0)]
        ) as channel:
            calls = {name: channel.unary_unary(f"/{SERVICE.full_name}/{name}") for name in METHODS}
            for name in METHODS:
                assert valid_requests(name)
            sent = Sent()

            @settings(
                max_examples=REQUESTS,
                deadline=None,
                database=None,
                derandomize=not LONG,
                print_blob=LONG,
                suppress_health_check=list(HealthCheck),
            )
            @given(requests())
            def fuzz(drawn: tuple[str, bytes]) -> None:
                method, serialized = drawn
                try:
                    calls[method](serialized, timeout=WITHIN_S)
                    code = grpc.StatusCode.OK
                except grpc.RpcError as e:
                    # what grpc raises is a call too
                    failure: grpc.Call = e  # type: ignore[assignment]
                    code = failure.code()
                    assert code not in _BUGS + _OUTAGES, (
                        method,
                        failure.details(),
                        caplog.text[-3000:],
                    )
                sent.answer(code)
                if method == "DeleteStudy" and code is grpc.StatusCode.OK:
                    make_studies(client)

            fuzz()
            client.get_study(StudyName("default", "random"))
            (threads, files, megabytes), (threads_then, files_then, megabytes_then) = (
                sent.held[0],
                held(),
            )
            assert threads_then <= threads + 1, "a warm-up may be under way"
            assert files_then <= files + 4, "a connection of the pool, a lock of a study"
            assert megabytes_then < megabytes + GROWTH_MB
            print(
                f"{sent.codes.total()} requests: {dict(sent.codes)}; {megabytes:.0f} -> "
                f"{megabytes_then:.0f} MB"
            )
