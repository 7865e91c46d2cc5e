"""`trial.template`: whole objects of any kind as trials, from `tuner run` to the best one.

Nodes and pods are fake; the kinds are real: a Job, a JobSet
by its original definition, and a custom kind.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.jobset import GROUP, Operator, define, definition, jobsets
from tests.cluster.objects import jobs, pods
from tests.cluster.searcher import Searcher
from tests.cluster.waiting import eventually

TRAINING = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "trainings.example.org"},
    "spec": {
        "group": "example.org",
        "scope": "Namespaced",
        "names": {"kind": "Training", "plural": "trainings", "singular": "training"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            key: {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                            for key in ("spec", "status")
                        },
                    }
                },
            }
        ],
    },
}
ENDS = {"success": {"type": "Done"}, "failure": {"type": "Broken", "status": "True"}}


@pytest.fixture
def jobset_operator(level_b: ControlPlane, namespace: str) -> Iterator[None]:
    define(level_b.api(), definition())
    operator = Operator(
        level_b.api(),
        namespace,
        path=jobsets(namespace),
        templates=replicas,
        ways=("Completed", "Failed"),
    )
    yield
    operator.close()


def trainings(namespace: str) -> str:
    return f"/apis/example.org/v1/namespaces/{namespace}/trainings"


@pytest.fixture
def training_operator(level_b: ControlPlane, namespace: str) -> Iterator[None]:
    define(level_b.api(), TRAINING)
    operator = Operator(
        level_b.api(),
        namespace,
        path=trainings(namespace),
        ways=("Done", "Broken"),
        templates=lambda each: [each["spec"][role]["template"] for role in ("follower", "leader")],
    )
    yield
    operator.close()


def replicas(each: Object) -> list[Object]:
    groups = each["spec"]["replicatedJobs"]
    return [_labeled(group, index) for group in groups for index in range(group.get("replicas", 1))]


def _labeled(group: Object, index: int) -> Object:
    """Return the pod template of a job of a JobSet, with the labels that its controllers set."""
    template = group["template"]["spec"]["template"]
    ours = {
        "jobset.sigs.k8s.io/replicatedjob-name": group["name"],
        "jobset.sigs.k8s.io/job-index": str(index),
        "batch.kubernetes.io/job-completion-index": "0",
    }
    labels = template.get("metadata", {}).get("labels", {}) | ours
    return {**template, "metadata": {**template.get("metadata", {}), "labels": labels}}


def pod(says: str = "score=${x}", *, code: str = "0", run: str = "300ms", **labels: str) -> Object:
    """Return a pod template; its environment determines the life of the pod (see kwok.py)."""
    played = {"KWOK_LOG": says, "KWOK_RUN": run, "KWOK_EXIT": code}
    container = {
        "name": "main",
        "image": "tiny:1",
        "command": ["python", "train.py", "--x=${x}"],
        "env": [{"name": name, "value": value} for name, value in played.items()],
    }
    return {
        "metadata": {"labels": labels},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def a_job(template: Object, **spec: Any) -> Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"labels": {"team": "vision"}},
        "spec": {"template": template, **spec},
    }


def a_jobset(template: Object) -> Object:
    group = {"name": "w", "replicas": 2, "template": {"spec": {"template": template}}}
    return {
        "apiVersion": f"{GROUP}/v1alpha2",
        "kind": "JobSet",
        "spec": {"replicatedJobs": [group]},
    }


def a_training(leader: Object, follower: Object) -> Object:
    spec = {"leader": {"template": leader}, "follower": {"template": follower}}
    return {"apiVersion": "example.org/v1", "kind": "Training", "spec": spec}


def file(
    me: Searcher, template: Object, *, name: str = "tiny", trials: int = 3, **trial: object
) -> Path:
    return me.file_of_objects(template, name=name, trials=trials, parallelism=2, **trial)


def nothing_was_made(level_b: ControlPlane, me: Searcher) -> bool:
    ours = level_b.api().items(
        f"/api/v1/namespaces/{me.namespace}/configmaps", labelSelector="tuner.dev/uid"
    )
    return (
        not ours
        and not level_b.api().items(jobs(me.namespace))
        and me.json("get", "experiments") == []
    )


def test_a_job_template_gets_its_values_and_keeps_the_fields_of_its_author(
    level_b: ControlPlane, me: Searcher
) -> None:
    running = me.start("run", file(me, a_job(pod(run="2s", role="solo")), trials=2))
    (made, *_) = eventually(lambda: level_b.api().items(jobs(me.namespace)))
    assert made["metadata"]["labels"]["team"] == "vision"
    assert made["spec"]["template"]["metadata"]["labels"]["role"] == "solo"
    command = made["spec"]["template"]["spec"]["containers"][0]["command"]
    x = json.loads(made["metadata"]["annotations"]["tuner.dev/parameters"])["x"]
    assert command == ["python", "train.py", f"--x={x!r}"]
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert [trial["value"] for trial in me.trials()] == [
        trial["parameters"]["x"] for trial in me.trials()
    ]
    assert level_b.api().items(jobs(me.namespace)) == []


@pytest.mark.usefixtures("jobset_operator")
def test_a_jobset_is_a_trial_that_ends_by_its_conditions(
    level_b: ControlPlane, me: Searcher
) -> None:
    code, out, err = me.tuner("run", file(me, a_jobset(pod())))
    assert code == 0, err
    assert "tiny: best score 0." in out
    assert me.states() == {"succeeded": 3}
    assert level_b.api().items(jobsets(me.namespace)) == []
    assert eventually(lambda: not level_b.api().items(pods(me.namespace)))


@pytest.mark.usefixtures("jobset_operator")
def test_a_jobset_whose_pods_fail_is_a_failed_trial_with_its_reason(me: Searcher) -> None:
    code, _, err = me.tuner("run", file(me, a_jobset(pod(code="3")), trials=1))
    assert code == 3, err
    (trial,) = me.trials()
    assert (trial["state"], trial["attempts"][0]["failureClass"]) == ("failed", "userError")
    assert "exit code 3" in trial["reason"]


@pytest.mark.usefixtures("jobset_operator")
def test_a_resumed_controller_adopts_the_jobsets_of_a_killed_one(
    level_b: ControlPlane, me: Searcher
) -> None:
    path = file(me, a_jobset(pod(run="12s")), trials=2)
    process = me.start("run", path)
    eventually(lambda: me.state.exists() and me.states() == {"running": 2}, every_s=0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    code, _, err = me.tuner("run", path)
    assert code == 0, err
    assert [len(trial["attempts"]) for trial in me.trials()] == [1, 1], me.trials()
    assert level_b.api().items(jobsets(me.namespace)) == []


@pytest.mark.usefixtures("jobset_operator")
def test_an_experiment_with_jobsets_is_rebuilt_from_the_cluster_alone(
    level_b: ControlPlane, me: Searcher
) -> None:
    process = me.start("run", file(me, a_jobset(pod(run="4s")), trials=2))
    eventually(lambda: len(level_b.api().items(jobsets(me.namespace))) == 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    shutil.rmtree(me.state)
    code, _, err = me.tuner("resume", "tiny", "--from-cluster", "--namespace", me.namespace)
    assert code == 0, err
    assert "found trials 0-1" in err
    assert [(trial["state"], len(trial["attempts"])) for trial in me.trials()] == [
        ("succeeded", 1)
    ] * 2


@pytest.mark.usefixtures("training_operator")
def test_an_unknown_kind_ends_by_the_conditions_of_the_file(
    level_b: ControlPlane, me: Searcher
) -> None:
    template = a_training(pod(role="leader"), pod("score=99", role="follower"))
    primary = {"labels": {"role": "leader"}, "container": "main"}
    code, _, err = me.tuner("run", file(me, template, **ENDS, primary=primary))
    assert code == 0, err
    assert [trial["value"] for trial in me.trials()] == [
        trial["parameters"]["x"] for trial in me.trials()
    ]
    assert level_b.api().items(trainings(me.namespace)) == []


@pytest.mark.usefixtures("training_operator")
def test_an_unknown_kind_fails_by_the_conditions_of_the_file(me: Searcher) -> None:
    template = a_training(pod(role="leader", code="7"), pod("", role="follower"))
    primary = {"labels": {"role": "leader"}}
    code, _, err = me.tuner("run", file(me, template, trials=1, **ENDS, primary=primary))
    assert code == 3, err
    assert me.states() == {"failed": 1}


def test_a_kind_that_the_cluster_does_not_serve_is_refused_before_anything_is_created(
    level_b: ControlPlane, me: Searcher
) -> None:
    spec = {"pytorchReplicaSpecs": {"Master": {"restartPolicy": "Never", "template": pod()}}}
    template = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": spec}
    code, _, err = me.tuner("run", file(me, template, **ENDS))
    assert code == 2, err
    assert "has no kind PyTorchJob in kubeflow.org/v1; install its definition" in err
    assert nothing_was_made(level_b, me)


def test_an_unknown_field_of_a_kind_is_refused_before_anything_is_created(
    level_b: ControlPlane, me: Searcher
) -> None:
    code, _, err = me.tuner("run", file(me, a_job(pod(), backofLimit=0)))
    assert code == 2, err
    assert 'unknown field "spec.backofLimit"' in err
    assert nothing_was_made(level_b, me)
