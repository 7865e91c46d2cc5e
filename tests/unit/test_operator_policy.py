"""What a tenant's experiment may not make the controller in the cluster create."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from controller.operator.policy import NO_EXCEPTIONS, Policy, check_policy
from controller.runtime.kubernetes.kinds import PRESETS
from controller.spec import SpecErrors, read, read_path
from suggest.errors import InvalidArgument
from tests.unit.tenant_templates import (
    BASELINE_ACCEPTS,
    BASELINE_REFUSES,
    MAIN,
    POD,
    Change,
    Data,
    changed,
    job,
)

FOR_TUNER = {"path": "token", "audience": "tuner"}
BOTH_AUDIENCES = {"audience": "tuner", "Audience": "vault"}
ROOT = Path(__file__).parents[2]
EXAMPLES = [
    path
    for path in sorted((ROOT / "examples").glob("*/*.yaml"))
    if path.parent.name != "katib"
    and "image:" in path.read_text()
    and "kind: Experiment" in path.read_text()
]


def experiment(trial: Data, **spec: Any) -> Data:
    return {
        "apiVersion": "tuner.dev/v1",
        "kind": "Experiment",
        "metadata": {"name": "digits", "namespace": "vision"},
        "spec": {
            "objective": {"metric": "accuracy", "direction": "maximize"},
            "parameters": {"x": ["vision", "kube-system", "default", "admin"]},
            "runtime": "kubernetes",
            "trial": trial,
            **spec,
        },
    }


def refused(trial: Data, policy: Policy = NO_EXCEPTIONS, **spec: Any) -> dict[str, str]:
    """Return the refused paths with their messages."""
    text = json.dumps(experiment(trial, **spec))
    document = read(text, source="experiment digits", is_file=False)
    try:
        check_policy(document.spec, policy)
    except InvalidArgument as error:
        paths = [problem.path for problem in error.problems]
        assert len(set(paths)) == len(paths)
        return {problem.path: problem.message for problem in error.problems}
    return {}


def of_template(template: str | Data, policy: Policy = NO_EXCEPTIONS) -> dict[str, str]:
    """Return the refused paths below the template with their messages."""
    obj = yaml.safe_load(template) if isinstance(template, str) else template
    condition = {"type": "Done"}
    found = refused({"template": obj, "success": condition, "failure": condition}, policy)
    return {path.removeprefix("spec.trial.template."): why for path, why in found.items()}


def image(**keys: object) -> Data:
    return {"image": "train:1", "command": ["python", "train.py"], **keys}


HOSTILE: list[Change] = [
    *BASELINE_REFUSES,
    (f"{POD}.hostNetwork", "${x}", ""),
    (f"{POD}.volumes", [{"name": "root", "hostPath": {}}], "[0].hostPath"),
    (f"{POD}.HostNetwork", True, ""),
    (f"{POD}.ho\u017ftNetwork", True, ""),  # the long s, which Go reads as an s
    (f"{MAIN}.securityContext.capabilities.add", "${x}", ""),
    # Service accounts and their tokens.
    (f"{POD}.serviceAccountName", "admin", ""),
    (f"{POD}.serviceAccount", "admin", ""),
    (f"{POD}.serviceAccountName", "${x}", ""),
    (f"{POD}.automountServiceAccountToken", True, ""),
    (
        f"{POD}.volumes",
        [{"projected": {"sources": [{"serviceAccountToken": {"audience": "vault"}}]}}],
        "[0].projected.sources[0].serviceAccountToken",
    ),
    (
        f"{POD}.volumes",
        [{"projected": {"sources": [{"serviceAccountToken": BOTH_AUDIENCES}]}}],
        "[0].projected.sources[0].serviceAccountToken",
    ),
    (
        f"{POD}.volumes",
        [{"projected": {"sources": [{"secret": {}}, {"serviceAccountToken": {"path": "a"}}]}}],
        "[0].projected.sources[1].serviceAccountToken",
    ),
    # Other namespaces and nodes.
    ("metadata.namespace", "kube-system", ""),
    ("metadata.namespace", "${x}", ""),
    ("spec.template.metadata.namespace", "kube-system", ""),
    (
        f"{POD}.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution",
        [{"topologyKey": "kubernetes.io/hostname", "namespaces": ["vision", "kube-system"]}],
        "[0].namespaces",
    ),
    (
        f"{POD}.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution",
        [{"topologyKey": "kubernetes.io/hostname", "namespaceSelector": {}}],
        "[0].namespaceSelector",
    ),
    (f"{POD}.nodeName", "control-plane", ""),
    # What the controller sets.
    ("metadata.labels", {"tuner.dev/experiment": "theirs"}, ".tuner.dev/experiment"),
    ("metadata.annotations", {"tuner.dev/parameters": "{}"}, ".tuner.dev/parameters"),
    ("spec.template.metadata.labels", {"tuner.dev/uid": "theirs"}, ".tuner.dev/uid"),
    (
        "metadata.labels",
        {"app.kubernetes.io/managed-by": "tuner"},
        ".app.kubernetes.io/managed-by",
    ),
    ("metadata.labels", {"hostNetwork": True}, ".hostNetwork"),
    ("metadata.generateName", "x-", ""),
    ("metadata.ownerReferences", [{"kind": "Node", "name": "a", "uid": "1"}], ""),
    ("metadata.finalizers", ["example.org/never"], ""),
    ("spec.template.metadata.finalizers", ["example.org/never"], ""),
    ("spec.manualSelector", True, ""),
    # Objects in objects.
    ("items", [{"apiVersion": "v1", "kind": "Pod"}], "[0].kind"),
    (
        f"{POD}.extra",
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding"},
        ".kind",
    ),
]


@pytest.mark.parametrize(
    ("path", "value", "below"),
    HOSTILE,
    ids=[f"{path}{below}={json.dumps(value)[:40]}" for path, value, below in HOSTILE],
)
def test_a_template_is_refused_where_it_asks_for_more_than_an_ordinary_pod(
    path: str, value: object, below: str
) -> None:
    assert list(of_template(changed(path, value))) == [path + below]


OTHER_KINDS = {
    "pod": ("{apiVersion: v1, kind: Pod, spec: {containers: [{name: a}]}}", "kind"),
    "daemon set": ("{apiVersion: apps/v1, kind: DaemonSet, spec: {}}", "kind"),
    "role binding": ("{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding}", "kind"),
    "definition": (
        "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition}",
        "kind",
    ),
    "list": ("{apiVersion: v1, kind: List, items: []}", "kind"),
    "experiment": ("{apiVersion: tuner.dev/v1, kind: Experiment}", "kind"),
    "job of another group": ("{apiVersion: batch.example.org/v1, kind: Job}", "kind"),
    "placeholder": ("{apiVersion: batch/v1, kind: '${x}'}", "kind"),
    "placeholder of a version": ("{apiVersion: 'batch/${x}', kind: Job}", "kind"),
    "path of another namespace": (
        "{apiVersion: batch/v1/namespaces/kube-system, kind: Job}",
        "kind",
    ),
    "path upwards": ("{apiVersion: batch/.., kind: Job}", "kind"),
    "two spellings": ("{apiVersion: v1, kind: Pod, ApiVersion: batch/v1, Kind: Job}", "kind"),
    "two spellings, the allowed one first": (
        "{apiVersion: batch/v1, Kind: Job, kind: CronJob}",
        "kind",
    ),
    "two spellings of a kind": ("{apiVersion: batch/v1, kind: CronJob, Kind: Job}", "kind"),
}


@pytest.mark.parametrize(("template", "path"), OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_a_kind_that_the_platform_team_has_not_listed_is_refused(template: str, path: str) -> None:
    assert list(of_template(template)) == [path]


# By kinds that are allowed. Each is a part of their pods that is not a pod template.
IN_OPERATORS = {
    "a change of a TrainJob's pods": (
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        "{podTemplateOverrides: [{targetJobs: [{name: node}], spec: {serviceAccountName: admin}}]}",
        "spec.podTemplateOverrides[0].spec.serviceAccountName",
    ),
    "a patch of a TrainJob's runtime": (
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        "{runtimePatches: [{trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node,"
        " template: {spec: {template: {spec: {hostNetwork: true}}}}}]}}}}]}",
        "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.spec"
        ".template.spec.hostNetwork",
    ),
    "a worker of a PyTorchJob": (
        "kubeflow.org/v1",
        "PyTorchJob",
        "{pytorchReplicaSpecs: {Worker: {template: {spec: {containers: [], hostIPC: true}}}}}",
        "spec.pytorchReplicaSpecs.Worker.template.spec.hostIPC",
    ),
    "a job of a JobSet": (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "{replicatedJobs: [{template: {spec: {template: {spec: {nodeName: a}}}}}]}",
        "spec.replicatedJobs[0].template.spec.template.spec.nodeName",
    ),
    "the account of a Workflow's executor": (
        "argoproj.io/v1alpha1",
        "Workflow",
        "{executor: {serviceAccountName: admin}}",
        "spec.executor.serviceAccountName",
    ),
    "a patch of a Workflow's pods": (
        "argoproj.io/v1alpha1",
        "Workflow",
        "{podSpecPatch: '{\"hostPID\": true}'}",
        "spec.podSpecPatch",
    ),
    "a step that creates objects": (
        "argoproj.io/v1alpha1",
        "Workflow",
        "{templates: [{name: a, resource: {action: create, manifest: 'kind: Pod'}}]}",
        "spec.templates[0].resource.action",
    ),
    "a script of a Workflow": (
        "argoproj.io/v1alpha1",
        "Workflow",
        "{templates: [{script: {securityContext: {privileged: true}}}]}",
        "spec.templates[0].script.securityContext.privileged",
    ),
    "the pods of a PipelineRun": (
        "tekton.dev/v1",
        "PipelineRun",
        "{taskRunTemplate: {podTemplate: {volumes: [{name: a, hostPath: {path: /}}]}}}",
        "spec.taskRunTemplate.podTemplate.volumes[0].hostPath",
    ),
    "the account of a task": (
        "tekton.dev/v1beta1",
        "PipelineRun",
        "{taskRunSpecs: [{taskServiceAccountName: admin}]}",
        "spec.taskRunSpecs[0].taskServiceAccountName",
    ),
    "a pipeline from git": (
        "tekton.dev/v1",
        "PipelineRun",
        "{pipelineRef: {resolver: git, params: []}}",
        "spec.pipelineRef.resolver",
    ),
    "a pipeline from a registry": (
        "tekton.dev/v1beta1",
        "PipelineRun",
        "{pipelineRef: {name: a, bundle: registry.example/a}}",
        "spec.pipelineRef.bundle",
    ),
    "a task from a registry": (
        "tekton.dev/v1beta1",
        "PipelineRun",
        "{pipelineSpec: {tasks: [{taskRef: {name: a, bundle: registry.example/a}}]}}",
        "spec.pipelineSpec.tasks[0].taskRef.bundle",
    ),
    "a custom task": (
        "tekton.dev/v1",
        "PipelineRun",
        "{pipelineSpec: {tasks: [{taskSpec: {apiVersion: example.org/v1, kind: Any, spec: {}}}]}}",
        "spec.pipelineSpec.tasks[0].taskSpec.kind",
    ),
    "the autoscaler of a RayJob": (
        "ray.io/v1",
        "RayJob",
        "{rayClusterSpec: {enableInTreeAutoscaling: true}}",
        "spec.rayClusterSpec.enableInTreeAutoscaling",
    ),
    "the ingress of a RayJob": (
        "ray.io/v1",
        "RayJob",
        "{rayClusterSpec: {headGroupSpec: {enableIngress: true}}}",
        "spec.rayClusterSpec.headGroupSpec.enableIngress",
    ),
    "a Service of a RayJob": (
        "ray.io/v1",
        "RayJob",
        "{rayClusterSpec: {headGroupSpec: {headService: {spec: {externalIPs: [10.0.0.1]}}}}}",
        "spec.rayClusterSpec.headGroupSpec.headService",
    ),
    "the Service of a RayJob": (
        "ray.io/v1",
        "RayJob",
        "{rayClusterSpec: {headGroupSpec: {serviceType: LoadBalancer}}}",
        "spec.rayClusterSpec.headGroupSpec.serviceType",
    ),
}


@pytest.mark.parametrize(
    ("version", "kind", "spec", "path"), IN_OPERATORS.values(), ids=IN_OPERATORS
)
def test_parts_of_pods_are_checked_in_kinds_of_operators(
    version: str, kind: str, spec: str, path: str
) -> None:
    template = {"apiVersion": version, "kind": kind, "spec": yaml.safe_load(spec)}
    if kind == "PipelineRun":
        template["spec"].setdefault("pipelineSpec", {"tasks": []})
    assert list(of_template(template, ALL_KINDS)) == [path]


ALL_KINDS = Policy(kinds=frozenset(f"{preset.group}/{preset.kind}" for preset in PRESETS))


HARMLESS = [
    *BASELINE_ACCEPTS,
    (f"{POD}.serviceAccountName", "default"),
    (f"{POD}.serviceAccountName", ""),
    (f"{POD}.automountServiceAccountToken", False),
    (f"{POD}.volumes", [{"projected": {"sources": [{"secret": {"name": "a"}}]}}]),
    (f"{POD}.volumes", [{"projected": {"sources": [{"serviceAccountToken": FOR_TUNER}]}}]),
    (f"{POD}.affinity.podAffinity.x", [{"namespaces": ["vision"], "namespaceSelector": None}]),
    (f"{POD}.topologySpread", [{"labelSelector": {"matchLabels": {"tuner.dev/uid": "x"}}}]),
    (f"{POD}.nodeSelector", {"nodeName": "fast"}),
    (f"{MAIN}.env", [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]),
    (f"{MAIN}.env", [{"name": "P", "valueFrom": {"resourceFieldRef": {"resource": "cpu"}}}]),
    ("metadata.namespace", "vision"),
    ("metadata.labels", {"namespace": "other", "team": "vision"}),
]


@pytest.mark.parametrize(
    ("path", "value"),
    HARMLESS,
    ids=[f"{path}={json.dumps(value)[:40]}" for path, value in HARMLESS],
)
def test_what_ordinary_pods_may_have_is_not_refused(path: str, value: object) -> None:
    assert of_template(changed(path, value)) == {}


def test_the_platform_team_allows_accounts_and_kinds_by_name() -> None:
    training = job() | {"apiVersion": "example.org/v1", "kind": "Training"}
    (why,) = of_template(training).values()
    assert why == (
        "an experiment may not create example.org/Training here, only batch/Job; the platform "
        "team can allow the kind with the chart's value controller.kinds"
    )
    assert of_template(training, Policy(kinds=frozenset({"example.org/Training"}))) == {}

    template = changed(f"{POD}.serviceAccountName", "trainer")
    (why,) = of_template(template).values()
    assert why == (
        "'trainer' is refused: trials here may only use the service account default; "
        "omit it; the platform team can allow the service account with the chart's value "
        "controller.allowedServiceAccounts"
    )
    assert of_template(template, Policy(frozenset({"trainer"}))) == {}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            f"{POD}.hostNetwork",
            True,
            "true is refused: the pod would share the network of its node; omit it",
        ),
        (
            f"{POD}.securityContext.seccompProfile.type",
            "Unconfined",
            "'Unconfined' is refused: system calls must stay filtered; write RuntimeDefault, or "
            "omit it",
        ),
        (
            "metadata.namespace",
            "kube-system",
            "'kube-system' is refused: an experiment stays in its own namespace, vision; omit it",
        ),
    ],
)
def test_a_refusal_says_the_value_the_rule_and_the_cure(
    path: str, value: object, message: str
) -> None:
    assert of_template(changed(path, value)) == {path: message}


# Keys of the file


@pytest.mark.parametrize(
    ("trial", "path"),
    [
        (image(serviceAccount="admin"), "spec.trial.serviceAccount"),
        (image(files=["train.py"]), "spec.trial.files"),
        (
            image(command=["python", "/tuner/files/objective.pyz"]),
            "spec.trial.command",
        ),
        (
            image(
                affinity={
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"topologyKey": "zone", "namespaceSelector": {}}
                        ]
                    }
                }
            ),
            "spec.trial.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]"
            ".namespaceSelector",
        ),
        (
            image(
                annotations={"container.apparmor.security.beta.kubernetes.io/trial": "unconfined"}
            ),
            "spec.trial.annotations.container.apparmor.security.beta.kubernetes.io/trial",
        ),
        (
            {
                "template": job(),
                "annotations": {
                    "container.apparmor.security.beta.kubernetes.io/main": "unconfined"
                },
            },
            "spec.trial.annotations.container.apparmor.security.beta.kubernetes.io/main",
        ),
    ],
    ids=["serviceAccount", "files", "function", "affinity", "annotations", "beside a template"],
)
def test_a_key_is_refused_once_at_its_place_in_the_file(trial: Data, path: str) -> None:
    final = {"command": ["python", "final.py"]}
    sections: Data = {} if "template" in trial else {"final": final}
    assert list(refused(trial, NO_EXCEPTIONS, **sections)) == [path]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": None}, "spec.trial.image: is missing; a trial on a cluster needs the image"),
        ({"workingDir": "src"}, "spec.trial.workingDir: 'src' is relative, and a container needs"),
        ({"parametersFile": "json"}, "spec.trial.parametersFile: a pod does not see files of"),
        ({"labels": {"tuner.dev/uid": "x"}}, "spec.trial.labels.tuner.dev/uid: names of tuner"),
        ({"volumes": {"a": {"mount": "/a", "hostPath": "/"}}}, "spec.trial.volumes.a.hostPath: "),
    ],
)
def test_what_no_cluster_can_run_is_refused_when_the_file_is_read(
    change: Data, message: str
) -> None:
    trial = {key: value for key, value in image(**change).items() if value is not None}
    with pytest.raises(SpecErrors) as caught:
        refused(trial)
    assert message in str(caught.value)


def test_what_no_key_is_known_for_is_refused_with_its_place_in_the_object() -> None:
    volumes = {"data": {"mount": "/data", "emptyDir": {"hostPath": "/"}}}
    assert refused(image(volumes=volumes)) == {
        "spec.trial": "spec.template.spec.volumes[0].emptyDir.hostPath of its object: '/' is "
        "refused: a pod must not access the disk of its node; use persistentVolumeClaim, nfs or "
        "emptyDir"
    }


def test_an_experiment_with_labels_of_the_controller_is_refused_when_it_is_read() -> None:
    data = experiment(image())
    data["metadata"]["labels"] = {"tuner.dev/experiment": "theirs"}
    with pytest.raises(SpecErrors, match=r"metadata\.labels\.tuner\.dev/experiment: names of"):
        read(json.dumps(data), source="x", is_file=False)


# What is not refused


def test_every_key_of_a_trial_makes_ordinary_pods() -> None:
    trial = image(
        env={"TOKEN": {"secret": "hub/token"}},
        resources={"cpu": 1, "memory": "1Gi", "gpu": 1},
        shm="1Gi",
        volumes={
            "data": {"mount": "/data", "claim": "data", "readOnly": True},
            "share": {"mount": "/share", "nfs": {"server": "nfs", "path": "/"}},
        },
        checkpoints={"claim": "checkpoints"},
        serviceAccount="trainer",
        queue="team-a",
        distributed={"workers": 2},
        workingDir="/app",
        readOnlyRootFilesystem=False,
    )
    policy = Policy(frozenset({"trainer"}))
    final = {"command": ["python", "final.py"]}
    assert refused(trial, policy, metrics={"dbManager": True}, final=final) == {}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_example_with_an_image_runs_where_its_kind_is_allowed(path: Path) -> None:
    found = read_path(path, overrides=["spec.runtime=kubernetes"])
    # The executor of Argo needs an account of its own.
    accounts = {"workflow"} if path.stem == "workflow" else set()
    check_policy(found.spec, Policy(frozenset(accounts), ALL_KINDS.kinds))


def test_the_template_of_another_kind_in_the_documentation_runs_where_it_is_allowed() -> None:
    page = (ROOT / "docs" / "operators.md").read_text()
    (block,) = [part for part in page.split("```")[1::2] if "template:" in part]
    trial = yaml.safe_load(block.removeprefix("yaml\n"))["trial"]
    trial["template"]["spec"] = job()["spec"]
    assert refused(trial, Policy(kinds=frozenset({"example.org/Training"}))) == {}
    assert list(refused(trial)) == ["spec.trial.template.kind"]
