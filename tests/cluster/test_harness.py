"""The test cluster without root: its log server, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.cluster.api import RequestRefused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.objects import job, jobs, pod_of, pods
from tests.cluster.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


def test_fake_logs_have_the_lines_and_times_of_the_file(
    level_b: ControlPlane, namespace: str
) -> None:
    api = level_b.api()
    settings = {"KWOK_RUN": "1500ms", "KWOK_LOG": "hello\n+500ms loss={n}", "KWOK_LOG_EVERY": "1s"}
    api.post(jobs(namespace), job("talks", **settings))
    name = eventually(lambda: pod_of(api, namespace, "talks"))["metadata"]["name"]
    api.until(pods(namespace, name), lambda now: now["status"]["phase"] == "Running")
    followed = list(eventually_streams(level_b, namespace, name))
    assert followed[:3] == ["hello", "loss=1", "hello"]
    assert api.get(pods(namespace, name))["status"]["phase"] == "Succeeded"
    assert api.logs(namespace, name).splitlines() == followed
    stamped = api.logs(namespace, name, timestamps="true").splitlines()
    # The API server truncates sinceTime to whole seconds before it asks the node.
    second = stamped[2].partition(".")[0]
    since = [line.partition(" ")[2] for line in stamped if line.partition(".")[0] >= second]
    assert api.logs(namespace, name, sinceTime=stamped[2].partition(" ")[0]).splitlines() == since
    assert api.logs(namespace, name, tailLines="1").splitlines() == followed[-1:]


def eventually_streams(cluster: ControlPlane, namespace: str, pod: str) -> list[str]:
    """Return the lines of a followed log.

    The log server may see that the pod runs later than the test does.
    """
    path = f"{pods(namespace, pod)}/log"

    def lines() -> list[str]:
        try:
            return list(cluster.api().stream(path, follow="true"))
        except RequestRefused:  # it waits to start
            return []

    return eventually(lines)


def test_a_cluster_whose_tests_were_killed_leaves_nothing_behind(level_b: ControlPlane) -> None:
    program = (
        "from tests.cluster.controlplane import *; c = ControlPlane(); print(c.folder, "
        "*map(c.processes.pid, "
    )
    program += "c.processes.names()), flush=True); input()"
    tests = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with tests:
        assert tests.stdout is not None
        watchdog = threading.Timer(120, tests.kill)
        watchdog.start()
        folder, *pids = tests.stdout.readline().split()
        watchdog.cancel()
        assert len(pids) == 4
        tests.send_signal(signal.SIGKILL)
    eventually(lambda: not Path(folder).exists())
    assert not [pid for pid in pids if alive(int(pid))]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
