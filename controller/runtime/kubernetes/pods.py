"""One pod, and one object's conditions, as the API server shows them. Pure: reads, judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from controller.runtime.kubernetes.naming import COMPLETION_INDEX

Shown: TypeAlias = Mapping[str, Any]

ENDED = ("Succeeded", "Failed")  # of phases, those that last

_TRIAL = "trial"
_DEFAULT_GRACE_S = 30


def parse_time(text: object) -> datetime | None:
    """None also for the epoch, which the kubelet writes for what never was."""
    if not isinstance(text, str) or not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.year > 1970 else None


def condition(obj: Shown, kind: str) -> Shown | None:
    """The one of that type, whatever its status; the last where a controller writes several."""
    found = [each for each in obj.get("status", {}).get("conditions") or () if each.get("type") == kind]
    return found[-1] if found else None


def is_true(obj: Shown, kind: str) -> bool:
    return (condition(obj, kind) or {}).get("status") == "True"


def node_of(pod: Shown) -> str:
    return str(pod.get("spec", {}).get("nodeName") or "")


def container_in(pod: Shown, wanted: str = "") -> str:
    """The name of the container that stands for the trial: the one asked for, ours, or the first, as kubectl has it."""
    names = [each["name"] for each in pod.get("spec", {}).get("containers") or ()]
    for name in (wanted, _TRIAL):
        if name in names:
            return name
    return names[0] if names else ""


def container_status(pod: Shown, name: str) -> Shown:
    """{} while the kubelet has not said anything of it."""
    for each in pod.get("status", {}).get("containerStatuses") or ():
        if each.get("name") == name:
            return each  # type: ignore[no-any-return]  # JSON
    return {}


def started_at(pod: Shown, name: str) -> datetime | None:
    """When the container first started: a container that is restarted in place gets no new time.

    Its status tells the present start and the one before. After two restarts the first is not told any more, and the
    pod's own start stands for it, which is earlier by the pull of the image.
    """
    status = container_status(pod, name)
    state, before = status.get("state") or {}, (status.get("lastState") or {}).get("terminated") or {}
    known = parse_time((state.get("running") or state.get("terminated") or {}).get("startedAt"))
    if not (restarts := restarts_of(status)):
        return known
    earlier = parse_time(before.get("startedAt"))
    first = earlier if restarts == 1 else parse_time(pod.get("status", {}).get("startTime"))
    return first or earlier or known


def restarts_of(status: Shown) -> int:
    """Of a container, by its status."""
    return int(status.get("restartCount") or 0)


def terminated(pod: Shown, name: str) -> Shown | None:
    """How the container ended for good; None while it runs, waits, or will be started again."""
    for_good = phase_of(pod) in ENDED or pod.get("spec", {}).get("restartPolicy") == "Never"
    state = container_status(pod, name).get("state") or {}
    return state.get("terminated") if for_good else None


def phase_of(pod: Shown) -> str:
    return str(pod.get("status", {}).get("phase") or "")


def image_of(pod: Shown, name: str) -> str:
    """By digest where the runtime tells it."""
    status = container_status(pod, name)
    by_digest = str(status.get("imageID") or "").rpartition("://")[2]
    return by_digest if "@" in by_digest or not status.get("image") else f"{status['image']}@{by_digest}".rstrip("@")


def deletion_asked(pod: Shown) -> datetime | None:
    """When somebody asked to delete it; deletionTimestamp is when its grace will have passed."""
    until = parse_time(pod.get("metadata", {}).get("deletionTimestamp"))
    if until is None:
        return None
    grace = pod["metadata"].get("deletionGracePeriodSeconds")
    return until - timedelta(seconds=_DEFAULT_GRACE_S if grace is None else grace)


def keep_first_deletion(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Have `after` tell when its deletion was first requested.

    Once its containers have ended, the kubelet deletes a pod again without grace, and the pod then shows that later
    deletion alone. What ended between the two would look as if it had ended before anybody asked.
    """
    first, last = deletion_asked(before), deletion_asked(after)
    if first is not None and last is not None and first < last:
        about = after["metadata"]
        grace = about.get("deletionGracePeriodSeconds")
        kept = _DEFAULT_GRACE_S if grace is None else grace
        about["deletionGracePeriodSeconds"] = kept + (last - first).total_seconds()


def as_gone(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod whose object is gone, as it was last seen: it has ended, whatever it said then."""
    status = pod.get("status", {})
    if status.get("phase") in ENDED:
        return pod
    return {**pod, "status": {**status, "phase": "Failed", "gone": True}}


def is_gone(pod: Shown) -> bool:
    """Its end was not seen, only that it is not there any more."""
    return pod.get("status", {}).get("gone") is True


def index_of(pod: Shown) -> int:
    """Its rank in an Indexed Job; 0 where there is none."""
    about = pod.get("metadata", {})
    for of in (about.get("annotations") or {}, about.get("labels") or {}):
        if str(of.get(COMPLETION_INDEX, "")).isdigit():
            return int(of[COMPLETION_INDEX])
    return 0


def newest_first(pod: Shown) -> tuple[bool, str]:
    """To be sorted by, descending: what nobody deletes, then what was made last."""
    about = pod.get("metadata", {})
    return "deletionTimestamp" not in about, str(about.get("creationTimestamp", ""))
