"""A tenant's experiment gets no more than ordinary pods of its namespace."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from controller.core.model import ExperimentSpec
from controller.operator.policy import Policy, check_policy
from controller.spec import read
from suggest.errors import InvalidArgument


def spec_of(trial: dict[str, Any], **more: object) -> ExperimentSpec:
    whole = {
        "apiVersion": "tuner.dev/v1",
        "kind": "Experiment",
        "metadata": {"name": "tiny", "namespace": "vision", **more},
        "spec": {
            "objective": {"metric": "score", "direction": "maximize"},
            "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
            "runtime": "kubernetes",
            "trial": trial,
        },
    }
    return read(json.dumps(whole), source="experiment tiny", is_file=False).spec


CONTAINER = {"name": "main", "image": "tiny:1", "command": ["train", "${x}"]}


def job(**changes: Any) -> dict[str, Any]:
    """Return a template with these changes of its pod."""
    pod = {"restartPolicy": "Never", "containers": [copy.deepcopy(CONTAINER)], **changes}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod}}}


def with_container(**changes: Any) -> dict[str, Any]:
    return job(containers=[CONTAINER | changes])


def secured(**context: Any) -> dict[str, Any]:
    return with_container(securityContext=context)


def about(**metadata: Any) -> dict[str, Any]:
    return job() | {"metadata": metadata}


HOSTILE: list[tuple[str, dict[str, Any]]] = [
    ("hostNetwork", job(hostNetwork=True)),
    ("hostPID", job(hostPID=True)),
    ("hostIPC", job(hostIPC=True)),
    ("serviceAccountName: tuner", job(serviceAccountName="tuner")),
    ("serviceAccount: admin", job(serviceAccount="admin")),
    ("nodeName", job(nodeName="master-0")),
    ("hostPath", job(volumes=[{"name": "v", "hostPath": {"path": "/"}}])),
    (
        "further tokens",
        job(
            volumes=[
                {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
            ]
        ),
    ),
    ("sysctls", job(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]})),
    ("seccompProfile", job(securityContext={"seccompProfile": {"type": "Unconfined"}})),
    ("appArmorProfile", job(securityContext={"appArmorProfile": {"type": "Unconfined"}})),
    ("seLinuxOptions", job(securityContext={"seLinuxOptions": {"type": "spc_t"}})),
    ("seLinuxOptions", job(securityContext={"seLinuxOptions": {"user": "system_u"}})),
    ("hostProcess", job(securityContext={"windowsOptions": {"hostProcess": True}})),
    ("hostPort 80", with_container(ports=[{"containerPort": 80, "hostPort": 80}])),
    ("privileged", secured(privileged=True)),
    ("SYS_ADMIN", secured(capabilities={"add": ["SYS_ADMIN"]})),
    ("NET_RAW", secured(capabilities={"add": ["CHOWN", "NET_RAW"]})),
    ("ALL cannot be added", secured(capabilities={"add": ["ALL"]})),
    ("procMount", secured(procMount="Unmasked")),
    ("seccompProfile", secured(seccompProfile={"type": "Unconfined"})),
    ("hostProcess", secured(windowsOptions={"hostProcess": True})),
    (
        "initContainers[0].securityContext.privileged",
        job(initContainers=[CONTAINER | {"name": "i", "securityContext": {"privileged": True}}]),
    ),
    ("namespace: other", about(namespace="other")),
    ("ownerReferences", about(ownerReferences=[{"kind": "Node", "name": "n", "uid": "1"}])),
    ("finalizers", about(finalizers=["a/b"])),
    ("generateName", about(generateName="x-")),
    ("labels: tuner.dev/uid", about(labels={"tuner.dev/uid": "x2"})),
    ("annotations: tuner.dev/x", about(annotations={"tuner.dev/x": "1"})),
]


@pytest.mark.parametrize(("place", "template"), HOSTILE, ids=[place for place, _ in HOSTILE])
def test_a_template_that_wants_more_is_refused_with_its_place(
    place: str, template: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_policy(spec_of({"template": template}))
    assert place in str(refused.value)
    assert "spec.trial.template" in str(refused.value)


def test_pods_are_found_at_any_depth() -> None:
    deep = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "spec": {
            "replicatedJobs": [{"name": "w", "template": {"spec": job(hostNetwork=True)["spec"]}}]
        },
    }
    with pytest.raises(InvalidArgument, match="hostNetwork"):
        check_policy(spec_of({"template": deep}))


@pytest.mark.parametrize(
    "template",
    [
        job(),
        job(serviceAccountName="default"),
        secured(capabilities={"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}),
        secured(runAsUser=0),
        job(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]),
        job(volumes=[{"name": "v", "secret": {"secretName": "s"}}]),
        about(labels={"team": "vision"}, namespace="vision"),
    ],
    ids=["plain", "default", "capability", "root", "claim", "secret", "labels"],
)
def test_an_ordinary_template_is_accepted(template: dict[str, Any]) -> None:
    check_policy(spec_of({"template": template}))


def test_a_trial_of_keys_is_held_to_the_same() -> None:
    trial = {"image": "tiny:1", "command": ["train", "${x}"]}
    check_policy(spec_of(trial))
    with pytest.raises(InvalidArgument, match="serviceAccountName: builder is not allowed"):
        check_policy(spec_of({**trial, "serviceAccount": "builder"}))
    check_policy(spec_of({**trial, "serviceAccount": "builder"}), Policy(frozenset({"builder"})))


def test_labels_of_the_controller_are_not_a_tenants() -> None:
    trial = {"image": "tiny:1", "command": ["train", "${x}"]}
    with pytest.raises(InvalidArgument, match=r"tuner\.dev/uid"):
        check_policy(spec_of(trial, labels={"tuner.dev/uid": "x2"}))


def test_files_of_a_persons_machine_cannot_be_sent() -> None:
    trial = {"image": "tiny:1", "command": ["train", "${x}"], "files": ["train.py"]}
    with pytest.raises(InvalidArgument, match="build them into the image"):
        check_policy(spec_of(trial))
