"""The sidecar that collects metrics: what is added to a Job,
and which objects it is not added to.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from controller.core.model import (
    KatibReports,
    MetricsFile,
    MetricsFormat,
    MetricsRule,
    MetricsSource,
    PrometheusEndpoint,
)
from controller.runtime.kubernetes.job_builder import build_objects, cannot_be_collected
from tests.unit.launches import a_launch

RESOURCES = {"cpu": "100m", "memory": "32Mi"}
SIDECAR = {
    "name": "tuner-collector",
    "image": "tuner/collector:1",
    "args": ["file", "/katib/metrics.log"],
    "restartPolicy": "Always",
    "resources": {"requests": RESOURCES, "limits": RESOURCES},
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "terminationMessagePolicy": "FallbackToLogsOnError",
    "volumeMounts": [{"name": "tuner-metrics", "mountPath": "/katib", "readOnly": True}],
}
POD = {"containers": [{"name": "proxy"}, {"name": "main"}], "initContainers": [{"name": "prepare"}]}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": POD}}}


def pod_of(
    source: MetricsSource | None, *, step: str = "", image: str = "", **more: Any
) -> dict[str, Any]:
    rule = MetricsRule(step, source=source, collector_image=image)
    spec: dict[str, Any] = build_objects(a_launch(metrics=rule, **more))[-1]["spec"]["template"][
        "spec"
    ]
    return spec


def test_a_job_whose_metrics_are_printed_has_no_sidecar() -> None:
    assert "initContainers" not in pod_of(None)


def test_the_sidecar_shares_an_empty_volume_with_the_trial() -> None:
    pod = pod_of(MetricsFile("/katib/metrics.log"))
    assert pod["initContainers"] == [SIDECAR]
    assert {"name": "tuner-metrics", "emptyDir": {}} in pod["volumes"]
    assert {"name": "tuner-metrics", "mountPath": "/katib"} in pod["containers"][0]["volumeMounts"]


@pytest.mark.parametrize(
    ("source", "args", "mounts", "variables"),
    [
        (
            MetricsFile("m.json", MetricsFormat.JSON),
            ["file", "/tuner/output/m.json"],
            [{"name": "tuner-output", "mountPath": "/tuner/output", "readOnly": True}],
            {"TUNER_METRICS_FILE": "/tuner/output/m.json"},
        ),
        (
            MetricsFile("logs/m.json", MetricsFormat.JSON),
            ["file", "/tuner/output/logs/m.json"],
            [{"name": "tuner-metrics", "mountPath": "/tuner/output/logs", "readOnly": True}],
            {"TUNER_METRICS_FILE": "/tuner/output/logs/m.json"},
        ),
        (
            MetricsFile("/tmp/runs", MetricsFormat.TENSORBOARD),
            ["tensorboard", "/tmp/runs", "accuracy", "step", "epoch"],
            [{"name": "tuner-metrics", "mountPath": "/tmp/runs", "readOnly": True}],
            {"TUNER_METRICS_FILE": "/tmp/runs"},
        ),
        (
            PrometheusEndpoint(),
            ["prometheus", "8080", "/metrics", "accuracy", "step", "epoch"],
            None,
            {"TUNER_METRICS_PORT": "8080"},
        ),
        (
            PrometheusEndpoint(9100, "/m"),
            ["prometheus", "9100", "/m", "accuracy", "step", "epoch"],
            None,
            {"TUNER_METRICS_PORT": "9100"},
        ),
        (KatibReports(), ["reports", "127.0.0.1:6789"], None, {}),
    ],
)
def test_the_sidecar_reads_what_the_file_says(
    source: MetricsSource, args: list[str], mounts: Any, variables: dict[str, str]
) -> None:
    pod = pod_of(source)
    (sidecar,) = pod["initContainers"]
    assert (sidecar["args"], sidecar.get("volumeMounts")) == (args, mounts)
    env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert {
        name: value for name, value in env.items() if name.startswith("TUNER_METRICS")
    } == variables


def test_reports_to_katibs_db_manager_stay_in_the_pod() -> None:
    pod = pod_of(KatibReports())
    (alias,) = pod["hostAliases"]
    assert alias["ip"] == "127.0.0.1"
    assert "katib-db-manager.kubeflow" in alias["hostnames"]
    (mount,) = [
        each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "tuner-namespace"
    ]
    # where Katib's SDK looks
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert (env["KATIB_DB_MANAGER_SERVICE_IP"], env["KATIB_DB_MANAGER_SERVICE_PORT"]) == (
        "127.0.0.1",
        "6789",
    )


def test_a_container_with_a_volume_in_the_place_of_a_token_keeps_it() -> None:
    own = {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount/"}
    containers = [{"name": "proxy"}, {"name": "main", "volumeMounts": [own]}]
    spec = {"automountServiceAccountToken": False, "containers": containers}
    job = {**JOB, "spec": {"template": {"spec": spec}}}
    pod = pod_of(KatibReports(), template=job, primary={"container": "main"})
    mounts = [
        [mount["name"] for mount in each.get("volumeMounts", ())] for each in pod["containers"]
    ]
    assert mounts == [["tuner-namespace"], ["token"]]


def test_a_pod_with_a_token_has_its_namespace_already() -> None:
    pod = pod_of(KatibReports(), serviceAccount="trainer")
    assert "tuner-namespace" not in [volume["name"] for volume in pod["volumes"]]


def test_the_image_is_pulled_like_the_trials() -> None:
    pod = pod_of(MetricsFile("m.txt"), imagePullPolicy="Never")
    assert [each["imagePullPolicy"] for each in (*pod["initContainers"], *pod["containers"])] == [
        "Never",
        "Never",
    ]


def test_a_volume_of_the_file_is_shared_with_the_sidecar() -> None:
    data = {"data": {"mount": "/data", "claim": "team"}}
    pod = pod_of(MetricsFile("/data/logs/metrics.log"), volumes=data)
    assert pod["initContainers"][0]["volumeMounts"] == [
        {"name": "data", "mountPath": "/data", "readOnly": True}
    ]
    assert "tuner-metrics" not in [volume["name"] for volume in pod["volumes"]]


def test_the_image_is_that_of_the_file_or_the_environment() -> None:
    file, here = MetricsFile("m.txt"), {"TUNER_COLLECTOR_IMAGE": "registry.example/collector:2"}
    assert (
        pod_of(file, environ=here)["initContainers"][0]["image"] == "registry.example/collector:2"
    )
    assert pod_of(file, environ=here, image="own:1")["initContainers"][0]["image"] == "own:1"


def test_the_sidecar_is_added_to_a_job_template_beside_its_primary_container() -> None:
    before = copy.deepcopy(JOB)
    pod = pod_of(MetricsFile("/katib/metrics.log"), template=JOB, primary={"container": "main"})
    assert [each["name"] for each in pod["initContainers"]] == ["tuner-collector", "prepare"]
    assert [each.get("volumeMounts") for each in pod["containers"]] == [
        None,
        [{"name": "tuner-metrics", "mountPath": "/katib"}],
    ]
    assert before == JOB


@pytest.mark.parametrize("source", [MetricsFile("/katib/metrics.log"), KatibReports()])
def test_lists_of_a_template_may_be_null(source: MetricsSource) -> None:
    empty = {**POD, "volumes": None, "automountServiceAccountToken": False}
    empty["containers"] = [{"name": "main", "volumeMounts": None}]
    job = {**JOB, "spec": {"template": {"spec": empty}}}
    pod = pod_of(source, template=job)
    (volume,), (mount,) = pod["volumes"], pod["containers"][0]["volumeMounts"]
    assert volume["name"] == mount["name"]


def test_a_sidecar_of_the_template_is_not_changed() -> None:
    mine = {"name": "tuner-collector", "image": "mine:1"}
    job = {**JOB, "spec": {"template": {"spec": {**POD, "initContainers": [mine]}}}}
    pod = pod_of(MetricsFile("/katib/metrics.log"), template=job)
    assert [(each["name"], each["image"]) for each in pod["initContainers"]] == [
        ("tuner-collector", "mine:1")
    ]


def replicas(field: str, *roles: str) -> dict[str, Any]:
    return {field: {role: {"replicas": 1, "template": {"spec": POD}} for role in roles}}


KINDS: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "kubeflow.org/v1",
        "PyTorchJob",
        replicas("pytorchReplicaSpecs", "Worker", "Master"),
        "Master",
    ),
    ("kubeflow.org/v1", "TFJob", replicas("tfReplicaSpecs", "PS", "Worker"), "Worker"),
    ("kubeflow.org/v1", "XGBoostJob", replicas("xgbReplicaSpecs", "Worker", "Master"), "Master"),
    ("kubeflow.org/v1", "MPIJob", replicas("mpiReplicaSpecs", "Worker", "Launcher"), "Launcher"),
    (
        "kubeflow.org/v2beta1",
        "MPIJob",
        replicas("mpiReplicaSpecs", "Worker", "Launcher"),
        "Launcher",
    ),
]


@pytest.mark.parametrize(
    "source", [MetricsFile("/katib/metrics.log"), KatibReports()], ids=["file", "reports"]
)
@pytest.mark.parametrize(("version", "kind", "spec", "primary"), KINDS)
def test_the_sidecar_is_added_to_the_pod_that_reports_and_to_no_other(
    version: str, kind: str, spec: dict[str, Any], primary: str, source: MetricsSource
) -> None:
    manifest = {"apiVersion": version, "kind": kind, "spec": spec}
    assert cannot_be_collected(manifest, {}) == ""
    rule = MetricsRule(source=source)
    launch = a_launch(metrics=rule, template=copy.deepcopy(manifest), primary={"container": "main"})
    (groups,) = (
        value
        for key, value in build_objects(launch)[-1]["spec"].items()
        if key.endswith("ReplicaSpecs")
    )
    having = [
        role
        for role, replica in groups.items()
        if "tuner-collector"
        in [each["name"] for each in replica["template"]["spec"]["initContainers"]]
    ]
    assert having == [primary]
    mounts = [
        each.get("volumeMounts") for each in groups[primary]["template"]["spec"]["containers"]
    ]
    if isinstance(source, MetricsFile):
        assert mounts == [None, [{"name": "tuner-metrics", "mountPath": "/katib"}]]


JOB_SET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "spec": {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": {"spec": POD}}}}]},
}
TRAIN_JOB = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "spec": {"runtimeRef": {"name": "t"}},
}


def test_where_no_template_is_that_of_the_reporting_pod_the_cure_is_given() -> None:
    assert cannot_be_collected(JOB_SET, {}) == ""
    assert cannot_be_collected(JOB_SET, {"primary": {"labels": {"role": "leader"}}}) == (
        "the pod template of this JobSet that reports the metrics is not known, so the collector "
        "cannot be added; "
        "print the metrics, or add the container tuner-collector to the primary pod's "
        "initContainers, as "
        "docs/kubernetes.md shows"
    )
    assert cannot_be_collected(TRAIN_JOB, {}) == (
        "the pods of a TrainJob are those of its runtime; print the metrics, or add the container "
        "tuner-collector "
        "there and name it in the TrainJob, as docs/operators.md shows"
    )


STEPS: Any = [
    {"name": "all", "dag": {"tasks": []}},
    {"name": "prepare", "script": {"image": "a:1", "source": "print(1)"}},
    {"name": "train", "metadata": {"labels": {"step": "train"}}, "container": {"image": "b:1"}},
]


def workflow(*steps: Any) -> dict[str, Any]:
    spec = {"entrypoint": steps[0]["name"], "templates": list(steps)}
    return {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "spec": spec}


@pytest.mark.parametrize(("steps", "labels"), [(STEPS, {"step": "train"}), (STEPS[2:], {})])
def test_the_sidecar_is_added_to_the_template_of_a_workflow_that_the_labels_name(
    steps: Any, labels: dict[str, str]
) -> None:
    primary = {"labels": labels, "container": "main"}
    manifest = workflow(*steps)
    assert cannot_be_collected(manifest, {"primary": primary}) == ""
    launch = a_launch(
        metrics=MetricsRule(source=MetricsFile("/katib/metrics.log")),
        template=copy.deepcopy(manifest),
        primary=primary,
    )
    *others, train = build_objects(launch)[-1]["spec"]["templates"]
    mount = {"name": "tuner-metrics", "mountPath": "/katib"}
    assert train["initContainers"] == [{**SIDECAR, "volumeMounts": [{**mount, "readOnly": True}]}]
    assert train["volumes"] == [{"name": "tuner-metrics", "emptyDir": {}}]
    assert mount in train["container"]["volumeMounts"]
    assert not any("initContainers" in each for each in others)


@pytest.mark.parametrize("labels", [{}, {"step": "test"}])
def test_a_workflow_needs_the_labels_of_one_template(labels: dict[str, str]) -> None:
    cluster = {"primary": {"labels": labels}}
    said = cannot_be_collected(workflow(*STEPS), cluster)
    assert "the pod template of this Workflow that reports the metrics is not known" in said
    having = {**STEPS[1], "initContainers": [{"name": "tuner-collector"}]}
    assert cannot_be_collected(workflow(having, *STEPS[2:]), cluster) == ""


@pytest.mark.parametrize("field", ["runtimePatches", "podTemplateOverrides"])
def test_a_train_job_whose_runtime_has_the_sidecar_is_collected(field: str) -> None:
    names = {"initContainers": [{"name": "tuner-collector"}]}
    job = {"name": "node", "template": {"spec": {"template": {"spec": names}}}}
    patch = {
        "manager": "me",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
    }
    override = {"targetJobs": [{"name": "node"}], "spec": names}
    change = patch if field == "runtimePatches" else override
    manifest: Any = {**TRAIN_JOB, "spec": {"runtimeRef": {"name": "t"}, field: [change]}}
    assert cannot_be_collected(manifest, {}) == ""
    made = build_objects(
        a_launch(metrics=MetricsRule(source=MetricsFile("/m.log")), template=manifest)
    )[-1]
    assert "template" not in made["spec"]
