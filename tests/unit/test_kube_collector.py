"""The sidecar that collects metrics: what is added to a Job, and which objects it is not added to."""

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


def pod_of(source: MetricsSource | None, *, step: str = "", image: str = "", **more: Any) -> dict[str, Any]:
    rule = MetricsRule(step, source=source, collector_image=image)
    spec: dict[str, Any] = build_objects(a_launch(metrics=rule, **more))[-1]["spec"]["template"]["spec"]
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
    assert {name: value for name, value in env.items() if name.startswith("TUNER_METRICS")} == variables


def test_reports_to_katibs_db_manager_stay_in_the_pod() -> None:
    pod = pod_of(KatibReports())
    (alias,) = pod["hostAliases"]
    assert alias["ip"] == "127.0.0.1"
    assert "katib-db-manager.kubeflow" in alias["hostnames"]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "tuner-namespace"]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"  # where Katib's SDK looks
    env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert (env["KATIB_DB_MANAGER_SERVICE_IP"], env["KATIB_DB_MANAGER_SERVICE_PORT"]) == ("127.0.0.1", "6789")


def test_a_container_with_a_volume_in_the_place_of_a_token_keeps_it() -> None:
    own = {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount/"}
    containers = [{"name": "proxy"}, {"name": "main", "volumeMounts": [own]}]
    spec = {"automountServiceAccountToken": False, "containers": containers}
    job = {**JOB, "spec": {"template": {"spec": spec}}}
    pod = pod_of(KatibReports(), template=job, primary={"container": "main"})
    mounts = [[mount["name"] for mount in each.get("volumeMounts", ())] for each in pod["containers"]]
    assert mounts == [["tuner-namespace"], ["token"]]


def test_a_pod_with_a_token_has_its_namespace_already() -> None:
    pod = pod_of(KatibReports(), serviceAccount="trainer")
    assert "tuner-namespace" not in [volume["name"] for volume in pod["volumes"]]


def test_the_image_is_pulled_like_the_trials() -> None:
    pod = pod_of(MetricsFile("m.txt"), imagePullPolicy="Never")
    assert [each["imagePullPolicy"] for each in (*pod["initContainers"], *pod["containers"])] == ["Never", "Never"]


def test_a_volume_of_the_file_is_shared_with_the_sidecar() -> None:
    data = {"data": {"mount": "/data", "claim": "team"}}
    pod = pod_of(MetricsFile("/data/logs/metrics.log"), volumes=data)
    assert pod["initContainers"][0]["volumeMounts"] == [{"name": "data", "mountPath": "/data", "readOnly": True}]
    assert "tuner-metrics" not in [volume["name"] for volume in pod["volumes"]]


def test_the_image_is_that_of_the_file_or_the_environment() -> None:
    file, here = MetricsFile("m.txt"), {"TUNER_COLLECTOR_IMAGE": "registry.example/collector:2"}
    assert pod_of(file, environ=here)["initContainers"][0]["image"] == "registry.example/collector:2"
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


def test_a_sidecar_of_the_template_is_not_changed() -> None:
    mine = {"name": "tuner-collector", "image": "mine:1"}
    job = {**JOB, "spec": {"template": {"spec": {**POD, "initContainers": [mine]}}}}
    pod = pod_of(MetricsFile("/katib/metrics.log"), template=job)
    assert [(each["name"], each["image"]) for each in pod["initContainers"]] == [("tuner-collector", "mine:1")]


def test_other_kinds_are_refused_unless_they_have_the_sidecar() -> None:
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "spec": {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": {"spec": POD}}}}]},
    }
    assert cannot_be_collected(JOB) == ""
    assert cannot_be_collected(job_set) == (
        "the collector is added to a batch/v1 Job only, and this is a JobSet; print the metrics, or add the container "
        "tuner-collector to the primary pod's initContainers, as docs/kubernetes.md shows"
    )
    with_it: Any = copy.deepcopy(job_set)
    with_it["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["initContainers"] = [SIDECAR]
    assert cannot_be_collected(with_it) == ""
