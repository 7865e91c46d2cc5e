"""The training programs of examples/operators/ on a real node: PyTorch, TensorFlow and MPI.

All pods print a `loss`: the main one that of the held-out examples, each worker
that of its shard. A value read from the wrong pod is therefore wrong. The output
of pods is recorded while the experiment runs.
"""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.api import CORE, Api
from tests.cluster.objects import pods
from tests.cluster.realnode import RealNode
from tests.cluster.searcher import Searcher
from tests.cluster.waiting import eventually
from tests.operators import trainers
from tests.operators.operators import Operators

WITHIN_S = 900.0  # for three trials, each on two busy cores
SILENT_S = 300.0  # for a program that imports its libraries
EPOCHS = 8
LOSS = re.compile(r"epoch=(\d+) loss=(\S+)")


@dataclass(frozen=True, slots=True)
class Training:
    """An example. `main`, `workers`: the suffixes of its pods' names after the name of the trial.

    `shows`: a line that the main pod prints only after the replicas have connected.
    """

    name: str
    plural: str
    main: str
    workers: tuple[str, ...]
    shows: str

    def __str__(self) -> str:
        return self.name


TRAININGS = (
    Training("pytorchjob", "pytorchjobs", "master-0", ("worker-0",), "replica 0 of 2"),
    Training(
        "tfjob",
        "tfjobs",
        "chief-0",
        ("worker-0", "worker-1"),
        "the variables are on /job:ps/replica:0/task:0/device:CPU:0",
    ),
    Training(
        "mpijob", "mpijobs", "launcher", ("worker-0", "worker-1"), "rank 1 of 2 on {trial}-worker-1"
    ),
)


@pytest.fixture(params=TRAININGS, ids=str)
def training(request: pytest.FixtureRequest, real: Operators) -> Training:
    """An example whose images the node has."""
    assert isinstance(real.cluster, RealNode)
    chosen: Training = request.param
    for tag in (trainers.IMAGES[chosen.name], trainers.MPI_DELIVERY):
        real.cluster.import_image(trainers.archive(tag))
    return chosen


@pytest.mark.timeout(1800)  # images are imported, and three trials run on shared cores
def test_replicas_train_one_model_and_the_main_pod_reports_the_metrics(
    real: Operators, me: Searcher, training: Training
) -> None:
    api = real.cluster.api()
    running = me.start("run", here(me, training), "--namespace", me.namespace)
    logs = recorded(api, me, running)
    _, err = running.communicate()
    assert running.returncode == 0, err

    trials = me.trials(training.name)
    assert [(trial["state"], len(trial["attempts"])) for trial in trials] == [("succeeded", 1)] * 3
    for trial in trials:
        lines = me.tuner("logs", f"{training.name}/{trial['number']}")[1].splitlines()
        assert training.shows.format(trial=trial["name"]) in lines
        assert losses(lines) == losses(logs[f"{trial['name']}-{training.main}"])
        assert [epoch for epoch, _ in losses(lines)] == [*range(1, EPOCHS + 1)]
        assert losses(lines)[-1][1] == trial["value"] < losses(lines)[0][1]

        shards = [
            each
            for worker in training.workers
            for each in losses(logs[f"{trial['name']}-{worker}"])
        ]
        assert sorted(epoch for epoch, _ in shards) == sorted(
            [*range(1, EPOCHS + 1)] * len(training.workers)
        )
        first, last = ([loss for epoch, loss in shards if epoch == which] for which in (1, EPOCHS))
        assert max(last) < min(first)
        assert not {loss for _, loss in shards} & {loss for _, loss in losses(lines)}

    best = me.json("best", training.name)
    assert best["parameters"] == {"lr": 0.1}
    assert best["value"] == min(trial["value"] for trial in trials) < 0.5
    assert nothing_left(api, me, training)


def here(me: Searcher, training: Training) -> Path:
    """Return the example's file with the locally built image."""
    text = (trainers.EXAMPLES / f"{training.name}.yaml").read_text()
    path = me.folder / f"{training.name}.yaml"
    path.write_text(text.replace(f"tuner/{training.name}:1", trainers.IMAGES[training.name]))
    return path


def recorded(api: Api, me: Searcher, running: subprocess.Popen[str]) -> dict[str, list[str]]:
    """Record the lines of each pod by name, following the logs: an operator removes pods two
    seconds after the end.
    """
    logs: dict[str, list[str]] = {}

    def follow(name: str) -> None:
        for line in api.stream(f"{pods(me.namespace, name)}/log", seconds=SILENT_S, follow="true"):
            logs[name].append(line)

    def over() -> bool:
        for pod in api.items(pods(me.namespace)):
            name = pod["metadata"]["name"]
            if pod["status"]["phase"] != "Pending" and name not in logs:
                logs[name] = []
                following.append(threads.submit(follow, name))
        return running.poll() is not None

    following: list[Future[None]] = []
    with ThreadPoolExecutor(max_workers=16) as threads:  # three trials of four pods
        eventually(over, within_s=WITHIN_S, every_s=0.2)
    for each in following:
        each.result()
    return logs


def losses(lines: list[str]) -> list[tuple[int, float]]:
    """Return epoch and loss as printed."""
    return [(int(found[1]), float(found[2])) for found in map(LOSS.match, lines) if found]


def nothing_left(api: Api, me: Searcher, training: Training) -> bool:
    """Check that no object, no pod and no headless Service is left."""
    namespace = f"{CORE}/namespaces/{me.namespace}"
    objects = f"/apis/kubeflow.org/v1/namespaces/{me.namespace}/{training.plural}"

    def none() -> bool:
        return not any(
            api.items(path) for path in (objects, pods(me.namespace), f"{namespace}/services")
        )

    return eventually(none)
