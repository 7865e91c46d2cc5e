"""What an attempt's objects ask of their namespace: pods, resources, countable objects. Pure.

Read off the manifests as they are sent, ours or a person's, so that what is counted is what the cluster counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from controller.runtime.kubernetes.kinds import at, is_pod_template
from controller.runtime.kubernetes.objects import Raw

Amounts = Mapping[str, Decimal]

NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?")
SCALES = {
    **{
        letter: Decimal(10) ** power
        for letter, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
    },
    **{f"{letter}i": Decimal(2) ** (10 * power) for power, letter in enumerate("KMGTPE", start=1)},
}
COMPUTE = frozenset({"cpu", "memory", "ephemeral-storage"})  # the only ones with a limit apart from the request


@dataclass(frozen=True, slots=True)
class Demand:
    """per_pod: what each of `pods` pods asks, as "requests.cpu", "limits.memory", "requests.nvidia.com/gpu"….
    objects: what else is counted, as "count/jobs.batch", "services"…. best_effort, terminating: the pods' scopes.
    containers: how many a pod has; rules for each of them can be judged from sums only if it is one.
    others: pods of other shapes of the same attempt (the workers beside a leader); their `objects` are empty.
    """

    pods: int
    per_pod: Amounts
    objects: Mapping[str, int] = field(default_factory=dict)
    priority_class: str = ""
    best_effort: bool = False
    terminating: bool = False
    others: tuple[Demand, ...] = ()
    containers: int = 1

    def shapes(self) -> tuple[Demand, ...]:
        """Each kind of pod by itself: this one, then the others."""
        return (self, *self.others)

    def total(self) -> dict[str, Decimal]:
        """Of all its pods together, whatever their scopes."""
        sums: dict[str, Decimal] = {}
        for shape in self.shapes():
            for key, each in shape.per_pod.items():
                sums[key] = sums.get(key, Decimal()) + each * shape.pods
        return sums


def parse_quantity(text: object) -> Decimal:
    """A quantity as Kubernetes writes it: 500m, 16Gi, 1e3, 4.

    Raises:
        ValueError: it is none.
    """
    match = NUMBER.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not a quantity: write a number like 4, 500m or 16Gi")
    digits, suffix = match.groups()
    if suffix in SCALES:
        return Decimal(digits) * SCALES[suffix]
    return Decimal(digits + (suffix or ""))


def demand_of(objects: Sequence[Raw]) -> Demand:
    """Of all objects of one attempt together. A kind whose pods are not written in it asks for nothing that we know.

    Raises:
        ValueError: a resource is not a quantity.
    """
    counts: Counter[str] = Counter()
    shapes: list[Demand] = []
    for each in objects:
        counts.update(_countable(each))
        shapes.extend(_of_pods(spec, copies) for spec, copies in _pod_specs(each))
    if not shapes:
        return Demand(0, {}, dict(counts))
    first, *others = shapes
    return replace(first, objects=dict(counts), others=tuple(others))


def is_gpu(resource: str) -> bool:
    """A device that people of clusters call so, a slice of one too."""
    return "/" in resource and ("gpu" in resource or resource.startswith(("nvidia.com/", "amd.com/", "habana.ai/")))


def _templates(node: object, copies: int) -> Iterator[tuple[Raw, int]]:
    """Every pod template, and whatever is under `template`, with how many of it exist at once: `replicas`, `numOfHosts`
    and `parallelism` beside it and above it multiply."""
    if isinstance(node, list):
        for item in node:
            yield from _templates(item, copies)
    elif isinstance(node, dict):
        inside = (
            copies
            * _whole(node.get("replicas"))
            * _whole(node.get("numOfHosts"))
            * min(_whole(node.get("parallelism")), _whole(node.get("completions"), _whole(node.get("parallelism"))))
        )
        for key, value in node.items():
            if isinstance(value, dict) and (key == "template" or is_pod_template(value)):
                yield value, inside
                if is_pod_template(value):
                    continue
            yield from _templates(value, inside)


def _whole(value: object, otherwise: int = 1) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _pod_specs(each: Raw) -> Iterator[tuple[Raw, int]]:
    if each.get("kind") == "Pod":
        yield each.get("spec", {}), 1
        return
    for template, copies in _templates(each, 1):
        if is_pod_template(template):
            yield template["spec"], copies
    match at(each, "spec.trainer"):  # of a TrainJob: what its runtime asks for beside it is on the cluster only
        case {"resourcesPerNode": dict() as resources} as trainer:
            yield {"containers": [{"resources": resources}]}, _whole(trainer.get("numNodes"))


def _countable(each: Raw) -> Iterator[str]:
    kind = str(each.get("kind", ""))
    group = str(each.get("apiVersion", "")).rpartition("/")[0]
    plural = f"{kind.lower()}s"
    if kind == "Pod":  # those are counted by themselves
        return
    yield f"count/{plural}.{group}" if group else f"count/{plural}"
    if not group and kind in ("Service", "ConfigMap", "Secret"):
        yield plural
    for template, copies in _templates(each, 1):
        match template:
            case {"spec": {"template": inner}} if is_pod_template(inner):  # a Job inside, as in a JobSet
                yield from ["count/jobs.batch"] * copies


def _of_pods(spec: Raw, copies: int) -> Demand:
    asked = _sums(spec)
    compute = {f"{side}.{name}" for side in ("requests", "limits") for name in ("cpu", "memory")}
    return Demand(
        copies,
        asked,
        priority_class=str(spec.get("priorityClassName", "")),
        best_effort=not compute & asked.keys(),
        terminating=spec.get("activeDeadlineSeconds") is not None,
        containers=len([*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]),
    )


def _sums(spec: Raw) -> dict[str, Decimal]:
    """As the scheduler and the quota sum them: containers and sidecars together, or the largest step of start-up."""
    running: dict[str, Decimal] = {}
    peak: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or ():
        asked = _of_container(container)
        if container.get("restartPolicy") == "Always":
            _add(running, asked)
            _raise(peak, running)
        else:
            _raise(peak, {key: each + running.get(key, Decimal()) for key, each in asked.items()})
    for container in spec.get("containers") or ():
        _add(running, _of_container(container))
    _raise(peak, running)
    return peak


def _add(sums: dict[str, Decimal], more: Amounts) -> None:
    for key, each in more.items():
        sums[key] = sums.get(key, Decimal()) + each


def _raise(peak: dict[str, Decimal], to: Amounts) -> None:
    for key, each in to.items():
        peak[key] = max(each, peak.get(key, each))


def _of_container(container: Raw) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    limits = {name: parse_quantity(text) for name, text in (resources.get("limits") or {}).items()}
    # A limit alone is the request, too.
    requests = {**limits, **{name: parse_quantity(text) for name, text in (resources.get("requests") or {}).items()}}
    return {f"requests.{name}": each for name, each in requests.items()} | {
        f"limits.{name}": each for name, each in limits.items() if name in COMPUTE
    }
