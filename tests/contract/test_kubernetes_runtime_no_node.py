"""Pods for which the scheduler finds no node: they wait while others use the nodes,
and fail where none ever fits.

On a small API server in this process, whose clock is an hour ahead of the time since
which the pods are unschedulable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.core.model import FailureClass
from controller.runtime.kubernetes.runtime import KubernetesRuntime
from tests.kube.experiment import NAMESPACE, Experiment, ended, look, look_until, on_a_loop
from tests.kube.fake_api import now as stamp
from tests.kube.fake_kubelet import Script

FULL = (
    "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, "
    "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
)
WAITS = "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path)


async def an_unschedulable(experiment: Experiment) -> KubernetesRuntime:
    """Start an attempt, which requests one CPU."""
    experiment.api.kubelet.play(lambda job: Script(waits_s=1e6))
    experiment.api.ahead_s = 3600.0
    runtime = await experiment.open()
    await runtime.start(experiment.launch(0))
    await look_until(runtime, lambda seen: bool(experiment.api.all("pods", NAMESPACE)))
    (pod,) = experiment.api.all("pods", NAMESPACE)
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": FULL,
        "lastTransitionTime": stamp(),
    }
    experiment.api.change(
        "pods",
        NAMESPACE,
        pod["metadata"]["name"],
        lambda obj: obj["status"].update(conditions=[condition]),
    )
    return runtime


def add_node(experiment: Experiment, *, cpu: str) -> None:
    node: dict[str, Any] = {"metadata": {"name": "node1"}, "status": {"allocatable": {"cpu": cpu}}}
    experiment.api.put("nodes", node)


def asked_for_nodes(experiment: Experiment) -> int:
    return experiment.asked("GET", "/nodes")


async def waits(experiment: Experiment, runtime: KubernetesRuntime) -> None:
    name = experiment.name(0)
    await look_until(
        runtime, lambda seen: seen[name].waiting == WAITS and asked_for_nodes(experiment) == 1
    )
    for _ in range(20):
        status = (await look(runtime))[name]
        assert (status.exit, status.waiting) == (None, WAITS)
        await runtime.wait(0.01, log_growth=False)
    assert asked_for_nodes(experiment) == 1


@on_a_loop
async def test_an_attempt_waits_while_others_use_the_nodes(experiment: Experiment) -> None:
    add_node(experiment, cpu="1")
    await waits(experiment, await an_unschedulable(experiment))


@on_a_loop
async def test_an_attempt_waits_where_the_nodes_may_not_be_listed(experiment: Experiment) -> None:
    add_node(experiment, cpu="500m")
    experiment.api.forbid("list", "nodes")
    await waits(experiment, await an_unschedulable(experiment))


@on_a_loop
async def test_an_attempt_that_fits_on_no_node_is_a_configuration_failure(
    experiment: Experiment,
) -> None:
    add_node(experiment, cpu="500m")
    runtime = await an_unschedulable(experiment)
    exit = (await look_until(runtime, ended(experiment.name(0))))[experiment.name(0)].exit
    assert exit is not None
    assert exit.failure_class is FailureClass.CONFIGURATION
    assert exit.reason == "no node of 1 can ever run it: 1 without cpu 1 (the most is 500m)"
