"""An experiment as plain JSON data in one canonical form: what is stored,
hashed, compared and shown.

A document is made from a checked file. It becomes an `ExperimentSpec` without YAML and without
another check. Its values are those that the person gave, including secrets in `env`, because a
resumed experiment needs them. Show people only `redacted_document`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from controller.core.model import (
    END_BY_THEMSELVES,
    FORMAT,
    Budget,
    ConfirmRule,
    ExperimentObjective,
    ExperimentSpec,
    FailureClass,
    KatibReports,
    MetricsFile,
    MetricsFormat,
    MetricsRule,
    MetricsSource,
    PrometheusEndpoint,
    Rerun,
    Resources,
    SecretRef,
    TrialTemplate,
)
from controller.spec.fields import ABSENT, fields_of
from controller.spec.native import (
    BUDGET,
    CONFIRM,
    CONSTRAINT,
    FIDELITY,
    FILE,
    METRICS,
    PROMETHEUS,
    RERUN,
    SPEC,
)
from controller.spec.network_section import NETWORK
from controller.spec.quantities import parse_bytes
from controller.spec.sections import Section
from controller.spec.trial_section import CLUSTER_KEYS, INSTEAD_OF_TEMPLATE, TRIAL
from suggest.network import Network, Operation
from suggest.space import Choice, Condition, Domain, Float, Int, Normal, Parameter, Scale, Space
from suggest.study import Algorithm, Constraint, Direction, Fidelity, Pruning, ValueRule

# Plain data in the shape that `native.FILE` describes.
Json = dict[str, Any]
T = TypeVar("T")

DEFAULT_TRIALS = 100
LEAST_FAILED_TRIALS = 5
LABELS = "metadata.labels"
REVISABLE = (
    "spec.trial",
    "spec.final",
    "spec.confirm",
    "spec.parallelism",
    "spec.budget",
    "spec.prices",
    "spec.breaker",
    "spec.pruning",
    "spec.metrics",  # a pause because nothing was read names them
    LABELS,
)

# What takes effect without stopping a trial.
SETTABLE = (
    "spec.parallelism",
    "spec.budget",
    "spec.prices",
    "spec.breaker",
    "spec.pruning",
    "spec.trial.timeout",
    "spec.trial.retries",
)


def fill_defaults(document: Json) -> None:
    """Fill in the defaults that depend on other keys, in a document without problems.

    The tables have all others.
    """
    spec = document["spec"]
    budget, trial = spec["budget"], spec["trial"]
    if "template" in trial:
        spec["trial"] = {
            key: value for key, value in trial.items() if key not in INSTEAD_OF_TEMPLATE
        }
    if "trials" not in budget and spec["algorithm"]["name"] not in END_BY_THEMSELVES:
        budget["trials"] = DEFAULT_TRIALS
    trials = budget.get("trials", "none")
    tenth = 0 if trials == "none" else -(-trials // 10)
    budget.setdefault("failedTrials", max(LEAST_FAILED_TRIALS, tenth))


def space_of(parameters: Json, network: Network | None) -> Space:
    """Return the space of the file's parameters and, after them, those of its network."""
    own = tuple(
        Parameter(name, domain_of(fields), _when(fields)) for name, fields in parameters.items()
    )
    return Space(own if network is None else (*own, *network.parameters))


def network_of(fields: Json) -> Network | None:
    """Return the networks of `spec.network`, None if a key of it is missing."""
    if fields.keys() != {key.name for key in NETWORK.keys}:
        return None
    return Network(
        fields["layers"],
        tuple(fields["inputs"]),
        tuple(fields["outputs"]),
        tuple(map(_operation, fields["operations"])),
    )


def _operation(fields: Json) -> Operation:
    parameters = fields.get("parameters", {})
    made = (Parameter(name, domain_of(each)) for name, each in parameters.items())
    return Operation(fields.get("type", ""), tuple(made))


def domain_of(fields: Json) -> Domain:
    if fields["type"] == "choice":
        return Choice(tuple(fields["values"]))
    low = fields["min"]
    high = fields["max"]
    scale = Scale(fields["scale"])
    step = fields.get("step")
    normal = None
    if "distribution" in fields:
        normal = Normal.within(low, high, scale, fields.get("mean"), fields.get("deviation"))
    if fields["type"] == "int":
        return Int(low, high, scale, fields["step"], normal)
    return Float(
        float(low),
        float(high),
        scale,
        None if step is None else float(step),
        fields.get("points"),
        normal,
    )


def _when(fields: Json) -> tuple[Condition, ...]:
    return tuple(Condition(name, tuple(values)) for name, values in fields.get("when", {}).items())


def from_document(document: Mapping[str, object]) -> ExperimentSpec:
    """Return the experiment of a canonical document (`ExperimentSpec.document`), also as stored."""
    whole: Json = dict(document)
    is_katib = whole.pop(FORMAT, "") == "katib"
    metadata, spec = whole["metadata"], whole["spec"]
    metrics, budget = spec["metrics"], spec["budget"]
    first, *further = map(objective_of, spec.get("objectives") or [spec["objective"]])
    network = network_of(spec["network"]) if "network" in spec else None
    space = space_of(spec["parameters"], network)
    return ExperimentSpec(
        name=metadata["name"],
        namespace=metadata["namespace"],
        labels=metadata["labels"],
        space=space,
        network=network,
        objective=first,
        further=tuple(further),
        constraints=tuple(
            Constraint(**fields_of(CONSTRAINT.keys, constraint))
            for constraint in spec.get("constraints", ())
        ),
        metrics=MetricsRule(source=_metrics_source(metrics), **fields_of(METRICS.keys, metrics)),
        initial=tuple(
            point if spec.get("defineByRun") else space.canonical(point)
            for point in spec["initial"]
        ),
        algorithm=algorithm_of(spec["algorithm"]),
        pruning=pruning_of(spec.get("pruning", {})),
        fidelity=_of_section(Fidelity, FIDELITY, spec.get("fidelity")),
        confirm=_of_section(ConfirmRule, CONFIRM, spec.get("confirm")),
        rerun=_of_section(Rerun, RERUN, spec.get("rerun")),
        budget=Budget(**fields_of(BUDGET.keys, budget)),
        trial=_trial(spec["trial"]),
        final=None if "final" not in spec else _trial(completed(spec["final"], spec["trial"])),
        final_weights=_weights(spec.get("final", {}).get("choose"), (first, *further)),
        document=whole,
        is_katib=is_katib,
        **fields_of(SPEC.keys, spec),
    )


def unknown_keys(
    document: Mapping[str, object], section: Section = FILE, at: str = ""
) -> list[str]:
    """Return the paths of the keys of a stored document that only another version has."""
    kinds = {key.name: key.kind for key in section.keys}
    found = []
    for name, value in document.items():
        path, kind = f"{at}.{name}" if at else name, kinds.get(name)
        if kind is None and section.rest is None:
            found.append(path)
        elif isinstance(kind, Section) and isinstance(value, Mapping):
            found += unknown_keys(value, kind, path)
    return found


def _of_section(made: Callable[..., T], section: Section, given: Json | None) -> T | None:
    """Return the value that a section of the file describes; None if the file lacks it."""
    return None if given is None else made(**fields_of(section.keys, given))


def _weights(
    choose: str | Mapping[str, float] | None, objectives: Sequence[ExperimentObjective]
) -> tuple[float, ...]:
    if choose is None or choose == "first":
        return ()
    if isinstance(choose, str):
        return (1.0,) * len(objectives)
    return tuple(float(choose.get(objective.metric, 0.0)) for objective in objectives)


def _metrics_source(fields: Json) -> MetricsSource | None:
    if fields.get("dbManager"):
        return KatibReports()
    if "prometheus" in fields:
        return PrometheusEndpoint(**fields_of(PROMETHEUS.keys, fields["prometheus"]))
    if "file" in fields:
        return MetricsFile(
            fields["file"], MetricsFormat(fields.get("format", MetricsFormat.TEXT.value))
        )
    return None


def objective_of(fields: Json) -> ExperimentObjective:
    target = fields.get("target")
    return ExperimentObjective(
        fields["metric"],
        Direction(fields["direction"]),
        ValueRule(fields["value"]),
        None if target is None else float(target),
        fields.get("text", False),
    )


def algorithm_of(fields: Json) -> Algorithm:
    return Algorithm(fields["name"], fields.get("seed"), fields.get("settings", {}))


def pruning_of(fields: Json) -> Pruning | None:
    """Return the rule of `spec.pruning`; None if it has no name."""
    settings = dict(fields)
    name = settings.pop("name", None)
    return None if name is None else Pruning(name, settings)


def completed(final: Json, trial: Json) -> Json:
    """Return the section `final` in the form of `trial`.

    Keys that `final` lacks come from `trial`, also each environment variable and each resource.
    """
    whole = {**trial, **final}
    return whole | {
        key: {**trial.get(key, {}), **final.get(key, {})} for key in ("env", "resources")
    }


def _trial(fields: Json) -> TrialTemplate:
    resources = fields.get("resources", {})
    memory, disk = resources.get("memory"), resources.get("ephemeralStorage")
    cpu = resources.get("cpu")
    return TrialTemplate(
        command=tuple(fields.get("command", ())),
        args=tuple(fields.get("args", ())),
        env={name: _env(value) for name, value in fields.get("env", {}).items()},
        resources=Resources(
            cpu=None if cpu is None else float(cpu),
            memory_bytes=None if memory is None else parse_bytes(memory),
            gpu=float(resources.get("gpu", 0)),
            ephemeral_storage_bytes=None if disk is None else parse_bytes(disk),
            extended={name: count for name, count in resources.items() if "/" in name},
        ),
        retries={FailureClass(name): count for name, count in fields["retries"].items()},
        devices=tuple(str(device) for device in fields.get("devices", ())),
        cluster={key.name: fields[key.name] for key in CLUSTER_KEYS if key.name in fields},
        **fields_of(TRIAL.keys, fields),
    )


def _env(value: str | Mapping[str, str]) -> str | SecretRef:
    return value if isinstance(value, str) else SecretRef(*value["secret"].split("/", 1))


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs between two documents; None means that the key is absent."""

    path: str
    old: object
    new: object

    def __str__(self) -> str:
        def shown(value: object) -> str:
            return "nothing" if value is None else json.dumps(value, ensure_ascii=False)

        return f"{self.path}: {shown(self.old)} -> {shown(self.new)}"


def diff(old: Mapping[str, object], new: Mapping[str, object]) -> list[Change]:
    """Return the changed values, in the order of the new document.

    Mappings are compared by key, lists as a whole.

    A key that `old` lacks and that has its default in `new` is no change: `old` was stored before
    there was the key.
    """
    changes = _diff("", old, new)
    return [
        change
        for change in changes
        if change.old is not None or change.new != _default(change.path)
    ]


def _default(path: str) -> object:
    """Return the default of a key of the file; ABSENT if it has none."""
    kind: object = FILE
    default: object = ABSENT
    for name in path.split("."):
        keys = kind.keys if isinstance(kind, Section) else ()
        key = next((key for key in keys if key.name == name), None)
        if key is None:
            return ABSENT
        kind, default = key.kind, key.default
    return default


def _diff(path: str, old: Mapping[str, object], new: Mapping[str, object]) -> list[Change]:
    changes: list[Change] = []
    for key in [*new, *(key for key in old if key not in new)]:
        below = f"{path}.{key}" if path else key
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            changes += _diff(below, before, after)
        elif json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True):
            # True is not 1.
            changes.append(Change(below, before, after))
    return changes


def allowed_in_revision(change: Change) -> bool:
    """Return whether `tuner resume FILE` accepts the change.

    A renaming also depends on a condition that the caller knows.
    """
    return _under(change.path, REVISABLE) or is_renaming(change)


def is_renaming(change: Change) -> bool:
    """Return whether only metrics of objectives or constraints have other names."""
    return change.path == "spec.objective.metric" or _same_but_for(change, ("metric",))


def _same_but_for(change: Change, keys: Sequence[str]) -> bool:
    """Return if objectives or constraints, compared as whole lists, differ in these keys only."""
    if change.path not in ("spec.objectives", "spec.constraints"):
        return False
    return _without(change.old, keys) == _without(change.new, keys) is not None


def _without(goals: object, keys: Sequence[str]) -> list[Json] | None:
    if not isinstance(goals, list):
        return None
    return [{key: value for key, value in goal.items() if key not in keys} for goal in goals]


def allowed_while_running(change: Change) -> bool:
    """Return whether `tuner set` accepts the change: it takes effect without stopping a trial."""
    return _under(change.path, SETTABLE)


def is_label(change: Change) -> bool:
    """Return whether the change is of a label.

    Labels do not affect the search, so they may always change.
    """
    return _under(change.path, (LABELS,))


def allowed_in_extension(change: Change) -> bool:
    """Return whether `tuner extend` accepts the change, except for the rules of growing parameters.

    Those rules are checked by the service.
    """
    if change.path == "spec.initial":
        new, old = change.new, change.old
        return isinstance(new, list) and isinstance(old, list) and _begins_with(new, old)
    is_target = change.path == "spec.objective.target" or _same_but_for(change, ("target",))
    return is_target or allowed_in_revision(change) or _under(change.path, ("spec.parameters",))


def _begins_with(new: list[object], old: list[object]) -> bool:
    return json.dumps(new[: len(old)], sort_keys=True) == json.dumps(old, sort_keys=True)


def _under(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith((f"{root}.", f"{root}[")) for root in roots)
