"""The chart on a real kubelet: the controller in its pod, under the restricted profile."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import images
from tests.cluster.api import CORE, Object
from tests.cluster.installed import CHART, EXPERIMENTS, SYSTEM, Kubectl, helm
from tests.cluster.objects import pods
from tests.cluster.realnode import RealNode
from tests.cluster.waiting import eventually

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "experiment.yaml"
PUBLISHED = "docker.io/tuner/digits:1"  # as the file of the example names it
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture
def installed(level_c: RealNode) -> Iterator[Kubectl]:
    """Install the chart with helm and the image of this checkout, and remove it at the end."""
    images.server()
    images.digits()
    level_c.load(images.SERVER)
    level_c.load(images.DIGITS)
    level_c.ctr("images", "tag", "--force", images.DIGITS, PUBLISHED)
    kubectl = Kubectl(level_c.kubeconfig())
    kubectl.apply(
        [
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": SYSTEM, "labels": RESTRICTED},
            }
        ]
    )
    folder = level_c.folder / "disk-controller"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # a hostPath volume does not follow fsGroup
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "controller"},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": SYSTEM, "name": "tuner-controller"},
        },
    }
    kubectl.apply([volume])
    repository, _, tag = images.SERVER.rpartition(":")
    values = folder.with_suffix(".json")
    image = {"repository": repository, "tag": tag, "pullPolicy": "Never"}
    values.write_text(json.dumps({"image": image, "controller": {"env": reached_at(level_c)}}))
    # Other tests have created the same objects without helm.
    installing = ("install", "tuner", str(CHART), "--take-ownership", "--values", str(values))
    helm(level_c.kubeconfig(), *installing)
    yield kubectl
    kubectl("delete", "texp", "--all", "--all-namespaces", "--timeout=60s")
    helm(level_c.kubeconfig(), "uninstall", "tuner")
    # The next test installs under the same names.
    kubectl("delete", "namespace", SYSTEM, "--timeout=120s")
    kubectl("delete", "persistentvolume", "controller", "--timeout=60s")


def reached_at(level_c: RealNode) -> list[Object]:
    """Return where pods of this node reach the API server: it has no proxy of Services."""
    server = {"HOST": level_c.gateway, "PORT": level_c.server.rpartition(":")[2]}
    return [{"name": f"KUBERNETES_SERVICE_{key}", "value": value} for key, value in server.items()]


def digits(namespace: str, **spec: Any) -> Object:
    """Return the experiment of examples/digits, as an object of that namespace."""
    document: Object = copy.deepcopy(yaml.safe_load(DIGITS.read_text(encoding="utf-8")))
    document["metadata"]["namespace"] = namespace
    document["spec"]["trial"] |= {"image": images.DIGITS, "imagePullPolicy": "Never"}
    document["spec"] |= spec
    return document


def test_from_an_empty_cluster_to_a_best_trial_also_when_the_controller_is_replaced(
    level_c: RealNode, namespace: str, installed: Kubectl
) -> None:
    api = level_c.api()
    api.patch(f"{CORE}/namespaces/{namespace}", {"metadata": {"labels": RESTRICTED}})
    began = time.monotonic()
    installed.apply([digits(namespace, budget={"trials": 6}, parallelism=2)])
    path = f"{EXPERIMENTS.format(namespace=namespace)}/digits"

    def status() -> dict[str, Any]:
        return dict(api.get(path).get("status") or {})

    eventually(lambda: status().get("running", 0) > 0, within_s=120)
    (controller,) = api.items(pods(SYSTEM))
    installed("delete", "pod", controller["metadata"]["name"], "-n", SYSTEM, "--wait=false")
    eventually(lambda: status().get("state") == "succeeded", within_s=240)
    print(f"from the first object to the best of six trials: {time.monotonic() - began:.0f} s")
    ended = status()
    assert sum(ended["trials"].values()) == 6
    assert ended["best"]["value"] > 0.5
    (successor,) = (
        pod
        for pod in api.items(pods(SYSTEM))
        if pod["metadata"]["uid"] != controller["metadata"]["uid"]
    )
    assert all(each["restartCount"] == 0 for each in successor["status"]["containerStatuses"])
    installed("delete", "texp", "digits", "-n", namespace, "--timeout=60s")
    eventually(lambda: not list(api.items(pods(namespace))), within_s=60)


def test_the_commands_of_the_readme_lead_to_a_best_trial(
    level_c: RealNode, namespace: str, installed: Kubectl
) -> None:
    began = time.monotonic()
    installed("apply", "-n", namespace, "-f", str(DIGITS))
    path = f"{EXPERIMENTS.format(namespace=namespace)}/digits"

    def best() -> float:
        status = level_c.api().get(path).get("status") or {}
        return float(status.get("best", {}).get("value", 0.0))

    eventually(lambda: best() > 0.5, within_s=120)
    print(f"from kubectl apply to a best trial: {time.monotonic() - began:.0f} s")
    installed("delete", "texp", "digits", "-n", namespace, "--timeout=60s")
    eventually(lambda: not list(level_c.api().items(pods(namespace))), within_s=60)


SCRIPT = """
import tuner

def objective(trial):
    import os
    trial.report(0, loss=abs(trial["x"]))
    assert os.getuid() == 65532
    return (trial["x"] - 2) ** 2

study = tuner.minimize(
    objective, {"x": tuner.Float(-5, 5)}, trials=3, parallelism=3, name="function", progress=False,
    runtime="cluster", image=IMAGE,
    spec={"canary": "0s", "trial": {"imagePullPolicy": "Never", "gracePeriod": "2s"}},
)
print([round(one.value - (one.parameters["x"] - 2) ** 2, 9) for one in study.results()])
study.delete()
"""


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the image of the tests has Python 3.11"
)
def test_a_function_of_a_script_runs_in_containers_of_the_cluster(
    level_c: RealNode, namespace: str, installed: Kubectl, tmp_path: Path
) -> None:
    installed("-n", SYSTEM, "rollout", "status", "deployment/tuner-controller", "--timeout=60s")
    (tmp_path / "script.py").write_text(SCRIPT.replace("IMAGE", repr(images.DIGITS)))
    env = {
        "PATH": "/usr/bin:/bin",
        "KUBECONFIG": str(level_c.kubeconfig(namespace=namespace)),
        "TUNER_STATE_DIR": str(tmp_path / "state"),
    }
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[0.0, 0.0, 0.0]\n"), done.stderr
    # The cluster deletes what the experiment owned.
    files = f"{CORE}/namespaces/{namespace}/configmaps"
    eventually(
        lambda: all(
            "-files-" not in each["metadata"]["name"] for each in level_c.api().items(files)
        ),
        within_s=60,
    )
