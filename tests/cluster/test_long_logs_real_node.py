"""Logs that are long for the way to them, or for the node,
on a real kubelet with its default limits.
"""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster import images
from tests.cluster.objects import pods
from tests.cluster.realnode import RealNode
from tests.cluster.searcher import Searcher
from tests.cluster.waiting import eventually

# One burst of 12 MB, above the kubelet's 10 MiB, which it checks every three seconds here.
UNREAD = """
import sys, time
print('step=1 score=0.5', flush=True)
time.sleep(9)
print('step=2 score=0.9', flush=True)
for _ in range(12000):
    print('x' * 1000)
sys.stdout.flush()
time.sleep(6)
print('step=3 score=0.3', flush=True)
"""
LONG = """
for number in range(6000):
    print('x' * 1000)
print('score=0.7')
"""
# 12 MB at once, which the kubelet rotates within three seconds, and as much again in the six that
# follow.
ROTATED = """
import time
for number in range(24000):
    print(number, 'x' * 1000, flush=True)
    if number > 12000 and number % 100 == 0:
        time.sleep(0.05)
print('score=0.7')
"""
BYTES_PER_S = 400_000


class SlowLink:
    """A TCP proxy to a port of this machine that passes so many bytes a second
    to the client, on each connection.
    """

    def __init__(self, port: int, *, bytes_per_s: int) -> None:
        self._to = port
        self._bytes_per_s = bytes_per_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                # A small window: bytes under way would arrive at once.
                server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                for ends in ((client, server, 0), (server, client, self._bytes_per_s)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, to: socket.socket, bytes_per_s: int) -> None:
        with suppress(OSError), source, to:
            while data := source.recv(1 << 14):
                to.sendall(data)
                if bytes_per_s:
                    time.sleep(len(data) / bytes_per_s)


@pytest.fixture
def me(level_c: RealNode, namespace: str, tmp_path: Path) -> Iterator[Searcher]:
    images.digits()
    level_c.load(images.DIGITS)
    person = Searcher(tmp_path, level_c.kubeconfig(namespace=namespace), namespace)
    yield person
    person.close()


def write(me: Searcher, program: str, *, value: str) -> Path:
    path = me.folder / "tiny.yaml"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "tuner.dev/v1",
                "kind": "Experiment",
                "metadata": {"name": "tiny", "namespace": me.namespace},
                "spec": {
                    "objective": {"metric": "score", "direction": "maximize", "value": value},
                    "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
                    "algorithm": {"name": "random", "seed": 1},
                    "budget": {"trials": 1},
                    "runtime": "kubernetes",
                    "trial": {
                        "image": images.DIGITS,
                        "imagePullPolicy": "Never",
                        "command": ["python", "-c", program, "${x}"],
                        "resources": {"cpu": "100m"},
                    },
                },
            }
        )
    )
    return path


def test_a_success_counts_although_its_log_takes_longer_than_ten_seconds(me: Searcher) -> None:
    kubeconfig = json.loads(Path(me.env["KUBECONFIG"]).read_text())
    cluster = kubeconfig["clusters"][0]["cluster"]
    link = SlowLink(int(cluster["server"].rpartition(":")[2]), bytes_per_s=BYTES_PER_S)
    cluster["server"] = f"https://127.0.0.1:{link.port}"
    slow = me.folder / "slow.kubeconfig"
    slow.write_text(json.dumps(kubeconfig))
    me.env["KUBECONFIG"] = str(slow)
    code, _, err = me.tuner("run", write(me, LONG, value="last"))
    link.close()
    assert code == 0, err
    (trial,) = me.trials()
    assert (trial["state"], trial["value"], len(trial["attempts"])) == ("succeeded", 0.7, 1)
    assert "logGap" not in trial["attempts"][0]


def test_a_best_value_is_in_doubt_after_a_rotation_that_nobody_read(
    level_c: RealNode, me: Searcher
) -> None:
    running = me.start("run", write(me, UNREAD, value="best"))

    def has_value() -> bool:
        trials = me.trials() if (me.state / "controller.db").exists() and me.states() else []
        return any(trial.get("value") == 0.5 for trial in trials)

    eventually(has_value, within_s=60)
    running.send_signal(signal.SIGINT)  # detaches
    running.communicate(timeout=60)

    def has_ended() -> bool:
        found = level_c.api().items(pods(me.namespace))
        return bool(found) and all(pod["status"]["phase"] == "Succeeded" for pod in found)

    eventually(has_ended, within_s=90)
    code, _, err = me.tuner("resume", "tiny")
    assert code == 0, err
    (trial,) = me.trials()
    (attempt,) = trial["attempts"]
    assert (trial["state"], trial["value"]) == ("succeeded", 0.5)
    assert "are missing: the node had rotated the log before they were read" in attempt["logGap"]
    assert (
        attempt["valueDoubt"] == "the lines that were not read may have had another value of score"
    )
    described = me.tuner("describe", "tiny")[1]
    assert "in doubt: trial 0" in described
    assert "gap in its log" in described
    assert "in doubt: the lines" in me.tuner("best", "tiny")[1]


def test_a_log_that_is_rotated_while_it_is_followed_has_no_gap(me: Searcher) -> None:
    code, _, err = me.tuner("run", write(me, ROTATED, value="best"))
    assert code == 0, err
    (trial,) = me.trials()
    assert "logGap" not in trial["attempts"][0]
    printed = [line.split()[0] for line in me.tuner("logs", "tiny/0")[1].splitlines()]
    assert printed == [*map(str, range(24000)), "score=0.7"]
