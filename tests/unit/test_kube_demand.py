"""The resources that an attempt requests in its namespace, read from its objects."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from controller.runtime.kubernetes.kinds import pod_templates
from controller.runtime.kubernetes.resource_quota import Demand, demand_of, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", "4"),
        (4, "4"),
        (0.5, "0.5"),
        ("500m", "0.5"),
        ("100u", "0.0001"),
        (".5", "0.5"),
        ("2k", "2000"),
        ("16Gi", str(16 * 2**30)),
        ("1.5Gi", str(3 * 2**29)),
        ("10G", "10000000000"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("1E", str(10**18)),
        ("-1", "-1"),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: object, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize(
    "text", ["", "4 cores", "16gi", "1.2.3", "Gi", "1Kb", "1e9999999999", None, True]
)
def test_an_invalid_quantity_is_refused_by_name(text: object) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


def container(**resources: dict[str, object]) -> dict[str, Any]:
    return {"name": "trial", "resources": resources}


def job(
    *containers: dict[str, Any], spec: dict[str, Any] | None = None, **pod: object
) -> dict[str, Any]:
    template = {"spec": {"containers": list(containers), **pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {**(spec or {}), "template": template}}


def test_a_job_asks_for_one_pod_with_the_sum_of_its_containers() -> None:
    asked = {"cpu": 2, "memory": "1Gi", "nvidia.com/gpu": 1}
    first = container(requests=asked, limits=asked)
    second = container(requests={"cpu": "500m"})
    assert demand_of([job(first, second)]) == Demand(
        1,
        {
            "requests.cpu": Decimal("2.5"),
            "limits.cpu": Decimal(2),
            "requests.memory": Decimal(2**30),
            "limits.memory": Decimal(2**30),
            "requests.nvidia.com/gpu": Decimal(1),
        },
        {"count/jobs.batch": 1},
        containers=2,
    )


def test_a_limit_alone_is_the_request() -> None:
    demand = demand_of([job(container(limits={"cpu": 1}))])
    assert demand.per_pod == {"requests.cpu": Decimal(1), "limits.cpu": Decimal(1)}


def test_start_up_counts_where_it_needs_more_than_the_run_and_a_sidecar_beside_the_run() -> None:
    sidecar = {"name": "log", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}}
    download = {"name": "data", "resources": {"requests": {"memory": "8Gi"}}}
    demand = demand_of(
        [job(container(requests={"cpu": 1, "memory": "1Gi"}), initContainers=[sidecar, download])]
    )
    assert demand.per_pod == {"requests.cpu": Decimal("1.1"), "requests.memory": Decimal(8 * 2**30)}


def test_what_a_pod_requests_as_a_whole_counts_instead_of_its_containers() -> None:
    whole = {"requests": {"cpu": 8}, "limits": {"memory": "4Gi"}}
    asked = {"cpu": 1, "nvidia.com/gpu": 1}
    assert demand_of([job(container(limits=asked), container(), resources=whole)]).per_pod == {
        "requests.cpu": Decimal(8),
        "limits.cpu": Decimal(1),
        "requests.memory": Decimal(4 * 2**30),
        "limits.memory": Decimal(4 * 2**30),
        "requests.nvidia.com/gpu": Decimal(1),
    }


def test_an_indexed_job_asks_for_all_its_workers_and_its_service_is_counted() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"clusterIP": "None"}}
    demand = demand_of(
        [service, job(container(requests={"cpu": 1}), spec={"parallelism": 3, "completions": 3})]
    )
    assert (demand.pods, demand.total()) == (3, {"requests.cpu": Decimal(3)})
    assert demand.objects == {"count/services": 1, "services": 1, "count/jobs.batch": 1}


def test_no_more_pods_exist_at_once_than_completions_are_left() -> None:
    assert demand_of([job(container(), spec={"parallelism": 8, "completions": 2})]).pods == 2


def test_scopes_are_read_off_the_pod() -> None:
    demand = demand_of([job(container(), priorityClassName="batch", activeDeadlineSeconds=60)])
    assert (demand.best_effort, demand.terminating, demand.priority_class) == (True, True, "batch")
    assert not demand_of(
        [job(container(requests={"memory": 1}), spec={"activeDeadlineSeconds": 60})]
    ).terminating


def replicated(name: str, replicas: int, cpu: int) -> dict[str, Any]:
    inner = job(container(requests={"cpu": cpu}), spec={"parallelism": 2})["spec"]
    return {"name": name, "replicas": replicas, "template": {"spec": inner}}


JOB_SET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "spec": {"replicatedJobs": [replicated("leader", 1, 4), replicated("workers", 3, 1)]},
}


def test_every_shape_of_pod_of_any_kind_counts_with_its_replicas() -> None:
    demand = demand_of([JOB_SET])
    assert [(shape.pods, shape.per_pod["requests.cpu"]) for shape in demand.shapes()] == [
        (2, 4),
        (6, 1),
    ]
    assert demand.total() == {"requests.cpu": Decimal(14)}
    assert demand.objects == {"count/jobsets.jobset.x-k8s.io": 1, "count/jobs.batch": 4}


def test_pod_templates_are_found_wherever_they_are() -> None:
    assert [template["spec"]["containers"][0]["name"] for template in pod_templates(JOB_SET)] == [
        "trial",
        "trial",
    ]
    assert (
        list(pod_templates({"spec": {"template": {"spec": {"runtimeRef": {"name": "torch"}}}}}))
        == []
    )


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        (
            {"kind": "Pod", "spec": {"containers": ["main"]}},
            "containers of a pod is not a list of mappings",
        ),
        (
            job(container(), initContainers={"name": "first"}),
            "initContainers of a pod is not a list of mappings",
        ),
        (job({"resources": 4}), "resources of a container is 4; write a mapping"),
        (job({"resources": {"limits": "4Gi"}}), "limits of a container is '4Gi'; write a mapping"),
        (job({"resources": {"requests": [1]}}), "requests of a container is [1]; write a mapping"),
    ],
)
def test_a_container_that_is_no_mapping_is_refused(manifest: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        demand_of([manifest])


def test_any_number_of_copies_is_counted() -> None:
    group = {"replicas": 10**20, "template": {"spec": job(container(requests={"cpu": 1}))["spec"]}}
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "spec": {"replicatedJobs": [group]},
    }
    assert demand_of([manifest]).objects["count/jobs.batch"] == 10**20


def test_a_kind_without_pod_templates_requests_what_is_known() -> None:
    train_job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "spec": {"runtimeRef": {}},
    }
    assert demand_of([train_job]) == Demand(0, {}, {"count/trainjobs.trainer.kubeflow.org": 1})


def test_a_train_job_requests_the_nodes_that_it_names() -> None:
    trainer = {"numNodes": 3, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 2}}}
    manifest = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "spec": {"trainer": trainer},
    }
    assert demand_of([manifest]).total() == {"requests.nvidia.com/gpu": Decimal(6)}
    del trainer["numNodes"]
    assert demand_of([manifest]).pods == 1


def test_the_pods_of_a_ray_cluster_and_its_submitter_are_counted() -> None:
    def template(cpu: int) -> dict[str, Any]:
        return {"spec": {"containers": [container(requests={"cpu": cpu})]}}

    group = {"replicas": 2, "numOfHosts": 4, "template": template(8)}
    cluster = {"headGroupSpec": {"template": template(4)}, "workerGroupSpecs": [group]}
    spec = {"rayClusterSpec": cluster, "submitterPodTemplate": template(1)}
    demand = demand_of([{"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": spec}])
    assert [(shape.pods, shape.per_pod["requests.cpu"]) for shape in demand.shapes()] == [
        (1, 4),
        (8, 8),
        (1, 1),
    ]
