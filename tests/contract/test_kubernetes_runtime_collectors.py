"""Metrics that a sidecar collects: read from its log, once, to its end, whatever ends first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.core.attempt import Exit
from controller.core.model import Collection, FailureClass, MetricsFile
from controller.runtime.kubernetes.attempt import SIDECAR_S
from controller.runtime.kubernetes.collector import RESOURCES
from controller.runtime.kubernetes.runtime import KubernetesRuntime
from tests.kube.experiment import (
    NAMESPACE,
    Experiment,
    ended,
    look,
    look_until,
    on_a_loop,
    refusal_of,
    running,
)

COLLECTION = Collection(MetricsFile("/katib/metrics.log"), ("accuracy",), "tuner/collector:1")
SIDECAR = "tuner-collector"
ALL = b"epoch=1 accuracy=0.1\nepoch=2 accuracy=0.2\n# tuner: end\n"


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path)


async def begun(experiment: Experiment, runtime: KubernetesRuntime) -> tuple[str, str]:
    """Start attempt 0 and its pod; return the names of both."""
    name = experiment.name(0)
    await runtime.start(experiment.launch(0, collection=COLLECTION))
    await look_until(runtime, lambda seen: name in seen and bool(experiment.jobs()))
    pod = experiment.api.kubelet.make_pod(NAMESPACE, name)
    experiment.api.kubelet.start(pod)
    await look_until(runtime, running(name))
    return name, pod


async def collected(runtime: KubernetesRuntime, name: str, text: bytes) -> None:
    for _ in range(400):
        if await runtime.read_metrics(name, 0) == text:
            return
        await look(runtime)
        await runtime.wait(0.05, log_growth=True)
    raise AssertionError(await runtime.read_metrics(name, 0))


def print_all(experiment: Experiment, pod: str, *, but: int = 0) -> None:
    for line in ALL.splitlines()[but:]:
        experiment.api.kubelet.print(pod, line, container=SIDECAR)


class Clock:
    """A clock that stands still. The runtime reads it once it has seen an end, and not before."""

    now_s = 0.0
    reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now_s


async def expect_no_end(runtime: KubernetesRuntime, name: str) -> None:
    for _ in range(5):
        assert (await look(runtime))[name].exit is None
        await runtime.wait(0.02, log_growth=False)


async def end_without_the_sidecar(
    experiment: Experiment, runtime: KubernetesRuntime, pod: str, clock: Clock
) -> None:
    """End the trial but not its sidecar, and wait until the runtime has seen it."""
    reads = clock.reads
    experiment.api.kubelet.end(pod, sidecars_too=False)
    await look_until(runtime, lambda _: clock.reads > reads)


@on_a_loop
async def test_the_lines_of_the_sidecar_are_the_measurements(experiment: Experiment) -> None:
    runtime = await experiment.open(collects=True)
    name, pod = await begun(experiment, runtime)
    experiment.api.kubelet.print(pod, "accuracy=9", container="trial")
    print_all(experiment, pod)
    await collected(runtime, name, ALL)
    assert await runtime.read_metrics(name, 21, limit=5) == b"epoch"


@on_a_loop
async def test_an_end_is_shown_once_the_sidecar_has_printed_its_last_line(
    experiment: Experiment,
) -> None:
    runtime = await experiment.open(collects=True)
    name, pod = await begun(experiment, runtime)
    experiment.api.kubelet.end(pod, sidecars_too=False)
    await expect_no_end(runtime, name)
    print_all(experiment, pod)
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit == Exit(exit.time, code=0)
    assert await runtime.read_metrics(name, 0) == ALL


@on_a_loop
async def test_a_node_that_learns_late_that_the_sidecar_ran_is_asked_again(
    experiment: Experiment,
) -> None:
    runtime = await experiment.open(collects=True)
    name, pod = await begun(experiment, runtime)
    experiment.api.answer(400, times=6, path=f"/{pod}/log")
    print_all(experiment, pod)
    experiment.api.kubelet.end(pod)
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit == Exit(exit.time, code=0)
    assert await runtime.read_metrics(name, 0) == ALL


@on_a_loop
@pytest.mark.parametrize("collects", [False, True])
async def test_a_success_whose_pod_is_gone_unread_has_lost_its_logs(
    experiment: Experiment, collects: bool
) -> None:
    runtime, name = await experiment.open(collects=collects), experiment.name(0)
    await runtime.start(experiment.launch(0))
    await look_until(runtime, lambda seen: name in seen and bool(experiment.jobs()))
    long_ago = "2026-01-01T00:00:00Z"
    complete = {"type": "Complete", "status": "True", "lastTransitionTime": long_ago}
    experiment.api.change(
        "jobs", NAMESPACE, name, lambda job: job.update(status={"conditions": [complete]})
    )
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    gone = "its pod was deleted before all of its log was read"
    assert (exit.code, exit.log_end_lost, exit.metrics_end_lost) == (0, gone, gone)


@on_a_loop
async def test_a_sidecar_that_was_killed_does_not_keep_the_attempt_from_ending(
    experiment: Experiment,
) -> None:
    runtime = await experiment.open(collects=True)
    name, pod = await begun(experiment, runtime)
    experiment.api.kubelet.print(pod, ALL.splitlines()[0], container=SIDECAR)
    experiment.api.kubelet.end(pod, sidecars_too=False)
    experiment.api.kubelet.end_sidecars(pod, exit_code=137)
    await look_until(runtime, ended(name))
    assert await runtime.read_metrics(name, 0) == b"epoch=1 accuracy=0.1\n"


@on_a_loop
async def test_an_attempt_ends_a_minute_after_its_trial_if_its_sidecar_never_does(
    experiment: Experiment,
) -> None:
    clock = Clock()
    runtime = await experiment.open(collects=True, clock=clock)
    name, pod = await begun(experiment, runtime)
    experiment.api.kubelet.print(pod, ALL.splitlines()[0], container=SIDECAR)
    await end_without_the_sidecar(experiment, runtime, pod, clock)
    clock.now_s = SIDECAR_S - 1
    await expect_no_end(runtime, name)
    clock.now_s = SIDECAR_S
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit == Exit(exit.time, code=0)
    assert await runtime.read_metrics(name, 0) == b"epoch=1 accuracy=0.1\n"


@on_a_loop
async def test_the_minute_starts_over_with_an_end_that_was_withdrawn(
    experiment: Experiment,
) -> None:
    clock = Clock()
    runtime = await experiment.open(collects=True, clock=clock)
    name, pod = await begun(experiment, runtime)
    await end_without_the_sidecar(experiment, runtime, pod, clock)
    experiment.api.kubelet.start(pod, node="node2")
    await look_until(runtime, lambda seen: seen[name].node == "node2")
    clock.now_s = SIDECAR_S
    await end_without_the_sidecar(experiment, runtime, pod, clock)
    await expect_no_end(runtime, name)
    clock.now_s = 2 * SIDECAR_S
    await look_until(runtime, ended(name))


@on_a_loop
async def test_the_minute_starts_over_once_the_api_server_answers_again(
    experiment: Experiment,
) -> None:
    clock = Clock()
    runtime = await experiment.open(collects=True, clock=clock)
    name, pod = await begun(experiment, runtime)
    await end_without_the_sidecar(experiment, runtime, pod, clock)
    await experiment.api.stop()
    while not await refusal_of(look(runtime)):
        await runtime.wait(0.02, log_growth=False)
    clock.now_s, reads = SIDECAR_S, clock.reads
    await experiment.api.start()
    await look_until(runtime, lambda _: clock.reads > reads, refusals=[])
    await expect_no_end(runtime, name)
    clock.now_s = 2 * SIDECAR_S
    await look_until(runtime, ended(name))


@on_a_loop
async def test_measurements_of_a_worker_that_has_run_are_awaited_though_another_cannot_start(
    experiment: Experiment,
) -> None:
    runtime = await experiment.open(collects=True)
    name, kubelet = experiment.name(0), experiment.api.kubelet
    workers = {"distributed": {"workers": 2}}
    await runtime.start(experiment.launch(0, collection=COLLECTION, cluster=workers))
    await look_until(runtime, lambda seen: name in seen and bool(experiment.jobs()))
    first, second = (kubelet.make_pod(NAMESPACE, name, index=index) for index in range(2))
    kubelet.start(first)
    kubelet.wait(second, reason="ErrImageNeverPull")
    kubelet.end(first, sidecars_too=False)
    await expect_no_end(runtime, name)
    print_all(experiment, first)
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit.failure_class is FailureClass.CONFIGURATION
    assert await runtime.read_metrics(name, 0) == ALL


@on_a_loop
async def test_a_trial_that_cannot_start_beside_its_sidecar_is_a_configuration_failure(
    experiment: Experiment,
) -> None:
    runtime = await experiment.open(collects=True)
    name = experiment.name(0)
    await runtime.start(experiment.launch(0, collection=COLLECTION))
    await look_until(runtime, lambda seen: name in seen and bool(experiment.jobs()))
    pod = experiment.api.kubelet.make_pod(NAMESPACE, name)
    experiment.api.kubelet.start(pod)

    def waiting(obj: dict[str, Any]) -> None:
        state = {
            "waiting": {"reason": "CreateContainerConfigError", "message": "image will run as root"}
        }
        obj["status"]["phase"] = "Pending"
        obj["status"]["containerStatuses"] = [{"name": "trial", "restartCount": 0, "state": state}]

    experiment.api.change("pods", NAMESPACE, pod, waiting)
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit.failure_class is FailureClass.CONFIGURATION
    assert "runs as root, which is not allowed here" in exit.reason


@on_a_loop
async def test_another_controller_reads_no_line_twice(experiment: Experiment) -> None:
    runtime = await experiment.open(collects=True)
    name, pod = await begun(experiment, runtime)
    experiment.api.kubelet.print(pod, ALL.splitlines()[0], container=SIDECAR)
    await collected(runtime, name, b"epoch=1 accuracy=0.1\n")
    await runtime.close()
    runtime = await experiment.open(collects=True)
    print_all(experiment, pod, but=1)
    experiment.api.kubelet.end(pod, sidecars_too=False)
    await look_until(runtime, ended(name))
    assert await runtime.read_metrics(name, 0) == ALL


@on_a_loop
async def test_a_collector_whose_image_cannot_be_pulled_is_a_configuration_failure_with_the_cure(
    experiment: Experiment,
) -> None:
    runtime = await experiment.open(collects=True)
    name = experiment.name(0)
    await runtime.start(experiment.launch(0, collection=COLLECTION))
    await look_until(runtime, lambda seen: name in seen and bool(experiment.jobs()))
    pod = experiment.api.kubelet.make_pod(NAMESPACE, name)

    def waiting(obj: dict[str, object]) -> None:
        obj["spec"]["nodeName"] = "node1"  # type: ignore[index]
        state = {"waiting": {"reason": "ErrImageNeverPull", "message": ""}}
        pull = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
        long_ago = "2026-01-01T00:00:00Z"
        obj["metadata"]["creationTimestamp"] = long_ago  # type: ignore[index]
        obj["status"] = {
            "phase": "Pending",
            "startTime": long_ago,
            "initContainerStatuses": [{"name": SIDECAR, "restartCount": 0, "state": pull}],
            "containerStatuses": [{"name": "trial", "restartCount": 0, "state": state}],
        }

    experiment.api.change("pods", NAMESPACE, pod, waiting)
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert (exit.failure_class, exit.reason) == (
        FailureClass.CONFIGURATION,
        "the collector's image tuner/collector:1 cannot be pulled: not found; push it to a "
        "registry that the nodes can "
        "pull from (make image-collector), and name it in spec.metrics.collectorImage or "
        "TUNER_COLLECTOR_IMAGE",
    )


@on_a_loop
async def test_the_sidecar_is_counted_by_a_quota(experiment: Experiment) -> None:
    experiment.api.put(
        "resourcequotas",
        {
            "metadata": {"name": "q", "namespace": NAMESPACE},
            "spec": {"hard": {"requests.cpu": "1050m"}},
            "status": {"hard": {"requests.cpu": "1050m"}, "used": {"requests.cpu": "0"}},
        },
    )
    assert RESOURCES["cpu"] == "100m"
    runtime = await experiment.open(collects=True)
    with pytest.raises(Exception, match=r"requests\.cpu"):
        await runtime.start(experiment.launch(0, collection=COLLECTION))
