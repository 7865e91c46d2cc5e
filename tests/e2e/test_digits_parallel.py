"""Several processes train one network over loopback: the result equals
that of one process, and no rank is left.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.ports import free_port

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
LOST = 75
_spec = importlib.util.spec_from_file_location("parallel", DIGITS / "parallel.py")
assert _spec is not None
assert _spec.loader is not None
parallel = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(parallel)


def rank(
    number: int, *arguments: str, size: int, port: int, address: str = "127.0.0.1"
) -> subprocess.Popen[str]:
    world = {
        "WORLD_SIZE": str(size),
        "RANK": str(number),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
    return subprocess.Popen(
        [sys.executable, "train.py", *arguments],
        cwd=DIGITS,
        env={**os.environ, **world},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def world(size: int, *arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the ranks in reverse order, so that rank 0 is missing when the others connect."""
    port = free_port()
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(rank(i, *arguments, size=size, port=port))
            for i in reversed(range(size))
        ][::-1]
        try:
            yield ranks
        finally:
            for process in ranks:
                process.kill()


def said(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def trained(size: int, *arguments: str) -> list[tuple[float, ...]]:
    """Return (epoch, accuracy, loss) as printed by rank 0; the other ranks print nothing."""
    with world(size, *arguments) as ranks:
        ends = [said(process) for process in ranks]
    assert [(code, err) for code, _, err in ends] == [(0, "")] * size
    assert [out for _, out, _ in ends[1:]] == [""] * (size - 1)
    return [
        tuple(float(value) for value in re.findall(r"=(\S+)", line))
        for line in ends[0][1].splitlines()
    ]


# Sums in another order differ in the last bit, and later epochs amplify this:
# few epochs, and approximate equality.
@pytest.mark.parametrize(
    ("size", "arguments"),
    [(2, ("--dropout=0.2", "--batch=32")), (3, ("--activation=tanh", "--batch=97"))],
)
def test_several_ranks_train_the_same_network_as_one(size: int, arguments: tuple[str, ...]) -> None:
    alone = trained(1, "--epochs=3", *arguments)
    together = trained(size, "--epochs=3", *arguments)
    assert [epoch for epoch, _, _ in together] == [1, 2, 3]
    # one image
    assert [accuracy for _, accuracy, _ in together] == pytest.approx(
        [a for _, a, _ in alone], abs=0.0013
    )
    assert [loss for _, _, loss in together] == pytest.approx(
        [loss for _, _, loss in alone], abs=1e-4
    )


def test_a_batch_smaller_than_the_world_leaves_some_ranks_without_work() -> None:
    arguments = ("--epochs=1", "--batch=2", "--activation=tanh", "--lr=0.01")
    assert trained(3, *arguments)[0] == pytest.approx(trained(1, *arguments)[0], abs=0.0013)


@pytest.mark.parametrize(
    ("way", "victim"),
    [
        (signal.SIGKILL, 0),
        (signal.SIGKILL, 1),
        (signal.SIGKILL, 2),
        (signal.SIGTERM, 1),
        # the rank hangs and keeps its connections, so it is detected after ten seconds of silence
        (signal.SIGSTOP, 0),
        (signal.SIGSTOP, 2),
    ],
)
def test_a_lost_rank_ends_all_the_others_and_is_named(way: signal.Signals, victim: int) -> None:
    with world(3, "--epochs=100000") as ranks:
        assert ranks[0].stdout is not None
        ranks[0].stdout.readline()
        ranks[victim].send_signal(way)
        ends = {i: said(process) for i, process in enumerate(ranks) if i != victim}
    assert [code for code, _, _ in ends.values()] == [LOST, LOST]
    assert all(
        err.startswith(f"rank {victim} of 3 was lost (") and err.count("\n") == 1
        for _, _, err in ends.values()
    )


def test_a_rank_lost_while_another_is_still_awaited_is_noticed_at_once() -> None:
    port = free_port()
    with rank(0, size=3, port=port) as process:
        with caller(port) as second:
            second.sendall(parallel.HELLO.pack(parallel.GREETING, 1, 3))
        assert said(process) == (
            LOST,
            "",
            "rank 1 of 3 was lost (before all had joined); rank 0 ends too\n",
        )


def test_a_connection_that_is_not_a_rank_is_closed() -> None:
    port = free_port()
    with rank(0, "--epochs=1", size=2, port=port) as first:
        with caller(port) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with rank(1, "--epochs=1", size=2, port=port) as second:
            assert [said(process)[0] for process in (first, second)] == [0, 0]


def caller(port: int) -> socket.socket:
    """Connect to rank 0 as soon as it listens."""
    peer: socket.socket = parallel.connection("127.0.0.1", port, time.monotonic() + 20)
    return peer


def test_sigterm_ends_a_rank_cleanly_while_it_waits_for_the_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        with rank(1, size=2, port=server.getsockname()[1]) as process:
            peer, _ = server.accept()  # by now the rank waits for an answer
            with peer:
                process.send_signal(signal.SIGTERM)
                assert said(process) == (143, "", "")


@pytest.mark.parametrize("number", [0, 1])
def test_a_host_name_that_appears_late_is_resolved_again(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, unknown = socket.getaddrinfo, iter([True, True])

    def headless_service(host: str, *arguments: object, **keywords: object) -> object:
        if next(unknown, False):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real({"digits-0.digits": "127.0.0.1"}.get(host, host), *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", headless_service)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1] if number else 0
        meet = parallel.connection if number else parallel.listener
        meet("digits-0.digits", port, time.monotonic() + 20).close()


@pytest.mark.parametrize(
    ("environment", "last_line"),
    [
        ({"RANK": "1"}, "rank 0 was not found at 127.0.0.1:1: [Errno 111] Connection refused"),
        ({"RANK": "0", "MASTER_PORT": "0"}, "rank 1, 2 of 3 did not join in time; rank 0 ends"),
        ({"RANK": "3"}, "train.py: RANK=3 is not below WORLD_SIZE=3: ranks count from 0"),
        ({"RANK": "first"}, "train.py: RANK=first is not a whole number"),
        (
            {"RANK": ""},
            "train.py: WORLD_SIZE is above 1, and RANK is not set: torchrun and tuner set it",
        ),
    ],
)
def test_a_world_that_cannot_form_reports_why(environment: dict[str, str], last_line: str) -> None:
    world = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", "import parallel; parallel.join(patience_s=0.5)"],
        cwd=DIGITS,
        env={**os.environ, **world},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert re.sub(r"Errno \d+", "Errno 111", done.stderr) == last_line + "\n"
    assert done.returncode not in (0, 42)
