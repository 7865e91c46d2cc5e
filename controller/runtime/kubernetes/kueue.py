"""Why Kueue keeps an attempt waiting, from the Workload that it makes for the attempt's object.

The Workloads of a namespace are watched from the first attempt that waits on. They bear no label of ours: they are
found by the uid of the object that owns them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from controller.runtime.kubernetes.client import Kind, KubernetesClient
from controller.runtime.kubernetes.errors import ApiError
from controller.runtime.kubernetes.labels import KUEUE_GROUP, queue_of
from controller.runtime.kubernetes.objects import AdmissionCheck, Raw, WorkloadStatus
from controller.runtime.kubernetes.pod_status import Shown, condition, is_true
from controller.runtime.kubernetes.reflector import LazyReflector, MissingRights, Reflector

VERSIONS = ("v1beta2", "v1beta1")  # newest first: what we read is the same in both
NOT_INSTALLED = f"the cluster has no Kueue (nothing serves {KUEUE_GROUP}); install it, or remove spec.trial.queue"
_POD_SET = re.compile(r"couldn't assign flavors to pod set (\S+): ")
_WHOM = re.compile(r" \(UID: [^)]*\)|; preemptor path: .*")  # the other workload, by uids and paths


async def served(client: KubernetesClient, kind: str) -> Kind | None:
    """The kind of that name as this server has it; None: Kueue is not installed. Raises what the client raises."""
    for version in VERSIONS:
        try:
            return await client.discover(f"{KUEUE_GROUP}/{version}", kind)
        except ApiError as error:
            if error.status != 404:
                raise
    return None


class Workloads:
    """is_attempt: whether an attempt's object has that uid. changed: called when Kueue says something new about one."""

    def __init__(self, client: KubernetesClient, namespace: str, notices: MissingRights, *,
                 is_attempt: Callable[[str], bool], changed: Callable[[], None]) -> None:  # fmt: skip
        self._client = client
        self._namespace = namespace
        self._is_attempt = is_attempt
        self._changed = changed
        self._by_owner: dict[str, Raw] | None = None
        self._installed = True
        self._watched = LazyReflector(self._make, notices, without="why Kueue keeps a trial waiting")

    def why(self, obj: Raw) -> str:
        """Why this object, which is suspended and has a queue, waits. They are watched from the first call on."""
        self._watched.open()
        if not self._installed:
            return f"{why_queued(queue_of(obj), None)}: {NOT_INSTALLED}"
        if self._by_owner is None:
            shown = self._watched.objects.values()
            self._by_owner = {uid: workload for workload in shown for uid in _owners(workload)}
        return why_queued(queue_of(obj), self._by_owner.get(obj["metadata"]["uid"]))

    def forget_the_gone(self) -> None:
        self._watched.forget_the_gone()

    async def close(self) -> None:
        await self._watched.close()

    async def _make(self) -> Reflector | None:
        kind = await served(self._client, "Workload")
        if kind is None:
            self._installed = False
            self._changed()
            return None
        return Reflector(self._client, kind, self._namespace, changed=self._listed, matters=self._matters)

    def _listed(self) -> None:
        self._by_owner = None
        self._changed()

    def _matters(self, before: Raw | None, after: Raw | None) -> bool:
        """Other people's workloads are as many as theirs."""
        self._by_owner = None
        shown = after or before or {}
        return any(map(self._is_attempt, _owners(shown))) and _said(before) != _said(after)


def why_queued(queue: str, workload: Shown | None) -> str:
    """For people. workload None: it cannot be seen, or Kueue has not made it yet."""
    if workload is None:
        return f"queued by Kueue (queue {queue})"
    evicted = (condition(workload, "Evicted") or {}) if is_true(workload, "Evicted") else {}
    match evicted.get("reason"):
        case None:
            head = f"queued by Kueue (queue {queue})"
        case "Preempted":
            head = f"preempted by Kueue, waits in queue {queue}"
        case reason:
            head = f"evicted by Kueue ({reason}), waits in queue {queue}"
    return ": ".join(part for part in (head, _why(workload)) if part)


def _why(workload: Shown) -> str:
    if workload.get("spec", {}).get("active") is False:
        name = workload["metadata"]["name"]
        return f"its Workload {name} is deactivated; to queue it again, set spec.active of that Workload to true"
    reserved = condition(workload, "QuotaReserved") or {}
    if reserved.get("status") == "True":
        checks: list[AdmissionCheck] = (workload.get("status") or {}).get("admissionChecks") or []
        pending = [_check(each) for each in checks if each.get("state") != "Ready"]
        return f"its quota is reserved; admission checks to pass: {', '.join(pending)}" if pending else ""
    said = _WHOM.sub("", " ".join(str(reserved.get("message", "")).split()))
    said = _POD_SET.sub(lambda found: "" if found[1] == "main" else f"pod set {found[1]}: ", said)
    if said.startswith("LocalQueue ") and said.endswith(" doesn't exist"):
        said += "; create it, or name another one in spec.trial.queue"
    requeued = condition(workload, "Requeued") or {}
    again_at = ((workload.get("status") or {}).get("requeueState") or {}).get("requeueAt")
    return f"{said}; queued again at {again_at}" if again_at and requeued.get("status") == "False" else said


def _check(check: AdmissionCheck) -> str:
    said = " ".join(str(check.get("message", "")).split())
    return str(check.get("name", "")) + (f" ({said})" if said else "")


def _owners(workload: Raw) -> Iterator[str]:
    for owner in workload.get("metadata", {}).get("ownerReferences") or ():
        yield str(owner.get("uid", ""))


def _said(workload: Raw | None) -> tuple[object, ...]:
    status: WorkloadStatus = (workload or {}).get("status") or {}
    return (workload or {}).get("spec", {}).get("active"), status.get("conditions"), status.get("admissionChecks")
