"""Katib's files of `enas` and `darts`: the native search, and what is refused at which place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller.spec.problems import SpecErrors
from controller.spec.reading import Document, read
from suggest.katib.experiment import read_experiment
from suggest.katib.v1beta1 import api_pb2 as pb

EXAMPLES = Path(__file__).parents[2] / "examples" / "katib"
ENAS = (EXAMPLES / "enas" / "enas.yaml").read_text(encoding="utf-8")
DARTS = (EXAMPLES / "darts" / "darts.yaml").read_text(encoding="utf-8")


def document(text: str) -> Document:
    return read(text, source="katib.yaml")


def refusal(text: str) -> str:
    with pytest.raises(SpecErrors) as caught:
        document(text)
    return str(caught.value)


def test_enas_is_a_native_network_searched_by_a_model() -> None:
    spec = document(ENAS).spec
    assert spec.algorithm.name == "tpe"
    assert spec.network is not None
    assert spec.network.layers == 3
    assert [operation.type for operation in spec.network.operations] == [
        "convolution",
        "separable_convolution",
        "reduction",
    ]


def test_a_file_and_a_request_search_the_same_networks() -> None:
    experiment = pb.Experiment(name="enas")
    experiment.spec.algorithm.algorithm_name = "enas"
    config = experiment.spec.nas_config
    graph = pb.GraphConfig(num_layers=3, input_sizes=[8, 8, 1], output_sizes=[10])
    config.graph_config.CopyFrom(graph)
    sizes = {"filter_size": ["3", "5"], "num_filter": ["8", "16"]}
    pooling = {"reduction_type": ["max_pooling", "avg_pooling"]}
    for kind, lists in (
        ("convolution", {**sizes, "stride": ["1", "2"]}),
        ("separable_convolution", sizes),
        ("reduction", pooling),
    ):
        specs = config.operations.operation.add(operation_type=kind).parameter_specs
        for name, values in lists.items():
            space = pb.FeasibleSpace(list=values)
            specs.parameters.add(name=name, parameter_type=pb.CATEGORICAL, feasible_space=space)
    space = pb.FeasibleSpace(min="2", max="3", step="1")
    specs.parameters.add(name="pool_size", parameter_type=pb.INT, feasible_space=space)
    assert read_experiment(experiment).network == document(ENAS).spec.network


def test_quotes_that_katibs_shell_removes_do_not_reach_the_program() -> None:
    assert document(ENAS).spec.trial.args[:2] == (
        "--architecture=${architecture}",
        "--nn_config=${nn_config}",
    )
    pushed = ENAS.replace(
        "  algorithm: {", "  metricsCollectorSpec: {collector: {kind: Push}}\n  algorithm: {"
    )
    assert document(pushed).spec.trial.args[0] == '--architecture="${architecture}"'


def test_the_settings_of_katibs_controller_are_told_as_unused_once() -> None:
    settings = (
        "{algorithmName: enas, algorithmSettings: [{name: controller_hidden_size, value: '64'}, "
        "{name: controller_temperature, value: None}]}"
    )
    [warning] = document(ENAS.replace("{algorithmName: enas}", settings)).warnings
    assert "controller_hidden_size, controller_temperature have no effect here" in warning


def test_every_trial_of_darts_gets_its_three_texts() -> None:
    space = document(DARTS).spec.space
    [settings] = space.by_name["algorithm-settings"].domain.values
    read_settings = json.loads(str(settings).replace("'", '"'))
    assert len(read_settings) == 14
    assert (read_settings["num_epochs"], read_settings["w_momentum"]) == ("5", 0.9)
    assert space.by_name["num-layers"].domain.values == ("2",)
    assert "separable_convolution_3x3" in str(space.by_name["search-space"].domain.values)


def test_the_objective_of_darts_is_a_text() -> None:
    objective = document(DARTS.replace("type: maximize", "type: minimize")).spec.objective
    assert objective.text
    assert objective.direction.value == "maximize"


def test_darts_needs_a_filter_that_reads_the_text() -> None:
    start = DARTS.index("    source: {filter")
    without = DARTS.replace(DARTS[start : DARTS.index("\n", start) + 1], "")
    assert "expected a filter that reads the text" in refusal(without)


GOOD_AND_BAD = {
    "numLayers: 3": ("numLayers: 0", "nasConfig.graphConfig.numLayers: expected the number"),
    "numLayers: 3,": ("numLayers: 60,", "nasConfig.graphConfig.numLayers: 60 layers make"),
    "inputSizes: [8, 8, 1], ": ("", "graphConfig.inputSizes: must be specified"),
    "outputSizes: [10]": ("outputSizes: []", "graphConfig.outputSizes: has no sizes"),
    "outputSizes: [10]}": ("outputSizes: [x]}", "outputSizes[0]: expected a whole number from 1"),
    "operationType: reduction": ("operationType: ''", "operations[2].operationType: must be"),
    "operationType: convolution": (
        "kind: convolution",
        "operations[0].kind: is not a key of Katib's",
    ),
    "name: pool_size, ": ("", "operations[2].parameters[1]: must be a mapping with a name"),
    "parameterType: int": ("parameterType: whole", "'whole' is not supported"),
    'min: "2"': ('min: "4"', "min 4 is above max 3"),
    'parameterType: int, feasibleSpace: {min: "2", max: "3", step: "1"}': (
        'parameterType: double, feasibleSpace: {min: "2", max: "3"}',
        "operations[2].parameters[1].feasibleSpace.step: must be specified, because",
    ),
    "list: [max_pooling, avg_pooling]": ('list: ["it\'s"]', "quotation mark"),
    "algorithmName: enas": ("algorithmName: random", "spec.nasConfig: random searches parameters"),
    "{algorithmName: enas}": (
        "{algorithmName: enas, algorithmSettings: [{name: random_state, value: '1'}]}",
        "unknown setting 'random_state' for algorithm enas",
    ),
    "reference: nn_config": ("reference: config", "config is not a parameter of this file"),
}


@pytest.mark.parametrize("good", GOOD_AND_BAD)
def test_what_katib_refuses_is_refused_at_its_place(good: str) -> None:
    bad, says = GOOD_AND_BAD[good]
    assert good in ENAS
    assert says in refusal(ENAS.replace(good, bad, 1))


def test_parameters_and_nas_config_exclude_each_other() -> None:
    both = ENAS.replace("  nasConfig:", "  parameters: []\n  nasConfig:")
    assert "only one of spec.parameters and spec.nasConfig" in refusal(both)
    start, end = ENAS.index("  nasConfig:"), ENAS.index("  trialTemplate:")
    assert "spec.nasConfig: must be specified" in refusal(ENAS[:start] + ENAS[end:])


def test_a_skip_connection_of_darts_needs_no_parameters() -> None:
    skip = "      - operationType: skip_connection\n"
    darts = DARTS.replace("    operations:\n", f"    operations:\n{skip}")
    space = document(darts).spec.space.by_name["search-space"].domain
    assert "skip_connection" in str(space)
    enas = ENAS.replace("    operations:\n", f"    operations:\n{skip}")
    assert "operations[0].parameters: must be specified" in refusal(enas)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("{name: num_epochs, value: '0'}", "expected a whole number from 1"),
        ("{name: w_lr, value: fast}", "expected a number"),
        ("{name: learning_rate, value: '1'}", "unknown setting 'learning_rate'"),
    ],
)
def test_a_setting_of_darts_is_checked(value: str, says: str) -> None:
    assert says in refusal(DARTS.replace('{name: num_epochs, value: "5"}', value))
