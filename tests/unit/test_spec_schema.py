"""The JSON Schema, the reference and the starter file agree with the reader."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.spec import SpecErrors, read, render, schema, starter
from controller.spec.document import fill_defaults
from controller.spec.problems import ProblemCollector
from controller.spec.reading import _check
from controller.spec.yaml_text import parse
from docs_site.file_reference import rewritten
from suggest.space import Value

DOC = Path("docs/experiment.md")
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


def violations(data: object, rule: dict[str, Any], at: str = "") -> Iterator[str]:
    """Validate by the part of JSON Schema that ours uses."""
    if "oneOf" in rule:
        fits = [one for one in rule["oneOf"] if not any(violations(data, one))]
        if len(fits) != 1:
            yield f"{at}: fits {len(fits)} of the forms"
    if "anyOf" in rule and all(any(violations(data, one)) for one in rule["anyOf"]):
        yield f"{at}: fits none of the forms"
    if "const" in rule and data != rule["const"]:
        yield f"{at}: {data!r} is not {rule['const']}"
    if "enum" in rule and data not in rule["enum"]:
        yield f"{at}: {data!r} is none of {rule['enum']}"
    wanted = rule.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    if wanted and not any(
        isinstance(data, TYPES[t]) and (t == "boolean" or not isinstance(data, bool))
        for t in wanted
    ):
        yield f"{at}: {data!r} is no {wanted}"
    if isinstance(data, str) and "pattern" in rule and not re.search(rule["pattern"], data):
        yield f"{at}: {data!r} does not match {rule['pattern']}"
    if isinstance(data, str) and len(data) > rule.get("maxLength", 1_000_000):
        yield f"{at}: too long"
    if isinstance(data, int | float) and data < rule.get("minimum", -1e300):
        yield f"{at}: too small"
    if isinstance(data, list):
        if len(data) < rule.get("minItems", 0):
            yield f"{at}: too few"
        for i, item in enumerate(data):
            yield from violations(item, rule.get("items", {}), f"{at}[{i}]")
    if isinstance(data, dict):
        yield from _in_mapping(data, rule, at)


def _in_mapping(data: dict[str, object], rule: dict[str, Any], at: str) -> Iterator[str]:
    yield from (f"{at}: {key} is missing" for key in rule.get("required", []) if key not in data)
    for key, value in data.items():
        patterns = [
            sub
            for pattern, sub in rule.get("patternProperties", {}).items()
            if re.search(pattern, key)
        ]
        if key in rule.get("properties", {}):
            yield from violations(value, rule["properties"][key], f"{at}.{key}")
        elif patterns:
            yield from violations(value, patterns[0], f"{at}.{key}")
        elif rule.get("additionalProperties", True) is False:
            yield f"{at}: {key} is unknown"
        elif isinstance(rule.get("additionalProperties"), dict):
            yield from violations(value, rule["additionalProperties"], f"{at}.{key}")


FILES = {
    "starter": starter(),
    **{
        path.name: text
        for path in sorted(Path("examples").glob("*/*.yaml"))
        # the schema is that of native files
        if "apiVersion: tuner.dev/" in (text := path.read_text(encoding="utf-8"))
    },
    "docs": re.findall(r"```yaml\n(apiVersion.*?)```", DOC.read_text(encoding="utf-8"), re.S)[0],
}


@pytest.mark.parametrize("name", FILES)
def test_the_schema_accepts_what_the_reader_accepts(name: str) -> None:
    data, _ = parse(FILES[name], name)
    assert list(violations(data, schema())) == []
    spec = read(FILES[name], source=name).spec
    assert list(violations(spec.document, schema())) == []


@pytest.mark.parametrize(
    "override",
    [
        "spec.budget.trials=0",
        "spec.budget.max=0",
        "spec.parallelism=two",
        "spec.objective.direction=up",
        "spec.parameters.lr.max=high",
        "spec.parameters.lr={type: float}",
        "spec.parameters.lr=[]",
        "spec.trial.env.A={secrets: a/b}",
        "spec.trial.timeout=5",
        "spec.trial.timeout=5x",
        "spec.trial.devices=[a100]",
        "spec.trial.devices=[-1]",
        "spec.trial.parametersFile=toml",
        "spec.trial.resources.memory=16GB",
        "spec.trial.command=python train.py",
        "metadata.name=A_B",
        "kind: Trial",
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(override: str) -> None:
    from controller.spec.overrides import apply

    with pytest.raises(SpecErrors):
        read(starter(), source="x", overrides=[override])
    if "=" in override:
        data, marks = parse(starter(), "x")
        apply(data, marks, override, position=0)
        assert list(violations(data, schema())) != []


def test_the_schema_shows_the_defaults_that_the_reader_fills_in() -> None:
    properties = schema()["properties"]["spec"]["properties"]
    assert properties["parallelism"]["default"] == 1
    assert properties["trial"]["properties"]["gracePeriod"]["default"] == "30s"


def test_the_reference_lists_the_keys_of_today() -> None:
    page = DOC.read_text(encoding="utf-8")
    assert page == rewritten(page), "run: python -m docs_site.file_reference docs/experiment.md"


def test_the_starter_file_has_no_problems() -> None:
    document = read(starter(), source="experiment.yaml")
    assert document.warnings == ()
    assert document.spec.budget.trials == 20
    without = "".join(line for line in starter().splitlines(True) if "algorithm:" not in line)
    assert (
        document.spec.algorithm.name == read(without, source="experiment.yaml").spec.algorithm.name
    )


def test_a_trial_of_the_starter_file_runs_and_reports_its_metric() -> None:
    point: dict[str, Value] = {"lr": 0.03, "layers": 3, "optimizer": "adam"}
    command, _ = render(read(starter(), source="experiment.yaml").spec.trial, point)
    done = subprocess.run(
        [sys.executable, *command[1:]], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 10
    assert re.fullmatch(r"step=10 score=0\.9\d+", lines[-1])


def test_filling_in_defaults_twice_changes_nothing() -> None:
    data, _ = parse(starter(), "x")
    once = _check(data, ProblemCollector())
    before = repr(once)
    fill_defaults(once)
    assert repr(once) == before
