"""The kinds of the tests: one template for each, with a main pod
and a worker that behave differently.

A behavior is environment variables that fake pods obey (tests/cluster/kwok.py). Every pod takes one
GPU, so an object takes two. Where all pods share a template (Job, TrainJob) the worker's behavior
is written for completion index 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.cluster.api import Api, Object
from tests.cluster.kwok import GPU
from tests.operators.operators import JOBSET, TRAINER, TRAINING

Behavior = Mapping[str, str]
GPUS = 2  # GPUs of one object
KUBEFLOW = "kubeflow.org/v1"
INDEX = "batch.kubernetes.io/job-completion-index"
RESTARTS = ("Never", "OnFailure")


@dataclass(frozen=True, slots=True)
class Kind:
    """`template`: a function of the main pod's behavior, the worker's and a restart policy.
    `operators`: needed.

    `main`: labels of its main pod. `success`: the condition of its success.
    `queued`: Kueue takes it.
    """

    name: str
    resource: str  # GROUP/VERSION/plural
    template: Callable[[Behavior, Behavior, str], Object]
    operators: tuple[str, ...]
    main: Mapping[str, str]
    success: str
    queued: bool = True

    def __str__(self) -> str:
        return self.name

    def objects(self, namespace: str, name: str = "") -> str:
        group, version, plural = self.resource.split("/")
        return f"/apis/{group}/{version}/namespaces/{namespace}/{plural}" + (
            f"/{name}" if name else ""
        )

    def is_main(self, pod: Object) -> bool:
        labels = pod["metadata"].get("labels", {})
        return all(labels.get(key) == value for key, value in self.main.items())


def prepare(api: Api, namespace: str) -> None:
    """Create what objects need in their namespace: a TrainingRuntime for each restart policy."""
    for restart in RESTARTS:
        pod = {"restartPolicy": restart, "containers": [{"name": "node", "image": "tiny:1"}]}
        job = {"backoffLimit": 0, "template": {"spec": pod}}
        step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
        replicated = {"name": "node", "template": {"metadata": {"labels": step}, "spec": job}}
        jobset = {"failurePolicy": {"maxRestarts": 0}, "replicatedJobs": [replicated]}
        runtime = {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainingRuntime",
            "metadata": {
                "name": _runtime(restart),
                "labels": {"trainer.kubeflow.org/framework": "plain"},
            },
            "spec": {"mlPolicy": {"numNodes": 2}, "template": {"spec": jobset}},
        }
        api.post(
            f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainingruntimes", runtime
        )


def _runtime(restart: str) -> str:
    return f"restarts-{restart.lower()}"


def _container(name: str, behavior: Behavior) -> Object:
    return {
        "name": name,
        "image": "tiny:1",
        "command": ["python", "train.py", "--x=${x}"],
        "env": _environment(behavior),
        "resources": {"limits": {GPU: "1"}},
    }


def _environment(behavior: Behavior) -> list[Object]:
    return [{"name": name, "value": value} for name, value in behavior.items()]


def _pod(container: str, behavior: Behavior, restart: str = "Never") -> Object:
    return {"spec": {"restartPolicy": restart, "containers": [_container(container, behavior)]}}


def _both(main: Behavior, worker: Behavior) -> dict[str, str]:
    return {**main, **{f"{name}_1": value for name, value in {"KWOK_EXIT": "0", **worker}.items()}}


def _job(main: Behavior, worker: Behavior, restart: str) -> Object:
    pod = _pod("main", _both(main, worker), restart)
    spec = {
        "completions": 2,
        "parallelism": 2,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": pod,
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}


def _jobset(main: Behavior, worker: Behavior, restart: str) -> Object:
    groups = [
        {
            "name": name,
            "template": {"spec": {"backoffLimit": 0, "template": _pod("main", behavior, restart)}},
        }
        for name, behavior in (("leader", main), ("workers", worker))
    ]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "spec": {"replicatedJobs": groups},
    }


def _training(
    kind: str, replicas: str, main_type: str, container: str
) -> Callable[[Behavior, Behavior, str], Object]:
    def template(main: Behavior, worker: Behavior, restart: str) -> Object:
        def replica(behavior: Behavior, policy: str) -> Object:
            pod = {"spec": {"containers": [_container(container, behavior)]}}
            return {"replicas": 1, "restartPolicy": policy, "template": pod}

        both = {main_type: replica(main, restart), "Worker": replica(worker, restart)}
        return {"apiVersion": KUBEFLOW, "kind": kind, "spec": {replicas: both}}

    return template


def _trainjob(main: Behavior, worker: Behavior, restart: str) -> Object:
    trainer = {
        "numNodes": 2,
        "image": "tiny:1",
        "command": ["python", "train.py", "--x=${x}"],
        "env": _environment(_both(main, worker)),
        "resourcesPerNode": {"limits": {GPU: "1"}, "requests": {GPU: "1"}},
    }
    spec = {
        "runtimeRef": {"name": _runtime(restart), "kind": "TrainingRuntime"},
        "trainer": trainer,
    }
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec": spec}


_ROLE = {"training.kubeflow.org/job-role": "master"}
_FIRST = {INDEX: "0"}
KINDS = (
    Kind("Job", "batch/v1/jobs", _job, (), _FIRST, "Complete"),
    Kind(
        "JobSet",
        "jobset.x-k8s.io/v1alpha2/jobsets",
        _jobset,
        (JOBSET,),
        {"jobset.sigs.k8s.io/replicatedjob-name": "leader"},
        "Completed",
    ),
    Kind(
        "PyTorchJob",
        f"{KUBEFLOW}/pytorchjobs",
        _training("PyTorchJob", "pytorchReplicaSpecs", "Master", "pytorch"),
        (TRAINING,),
        _ROLE,
        "Succeeded",
    ),
    Kind(
        "TFJob",
        f"{KUBEFLOW}/tfjobs",
        _training("TFJob", "tfReplicaSpecs", "Chief", "tensorflow"),
        (TRAINING,),
        _ROLE,
        "Succeeded",
    ),
    Kind(
        "XGBoostJob",
        f"{KUBEFLOW}/xgboostjobs",
        _training("XGBoostJob", "xgbReplicaSpecs", "Master", "xgboost"),
        (TRAINING,),
        _ROLE,
        "Succeeded",
    ),
    Kind(
        "MPIJob",
        f"{KUBEFLOW}/mpijobs",
        _training("MPIJob", "mpiReplicaSpecs", "Launcher", "mpi"),
        (TRAINING,),
        _ROLE,
        "Succeeded",
        queued=False,
    ),
    Kind(
        "TrainJob",
        "trainer.kubeflow.org/v1alpha1/trainjobs",
        _trainjob,
        (TRAINER, JOBSET),
        _FIRST,
        "Complete",
    ),
)
QUEUED = tuple(kind for kind in KINDS if kind.queued)
