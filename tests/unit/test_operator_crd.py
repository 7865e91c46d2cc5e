"""The definition of Experiment is a structural schema that says what the file's keys say."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.operator import crd
from controller.operator.resource import document_of
from controller.spec import SpecErrors, read
from suggest.server.admin import check
from tests.unit.searches import examples
from tests.unit.test_spec_mutated import mutated

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy/chart/files/experiments.tuner.dev.yaml"
ROOT_SCHEMA = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
WHOLE = "x-kubernetes-int-or-string"
OPEN = "x-kubernetes-preserve-unknown-fields"
RULES = "x-kubernetes-validations"


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
        text = path.read_text(encoding="utf-8")
        document = next(iter(yaml.load_all(text, yaml.CSafeLoader)), None)
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


TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": int | float,
}


def refusals(schema: Mapping[str, Any], value: Any, at: str = "") -> Iterator[str]:
    """Yield the places that a server refuses by the schema, but for rules in CEL."""
    if value is None:
        return  # a null of a file is removed before anything is checked
    kinds: Any = int | str if WHOLE in schema else TYPES.get(schema.get("type", ""), object)
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds in (int, int | float)):
        yield f"{at}: {value!r} is not of type {schema.get('type', WHOLE)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is not in {schema['enum']}"
    match value:
        case str():
            least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
            if not least <= len(value) <= most or not re.search(schema.get("pattern", ""), value):
                yield f"{at}: {value!r} has the wrong form"
        case int() | float():
            if not schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf):
                yield f"{at}: {value!r} is out of range"
        case list():
            if len(value) < schema.get("minItems", 0):
                yield f"{at}: is too short"
            for index, each in enumerate(value):
                yield from refusals(schema.get("items", {}), each, f"{at}[{index}]")
        case dict():
            yield from (
                f"{at}.{key}: is missing" for key in schema.get("required", ()) if key not in value
            )
            others = schema.get("additionalProperties", {})
            for key, below in value.items():
                yield from refusals(
                    schema.get("properties", {}).get(key, others), below, f"{at}.{key}"
                )


SPELLINGS = [
    {"canary": "1m 30s"},
    {"budget": {"failedTrials": "none", "wallClock": "1.5h"}},
    {"budget": {"trials": "none"}},
    {"budget": {"failedTrials": 3}},
    {"breaker": "off"},
    {"fidelity": {"parameter": "epochs", "min": 1, "max": 9}},
    {"objective": {"metric": "val acc", "direction": "maximize"}},
    {"constraints": [{"metric": "size", "max": 3}, {"metric": "ms", "min": 0.5}]},
    {"metrics": {"pattern": [r"(\w+)=(\S+)"], "step": "epoch"}},
    {"metrics": {"pattern": r"(\w+)=(\S+)"}},
]


def test_what_the_reader_accepts_the_server_accepts_and_its_defaults_change_nothing() -> None:
    seen = []

    @given(mutated(), st.sampled_from(SPELLINGS))
    @examples(600)
    def go(text: str, spelled: dict[str, Any]) -> None:
        # A resource is JSON, which has no nan.
        resource = json.loads(text, parse_constant=str)
        spec = resource.get("spec")
        if resource.get("apiVersion") != "tuner.dev/v1" or not isinstance(spec, dict):
            return
        if isinstance(spec.get("trial"), dict) and "template" not in spec["trial"]:
            spec["trial"].setdefault("image", "tiny:1")
        spec |= {"runtime": "kubernetes", **copy.deepcopy(spelled)}
        try:
            plain = read(json.dumps(resource), source="resource", service=check)
        except SpecErrors:
            return
        seen.append(text)
        assert list(refusals(ROOT_SCHEMA, resource)) == []
        served = read(
            json.dumps(defaulted(ROOT_SCHEMA, resource)), source="resource", service=check
        )
        assert (served.spec, served.warnings) == (plain.spec, plain.warnings)

    go()
    assert seen


BETWEEN_KEYS: dict[str, dict[str, Any]] = {
    "spec.objective": {"objective": None},
    "spec.objectives": {"objectives": [{"metric": "a", "direction": "minimize"}]},
    "spec.constraints[0]": {"constraints": [{"metric": "a"}]},
    "spec.budget.regretBelow": {
        "budget": {"regretBelow": 1},
        "constraints": [{"metric": "a", "max": 1}],
    },
    "spec.budget.overrun": {"budget": {"overrun": "stop"}},
    "spec.metrics.format": {"metrics": {"format": "json"}},
    "spec.metrics.step": {"metrics": {"format": "tensorboard", "file": "runs", "step": "epoch"}},
    "spec.final": {
        "final": {"command": ["a"]},
        "trial": {"template": {"apiVersion": "batch/v1", "kind": "Job"}},
    },
}


@pytest.mark.parametrize("place", BETWEEN_KEYS)
def test_rules_between_keys_have_the_messages_of_the_reader(place: str) -> None:
    resource = resource_of(ROOT / "examples/digits/experiment.yaml")
    resource["spec"] |= BETWEEN_KEYS[place]
    resource["spec"] = {key: value for key, value in resource["spec"].items() if value is not None}
    with pytest.raises(SpecErrors) as refused:
        document_of(resource)
    messages = {each.message for each in refused.value.located if each.path == place}
    said = [rule["message"] for _, node in nodes(ROOT_SCHEMA) for rule in node.get(RULES, ())]
    assert messages & set(said) == messages != set()


def test_a_suspended_experiment_is_the_same_experiment() -> None:
    resource = resource_of(ROOT / "examples/digits/experiment.yaml")
    plain = document_of(resource)
    resource["spec"]["suspend"] = True
    assert document_of(resource) == plain


def test_a_wrong_default_would_be_noticed() -> None:
    (path, *_) = files()
    resource = resource_of(path)
    wrong = copy.deepcopy(ROOT_SCHEMA)
    wrong["properties"]["spec"]["properties"]["canary"]["default"] = "77s"
    resource["spec"].pop("canary", None)
    assert document_of(defaulted(wrong, copy.deepcopy(resource))).spec != document_of(resource).spec
