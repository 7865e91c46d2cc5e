"""Kinds of objects that an attempt can be: by which of its conditions it has ended, and whose log speaks for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from controller.runtime.kubernetes.naming import READING
from controller.runtime.kubernetes.pods import is_true
from suggest.nesting import load_json

if TYPE_CHECKING:
    from controller.runtime.kubernetes.client import Client, Kind

Raw = dict[str, Any]
Condition: TypeAlias = tuple[str, str]  # type, status


@dataclass(frozen=True, slots=True)
class Conditions:
    success: Condition
    failure: Condition


@dataclass(frozen=True, slots=True)
class Reading:
    """How an object of an attempt is read. labels, container: of the primary pod; {} and "" = not said."""

    conditions: Conditions
    labels: Mapping[str, str] = field(default_factory=dict)
    container: str = ""


JOB = Conditions(("Complete", "True"), ("Failed", "True"))
BUILT_IN = {
    ("batch", "Job"): JOB,
    ("jobset.x-k8s.io", "JobSet"): Conditions(("Completed", "True"), ("Failed", "True")),
}


def reading_of(obj: Mapping[str, Any] | None) -> Reading:
    """As the object itself carries it, so that nobody needs the file to follow it. None (it is gone): as a Job's."""
    if obj is None:
        return Reading(JOB)
    said = (obj.get("metadata", {}).get("annotations") or {}).get(READING, "{}")
    return _reading(str(said), _group_kind(obj))


@lru_cache(64)  # all of one experiment say the same
def _reading(said: str, group_kind: tuple[str, str]) -> Reading:
    given = _given(said)
    known = BUILT_IN.get(group_kind, JOB)
    primary = given.get("primary") or {}
    return Reading(
        Conditions(_condition(given.get("success"), known.success), _condition(given.get("failure"), known.failure)),
        primary.get("labels") or {},
        primary.get("container") or "",
    )


def conditions_of(obj: Mapping[str, Any] | None) -> Conditions:
    return reading_of(obj).conditions


def suspended(obj: Mapping[str, Any]) -> bool:
    """Whether its queue, or a person, holds it back: its pods are gone or about to go.

    The field decides where the object has one: the operator updates the condition later.
    """
    spec = obj.get("spec") or {}
    for holder in (spec, spec.get("runPolicy") or {}):  # of the Training Operator's kinds it is in the run policy
        if isinstance(holder.get("suspend"), bool):
            return bool(holder["suspend"])
    return is_true(obj, "Suspended")


def over(obj: Mapping[str, Any]) -> bool:
    """It has ended, well or not, or is being deleted."""
    ways = conditions_of(obj)
    shown = [(each.get("type"), each.get("status")) for each in (obj.get("status") or {}).get("conditions") or ()]
    return "deletionTimestamp" in obj["metadata"] or ways.success in shown or ways.failure in shown


def missing_conditions(manifest: Mapping[str, Any], given: Collection[str] = ()) -> str:
    """What a file with this template must say besides; "" if nothing. `given`: which of success and failure it has."""
    missing = [key for key in ("success", "failure") if key not in given]
    if _group_kind(manifest) in BUILT_IN or not missing:
        return ""
    kind = manifest.get("kind")
    if kind == "Pod":
        return "a Pod has no condition that says how it ended; write a Job with that pod as its template"
    lines = " and ".join(f"{key}: {{type: …}}" for key in missing)
    return f"how a {kind} ends is not known here; add {lines} with the conditions that its status.conditions shows then"


async def kind_of(client: Client, manifest: Mapping[str, Any]) -> Kind:
    """Where it lives on the server, which is asked about what is not known here. Raises ApiError 404: no such kind."""
    from controller.runtime.kubernetes import client as known

    wanted = manifest["apiVersion"], manifest["kind"]
    for kind in (known.JOBS, known.SERVICES, known.CONFIG_MAPS, known.PODS):
        if (kind.api_version, kind.kind) == wanted:
            return kind
    return await client.discover(*wanted)


def _group_kind(obj: Mapping[str, Any]) -> tuple[str, str]:
    return str(obj.get("apiVersion", "batch/v1")).rpartition("/")[0], str(obj.get("kind", "Job"))


def _given(said: str) -> Raw:
    try:
        found = load_json(said)
    except ValueError:
        return {}  # somebody has edited it
    return found if isinstance(found, dict) else {}


def _condition(given: object, otherwise: Condition) -> Condition:
    match given:
        case {"type": str(kind), "status": str(status)}:
            return kind, status
        case {"type": str(kind)}:
            return kind, "True"
    return otherwise
