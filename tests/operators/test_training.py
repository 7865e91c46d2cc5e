"""Programs that really train, as examples/operators/ runs them: PyTorch, TensorFlow and MPI on a real node.

What each pod prints is recorded while the experiment runs, because its objects are removed at the end. All pods print a
`loss`: the main one of the held-out examples, the others of their own shard.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import CORE, Api, Object, Refused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.objects import pods
from tests.cluster.realnode import RealNode
from tests.cluster.searcher import Searcher
from tests.cluster.waiting import eventually
from tests.operators import images
from tests.operators.conftest import lacks
from tests.operators.operators import Operators

WITHIN_S = 900.0  # three trials, each on two busy cores
LOSS = re.compile(r"^epoch=\d+ loss=(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Training:
    """An example. `main`, `others`: how the names of its pods end; `learns`: those of the others that print losses."""

    name: str
    plural: str
    main: str
    learns: tuple[str, ...]
    serves: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


TRAININGS = (
    Training("pytorchjob", "pytorchjobs", "-master-0", ("-worker-0",)),
    Training("tfjob", "tfjobs", "-chief-0", ("-worker-0", "-worker-1"), serves=("-ps-0",)),
    Training("mpijob", "mpijobs", "-launcher", ("-worker-0", "-worker-1")),
)


@pytest.fixture(params=TRAININGS, ids=str)
def training(request: pytest.FixtureRequest, real: Operators) -> Training:
    lacks(images.missing())
    assert isinstance(real.cluster, RealNode)
    chosen: Training = request.param
    for tag in (images.TRAINERS[chosen.name], images.MPI_DELIVERY):
        real.cluster.import_image(images.archive(tag))
    return chosen


@pytest.mark.timeout(1800)  # images are imported, and three trials run on cores that others use too
def test_replicas_train_one_model_and_the_main_pod_tells_the_metrics(
    real: Operators, me: Searcher, training: Training
) -> None:
    api = real.cluster.api()
    running = me.start("run", here(real.cluster, me, training), "--namespace", me.namespace)
    logs = recorded(api, me, running)
    _, err = running.communicate()
    assert running.returncode == 0, err

    trials = me.trials(training.name)
    assert [(trial["state"], len(trial["attempts"])) for trial in trials] == [("succeeded", 1)] * 3
    for trial in trials:
        mine = {pod: text for pod, text in logs.items() if pod.startswith(f"{trial['name']}-")}
        (main,) = (text for pod, text in mine.items() if pod.endswith(training.main))
        told = me.tuner("logs", f"{training.name}/{trial['number']}")[1]
        assert told.startswith(main)
        assert losses(told)[-1] == trial["value"]
        for ending in training.learns:
            (shard,) = (losses(text) for pod, text in mine.items() if pod.endswith(ending))
            assert len(shard) > 1
            assert not {*shard} & {*losses(told)}
            assert shard[-1] < shard[0]
        assert losses(told)[-1] < losses(told)[0]
        assert {pod for pod in mine if pod.endswith(training.serves)} if training.serves else True

    best = me.json("best", training.name)
    assert best["parameters"] == {"lr": 0.1}
    assert best["value"] == min(trial["value"] for trial in trials) < 0.5
    assert nothing_left(api, me, training)


def here(cluster: ControlPlane, me: Searcher, training: Training) -> Path:
    """The example with the image that was built here."""
    assert isinstance(cluster, RealNode)
    text = (images.EXAMPLES / f"{training.name}.yaml").read_text()
    content = yaml.safe_load(text.replace(f"tuner/{training.name}:1", images.TRAINERS[training.name]))
    server = {"HOST": cluster.gateway, "PORT": cluster.server.rpartition(":")[2]}
    for replica in replicas(content):
        (container,) = replica["template"]["spec"]["containers"]
        # Without kube-proxy the Service of the API server has no address that answers; MPI's launcher calls it.
        container["env"] = [{"name": f"KUBERNETES_SERVICE_{key}", "value": value} for key, value in server.items()]
    path = me.folder / f"{training.name}.yaml"
    path.write_text(json.dumps(content))  # JSON is YAML
    return path


def replicas(content: Any) -> list[Object]:
    (found,) = (value for key, value in content["spec"]["trial"]["template"]["spec"].items() if "ReplicaSpecs" in key)
    return list(found.values())


def recorded(api: Api, me: Searcher, running: subprocess.Popen[str]) -> dict[str, str]:
    """What each pod printed, by its name, as long as `running` goes on."""
    logs: dict[str, str] = {}

    def over() -> bool:
        for pod in api.items(pods(me.namespace)):
            with contextlib.suppress(Refused):  # not started yet, or removed by now
                logs[pod["metadata"]["name"]] = api.logs(me.namespace, pod["metadata"]["name"])
        return running.poll() is not None

    eventually(over, within_s=WITHIN_S, every_s=0.5)
    return logs


def losses(text: str) -> list[float]:
    return [float(value) for value in LOSS.findall(text)]


def nothing_left(api: Api, me: Searcher, training: Training) -> bool:
    """No object, no pod, and none of the Services that name pods."""
    places = (
        f"/apis/kubeflow.org/v1/namespaces/{me.namespace}/{training.plural}",
        pods(me.namespace),
        f"{CORE}/namespaces/{me.namespace}/services",
    )
    return all(eventually(lambda place=place: not api.items(place)) for place in places)
