"""Denial-of-service attacks by one caller on a server. Each attack runs in its own process:

    python -m tests.service.attacks NAME ADDRESS TOKEN SECONDS

It prints `begun` once the attack is running. `Bystander` is another client
that measures how it is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import resource
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from suggest.client import Client
from suggest.katib.v1beta1 import api_pb2 as katib
from suggest.space import Float, Parameter, Space
from suggest.study import Algorithm, Direction, Objective, StudyName, StudySpec
from suggest.trial import Measurement, Outcome, TrialState
from suggest.v1 import suggest_pb2 as pb
from suggest.v1.suggest_pb2_grpc import SuggestServiceStub
from tests.katib_stubs import SuggestionStub
from tests.service.http2 import LARGEST_WINDOW, RawConnection
from tests.service.katib_caller import a_request, a_trial, an_experiment, double
from tests.service.running import ServerProcess

MINE = StudyName("mallory", "mine")
THEIRS = StudyName("alice", "theirs")
DEADLINE_S = 60.0  # of the bystander's calls; long, because their times are measured
SERVICE = "/tuner.suggest.v1.SuggestService/"
HEALTH = "/grpc.health.v1.Health/"
SETTLED_S = 3.0
ELSEWHERE = "127.0.0.9"  # the attackers' address; the bystander is 127.0.0.1
EIGHT_HOSTS = tuple(f"127.0.2.{n}" for n in range(1, 9))
KATIB = "/api.v1.beta1."
KATIB_BYTES = 15 << 20  # of a request that Katib's port receives
POINT = {"lr": "0.02", "layers": "2", "kind": "sgd"}

Begun = Callable[[], None]


def a_spec(parameters: int, algorithm: str = "random") -> StudySpec:
    space = Space(tuple(Parameter(f"p{n}", Float(0.0, 1.0)) for n in range(parameters)))
    return StudySpec(space, (Objective("score", Direction.MAXIMIZE),), Algorithm(algorithm, seed=1))


# The bystander


@dataclass
class Figures:
    """The seconds of each call of a bystander, by the kind of call."""

    took_s: dict[str, list[float]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def longest_ms(self, what: str) -> float:
        return max(self.took_s.get(what, [0.0])) * 1000

    def line(self) -> str:
        parts = [
            f"{what}: {self.longest_ms(what):.0f} ms at most of {len(took)}"
            for what, took in self.took_s.items()
        ]
        return "; ".join([*parts, f"failed: {len(self.failed)}", *self.failed[:1]])


class Bystander:
    """Three threads: one reads a study, one reports many measurements, one connects repeatedly.

    With the address of Katib's port, a fourth one asks there for suggestions,
    as Katib's controller does.
    """

    def __init__(self, address: str, token: str, katib_address: str = "") -> None:
        self.figures = Figures()
        self._over = threading.Event()
        self._address = address
        self._katib_address = katib_address
        self._metadata = (("authorization", f"Bearer {token}"),)
        with Client(address, token=token, timeout_s=DEADLINE_S) as client:
            client.create_study(THEIRS, a_spec(2), request_id="create")
            self._trial = (
                client.suggest(THEIRS, 1, client_id="c", request_id="first").trials[0].number
            )
        callers = [self._read, self._report, self._connect]
        if katib_address:
            callers.append(self._suggest)
        self._threads = [threading.Thread(target=each) for each in callers]
        for thread in self._threads:
            thread.start()

    def stop(self) -> Figures:
        self._over.set()
        for thread in self._threads:
            thread.join()
        return self.figures

    def _timed(self, what: str, call: Callable[[], object]) -> None:
        began = time.perf_counter()
        try:
            call()
        except grpc.RpcError as e:
            self.figures.failed.append(f"{what}: {e.code().name}: {e.details()}")  # type: ignore[attr-defined]
        self.figures.took_s.setdefault(what, []).append(time.perf_counter() - began)

    def _read(self) -> None:
        with grpc.insecure_channel(self._address) as channel:
            stub = SuggestServiceStub(channel)
            request = pb.GetStudyRequest(name=str(THEIRS))
            while not self._over.wait(0.01):
                self._timed(
                    "GetStudy",
                    lambda: stub.GetStudy(request, timeout=DEADLINE_S, metadata=self._metadata),
                )

    def _report(self) -> None:
        with grpc.insecure_channel(self._address) as channel:
            stub = SuggestServiceStub(channel)
            step = 0
            while not self._over.wait(0.2):
                measured = [
                    pb.Measurement(attempt=1, metric="score", step=step + n, value=0.5)
                    for n in range(600)
                ]
                step += len(measured)
                request = pb.ReportMeasurementsRequest(
                    name=f"{THEIRS}/trials/{self._trial}", measurements=measured
                )
                self._timed(
                    "report of 600",
                    lambda request=request: stub.ReportMeasurements(  # type: ignore[misc]
                        request, timeout=DEADLINE_S, metadata=self._metadata
                    ),
                )

    def _connect(self) -> None:
        while not self._over.wait(0.2):
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(self._address, options=options) as channel:
                check = health_pb2_grpc.HealthStub(channel).Check
                self._timed(
                    "new connection",
                    lambda check=check: check(health_pb2.HealthCheckRequest(), timeout=20),
                )  # type: ignore[misc]

    def _suggest(self) -> None:
        trials = [a_trial(f"search-{n}", POINT, accuracy=str(n)) for n in range(100)]
        request = a_request(an_experiment(), trials)
        with grpc.insecure_channel(self._katib_address) as channel:
            stub = SuggestionStub(channel)
            while not self._over.wait(0.05):
                self._timed(
                    "GetSuggestions", lambda: stub.GetSuggestions(request, timeout=DEADLINE_S)
                )


class Memory(threading.Thread):
    """Samples the resident memory of a process until stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._status = Path(f"/proc/{pid}/status")
        self._over = threading.Event()
        self.before_mb = self.most_mb = self._now_mb()
        self.start()

    def _now_mb(self) -> float:
        try:
            lines = self._status.read_text(encoding="ascii").splitlines()
        except OSError:
            return 0.0
        return next(
            (int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), 0.0
        )

    def run(self) -> None:
        while not self._over.wait(0.02):
            self.most_mb = max(self.most_mb, self._now_mb())

    def stop(self) -> float:
        self._over.set()
        self.join()
        return self.most_mb


@contextmanager
def attacked(name: str, server: ServerProcess, token: str, seconds: float) -> Iterator[None]:
    """Run an attack until it ends or the `with` block ends."""
    address = server.katib_address if name in KATIB_ATTACKS else server.address
    command = [sys.executable, "-m", "tests.service.attacks", name, address, token, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "begun\n", f"the attack {name} did not begin: {line}"
        yield
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


# The attacks


def validate(address: str, token: str, begun: Begun, end_s: float) -> None:
    """(a) Validate 200 parameters with 10,000 empty values each: 3.8 MiB of empty messages."""
    empty = pb.ChoiceDomain(values=[pb.Value()] * 9_900)
    parameters = [pb.Parameter(name=f"p{n}", choice_domain=empty) for n in range(200)]
    _again_and_again(
        address,
        token,
        begun,
        end_s,
        2,
        "ValidateStudy",
        pb.ValidateStudyRequest(spec=pb.StudySpec(parameters=parameters)),
    )


def misspelled(address: str, token: str, begun: Begun, end_s: float) -> None:
    """(e) Validate 30 spaces at once whose conditions have misspelled names of parameters."""
    conditions = [pb.Condition(parameter=f"qqqqqqqqqqqqqqqqqqqq{n}") for n in range(32)]
    parameters = [
        pb.Parameter(
            name=f"pppppppppppppppppppp{n}",
            float_domain=pb.FloatDomain(max=1),
            conditions=conditions,
        )
        for n in range(999)
    ]
    _again_and_again(
        address,
        token,
        begun,
        end_s,
        30,
        "ValidateStudy",
        pb.ValidateStudyRequest(spec=pb.StudySpec(parameters=parameters)),
    )


def garbage(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Send 3 MB that are no request, 20 times at once."""
    _send_again_and_again(address, token, begun, end_s, 20, "SuggestTrials", b"\xff" * 3_000_000)


def large_names(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Send 4 MiB of names of parameters that the study does not have, 30 requests at a time."""
    _a_study(address, token, a_spec(999))
    request = pb.AddTrialRequest(parent=str(MINE), request_id="r")
    for n in range(999):
        request.parameters[f"qqqqqqqqqqqqqqqqqqqq{n}"].double_value = 0.5
    _again_and_again(address, token, begun, end_s, 30, "AddTrial", request)


def suggestions(address: str, token: str, begun: Begun, end_s: float) -> None:
    """(d) Request 300 points of each of eight studies with 300 parameters at once."""
    studies = [StudyName(MINE.namespace, f"mine{n}") for n in range(8)]
    with Client(address, token=token, timeout_s=60) as client:
        for name in studies:
            client.create_study(name, a_spec(300, "tpe"), request_id="create")
            for n, trial in enumerate(
                client.suggest(name, 12, client_id="c", request_id="first").trials
            ):
                outcome = Outcome(TrialState.SUCCEEDED)
                client.complete(
                    name, trial.number, outcome, measurements=[Measurement(1, "score", 0, n / 12)]
                )
    begun()

    def ask(name: StudyName, stub: Any, metadata: Any) -> None:
        while time.monotonic() < end_s:
            request = pb.SuggestTrialsRequest(
                parent=str(name), count=300, client_id="c", request_id=uuid.uuid4().hex
            )
            with contextlib.suppress(grpc.RpcError):
                stub.SuggestTrials(request, timeout=10, metadata=metadata)

    with grpc.insecure_channel(
        address, options=[("grpc.max_receive_message_length", -1)]
    ) as channel:
        stub = SuggestServiceStub(channel)
        threads = [
            threading.Thread(target=ask, args=(name, stub, _bearer(token))) for name in studies
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def unread(address: str, token: str, begun: Begun, end_s: float) -> None:
    """(b) Request 700 lists of three megabytes on one connection, and read none of them."""
    _a_study(address, token, a_spec(3))
    labels = {f"label{n}": "x" * 1000 for n in range(40)}
    with Client(address, token=token, timeout_s=60) as client:
        client.suggest(MINE, 80, client_id="c", request_id="first", labels=labels)
    connection = RawConnection(address, window=LARGEST_WINDOW)
    request = pb.ListTrialsRequest(parent=str(MINE), page_size=1000).SerializeToString()
    for _ in range(700):
        connection.request(f"{SERVICE}ListTrials", request, _bearer(token))
    begun()
    time.sleep(max(0.0, end_s - time.monotonic()))


def unread_on_many(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Do the same on 70 connections."""
    _a_study(address, token, a_spec(3))
    labels = {f"label{n}": "x" * 1000 for n in range(40)}
    with Client(address, token=token, timeout_s=60) as client:
        client.suggest(MINE, 80, client_id="c", request_id="first", labels=labels)
    connections = [RawConnection(address, window=LARGEST_WINDOW) for _ in range(70)]
    request = pb.ListTrialsRequest(parent=str(MINE), page_size=1000).SerializeToString()
    for connection in connections:
        for _ in range(10):
            connection.request(f"{SERVICE}ListTrials", request, _bearer(token))
    begun()
    time.sleep(max(0.0, end_s - time.monotonic()))


def quiet(address: str, token: str, begun: Begun, end_s: float) -> None:
    """(c) Open 1,100 connections that send nothing, and open them again when they are closed."""
    _many_files()
    host, _, port = address.rpartition(":")
    there: list[socket.socket] = []

    def fill() -> None:
        while len(there) < 1_100 and time.monotonic() < end_s:
            try:
                there.append(
                    socket.create_connection(
                        (host, int(port)), timeout=2, source_address=(ELSEWHERE, 0)
                    )
                )
            except OSError:
                time.sleep(0.05)

    filling = threading.Thread(target=fill, daemon=True)
    filling.start()
    filling.join(1.5)  # all connections are open, or the server refuses them
    begun()
    while time.monotonic() < end_s:
        time.sleep(0.2)
        for each in list(there):
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                try:
                    gone = not each.recv(65536)
                except ConnectionError:
                    gone = True
                if gone:
                    each.close()
                    there.remove(each)
        if len(there) < 1_000:
            threading.Thread(target=fill, daemon=True).start()


def polite_quiet(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Open 1,100 valid HTTP/2 connections that check the server's health once and stay open."""
    _polite(address, begun, end_s, lambda: ELSEWHERE)


def polite_hosts(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Do the same from 250 hosts."""
    hosts = itertools.cycle(f"127.0.1.{n}" for n in range(1, 251))
    _polite(address, begun, end_s, lambda: next(hosts))


def _polite(address: str, begun: Begun, end_s: float, source: Callable[[], str]) -> None:
    _many_files()
    there: list[RawConnection] = []

    def fill() -> None:
        while len(there) < 1_100 and time.monotonic() < end_s:
            try:
                connection = RawConnection(address, timeout_s=2, source=source())
                connection.request(f"{HEALTH}Check", b"")
                there.append(connection)
            except OSError:
                time.sleep(0.05)

    filling = threading.Thread(target=fill, daemon=True)
    filling.start()
    filling.join(2.5)  # all connections are open, or the server refuses them
    begun()
    while time.monotonic() < end_s:
        time.sleep(0.05)
        for each in list(there):
            if not each.look(0.0001):
                each.close()
                there.remove(each)
        if len(there) < 1_000:
            threading.Thread(target=fill, daemon=True).start()


def halves(address: str, token: str, begun: Begun, end_s: float) -> None:
    """(c) Without a token, send 100 requests without their last bytes."""
    _halves(address, (), begun, end_s)


def halves_with_token(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Do the same with a token that may read."""
    _halves(address, _bearer(token), begun, end_s)


def _halves(
    address: str, metadata: tuple[tuple[str, str], ...], begun: Begun, end_s: float
) -> None:
    size = (4 << 20) - 100
    content = b"\0" + size.to_bytes(4) + b"\0" * (size - 1)
    connections = [RawConnection(address, source=ELSEWHERE) for _ in range(10)]
    parts = [
        [connection, connection.open(f"{SERVICE}ValidateStudy", metadata), 0]
        for connection in connections
        for _ in range(10)
    ]
    began = time.monotonic()
    told = False
    while time.monotonic() < end_s:
        for part in parts:
            connection, stream, sent = part
            with contextlib.suppress(OSError):
                part[2] = sent + connection.send(stream, content[sent : sent + (256 << 10)])  # type: ignore[operator,union-attr]
        for connection in connections:
            connection.look(0.001)
        if not told and (
            time.monotonic() - began > SETTLED_S or all(part[2] == len(content) for part in parts)
        ):
            told = True
            begun()


def denied(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Without a token, send calls as fast as possible on eight connections."""
    begun()
    request = pb.GetStudyRequest(name=str(THEIRS)).SerializeToString()
    _flood(address, end_s, lambda connection: connection.request(f"{SERVICE}GetStudy", request))


def _flood(address: str, end_s: float, send: Callable[[RawConnection], None]) -> None:
    connections: list[RawConnection] = []
    while time.monotonic() < end_s:
        while len(connections) < 8:
            connections.append(RawConnection(address, source=ELSEWHERE))
        for connection in list(connections):
            try:
                for _ in range(20):
                    send(connection)
                there = connection.look(0.001)
            except OSError:
                there = False
            if not there:
                connection.close()
                connections.remove(connection)


def flood(address: str, token: str, begun: Begun, end_s: float) -> None:
    """With a token, send GetStudy as fast as possible on eight connections."""
    _a_study(address, token, a_spec(3))
    begun()
    request = pb.GetStudyRequest(name=str(MINE)).SerializeToString()
    _flood(
        address,
        end_s,
        lambda connection: connection.request(f"{SERVICE}GetStudy", request, _bearer(token)),
    )


def resets(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Without a token, open streams and cancel each at once (rapid reset,
    CVE-2023-44487), on eight connections.
    """
    begun()
    _flood(
        address,
        end_s,
        lambda connection: connection.reset(connection.open(f"{SERVICE}SuggestTrials")),
    )


def watches(address: str, token: str, begun: Begun, end_s: float) -> None:
    """(c) Without a token, open 3,000 streams that watch the server's health."""

    async def watch() -> None:
        channels = [
            grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(30)
        ]
        calls = [
            health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            for channel in channels
            for _ in range(100)
        ]

        async def first(call: Any) -> None:
            with contextlib.suppress(grpc.RpcError, TimeoutError):
                async with asyncio.timeout(5):
                    await call.read()

        await asyncio.gather(*map(first, calls))
        begun()
        await asyncio.sleep(max(0.0, end_s - time.monotonic()))

    asyncio.run(watch())


# Attacks on Katib's port, which needs no token, from eight hosts at once


def katib_trials(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Send histories of 15 MiB of empty trials: eight million of two bytes each."""
    _from_eight_hosts(
        address, begun, end_s, "Suggestion/GetSuggestions", b"\x12\0" * (KATIB_BYTES // 2)
    )


def katib_assignments(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Send one trial of 15 MiB of empty assignments."""
    trial = _field(0x12, _field(0x12, _field(0x1A, b"\x0a\0" * (KATIB_BYTES // 2))))
    experiment = _field(0x0A, an_experiment().SerializeToString())
    _from_eight_hosts(address, begun, end_s, "Suggestion/GetSuggestions", experiment + trial)


def katib_labels(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Send one trial of 15 MiB of labels."""
    labels = b"".join(
        _field(0x22, _field(0x0A, f"{n:x}".encode())) for n in range(KATIB_BYTES // 10)
    )
    experiment = _field(0x0A, an_experiment().SerializeToString())
    request = experiment + _field(0x12, _field(0x0A, b"t") + _field(0x12, labels))
    _from_eight_hosts(address, begun, end_s, "Suggestion/GetSuggestions", request)


def katib_texts(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Validate 15 MiB of choices of one character."""
    space = _field(0x1A, b"\x1a\x01x" * (KATIB_BYTES // 3))
    request = _field(0x0A, _field(0x12, _field(0x0A, _field(0x0A, space))))
    _from_eight_hosts(address, begun, end_s, "Suggestion/ValidateAlgorithmSettings", request)


def katib_lines(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Report 15 MiB of empty lines."""
    lines = _field(0x12, b"\x0a\0" * (KATIB_BYTES // 2))
    _from_eight_hosts(address, begun, end_s, "DBManager/ReportObservationLog", lines)


def katib_unknown(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Send 15 MiB of fields that the message does not have, in trials, in groups,
    and as deep as a parser goes.
    """
    nested = b"\x7b" * 90 + b"\x7c" * 90
    trials = _field(0x12, b"\x78\0\x7a\0" * 1000) * 1000
    content = trials + nested * ((KATIB_BYTES - len(trials)) // len(nested))
    _from_eight_hosts(address, begun, end_s, "Suggestion/GetSuggestions", content)


def katib_nested(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Send messages nested deeper than any parser reads, 15 MiB of them."""
    content = b""
    while len(content) < KATIB_BYTES - 16:
        content = _field(0x12, content)
        if len(content) > 10_000:
            content *= 2
    _from_eight_hosts(
        address, begun, end_s, "EarlyStopping/GetEarlyStoppingRules", content[:KATIB_BYTES]
    )


def katib_histories(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Send correct histories as long as the port receives,
    of trials that the server does not know.
    """
    trials = [a_trial(f"search-{n}", POINT, accuracy=str(n)) for n in range(10_000)]
    request = a_request(an_experiment(), trials).SerializeToString()
    _from_eight_hosts(address, begun, end_s, "Suggestion/GetSuggestions", request)


def katib_searches(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Send correct histories of 40,000 trials, in 12 MB, each of another experiment."""
    point = {f"parameter{n}": f"0.{n}12345678" for n in range(8)}
    trials = [a_trial(f"search-{n:05}", point, accuracy=str(n)) for n in range(40_000)]
    history = katib.GetSuggestionsRequest(
        trials=trials, current_request_number=1, total_request_number=1
    )
    serialized = history.SerializeToString()
    space = [double(name, "0", "1") for name in point]
    numbers = itertools.count()

    def request() -> bytes:
        experiment = an_experiment("random", space, name=f"search-{next(numbers)}")
        return _field(0x0A, experiment.SerializeToString()) + serialized

    _from_eight_hosts(address, begun, end_s, "Suggestion/GetSuggestions", request)


def katib_models(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Send correct histories of 300 trials, each of another experiment with a Gaussian process."""
    trials = [
        a_trial(f"search-{n}", {"x": f"0.{n:03}", "y": f"0.{n:03}"}, accuracy=str(n % 7))
        for n in range(300)
    ]
    space = [double(name, "0", "1") for name in ("x", "y")]
    numbers = itertools.count()

    def request() -> bytes:
        experiment = an_experiment("bayesianoptimization", space, name=f"search-{next(numbers)}")
        return a_request(experiment, trials).SerializeToString()

    _from_eight_hosts(address, begun, end_s, "Suggestion/GetSuggestions", request)


def katib_slow(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Send requests of 15 MiB on 80 connections, a few bytes at a time."""
    connections = [RawConnection(address, source=host) for host in EIGHT_HOSTS for _ in range(10)]
    head = b"\0" + KATIB_BYTES.to_bytes(4)
    streams = [connection.open(f"{KATIB}Suggestion/GetSuggestions") for connection in connections]
    for connection, stream in zip(connections, streams, strict=True):
        connection.send(stream, head)
    begun()
    while time.monotonic() < end_s:
        for place, connection in enumerate(connections):
            try:
                if not connection.send(streams[place], b"\x12\0" * 8000) or not connection.look(
                    0.0001
                ):
                    raise ConnectionError
                if connection.ended(streams[place]):
                    streams[place] = connection.open(f"{KATIB}Suggestion/GetSuggestions")
                    connection.send(streams[place], head)
            except OSError:
                continue


def katib_gzip(address: str, token: str, begun: Begun, end_s: float) -> None:
    """Send 15 kB that unpack to 15 MiB of empty trials."""
    packed = gzip.compress(b"\x12\0" * (KATIB_BYTES // 2))
    message = b"\x01" + len(packed).to_bytes(4) + packed
    _from_eight_hosts(
        address,
        begun,
        end_s,
        "Suggestion/GetSuggestions",
        message,
        framed=True,
        metadata=(("grpc-encoding", "gzip"),),
    )


def _field(tag: int, content: bytes) -> bytes:
    length, left = bytearray(), len(content)
    while left >= 128:
        length.append(left % 128 + 128)
        left //= 128
    return bytes((tag, *length, left)) + content


def _from_eight_hosts(
    address: str,
    begun: Begun,
    end_s: float,
    method: str,
    request: bytes | Callable[[], bytes],
    *,
    framed: bool = False,
    metadata: tuple[tuple[str, str], ...] = (),
) -> None:
    """Send a request again and again, on two connections of each of eight hosts.

    Replies are not waited for.
    """

    def content() -> bytes:
        message = request if isinstance(request, bytes) else request()
        return message if framed else b"\0" + len(message).to_bytes(4) + message

    def repeat(host: str) -> None:
        while time.monotonic() < end_s:
            connection = RawConnection(address, source=host)
            with contextlib.suppress(OSError):
                is_open = True
                while is_open and time.monotonic() < end_s:
                    is_open = _sent(
                        connection, connection.open(KATIB + method, metadata), content()
                    )
            connection.close()

    threads = [
        threading.Thread(target=repeat, args=(host,)) for host in EIGHT_HOSTS for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    begun()
    for thread in threads:
        thread.join()


def _sent(connection: RawConnection, stream: int, content: bytes) -> bool:
    """Send a request, and wait for the end of its call.

    Return False if the server has closed the connection.
    """
    sent, until = 0, time.monotonic() + 10
    view = memoryview(content)
    while not connection.ended(stream) and time.monotonic() < until:
        sent += connection.send(stream, view[sent : sent + (1 << 20)])
        if sent == len(content):
            connection.end(stream)
            sent += 1
        if not connection.look(0.05 if sent > len(content) else 0.001):
            return False
    return connection.ended(stream)


KATIB_ATTACKS: dict[str, Callable[[str, str, Begun, float], None]] = {
    each.__name__: each
    for each in (
        katib_trials,
        katib_assignments,
        katib_labels,
        katib_texts,
        katib_lines,
        katib_unknown,
        katib_nested,
        katib_histories,
        katib_searches,
        katib_models,
        katib_slow,
        katib_gzip,
    )
}
ATTACKS: dict[str, Callable[[str, str, Begun, float], None]] = KATIB_ATTACKS | {
    each.__name__: each
    for each in (
        validate,
        misspelled,
        garbage,
        large_names,
        suggestions,
        unread,
        unread_on_many,
        quiet,
        polite_quiet,
        polite_hosts,
        denied,
        flood,
        halves,
        halves_with_token,
        resets,
        watches,
    )
}


def _bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def _a_study(address: str, token: str, spec: StudySpec) -> None:
    with Client(address, token=token, timeout_s=60) as client:
        client.create_study(MINE, spec, request_id="create")


def _again_and_again(
    address: str, token: str, begun: Begun, end_s: float, at_once: int, method: str, request: Any
) -> None:
    _send_again_and_again(
        address, token, begun, end_s, at_once, method, request.SerializeToString()
    )


def _send_again_and_again(
    address: str,
    token: str,
    begun: Begun,
    end_s: float,
    at_once: int,
    method: str,
    serialized: bytes,
) -> None:
    with grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        send = channel.unary_unary(f"{SERVICE}{method}")

        def repeat() -> None:
            while time.monotonic() < end_s:
                with contextlib.suppress(grpc.RpcError):
                    send(serialized, timeout=60, metadata=_bearer(token))

        threads = [threading.Thread(target=repeat) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        begun()
        for thread in threads:
            thread.join()


def _many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    name, address, token, seconds = sys.argv[1:]
    ATTACKS[name](
        address, token, lambda: print("begun", flush=True), time.monotonic() + float(seconds)
    )


if __name__ == "__main__":
    main()
