"""trial_image/collector: the sidecar prints what the collectors of local trials write, and ends
when it is asked to.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from controller.core.metrics import LogReader
from controller.core.model import MetricsFile, MetricsRule
from suggest.katib.v1beta1 import api_pb2 as pb
from tests.clients.toolchain import ROOT, go
from tests.katib_stubs import DBManagerStub
from tests.unit.builders import an_objective
from tests.unit.test_collectors import BODY, endpoint

FIXTURES = ROOT / "tests" / "fixtures" / "collectors"
BEGIN, END = "\n# tuner: begin\n", "# tuner: end"


@pytest.fixture(scope="module")
def collector() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        go("build", "-o", folder, ".", folder=ROOT / "trial_image" / "collector")
        yield Path(folder, "collector")


class Sidecar:
    """A running collector."""

    def __init__(self, program: Path, words: Sequence[object], output: Path) -> None:
        self._output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen([program, *map(str, words)], stdout=file)

    def lines(self) -> list[str]:
        """Return what it has printed, without what it prints before it reads a source."""
        return self._output.read_text(errors="replace").removeprefix(BEGIN).splitlines()

    def prints(self, condition: Callable[[list[str]], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition(self.lines()):
            assert time.monotonic() < deadline, self.lines()
            time.sleep(0.01)

    def ended(self) -> list[str]:
        """Ask it to end, and return all its lines but the last."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0
        *lines, last = self.lines()
        assert last == END
        return lines


@contextmanager
def running(program: Path, folder: Path, *words: object) -> Iterator[Sidecar]:
    sidecar = Sidecar(program, words, folder / "printed.txt")
    try:
        yield sidecar
    finally:
        sidecar.process.kill()
        sidecar.process.wait()


def test_a_file_that_appears_late_grows_and_is_rotated_is_printed_once(
    collector: Path, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.log"
    with running(collector, tmp_path, "file", path) as sidecar:
        path.write_text("accuracy=0.1\n")
        sidecar.prints(lambda lines: lines == ["accuracy=0.1"])
        path.rename(tmp_path / "metrics.log.1")
        with (tmp_path / "metrics.log.1").open("a") as file:
            file.write("accuracy=0.2\naccu")
        path.write_text("accuracy=0.3\n")
        sidecar.prints(lambda lines: len(lines) == 4)
        path.write_text("a=0.4")  # shorter than what was read
        assert sidecar.ended() == ["accuracy=0.1", "accuracy=0.2", "accu", "accuracy=0.3", "a=0.4"]


def test_lines_that_a_killed_sidecar_had_printed_count_once(
    collector: Path, tmp_path: Path
) -> None:
    path, printed = tmp_path / "metrics.log", b""
    for number in range(1, 4):
        with path.open("a") as file:
            file.write(f"accuracy={number / 4}\naccu")
        with running(collector, tmp_path, "file", path) as sidecar:
            sidecar.prints(lambda lines: lines[-1:] == ["accu"])
        printed += (tmp_path / "printed.txt").read_bytes()
        path.write_text(path.read_text().removesuffix("accu"))
    reader = LogReader(MetricsRule(source=MetricsFile("metrics.log")), an_objective())
    found = [*reader.feed(printed), *reader.finish()]
    assert {(each.step, each.value) for each in found} == {(1, 0.25), (2, 0.5), (3, 0.75)}
    assert reader.last == 0.75


def test_a_file_that_is_written_just_before_the_end_is_printed(
    collector: Path, tmp_path: Path
) -> None:
    for number in range(20):
        path = tmp_path / f"{number}.log"
        with running(collector, tmp_path, "file", path) as sidecar:
            path.write_text("begins\n")
            sidecar.prints(lambda lines: lines == ["begins"])
            with path.open("a") as file:
                file.write(f"accuracy={number}")
            assert sidecar.ended() == ["begins", f"accuracy={number}"]


def test_a_copy_is_the_lines_alone(collector: Path, tmp_path: Path) -> None:
    path, printed = tmp_path / "lines", tmp_path / "printed.txt"
    with running(collector, tmp_path, "copy", path) as sidecar:
        path.write_text("first\n")
        sidecar.prints(lambda lines: lines == ["first"])
        path.write_text("first\nlast")
        sidecar.process.send_signal(signal.SIGTERM)
        assert sidecar.process.wait(20) == 0
    assert printed.read_text() == "first\nlast\n"


def test_a_line_of_ten_megabytes_is_cut(collector: Path, tmp_path: Path) -> None:
    path = tmp_path / "metrics.log"
    path.write_text("x" * 10_000_000 + "\naccuracy=0.1\n")
    with running(collector, tmp_path, "file", path) as sidecar:
        sidecar.prints(lambda lines: len(lines) == 2)
        assert sidecar.ended() == ["x" * 65536, "accuracy=0.1"]


def test_a_path_that_is_not_a_file_is_reported_once(collector: Path, tmp_path: Path) -> None:
    with running(collector, tmp_path, "file", tmp_path) as sidecar:
        sidecar.prints(lambda lines: lines == [f"# tuner: {tmp_path} is not a file"])
        assert len(sidecar.ended()) == 1


def values(lines: Sequence[str]) -> list[Any]:
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("kind", ["torch", "tensorflow"])
def test_event_files_are_printed_as_local_trials_have_them(
    collector: Path, tmp_path: Path, kind: str
) -> None:
    expected = (FIXTURES / f"{kind}.jsonl").read_text().splitlines()
    with running(collector, tmp_path, "tensorboard", FIXTURES / kind, "accuracy") as sidecar:
        sidecar.prints(lambda lines: len(lines) >= len(expected))
        assert values(sidecar.ended()) == values(expected)


def test_a_damaged_event_file_gives_no_wrong_value(collector: Path, tmp_path: Path) -> None:
    data = (FIXTURES / "torch" / "events.out.tfevents.0").read_bytes()
    right = (FIXTURES / "torch.jsonl").read_text().splitlines()
    runs = tmp_path / "runs"
    runs.mkdir()
    for at in range(0, len(data), 7):
        (runs / f"{at}.tfevents").write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
    with running(collector, tmp_path, "tensorboard", runs) as sidecar:
        sidecar.prints(lambda lines: len(lines) > 500)
        lines = sidecar.ended()
    found = [json.loads(line) for line in lines if not line.startswith("# tuner: ")]
    assert len(found) > 500
    assert [each for each in found if each not in values(right)] == []


def test_an_endpoint_is_printed_when_it_changes(collector: Path, tmp_path: Path) -> None:
    with (
        endpoint() as (port, handler),
        running(
            collector, tmp_path, "prometheus", port, "/metrics", "accuracy", "epoch"
        ) as sidecar,
    ):
        sidecar.prints(lambda lines: len(lines) == 1)
        handler.body = BODY.replace("epoch 3.0", "epoch 4.0")
        sidecar.prints(lambda lines: len(lines) == 2)
        assert values(sidecar.ended()) == [
            {"accuracy": 0.5, "epoch": 3},
            {"accuracy": 0.5, "epoch": 4},
        ]


def test_an_endpoint_that_hangs_is_abandoned(collector: Path, tmp_path: Path) -> None:
    with (
        endpoint(hangs=True) as (port, handler),
        running(collector, tmp_path, "prometheus", port, "/metrics", "accuracy") as sidecar,
    ):
        assert handler.asked.wait(20)
        (line,) = sidecar.ended()
        assert line == f"# tuner: port {port}/metrics: it did not answer within 2s"


def test_wrong_arguments_are_refused(collector: Path) -> None:
    for words in ([], ["file"], ["prometheus", "http", "/", "a"], ["csv", "x"]):
        done = subprocess.run(
            [collector, *words], capture_output=True, text=True, timeout=20, check=False
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("usage: collector file PATH\n")


@contextmanager
def db_manager(program: Path, folder: Path) -> Iterator[tuple[Sidecar, DBManagerStub]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (
        running(program, folder, "reports", address) as sidecar,
        grpc.insecure_channel(address) as channel,
    ):
        grpc.channel_ready_future(channel).result(20)
        yield sidecar, DBManagerStub(channel)


def a_report(
    logs: Sequence[Sequence[str]], trial: str = "search-1"
) -> pb.ReportObservationLogRequest:
    lines = [
        pb.MetricLog(time_stamp=t, metric=pb.Metric(name=name, value=value))
        for t, name, value in logs
    ]
    return pb.ReportObservationLogRequest(
        trial_name=trial, observation_log=pb.ObservationLog(metric_logs=lines)
    )


def test_reports_to_katibs_db_manager_are_printed_before_they_are_answered(
    collector: Path, tmp_path: Path
) -> None:
    expected: list[Any] = []
    with db_manager(collector, tmp_path) as (sidecar, stub):
        for case in json.loads((FIXTURES / "reports.json").read_text()):
            stub.ReportObservationLog(a_report(case["metric_logs"]), timeout=20)
            expected += case["lines"]
            assert values(sidecar.lines()) == expected, case["claim"]
        sidecar.process.kill()
        assert values(sidecar.lines()) == expected


def test_a_report_that_is_too_long_and_other_methods_are_refused(
    collector: Path, tmp_path: Path
) -> None:
    with db_manager(collector, tmp_path) as (sidecar, stub):
        with pytest.raises(grpc.RpcError, match="16 MiB"):
            stub.ReportObservationLog(a_report([("", "text", "x" * (17 << 20))]), timeout=20)
        with pytest.raises(grpc.RpcError, match="serves ReportObservationLog only"):
            stub.GetObservationLog(pb.GetObservationLogRequest(trial_name="search-1"), timeout=20)
        stub.ReportObservationLog(a_report([("", "loss", "1")]), timeout=20)
        assert values(sidecar.ended()) == [{"loss": 1}]
