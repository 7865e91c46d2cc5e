"""What people do to a cluster while the controller runs experiments in it, on a real API server."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import BATCH, CORE, Object, RequestRefused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import EXPERIMENTS, Installed, experiment
from tests.cluster.waiting import eventually
from tests.ports import free_port

LONG = {"KWOK_RUN": "600s"}


@pytest.fixture
def installed(level_b: ControlPlane, tmp_path: Path) -> Iterator[Installed]:
    installation = Installed(level_b, tmp_path)
    yield installation
    installation.close()


def jobs(installed: Installed, namespace: str) -> set[str]:
    found = installed.cluster.api().items(f"{BATCH}/namespaces/{namespace}/jobs")
    return {job["metadata"]["name"] for job in found}


def make_namespace(installed: Installed, name: str) -> None:
    api = installed.cluster.api()
    api.post(f"{CORE}/namespaces", {"metadata": {"name": name}})
    api.until(f"{CORE}/namespaces/{name}/serviceaccounts/default", bool)


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        return str(reply.read(), "utf-8")


def end(process: subprocess.Popen[str]) -> str:
    """End the controller, and return its log."""
    process.terminate()
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert "Traceback" not in log
    return log


def test_a_namespace_that_is_deleted_takes_its_experiments_along_and_may_come_back(
    installed: Installed, namespace: str
) -> None:
    other = f"{namespace}-2"
    make_namespace(installed, other)
    process = installed.start("--log-format=json")
    here, there = (experiment(each, parallelism=2, env=LONG) for each in (namespace, other))
    installed.kubectl.apply([here, there, experiment(other, "ended", budget={"trials": 1})])
    installed.until(other, lambda status: status.get("state") == "succeeded", name="ended")
    for each in (other, namespace):
        installed.until(each, lambda status: status.get("running") == 2)
    before, untouched = jobs(installed, other), jobs(installed, namespace)
    installed.kubectl("delete", "namespace", other, "--timeout=60s")
    eventually(lambda: len(list((installed.state / "experiments").iterdir())) == 1)
    make_namespace(installed, other)
    installed.kubectl.apply([there])
    installed.until(other, lambda status: status.get("running") == 2)
    assert not before & jobs(installed, other)
    assert jobs(installed, namespace) == untouched
    installed.kubectl("delete", "namespace", other, "--timeout=60s")
    installed.kubectl("delete", "texp", "tiny", "-n", namespace, "--timeout=60s")
    end(process)


def test_a_definition_that_is_removed_ends_its_experiments_and_may_come_back(
    installed: Installed, namespace: str, tmp_path: Path
) -> None:
    port = free_port()
    process = installed.start("--log-format=json", f"--metrics-port={port}")
    document = experiment(namespace, parallelism=2, env=LONG)
    installed.kubectl.apply([document])
    installed.until(namespace, lambda status: status.get("running") == 2)
    before = jobs(installed, namespace)
    installed.kubectl("delete", "crd", "experiments.tuner.dev", "--timeout=60s")
    assert not jobs(installed, namespace)
    broken = 'tuner_controller_watches_broken{kind="experiments"} 1.0'
    eventually(lambda: broken in metrics(port), within_s=30)
    Installed(installed.cluster, tmp_path)
    installed.kubectl.apply([document])
    installed.until(namespace, lambda status: status.get("running") == 2)
    assert not before & jobs(installed, namespace)
    installed.kubectl("delete", "texp", "tiny", "-n", namespace, "--timeout=60s")
    assert "kind=experiments lost: " in end(process)


def test_a_definition_that_is_removed_without_a_controller_leaves_no_job(
    installed: Installed, namespace: str, tmp_path: Path
) -> None:
    process = installed.start()
    document = experiment(namespace, parallelism=2, env=LONG)
    installed.kubectl.apply([document])
    installed.until(namespace, lambda status: status.get("running") == 2)
    before = jobs(installed, namespace)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    installed.kubectl("delete", "crd", "experiments.tuner.dev", "--wait=false")
    patch = json.dumps({"metadata": {"finalizers": None}})
    installed.kubectl("patch", "texp", "tiny", "-n", namespace, "--type=merge", "-p", patch)
    installed.kubectl("wait", "--for=delete", "crd/experiments.tuner.dev", "--timeout=60s")
    process = installed.start("--log-format=json")
    Installed(installed.cluster, tmp_path)
    installed.kubectl.apply([document])
    installed.until(namespace, lambda status: status.get("running") == 2)
    eventually(lambda: not before & jobs(installed, namespace))
    installed.kubectl("delete", "texp", "tiny", "-n", namespace, "--timeout=60s")
    end(process)


def large(namespace: str, size: int) -> Object:
    document = experiment(namespace, "large")
    document["spec"]["trial"]["command"] = ["x" * size]
    return document


def is_stored(installed: Installed, document: Object) -> bool:
    """Create an experiment; False: it is too large."""
    path = EXPERIMENTS.format(namespace=document["metadata"]["namespace"])
    try:
        installed.cluster.api().post(path, document)
    except RequestRefused as refused:
        if "too large" not in str(refused):
            raise
        return False
    return True


def test_an_object_as_large_as_the_store_takes_disturbs_no_other(
    installed: Installed, namespace: str
) -> None:
    api, path = installed.cluster.api(), EXPERIMENTS.format(namespace=namespace)
    process = installed.start("--log-format=json")
    size = 1_572_864  # what etcd accepts in one request
    while not is_stored(installed, large(namespace, size)):
        size -= 256
    installed.kubectl.apply([experiment(namespace)])
    installed.until(namespace, lambda status: status.get("state") == "succeeded")

    def is_told() -> bool:
        found = api.items(f"{CORE}/namespaces/{namespace}/events")
        told = [event["message"] for event in found if event["reason"] == "StatusNotWritten"]
        return any("too large; the status would be invalid: " in message for message in told)

    eventually(is_told, within_s=30)
    api.delete(f"{path}/large")
    installed.kubectl("delete", "texp", "tiny", "-n", namespace, "--timeout=30s")
    log = end(process)
    assert log.count("large cannot be written") < 10
