"""The chart on a real kubelet: the controller in its pod, under the restricted profile."""

from __future__ import annotations

import copy
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import images
from tests.cluster.api import CORE, Object, RequestRefused
from tests.cluster.installed import EXPERIMENTS, SYSTEM, Kubectl
from tests.cluster.objects import pods
from tests.cluster.realnode import RealNode
from tests.cluster.release import RESTRICTED, released
from tests.cluster.searcher import Searcher
from tests.cluster.waiting import eventually

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "experiment.yaml"
PUBLISHED = "docker.io/tuner/digits:1"  # as the file of the example names it


@pytest.fixture
def installed(level_c: RealNode) -> Iterator[Kubectl]:
    images.digits()
    level_c.load(images.DIGITS)
    level_c.ctr("images", "tag", "--force", images.DIGITS, PUBLISHED)
    with released(level_c, webhook={"enabled": True}) as kubectl:
        yield kubectl


def digits(namespace: str, **spec: Any) -> Object:
    """Return the experiment of examples/digits, as an object of that namespace."""
    document: Object = copy.deepcopy(yaml.safe_load(DIGITS.read_text(encoding="utf-8")))
    document["metadata"]["namespace"] = namespace
    document["spec"]["trial"] |= {"image": images.DIGITS, "imagePullPolicy": "Never"}
    document["spec"] |= spec
    return document


def answer_to(level_c: RealNode, document: Object) -> str:
    """Return what the API server says to an experiment, which it does not store."""
    path = EXPERIMENTS.format(namespace=document["metadata"]["namespace"])
    try:
        return str(level_c.api().post(path, document, dryRun="All"))
    except RequestRefused as refused:
        return str(refused)


def test_from_an_empty_cluster_to_a_confirmed_best_though_the_controller_is_replaced(
    level_c: RealNode, namespace: str, installed: Kubectl, tmp_path: Path
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
    best = f"digits/{ended['best']['number']}"
    with closing(Searcher(tmp_path, level_c.kubeconfig(namespace=namespace), namespace)) as person:
        for words, shows in (
            (("confirm", "digits", "--top", "1", "--seeds", "2"), "of digits, with 2 new seeds"),
            (("reproduce", best), "the recorded value is reproduced exactly"),
        ):
            code, out, err = person.tuner(*words, "--context", "test")
            assert (code, shows in out) == (0, True), f"{out}{err}"
    refused = digits(namespace)
    refused["spec"]["trial"]["serviceAccount"] = "builder"
    # The API server reaches the webhook by its Service.
    eventually(lambda: "denied the request" in answer_to(level_c, refused), within_s=60)
    installed("delete", "texp", "--all", "-n", namespace, "--timeout=60s")
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
