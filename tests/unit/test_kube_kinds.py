"""The presets: how an object of each kind is read, and which fields are added to it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest

from controller.core.model import FailureClass
from controller.runtime.kubernetes.attempt_status import main_of, ranks_of, status_of
from controller.runtime.kubernetes.job_builder import (
    build_objects,
    cannot_be_labeled,
    cannot_be_queued,
    warnings,
)
from controller.runtime.kubernetes.kinds import (
    KEPT_S,
    PRESETS,
    ByPath,
    ByType,
    Preset,
    PrimaryPod,
    at,
    foreign_version,
    is_suspended,
    matching_condition,
    missing_conditions,
    not_served,
    over,
    pod_templates,
    preset_of,
    primary_template,
    status_rules_of,
)
from controller.runtime.kubernetes.labels import STATUS_RULES
from controller.runtime.kubernetes.resource_quota import demand_of
from tests.unit.launches import a_launch

Raw = dict[str, Any]


def template(container: str = "main", **spec: Any) -> Raw:
    return {"spec": {"containers": [{"name": container, "image": "train:1"}], **spec}}


def replicas(container: str, *roles: str) -> Raw:
    return {role: {"replicas": 1, "template": template(container)} for role in roles}


def obj(api_version: str, kind: str, **spec: Any) -> Raw:
    return {"apiVersion": api_version, "kind": kind, "spec": spec}


def group(name: str, **job: Any) -> Raw:
    return {"name": name, "template": {"spec": {"template": template(), **job}}}


RAY_CLUSTER = {
    "headGroupSpec": {"template": template("ray-head")},
    "workerGroupSpecs": [
        {"groupName": "workers", "replicas": 2, "template": template("ray-worker")}
    ],
}
TRAINING = "training.kubeflow.org/job-role"
REPLICATED, JOB_INDEX = "jobset.sigs.k8s.io/replicatedjob-name", "jobset.sigs.k8s.io/job-index"
INDEX = "batch.kubernetes.io/job-completion-index"
OBJECTS: dict[str, Raw] = {
    "Job": obj("batch/v1", "Job", template=template()),
    "JobSet": obj(
        "jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=[group("leader"), group("a-worker")]
    ),
    "PyTorchJob": obj(
        "kubeflow.org/v1", "PyTorchJob", pytorchReplicaSpecs=replicas("pytorch", "Master", "Worker")
    ),
    "TFJob": obj("kubeflow.org/v1", "TFJob", tfReplicaSpecs=replicas("tensorflow", "Worker", "PS")),
    "XGBoostJob": obj(
        "kubeflow.org/v1", "XGBoostJob", xgbReplicaSpecs=replicas("xgboost", "Master", "Worker")
    ),
    "MPIJob": obj(
        "kubeflow.org/v1", "MPIJob", mpiReplicaSpecs=replicas("mpi", "Launcher", "Worker")
    ),
    "MPIJob v2beta1": obj(
        "kubeflow.org/v2beta1", "MPIJob", mpiReplicaSpecs=replicas("mpi", "Launcher", "Worker")
    ),
    "TrainJob": obj(
        "trainer.kubeflow.org/v1alpha1", "TrainJob", runtimeRef={"name": "torch-distributed"}
    ),
    "RayJob": obj("ray.io/v1", "RayJob", entrypoint="python train.py", rayClusterSpec=RAY_CLUSTER),
    "Volcano Job": obj(
        "batch.volcano.sh/v1alpha1",
        "Job",
        tasks=[
            {"name": "master", "template": template()},
            {"name": "worker", "template": template()},
        ],
    ),
    "Workflow": obj(
        "argoproj.io/v1alpha1",
        "Workflow",
        entrypoint="steps",
        templates=[
            {"name": "steps", "steps": [[{"name": "train", "template": "train"}]]},
            {"name": "train", "container": {"image": "train:1"}},
        ],
    ),
    **{
        f"PipelineRun {version}": obj(
            f"tekton.dev/{version}",
            "PipelineRun",
            pipelineSpec={
                "tasks": [
                    {
                        "name": "train",
                        "taskSpec": {"steps": [{"name": "train", "image": "train:1"}]},
                    },
                ]
            },
        )
        for version in ("v1beta1", "v1")
    },
}
KINDS = pytest.mark.parametrize("name", OBJECTS)


def shown(name: str, status: Raw, **spec: Any) -> Raw:
    """Return the object as the server shows it."""
    made = copy.deepcopy(OBJECTS[name])
    return {**made, "metadata": {"name": "x-0"}, "spec": made["spec"] | spec, "status": status}


def has(*types: str, status: str = "True") -> Raw:
    return {"conditions": [{"type": each, "status": status} for each in types]}


def ray(deployment: str, job: str) -> Raw:
    return {"jobDeploymentStatus": deployment, "jobStatus": job}


def volcano(phase: str) -> Raw:
    return {"state": {"phase": phase}}


def test_every_preset_has_an_object_here() -> None:
    assert [preset_of(each) for each in OBJECTS.values()] == list(PRESETS)


def test_every_field_of_a_preset_is_of_use_to_one_of_them() -> None:
    for each in fields(Preset):
        assert len({str(getattr(preset, each.name)) for preset in PRESETS}) > 1, each.name


# How it has ended

SUCCEEDED: dict[str, Raw] = {
    "Job": has("SuccessCriteriaMet", "Complete"),
    "JobSet": has("Completed"),
    **dict.fromkeys(
        ("PyTorchJob", "TFJob", "XGBoostJob", "MPIJob", "MPIJob v2beta1"),
        has("Created", "Succeeded"),
    ),
    "TrainJob": has("Complete"),
    "RayJob": ray("Complete", "SUCCEEDED"),
    "Volcano Job": volcano("Completed"),
    "Workflow": {"phase": "Succeeded"},
    **dict.fromkeys(("PipelineRun v1beta1", "PipelineRun v1"), has("Succeeded")),
}
FAILED: list[tuple[str, Raw]] = [
    ("Job", has("FailureTarget", "Failed")),
    ("JobSet", has("Failed")),
    *(
        (name, has("Created", "Failed"))
        for name in ("PyTorchJob", "TFJob", "XGBoostJob", "MPIJob", "MPIJob v2beta1")
    ),
    ("TrainJob", has("Failed")),
    ("RayJob", ray("Failed", "FAILED")),
    ("RayJob", ray("Failed", "")),
    ("RayJob", ray("ValidationFailed", "")),
    ("RayJob", ray("Complete", "STOPPED")),
    *(("Volcano Job", volcano(phase)) for phase in ("Failed", "Terminated", "Aborted")),
    *(("Workflow", {"phase": phase}) for phase in ("Failed", "Error")),
    ("PipelineRun v1", has("Succeeded", status="False")),
]
GOES_ON: list[tuple[str, Raw]] = [
    *((name, {}) for name in OBJECTS),
    ("Job", has("SuccessCriteriaMet", "FailureTarget")),
    ("PyTorchJob", has("Created", "Running", "Restarting", "Complete", "Completed")),
    ("TFJob", has("Succeeded", status="False")),
    ("TrainJob", has("Suspended", "Succeeded", "Completed")),
    ("JobSet", has("StartupPolicyCompleted", "Succeeded", "Complete")),
    ("RayJob", ray("Running", "SUCCEEDED")),  # its submitter still prints
    ("RayJob", ray("Retrying", "FAILED")),
    ("RayJob", ray("Running", "STOPPED") | {"jobStatus": "PENDING"}),
    *(
        ("Volcano Job", volcano(p))
        for p in ("Pending", "Running", "Restarting", "Completing", "Aborting")
    ),
    *(("Workflow", {"phase": phase}) for phase in ("", "Pending", "Running")),
    ("PipelineRun v1", has("Succeeded", status="Unknown")),
]


@KINDS
def test_success_is_known(name: str) -> None:
    found = shown(name, SUCCEEDED[name])
    reading = status_rules_of(found)
    assert (reading.succeeded(found) is not None, reading.failed(found), over(found)) == (
        True,
        None,
        True,
    )


@pytest.mark.parametrize(("name", "status"), FAILED)
def test_failure_is_known(name: str, status: Raw) -> None:
    found = shown(name, status)
    reading = status_rules_of(found)
    assert (reading.succeeded(found), reading.failed(found) is not None, over(found)) == (
        None,
        True,
        True,
    )


@pytest.mark.parametrize(("name", "status"), GOES_ON)
def test_an_unfinished_object_has_not_ended(name: str, status: Raw) -> None:
    found = shown(name, status)
    reading = status_rules_of(found)
    assert (reading.succeeded(found), reading.failed(found), over(found)) == (None, None, False)


def test_keys_of_the_file_override_the_preset() -> None:
    found = shown("RayJob", {"jobStatus": "FAILED", "done": True})
    found["metadata"]["annotations"] = {
        STATUS_RULES: '{"success": {"path": "status.done", "equals": true}, "primary": {"labels": '
        '{"role": "x"}}}'
    }
    reading = status_rules_of(found)
    assert reading.success == (ByPath("status.done", True),)
    assert reading.failure == preset_failure("RayJob")
    assert (reading.succeeded(found) is not None, dict(reading.labels)) == (True, {"role": "x"})
    found["metadata"]["annotations"] = {
        STATUS_RULES: '{"failure": {"type": "Broken"}, "primary": {"container": "log"}}'
    }
    reading = status_rules_of(found)
    assert (reading.failure, reading.container) == ((ByType("Broken"),), "log")
    assert dict(reading.labels) == {"batch.kubernetes.io/job-name": "x-0"}


def preset_failure(name: str) -> tuple[object, ...]:
    preset = preset_of(OBJECTS[name])
    assert preset is not None
    return preset.failure


@pytest.mark.parametrize(
    ("value", "equals", "holds"),
    [
        ("SUCCEEDED", "SUCCEEDED", True),
        ("succeeded", "SUCCEEDED", False),
        (1, 1, True),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        ("1", 1, False),
        (1.0, 1, True),
        (None, "None", False),
    ],
)
def test_a_field_is_compared_with_its_type(value: object, equals: Any, holds: bool) -> None:
    found = {"status": {"state": {"phase": value, "message": "said"}}}
    beside = matching_condition(found, ByPath("status.state.phase", equals))
    assert beside == ({"phase": value, "message": "said"} if holds else None)


@pytest.mark.parametrize("status", [None, "text", [], {"state": "Done"}, {"state": ["phase"]}])
def test_a_path_that_leads_nowhere_does_not_hold(status: object) -> None:
    assert matching_condition({"status": status}, ByPath("status.state.phase", "Done")) is None


def test_a_failure_that_the_preset_knows_does_not_hide_its_others() -> None:
    """Katib's file for Argo names Failed alone; a workflow may also end with Error."""
    rules = '{"failure": {"path": "status.phase", "equals": "Failed"}}'
    found = shown("Workflow", {"phase": "Error"})
    found["metadata"]["annotations"] = {STATUS_RULES: rules}
    assert status_rules_of(found).failed(found) is not None


# Suspended

SUSPEND = dict.fromkeys(("Job", "JobSet", "TrainJob", "RayJob"), "spec.suspend") | dict.fromkeys(
    ("PyTorchJob", "TFJob", "XGBoostJob", "MPIJob v2beta1"), "spec.runPolicy.suspend"
)


@KINDS
def test_a_queue_suspends_by_the_field_of_the_kind(name: str) -> None:
    """Kueue supports neither the Training Operator's MPIJob nor Volcano's Job."""
    (made,) = build_objects(a_launch(template=OBJECTS[name], queue="team"))
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    suspended = [
        path for path in ("spec.suspend", "spec.runPolicy.suspend") if at(made, path) is not None
    ]
    assert suspended == [SUSPEND[name]] if name in SUSPEND else not suspended
    assert is_suspended(made) is (name in SUSPEND)


NEVER_SUSPENDED = {"Volcano Job", "Workflow", "PipelineRun v1beta1", "PipelineRun v1"}


@KINDS
def test_its_condition_says_that_it_is_suspended_where_the_field_does_not(name: str) -> None:
    status = ray("Suspended", "") if name == "RayJob" else has("Suspended")
    assert is_suspended(shown(name, status)) is (name not in NEVER_SUSPENDED)
    assert not is_suspended(shown(name, has("Suspended", status="False")))
    assert not is_suspended(shown(name, {}))
    if path := SUSPEND.get(name):
        resumed = shown(
            name,
            status,
            **({"suspend": False} if path == "spec.suspend" else {"runPolicy": {"suspend": False}}),
        )
        assert not is_suspended(resumed)  # its operator is about to say so


@KINDS
def test_the_kinds_between_an_object_and_its_pods_are_named(name: str) -> None:
    between = {
        "TrainJob": ("jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet"),
        "RayJob": ("ray.io/v1", "rayclusters", "RayCluster"),
    }
    preset = preset_of(OBJECTS[name])
    assert preset is not None
    assert preset.between == between.get(name)


# Whose log is read


def pod(name: str, *, annotations: Raw | None = None, job: str = "", **labels: str) -> Raw:
    return {
        "metadata": {
            "name": name,
            "labels": labels | ({"batch.kubernetes.io/job-name": job} if job else {}),
            "annotations": annotations or {},
        }
    }


def in_set(name: str, job: str, number: int, index: int) -> Raw:
    labels = {
        REPLICATED: job,
        JOB_INDEX: str(number),
        INDEX: str(index),
        "batch.kubernetes.io/job-name": f"x-0-{job}-{number}",
    }
    return {"metadata": {"name": name, "labels": labels}}


def role(name: str, said: str = "", kind: str = "worker") -> Raw:
    labels = {"training.kubeflow.org/replica-type": kind} | ({TRAINING: said} if said else {})
    return {"metadata": {"name": name, "labels": labels}}


PODS: dict[str, list[Raw]] = {
    "Job": [pod("right", job="x-0")],
    "JobSet": [
        in_set("worker", "a-worker", 0, 0),
        in_set("right", "leader", 0, 0),
        in_set("other", "leader", 1, 0),
    ],
    "PyTorchJob": [role("x-0-a"), role("right", "master", "master")],
    "TFJob": [role("x-0-ps", kind="ps"), role("right", "master"), role("x-0-worker-1")],
    "XGBoostJob": [role("x-0-a"), role("right", "master", "master")],
    "MPIJob": [role("x-0-a"), role("right", "master", "launcher")],
    "MPIJob v2beta1": [
        role("a", "worker"),
        pod("right", job="x-0-launcher", **{TRAINING: "launcher"}),
    ],
    "TrainJob": [
        in_set("data", "model-initializer", 0, 0),
        in_set("b", "node", 0, 1),
        in_set("right", "node", 0, 0),
    ],
    "RayJob": [pod("a-head", **{"ray.io/node-type": "head"}), pod("right", job="x-0")],
    "Volcano Job": [
        pod(
            "x-0-a-0", annotations={"volcano.sh/task-spec": "worker", "volcano.sh/task-index": "0"}
        ),
        pod(
            "x-0-master-1",
            annotations={"volcano.sh/task-spec": "master", "volcano.sh/task-index": "1"},
        ),
        pod("right", annotations={"volcano.sh/task-spec": "master", "volcano.sh/task-index": "0"}),
    ],
    **{name: [pod("right")] for name in ("Workflow", "PipelineRun v1beta1", "PipelineRun v1")},
}


@KINDS
def test_the_pod_with_the_metrics_is_known_and_no_other_replaces_it(name: str) -> None:
    reading = status_rules_of(shown(name, {}))
    main = main_of(ranks_of(PODS[name]), reading)
    assert main is not None
    assert main["metadata"]["name"] == "right"
    others = [each for each in PODS[name] if each is not main]
    assert main_of(ranks_of(others), reading) is None


CONTAINERS = {
    "PyTorchJob": "pytorch",
    "TFJob": "tensorflow",
    "XGBoostJob": "xgboost",
    "MPIJob": "mpi",
    "Workflow": "main",
    "TrainJob": "node",
}


@KINDS
def test_the_container_is_the_one_that_the_operator_looks_for(name: str) -> None:
    assert status_rules_of(shown(name, {})).container == CONTAINERS.get(name, "")


def test_the_coordinator_of_a_job_set_has_the_metrics() -> None:
    coordinator = {"replicatedJob": "a-worker", "jobIndex": 2, "podIndex": 1}
    reading = status_rules_of(shown("JobSet", {}, coordinator=coordinator))
    assert reading.labels == {REPLICATED: "a-worker", JOB_INDEX: "2", INDEX: "1"}
    first = status_rules_of(shown("JobSet", {}, coordinator={"replicatedJob": "a-worker"}))
    assert first.labels == {REPLICATED: "a-worker", JOB_INDEX: "0", INDEX: "0"}
    loose = status_rules_of(
        shown("JobSet", {}, replicatedJobs=[group("w", completionMode="NonIndexed")])
    )
    assert loose.labels == {REPLICATED: "w", JOB_INDEX: "0"}


def test_the_launcher_of_a_train_job_has_the_metrics_if_the_file_names_it() -> None:
    overrides = [{"targetJobs": [{"name": "launcher"}, {"name": "node"}]}]
    for changes in (
        {"podTemplateOverrides": overrides},
        {"runtimePatches": [a_patch("launcher", "node")]},
    ):
        reading = status_rules_of(shown("TrainJob", {}, **changes))
        assert reading.labels == {REPLICATED: "launcher", INDEX: "0"}


def test_what_kueue_changes_of_a_train_job_does_not_select_the_log() -> None:
    admitted = [a_patch("node"), a_patch("launcher", "node", manager="kueue.x-k8s.io/manager")]
    assert (
        status_rules_of(shown("TrainJob", {}, runtimePatches=admitted)).labels[REPLICATED] == "node"
    )


def test_a_submitter_in_the_head_pod_has_the_metrics_in_its_container() -> None:
    reading = status_rules_of(shown("RayJob", {}, submissionMode="SidecarMode"))
    assert (reading.labels, reading.container) == (
        {"ray.io/node-type": "head"},
        "ray-job-submitter",
    )


def test_a_task_that_volcano_has_not_named_yet_is_known_by_its_index() -> None:
    assert status_rules_of(shown("Volcano Job", {}, tasks=[{"template": template()}])).labels == {
        "volcano.sh/task-index": "0"
    }


# What it is created with


def made(name: str, *, nodes: tuple[str, ...] = (), pod_field: str = "", **spec: Any) -> Raw:
    manifest = copy.deepcopy(OBJECTS[name])
    manifest["spec"] |= spec
    (found,) = build_objects(a_launch(template=manifest, nodes=nodes), pod_field=pod_field)
    return found


def a_patch(*jobs: str, manager: str = "example.org/me") -> Raw:
    """Return an entry of runtimePatches that names these jobs and changes nothing."""
    spec = {"replicatedJobs": [{"name": name} for name in jobs]}
    return {"manager": manager, "trainingRuntimeSpec": {"template": {"spec": spec}}}


def patched_jobs(spec: Raw) -> list[Raw]:
    entries = [patch["trainingRuntimeSpec"]["template"]["spec"] for patch in spec["runtimePatches"]]
    return [job for entry in entries for job in entry["replicatedJobs"]]


PLACES: dict[str, Callable[[Raw], list[Raw]]] = {
    "Job": lambda spec: [spec["template"]],
    "JobSet": lambda spec: [
        each["template"]["spec"]["template"] for each in spec["replicatedJobs"]
    ],
    "PyTorchJob": lambda spec: [each["template"] for each in spec["pytorchReplicaSpecs"].values()],
    "TFJob": lambda spec: [each["template"] for each in spec["tfReplicaSpecs"].values()],
    "XGBoostJob": lambda spec: [each["template"] for each in spec["xgbReplicaSpecs"].values()],
    "MPIJob": lambda spec: [each["template"] for each in spec["mpiReplicaSpecs"].values()],
    "MPIJob v2beta1": lambda spec: [each["template"] for each in spec["mpiReplicaSpecs"].values()],
    "TrainJob": lambda spec: [job["template"]["spec"]["template"] for job in patched_jobs(spec)],
    "RayJob": lambda spec: [
        spec["rayClusterSpec"]["headGroupSpec"]["template"],
        spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"],
        spec["submitterPodTemplate"],
    ],
    "Volcano Job": lambda spec: [each["template"] for each in spec["tasks"]],
    "Workflow": lambda spec: [{"metadata": spec["podMetadata"], "spec": spec}],
    "PipelineRun v1beta1": lambda spec: [{"spec": spec.get("podTemplate")}],
    "PipelineRun v1": lambda spec: [{"spec": spec.get("taskRunTemplate", {}).get("podTemplate")}],
}


@KINDS
def test_every_pod_has_our_labels_and_a_retry_avoids_the_failed_nodes(name: str) -> None:
    found = made(name, nodes=("gpu-7",))
    places = PLACES[name](found["spec"])
    assert places
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": ["gpu-7"]}]
    for place in places:
        about = found["metadata"] if name.startswith("PipelineRun") else place["metadata"]
        assert about["labels"]["tuner.dev/trial"] == "12"
        (term,) = at(
            place, "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"
        )
        assert term["preference"] == {"matchFields": fields}


def test_an_affinity_of_the_template_is_kept() -> None:
    mine = {
        "weight": 1,
        "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]},
    }
    node = {
        "preferredDuringSchedulingIgnoredDuringExecution": [mine],
        "requiredDuringSchedulingIgnoredDuringExecution": {},
    }
    affinity = {"nodeAffinity": node, "podAffinity": {"x": 1}}
    found = made("Job", template=template(affinity=affinity), nodes=("gpu-7",))["spec"]["template"][
        "spec"
    ]
    terms = found["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert (terms[0], len(terms)) == (mine, 2)
    assert found["affinity"]["podAffinity"] == {"x": 1}
    assert "requiredDuringSchedulingIgnoredDuringExecution" in found["affinity"]["nodeAffinity"]


@KINDS
def test_the_program_gets_the_variables_of_its_trial(name: str) -> None:
    found = made(name)["spec"]
    if name == "TrainJob":
        containers = [found["trainer"]]
    elif name == "Workflow":
        containers = [found["templates"][1]["container"]]
    elif name.startswith("PipelineRun"):
        containers = found["pipelineSpec"]["tasks"][0]["taskSpec"]["steps"]
    else:
        containers = [each for place in PLACES[name](found) for each in place["spec"]["containers"]]
    for container in containers:
        assert {"name": "TUNER_TRIAL_NUMBER", "value": "12"} in container["env"]


def test_init_containers_get_the_variables_too() -> None:
    found = made("Job", template=template(initContainers=[{"name": "data"}]))["spec"]["template"][
        "spec"
    ]
    assert {"name": "TUNER_TRIAL_NUMBER", "value": "12"} in found["initContainers"][0]["env"]


def test_a_train_job_that_says_nothing_of_its_pods_is_patched_in_the_job_that_trains() -> None:
    (patch,) = made("TrainJob")["spec"]["runtimePatches"]
    assert patch["manager"].startswith("tuner.dev/"), "Trainer demands a path with a domain"
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert (job["name"], set(job["template"]["spec"]["template"])) == ("node", {"metadata"})
    both = made("TrainJob", runtimePatches=[a_patch("model-initializer")])["spec"]["runtimePatches"]
    assert [patch["manager"] for patch in both] == ["example.org/me", "tuner.dev/controller"]
    assert [job["name"] for job in patched_jobs({"runtimePatches": both})] == [
        "model-initializer",
        "node",
    ]


def test_the_patches_of_a_train_job_are_kept_and_labeled() -> None:
    mine = a_patch("launcher", "node")
    mine["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]["template"] = {
        "spec": {"template": {"spec": {"serviceAccountName": "reader"}}}
    }
    (patch,) = made("TrainJob", runtimePatches=[mine])["spec"]["runtimePatches"]
    launcher, node = [
        job["template"]["spec"]["template"] for job in patched_jobs({"runtimePatches": [patch]})
    ]
    assert launcher["spec"] == {"serviceAccountName": "reader"}
    assert launcher["metadata"]["labels"] == node["metadata"]["labels"]


def test_a_change_of_a_template_on_the_cluster_is_not_a_pod_template() -> None:
    """It has no image, and what it demands is in `trainer`."""
    container = {"name": "node", "volumeMounts": []}
    overrides = [{"targetJobs": [{"name": "node"}], "spec": {"containers": [container]}}]
    mine = a_patch("node")
    mine["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]["template"] = {
        "spec": {"template": {"spec": {"containers": [container]}}}
    }
    for changes in ({"podTemplateOverrides": overrides}, {"runtimePatches": [mine]}):
        found = made("TrainJob", **changes)
        assert list(pod_templates(found)) == []
        assert demand_of([found]) == demand_of([made("TrainJob")])


def test_a_cluster_with_trainer_2_1_gets_overrides() -> None:
    spec = made("TrainJob", pod_field="podTemplateOverrides")["spec"]
    assert "runtimePatches" not in spec
    (override,) = spec["podTemplateOverrides"]
    assert (override["targetJobs"], set(override)) == (
        [{"name": "node"}],
        {"targetJobs", "metadata"},
    )
    only = [{"targetJobs": [{"name": "model-initializer"}]}]
    named = [
        each["targetJobs"]
        for each in made("TrainJob", podTemplateOverrides=only)["spec"]["podTemplateOverrides"]
    ]
    assert "runtimePatches" not in made("TrainJob", podTemplateOverrides=only)["spec"], (
        "the file chooses"
    )
    assert named == [[{"name": "model-initializer"}], [{"name": "node"}]]


def test_a_train_job_that_lost_the_labels_of_its_pods_fails_with_the_cure() -> None:
    """Kueue 0.15 writes it back in the form of Trainer 2.1 when it admits it."""
    kept, queued, alone = made("TrainJob"), made("TrainJob"), made("TrainJob")
    queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team"
    for each in (queued, alone):
        del each["spec"]["runtimePatches"]
    queued["spec"]["podTemplateOverrides"] = [{"targetJobs": [{"name": "node"}]}]
    assert start_failure(kept) == ""
    assert start_failure(queued) == (
        "its TrainJob has lost the labels of its pods, which are in spec.runtimePatches or "
        "podTemplateOverrides, so Tuner does not find them; Kueue before 0.17 drops them when it "
        "admits a TrainJob of Trainer 2.2 or later: upgrade it"
    )
    assert "see its metadata.managedFields for who changed it" in start_failure(alone)
    queued["spec"]["suspend"] = True
    assert start_failure(queued) == ""


def start_failure(obj: Raw) -> str:
    """Return why it fails before it starts; "" if it waits."""
    end = status_of("x-0", obj, [], stopped=False, now=datetime.now(UTC)).exit
    assert end is None or end.failure_class is FailureClass.CONFIGURATION
    return "" if end is None else end.reason


def test_the_overrides_of_a_train_job_are_kept() -> None:
    overrides = [
        {"targetJobs": [{"name": "launcher"}], "metadata": {"labels": {"team": "x"}}},
        {"targetJobs": [{"name": "node"}], "spec": {"serviceAccountName": "reader"}},
    ]
    spec = made(
        "TrainJob",
        podTemplateOverrides=overrides,
        trainer={"numNodes": 2, "env": [{"name": "A", "value": "b"}]},
    )["spec"]
    assert [each["targetJobs"][0]["name"] for each in spec["podTemplateOverrides"]] == [
        "launcher",
        "node",
    ]
    launcher, node = spec["podTemplateOverrides"]
    assert (launcher["metadata"]["labels"]["team"], node["spec"]) == (
        "x",
        {"serviceAccountName": "reader"},
    )
    assert (spec["trainer"]["numNodes"], spec["trainer"]["env"][0]) == (
        2,
        {"name": "A", "value": "b"},
    )


def test_ray_submits_with_the_image_of_its_head_and_once() -> None:
    spec = made("RayJob")["spec"]
    submitter = spec["submitterPodTemplate"]["spec"]
    assert (submitter["restartPolicy"], submitter["containers"][0]["image"]) == ("Never", "train:1")
    assert "command" not in submitter["containers"][0]  # KubeRay writes it
    assert submitter["containers"][0]["resources"] == {
        "requests": {"cpu": "500m", "memory": "200Mi"},
        "limits": {"cpu": "1", "memory": "1Gi"},
    }
    assert submitter["containers"][0]["name"] == "ray-job-submitter"
    assert spec["submitterConfig"] == {"backoffLimit": 0}
    assert (
        made("RayJob", submissionMode="K8sJobMode")["spec"]["submitterPodTemplate"]
        == spec["submitterPodTemplate"]
    )
    own = made(
        "RayJob", submitterPodTemplate=template("mine"), submitterConfig={"backoffLimit": 3}
    )["spec"]
    assert own["submitterPodTemplate"]["spec"]["containers"][0]["name"] == "mine"
    assert own["submitterConfig"] == {"backoffLimit": 3}
    beside = made("RayJob", submissionMode="SidecarMode")["spec"]
    # KubeRay refuses them there
    assert not {"submitterPodTemplate", "submitterConfig"} & beside.keys()


RUN_POLICY = {"runPolicy": {"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": KEPT_S}}
TTL = {"ttlSecondsAfterFinished": KEPT_S}
LEFT: dict[str, Raw] = {
    **dict.fromkeys(("Job", "JobSet", "Volcano Job"), TTL),
    **dict.fromkeys(("PyTorchJob", "TFJob", "XGBoostJob", "MPIJob"), RUN_POLICY),
    "MPIJob v2beta1": {"runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0}},
    "TrainJob": {},
    "RayJob": {"shutdownAfterJobFinishes": True, "ttlSecondsAfterFinished": 10},
    "Workflow": {"ttlStrategy": {"secondsAfterCompletion": KEPT_S}},
    "PipelineRun v1beta1": {},
    "PipelineRun v1": {},
}


@KINDS
def test_nothing_keeps_running_after_the_end_without_a_controller(name: str) -> None:
    keys = {"ttlSecondsAfterFinished", "runPolicy", "shutdownAfterJobFinishes", "ttlStrategy"}
    assert {key: value for key, value in made(name)["spec"].items() if key in keys} == LEFT[name]


def test_the_cleanup_fields_of_the_template_are_kept() -> None:
    assert made("Job", ttlSecondsAfterFinished=0)["spec"]["ttlSecondsAfterFinished"] == 0
    said = made("PyTorchJob", runPolicy={"cleanPodPolicy": "None"})["spec"]["runPolicy"]
    assert said == {"cleanPodPolicy": "None", "ttlSecondsAfterFinished": KEPT_S}
    for said in (
        {"shutdownAfterJobFinishes": False},
        {"deletionStrategy": {}},
        {"clusterSelector": {}},
    ):
        assert "ttlSecondsAfterFinished" not in made("RayJob", **said)["spec"]


# What is warned of


def warned(name: str, policy: str = "", *, beside: str = "", version: str = "") -> tuple[str, ...]:
    """Return the warnings. `policy` is that of the pods,
    `beside` the fields beside their template.
    """
    manifest = copy.deepcopy(OBJECTS[name]) if name in OBJECTS else obj("example.org/v1", name)
    pods = template(**({"restartPolicy": policy} if policy else {}))
    manifest["spec"] = {
        "groups": [{"template": pods} | ({"restartPolicy": beside} if beside else {})]
    }
    problems = warnings(
        manifest | ({"apiVersion": version} if version else {}), "spec.trial.template"
    )
    return tuple(f"{problem.path}: {problem.message}" for problem in problems)


def test_a_template_that_restarts_in_place_is_warned_of() -> None:
    cure = "what fails is retried by spec.trial.retries; write restartPolicy: Never"
    group = "spec.trial.template.spec.groups[0]"
    assert warned("PyTorchJob", beside="OnFailure") == (
        f"{group}.restartPolicy: OnFailure restarts a failed program inside the attempt, at most "
        f"5 times; {cure}",
    )
    silent = (
        f"{group}.restartPolicy: without it a PyTorchJob may restart a failed program inside "
        f"the attempt; {cure}"
    )
    # the operator writes the pods' policy
    assert warned("PyTorchJob") == warned("PyTorchJob", "Never") == (silent,)
    assert warned("PyTorchJob", beside="Never") == ()
    assert warned("Volcano Job", "Never") == warned("Widget", "Never") == ()
    for name, kind in (("Volcano Job", "Job"), ("Widget", "Widget")):
        assert warned(name) == (
            f"{group}.template.spec.restartPolicy: without it a {kind} may restart a failed "
            f"program inside the "
            f"attempt; {cure}",
        )


@KINDS
def test_an_operator_that_restarts_what_says_nothing_is_warned_of(name: str) -> None:
    assert bool(warned(name)) is (name in {"PyTorchJob", "MPIJob v2beta1", "Volcano Job"})


@KINDS
def test_the_policy_beside_a_template_counts_where_the_operator_writes_that_of_the_pods(
    name: str,
) -> None:
    (warning,) = warned(name, "Never", beside="Always")
    where = warning.partition(": ")[0].removeprefix("spec.trial.template.spec.groups[0].")
    beside = name in {"PyTorchJob", "TFJob", "XGBoostJob", "MPIJob", "MPIJob v2beta1"}
    assert where == ("restartPolicy" if beside else "template.spec.restartPolicy")


def test_an_unknown_version_gives_a_warning() -> None:
    (warning,) = warned("TFJob", beside="Never", version="kubeflow.org/v2")
    assert warning.startswith(
        "spec.trial.template.apiVersion: tuner knows TFJob of kubeflow.org/v1 (Training Operator "
        "1.9)"
    )


# What is not known


@pytest.mark.parametrize(
    ("version", "kind", "known"),
    [
        ("kubeflow.org/v2", "PyTorchJob", "kubeflow.org/v1 (Training Operator 1.9)"),
        (
            "kubeflow.org/v3",
            "MPIJob",
            "kubeflow.org/v1 (Training Operator 1.9) and kubeflow.org/v2beta1 (MPI Operator 0.6)",
        ),
        (
            "trainer.kubeflow.org/v1",
            "TrainJob",
            "trainer.kubeflow.org/v1alpha1 (Trainer 2.1 to 2.3)",
        ),
    ],
)
def test_another_version_is_read_like_the_known_one_with_a_warning(
    version: str, kind: str, known: str
) -> None:
    manifest = obj(version, kind)
    assert missing_conditions(manifest) == ""
    assert foreign_version(manifest) == (
        f"tuner knows {kind} of {known}, and treats {version} like it; if its status or labels "
        f"differ, "
        "set spec.trial.success, failure and primary"
    )


@KINDS
def test_a_known_version_gives_no_warning(name: str) -> None:
    assert foreign_version(OBJECTS[name]) == ""


@KINDS
def test_every_kind_can_be_a_trial(name: str) -> None:
    assert (cannot_be_labeled(OBJECTS[name]), missing_conditions(OBJECTS[name])) == ("", "")


@pytest.mark.parametrize(
    "spec",
    [
        {"submissionMode": "K8sJobMode"},
        {"submissionMode": "SidecarMode"},
        {"clusterSelector": {"ray.io/cluster": "x"}, "submitterPodTemplate": template()},
    ],
)
def test_a_ray_job_whose_submitter_is_a_pod_can_be_a_trial(spec: Raw) -> None:
    assert cannot_be_labeled(obj("ray.io/v1", "RayJob", rayClusterSpec=RAY_CLUSTER, **spec)) == ""


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (obj("example.org/v1", "Widget", image="x"), "no pod template is found in this Widget"),
        (obj("kubeflow.org/v1", "PyTorchJob"), "no pod template is found in this PyTorchJob"),
        (
            obj("ray.io/v1", "RayJob", submissionMode="HTTPMode", rayClusterSpec=RAY_CLUSTER),
            "write K8sJobMode",
        ),
        (
            obj("ray.io/v1", "RayJob", clusterSelector={"ray.io/cluster": "x"}),
            "write spec.submitterPodTemplate",
        ),
    ],
)
def test_an_object_without_a_pod_template_is_refused_with_the_reason(
    manifest: Raw, said: str
) -> None:
    assert said in cannot_be_labeled(manifest)


@pytest.mark.parametrize(
    ("spec", "pod_field", "said"),
    [
        ({}, None, "has no field for the labels of its pods"),
        ({}, "", ""),
        ({}, "runtimePatches", ""),
        ({"podTemplateOverrides": []}, "podTemplateOverrides", ""),
        (
            {"podTemplateOverrides": []},
            "runtimePatches",
            "has no podTemplateOverrides; it has runtimePatches in its",
        ),
        (
            {"runtimePatches": []},
            "podTemplateOverrides",
            "has no runtimePatches; it has podTemplateOverrides in its",
        ),
    ],
)
def test_a_train_job_of_another_trainer_is_refused_with_the_cure(
    spec: Raw, pod_field: str | None, said: str
) -> None:
    found = not_served(obj("trainer.kubeflow.org/v1alpha1", "TrainJob", **spec), pod_field)
    assert said in found
    assert bool(said) == bool(found)


TWO_STEPS = [
    {"name": "prepare", "script": {"image": "a"}},
    {"name": "train", "container": {"image": "b"}},
]


@pytest.mark.parametrize(
    ("spec", "keys", "missing"),
    [
        ({"templates": TWO_STEPS[1:]}, (), False),
        ({"templates": TWO_STEPS}, (), True),
        ({"templates": TWO_STEPS}, ("primary",), False),
        ({"workflowTemplateRef": {"name": "kept"}}, (), True),
    ],
)
def test_of_several_steps_of_a_workflow_the_file_names_the_one_with_the_metrics(
    spec: Raw, keys: tuple[str, ...], missing: bool
) -> None:
    said = missing_conditions(obj("argoproj.io/v1alpha1", "Workflow", **spec), keys)
    assert (
        said.startswith("which pod of this Workflow reports the metrics? add primary: {labels: ")
        is missing
    )


def test_of_several_tasks_of_a_pipeline_the_file_names_the_one_with_the_metrics() -> None:
    spec: Raw = {"tasks": [{"name": "prepare", "taskSpec": {}}, {"name": "train", "taskSpec": {}}]}
    for pipeline in (spec, {}):
        manifest = obj("tekton.dev/v1", "PipelineRun", pipelineSpec=pipeline)
        assert missing_conditions(manifest).startswith(
            "which pod of this PipelineRun reports the metrics?"
        )
        assert missing_conditions(manifest, ("primary",)) == ""


def test_every_container_of_a_workflow_gets_the_variables_and_no_step_does() -> None:
    spec = made("Workflow", templates=[{"name": "all", "dag": {"tasks": []}}, *TWO_STEPS])["spec"]
    steps, prepare, train = spec["templates"]
    assert steps == {"name": "all", "dag": {"tasks": []}}
    for container in (prepare["script"], train["container"]):
        assert {"name": "TUNER_TRIAL_NUMBER", "value": "12"} in container["env"]


ROLE, REPLICA = {TRAINING: "master"}, "training.kubeflow.org/replica-type"


@pytest.mark.parametrize(
    ("name", "labels", "place"),
    [
        ("Job", {}, "spec.template"),
        ("PyTorchJob", {}, "spec.pytorchReplicaSpecs.Master.template"),
        ("PyTorchJob", ROLE, "spec.pytorchReplicaSpecs.Master.template"),
        ("PyTorchJob", {REPLICA: "worker"}, "spec.pytorchReplicaSpecs.Worker.template"),
        ("PyTorchJob", {"mine": "x"}, ""),
        ("TFJob", ROLE, "spec.tfReplicaSpecs.Worker.template"),
        ("XGBoostJob", {}, "spec.xgbReplicaSpecs.Master.template"),
        ("MPIJob", ROLE, "spec.mpiReplicaSpecs.Launcher.template"),
        ("MPIJob v2beta1", {}, "spec.mpiReplicaSpecs.Launcher.template"),
        ("TrainJob", {}, ""),
        ("RayJob", {}, ""),
        ("Workflow", {}, ""),
    ],
)
def test_the_template_of_the_pod_with_the_metrics_is_known(
    name: str, labels: dict[str, str], place: str
) -> None:
    found = copy.deepcopy(OBJECTS[name])
    assert primary_template(found, labels) is (at(found, place) if place else None)


def test_a_label_of_the_template_itself_says_which_pod_has_the_metrics() -> None:
    found = copy.deepcopy(OBJECTS["JobSet"])
    second = found["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]
    second["metadata"] = {"labels": {"mine": "x"}}
    assert primary_template(found, {"mine": "x"}) is second
    assert primary_template(obj("example.org/v1", "Widget", one=template()), {}) == template()


def test_checking_a_file_does_not_change_it() -> None:
    before = copy.deepcopy(OBJECTS["RayJob"])
    cannot_be_labeled(OBJECTS["RayJob"])
    assert OBJECTS["RayJob"] == before


@KINDS
def test_a_queue_for_a_kind_that_kueue_does_not_know_is_refused(name: str) -> None:
    said = cannot_be_queued(OBJECTS[name])
    assert bool(said) is (
        name in {"MPIJob", "Volcano Job", "Workflow", "PipelineRun v1beta1", "PipelineRun v1"}
    )
    assert not said or f"the kind {OBJECTS[name]['kind']} of {OBJECTS[name]['apiVersion']};" in said


BROKEN: list[object] = [None, "text", 7, [], ["x"], {}, {"x": "y"}]


@KINDS
@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_a_malformed_object_breaks_nothing(name: str, broken: object) -> None:
    """The server refuses such an object, but it may be read before that."""
    places = (
        "podTemplateOverrides",
        "runtimePatches",
        "submitterPodTemplate",
        "trainer",
        "runPolicy",
    )
    for key in ("", *OBJECTS[name]["spec"], *places):
        manifest = copy.deepcopy(OBJECTS[name])
        if key:
            manifest["spec"][key] = broken
        else:
            manifest["spec"] = broken
        build_objects(a_launch(template=manifest, queue="q"))
        cannot_be_labeled(manifest)
        found = {
            **manifest,
            "metadata": {"name": "x"},
            "status": broken if isinstance(broken, dict) else {},
        }
        assert isinstance(status_rules_of(found).container, str)
        is_suspended(found)


def test_an_unknown_kind_has_no_preset() -> None:
    assert (
        status_rules_of({"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {}}).labels
        == PrimaryPod().labels
    )
