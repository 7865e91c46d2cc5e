"""`spec.network` in a file: the space, the texts that the command gets, and the problems."""

from __future__ import annotations

import json

import pytest

from controller.spec.native import schema
from controller.spec.problems import SpecErrors
from controller.spec.reading import Document, read
from suggest.samplers import PointRequest
from suggest.samplers.uniform import draw_point
from suggest.space import Choice, Int
from tests.unit.test_spec_schema import violations

TEXT = """\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: net}
spec:
  objective: {metric: accuracy, direction: maximize}
  parameters:
    lr: {type: float, min: 0.01, max: 0.3, scale: log}
  network:
    layers: 3
    inputs: [8, 8, 1]
    outputs: [10]
    operations:
      - type: convolution
        parameters: {filter_size: [3, 5], num_filter: {type: int, min: 8, max: 24, step: 8}}
      - {type: skip}
  trial:
    command: [python, train.py, "--lr=${lr}", "--net=${architecture}", "--config=${nn_config}"]
"""


def document(text: str = TEXT) -> Document:
    return read(text, source="net.yaml")


def problems(text: str) -> list[str]:
    with pytest.raises(SpecErrors) as refused:
        document(text)
    return [str(each) for each in refused.value.located]


def test_a_network_adds_its_layers_to_the_parameters() -> None:
    space = document().spec.space
    assert [p.name for p in space.parameters[:4]] == [
        "lr",
        "layer1",
        "layer1.convolution.filter_size",
        "layer1.convolution.num_filter",
    ]
    assert space.by_name["layer1"].domain == Choice(("convolution", "skip"))
    assert space.by_name["layer2.convolution.num_filter"].domain == Int(8, 24, step=8)


def test_a_program_gets_its_network_as_two_texts() -> None:
    spec = document().spec
    point = draw_point(spec.space, 1, PointRequest(0, {}))
    given = spec.of_program(point)
    assert given.items() >= point.items()
    assert len(json.loads(str(given["architecture"]))) == 3
    assert str(given["nn_config"]).startswith("{'num_layers': 3, 'input_sizes': [8, 8, 1]")


def test_a_network_needs_no_other_parameters() -> None:
    alone = TEXT.replace(
        "  parameters:\n    lr: {type: float, min: 0.01, max: 0.3, scale: log}\n", ""
    )
    alone = alone.replace('"--lr=${lr}", ', "")
    assert "lr" not in document(alone).spec.space.by_name


def test_the_file_of_a_network_has_no_warning_and_fits_the_schema() -> None:
    assert document().warnings == ()
    assert list(violations(document().spec.document, schema())) == []


def test_a_command_without_the_network_is_warned_of() -> None:
    silent = TEXT.replace(', "--net=${architecture}", "--config=${nn_config}"', "")
    assert any("architecture, nn_config: not mentioned" in w for w in document(silent).warnings)


def test_a_command_may_name_the_layers_instead() -> None:
    named = TEXT.replace(
        '"--net=${architecture}", "--config=${nn_config}"',
        '"--layer=${layer1}:${layer1.convolution.filter_size}"',
    )
    assert document(named).warnings == ()


REFUSED = {
    "layers: 3": ("layers: 0", "spec.network.layers: expected a whole number of at least 1"),
    "layers: 3 ": ("layers: 50", "spec.network.layers: 50 layers make"),
    "inputs: [8, 8, 1]": ("inputs: []", "spec.network.inputs: expected a list of sizes"),
    "    outputs: [10]\n": ("", "spec.network.outputs: is missing"),
    "num_filter: {type: int, min: 8, max: 24, step: 8}": (
        "rate: {type: float, min: 0, max: 1}",
        "spec.network.operations[0].parameters.rate.step: is missing; operations are numbered",
    ),
    "filter_size: [3, 5]": (
        "filter_size: {type: choice, values: [3], when: {lr: 1}}",
        "filter_size.when: belongs to spec.parameters",
    ),
    "type: convolution": ("kind: convolution", "spec.network.operations[0].type: is missing"),
    "type: skip": ('type: "it\'s"', "spec.network.operations[1].type"),
    "type: skip ": ('type: "{x}"', "is not the name of an operation; use 1 to 100 characters"),
    "    lr: {": ("    architecture: {", "is what the program gets of spec.network"),
    "    lr:": ("    layer1:", "occurs twice; every parameter needs a unique name"),
    "${architecture}": ("${architectur}", "did you mean ${architecture}?"),
}


@pytest.mark.parametrize("old", REFUSED)
def test_a_network_that_cannot_be_searched_is_refused_at_its_place(old: str) -> None:
    new, says = REFUSED[old]
    found = problems(TEXT.replace(old.strip(" ") if old.endswith(" ") else old, new))
    assert any(says in each for each in found), found


def test_a_file_without_parameters_and_network_lacks_them() -> None:
    lines = TEXT.splitlines(keepends=True)
    text = "".join([*lines[:5], *lines[-2:]]).replace("${lr}", "1")
    text = text.replace("${architecture}", "1").replace("${nn_config}", "1")
    assert any("spec.parameters: is missing" in each for each in problems(text))
