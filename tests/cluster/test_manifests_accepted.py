"""A real API server accepts the objects of an attempt,
and their pods under the restricted profile.
"""

from __future__ import annotations

from typing import Any

import pytest

from controller.core.model import Resources, SecretRef
from controller.runtime.kubernetes.job_builder import build_objects
from controller.runtime.kubernetes.labels import name_problem, owned
from controller.runtime.kubernetes.pod_status import explain_refusal
from controller.runtime.kubernetes.preflight import pods_of
from controller.runtime.protocol import Launch
from tests.cluster.api import CORE, RequestRefused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.objects import jobs, pods
from tests.unit.launches import a_launch

GIB = 1 << 30
STRICT = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
CHECK = {"dryRun": "All", "fieldValidation": "Strict"}

EVERYTHING: dict[str, Any] = {
    "imagePullPolicy": "IfNotPresent",
    "imagePullSecrets": ["regcred"],
    "shm": "2Gi",
    "volumes": {
        "data": {"mount": "/data", "claim": "cifar10", "readOnly": True},
        "cache": {"mount": "/cache", "emptyDir": {"sizeLimit": "1Gi"}},
    },
    "checkpoints": {"claim": "kept"},
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "serviceAccount": "default",
    "experiment_labels": {"team": "vision"},
    "labels": {"stage": "search"},
    "annotations": {"example.org/note": "any text"},
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "topologySpread": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "schedulerName": "default-scheduler",
}
POD = {"containers": [{"name": "main", "image": "x:1", "command": ["train", "--lr=${lr}"]}]}
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"generateName": "x-"},
    "spec": {"template": {"spec": POD}},
}

LAUNCHES: dict[str, Launch] = {
    "small": a_launch(),
    "everything": a_launch(
        "sh",
        "-c",
        "echo $(date)",
        env={"A": "1", "API_KEY": SecretRef("keys", "api")},
        resources=Resources(0.5, 16 * GIB, 1, 10 * GIB, {"nvidia.com/mig-1g.10gb": 2}),
        nodes=("fake-0", "fake-1"),
        **EVERYTHING,
    ),
    "workers": a_launch(distributed={"workers": 3}),
    "longest": a_launch(
        name="n" * 40, nodes=tuple(f"node-{n}" for n in range(9)), distributed={"workers": 1000}
    ),
    "nfs": a_launch(volumes={"share": {"mount": "/share", "nfs": {"server": "nas", "path": "/x"}}}),
    "queued": a_launch(queue="team-a"),
    "template": a_launch(template=JOB),
}


@pytest.mark.parametrize("what", LAUNCHES)
def test_the_server_accepts_every_object(level_b: ControlPlane, namespace: str, what: str) -> None:
    api = level_b.api()
    assert name_problem(LAUNCHES[what]) == ""
    anchor = api.post(f"{CORE}/namespaces/{namespace}/configmaps", {"metadata": {"name": "anchor"}})
    for manifest in build_objects(LAUNCHES[what]):
        made = moved(owned(manifest, anchor), namespace)
        path = (
            jobs(namespace) if made["kind"] == "Job" else f"{CORE}/namespaces/{namespace}/services"
        )
        assert api.post(path, made, **CHECK)["metadata"]["ownerReferences"][0]["name"] == "anchor"


@pytest.mark.parametrize("what", sorted(LAUNCHES.keys() - {"nfs", "template"}))
def test_the_restricted_profile_admits_the_pod(
    level_b: ControlPlane, namespace: str, what: str
) -> None:
    api = level_b.api()
    api.patch(f"{CORE}/namespaces/{namespace}", STRICT)
    (pod,) = pods_of([moved(build_objects(LAUNCHES[what])[-1], namespace)])
    assert api.post(pods(namespace), pod, **CHECK)["metadata"]["name"] == pod["metadata"]["name"]


def test_the_server_keeps_our_tolerations_of_a_lost_node(
    level_b: ControlPlane, namespace: str
) -> None:
    """Its admission adds a toleration of 300 s (here 5 s)
    for each of these taints that a pod does not tolerate.
    """
    taints = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
        for key in taints
    ]
    for given, expected in ((ours, {30}), (ours[:1], {30, 5}), ([], {5})):
        (pod,) = pods_of([moved(build_objects(a_launch(tolerations=given))[-1], namespace)])
        stored = level_b.api().post(pods(namespace), pod, **CHECK)["spec"]["tolerations"]
        assert sorted(each["key"] for each in stored) == sorted(taints)
        assert {each["tolerationSeconds"] for each in stored} == expected


def test_a_refusal_by_pod_security_is_explained(level_b: ControlPlane, namespace: str) -> None:
    api = level_b.api()
    api.patch(f"{CORE}/namespaces/{namespace}", STRICT)
    job = moved(build_objects(LAUNCHES["nfs"])[-1], namespace)
    (pod,) = pods_of([job])
    with pytest.raises(RequestRefused) as refused:
        api.post(pods(namespace), pod, **CHECK)
    expected = "the namespace's pod security profile does not allow it: violates PodSecurity"
    assert explain_refusal(refused.value.status["message"]).startswith(expected)


def test_the_server_limits_names_as_we_do(level_b: ControlPlane, namespace: str) -> None:
    job = moved(build_objects(a_launch(distributed={"workers": 11}))[-1], namespace)
    job["metadata"]["name"] = "n" * 60
    assert level_b.api().post(jobs(namespace), job, **CHECK)
    job["metadata"]["name"] = "n" * 61
    with pytest.raises(RequestRefused, match="invalid DNS label"):
        level_b.api().post(jobs(namespace), job, **CHECK)


def moved(manifest: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Move an object to the test's namespace: launches are built before there is one."""
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}
