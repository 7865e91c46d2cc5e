"""Kinds of objects that an attempt can be: the table of what is known of each,
and how an object is read by it.

A preset is found by API group and kind; the version decides where two operators share both. What
the file itself sets (`success`, `failure`, `primary`) is kept in an annotation of the object and
takes precedence, so that a controller without the file can follow the object. Only `kind_of`,
`served_pod_field` and `served` ask the cluster.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from controller.kube.errors import ApiNotFound
from controller.kube.objects import AnyObject, Raw
from controller.runtime.kubernetes.labels import (
    ARGO_GROUP,
    COMPLETION_INDEX,
    JOB_NAME,
    JOBSET_GROUP,
    KUBEFLOW_GROUP,
    KUEUE_GROUP,
    RAY_GROUP,
    RAY_NODE_TYPE,
    REPLICATED_JOB,
    REPLICATED_JOB_INDEX,
    STATUS_RULES,
    TEKTON_GROUP,
    TRAINER_GROUP,
    TRAINING_REPLICA,
    TRAINING_ROLE,
    UID,
    VOLCANO_GROUP,
    VOLCANO_TASK,
    VOLCANO_TASK_INDEX,
    annotation,
    queue_of,
)
from controller.runtime.kubernetes.pod_status import condition
from suggest.nesting import load_json

if TYPE_CHECKING:
    from controller.kube.client import Kind, KubernetesClient

Scalar: TypeAlias = str | int | float | bool

KEPT_S = 7 * 24 * 3600  # after an object's end: long enough for a detached controller to come back
_RAY_KEPT_S = 10  # the cluster of a RayJob, which holds GPUs: until the end of its pods was seen


@dataclass(frozen=True, slots=True)
class ByType:
    """An entry of `status.conditions`."""

    type: str
    status: str = "True"

    def __str__(self) -> str:
        if self.status == "True":
            return f"{{type: {self.type}}}"
        return f"{{type: {self.type}, status: {self.status}}}"


@dataclass(frozen=True, slots=True)
class ByPath:
    """A field of the object, by its keys from the root, joined by dots."""

    path: str
    equals: Scalar

    def __str__(self) -> str:
        return f"{{path: {self.path}, equals: {self.equals}}}"


StatusCondition: TypeAlias = ByType | ByPath


@dataclass(frozen=True, slots=True)
class PrimaryPod:
    """The pod and container whose log is the attempt's log.

    Attributes:
        labels: labels or annotations of the pod; {} selects the first pod.
        container: "" selects the trial's container if there is one, else the first.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    container: str = ""


@dataclass(frozen=True, slots=True)
class Preset:
    """What is known about a kind.

    Attributes:
        operator: the program that creates its pods, in the version that this preset was written
            for.
        success: conditions that all hold once an object has succeeded.
        failure: conditions, one of which holds once an object has failed.
        suspended: the condition that holds while an object is suspended; None: the kind has none.
        suspend: the field by which Kueue suspends it; "": Kueue does not know the kind.
        defaults: values of fields that the user left out, by path.
        primary_pod: the pod whose log is the attempt's log, derived from the object as the server
            returns it.
        primary_template: the pod template of that pod; None: the object does not have it.
        programs: how many of its pods may be the one that runs the program; with several, the file
            names one.
        templates: the pod templates of an object, or the mappings with `metadata` and `spec` that
            change them, added where they are missing. Labels and affinity go there.
        pod_metadata: the key of the labels in `templates`.
        pod_spec: the path of the affinity's section in `templates`; "": it is beside the
            labels.
        pod_fields: the fields of `spec` that change pod templates which the object does not have
            itself, newest first. A cluster has one of them, or none, by its version of the
            operator.
        containers: the containers that get the trial's environment.
        between: the kind between the object and the Jobs or pods that events are about: version,
            plural, kind.
        policy_beside: `restartPolicy` is a field beside the pod template, not in it.
        restarts: containers are restarted by default.
        unfit: why an object of this kind cannot be a trial, with the cure; "" if it can.
    """

    api_version: str
    kind: str
    operator: str
    success: tuple[StatusCondition, ...]
    failure: tuple[StatusCondition, ...] = (ByType("Failed"),)
    suspended: StatusCondition | None = ByType("Suspended")
    suspend: str = "spec.suspend"
    defaults: Mapping[str, Scalar] = field(default_factory=dict)
    primary_pod: Callable[[Raw], PrimaryPod] = lambda obj: PrimaryPod()
    primary_template: Callable[[Raw], Raw | None] = lambda obj: _template_at(obj, "spec.template")
    programs: Callable[[Raw], int] = lambda obj: 1
    templates: Callable[[Raw], list[Raw]] = lambda obj: list(pod_templates(obj))
    pod_metadata: str = "metadata"
    pod_spec: str = "spec"
    containers: Callable[[Raw], list[Raw]] = lambda obj: list(_containers(obj))
    pod_fields: tuple[str, ...] = ()
    between: tuple[str, str, str] | None = None
    policy_beside: bool = False
    restarts: bool = False
    unfit: Callable[[Raw], str] = lambda obj: ""

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]


_SUBMITTER = "ray-job-submitter"
# A TrainJob's pod templates are in its runtime, on the cluster. Trainer 2.1 changes them by
# podTemplateOverrides, later versions by runtimePatches, under the same apiVersion. 2.0 has no
# field for the labels of pods.
_PATCHES, _OVERRIDES = POD_FIELDS = ("runtimePatches", "podTemplateOverrides")
_MANAGER = "tuner.dev/controller"  # of our entry of runtimePatches
_TRAINS = "node"  # the job of a runtime that runs the program

# Whose log is read


def _first_of_job_set(obj: Raw) -> PrimaryPod:
    """The coordinator, or the first pod of the first replicated job."""
    job, pod = 0, 0
    match obj.get("spec"):
        case {"coordinator": {"replicatedJob": str(name)} as coordinator}:
            job, pod = coordinator.get("jobIndex") or 0, coordinator.get("podIndex") or 0
        case {"replicatedJobs": [{"name": str(name)}, *_]}:
            pass
        case _:
            return PrimaryPod()
    labels = {REPLICATED_JOB: name, REPLICATED_JOB_INDEX: str(job)}
    groups = [
        group for group in mappings(at(obj, "spec.replicatedJobs")) if group.get("name") == name
    ]
    if not groups or at(groups[0], "template.spec.completionMode") != "NonIndexed":
        labels[COMPLETION_INDEX] = str(pod)
    return PrimaryPod(labels)


def _rank_0_of_train_job(obj: Raw) -> PrimaryPod:
    """Select the job `node`, or the launcher where the file changes it, as for MPI runtimes."""
    name = "launcher" if "launcher" in _overridden(obj) | _patched(obj).keys() else _TRAINS
    return PrimaryPod({REPLICATED_JOB: name, COMPLETION_INDEX: "0"}, "node")


def _submitter(obj: Raw) -> PrimaryPod:
    """Select the submitter: it prints the log of the entrypoint, which runs on the head node."""
    if at(obj, "spec.submissionMode") == "SidecarMode":
        return PrimaryPod({RAY_NODE_TYPE: "head"}, _SUBMITTER)
    return PrimaryPod({JOB_NAME: str(at(obj, "metadata.name"))})


def _first_task(obj: Raw) -> PrimaryPod:
    match obj.get("spec"):
        case {"tasks": [{"name": str(name)}, *_]}:
            return PrimaryPod({VOLCANO_TASK: name, VOLCANO_TASK_INDEX: "0"})
    return PrimaryPod({VOLCANO_TASK_INDEX: "0"})


def primary_template(obj: Raw, labels: Mapping[str, str]) -> Raw | None:
    """Return the primary pod's template, by the file's labels of it; None if it is unclear."""
    templates = list(pod_templates(obj))
    marked = [each for each in templates if labels and labels.items() <= _labels_in(each).items()]
    if len(marked) == 1:
        return marked[0]
    preset = preset_of(obj)
    if preset is None:
        return templates[0] if len(templates) == 1 and not labels else None
    if (role := labels.get(TRAINING_REPLICA)) is not None:
        return next(_replicas(obj, role), None)
    return preset.primary_template(obj) if labels in ({}, preset.primary_pod(obj).labels) else None


def _labels_in(template: Raw) -> Mapping[str, Any]:
    labels = at(template, "metadata.labels")
    return labels if isinstance(labels, dict) else {}


def _template_at(obj: Raw, path: str) -> Raw | None:
    template = at(obj, path)
    return template if is_pod_template(template) else None


def _replicas(obj: Raw, *roles: str) -> Iterator[Raw]:
    """Yield the pod templates of these roles, in this order, of a kind of the Training Operator."""
    spec = obj.get("spec")
    fields = spec if isinstance(spec, dict) else {}
    groups = [value for key, value in fields.items() if key.endswith("ReplicaSpecs")]
    for role in roles:
        for group in groups:
            for name in group if isinstance(group, dict) else ():
                template = at(group[name], "template")
                if name.lower() == role.lower() and is_pod_template(template):
                    yield template


def _template_in_job_set(obj: Raw) -> Raw | None:
    name = _first_of_job_set(obj).labels.get(REPLICATED_JOB)
    jobs = [job for job in mappings(at(obj, "spec.replicatedJobs")) if job.get("name") == name]
    return _template_at(jobs[0], "template.spec.template") if jobs else None


def _head_template(obj: Raw) -> Raw | None:
    """Return the template of a RayJob's head, which runs the entrypoint.

    None: another pod prints its output.
    """
    beside = at(obj, "spec.submissionMode") == "SidecarMode"
    return _template_at(obj, "spec.rayClusterSpec.headGroupSpec.template") if beside else None


# How labels and the environment reach the pods


def pod_templates(node: object) -> Iterator[Raw]:
    """Yield every pod template in an object of any kind: a mapping whose spec has containers."""
    for value in _parts(node):
        if is_pod_template(value):
            yield value
        else:
            yield from pod_templates(value)


def _parts(node: object) -> Iterable[Any]:
    """Return what a list or mapping contains, without changes of templates on the cluster."""
    if isinstance(node, dict):
        return [value for key, value in node.items() if key not in POD_FIELDS]
    return node if isinstance(node, list) else ()


def is_pod_template(template: object) -> bool:
    match template:
        case {"spec": {"containers": list()}}:
            return True
    return False


def _containers(obj: Raw) -> Iterator[Raw]:
    for template in pod_templates(obj):
        for key in ("initContainers", "containers"):
            yield from mappings(template["spec"].get(key))


def _changed_templates(obj: Raw) -> list[Raw]:
    """Return the changes of a TrainJob's pod templates, by the field that it has."""
    return _overrides(obj) if at(obj, f"spec.{_OVERRIDES}") is not None else _patches(obj)


def _overrides(obj: Raw) -> list[Raw]:
    overrides = list(mappings(at(obj, f"spec.{_OVERRIDES}")))
    if _TRAINS not in _overridden(obj):
        overrides.append({"targetJobs": [{"name": _TRAINS}]})
        put(obj, f"spec.{_OVERRIDES}", overrides)
    return overrides


def _overridden(obj: Raw) -> set[str]:
    """Return the jobs of its runtime that a TrainJob changes by podTemplateOverrides."""
    names: set[str] = set()
    for override in mappings(at(obj, f"spec.{_OVERRIDES}")):
        names |= {str(job.get("name")) for job in mappings(override.get("targetJobs"))}
    return names


def _patches(obj: Raw) -> list[Raw]:
    jobs = _patched(obj)
    if _TRAINS not in jobs:
        job: Raw = {"name": _TRAINS}
        ours: Raw = {"manager": _MANAGER}
        put(ours, _PATCHED_JOBS, [job])
        put(obj, f"spec.{_PATCHES}", [*mappings(at(obj, f"spec.{_PATCHES}")), ours])
        jobs[_TRAINS] = [job]
    patches = chain.from_iterable(jobs.values())
    return [below(below(below(job, "template"), "spec"), "template") for job in patches]


_PATCHED_JOBS = "trainingRuntimeSpec.template.spec.replicatedJobs"


def _patched(obj: Raw) -> dict[str, list[Raw]]:
    """Return the jobs of its runtime that a TrainJob changes by runtimePatches, by name.

    Kueue adds an entry of its own when it admits the object, which does not select the log.
    """
    jobs: dict[str, list[Raw]] = {}
    for patch in mappings(at(obj, f"spec.{_PATCHES}")):
        if str(patch.get("manager")).startswith(f"{KUEUE_GROUP}/"):
            continue
        for job in mappings(at(patch, _PATCHED_JOBS)):
            jobs.setdefault(str(job.get("name")), []).append(job)
    return jobs


_ARGO_PODS = ("container", "script", "containerSet")


def pod_steps(obj: AnyObject) -> list[Raw]:
    """Return an Argo Workflow's templates that are pods, or a Tekton PipelineRun's tasks."""
    if obj.get("kind") == "PipelineRun":
        tasks = mappings(at(obj, "spec.pipelineSpec.tasks"))
        return list(mappings([task.get("taskSpec") for task in tasks]))
    templates = mappings(at(obj, "spec.templates")) if obj.get("kind") == "Workflow" else ()
    return [template for template in templates if any(key in template for key in _ARGO_PODS)]


def reporting_step(obj: AnyObject, labels: Mapping[str, str]) -> Raw | None:
    """Return the template of a Workflow whose pod reports the metrics; None if it is not known."""
    steps = pod_steps(obj) if obj.get("kind") == "Workflow" else []
    named = [step for step in steps if labels.items() <= _labels_of_step(step).items()]
    return named[0] if len(named) == 1 else None


def _labels_of_step(step: Raw) -> Raw:
    return at(step, "metadata.labels") or {}


def containers_of_step(step: Raw) -> Iterator[Raw]:
    """Yield the containers of a pod of a Workflow or a PipelineRun, except init containers."""
    yield from mappings([step.get("container"), step.get("script")])
    yield from mappings(at(step, "containerSet.containers"))
    yield from mappings(step.get("steps"))
    yield from mappings(step.get("sidecars"))


def containers_in(pod: Raw) -> list[Raw]:
    """Return the containers of a pod's spec, or of a step, except init containers."""
    return list(pod["containers"] if "containers" in pod else containers_of_step(pod))


def _step_containers(obj: Raw) -> Iterator[Raw]:
    for step in pod_steps(obj):
        yield from containers_of_step(step)
        yield from mappings(step.get("initContainers"))


def _tasks(obj: Raw) -> int:
    """Return how many pods a PipelineRun has; 0 if its pipeline is on the cluster."""
    return sum(
        len(list(mappings(at(obj, f"spec.pipelineSpec.{key}")))) for key in ("tasks", "finally")
    )


def _of_tekton(version: str, pod_template: str) -> Preset:
    """Return the preset of a PipelineRun. Tekton gives its labels to all of its pods."""
    return Preset(
        f"{TEKTON_GROUP}/{version}",
        "PipelineRun",
        "Tekton Pipelines 1.0",
        (ByType("Succeeded"),),
        (ByType("Succeeded", "False"),),
        suspended=None,
        suspend="",
        programs=_tasks,
        templates=lambda obj: [obj],
        pod_spec=pod_template,
        containers=lambda obj: list(_step_containers(obj)),
    )


def _unfit_workflow(obj: Raw) -> str:
    if pod_steps(obj) or at(obj, "spec.workflowTemplateRef"):
        return ""
    return (
        "no template of this Workflow runs a pod; write one with container, script or containerSet"
    )


def _with_submitter(obj: Raw) -> list[Raw]:
    """Return a RayJob's templates with a submitter: KubeRay's default one would lack our labels."""
    spec = below(obj, "spec")
    if spec.get("submissionMode") in (None, "K8sJobMode"):
        if spec.get("submitterPodTemplate") is None:
            heads = at(obj, "spec.rayClusterSpec.headGroupSpec.template.spec.containers")
            container = {
                "name": _SUBMITTER,
                "image": next(mappings(heads), {}).get("image", ""),
                "resources": {
                    "requests": {"cpu": "500m", "memory": "200Mi"},
                    "limits": {"cpu": "1", "memory": "1Gi"},
                },
            }
            spec["submitterPodTemplate"] = {"spec": {"containers": [container]}}
        default(spec, "submitterPodTemplate.spec.restartPolicy", "Never")
        # a second submitter would print all lines again
        default(spec, "submitterConfig.backoffLimit", 0)
    if not {"shutdownAfterJobFinishes", "deletionStrategy", "clusterSelector"} & spec.keys():
        spec |= {"shutdownAfterJobFinishes": True, "ttlSecondsAfterFinished": _RAY_KEPT_S}
    return list(pod_templates(obj))


def _unfit_ray_job(obj: Raw) -> str:
    mode = at(obj, "spec.submissionMode")
    if mode not in (None, "K8sJobMode", "SidecarMode"):
        return (
            f"with submissionMode: {mode} no pod prints the output of the entrypoint; write "
            f"K8sJobMode"
        )
    if at(obj, "spec.clusterSelector") and at(obj, "spec.submitterPodTemplate") is None:
        return (
            "a RayJob with a clusterSelector does not name its image; write "
            "spec.submitterPodTemplate"
        )
    return ""


# The table

_TTL = {"spec.ttlSecondsAfterFinished": KEPT_S}
_SUCCEEDED = (ByType("Succeeded"),)
# Without cleanPodPolicy workers run on when the master has ended, and hold their GPUs until the
# object is removed.
_RUN_POLICY: Mapping[str, Scalar] = {
    "spec.runPolicy.cleanPodPolicy": "Running",
    "spec.runPolicy.ttlSecondsAfterFinished": KEPT_S,
}
_RUN_POLICY_SUSPEND = "spec.runPolicy.suspend"


def _of_training_operator(
    kind: str,
    container: str,
    *roles: str,
    suspend: str = _RUN_POLICY_SUSPEND,
    restarts: bool = False,
) -> Preset:
    """The operator marks the first worker as the master where there is no master or chief."""
    return Preset(
        f"{KUBEFLOW_GROUP}/v1",
        kind,
        "Training Operator 1.9",
        _SUCCEEDED,
        suspend=suspend,
        defaults=_RUN_POLICY,
        primary_pod=lambda obj: PrimaryPod({TRAINING_ROLE: "master"}, container),
        policy_beside=True,
        restarts=restarts,
        primary_template=lambda obj: next(_replicas(obj, *roles), None),
    )


JOB = Preset("batch/v1", "Job", "Kubernetes", (ByType("Complete"),), defaults=_TTL)
PRESETS = (
    JOB,
    Preset(
        f"{JOBSET_GROUP}/v1alpha2",
        "JobSet",
        "JobSet 0.10 to 0.12",
        (ByType("Completed"),),
        defaults=_TTL,
        primary_pod=_first_of_job_set,
        primary_template=_template_in_job_set,
    ),
    _of_training_operator("PyTorchJob", "pytorch", "Master", "Worker", restarts=True),
    _of_training_operator("TFJob", "tensorflow", "Chief", "Master", "Worker"),
    _of_training_operator("XGBoostJob", "xgboost", "Master", "Worker"),
    # Kueue's MPIJob is the MPI Operator's
    _of_training_operator("MPIJob", "mpi", "Launcher", suspend=""),
    # Its TTL would delete the launcher alone; its launcher is a Job,
    # whose default is six more tries.
    Preset(
        f"{KUBEFLOW_GROUP}/v2beta1",
        "MPIJob",
        "MPI Operator 0.6",
        _SUCCEEDED,
        suspend=_RUN_POLICY_SUSPEND,
        defaults={"spec.runPolicy.cleanPodPolicy": "Running", "spec.runPolicy.backoffLimit": 0},
        primary_pod=lambda obj: PrimaryPod({TRAINING_ROLE: "launcher"}),
        policy_beside=True,
        restarts=True,
        primary_template=lambda obj: next(_replicas(obj, "Launcher"), None),
    ),
    Preset(
        f"{TRAINER_GROUP}/v1alpha1",
        "TrainJob",
        "Trainer 2.1 to 2.3",
        (ByType("Complete"),),
        primary_pod=_rank_0_of_train_job,
        templates=_changed_templates,
        pod_fields=POD_FIELDS,
        containers=lambda obj: [below(below(obj, "spec"), "trainer")],
        between=(f"{JOBSET_GROUP}/v1alpha2", "jobsets", "JobSet"),
    ),
    # jobStatus alone is not enough: it is SUCCEEDED before the submitter has printed the last
    # lines, and FAILED also when KubeRay is about to try again.
    Preset(
        f"{RAY_GROUP}/v1",
        "RayJob",
        "KubeRay 1.5",
        (ByPath("status.jobDeploymentStatus", "Complete"), ByPath("status.jobStatus", "SUCCEEDED")),
        (
            ByPath("status.jobDeploymentStatus", "Failed"),
            ByPath("status.jobDeploymentStatus", "ValidationFailed"),
            ByPath("status.jobStatus", "STOPPED"),
        ),
        suspended=ByPath("status.jobDeploymentStatus", "Suspended"),
        primary_pod=_submitter,
        templates=_with_submitter,
        between=(f"{RAY_GROUP}/v1", "rayclusters", "RayCluster"),
        unfit=_unfit_ray_job,
        primary_template=_head_template,
    ),
    # An aborted Job may be resumed by hand; an abort by a policy, after a pod has failed, is final.
    Preset(
        f"{VOLCANO_GROUP}/v1alpha1",
        "Job",
        "Volcano 1.9",
        (ByPath("status.state.phase", "Completed"),),
        tuple(ByPath("status.state.phase", phase) for phase in ("Failed", "Terminated", "Aborted")),
        suspended=None,
        suspend="",
        defaults=_TTL,
        primary_pod=_first_task,
        restarts=True,
        primary_template=lambda obj: next(pod_templates(at(obj, "spec.tasks")), None),
    ),
    # podMetadata labels all pods, also those of a WorkflowTemplate. Which step is the program, only
    # the file can tell.
    Preset(
        f"{ARGO_GROUP}/v1alpha1",
        "Workflow",
        "Argo Workflows 3.6",
        (ByPath("status.phase", "Succeeded"),),
        (ByPath("status.phase", "Failed"), ByPath("status.phase", "Error")),
        suspended=None,
        suspend="",
        defaults={"spec.ttlStrategy.secondsAfterCompletion": KEPT_S},
        primary_pod=lambda obj: PrimaryPod({}, "main"),
        programs=lambda obj: len(pod_steps(obj)),
        templates=lambda obj: [below(obj, "spec")],
        pod_metadata="podMetadata",
        pod_spec="",
        containers=lambda obj: list(_step_containers(obj)),
        unfit=_unfit_workflow,
    ),
    _of_tekton("v1beta1", "spec.podTemplate"),
    _of_tekton("v1", "spec.taskRunTemplate.podTemplate"),
)


def preset_of(obj: AnyObject) -> Preset | None:
    """Return the preset of the object's group and kind: of its version, else the newest.

    The newest preset comes last.
    """
    return _preset(str(obj.get("apiVersion", "batch/v1")), str(obj.get("kind", "Job")))


@lru_cache(maxsize=64)  # each turn asks several times for each attempt
def _preset(version: str, kind: str) -> Preset | None:
    group = version.rpartition("/")[0]
    presets = [preset for preset in PRESETS if (preset.group, preset.kind) == (group, kind)]
    return next(
        (preset for preset in presets if preset.api_version == version),
        presets[-1] if presets else None,
    )


def foreign_version(obj: AnyObject) -> str:
    """Return a warning if the preset was written for another version of the kind; "" otherwise."""
    preset, version = preset_of(obj), obj.get("apiVersion")
    if preset is None or preset.api_version == version:
        return ""
    versions = " and ".join(
        f"{known.api_version} ({known.operator})"
        for known in PRESETS
        if (known.group, known.kind) == (preset.group, preset.kind)
    )
    return (
        f"tuner knows {preset.kind} of {versions}, and treats {version} like it; "
        "if its status or labels differ, set spec.trial.success, failure and primary"
    )


# Reading an object


@dataclass(frozen=True, slots=True)
class StatusRules:
    """The conditions and primary pod by which an object is read: see Preset and PrimaryPod."""

    success: tuple[StatusCondition, ...]
    failure: tuple[StatusCondition, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    container: str = ""

    def succeeded(self, obj: AnyObject) -> AnyObject | None:
        """Return the condition of success, with any reason, message and times; None: no success."""
        met = [matching_condition(obj, expected) for expected in self.success]
        return met[0] if None not in met else None

    def failed(self, obj: AnyObject) -> AnyObject | None:
        """Return the condition of failure, in the same form; None: not failed."""
        met = (matching_condition(obj, expected) for expected in self.failure)
        return next((condition for condition in met if condition is not None), None)


_JOB_RULES = StatusRules(JOB.success, JOB.failure)


def status_rules_of(obj: AnyObject | None) -> StatusRules:
    """Return an object's rules: its annotation's, then its preset's; by default a Job's."""
    if obj is None:
        return _JOB_RULES
    rules = _json_object(str(annotation(obj, STATUS_RULES) or "{}"))
    preset = preset_of(obj) or JOB
    primary_pod, primary = preset.primary_pod(dict(obj)), rules.get("primary") or {}
    success, failure = _condition(rules.get("success")), _condition(rules.get("failure"))
    return StatusRules(
        preset.success if success is None else (success,),
        preset.failure if failure is None or failure in preset.failure else (failure,),
        primary.get("labels") or primary_pod.labels,
        primary.get("container") or primary_pod.container,
    )


def matching_condition(obj: AnyObject, expected: StatusCondition) -> AnyObject | None:
    """Return the condition that holds, or the mapping with the field; None if it does not hold."""
    match expected:
        case ByType(kind, status):
            actual = condition(obj, kind)
            holds = actual is not None and actual.get("status") == status
            return actual if holds else None
        case ByPath(path, equals):
            above, _, key = path.rpartition(".")
            beside = at(obj, above) if above else obj
            if not isinstance(beside, Mapping):
                return None
            value = beside.get(key)
            same = isinstance(value, bool) == isinstance(equals, bool) and value == equals
            return beside if same else None


def is_suspended(obj: AnyObject) -> bool:
    """Whether the object is suspended, by its field or its condition.

    The operator sets the condition later than Kueue sets the field.
    """
    preset = preset_of(obj) or JOB
    suspend = at(obj, preset.suspend) if preset.suspend else None
    if suspend is not None:
        return suspend is True
    return preset.suspended is not None and matching_condition(obj, preset.suspended) is not None


def lost_labels(obj: AnyObject) -> str:
    """Return why the pods of this object cannot be found, with the cure; "" if they can.

    A controller that writes an object back as an earlier version of its kind drops fields.
    """
    preset = preset_of(obj)
    if preset is None or not preset.pod_fields:
        return ""
    # `templates` adds those that are missing.
    if any(UID in _labels_in(each) for each in preset.templates(copy.deepcopy(dict(obj)))):
        return ""
    kind, where = obj.get("kind"), " or ".join(preset.pod_fields)
    cure = "see its metadata.managedFields for who changed it"
    if queue_of(obj):
        cause = f"when it admits a {kind} of Trainer 2.2 or later"
        cure = f"Kueue before 0.17 drops them {cause}: upgrade it"
    return (
        f"its {kind} has lost the labels of its pods, which are in spec.{where}, so Tuner does "
        f"not find them; {cure}"
    )


def is_over(obj: AnyObject) -> bool:
    """Whether the object says that it has ended, which its pods may show later."""
    rules = status_rules_of(obj)
    return rules.succeeded(obj) is not None or rules.failed(obj) is not None


def over(obj: AnyObject) -> bool:
    """Whether the object has ended, or is being deleted."""
    return "deletionTimestamp" in obj["metadata"] or is_over(obj)


# What a file must say


def missing_conditions(manifest: AnyObject, keys: Collection[str] = ()) -> str:
    """Return what a file with this template must add; "" if nothing.

    `keys`: those beside the template that it has.
    """
    absent = [key for key in ("success", "failure") if key not in keys]
    preset, kind = preset_of(manifest), manifest.get("kind")
    if preset is not None and preset.programs(dict(manifest)) != 1 and "primary" not in keys:
        return (
            f"which pod of this {kind} reports the metrics? add primary: {{labels: {{NAME: "
            "VALUE}} with a label that metadata.labels of its template has"
        )
    if preset is not None or not absent:
        return ""
    if kind == "Pod":
        return (
            "a Pod has no condition that says how it ended; write a Job with that pod as its "
            "template"
        )
    lines = " and ".join(f"{key}: {{type: …}}" for key in absent)
    return (
        f"tuner does not know how a {kind} ends; add {lines} with the conditions that its "
        "status.conditions shows then, or {path: status.…, equals: …} with another field"
    )


async def kind_of(client: KubernetesClient, manifest: AnyObject) -> Kind:
    """Return the kind of a manifest; the server looks up unknown ones. Raises ApiError 404."""
    from controller.kube import client as known

    api_version_and_kind = manifest["apiVersion"], manifest["kind"]
    for kind in (known.JOBS, known.SERVICES, known.CONFIG_MAPS, known.PODS):
        if (kind.api_version, kind.kind) == api_version_and_kind:
            return kind
    return await client.discover(*api_version_and_kind)


async def served_pod_field(client: KubernetesClient, manifest: AnyObject) -> str | None:
    """Return which of the preset's `pod_fields` a manifest may have on this cluster.

    None: none of them. "" if the kind needs none, or if the server does
    not publish which fields it has.
    """
    preset = preset_of(manifest)
    if preset is None or not preset.pod_fields:
        return ""
    fields = await client.spec_fields(manifest["apiVersion"], manifest["kind"])
    if fields is None:
        return ""
    return next((field for field in preset.pod_fields if field in fields), None)


def not_served(manifest: AnyObject, pod_field: str | None) -> str:
    """Return why a cluster with this `served_pod_field` cannot run the manifest as a trial.

    "" if it can.
    """
    preset = preset_of(manifest)
    if preset is None or pod_field == "":
        return ""
    kind = manifest.get("kind")
    if pod_field is None:
        return (
            f"this cluster's {kind} has no field for the labels of its pods, by which Tuner finds "
            f"them (it has neither {' nor '.join(preset.pod_fields)}, as Trainer 2.0); upgrade to "
            f"{preset.operator}, or write a JobSet"
        )
    for name in preset.pod_fields:
        if name != pod_field and at(manifest, f"spec.{name}") is not None:
            return (
                f"this cluster's {kind} has no {name}; it has {pod_field} in its place, so write "
                "that"
            )
    return ""


# of Kueue's API, newest first; the fields that we read are the same in both
VERSIONS = ("v1beta2", "v1beta1")
NOT_INSTALLED = (
    f"the cluster has no Kueue (nothing serves {KUEUE_GROUP}); install it, or remove "
    f"spec.trial.queue"
)


async def served(client: KubernetesClient, kind: str) -> Kind | None:
    """Return the Kueue kind of that name as the server serves it; None: Kueue is not installed."""
    for version in VERSIONS:
        with contextlib.suppress(ApiNotFound):
            return await client.discover(f"{KUEUE_GROUP}/{version}", kind)
    return None


def at(obj: object, path: str) -> Any:
    """Return the value of a field by its path; None if it is missing."""
    for key in path.split("."):
        obj = obj.get(key) if isinstance(obj, Mapping) else None
    return obj


def put(obj: Raw, path: str, value: object) -> None:
    """Set a field by its path."""
    *above, key = path.split(".")
    for ancestor in above:
        obj = below(obj, ancestor)
    obj[key] = value


def default(obj: Raw, path: str, value: object) -> None:
    """Set a field by its path, unless it has a value. Null is none."""
    if at(obj, path) is None:
        put(obj, path, value)


def below(obj: Raw, key: str) -> Raw:
    """Return the mapping under the key, created if missing.

    Another value stays, and the server will refuse it.
    """
    child = obj.get(key)
    if child is None:
        child = obj[key] = {}
    return child if isinstance(child, dict) else {}


def append(obj: Raw, key: str, item: Raw) -> None:
    """Add an item to a list of the object, which may lack it, or have null in its place."""
    obj[key] = [*(obj.get(key) or ()), item]


def mappings(items: object) -> Iterator[Raw]:
    """Yield the mappings of a list; nothing if it is not a list."""
    if isinstance(items, list):
        return (item for item in items if isinstance(item, dict))
    return iter(())


@lru_cache(64)  # all objects of an experiment have the same annotation
def _json_object(text: str) -> Raw:
    try:
        document = load_json(text)
    except ValueError:
        return {}  # a person has edited the annotation
    return document if isinstance(document, dict) else {}


def _condition(rule: object) -> StatusCondition | None:
    match rule:
        case {"path": str(path), "equals": str() | int() | float() | bool() as value}:
            return ByPath(path, value)
        case {"type": str(kind), "status": str(status)}:
            return ByType(kind, status)
        case {"type": str(kind)}:
            return ByType(kind)
    return None
