"""Attempts that Kueue queues, preempts and admits again:
Jobs and operators' kinds, with a simulated Kueue.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller.core.attempt import AttemptStatus
from controller.runtime.kubernetes.kinds import NOT_INSTALLED
from controller.runtime.kubernetes.runtime import KubernetesRuntime
from controller.runtime.protocol import Launch
from tests.kube.experiment import NAMESPACE, Experiment, ended, look, look_until, on_a_loop, running
from tests.kube.fake_kubelet import stamp
from tests.kube.fake_kueue import FULL, QUEUE, FakeKueue

Raw = dict[str, Any]

NEEDED = "insufficient unused quota for cpu in flavor default, 500m more needed"
QUEUED = f"queued by Kueue (queue {QUEUE})"
_PODS: Raw = {"template": {"spec": {"containers": [{"name": "trial", "image": "tiny:1"}]}}}


@dataclass(frozen=True)
class Kind:
    """A kind that Kueue manages, as a template of the file.

    With `manifest` None, it is the Job that Tuner creates.
    """

    api_version: str
    plural: str
    manifest: Raw | None

    def __str__(self) -> str:
        return self.plural


def _kind(api_version: str, kind: str, spec: Raw) -> Kind:
    return Kind(
        api_version, f"{kind.lower()}s", {"apiVersion": api_version, "kind": kind, "spec": spec}
    )


JOB = Kind("batch/v1", "jobs", None)
KINDS = (
    JOB,
    _kind(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        {"replicatedJobs": [{"name": "w", "template": {"spec": _PODS}}]},
    ),
    _kind("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": {"Master": _PODS}}),
    _kind("trainer.kubeflow.org/v1alpha1", "TrainJob", {"trainer": {"image": "tiny:1"}}),
)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path)


def launch(experiment: Experiment, kind: Kind, **more: Any) -> Launch:
    ends = (
        {"success": {"type": "Succeeded"}, "failure": {"type": "Failed"}}
        if kind.manifest is not None
        else {}
    )
    return experiment.launch(0, manifest=kind.manifest, cluster={"queue": QUEUE, **ends}, **more)


async def queued(
    experiment: Experiment, kind: Kind = JOB, **more: Any
) -> tuple[KubernetesRuntime, FakeKueue, str]:
    """Open a runtime with an attempt that Kueue has not admitted."""
    if kind.manifest is not None:
        experiment.api.define(kind.api_version, kind.plural, kind.manifest["kind"])
    played, name = FakeKueue(experiment.api), experiment.name(0)
    runtime = await experiment.open(template=kind.manifest, own=False)
    await runtime.start(launch(experiment, kind, **more))
    await played.until_made(kind.plural, name)
    played.hold(kind.plural, name)
    return runtime, played, name


async def waits_for(runtime: KubernetesRuntime, name: str, reason: str) -> AttemptStatus:
    seen = await look_until(runtime, lambda seen: name in seen and seen[name].waiting == reason)
    return seen[name]


# Preemption


@pytest.mark.parametrize("kind", KINDS, ids=str)
@on_a_loop
async def test_a_preempted_attempt_waits_and_runs_again_as_the_same_attempt(
    experiment: Experiment, kind: Kind
) -> None:
    runtime, played, name = await queued(experiment, kind)
    await waits_for(runtime, name, f"{QUEUED}: {NEEDED}")
    pod = played.admit(kind.plural, name)
    first = (await look_until(runtime, running(name)))[name]
    assert (first.node, first.suspended) == (experiment.api.kubelet.node, False)

    played.preempt(kind.plural, name, pod)
    why = "Preempted to accommodate a workload due to prioritization in the ClusterQueue"
    preempted = await waits_for(runtime, name, f"preempted by Kueue, waits in queue {QUEUE}: {why}")
    assert (preempted.start_time, preempted.exit, preempted.node, preempted.suspended) == (
        None,
        None,
        "",
        True,
    )
    played.hold(kind.plural, name)
    await waits_for(runtime, name, f"preempted by Kueue, waits in queue {QUEUE}: {NEEDED}")

    pod = played.admit(kind.plural, name)
    await look_until(runtime, running(name))
    experiment.api.kubelet.end(pod)
    if kind is not JOB:
        succeeded = {
            "type": "Succeeded",
            "status": "True",
            "lastTransitionTime": "2026-11-23T00:00:00Z",
        }
        experiment.api.change(
            kind.plural, NAMESPACE, name, lambda obj: obj["status"].update(conditions=[succeeded])
        )
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit.code == 0
    assert experiment.asked("POST", f"/{kind.plural}") == 1


@pytest.mark.parametrize("kind", KINDS, ids=str)
@on_a_loop
async def test_a_preempted_attempt_whose_pods_are_ending_has_not_failed(
    experiment: Experiment, kind: Kind
) -> None:
    """The deletion of its pods may be observed before the suspension of its object."""
    runtime, played, name = await queued(experiment, kind)
    pod = played.admit(kind.plural, name)
    await look_until(runtime, running(name))
    # The pod stays in this state, so that a slow machine sees it too.
    experiment.api.change(
        "pods", NAMESPACE, pod, lambda pod: pod["metadata"].update(deletionTimestamp=stamp())
    )
    await look_until(runtime, lambda seen: seen[name].start_time is None)
    assert (await look(runtime))[name].exit is None


@on_a_loop
async def test_the_timeout_does_not_count_while_it_is_preempted(experiment: Experiment) -> None:
    runtime, played, name = await queued(experiment, timeout_s=600.0)
    pod = played.admit("jobs", name)
    long_ago = "2020-01-01T00:00:00Z"

    def began_long_ago(pod: dict[str, Any]) -> None:
        pod["metadata"]["creationTimestamp"] = long_ago
        pod["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": long_ago}}

    played.preempt("jobs", name, pod)
    await look_until(runtime, lambda seen: seen[name].suspended)
    pod = played.admit("jobs", name)
    await look_until(runtime, running(name))
    assert (await look(runtime))[name].exit is None
    experiment.api.change("pods", NAMESPACE, pod, began_long_ago)
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit.timed_out


@on_a_loop
async def test_an_attempt_deleted_while_preempted_is_lost(experiment: Experiment) -> None:
    runtime, played, name = await queued(experiment)
    played.preempt("jobs", name, played.admit("jobs", name))
    await look_until(runtime, lambda seen: seen[name].suspended)
    experiment.api.remove("jobs", NAMESPACE, name)
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit.reason == "its Job was deleted by someone else"


@on_a_loop
async def test_a_preempted_attempt_that_is_stopped_ends(experiment: Experiment) -> None:
    runtime, played, name = await queued(experiment)
    played.preempt("jobs", name, played.admit("jobs", name))
    await look_until(runtime, lambda seen: seen[name].suspended)
    await runtime.stop(name, grace_s=0)
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit.stopped
    assert experiment.jobs() == []


# Why it waits


@on_a_loop
async def test_a_missing_queue_is_reported_with_the_cure_and_the_attempt_waits(
    experiment: Experiment,
) -> None:
    runtime, played, name = await queued(experiment)
    missing = f"LocalQueue {QUEUE} doesn't exist"
    played.hold("jobs", name, missing, reason="Inadmissible")
    await waits_for(
        runtime, name, f"{QUEUED}: {missing}; create it, or name another one in spec.trial.queue"
    )
    played.admit("jobs", name)
    await look_until(runtime, running(name))


@on_a_loop
async def test_an_older_version_of_kueues_api_works(experiment: Experiment) -> None:
    played, name = FakeKueue(experiment.api, version="v1beta1"), experiment.name(0)
    runtime = await experiment.open(own=False)
    await runtime.start(launch(experiment, JOB))
    await played.until_made("jobs", name)
    played.hold("jobs", name, FULL)
    await waits_for(runtime, name, f"{QUEUED}: {NEEDED}")


@on_a_loop
async def test_an_attempt_with_a_queue_waits_because_kueue_is_not_installed(
    experiment: Experiment,
) -> None:
    runtime, name = await experiment.open(own=False), experiment.name(0)
    await runtime.start(launch(experiment, JOB))
    await waits_for(runtime, name, f"{QUEUED}: {NOT_INSTALLED}")


@on_a_loop
async def test_without_the_right_to_workloads_a_warning_is_logged_once_and_trials_wait(
    experiment: Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    experiment.api.forbid("list", "workloads")
    with caplog.at_level(logging.WARNING):
        runtime, played, name = await queued(experiment)
        await look_until(runtime, lambda seen: bool(caplog.messages))
        assert (await waits_for(runtime, name, QUEUED)).suspended
        played.preempt("jobs", name, played.admit("jobs", name))
        await waits_for(runtime, name, QUEUED)
    rule = "- {apiGroups: [kueue.x-k8s.io], resources: [workloads], verbs: [list]}"
    assert caplog.messages == [
        f"not shown: why Kueue keeps a trial waiting; the missing rule: {rule}"
    ]


@on_a_loop
async def test_workloads_are_not_watched_for_an_attempt_that_has_no_queue(
    experiment: Experiment,
) -> None:
    FakeKueue(experiment.api)
    runtime, name = await experiment.open(), experiment.name(0)
    await runtime.start(experiment.launch(0))
    await look_until(runtime, lambda seen: experiment.jobs() == [name])
    experiment.api.change("jobs", NAMESPACE, name, lambda job: job["spec"].update(suspend=True))
    await waits_for(runtime, name, "suspended")
    assert experiment.asked("GET", "kueue") == 0
