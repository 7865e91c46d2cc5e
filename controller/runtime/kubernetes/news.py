"""Which changes of an object are worth a look at once. Pure: `before` and `after` as the server shows them, None: it is
not there.

An attempt's Job and pod change a dozen times, and what becomes of the attempt shows in three of them. Nothing is lost
with the others: whoever looks sees all that there is, and looks twice a second whatever happens. What is not known here
to be idle is told.
"""

from __future__ import annotations

from typing import Any

from controller.runtime.kubernetes.pod_status import ENDED, phase_of

Raw = dict[str, Any]


def always(before: Raw | None, after: Raw | None) -> bool:
    return True


def of_job(before: Raw | None, after: Raw | None) -> bool:
    """Its pods tell the rest: how many there are and run is only counted in it."""
    return after is None or _said_by_job(before or {}) != _said_by_job(after)


def of_pod(before: Raw | None, after: Raw | None) -> bool:
    """Not that it was made and found a node, nor how it is cleared away once it has ended."""
    if after is None:
        return before is None or phase_of(before) not in ENDED
    return _said_by_pod(before or {}) != _said_by_pod(after)


def _said_by_job(job: Raw) -> tuple[object, ...]:
    suspended = job.get("spec", {}).get("suspend") or False
    return suspended, job.get("status", {}).get("conditions"), "deletionTimestamp" in job.get("metadata", {})


def _said_by_pod(pod: Raw) -> tuple[object, ...]:
    status, phase = pod.get("status", {}), phase_of(pod)
    containers = status.get("containerStatuses")
    if phase in ENDED:
        return phase, containers
    troubles = [
        each
        for each in status.get("conditions") or ()
        if each.get("type") == "DisruptionTarget" or (each.get("type"), each.get("status")) == ("PodScheduled", "False")
    ]
    going = pod.get("metadata", {}).get("deletionTimestamp")
    begins = phase in ("", "Pending")
    return begins or phase, status.get("reason"), containers, status.get("initContainerStatuses"), troubles, going
