"""What an attempt demands of its namespace, what the quotas leave for it,
and whether it could ever fit. Pure.

The demand (pods, resources, countable objects) is read from the manifests as they are sent, ours or
the user's, so that what is counted here is what the cluster counts.

The server charges a pod to every matching quota when the pod is created, and for a countable
object, before either is visible. `status.used` therefore lacks only the pods that the Job
controller has not created yet, and what happened after the version of the quota that we see. The
rule of `Reservations`: a launch is added to `used` until each of its pods has been seen, and then,
pod by pod, until the quota is at least as new as the first sight of the pod, or SETTLE_S have
passed. The first half is certain. The second assumes that the watch of quotas is at most SETTLE_S
behind the watch of pods; where it is not, the server refuses a pod, and the attempt is withdrawn
and waits again. SETTLE_S after an attempt has ended, nothing is added for it any more: pods that
were not seen by then never will be.

A finished pod stays charged until the server takes it off `used`: a faster decision would only have
pods refused. What others charge is in `used` too, and the faster one gets the room. `used` can be
too low for a while: when the server recounts, it may not have seen a pod that was created a moment
before. The demand of attempts known to be alive is therefore the lower bound.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Literal, cast

from controller.kube.objects import (
    AnyObject,
    Container,
    KubernetesObject,
    LimitRange,
    LimitRangeItem,
    Pod,
    PodSpec,
    Raw,
    ResourceQuota,
    ResourceQuotaSpec,
    ResourceQuotaStatus,
    ResourceRequirements,
    ScopeSelectorRequirement,
)
from controller.runtime.kubernetes.kinds import (
    POD_FIELDS,
    at,
    containers_of_step,
    is_pod_template,
    pod_steps,
)

Amounts = Mapping[str, Decimal]

NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d{1,3}|[numkMGTPE]|[KMGTPE]i)?")
SCALES = {
    **{
        letter: Decimal(10) ** power
        for letter, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
    },
    **{f"{letter}i": Decimal(2) ** (10 * power) for power, letter in enumerate("KMGTPE", start=1)},
}
# the only ones with a limit apart from the request
COMPUTE = frozenset({"cpu", "memory", "ephemeral-storage"})


@dataclass(frozen=True, slots=True)
class Demand:
    """per_pod: what each of `pods` pods asks, as "requests.cpu", "limits.memory",
    "requests.nvidia.com/gpu"…. objects: what else is counted, as "count/jobs.batch", "services"….
    best_effort, terminating: the pods' scopes. containers: how many a pod has; rules for each of
    them can be judged from sums only if it is one. others: pods of other shapes of the same attempt
    (the workers beside a leader); their `objects` are empty.
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
        """Return the demand of each kind of pod: this one, then the others."""
        return (self, *self.others)

    def total(self) -> dict[str, Decimal]:
        """Return the sum over all pods, whatever their scopes."""
        sums: dict[str, Decimal] = {}
        for shape in self.shapes():
            _add(sums, shape.per_pod, times=shape.pods)
        return sums


def parse_quantity(text: object) -> Decimal:
    """Parse a Kubernetes quantity: 500m, 16Gi, 1e3, 4.

    Raises:
        ValueError: the text is not a quantity.
    """
    match = NUMBER.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not a quantity: write a number like 4, 500m or 16Gi")
    digits, suffix = match.groups()
    if suffix in SCALES:
        return Decimal(digits) * SCALES[suffix]
    return Decimal(digits + (suffix or ""))


def demand_of(objects: Sequence[AnyObject]) -> Demand:
    """Return the demand of all objects of one attempt.

    The pods of a kind without pod templates are unknown.

    Raises:
        ValueError: the containers of a pod are not mappings, or a resource is not a quantity.
    """
    counts: Counter[str] = Counter()
    shapes: list[Demand] = []
    for obj in objects:
        for name, count in _countable(obj):
            counts[name] += count
        shapes.extend(_of_pods(spec, copies) for spec, copies in _pod_specs(obj))
    if not shapes:
        return Demand(0, {}, dict(counts))
    first, *other_shapes = shapes
    return replace(first, objects=dict(counts), others=tuple(other_shapes))


def _templates(node: object, copies: int) -> Iterator[tuple[Raw, int]]:
    """Yield every pod template, and every value of `template`, with the number of its copies.

    The numbers `replicas`, `numOfHosts` and `parallelism` beside
    and above a template are multiplied.
    """
    if isinstance(node, list):
        for item in node:
            yield from _templates(item, copies)
    elif isinstance(node, dict):
        node = {key: value for key, value in node.items() if key not in POD_FIELDS}
        parallelism = _whole(node.get("parallelism"))
        at_once = min(parallelism, _whole(node.get("completions"), parallelism))
        hosts = _whole(node.get("replicas")) * _whole(node.get("numOfHosts"))
        inside = copies * hosts * at_once
        for key, value in node.items():
            if isinstance(value, dict) and (key == "template" or is_pod_template(value)):
                yield value, inside
                if is_pod_template(value):
                    continue
            yield from _templates(value, inside)


def _whole(value: object, otherwise: int = 1) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _pod_specs(obj: AnyObject) -> Iterator[tuple[PodSpec, int]]:
    if obj.get("kind") == "Pod":
        yield obj.get("spec", {}), 1
        return
    for template, copies in _templates(obj, 1):
        if is_pod_template(template):
            yield template["spec"], copies
    # of an Argo Workflow; the others run after it, as far as is known
    for step in pod_steps(obj)[:1]:
        yield {"containers": cast("list[Container]", list(containers_of_step(step)))}, 1
    # a TrainJob; what its runtime asks for besides is known only on the cluster
    match at(obj, "spec.trainer"):
        case {"resourcesPerNode": dict() as resources} as trainer:
            yield (
                {"containers": [{"resources": cast(ResourceRequirements, resources)}]},
                _whole(trainer.get("numNodes")),
            )


def _countable(obj: AnyObject) -> Iterator[tuple[str, int]]:
    kind = str(obj.get("kind", ""))
    group = str(obj.get("apiVersion", "")).rpartition("/")[0]
    plural = f"{kind.lower()}s"
    if kind == "Pod":  # pods are counted separately
        return
    yield f"count/{plural}.{group}" if group else f"count/{plural}", 1
    if not group and kind in ("Service", "ConfigMap", "Secret"):
        yield plural, 1
    for template, copies in _templates(obj, 1):
        match template:
            # a Job inside, as in a JobSet
            case {"spec": {"template": inner}} if is_pod_template(inner):
                yield "count/jobs.batch", copies


def _of_pods(spec: PodSpec, copies: int) -> Demand:
    requests = _sums(spec)
    return Demand(
        copies,
        requests,
        priority_class=str(spec.get("priorityClassName", "")),
        best_effort=not _COMPUTE & requests.keys(),
        terminating=spec.get("activeDeadlineSeconds") is not None,
        containers=len([*_containers(spec, "initContainers"), *_containers(spec, "containers")]),
    )


def _sums(spec: PodSpec) -> dict[str, Decimal]:
    """Sum a pod's resources as scheduler and quota do.

    The sum is of all containers with sidecars, or of the largest init step. What the pod requests
    as a whole takes precedence.
    """
    running: dict[str, Decimal] = {}
    peak: dict[str, Decimal] = {}
    for container in _containers(spec, "initContainers"):
        requests = _of_container(container)
        if container.get("restartPolicy") == "Always":
            _add(running, requests)
            _raise(peak, running)
        else:
            _raise(
                peak,
                {key: amount + running.get(key, Decimal()) for key, amount in requests.items()},
            )
    for container in _containers(spec, "containers"):
        _add(running, _of_container(container))
    _raise(peak, running)
    whole: Container = {"resources": spec.get("resources", {})}
    return {**peak, **_of_container(whole)}


def _add(sums: dict[str, Decimal], amounts: Amounts, *, times: int = 1) -> None:
    for key, amount in amounts.items():
        sums[key] = sums.get(key, Decimal()) + amount * times


def _raise(peak: dict[str, Decimal], to: Amounts) -> None:
    for key, amount in to.items():
        peak[key] = max(amount, peak.get(key, amount))


def _containers(spec: PodSpec, key: Literal["initContainers", "containers"]) -> Sequence[Container]:
    containers: object = spec.get(key) or []
    if not isinstance(containers, list) or not all(isinstance(each, dict) for each in containers):
        raise ValueError(
            f"{key} of a pod is not a list of mappings; write [{{name: main, image: …}}]"
        )
    return containers


def _of_container(container: Container) -> dict[str, Decimal]:
    resources = _mapping("resources", container.get("resources"))
    limits, requests = (
        {name: parse_quantity(text) for name, text in _mapping(side, resources.get(side)).items()}
        for side in ("limits", "requests")
    )
    requests = {**limits, **requests}  # a limit without a request is the request, too
    return {f"requests.{name}": amount for name, amount in requests.items()} | {
        f"limits.{name}": amount for name, amount in limits.items() if name in COMPUTE
    }


def _mapping(key: str, value: object) -> Raw:
    if not isinstance(value, dict | None):
        example = "resources: {limits: {cpu: 4}}"
        raise ValueError(f"{key} of a container is {value!r}; write a mapping, as in {example}")
    return value or {}


SETTLE_S = 1.0
# the latter: a new quota has counted nothing yet
_FULL, _FRESH = "exceeded quota", "status unknown for quota"
_COMPUTE = {"requests.cpu", "requests.memory", "limits.cpu", "limits.memory"}
_MUST_BE_ASKED = {"cpu", "memory"} | _COMPUTE
_BYTES = ("memory", "storage", "hugepages")


@dataclass(frozen=True, slots=True)
class _Seen:
    """A pod when it was first seen: its version and the time."""

    version: int | None
    at_s: float
    demand: Demand


@dataclass(slots=True)
class _Launched:
    demand: Demand
    at_s: float
    pods: dict[str, _Seen] = field(default_factory=dict)
    ended_s: float | None = None

    def is_over(self, now_s: float) -> bool:
        """Whether it has ended so long ago that `status.used` has the charge of its pods."""
        return self.ended_s is not None and now_s - self.ended_s >= SETTLE_S


class Reservations:
    """Launches that `status.used` may not contain yet; see the module.

    `clock`: a monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._launched: dict[str, _Launched] = {}
        # name of a launch that has not ended -> the repr of its demand
        self._alive: dict[str, str] = {}
        # by repr: the attempts of an experiment have equal demands
        self._demands: dict[str, Demand] = {}

    def launched(self, name: str, demand: Demand) -> None:
        """Note that an object of this name has just been created."""
        self._launched.setdefault(name, _Launched(demand, self._clock()))
        self._alive[name] = words = repr(demand)
        self._demands[words] = demand

    def ended(self, name: str) -> None:
        """Note that its pods have ended; the server decides when they are no longer charged."""
        launched = self._launched.get(name)
        if launched is not None and launched.ended_s is None:
            launched.ended_s = self._clock()
        self._alive.pop(name, None)
        if not self._alive:
            self._demands.clear()

    def forget(self, name: str) -> None:
        """Forget a launch whose object was withdrawn or removed."""
        self._launched.pop(name, None)
        self.ended(name)

    def clear(self) -> None:
        self._launched.clear()
        self._alive.clear()
        self._demands.clear()

    def alive(self, quota: ResourceQuota) -> dict[str, Decimal]:
        """Return what our live attempts take of the quota, whatever its status says."""
        sums: dict[str, Decimal] = {}
        for words, count in Counter(self._alive.values()).items():
            _add(sums, charge(self._demands[words], quota), times=count)
        return sums

    def look(self, pods: Iterable[Pod]) -> None:
        """Note the pods that are shown now; pods of others are ignored."""
        if not self._launched:
            return
        now_s = self._clock()
        for pod in pods:
            launched = self._launched_of(pod)
            name = pod["metadata"]["name"]
            if launched is not None and name not in launched.pods:
                demand = demand_of([{**pod, "kind": "Pod"}])
                launched.pods[name] = _Seen(_version(pod), now_s, demand)
        for name, launched in list(self._launched.items()):
            if _settled(launched, now_s):
                del self._launched[name]

    def on_top(self, quota: ResourceQuota) -> dict[str, Decimal]:
        """Return what must be added to the `used` of this quota."""
        now_s, version = self._clock(), _version(quota)
        sums: dict[str, Decimal] = {}
        for launched in self._launched.values():
            if launched.is_over(now_s):
                continue
            is_fresh, demand = now_s - launched.at_s < SETTLE_S, launched.demand
            remaining = charge(demand if is_fresh else replace(demand, objects={}), quota)
            for pod in launched.pods.values():
                newer = version is not None and pod.version is not None and version >= pod.version
                if newer or now_s - pod.at_s >= SETTLE_S:
                    _add(remaining, charge(pod.demand, quota), times=-1)
            _add(sums, {key: max(amount, Decimal()) for key, amount in remaining.items()})
        return sums

    def _launched_of(self, pod: Pod) -> _Launched | None:
        """Return the launch of a pod.

        Labels and owner references name the Job or the object that created it.
        """
        about = pod["metadata"]
        named = [
            *(about.get("labels") or {}).values(),
            *(owner["name"] for owner in about.get("ownerReferences") or ()),
        ]
        return next((self._launched[name] for name in named if name in self._launched), None)


def _settled(launched: _Launched, now_s: float) -> bool:
    if launched.is_over(now_s):
        return True
    expected = sum(shape.pods for shape in launched.demand.shapes())
    times = [launched.at_s, *(pod.at_s for pod in launched.pods.values())]
    return len(launched.pods) >= expected and now_s - max(times) >= SETTLE_S


def _version(obj: KubernetesObject) -> int | None:
    """Return the resource version as a number; None if it is not one and cannot be compared."""
    text = str(obj["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdigit() else None


def reason_to_wait(
    demand: Demand, quotas: Sequence[ResourceQuota], reservations: Reservations
) -> str:
    """Return why there is no room at present; "" if there is."""
    for quota in sorted(quotas, key=_name):
        status: ResourceQuotaStatus = quota.get("status") or {}
        launched, alive = reservations.on_top(quota), reservations.alive(quota)
        hard, used = status.get("hard") or {}, status.get("used") or {}
        for key, requests in charge(demand, quota).items():
            if key not in hard or key not in used:
                return f"QuotaUnknown: {key} is not counted yet (quota {_name(quota)})"
            limit = parse_quantity(hard[key])
            in_use = parse_quantity(used[key]) + launched.get(key, Decimal())
            in_use = max(in_use, alive.get(key, Decimal()))
            if in_use + requests > limit:
                needs = f", needs {shown_amount(key, requests)}" if in_use < limit else ""
                # Do not show a double count, which lasts a moment, as a use above the limit.
                reported = max(parse_quantity(used[key]), min(in_use, limit))
                use = f"{shown_amount(key, reported)}/{shown_amount(key, limit)}"
                return f"QuotaExceeded: {key} {use} (quota {_name(quota)}){needs}"
    return ""


def out_of_room(message: str) -> str | None:
    """Return why the quota has no room, from a refusal's message; None if it was not the cause."""
    if _FULL in message:
        return f"QuotaExceeded: {message.partition(_FULL)[2].lstrip(': ')}"
    return f"QuotaUnknown: {message}" if _FRESH in message else None


def never_fits(
    demand: Demand, quotas: Sequence[ResourceQuota], limit_ranges: Sequence[LimitRange]
) -> str:
    """Return why an attempt could not run even in an empty namespace; "" if it could."""
    demand = with_defaults(demand, limit_ranges)
    obstacles = [*_above_quota(demand, quotas), *_out_of_range(demand, limit_ranges)]
    return "; ".join(dict.fromkeys(obstacles))


def with_defaults(demand: Demand, limit_ranges: Sequence[LimitRange]) -> Demand:
    """Return the demand with LimitRange defaults, for pods with one container, as trials have."""
    defaults: dict[str, Decimal] = {}
    for _, rule in _rules(limit_ranges, "Container"):
        for name, text in (rule.get("defaultRequest") or {}).items():
            defaults[f"requests.{name}"] = parse_quantity(text)
        for name, text in (rule.get("default") or {}).items():
            if name in COMPUTE:
                defaults[f"limits.{name}"] = parse_quantity(text)
    has_compute = bool(_COMPUTE & defaults.keys())
    first, *others = (
        replace(
            shape,
            per_pod={**defaults, **shape.per_pod},
            best_effort=shape.best_effort and not has_compute,
            others=(),
        )
        for shape in demand.shapes()
    )
    return replace(first, others=tuple(others))


# What a quota counts


def charge(demand: Demand, quota: ResourceQuota) -> dict[str, Decimal]:
    """Return what the demand takes of the quota, by the quota's keys; only amounts above zero."""
    spec: ResourceQuotaSpec = quota.get("spec") or {}
    status: ResourceQuotaStatus = quota.get("status") or {}
    scopes = [
        ScopeSelectorRequirement(scopeName=scope, operator="Exists")
        for scope in spec.get("scopes") or ()
    ]
    scopes += (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    charged: dict[str, Decimal] = {}
    for key in {**(spec.get("hard") or {}), **(status.get("hard") or {})}:
        # Only pods have scopes: a quota with any counts nothing else.
        total = Decimal(0 if scopes else demand.objects.get(key, 0))
        for shape in demand.shapes():
            if all(_in_scope(shape, scope) for scope in scopes):
                total += _per_pod(shape, key) * shape.pods
        if total > 0:
            charged[key] = total
    return charged


def _per_pod(shape: Demand, key: str) -> Decimal:
    if key in ("pods", "count/pods"):
        return Decimal(1)
    if key in COMPUTE or key.startswith("hugepages-"):
        key = f"requests.{key}"
    return shape.per_pod.get(key, Decimal())


def _in_scope(shape: Demand, scope: ScopeSelectorRequirement) -> bool:
    match scope["scopeName"]:
        case "BestEffort":
            return shape.best_effort
        case "NotBestEffort":
            return not shape.best_effort
        case "Terminating":
            return shape.terminating
        case "NotTerminating":
            return not shape.terminating
        case "PriorityClass":
            values = scope.get("values") or ()
            match scope.get("operator"):
                case "In":
                    return shape.priority_class in values
                case "NotIn":
                    return shape.priority_class not in values
                case "DoesNotExist":
                    return not shape.priority_class
            return bool(shape.priority_class)
    return False  # scopes of other objects, or of pods unlike those of trials


# What never fits


def _above_quota(demand: Demand, quotas: Sequence[ResourceQuota]) -> Iterator[str]:
    for quota in sorted(quotas, key=_name):
        hard = (quota.get("spec") or {}).get("hard") or {}
        requests = charge(demand, quota)
        for key, text in hard.items():
            if requests.get(key, Decimal()) > (limit := parse_quantity(text)):
                maximum = shown_amount(key, limit)
                requested = shown_amount(key, requests[key])
                yield f"{key} {requested} is above {maximum}, all that quota {_name(quota)} allows"
            is_unasked = key in _MUST_BE_ASKED and key not in requests
            if is_unasked and _counts_pods_of(demand, quota, key):
                yield (
                    f"quota {_name(quota)} counts {key}, so every trial must request it: set "
                    f"spec.trial.resources"
                )


def _counts_pods_of(demand: Demand, quota: ResourceQuota, key: str) -> bool:
    """Whether the quota counts the key for these pods, whatever they request."""
    asked = key if "." in key else f"requests.{key}"
    asking = replace(demand, per_pod={**demand.per_pod, asked: Decimal(1)})
    return demand.pods > 0 and key in charge(asking, quota)


def _out_of_range(demand: Demand, limit_ranges: Sequence[LimitRange]) -> Iterator[str]:
    for shape in demand.shapes():
        for kind in ("Container", "Pod"):
            for limit_range, rule in _rules(limit_ranges, kind):
                yield from _missing_limits(shape, kind, limit_range, rule)
                yield from _above_maximum(shape, kind, limit_range, rule)
                yield from _below_minimum(shape, kind, limit_range, rule)


def _missing_limits(
    shape: Demand, kind: str, limit_range: str, rule: LimitRangeItem
) -> Iterator[str]:
    # A container without a limit gets the maximum of its LimitRange from the server.
    most_of_pods = (rule.get("max") or {}) if kind == "Pod" else {}
    limited = {*most_of_pods, *(rule.get("maxLimitRequestRatio") or ())}
    for name in sorted(COMPUTE & limited):
        if shape.pods and f"limits.{name}" not in shape.per_pod:
            yield (
                f"LimitRange {limit_range} requires a limit of {name}, so every trial must have "
                f"one: set spec.trial.resources"
            )


def _above_maximum(
    shape: Demand, kind: str, limit_range: str, rule: LimitRangeItem
) -> Iterator[str]:
    is_known = kind == "Pod" or shape.containers == 1
    for name, text in (rule.get("max") or {}).items():
        requested = shape.per_pod.get(f"requests.{name}", Decimal())
        amount = shape.per_pod.get(f"limits.{name}", requested)
        if amount > (limit := parse_quantity(text)) and is_known:
            yield (
                f"{name} {shown_amount(name, amount)} is above {shown_amount(name, limit)}, the "
                f"most that LimitRange {limit_range} allows a {kind.lower()}"
            )


def _below_minimum(
    shape: Demand, kind: str, limit_range: str, rule: LimitRangeItem
) -> Iterator[str]:
    for name, text in (rule.get("min") or {}).items():
        amount = shape.per_pod.get(f"requests.{name}", Decimal())
        if shape.pods and amount < (limit := parse_quantity(text)):
            yield (
                f"{name} {shown_amount(name, amount)} is below {shown_amount(name, limit)}, the "
                f"least that LimitRange {limit_range} allows a {kind.lower()}"
            )


def _rules(limit_ranges: Sequence[LimitRange], kind: str) -> Iterator[tuple[str, LimitRangeItem]]:
    """Yield the rules for this kind with the names of their LimitRanges."""
    for limit_range in sorted(limit_ranges, key=_name):
        for rule in (limit_range.get("spec") or {}).get("limits") or ():
            if rule.get("type") == kind:
                yield _name(limit_range), rule


def _name(obj: KubernetesObject) -> str:
    return str(obj["metadata"]["name"])


def shown_amount(key: str, amount: Decimal) -> str:
    """Format an amount as people write it: 8, 500m, 16Gi."""
    if any(word in key for word in _BYTES):
        for suffix, power in (("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)):
            if amount and amount % (1 << power) == 0:
                return f"{amount / (1 << power):f}"[:20].removesuffix(".0") + suffix
    thousandths = amount * 1000
    is_whole = amount == amount.to_integral_value()
    if not is_whole and thousandths == thousandths.to_integral_value():
        return f"{thousandths.to_integral_value():f}m"
    return f"{amount.normalize():f}"
