"""The CustomResourceDefinition of Experiment, derived from the declaration of the file's keys.

    python -m controller.operator.crd deploy/chart/files/experiments.tuner.dev.yaml

writes it. A test fails when the file is outdated.

A structural schema cannot say that a value has one of several types, as a parameter is a list or a
mapping. Such values pass, and the controller checks them, as it checks everything, by the reader of
files. So the definition may accept more than the reader, and must never refuse what the reader
accepts. Its rules between keys give the reader's messages.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from controller.operator.resource import EXPERIMENTS
from controller.spec import rules, schema
from controller.spec.native import DNS_RULE
from controller.spec.trial_section import INSTEAD_OF_TEMPLATE

Schema = dict[str, Any]

_OPEN = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_RULES = "x-kubernetes-validations"
# A map that is applied as one value. Of another one that becomes empty, server-side apply leaves
# null, which the schema refuses: the status would never be written again.
_ATOMIC = {"x-kubernetes-map-type": "atomic"}
# What a structural schema may not contain, or contains in another form.
_DROPPED = frozenset(
    {"$schema", "title", "format", "propertyNames", "patternProperties", "anyOf", "oneOf"}
)
# Keys whose written defaults would be refused beside a template.
_WITHOUT_DEFAULT = frozenset(f"spec.trial.{key}" for key in INSTEAD_OF_TEMPLATE)
_HEADER = """\
# Made by `python -m controller.operator.crd` from the keys of the file.
"""


def _rule(rule: str, message: str, field: str = "") -> Schema:
    """Return a rule in CEL. field: the key below `self` that the message is about; "": `self`."""
    return {"rule": rule, "message": message, **({"fieldPath": field} if field else {})}


# By the path of `self`. A value with several types is invisible to CEL, and so are lists and
# mappings of such values, such as trial.command. Messages have no numbers, which the reader's have:
# the server takes text that a rule makes of a number to be too expensive.
_RULES_BETWEEN_KEYS: Mapping[str, Sequence[Schema]] = {
    "spec": (
        _rule("has(self.objective) || has(self.objectives)", rules.NO_OBJECTIVE, ".objective"),
        _rule(
            "!has(self.objective) || !has(self.objectives)", rules.BOTH_OBJECTIVES, ".objectives"
        ),
        _rule(
            "!has(self.budget.regretBelow) || (!has(self.constraints) || self.constraints.size() "
            "== 0) && (!has(self.objectives) || self.objectives.size() <= 1)",
            rules.REGRET_OF_SEVERAL,
            ".budget.regretBelow",
        ),
        _rule("!has(self.final) || !has(self.trial.template)", rules.FINAL_OF_TEMPLATE, ".final"),
    ),
    "spec.budget": (
        _rule(
            "!has(self.overrun) || has(self.wallClock) || has(self.gpuHours) || has(self.cost)",
            rules.OVERRUN_OF_NOTHING,
            ".overrun",
        ),
    ),
    "spec.constraints[]": (
        _rule("has(self.min) || has(self.max)", rules.NO_BOUND),
        _rule(
            "!has(self.min) || !has(self.max) || self.min <= self.max",
            "min is above max; no value satisfies both",
        ),
    ),
    "spec.fidelity": (
        _rule("self.min > 0.0", "is not above 0", ".min"),
        _rule(
            "self.min <= 0.0 || self.max >= self.min * double(self.eta)",
            "is below min times eta, so no trial would be compared before its end; raise it",
            ".max",
        ),
    ),
    "spec.metrics": (
        _rule("!has(self.format) || has(self.file)", rules.FORMAT_OF_NO_FILE, ".format"),
        _rule(
            "!has(self.step) || !has(self.format) || self.format != 'tensorboard'",
            rules.STEP_OF_EVENTS,
            ".step",
        ),
    ),
}


def definition() -> Schema:
    """Return the CustomResourceDefinition."""
    group, _, version = EXPERIMENTS.api_version.partition("/")
    plural = EXPERIMENTS.plural
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # `helm uninstall` must not delete the experiments of all tenants.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": EXPERIMENTS.kind,
                "listKind": f"{EXPERIMENTS.kind}List",
                "plural": plural,
                "singular": "experiment",
                "shortNames": ["texp"],
                "categories": ["tuner"],
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": list(_columns()),
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def _columns() -> Iterator[Schema]:
    for name, kind, path in (
        ("State", "string", ".status.state"),
        ("Done", "string", ".status.done"),
        ("Best", "number", ".status.best.value"),
        ("Running", "integer", ".status.running"),
        ("Queued", "integer", ".status.queued"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ):
        yield {"name": name, "type": kind, "jsonPath": path}
    yield {"name": "Why", "type": "string", "jsonPath": ".status.reason", "priority": 1}


def _root() -> Schema:
    file = schema()["properties"]
    spec = structural(file["spec"], "spec")
    # A resource runs in the cluster of its controller, whatever it says.
    spec["properties"]["runtime"] = {
        "type": "string",
        "description": "Where `tuner run` runs trials; a cluster's controller runs them there.",
    }
    name = file["metadata"]["properties"]["name"]
    return {
        "type": "object",
        "description": "A search for the best hyperparameters of a program.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": spec,
            "status": _status(),
        },
        _RULES: [
            _rule(
                f"self.metadata.name.size() <= {name['maxLength']}",
                f"has too many characters; use at most {name['maxLength']}",
                ".metadata.name",
            ),
            _rule(
                f"self.metadata.name.matches('{name['pattern']}')",
                f"is not a name for an experiment; use {DNS_RULE}",
                ".metadata.name",
            ),
        ],
    }


def structural(node: Mapping[str, Any], path: str) -> Schema:
    """Return the part of a JSON Schema that a structural schema can say."""
    made = _form(node)
    for key, value in node.items():
        match key:
            case "properties":
                made[key] = {
                    name: structural(below, f"{path}.{name}") for name, below in value.items()
                }
            case "items":
                made[key] = structural(value, f"{path}[]")
            case "additionalProperties":
                if isinstance(value, Mapping) and "properties" not in node:
                    made[key] = structural(value, f"{path}.*")
            case "default":
                if path not in _WITHOUT_DEFAULT:
                    made[key] = value
            case _ if key not in _DROPPED | {"type"}:
                made[key] = value
    if path in _RULES_BETWEEN_KEYS:
        made[_RULES] = list(_RULES_BETWEEN_KEYS[path])
    return made


def _form(node: Mapping[str, Any]) -> Schema:
    """Return what says which types a value has, and whether it has keys that are not listed."""
    types = _types(node)
    if types == {"integer", "string"}:
        least = [each["minimum"] for each in _alternatives(node) if "minimum" in each]
        # A bound says nothing about a string.
        return {_INT_OR_STRING: True, **({"minimum": min(least)} if least else {})}
    if len(types) != 1:
        return {_OPEN: True}
    (only,) = types
    return {"type": only, _OPEN: True} if only == "object" and _is_open(node) else {"type": only}


def _is_open(node: Mapping[str, Any]) -> bool:
    """Return whether a mapping may have keys that a structural schema cannot describe."""
    others = node.get("additionalProperties", True)
    is_map = "properties" not in node and isinstance(others, Mapping)
    return "patternProperties" in node or not (others is False or is_map)


def _alternatives(node: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [*node.get("anyOf", ()), *node.get("oneOf", ())]


def _types(node: Mapping[str, Any]) -> set[str]:
    """Return the types of the values that a JSON Schema accepts; none: any."""
    if alternatives := _alternatives(node):
        return set().union(*map(_types, alternatives))
    if "type" in node:
        return {node["type"]} if isinstance(node["type"], str) else set(node["type"])
    # Constants and words are strings.
    return {"string"} if node.keys() & {"enum", "const"} else set()


def _field(kind: str, description: str = "", **more: object) -> Schema:
    return {"type": kind} | ({"description": description} if description else {}) | more


def _status() -> Schema:
    count, text, number = _field("integer"), _field("string"), _field("number")
    condition = _field(
        "object",
        required=["type", "status"],
        properties={
            **dict.fromkeys(("type", "status", "reason", "message"), text),
            "observedGeneration": count,
            "lastTransitionTime": _field("string", format="date-time"),
        },
    )
    best = {
        "number": count,
        "value": number,
        "values": _field("array", items=number),
        "parameters": {"type": "object", _OPEN: True, **_ATOMIC},
    }
    fields = {
        "observedGeneration": count,
        "revision": _field("integer", "The accepted version of the spec that is in force."),
        "state": text,
        "reason": _field(
            "string", "Why it is in its state, or what its first waiting trial waits for."
        ),
        "trials": _field("object", "Ended trials by state.", additionalProperties=count, **_ATOMIC),
        "done": _field("string", "Ended trials that count against the budget, of all."),
        "running": count,
        "queued": count,
        "best": _field("object", "The best trial.", properties=best),
        "optimal": _field("integer", "With several objectives, the size of the Pareto front."),
        "gpuHours": _field(
            "number", "GPU-hours that all attempts have used, where a budget counts them."
        ),
        "cost": _field("number", "What all attempts have cost by the prices."),
        "conditions": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": condition,
        },
    }
    how = "How the experiment goes, as the controller last saw it."
    return _field("object", how, properties=fields)


def text() -> str:
    """Return the definition as a file: JSON, which is YAML."""
    return f"{_HEADER}{json.dumps(definition(), indent=1, ensure_ascii=False)}\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
