"""The definition of Experiment is a structural schema that says what the file's keys say."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.operator import crd
from controller.operator.resource import document_of

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy/chart/files/experiments.tuner.dev.yaml"
ROOT_SCHEMA = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
WHOLE = "x-kubernetes-int-or-string"
OPEN = "x-kubernetes-preserve-unknown-fields"


def nodes(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}.{key}")


def test_the_file_of_the_chart_is_current() -> None:
    assert FILE.read_text(encoding="utf-8") == crd.text(), (
        f"python -m controller.operator.crd {FILE.relative_to(ROOT)} writes it again"
    )


def test_every_value_has_a_type_or_is_left_to_the_controller() -> None:
    for path, node in nodes(ROOT_SCHEMA):
        assert isinstance(node.get("type"), str) or node.get(OPEN) or node.get(WHOLE), path


def test_nothing_is_said_that_a_structural_schema_refuses() -> None:
    refused = {"$ref", "$schema", "title", "oneOf", "anyOf", "allOf", "not", "propertyNames"}
    refused |= {"patternProperties", "const", "if"}
    for path, node in nodes(ROOT_SCHEMA):
        assert not refused & set(node), path
        assert not {"properties", "additionalProperties"} <= set(node), path


def test_every_key_of_the_file_is_explained() -> None:
    for path, node in nodes(ROOT_SCHEMA["properties"]["spec"], ".spec"):
        is_key = path.count(".") > 1 and not path.endswith((".items", ".additionalProperties"))
        assert not is_key or node.get("description"), path


def defaulted(schema: Mapping[str, Any], value: Any) -> Any:
    """Apply the defaults as the API server does: in what is there, from the outside."""
    if isinstance(value, dict):
        for name, below in schema.get("properties", {}).items():
            if name not in value and "default" in below:
                value[name] = copy.deepcopy(below["default"])
            if name in value:
                value[name] = defaulted(below, value[name])
    if isinstance(value, list) and "items" in schema:
        return [defaulted(schema["items"], each) for each in value]
    return value


def files() -> Iterator[Path]:
    for path in sorted(ROOT.glob("examples/**/*.yaml")):
        document = next(iter(yaml.safe_load_all(path.read_text(encoding="utf-8"))), None)
        if isinstance(document, dict) and document.get("apiVersion") == "tuner.dev/v1":
            yield path


def resource_of(path: Path) -> Any:
    """Return the file as a resource; on a cluster a trial needs an image."""
    resource = yaml.safe_load(path.read_text(encoding="utf-8"))
    resource["metadata"] |= {"namespace": "default", "uid": "1"}
    trial = resource["spec"]["trial"]
    if "template" not in trial:
        trial.setdefault("image", "tiny:1")
    return resource


@pytest.mark.parametrize("path", list(files()), ids=lambda path: str(path.relative_to(ROOT)))
def test_defaults_that_the_server_writes_change_no_experiment(path: Path) -> None:
    resource = resource_of(path)
    plain = document_of(resource)
    assert document_of(defaulted(ROOT_SCHEMA, copy.deepcopy(resource))).spec == plain.spec


def test_a_wrong_default_would_be_noticed() -> None:
    (path, *_) = files()
    resource = resource_of(path)
    wrong = copy.deepcopy(ROOT_SCHEMA)
    wrong["properties"]["spec"]["properties"]["canary"]["default"] = "77s"
    resource["spec"].pop("canary", None)
    assert document_of(defaulted(wrong, copy.deepcopy(resource))).spec != document_of(resource).spec
