"""Objects sent to the server to be checked, of which none is made: would it take them, and if not, what helps?

Admission answers what no table here could: quotas, limit ranges, pod security, webhooks, kinds and their fields. They
judge pods when pods are made, so the pods that a Job would make are sent too, each as itself.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from controller.runtime.kubernetes.client import Client
from controller.runtime.kubernetes.demand import parse_quantity
from controller.runtime.kubernetes.errors import ApiError, rule_for, silent_webhook
from controller.runtime.kubernetes.kinds import kind_of, pod_templates

Raw = dict[str, Any]

_QUOTA = re.compile(r"exceeded quota: (?P<quota>\S+), requested: (?P<asked>\S+), used: \S+, limited: (?P<limit>\S+)")
_CURES = (
    (r'namespaces "[^"]*" not found', "make it, or name another one with --namespace"),
    (r"is being terminated", "the namespace is being deleted; name another one with --namespace"),
    (r"must specify", "the namespace's quota wants these said: set them under spec.trial.resources"),
    (r"violates PodSecurity", "change it in spec.trial.template, or ask for a namespace that allows it"),
    (r"(maximum|minimum) \S+ usage per|limit to request ratio", "change spec.trial.resources; a LimitRange says so"),
    (r"no PriorityClass", "correct spec.trial.priorityClass; see kubectl get priorityclasses"),
    (r"looking up service account", "correct spec.trial.serviceAccount; see kubectl get serviceaccounts"),
    (r"admission webhook", "a rule of this cluster's administrators; change the file, or ask them"),
    (r"unknown field|strict decoding", "correct it in spec.trial.template"),
    (r"has no kind", "or correct apiVersion and kind in spec.trial.template"),
    (r"could not find the requested resource", "install its definition, or correct spec.trial.template"),
)


class Answer(enum.Enum):
    ACCEPTED = "accepted"
    WAITS = "accepted, and would wait now"
    UNCHECKED = "not checked"
    REFUSED = "refused"
    NOT_ALLOWED = "not allowed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The server's answer to one object. why: for people, with the cure; "" if it was simply accepted."""

    kind: str
    name: str
    answer: Answer
    why: str = ""

    @property
    def namespace_is_away(self) -> bool:
        return self.answer is Answer.REFUSED and any(re.search(pattern, self.why) for pattern, _ in _CURES[:2])

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.answer.value}" + (f": {self.why}" if self.why else "")


def pods_of(objects: Sequence[Raw]) -> list[Raw]:
    """The pods that these objects stand for, one of each shape."""
    return [_pod(each, template, index) for each in objects for index, template in enumerate(pod_templates(each))]


async def rehearse(client: Client, namespace: str, objects: Sequence[Raw]) -> list[Verdict]:
    """Raises Unreachable, NotAllowed, and ApiError where the server itself has trouble."""
    verdicts: list[Verdict] = []
    for manifest in objects:
        name = manifest["metadata"].get("name", "")
        try:
            await client.create(await kind_of(client, manifest), namespace, manifest, dry_run=True)
            verdicts.append(Verdict(manifest["kind"], name, Answer.ACCEPTED))
        except ApiError as error:
            verdicts.append(Verdict(manifest["kind"], name, *_judged(error, manifest["kind"])))
            if re.search(_CURES[0][0], error.message):
                break  # all others would be told the same
    return verdicts


def _pod(parent: Raw, template: Raw, index: int) -> Raw:
    owner = parent["metadata"]
    about = {"name": owner["name"] + (f"-{index}" if index else ""), "namespace": owner["namespace"]}
    kept = {key: value for key, value in template.get("metadata", {}).items() if key in ("labels", "annotations")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about | kept, "spec": template["spec"]}


def _judged(error: ApiError, kind: str) -> tuple[Answer, str]:
    if rule := rule_for(error):
        if kind == "Pod":
            # Trials' pods are made by the cluster's own controllers; only this check would make one itself.
            return Answer.UNCHECKED, f"whether quota and pod security take it shows when it runs; to ask: {rule}"
        return Answer.NOT_ALLOWED, f"{_sentence(error)}; the missing rule: {rule}"
    if found := _QUOTA.search(error.message):
        too_much = list(_beyond(found["asked"], found["limit"]))
        if not too_much:
            return Answer.WAITS, f"QuotaExceeded: {found[0].removeprefix('exceeded quota: ')}"
        return Answer.REFUSED, (
            f"it never fits quota {found['quota']}: {', '.join(too_much)}; "
            "ask for less under spec.trial.resources, or for a larger quota"
        )
    if error.status == 409 and error.reason == "AlreadyExists":
        return Answer.ACCEPTED, ""
    if silent := silent_webhook(error):
        return Answer.WAITS, silent
    if error.status not in (400, 403, 404, 422) and "webhook" not in error.message:
        raise error
    cure = next((cure for pattern, cure in _CURES if re.search(pattern, error.message)), "correct the file")
    return Answer.REFUSED, f"{_sentence(error)}; {cure}"


def _beyond(asked: str, limit: str) -> Iterator[str]:
    """What is asked for at once and is above the quota as a whole."""
    limits = dict(part.split("=", 1) for part in limit.split(",") if "=" in part)
    for part in asked.split(","):
        name, _, amount = part.partition("=")
        try:
            if name in limits and parse_quantity(amount) > parse_quantity(limits[name]):
                yield f"{name} {amount} of {limits[name]}"
        except ValueError:
            continue


def _sentence(error: ApiError) -> str:
    return " ".join(error.message.split()).rstrip(".")
