"""Attempts of a template whose operator reuses the names of pods,
keeps pods, and restarts containers.

On a small API server in this process, with a simulated operator (`tests.kube.fake_operator`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controller.core.attempt import AttemptStatus, Exit
from controller.core.model import FailureClass
from controller.runtime.kubernetes import admission
from controller.runtime.kubernetes.runtime import KubernetesRuntime
from controller.runtime.protocol import Launch
from tests.kube.experiment import NAMESPACE, Experiment, ended, look, look_until, on_a_loop, running
from tests.kube.fake_operator import (
    API_VERSION,
    KIND,
    PLURAL,
    READING,
    TRAINING_JOB,
    FakeOperator,
)

Raw = dict[str, Any]


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setattr(admission, "_AGAIN_S", 0.05)  # time is not what is claimed here
    return Experiment(tmp_path)


def training_job(experiment: Experiment, **more: Any) -> Launch:
    return experiment.launch(0, manifest=TRAINING_JOB, cluster=READING, **more)


async def begun(
    experiment: Experiment, **more: Any
) -> tuple[KubernetesRuntime, FakeOperator, str, tuple[str, str]]:
    """Start an attempt whose master and worker are running."""
    operator = FakeOperator(experiment.api)
    runtime, name = await experiment.open(template=TRAINING_JOB), experiment.name(0)
    await runtime.start(training_job(experiment, **more))
    await operator.until_made(name)
    pods = operator.make_pods(name)
    await look_until(runtime, running(name))
    return runtime, operator, name, pods


async def log_becomes(runtime: KubernetesRuntime, name: str, text: bytes) -> None:
    for _ in range(400):
        if await runtime.read_log(name, 0) == text:
            return
        await look(runtime)
        await runtime.wait(0.05, log_growth=True)
    raise AssertionError(await runtime.read_log(name, 0))


def exit_in(seen: Mapping[str, AttemptStatus], name: str) -> Exit:
    exit = seen[name].exit
    assert exit is not None
    return exit


# Pods whose names are reused


@on_a_loop
async def test_the_log_of_recreated_pods_with_the_same_names_is_read(
    experiment: Experiment,
) -> None:
    kubelet = experiment.api.kubelet
    runtime, operator, name, (master, _) = await begun(experiment)
    kubelet.print(master, "accuracy=0.1")
    await log_becomes(runtime, name, b"accuracy=0.1\n")
    operator.preempt(name)
    await look_until(runtime, lambda seen: "suspended" in seen[name].waiting)
    operator.readmit(name)
    kubelet.print(master, "accuracy=0.9")
    await log_becomes(runtime, name, b"accuracy=0.1\naccuracy=0.9\n")
    kubelet.end(master)
    operator.succeed(name)
    exit = exit_in(await look_until(runtime, ended(name)), name)
    assert (exit.code, exit.reason) == (0, "")
    assert await runtime.read_log(name, 0) == b"accuracy=0.1\naccuracy=0.9\n"


@on_a_loop
async def test_another_controller_continues_the_log_of_recreated_pods(
    experiment: Experiment,
) -> None:
    kubelet = experiment.api.kubelet
    runtime, operator, name, (master, _) = await begun(experiment)
    kubelet.print(master, "accuracy=0.1")
    await log_becomes(runtime, name, b"accuracy=0.1\n")
    await runtime.close()
    operator.preempt(name)
    operator.readmit(name)
    kubelet.print(master, "accuracy=0.9")
    successor = await experiment.open(template=TRAINING_JOB)
    await successor.start(training_job(experiment))
    await log_becomes(successor, name, b"accuracy=0.1\naccuracy=0.9\n")


# Labels that somebody has changed while no controller ran


def without_labels(experiment: Experiment, plural: str, names: Iterable[str]) -> None:
    def change(obj: Raw) -> None:
        labels = obj["metadata"]["labels"]
        obj["metadata"]["labels"] = {
            key: value for key, value in labels.items() if not key.startswith("tuner.dev/")
        }

    for name in names:
        experiment.api.change(plural, NAMESPACE, name, change)


def put_between(experiment: Experiment, owner: str, pods: Iterable[str]) -> None:
    """Let a Job own the pods, and let it have the pods' owner, as a JobSet's Job has."""
    references = experiment.api.get(PLURAL, NAMESPACE, owner)["metadata"]
    above = {"apiVersion": API_VERSION, "kind": KIND, "name": owner, "uid": references["uid"]}
    between = {"name": f"{owner}-node-0", "namespace": NAMESPACE, "ownerReferences": [above]}
    experiment.api.put("jobs", {"metadata": between, "spec": {}, "status": {}})
    uid = experiment.api.get("jobs", NAMESPACE, between["name"])["metadata"]["uid"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": between["name"], "uid": uid}
    for pod in pods:
        experiment.api.change(
            "pods",
            NAMESPACE,
            pod,
            lambda each: each["metadata"].update(ownerReferences=[{**job, "controller": True}]),
        )


@pytest.mark.parametrize("has_job_between", [False, True], ids=["directly owned", "by a Job"])
@on_a_loop
async def test_another_controller_finds_the_pods_although_their_labels_were_taken_away(
    experiment: Experiment, has_job_between: bool
) -> None:
    runtime, operator, name, pods = await begun(experiment)
    await runtime.close()
    if has_job_between:
        put_between(experiment, name, pods)
    without_labels(experiment, PLURAL, [name])
    without_labels(experiment, "pods", pods)
    experiment.api.kubelet.print(pods[0], "accuracy=0.9")
    successor = await experiment.open(template=TRAINING_JOB)
    await look_until(successor, running(name))
    await log_becomes(successor, name, b"accuracy=0.9\n")
    experiment.api.kubelet.end(pods[0])
    operator.succeed(name)
    assert exit_in(await look_until(successor, ended(name)), name).code == 0


@on_a_loop
async def test_a_pod_of_another_owner_with_such_a_name_is_left_alone(
    experiment: Experiment,
) -> None:
    runtime, _, name, pods = await begun(experiment)
    await runtime.close()
    without_labels(experiment, "pods", pods)
    for pod in pods:
        experiment.api.change(
            "pods",
            NAMESPACE,
            pod,
            lambda each: each["metadata"]["ownerReferences"][0].update(uid="of another"),
        )
    successor = await experiment.open(template=TRAINING_JOB)
    assert (await look(successor))[name].start_time is None


# Pods that are deleted


@on_a_loop
async def test_a_deleted_main_pod_counts_as_lost_even_if_its_program_exits_on_sigterm(
    experiment: Experiment,
) -> None:
    """The kubelet deletes a pod again, without grace, once its containers have ended."""
    runtime, operator, name, (master, _) = await begun(experiment)

    def deleted(after_s: float, grace_s: int) -> None:
        until = (datetime.now(UTC) + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        about = {"deletionTimestamp": until, "deletionGracePeriodSeconds": grace_s}
        experiment.api.change("pods", NAMESPACE, master, lambda pod: pod["metadata"].update(about))

    deleted(after_s=30, grace_s=30)
    experiment.api.kubelet.end(master, exit_code=1)
    operator.fail(name)
    deleted(after_s=5, grace_s=0)
    experiment.api.remove("pods", NAMESPACE, master)
    exit = exit_in(await look_until(runtime, ended(name)), name)
    assert (exit.failure_class, exit.reason) == (
        FailureClass.INFRASTRUCTURE,
        f"{master}: its pod was deleted by someone else (exit code 1)",
    )


@on_a_loop
async def test_the_end_of_a_pod_is_awaited_from_when_that_of_its_object_is_seen(
    experiment: Experiment,
) -> None:
    """A controller on a busy machine learns late of both."""
    runtime, _, name, (master, _) = await begun(experiment)
    long_ago = (datetime.now(UTC) - timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": long_ago}
    experiment.api.change(
        PLURAL, NAMESPACE, name, lambda job: job["status"].update(conditions=[failed])
    )
    for _ in range(5):
        assert (await look(runtime))[name].exit is None
        await runtime.wait(0.02, log_growth=False)
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
    experiment.api.change("pods", NAMESPACE, master, lambda pod: pod["status"].update(evicted))
    exit = exit_in(await look_until(runtime, ended(name)), name)
    assert exit.failure_class is FailureClass.INFRASTRUCTURE


# Containers that are restarted in place


@on_a_loop
async def test_a_timeout_counts_from_the_first_start_however_often_it_is_restarted(
    experiment: Experiment,
) -> None:
    runtime, operator, name, pods = await begun(experiment, timeout_s=600.0)
    for pod in pods:
        operator.restart(pod, started_s_ago=601, runs=True)
    exit = exit_in(await look_until(runtime, ended(name)), name)
    assert exit.timed_out


@on_a_loop
async def test_a_crash_loop_ends_its_attempt_and_leaves_nothing_running(
    experiment: Experiment,
) -> None:
    runtime, operator, name, (master, _) = await begun(experiment)
    for _ in range(5):
        operator.restart(master)
    exit = exit_in(await look_until(runtime, ended(name)), name)
    assert exit.reason == f"{master}: its container was restarted 5 times, last after exit code 1"
    await runtime.remove(name)
    assert (experiment.api.all(PLURAL), operator.running_pods()) == ([], [])


# What a quota is charged


@on_a_loop
async def test_a_retry_does_not_wait_for_the_charge_of_a_pod_that_was_deleted(
    experiment: Experiment,
) -> None:
    api, kubelet = experiment.api, experiment.api.kubelet
    hard = {"requests.cpu": "2"}
    api.put(
        "resourcequotas",
        {
            "metadata": {"name": "team", "namespace": NAMESPACE},
            "spec": {"hard": hard},
            "status": {"hard": hard, "used": {"requests.cpu": "0"}},
        },
    )
    workers = {"distributed": {"workers": 2}}
    runtime, name = await experiment.open(), experiment.name(0)
    await runtime.start(experiment.launch(0, cluster=workers))
    await look_until(runtime, lambda seen: experiment.jobs() == [name])
    pods = [kubelet.make_pod(NAMESPACE, name, index=index) for index in range(2)]
    for pod in pods:
        kubelet.start(pod)
    await look_until(runtime, running(name))
    api.remove("pods", NAMESPACE, pods[0])
    kubelet.end(pods[1], exit_code=1)
    kubelet.finish_job(NAMESPACE, name)
    await look_until(runtime, ended(name))
    await runtime.start(experiment.launch(0, cluster=workers, attempt=2))
    await look_until(runtime, lambda seen: experiment.name(0, 2) in experiment.jobs())
