"""Kubeflow's OptimizerClient, unmodified, with the real Trainer and JobSet on a real node."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import images
from tests.cluster.api import Api, Object
from tests.cluster.installed import WITH_POLICIES, Installed
from tests.cluster.realnode import RealNode
from tests.cluster.test_katib_sdk import PYTHON
from tests.operators.operators import Operators

SCRIPT = Path(__file__).with_name("optimizer_sdk.py")
RUNTIME = "plain"
TRAINER = "trainer.kubeflow.org"
SETTINGS = (
    WITH_POLICIES,
    "katib.enabled=true",
    f"katib.logContainerImage={images.COLLECTOR}",
    f"controller.kinds[0].group={TRAINER}",
    "controller.kinds[0].kind=TrainJob",
    "controller.kinds[0].resources={trainjobs}",
)


@pytest.fixture
def installed(real: Operators, tmp_path: Path) -> Iterator[Installed]:
    with installation(real, tmp_path) as made:
        yield made


@contextmanager
def installation(operators: Operators, folder: Path) -> Iterator[Installed]:
    assert isinstance(operators.cluster, RealNode)
    images.collector()
    operators.cluster.load(images.COLLECTOR)
    made = Installed(operators.cluster, folder, *SETTINGS)
    try:
        made.start("--katib", "--allow-kind", f"{TRAINER}/TrainJob")
        yield made
    finally:
        made.close()


def add_runtime(api: Api, namespace: str) -> None:
    container = {"name": "node", "image": images.BASE, "imagePullPolicy": "Never"}
    pod = {"restartPolicy": "Never", "containers": [container]}
    step = {f"{TRAINER}/trainjob-ancestor-step": "trainer"}
    job = {
        "metadata": {"labels": step},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}},
    }
    jobset = {
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [{"name": "node", "template": job}],
    }
    runtime: Object = {
        "apiVersion": f"{TRAINER}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": RUNTIME, "labels": {f"{TRAINER}/framework": "plain"}},
        "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": jobset}},
    }
    api.post(f"/apis/{TRAINER}/v1alpha1/namespaces/{namespace}/trainingruntimes", runtime)


def sdk(installed: Installed, namespace: str) -> dict[str, Any]:
    """Run the script, and return what it found."""
    if not PYTHON.exists():
        pytest.skip("`make .venv-katib/stamp` installs the SDKs")
    env = {**os.environ, "KUBECONFIG": str(installed.cluster.kubeconfig())}
    command = [PYTHON, SCRIPT, namespace, RUNTIME]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_every_call_gets_what_katib_answers(installed: Installed, namespace: str) -> None:
    add_runtime(installed.cluster.api(), namespace)
    found = sdk(installed, namespace)
    logs = found.pop("logs")
    assert logs[0] in ("kind a", "kind b")
    assert len(logs) == found.pop("best_logs") == 5
    assert logs == found.pop("trainer_logs")
    followed = found.pop("followed")
    assert [followed[0], followed[-1], len(followed)] == ["kind a", "loss=0.25", 5]
    assert found.pop("statuses")[-2:] == ["Running", "Complete"]
    deleted = found.pop("deleted")
    print(deleted)
    # Between the deletion and the moment when the controller has seen it, calls may fail.
    assert {before for _, before in deleted["broken"]} <= {0}
    assert deleted["status"] == "Complete"
    assert [["-r2", "Running"]] in deleted["seen"]
    assert deleted["seen"][-1] == [["-r2", "Complete"]]
    assert found == {
        "broken": [],
        "status": "Complete",
        "search_space": {"x": "ContinuousSearchSpace", "kind": "CategoricalSearchSpace"},
        "algorithm": "RandomSearch",
        "objectives": ["score", "loss"],
        "trials": [[["kind", "x"], "Complete", ["loss", "score"]]] * 3,
        "waited": "Complete",
        "best": {
            "parameters": ["kind", "x"],
            "is_value": True,
            "metrics": ["score", "loss"],
            "whole": True,
        },
        "events": [
            [["Experiment", "Running"], ["Experiment", "Succeeded"], ["Trial", "TrialSucceeded"]],
            True,
        ],
        "listed": True,
        "after_delete": [],
        "gone": True,
        "grid": ["0.5", "1"],
        "logs_again": 40,
        "best_again": ["x"],
    }
