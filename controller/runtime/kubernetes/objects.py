"""The fields that are read of Kubernetes objects, by kind, as the API server sends them. Declarations only.

An object that is shown to be of one of these kinds has its type; `Raw` is for objects of any kind: templates, requests,
and what users define. Every field may be missing: servers omit empty ones.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypedDict

Raw: TypeAlias = dict[str, Any]  # an object of unknown kind


ListMeta = TypedDict("ListMeta", {"resourceVersion": str, "continue": str, "remainingItemCount": int}, total=False)


class StatusCondition(TypedDict, total=False):
    type: str
    status: str
    reason: str
    message: str
    lastTransitionTime: str


class ResourceRequirements(TypedDict, total=False):
    requests: dict[str, str]
    limits: dict[str, str]


class Container(TypedDict, total=False):
    name: str
    image: str
    command: list[str]
    args: list[str]
    restartPolicy: str
    resources: ResourceRequirements


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
    containerID: str


class ContainerState(TypedDict, total=False):
    waiting: ContainerStateWaiting
    running: ContainerStateRunning
    terminated: ContainerStateTerminated


class ContainerStatus(TypedDict, total=False):
    name: str
    containerID: str
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
    gone: bool  # ours, see `pod_status`: its end was not seen
    conditions: list[StatusCondition]
    containerStatuses: list[ContainerStatus]
    initContainerStatuses: list[ContainerStatus]


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


class LimitRangeItem(TypedDict, total=False):
    type: str
    max: dict[str, str]
    min: dict[str, str]
    default: dict[str, str]
    defaultRequest: dict[str, str]
    maxLimitRequestRatio: dict[str, str]


class LeaseSpec(TypedDict, total=False):
    holderIdentity: str | None  # None in a patch removes it
    leaseDurationSeconds: int
    acquireTime: str
    renewTime: str
    leaseTransitions: int


class RequeueState(TypedDict, total=False):
    count: int
    requeueAt: str


class AdmissionCheck(TypedDict, total=False):
    name: str
    state: str
    message: str


class WorkloadStatus(TypedDict, total=False):
    conditions: list[StatusCondition]
    admissionChecks: list[AdmissionCheck]
    requeueState: RequeueState
