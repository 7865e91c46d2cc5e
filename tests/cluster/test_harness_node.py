"""The test cluster with a real node: a test of each property that other tests rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cluster import images, realnode
from tests.cluster.api import CORE, Object
from tests.cluster.conftest import lacks
from tests.cluster.images import BASE
from tests.cluster.kwok import GPU
from tests.cluster.objects import ended, job, jobs, pod_of, pods, terminated
from tests.cluster.realnode import GPUS, NAMESPACES, RealNode
from tests.cluster.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
SEES_THE_OTHER = """
import socket, time
for _ in range(300):
    try:
        print("the other is at", socket.gethostbyname("pair-1.pair"), flush=True)
        break
    except OSError:
        time.sleep(0.1)
"""

TELLS_WHO_ASKS = """
import socket
with socket.create_server(("", 8080)) as server:
    while True:
        asks, (address, _) = server.accept()
        with asks:
            asks.sendall(address.encode())
"""
ASKS = """
import os, socket, time
def ask(host, port):
    for _ in range(300):
        try:
            with socket.create_connection((host, port), timeout=1) as server:
                return server.getpeername()[0], server.recv(99).decode() if port == 80 else ""
        except OSError:
            time.sleep(0.1)
print(*ask("tells", 80), *ask("kubernetes.default", 443))
"""


def test_a_machine_without_rules_for_bridges_is_told_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(realnode, "PACKAGES", {})
    monkeypatch.setattr(realnode, "_cni", lambda: tmp_path)
    monkeypatch.setattr(realnode, "SETTINGS", tmp_path)
    assert realnode.missing().endswith("modprobe br_netfilter")


def real(name: str, script: str, **more: object) -> Object:
    return job(name, image=BASE, command=["sh", "-c", script], **more)  # type: ignore[arg-type]


def running(cluster: RealNode, namespace: str, name: str) -> str:
    """Return the name of its pod once that runs."""
    api = cluster.api()
    pod = eventually(lambda: pod_of(api, namespace, name))["metadata"]["name"]
    api.until(pods(namespace, pod), lambda now: now["status"]["phase"] != "Pending", within_s=180)
    return str(pod)


def test_an_image_is_built_again_only_after_a_change_of_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tag, source = "localhost/tuner-test/changes:1", tmp_path / "program.py"
    images.folder().mkdir(parents=True)
    built = []

    def build() -> None:
        built.append(source.read_text())
        images.archive(tag).touch()

    for text in ("1", "1", "2", "2"):
        source.write_text(text)
        images.unless_kept(tag, [str(source)], build)
    images.archive(tag).unlink()
    images.unless_kept(tag, [str(source)], build)
    assert built == ["1", "2", "2"]


def test_images_that_are_kept_need_neither_root_nor_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    images.folder().mkdir(parents=True)
    for tag in (images.PAUSE, BASE):
        images.archive(tag).touch()
    for tag, sources in images.SOURCES.items():
        images.unless_kept(tag, sources, images.archive(tag).touch)
    assert images.main() == 0
    images.archive(images.DIGITS).unlink()
    assert images.main() == 1
    assert "buildah and debootstrap: apt-get install buildah debootstrap" in capsys.readouterr().err


def test_the_real_node_has_gpus(level_c: RealNode) -> None:
    has = [node["status"]["allocatable"].get(GPU) for node in level_c.api().items(f"{CORE}/nodes")]
    assert has == [str(GPUS)]


def test_the_log_of_a_real_container_is_followed_to_its_end(
    level_c: RealNode, namespace: str
) -> None:
    api = level_c.api()
    api.post(
        jobs(namespace), real("talks", "for i in 1 2 3; do echo line $i; sleep 0.4; done", gpus=1)
    )
    pod = running(level_c, namespace, "talks")
    lines = list(api.stream(f"{pods(namespace, pod)}/log", follow="true", timestamps="true"))
    assert [line.partition(" ")[2] for line in lines] == ["line 1", "line 2", "line 3"]
    assert api.until(jobs(namespace, "talks"), ended) == {"Complete": "CompletionsReached"}
    # The API server truncates sinceTime to whole seconds before it asks the node.
    second = lines[-1].partition(".")[0]
    since = [line for line in lines if line.partition(".")[0] >= second]
    given = api.logs(namespace, pod, timestamps="true", sinceTime=lines[-1].partition(" ")[0])
    assert given.splitlines() == since


def test_a_pod_waits_until_one_of_two_gpus_is_free(level_c: RealNode, namespace: str) -> None:
    api = level_c.api()
    for index in range(GPUS):
        api.post(jobs(namespace), real(f"holds-{index}", "sleep 60", gpus=1))
    for index in range(GPUS):
        running(level_c, namespace, f"holds-{index}")
    api.post(jobs(namespace), real("waits", "true", gpus=1))
    pod = eventually(lambda: pod_of(api, namespace, "waits"))["metadata"]["name"]
    told = api.until(pods(namespace, pod), lambda now: now["status"].get("conditions"))
    assert f"Insufficient {GPU}" in told[0]["message"]
    api.delete(jobs(namespace, "holds-0"), propagationPolicy="Background")
    api.until(jobs(namespace, "waits"), ended, within_s=180)


def test_a_container_that_takes_too_much_memory_is_killed(
    level_c: RealNode, namespace: str
) -> None:
    api = level_c.api()
    taking = "python -c 'x = bytearray(200_000_000)'"
    api.post(jobs(namespace), real("greedy", taking, gpus=0, limits={"memory": "40Mi"}))
    assert api.until(jobs(namespace, "greedy"), ended, within_s=180) == {
        "Failed": "BackoffLimitExceeded"
    }
    end = terminated(pod_of(api, namespace, "greedy"))
    assert (end["exitCode"], end["reason"]) == (137, "OOMKilled")


def test_pods_of_an_indexed_job_have_host_names(level_c: RealNode, namespace: str) -> None:
    api = level_c.api()
    pair = job("pair", gpus=0, image=BASE, command=["python", "-c", SEES_THE_OTHER])
    pair["spec"] |= {"completionMode": "Indexed", "completions": 2, "parallelism": 2}
    pair["spec"]["template"]["spec"]["subdomain"] = "pair"
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"job-name": "pair"},
    }
    api.post(
        f"{CORE}/namespaces/{namespace}/services", {"metadata": {"name": "pair"}, "spec": service}
    )
    api.post(jobs(namespace), pair)
    assert api.until(jobs(namespace, "pair"), ended, within_s=180) == {
        "Complete": "CompletionsReached"
    }
    made = api.items(pods(namespace), labelSelector="batch.kubernetes.io/job-name=pair")
    for pod in made:
        assert api.logs(namespace, pod["metadata"]["name"]).startswith("the other is at 10.")


def test_a_service_leads_to_its_pod_which_sees_the_address_of_the_one_that_asks(
    level_c: RealNode, namespace: str
) -> None:
    api = level_c.api()
    leads = {"selector": {"job-name": "tells"}, "ports": [{"port": 80, "targetPort": 8080}]}
    made = api.post(
        f"{CORE}/namespaces/{namespace}/services", {"metadata": {"name": "tells"}, "spec": leads}
    )
    for name, program in (("tells", TELLS_WHO_ASKS), ("asks", ASKS)):
        api.post(jobs(namespace), job(name, gpus=0, image=BASE, command=["python", "-c", program]))
    api.until(jobs(namespace, "asks"), ended, within_s=180)
    asks = pod_of(api, namespace, "asks")
    assert asks is not None
    seen = api.logs(namespace, asks["metadata"]["name"]).split()
    of_the_api_server = api.get(f"{CORE}/namespaces/default/services/kubernetes")
    addresses = [each["spec"]["clusterIP"] for each in (made, of_the_api_server)]
    assert seen == [addresses[0], asks["status"]["podIP"], addresses[1]]


def test_a_container_runs_on_while_the_kubelet_is_down(level_c: RealNode, namespace: str) -> None:
    api = level_c.api()
    api.post(jobs(namespace), real("goes-on", "sleep 3; echo done", gpus=1))
    pod = running(level_c, namespace, "goes-on")
    level_c.stop_kubelet()
    level_c.start_kubelet()
    assert api.until(jobs(namespace, "goes-on"), ended, within_s=180) == {
        "Complete": "CompletionsReached"
    }
    assert api.logs(namespace, pod) == "done\n"


def test_a_real_node_whose_tests_were_killed_leaves_nothing_behind() -> None:
    lacks(realnode.missing())
    program = (
        "from tests.cluster.realnode import *; from tests.cluster.test_harness_node import "
        "*; c = RealNode()\n"
    )
    program += (
        "c.api().post(jobs('default'), real('stays', 'sleep 600')); running(c, 'default', "
        "'stays')\n"
    )
    program += "print(c.folder, c.link, flush=True); input()"
    tests = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with tests:
        assert tests.stdout is not None
        watchdog = threading.Timer(180, tests.kill)
        watchdog.start()
        folder, link = tests.stdout.readline().split()
        watchdog.cancel()
        assert folder in command_lines()
        tests.send_signal(signal.SIGKILL)
    eventually(lambda: not Path(folder).exists(), within_s=180)
    eventually(lambda: folder not in command_lines())  # the guard ends last
    assert folder not in Path("/proc/self/mountinfo").read_text()
    assert not Path("/sys/class/net", link).exists()
    assert not Path(NAMESPACES, link).exists()


def command_lines() -> str:
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(place.read_text(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)
