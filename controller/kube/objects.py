"""The fields of Kubernetes objects that this package reads, by kind, as the API server sends them.
Declarations only.

Objects that the server shows have the type of their kind. `Raw` is for objects of unknown kind:
manifests that are sent, templates, and objects of users' kinds as a whole. Every field may be
missing: servers omit empty ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Required, TypeAlias, TypedDict

Raw: TypeAlias = dict[str, Any]  # an object of unknown kind
Body: TypeAlias = Raw | list[Raw] | bytes  # of a request; a list is a JSON patch
# the same, only read; the types below are such objects, too
AnyObject: TypeAlias = Mapping[str, Any]


class ObjectReference(TypedDict, total=False):
    """controller: of an owner: it is the one that manages the object."""

    apiVersion: str
    kind: str
    name: str
    uid: str
    controller: bool


class ObjectMeta(TypedDict, total=False):
    name: str
    namespace: str
    uid: str
    generation: int
    resourceVersion: str
    creationTimestamp: str
    deletionTimestamp: str
    deletionGracePeriodSeconds: float
    labels: dict[str, str]
    annotations: dict[str, str]
    finalizers: list[str]
    ownerReferences: list[ObjectReference]
    managedFields: list[object]


class KubernetesObject(TypedDict, total=False):
    """The fields that every object has."""

    apiVersion: str
    kind: str
    metadata: ObjectMeta


class StatusCondition(TypedDict, total=False):
    type: str
    status: str
    reason: str
    message: str
    lastTransitionTime: str


class ResourceRequirements(TypedDict, total=False):
    requests: dict[str, str]
    limits: dict[str, str]


class KeySelector(TypedDict, total=False):
    """A reference to a Secret or ConfigMap, or to one of its keys."""

    name: str
    key: str
    optional: bool


class EnvVarSource(TypedDict, total=False):
    secretKeyRef: KeySelector
    configMapKeyRef: KeySelector


class EnvVar(TypedDict, total=False):
    name: str
    valueFrom: EnvVarSource


class EnvFromSource(TypedDict, total=False):
    secretRef: KeySelector
    configMapRef: KeySelector


class VolumeMount(TypedDict, total=False):
    name: str
    mountPath: str


class Container(TypedDict, total=False):
    name: str
    image: str
    imagePullPolicy: str
    command: list[str]
    args: list[str]
    restartPolicy: str
    resources: ResourceRequirements
    env: list[EnvVar]
    envFrom: list[EnvFromSource]
    volumeMounts: list[VolumeMount]


class VolumeSource(TypedDict, total=False):
    """claimName: of a claim; secretName: of a Secret; name: of a ConfigMap."""

    claimName: str
    secretName: str
    name: str
    optional: bool


class Volume(TypedDict, total=False):
    name: str
    persistentVolumeClaim: VolumeSource
    secret: VolumeSource
    configMap: VolumeSource


class NodeSelectorRequirement(TypedDict, total=False):
    key: Required[str]
    operator: str
    values: list[str]


class NodeSelectorTerm(TypedDict, total=False):
    matchExpressions: list[NodeSelectorRequirement]
    matchFields: list[NodeSelectorRequirement]


class NodeSelector(TypedDict, total=False):
    nodeSelectorTerms: list[NodeSelectorTerm]


class NodeAffinity(TypedDict, total=False):
    requiredDuringSchedulingIgnoredDuringExecution: NodeSelector


class Affinity(TypedDict, total=False):
    nodeAffinity: NodeAffinity


class Toleration(TypedDict, total=False):
    key: str
    operator: str
    value: str
    effect: str


class PodSpec(TypedDict, total=False):
    nodeName: str
    nodeSelector: dict[str, str]
    affinity: Affinity
    tolerations: list[Toleration]
    restartPolicy: str
    priorityClassName: str
    runtimeClassName: str
    serviceAccountName: str
    activeDeadlineSeconds: int
    resources: ResourceRequirements
    containers: list[Container]
    initContainers: list[Container]
    volumes: list[Volume]
    imagePullSecrets: list[KeySelector]


class ContainerStateWaiting(TypedDict, total=False):
    reason: str
    message: str


class ContainerStateRunning(TypedDict, total=False):
    startedAt: str


class ContainerStateTerminated(TypedDict, total=False):
    exitCode: int
    signal: int
    reason: str
    message: str
    startedAt: str
    finishedAt: str


class ContainerState(TypedDict, total=False):
    waiting: ContainerStateWaiting
    running: ContainerStateRunning
    terminated: ContainerStateTerminated


class ContainerStatus(TypedDict, total=False):
    name: str
    image: str
    imageID: str
    ready: bool
    restartCount: int
    state: ContainerState
    lastState: ContainerState


class PodStatus(TypedDict, total=False):
    phase: str
    reason: str
    message: str
    startTime: str
    gone: bool  # written by `pod_status.as_deleted`: the pod was deleted before its end was seen
    conditions: list[StatusCondition]
    containerStatuses: list[ContainerStatus]
    initContainerStatuses: list[ContainerStatus]


class Pod(KubernetesObject, total=False):
    spec: PodSpec
    status: PodStatus


class JobSpec(TypedDict, total=False):
    suspend: bool
    completions: int
    parallelism: int
    completionMode: str
    backoffLimit: int
    backoffLimitPerIndex: int
    podFailurePolicy: object
    successPolicy: object


class ObjectStatus(TypedDict, total=False):
    conditions: list[StatusCondition]
    active: int  # the pods of a Job
    succeeded: int
    failed: int


class AttemptObject(KubernetesObject, total=False):
    """A Job or an object of a user's kind; of its spec, only a Job's fields are read by name."""

    spec: JobSpec
    status: ObjectStatus


class EventObject(KubernetesObject, total=False):
    involvedObject: ObjectReference
    message: str
    lastTimestamp: str
    eventTime: str


class ScopeSelectorRequirement(TypedDict, total=False):
    scopeName: str
    operator: str
    values: list[str]


class ScopeSelector(TypedDict, total=False):
    matchExpressions: list[ScopeSelectorRequirement]


class ResourceQuotaSpec(TypedDict, total=False):
    hard: dict[str, str]
    scopes: list[str]
    scopeSelector: ScopeSelector


class ResourceQuotaStatus(TypedDict, total=False):
    hard: dict[str, str]
    used: dict[str, str]


class ResourceQuota(KubernetesObject, total=False):
    spec: ResourceQuotaSpec
    status: ResourceQuotaStatus


class LimitRangeItem(TypedDict, total=False):
    type: str
    max: dict[str, str]
    min: dict[str, str]
    default: dict[str, str]
    defaultRequest: dict[str, str]
    maxLimitRequestRatio: dict[str, str]


class LimitRangeSpec(TypedDict, total=False):
    limits: list[LimitRangeItem]


class LimitRange(KubernetesObject, total=False):
    spec: LimitRangeSpec


class ContainerImage(TypedDict, total=False):
    names: list[str]


class Taint(TypedDict, total=False):
    key: str
    value: str
    effect: str


class NodeSpec(TypedDict, total=False):
    taints: list[Taint]


class NodeStatus(TypedDict, total=False):
    allocatable: dict[str, str]
    images: list[ContainerImage]


class Node(KubernetesObject, total=False):
    spec: NodeSpec
    status: NodeStatus


class LeaseSpec(TypedDict, total=False):
    holderIdentity: str | None  # None in a patch removes it
    leaseDurationSeconds: int
    acquireTime: str
    renewTime: str
    leaseTransitions: int


class AdmissionCheck(TypedDict, total=False):
    name: str
    state: str
    message: str


class WorkloadStatus(TypedDict, total=False):
    conditions: list[StatusCondition]
    admissionChecks: list[AdmissionCheck]
    requeueState: dict[str, str]


class Workload(KubernetesObject, total=False):
    spec: dict[str, bool]
    status: WorkloadStatus
