"""Pods of an operator that the server refuses, reported
in events about the attempt's object or objects it owns.

If the quota is the reason, the object is deleted and the attempt waits.
Otherwise it fails, like a Job.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from controller.core.attempt import AttemptStatus
from controller.core.model import FailureClass
from controller.runtime.kubernetes import admission
from controller.runtime.kubernetes.runtime import KubernetesRuntime
from controller.runtime.protocol import Launch
from tests.kube.experiment import NAMESPACE, Experiment, ended, look, look_until, on_a_loop
from tests.kube.fake_api import FakeApi
from tests.kube.fake_kubelet import stamp

Raw = dict[str, Any]

NO_ROOM = "requested: requests.cpu=1, used: requests.cpu=8, limited: requests.cpu=8"
QUOTA = f'Error creating: pods "x" is forbidden: exceeded quota: team, {NO_ROOM}'
SECURITY = (
    'Error creating: pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged'
)
_CONTAINER = {"name": "trial", "image": "tiny:1", "resources": {"requests": {"cpu": "1"}}}
_PODS: Raw = {"template": {"spec": {"containers": [_CONTAINER]}}}


@dataclass(frozen=True)
class Child:
    """An object that an operator creates for its owner, named like it with this suffix."""

    api_version: str
    plural: str
    kind: str
    ending: str


JOB = Child("batch/v1", "jobs", "Job", "-w-0")
JOB_SET = Child("jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet", "")
RAY_CLUSTER = Child("ray.io/v1", "rayclusters", "RayCluster", "-abcde")


@dataclass(frozen=True)
class Operator:
    """children: from the top. The last one, or (none) the object itself, is refused its pods.
    fails: that is said as an event of this reason, beginning so.
    """

    api_version: str
    kind: str
    spec: Raw
    children: tuple[Child, ...] = ()
    fails: str = "FailedCreate"
    prefix: str = ""

    @property
    def plural(self) -> str:
        return f"{self.kind.lower()}s"

    @property
    def manifest(self) -> Raw:
        return {"apiVersion": self.api_version, "kind": self.kind, "spec": self.spec}

    def __str__(self) -> str:
        return f"{self.kind}-{self.fails}"


JOB_SETS = Operator(
    JOB_SET.api_version,
    "JobSet",
    {"replicatedJobs": [{"name": "w", "template": {"spec": _PODS}}]},
    (JOB,),
)
TRAIN_JOBS = Operator(
    "trainer.kubeflow.org/v1alpha1", "TrainJob", {"trainer": {"image": "tiny:1"}}, (JOB_SET, JOB)
)
MPI_JOBS = Operator(
    "kubeflow.org/v1", "MPIJob", {"mpiReplicaSpecs": {"Worker": _PODS}}, (), "FailedCreatePod"
)
OPERATORS = (
    JOB_SETS,
    TRAIN_JOBS,
    Operator(
        JOB_SET.api_version,
        "JobSet",
        JOB_SETS.spec,
        (),
        "JobCreationFailed",
        'job "x" creation failed with error: ',
    ),
    Operator(
        "kubeflow.org/v1",
        "PyTorchJob",
        {"pytorchReplicaSpecs": {"Master": _PODS}},
        (),
        "FailedCreatePod",
    ),
    Operator(
        "ray.io/v1",
        "RayJob",
        {"rayClusterSpec": {}},
        (RAY_CLUSTER,),
        "FailedToCreateHeadPod",
        "Failed to create head Pod user1/x, ",
    ),
)


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setattr(admission, "_AGAIN_S", 0.3)  # time is not what is claimed here
    return Experiment(tmp_path)


def attempt(experiment: Experiment, operator: Operator) -> Launch:
    ends = {"success": {"type": "Complete"}, "failure": {"type": "Failed"}}
    return experiment.launch(0, manifest=operator.manifest, cluster=ends)


async def begun(experiment: Experiment, operator: Operator) -> tuple[KubernetesRuntime, str]:
    """Start an attempt of this operator, under a quota that appears to have room."""
    for child in operator.children:
        if child is not JOB:
            experiment.api.define(child.api_version, child.plural, child.kind)
    experiment.api.define(operator.api_version, operator.plural, operator.kind)
    hard, used = {"requests.cpu": "8"}, {"requests.cpu": "0"}
    experiment.api.put(
        "resourcequotas",
        {
            "metadata": {"name": "team", "namespace": NAMESPACE},
            "spec": {"hard": hard},
            "status": {"hard": hard, "used": used},
        },
    )
    runtime, name = await experiment.open(template=operator.manifest), experiment.name(0)
    await runtime.start(attempt(experiment, operator))
    await look_until(
        runtime, lambda seen: experiment.api.find(operator.plural, NAMESPACE, name) is not None
    )
    return runtime, name


def make_children(api: FakeApi, operator: Operator, name: str) -> Raw:
    """Create the operator's objects, and return the last one or the object itself."""
    owner = api.get(operator.plural, NAMESPACE, name)
    for child in operator.children:
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
        about = {
            "name": name + child.ending,
            "namespace": NAMESPACE,
            "ownerReferences": [reference],
        }
        owner = api.put(child.plural, {"metadata": about, "spec": {}})
    return owner


async def stays_made(runtime: KubernetesRuntime, name: str) -> None:
    for _ in range(20):
        await runtime.wait(0.01, log_growth=False)
        assert (await look(runtime))[name] == AttemptStatus(name, None)


def refuse(api: FakeApi, about: Raw, operator: Operator, message: str) -> None:
    involved = {
        "apiVersion": about["apiVersion"],
        "kind": about["kind"],
        "name": about["metadata"]["name"],
        "uid": about["metadata"]["uid"],
    }
    message = operator.prefix + (
        message.removeprefix("Error creating: ") if operator.prefix else message
    )
    api.put(
        "events",
        {
            "metadata": {"generateName": "e.", "namespace": NAMESPACE},
            "reason": operator.fails,
            "message": message,
            "involvedObject": involved,
            "lastTimestamp": stamp(),
        },
    )


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
@on_a_loop
async def test_without_quota_for_its_pods_the_object_is_taken_back_and_waits(
    experiment: Experiment, operator: Operator
) -> None:
    api = experiment.api
    runtime, name = await begun(experiment, operator)
    first = api.get(operator.plural, NAMESPACE, name)["metadata"]["uid"]
    refuse(api, make_children(api, operator, name), operator, QUOTA)
    await look_until(runtime, lambda seen: name not in seen)
    assert api.find(operator.plural, NAMESPACE, name) is None
    await runtime.start(attempt(experiment, operator))
    waits = f"QuotaExceeded: team, {NO_ROOM}"
    assert (await look(runtime))[name] == AttemptStatus(name, None, waiting=waits)

    def made_again() -> bool:
        found = api.find(operator.plural, NAMESPACE, name)
        return found is not None and found["metadata"]["uid"] != first

    await look_until(runtime, lambda seen: made_again())
    before = experiment.asked("GET", "/events")
    # What was said of the first one's children, which had the same names, does not refuse the
    # second: neither here nor in another controller, which hears of it only now.
    make_children(api, operator, name)
    second = api.get(operator.plural, NAMESPACE, name)["metadata"]["uid"]
    await stays_made(runtime, name)
    await runtime.close()
    successor = await experiment.open(template=operator.manifest)
    await successor.start(attempt(experiment, operator))
    await look_until(successor, lambda seen: experiment.asked("GET", "/events") > before)
    await stays_made(successor, name)
    assert api.get(operator.plural, NAMESPACE, name)["metadata"]["uid"] == second


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
@on_a_loop
async def test_pods_that_admission_refuses_are_a_configuration_failure(
    experiment: Experiment, operator: Operator
) -> None:
    runtime, name = await begun(experiment, operator)
    refuse(experiment.api, make_children(experiment.api, operator, name), operator, SECURITY)
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert (exit.failure_class, exit.reason) == (
        FailureClass.CONFIGURATION,
        "the namespace's pod security profile does not allow it: violates PodSecurity "
        '"restricted:latest": privileged',
    )


@on_a_loop
async def test_an_operator_that_gives_no_reason_is_waited_for(experiment: Experiment) -> None:
    runtime, name = await begun(experiment, MPI_JOBS)
    refuse(
        experiment.api,
        make_children(experiment.api, MPI_JOBS, name),
        MPI_JOBS,
        "Created worker pod: ",
    )
    message = "its operator could not create a pod and does not say why; see the operator's log"
    assert (await look_until(runtime, lambda seen: seen[name].waiting == message))[
        name
    ].exit is None


@on_a_loop
async def test_an_event_with_a_reason_outweighs_one_without(experiment: Experiment) -> None:
    """Two events as Training Operator 1.9.3 writes them within the same second."""
    runtime, name = await begun(experiment, MPI_JOBS)
    job = make_children(experiment.api, MPI_JOBS, name)
    refuse(
        experiment.api,
        job,
        replace(MPI_JOBS, fails="MPIJobFailed"),
        f"worker pod created failed: {SECURITY}",
    )
    refuse(experiment.api, job, MPI_JOBS, "Created worker pod: ")
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit.failure_class is FailureClass.CONFIGURATION


@on_a_loop
async def test_without_the_right_to_read_intermediate_objects_a_warning_is_logged_once(
    experiment: Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    experiment.api.forbid("get", "jobsets")
    runtime, name = await begun(experiment, TRAIN_JOBS)
    job = make_children(experiment.api, TRAIN_JOBS, name)
    with caplog.at_level(logging.WARNING):
        refuse(experiment.api, job, TRAIN_JOBS, QUOTA)
        refuse(
            experiment.api,
            job | {"metadata": job["metadata"] | {"uid": "other"}},
            TRAIN_JOBS,
            QUOTA,
        )
        await look_until(runtime, lambda seen: bool(caplog.messages))
    status = (await look(runtime))[name]
    assert (status.exit, status.waiting) == (None, "")
    rule = "- {apiGroups: [jobset.x-k8s.io], resources: [jobsets], verbs: [get]}"
    assert caplog.messages == [
        f"not shown: why the pods of a JobSet are refused; the missing rule: {rule}"
    ]


@on_a_loop
async def test_events_about_objects_of_others_cost_no_request(experiment: Experiment) -> None:
    api = experiment.api
    runtime, name = await begun(experiment, JOB_SETS)
    for number in range(5):
        theirs = api.put(
            "jobs", {"metadata": {"name": f"theirs-{number}", "namespace": NAMESPACE}, "spec": {}}
        )
        refuse(api, theirs, JOB_SETS, QUOTA)
    child = make_children(api, JOB_SETS, name)
    refuse(api, child, JOB_SETS, SECURITY)
    await look_until(runtime, ended(name))
    asked = [path for method, path, _ in api.requests if method == "GET" and "/jobs/" in path]
    assert asked == [f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{child['metadata']['name']}"]
