"""The CustomResourceDefinition of Experiment, derived from the declaration of the file's keys.

    python -m controller.operator.crd deploy/chart/files/experiments.tuner.dev.yaml

writes it. A test fails when the file is outdated.

A structural schema cannot say that a value has one of several types, as a parameter is a list or a
mapping. Such values pass, and the controller checks them, as it checks everything, by the reader of
files. Defaults below `spec.trial` are left to the reader, because some of those keys are refused
beside a template.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from controller.core.model import MAX_NAME_LENGTH
from controller.operator.resource import EXPERIMENTS
from controller.spec import schema

Schema = dict[str, Any]

_OPEN = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_RULES = "x-kubernetes-validations"
# What a structural schema may not contain, or may contain only in another form.
_DROPPED = frozenset({"$schema", "title", "format", "propertyNames", "patternProperties"})
_ALTERNATIVES = ("oneOf", "anyOf")
# Keys whose defaults depend on others, by path; those of the file's namespace and runtime do not
# apply to a resource.
_WITHOUT_DEFAULTS = ("spec.trial", "spec.final", "spec.runtime")
_HEADER = """\
# Made by `python -m controller.operator.crd` from the keys of the file.
"""


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
    spec = structural(schema()["properties"]["spec"], "spec")
    spec["properties"]["suspend"] = {
        "type": "boolean",
        "description": "Stops the trials and keeps the experiment until this is false again.",
    }
    spec[_RULES] = [
        _rule(
            "has(self.objective) != has(self.objectives)",
            "write either objective or objectives",
        )
    ]
    # Bounds that the rules need to be cheap.
    spec["properties"]["constraints"]["maxItems"] = 100
    spec["properties"]["constraints"]["items"][_RULES] = [
        _rule("has(self.min) || has(self.max)", "a constraint needs min, max or both")
    ]
    return {
        "type": "object",
        "description": "A search for the best hyperparameters of a program.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": _status(),
        },
        _RULES: [
            _rule(
                f"self.metadata.name.size() <= {MAX_NAME_LENGTH}",
                f"metadata.name has at most {MAX_NAME_LENGTH} characters, because names of Jobs "
                "begin with it",
            ),
            _rule(
                "self.metadata.name.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",
                "metadata.name has lower-case letters, digits and -, because names of pods begin "
                "with it",
            ),
        ],
    }


def _rule(rule: str, message: str) -> Schema:
    return {"rule": rule, "message": message}


def structural(node: Mapping[str, Any], path: str) -> Schema:
    """Return the part of a JSON Schema that a structural schema can say."""
    described = {key: node[key] for key in ("description",) if key in node}
    if any(key in node for key in _ALTERNATIVES) or not node.keys() & {"type", "enum"}:
        return {_OPEN: True, **described}
    if isinstance(node.get("type"), list):
        is_whole = set(node["type"]) == {"string", "integer"}
        return {_INT_OR_STRING if is_whole else _OPEN: True, **described}
    if "enum" in node and (path == "spec.runtime" or not _are_words(node["enum"])):
        return {"type": "string", **described} if path == "spec.runtime" else {_OPEN: True}
    made: Schema = {"type": "string"} if "enum" in node else {}
    for key, value in node.items():
        match key:
            case "properties":
                made[key] = {
                    name: structural(below, f"{path}.{name}") for name, below in value.items()
                }
            case "items":
                made[key] = structural(value, f"{path}[]")
            case "additionalProperties":
                if isinstance(value, Mapping):
                    made[key] = structural(value, f"{path}.*")
            case "default":
                if not path.startswith(_WITHOUT_DEFAULTS):
                    made[key] = value
            case _ if key not in _DROPPED:
                made[key] = value
    if "properties" in made and made.pop("additionalProperties", None) is not None:
        made[_OPEN] = True
    has_keys = made.keys() & {"properties", "additionalProperties"}
    if "patternProperties" in node or (node.get("type") == "object" and not has_keys):
        made[_OPEN] = True
    return made


def _are_words(values: list[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _status() -> Schema:
    number, text = {"type": "integer"}, {"type": "string"}
    value = {"type": "number"}
    condition = {
        "type": "object",
        "required": ["type", "status"],
        "properties": {
            **dict.fromkeys(("type", "status", "reason", "message"), text),
            "observedGeneration": number,
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        },
    }
    best = {
        "type": "object",
        "description": "The best trial.",
        "properties": {
            "number": number,
            "value": value,
            "values": {"type": "array", "items": value},
            "parameters": {"type": "object", _OPEN: True},
        },
    }
    return {
        "type": "object",
        "description": "How the experiment goes, as the controller last saw it.",
        "properties": {
            "observedGeneration": number,
            "revision": {
                **number,
                "description": "The accepted version of the spec that is in force.",
            },
            "state": text,
            "reason": {
                **text,
                "description": "Why it is in its state, or what its first waiting trial waits for.",
            },
            "trials": {
                "type": "object",
                "description": "Ended trials by state.",
                "additionalProperties": number,
            },
            "done": {
                **text,
                "description": "Ended trials that count against the budget, of all.",
            },
            "running": number,
            "queued": number,
            "best": best,
            "conditions": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": condition,
            },
        },
    }


def text() -> str:
    """Return the definition as a file: JSON, which is YAML."""
    return f"{_HEADER}{json.dumps(definition(), indent=1, ensure_ascii=False)}\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
