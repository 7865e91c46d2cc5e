"""Trials that wait, with the messages of a real scheduler and kubelet:
for GPUs that others use, for a registry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controller.runtime.kubernetes.pod_status import why_waiting
from tests.cluster import images
from tests.cluster.kwok import GPU
from tests.cluster.objects import pods
from tests.cluster.realnode import GPUS, RealNode
from tests.cluster.searcher import Searcher
from tests.cluster.waiting import eventually


@pytest.fixture
def me(level_c: RealNode, namespace: str, tmp_path: Path) -> Iterator[Searcher]:
    images.digits()
    level_c.load(images.DIGITS)
    person = Searcher(tmp_path, level_c.kubeconfig(namespace=namespace), namespace)
    yield person
    person.close()


def write(me: Searcher, *, gpu: int) -> Path:
    path = me.folder / "tiny.yaml"
    trial = {
        "image": images.DIGITS,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", "import sys; print('score=' + sys.argv[1])", "${x}"],
        "resources": {"gpu": gpu, "cpu": "100m"},
    }
    spec = {
        "objective": {"metric": "score", "direction": "maximize"},
        "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
        "algorithm": {"name": "random", "seed": 1},
        "budget": {"trials": 1},
        "runtime": "kubernetes",
        "trial": trial,
    }
    metadata = {"name": "tiny", "namespace": me.namespace}
    path.write_text(
        json.dumps(
            {"apiVersion": "tuner.dev/v1", "kind": "Experiment", "metadata": metadata, "spec": spec}
        )
    )
    return path


def a_pod(name: str, image: str, **resources: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "600"],
        "resources": {"limits": resources},
    }
    spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": name}, "spec": spec}


def test_a_trial_waits_for_gpus_that_others_use_and_says_so(
    level_c: RealNode, me: Searcher
) -> None:
    api = level_c.api()
    api.post(pods(me.namespace), a_pod("other", images.BASE, **{GPU: str(GPUS)}))
    api.until(pods(me.namespace, "other"), lambda pod: pod["spec"].get("nodeName"))
    running = me.start("run", write(me, gpu=1))
    message = f"Unschedulable: 0/1 nodes are available: 1 Insufficient {GPU}."

    def reasons() -> list[object]:
        return [trial.get("reason") for trial in me.trials()] if me.states() else []

    eventually(lambda: message in reasons(), within_s=60, shows=reasons)
    assert message in me.tuner("describe", "tiny/0")[1]
    assert "1 Insufficient" in me.tuner("top", "tiny")[1]
    api.delete(pods(me.namespace, "other"))
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err


def test_doctor_names_a_request_that_no_node_can_ever_meet(me: Searcher) -> None:
    code, out, _ = me.tuner("doctor", write(me, gpu=GPUS + 1))
    assert code != 0
    assert f"no node of 1 can ever run it: 1 without {GPU} {GPUS + 1} (the most is {GPUS})" in out


def test_a_kubelets_message_about_an_unreachable_registry_is_waited_for(
    level_c: RealNode, me: Searcher
) -> None:
    api = level_c.api()
    api.post(pods(me.namespace), a_pod("away", "registry.example/digits:1"))

    def refused(pod: dict[str, Any]) -> bool:
        states = [
            status["state"] for status in pod.get("status", {}).get("containerStatuses") or ()
        ]
        return any("pull" in state.get("waiting", {}).get("reason", "").lower() for state in states)

    api.until(pods(me.namespace, "away"), refused)
    pod: Any = api.get(pods(me.namespace, "away"))
    began = datetime.now(UTC)
    assert why_waiting(pod, now=began + timedelta(seconds=200)).start_failure == ""
    assert "cannot be pulled" in why_waiting(pod, now=began + timedelta(seconds=301)).start_failure
