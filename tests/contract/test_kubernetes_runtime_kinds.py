"""Attempts of the kinds that need only a template, with simulated operators.

Each ends by its own status, with the log of its main pod, whatever other pods print.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.core.attempt import Exit
from controller.core.model import FailureClass
from controller.runtime.kubernetes.runtime import KubernetesRuntime
from controller.runtime.protocol import CannotStart
from tests.kube.experiment import Experiment, ended, look_until, on_a_loop, running
from tests.kube.fake_kinds import FakeKind
from tests.kube.fake_kubelet import stamp

Raw = dict[str, Any]

PODS: Raw = {"spec": {"containers": [{"name": "main", "image": "tiny:1"}]}}
ROLE = "training.kubeflow.org/job-role"


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path)


async def begun(
    experiment: Experiment,
    manifest: Raw,
    plural: str,
    *,
    published: tuple[str, ...] = (),
    **cluster: Any,
) -> tuple[KubernetesRuntime, FakeKind, str, Raw]:
    """Start an attempt whose object exists, without pods.
    published: the fields of `spec` that the server names.
    """
    played = FakeKind(experiment.api, manifest, plural, fields=published)
    runtime, name = await experiment.open(template=manifest), experiment.name(0)
    await runtime.start(experiment.launch(0, manifest=manifest, cluster=cluster))
    return runtime, played, name, await played.until_made(name)


def says(kind: str) -> Raw:
    return {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": stamp()}]}


async def exit_of(runtime: KubernetesRuntime, name: str) -> Exit:
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    return exit


def replica_set(experiment_kind: str, specs: str, *roles: str) -> Raw:
    replicas = {role: {"replicas": 1, "restartPolicy": "Never", "template": PODS} for role in roles}
    return {"apiVersion": "kubeflow.org/v1", "kind": experiment_kind, "spec": {specs: replicas}}


@on_a_loop
async def test_a_pytorch_job_has_the_metric_of_its_master_though_workers_are_left(
    experiment: Experiment,
) -> None:
    manifest = replica_set("PyTorchJob", "pytorchReplicaSpecs", "Master", "Worker")
    runtime, played, name, _ = await begun(experiment, manifest, "pytorchjobs")
    kubelet = experiment.api.kubelet
    worker = played.start_pod(
        name, "a-worker-0", lambda spec: spec["pytorchReplicaSpecs"]["Worker"]["template"]
    )
    master = played.start_pod(
        name,
        "master-0",
        lambda spec: spec["pytorchReplicaSpecs"]["Master"]["template"],
        **{ROLE: "master"},
    )
    await look_until(runtime, running(name))
    kubelet.print(worker, "score=0.1")
    kubelet.print(master, "score=0.9")
    kubelet.end(master)
    played.say(name, **says("Succeeded"))
    assert (await exit_of(runtime, name)).code == 0
    assert await runtime.read_log(name, 0) == b"score=0.9\n"
    await runtime.remove(name)
    assert experiment.api.all("pytorchjobs") == []


@on_a_loop
async def test_a_tf_job_without_a_chief_has_the_metric_of_its_first_worker(
    experiment: Experiment,
) -> None:
    manifest = replica_set("TFJob", "tfReplicaSpecs", "PS", "Worker")
    runtime, played, name, _ = await begun(experiment, manifest, "tfjobs")
    kubelet = experiment.api.kubelet
    server = played.start_pod(name, "ps-0", lambda spec: spec["tfReplicaSpecs"]["PS"]["template"])
    worker = played.start_pod(
        name,
        "worker-0",
        lambda spec: spec["tfReplicaSpecs"]["Worker"]["template"],
        **{ROLE: "master"},
    )
    kubelet.print(server, "score=0.1")
    kubelet.print(worker, "score=0.9")
    kubelet.end(worker)
    played.say(name, **says("Succeeded"))
    assert (await exit_of(runtime, name)).code == 0
    assert await runtime.read_log(name, 0) == b"score=0.9\n"


TRAIN_JOB: Raw = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": 2}},
}


def patched(spec: Raw) -> Raw:
    """Return what Trainer 2.2 and later change in the pod template of the job `node`."""
    (patch,) = spec["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    template: Raw = job["template"]["spec"]["template"]
    return template


def overridden(spec: Raw) -> Raw:
    (override,) = spec["podTemplateOverrides"]
    return dict(override)


TRAINERS = {
    "2.1": (("trainer", "podTemplateOverrides"), overridden),
    "2.2": (("trainer", "runtimePatches"), patched),
    "not published": ((), patched),
}


@pytest.mark.parametrize("trainer", TRAINERS)
@on_a_loop
async def test_the_metrics_of_a_train_job_are_those_of_its_first_rank(
    experiment: Experiment, trainer: str
) -> None:
    published, template = TRAINERS[trainer]
    runtime, played, name, made = await begun(
        experiment, TRAIN_JOB, "trainjobs", published=published
    )
    assert {"name": "TUNER_OUTPUT_DIR", "value": "/tuner/output"} not in made["spec"]["trainer"][
        "env"
    ]
    kubelet = experiment.api.kubelet
    pods = [
        played.start_pod(
            name,
            f"node-0-{rank}",
            template,
            **{
                "jobset.sigs.k8s.io/replicatedjob-name": "node",
                "batch.kubernetes.io/job-completion-index": str(rank),
            },
        )
        for rank in (1, 0)
    ]
    await look_until(runtime, running(name))
    kubelet.print(pods[0], "score=0.1")
    kubelet.print(pods[1], "score=0.9")
    for pod in pods:
        kubelet.end(pod)
    played.say(name, **says("Complete"))
    assert (await exit_of(runtime, name)).code == 0
    assert await runtime.read_log(name, 0) == b"score=0.9\n"


@on_a_loop
async def test_a_trainer_that_cannot_label_pods_is_a_mistake_of_configuration(
    experiment: Experiment,
) -> None:
    experiment.api.define(
        TRAIN_JOB["apiVersion"], "trainjobs", "TrainJob", fields=("trainer", "podSpecOverrides")
    )
    runtime = await experiment.open(template=TRAIN_JOB)
    with pytest.raises(CannotStart, match="has no field for the labels of its pods") as refused:
        await runtime.start(experiment.launch(0, manifest=TRAIN_JOB))
    assert refused.value.failure_class is FailureClass.CONFIGURATION


RAY_JOB: Raw = {
    "apiVersion": "ray.io/v1",
    "kind": "RayJob",
    "spec": {
        "entrypoint": "python train.py",
        "rayClusterSpec": {"headGroupSpec": {"template": PODS}},
    },
}


async def ray_job(experiment: Experiment) -> tuple[KubernetesRuntime, FakeKind, str, str, str]:
    """Return a RayJob whose head and submitter are running."""
    runtime, played, name, _ = await begun(experiment, RAY_JOB, "rayjobs")
    head = played.start_pod(
        name,
        "a-head",
        lambda spec: spec["rayClusterSpec"]["headGroupSpec"]["template"],
        **{"ray.io/node-type": "head"},
    )
    submitter = played.start_pod(
        name,
        "x7k2q",
        lambda spec: spec["submitterPodTemplate"],
        **{"batch.kubernetes.io/job-name": name},
    )
    played.say(name, jobDeploymentStatus="Running", jobStatus="RUNNING")
    await look_until(runtime, running(name))
    return runtime, played, name, head, submitter


@on_a_loop
async def test_a_ray_job_ends_when_its_submitter_has_printed_everything(
    experiment: Experiment,
) -> None:
    runtime, played, name, head, submitter = await ray_job(experiment)
    kubelet = experiment.api.kubelet
    kubelet.print(head, "score=0.1")
    kubelet.print(submitter, "score=0.5")
    played.say(name, jobStatus="SUCCEEDED")
    assert (await look_until(runtime, bool))[name].exit is None
    kubelet.print(submitter, "score=0.9")
    kubelet.end(submitter)
    played.say(name, jobDeploymentStatus="Complete", endTime=stamp())
    assert (await exit_of(runtime, name)).code == 0
    assert await runtime.read_log(name, 0) == b"score=0.5\nscore=0.9\n"


@on_a_loop
async def test_a_ray_job_that_failed_says_why_though_its_submitter_ended_well(
    experiment: Experiment,
) -> None:
    runtime, played, name, head, submitter = await ray_job(experiment)
    experiment.api.kubelet.end(submitter)
    text = "Job entrypoint command failed with exit code 1"
    over = "2026-11-01T10:00:00Z"
    played.say(
        name,
        jobDeploymentStatus="Failed",
        jobStatus="FAILED",
        reason="AppFailed",
        message=text,
        endTime=over,
    )
    experiment.api.kubelet.delete(
        ("pods", "user1", head), grace_s=None, policy="Background"
    )  # KubeRay ends its cluster
    exit = await exit_of(runtime, name)
    assert (exit.failure_class, exit.reason) == (
        FailureClass.USER_ERROR,
        f"its RayJob failed: {text}",
    )


VOLCANO_JOB: Raw = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "spec": {
        "tasks": [
            {"name": "master", "template": PODS},
            {"name": "a-worker", "replicas": 2, "template": PODS},
        ]
    },
}


@on_a_loop
async def test_a_volcano_job_ends_by_its_phase_with_the_metric_of_its_first_task(
    experiment: Experiment,
) -> None:
    runtime, played, name, _ = await begun(experiment, VOLCANO_JOB, "jobs-of-volcano")
    kubelet, tasks = experiment.api.kubelet, ("a-worker", "master")
    pods = [
        played.start_pod(
            name,
            f"{task}-0",
            lambda spec, at=at: spec["tasks"][at]["template"],
            annotations={"volcano.sh/task-spec": task, "volcano.sh/task-index": "0"},
        )
        for at, task in zip((1, 0), tasks, strict=True)
    ]
    played.say(name, state={"phase": "Running"})
    await look_until(runtime, running(name))
    kubelet.print(pods[0], "score=0.1")
    kubelet.print(pods[1], "score=0.9")
    for pod in pods:
        kubelet.end(pod)
    played.say(name, state={"phase": "Completing", "lastTransitionTime": stamp()})
    assert (await look_until(runtime, bool))[name].exit is None
    played.say(name, state={"phase": "Completed", "lastTransitionTime": stamp()})
    assert (await exit_of(runtime, name)).code == 0
    assert await runtime.read_log(name, 0) == b"score=0.9\n"


@on_a_loop
async def test_a_volcano_job_that_was_aborted_for_a_pod_failed_as_its_pod_did(
    experiment: Experiment,
) -> None:
    runtime, played, name, _ = await begun(experiment, VOLCANO_JOB, "jobs-of-volcano")
    marks = {"volcano.sh/task-spec": "master", "volcano.sh/task-index": "0"}
    pod = played.start_pod(
        name, "master-0", lambda spec: spec["tasks"][0]["template"], annotations=marks
    )
    experiment.api.kubelet.end(pod, exit_code=3)
    played.say(name, state={"phase": "Aborted", "lastTransitionTime": stamp()})
    assert (await exit_of(runtime, name)).code == 3


WIDGET: Raw = {"apiVersion": "example.org/v1", "kind": "Widget", "spec": {"template": PODS}}


@pytest.mark.parametrize(("phase", "code"), [("Done", 0), ("Broken", 3)])
@on_a_loop
async def test_a_custom_kind_ends_by_the_field_that_the_file_names(
    experiment: Experiment, phase: str, code: int
) -> None:
    runtime, played, name, _ = await begun(
        experiment,
        WIDGET,
        "widgets",
        success={"path": "status.phase", "equals": "Done"},
        failure={"path": "status.phase", "equals": "Broken"},
    )
    pod = played.start_pod(name, "0", lambda spec: spec["template"])
    played.say(name, phase="Working")
    assert (await look_until(runtime, running(name)))[name].exit is None
    experiment.api.kubelet.end(pod, exit_code=code)
    played.say(name, phase=phase)
    assert (await exit_of(runtime, name)).code == code


@on_a_loop
async def test_a_kind_that_is_not_installed_names_its_operator(experiment: Experiment) -> None:
    runtime, name = await experiment.open(template=RAY_JOB), experiment.name(0)
    await runtime.start(experiment.launch(0, manifest=RAY_JOB))
    assert (await exit_of(runtime, name)).reason == (
        "the cluster has no kind RayJob in ray.io/v1; install its operator (ray.io/v1 is that of "
        "KubeRay 1.5)"
    )
