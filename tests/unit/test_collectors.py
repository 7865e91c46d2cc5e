"""Collectors of local trials: files that grow, rotate and break,
event files of real libraries, real endpoints.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from controller.core.model import Collection, MetricsFile, MetricsFormat, PrometheusEndpoint
from controller.runtime.local.collectors import Collector, collector_of, prepare
from controller.runtime.local.collectors.prometheus import NoAnswer, samples, scrape
from tests.contract.local_testbed import eventually

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "collectors"
ALL = 1 << 40
NAMES = ("accuracy", "step", "epoch")


class Attempt:
    """The folder of an attempt, and the collector of the controller that runs now."""

    def __init__(self, folder: Path, source: MetricsFile | PrometheusEndpoint) -> None:
        self.folder = folder
        self._collection = Collection(source, NAMES)
        self.variables = prepare(self._collection, folder)
        self.collector = self.another_controller()

    def another_controller(self) -> Collector:
        self.collector = collector_of(self._collection, self.folder)
        return self.collector

    @property
    def file(self) -> Path:
        return Path(self.variables["TUNER_METRICS_FILE"])

    def collected(self, until: int = ALL) -> bytes:
        self.collector.collect(until)
        return self.lines()

    def lines(self) -> bytes:
        path = self.folder / "metrics.txt"
        return path.read_bytes() if path.exists() else b""


@pytest.fixture
def tailed(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path, MetricsFile("logs/metrics.txt"))


# Files of lines


def test_a_file_that_appears_late_is_collected_as_it_grows(tailed: Attempt) -> None:
    assert tailed.collected() == b""
    assert not tailed.collector.grew()
    tailed.file.write_bytes(b"accuracy=0.1\nacc")
    assert tailed.collector.grew()
    assert tailed.collected() == b"accuracy=0.1\nacc"
    assert not tailed.collector.grew()
    with tailed.file.open("ab") as file:
        file.write(b"uracy=0.2\n")
    assert tailed.collector.grew()
    assert not tailed.collector.grew()
    assert tailed.collected() == b"accuracy=0.1\naccuracy=0.2\n"


def test_another_controller_collects_nothing_twice_and_loses_nothing(tailed: Attempt) -> None:
    chance = random.Random(3)
    written = b""
    with tailed.file.open("ab", buffering=0) as file:
        for number in range(300):
            line = b"epoch=%d accuracy=0.5\n" % number
            file.write(line)
            written += line
            if chance.random() < 0.3:
                tailed.collector.collect(chance.randrange(len(written) + 1))
            if chance.random() < 0.3:
                tailed.another_controller()
    assert tailed.collected() == written


def test_a_rotated_file_is_collected_to_its_end(tailed: Attempt) -> None:
    tailed.file.write_bytes(b"accuracy=0.1\n")
    tailed.collected()
    with tailed.file.open("ab") as file:
        file.write(b"accuracy=0.2\n")
    tailed.file.rename(tailed.file.with_name("metrics.txt.1"))
    assert tailed.collected() == b"accuracy=0.1\naccuracy=0.2\n"
    tailed.another_controller()
    tailed.file.write_bytes(b"accuracy=0.3\n")
    assert tailed.collected() == b"accuracy=0.1\naccuracy=0.2\naccuracy=0.3\n"
    tailed.another_controller()
    assert tailed.collected() == b"accuracy=0.1\naccuracy=0.2\naccuracy=0.3\n"


def test_files_that_were_rotated_while_no_controller_ran_are_collected_in_order(
    tailed: Attempt,
) -> None:
    tailed.file.write_bytes(b"accuracy=0.1\n")
    tailed.collected()
    for number in (1, 2, 3):
        for older in range(number, 0, -1):
            before = tailed.file.with_name(
                f"metrics.txt.{older - 1}" if older > 1 else "metrics.txt"
            )
            before.rename(tailed.file.with_name(f"metrics.txt.{older}"))
        tailed.file.write_bytes(b"accuracy=0.%d\n" % (number + 1))
        # the clock of file systems is coarse
        os.utime(tailed.file, ns=(0, time.time_ns() + number * 10**9))
    tailed.file.with_name("metrics.txt.lock").write_bytes(b"accuracy=9\n")
    tailed.another_controller()
    assert tailed.collected(until=30).count(b"\n") == 2
    tailed.another_controller()
    assert tailed.collected() == b"accuracy=0.1\naccuracy=0.2\naccuracy=0.3\naccuracy=0.4\n"


def test_a_file_that_begins_again_begins_a_new_line(tailed: Attempt) -> None:
    tailed.file.write_bytes(b"accuracy=0.1\naccuracy=0.2, and so")
    tailed.collected()
    os.truncate(tailed.file, 0)
    tailed.file.write_bytes(b"accuracy=0.3\n")
    assert tailed.collected() == b"accuracy=0.1\naccuracy=0.2, and so\naccuracy=0.3\n"
    tailed.another_controller()
    assert tailed.collected() == b"accuracy=0.1\naccuracy=0.2, and so\naccuracy=0.3\n"


def test_no_more_is_collected_at_once_than_requested(tailed: Attempt) -> None:
    tailed.file.write_bytes(b"x" * 10_000_000 + b"\naccuracy=0.1\n")
    assert len(tailed.collected(until=1000)) == 1000
    assert tailed.collected().endswith(b"x\naccuracy=0.1\n")


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_a_path_that_is_not_a_file_is_reported_once(tailed: Attempt, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tailed.file)
    else:
        tailed.file.mkdir()
    tailed.collected()
    assert tailed.collected() == f"# tuner: {tailed.file} is not a file\n".encode()


# Event files


def event_files(folder: Path, kind: str) -> Attempt:
    attempt = Attempt(folder, MetricsFile("/tb/runs", MetricsFormat.TENSORBOARD))
    shutil.copytree(FIXTURES / kind, attempt.file, dirs_exist_ok=True)
    return attempt


@pytest.mark.parametrize("kind", ["torch", "tensorflow"])
def test_the_event_files_of_a_library_are_read_as_tensorboard_shows_them(
    kind: str, tmp_path: Path
) -> None:
    lines = event_files(tmp_path, kind).collected().decode()
    assert lines == (FIXTURES / f"{kind}.jsonl").read_text()


def test_event_files_are_read_as_they_grow_byte_by_byte(tmp_path: Path) -> None:
    attempt = event_files(tmp_path, "torch")
    (path,) = attempt.file.glob("*tfevents*")
    data = path.read_bytes()
    path.write_bytes(b"")
    with path.open("ab", buffering=0) as file:
        for at in range(len(data)):
            file.write(data[at : at + 1])
            if at % 97 == 0:
                attempt.another_controller()
            attempt.collected()
    assert sorted(attempt.lines().splitlines()) == sorted(
        (FIXTURES / "torch.jsonl").read_bytes().splitlines()
    )


def test_a_damaged_event_file_gives_no_wrong_value(tmp_path: Path) -> None:
    attempt = event_files(tmp_path, "torch")
    (path,) = attempt.file.glob("*tfevents*")
    data = path.read_bytes()
    right = set((FIXTURES / "torch.jsonl").read_text().splitlines())
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        attempt.another_controller()
        lines = attempt.collected().decode().splitlines()
        notes = [line for line in lines if line.startswith("# tuner: ")]
        assert set(lines) - set(notes) <= right
        assert len(notes) <= 1


def test_a_record_that_is_too_large_for_a_scalar_is_skipped(tmp_path: Path) -> None:
    from controller.runtime.local.collectors.event_files import MAX_RECORD, masked_crc

    attempt = event_files(tmp_path, "torch")
    (path,) = attempt.file.glob("*tfevents*")
    size = (MAX_RECORD + 5).to_bytes(8, "little")
    picture = size + masked_crc(size).to_bytes(4, "little") + bytes(MAX_RECORD + 5) + bytes(4)
    path.write_bytes(picture[:-100])
    assert attempt.collected().count(b"\n") == 1  # the file in the subdirectory
    path.write_bytes(picture + (FIXTURES / "torch" / path.name).read_bytes())
    assert attempt.collected().count(b"\n") == 14


# Endpoints


BODY = """# HELP accuracy Of the last epoch.
# TYPE accuracy gauge
accuracy 0.5
epoch 3.0
python_info{version="3.11"} 1.0
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (BODY, {"accuracy": 0.5, "epoch": 3.0}),
        ("accuracy 5e-1 1395066363000\n", {"accuracy": 0.5}),
        ('accuracy{split="test"} 0.5\n', {"accuracy": 0.5}),
        ('accuracy{split="test"} 0.5\naccuracy{split="train"} 0.6\n', {}),
        (
            'accuracy{split="test"} 0.5\naccuracy{split="train"} 0.6\naccuracy 0.7\n',
            {"accuracy": 0.7},
        ),
        ('accuracy{text="} 1 \\" "} 0.5\n', {"accuracy": 0.5}),
        ("accuracy +Inf\n", {"accuracy": float("inf")}),
        ("accuracy high\naccuracy_total 3\n", {}),
        ("", {}),
    ],
)
def test_the_samples_of_a_response_are_parsed(body: str, expected: dict[str, float]) -> None:
    assert samples(body, NAMES) == expected


class Endpoint(BaseHTTPRequestHandler):
    body = BODY
    asked = threading.Event()
    hangs = threading.Event()  # set: an answer continues

    def do_GET(self) -> None:
        self.asked.set()
        self.send_response(200 if self.path == "/metrics" else 404)
        self.end_headers()
        if self.path == "/metrics":
            self.wfile.write(type(self).body.encode())
            self.wfile.flush()
            self.hangs.wait(20)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def endpoint(*, hangs: bool = False) -> Iterator[tuple[int, type[Endpoint]]]:
    class Handler(Endpoint):
        asked = threading.Event()
        hangs = threading.Event()

    handler = Handler
    if not hangs:
        handler.hangs.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port, handler
    finally:
        handler.hangs.set()
        server.shutdown()
        thread.join()
        server.server_close()


async def lines_of(attempt: Attempt, count: int) -> list[dict[str, float]]:
    attempt.collector.begin()
    await eventually(lambda: attempt.collected().count(b"\n") >= count)
    return [json.loads(line) for line in attempt.lines().splitlines()]


def test_a_value_is_collected_when_it_changes_and_once(tmp_path: Path) -> None:
    async def claim() -> None:
        with endpoint() as (port, handler):
            attempt = Attempt(tmp_path, PrometheusEndpoint(port))
            first = {"accuracy": 0.5, "epoch": 3.0}
            assert await lines_of(attempt, 1) == [first]
            attempt.collector.close()
            attempt.another_controller()
            handler.body = BODY.replace("epoch 3.0", "epoch 4.0")
            assert await lines_of(attempt, 2) == [first, {"accuracy": 0.5, "epoch": 4.0}]
            attempt.collector.finish()

    asyncio.run(claim())


def test_a_line_truncated_by_a_kill_is_written_again(tmp_path: Path) -> None:
    async def claim() -> None:
        with endpoint() as (port, _):
            (tmp_path / "metrics.txt").write_text('{"accuracy": 0.4, "epoch": 2.0}\n{"accur')
            attempt = Attempt(tmp_path, PrometheusEndpoint(port))
            assert [line["epoch"] for line in await lines_of(attempt, 2)] == [2.0, 3.0]
            attempt.collector.finish()

    asyncio.run(claim())


def test_an_endpoint_that_hangs_is_abandoned_and_the_reason_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.runtime.local.collectors.prometheus.PATIENCE_S", 0.2)

    async def claim() -> None:
        with (
            endpoint(hangs=True) as (port, _),
            pytest.raises(NoAnswer, match=r"it did not answer within 0\.2 s"),
        ):
            await scrape(port, "/metrics")
        with endpoint() as (port, _), pytest.raises(NoAnswer, match="404"):
            await scrape(port, "/other")
        attempt = Attempt(tmp_path, PrometheusEndpoint())
        attempt.collector.begin()
        await eventually(lambda: vars(attempt.collector)["_trouble"] != "")
        attempt.collector.finish()
        chosen = attempt.variables["TUNER_METRICS_PORT"]
        assert (
            attempt.lines()
            .decode()
            .startswith(f"# tuner: port {chosen}/metrics: it cannot be reached: ")
        )

    asyncio.run(claim())


def test_an_attempt_keeps_the_port_that_was_chosen_for_it(tmp_path: Path) -> None:
    first = Attempt(tmp_path, PrometheusEndpoint())
    assert Attempt(tmp_path, PrometheusEndpoint()).variables == first.variables
    assert prepare(Collection(PrometheusEndpoint(9100), NAMES), tmp_path) == {
        "TUNER_METRICS_PORT": "9100"
    }
