"""Katib's searches for a network's layers over gRPC: what is read,
and what is refused in which words.
"""

from __future__ import annotations

import json

import pytest

from suggest.errors import InvalidArgument
from suggest.katib.experiment import validate
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.space import Choice
from tests.service.katib_caller import choice, double, of_layers, whole

PLACE = "experiment.spec.nas_config"
OPERATION = f"{PLACE}.operations.operation[0]"


def refusal(experiment: pb.Experiment) -> str:
    with pytest.raises(InvalidArgument) as caught:
        validate(experiment)
    return str(caught.value)


def test_enas_is_a_conditional_space_that_callers_see_as_two_texts() -> None:
    experiment = validate(of_layers("enas"))
    assert experiment.names == ("architecture", "nn_config")
    assert experiment.spec.algorithm.name == "tpe"
    assert experiment.spec.space.by_name["layer1"].domain == Choice(
        ("convolution", "skip_connection")
    )


def test_darts_gets_its_three_texts() -> None:
    settings = {"num_epochs": "2", "batch_size": "None"}
    texts = validate(of_layers("darts", settings=settings)).texts
    found = {text.name: text.domain.at(0) for text in texts}
    assert list(found) == ["algorithm-settings", "search-space", "num-layers"]
    assert found["search-space"] == "['convolution_3x3', 'convolution_5x5', 'skip_connection']"
    assert found["num-layers"] == "3"
    settings_read = json.loads(str(found["algorithm-settings"]).replace("'", '"'))
    assert len(settings_read) == 14
    assert settings_read["num_epochs"] == "2"
    assert settings_read["batch_size"] is None
    assert (settings_read["w_lr"], settings_read["num_nodes"]) == (0.025, 4)


def test_the_settings_of_katibs_controller_are_checked_and_not_used() -> None:
    given = {"controller_hidden_size": "64", "controller_temperature": "None"}
    experiment = validate(of_layers("enas", settings=given))
    assert experiment.unused == ("controller_hidden_size", "controller_temperature")
    assert experiment.spec.algorithm.settings == {}


SETTINGS = {
    ("enas", "controller_hidden_size", "0"): "with int type must be in range [1, inf)",
    ("enas", "controller_train_steps", "few"): "must be int type, got few",
    ("enas", "controller_learning_rate", "2"): "with float type must be in range (0, 1]",
    ("enas", "controller_skip_target", "nan"): "with float type must be in range (0, 1]",
    ("enas", "controller_skip_weight", "0"): "with float type must be in range (0, inf)",
    ("enas", "random_state", "1"): "unknown setting random_state for algorithm enas",
    ("darts", "num_epochs", "0"): "num_epochs should be greate than zero",
    ("darts", "w_lr", "-1"): "w_lr should be greate or equal than zero",
    ("darts", "num_nodes", "0"): "num_nodes should be greate or equal than one",
    ("darts", "stem", "3"): "unknown setting stem for algorithm darts",
    ("darts", "batch_size", "many"): "failed to validate batch_size(many)",
}


@pytest.mark.parametrize("case", SETTINGS)
def test_a_setting_that_katib_refuses_is_refused(case: tuple[str, str, str]) -> None:
    algorithm, name, value = case
    assert SETTINGS[case] in refusal(of_layers(algorithm, settings={name: value}))


def both() -> pb.Experiment:
    experiment = of_layers("enas")
    experiment.spec.parameter_specs.parameters.append(choice("x", "a"))
    return experiment


def no_sizes() -> pb.Experiment:
    experiment = of_layers("enas")
    experiment.spec.nas_config.graph_config.Clear()
    return experiment


def of_operation(*parameters: pb.ParameterSpec, kind: str = "convolution") -> pb.Experiment:
    experiment = of_layers("enas")
    operation = experiment.spec.nas_config.operations.operation[0]
    operation.operation_type = kind
    del operation.parameter_specs.parameters[:]
    operation.parameter_specs.parameters.extend(parameters)
    return experiment


def no_operations() -> pb.Experiment:
    experiment = of_layers("darts")
    experiment.spec.nas_config.operations.Clear()
    return experiment


def of_another_algorithm() -> pb.Experiment:
    experiment = of_layers("enas")
    experiment.spec.algorithm.algorithm_name = "tpe"
    return experiment


REFUSED = {
    "parameters beside nas_config": (both(), "only one of parameters and nas_config"),
    "no layers": (no_sizes(), f"{PLACE}.graph_config.num_layers: Missing numLayers"),
    "no inputs": (no_sizes(), f"{PLACE}.graph_config.input_sizes: Missing InputSizes"),
    "no outputs": (no_sizes(), f"{PLACE}.graph_config.output_sizes: Missing OutputSizes"),
    "no operations": (no_operations(), "no operations; give one or more"),
    "too many layers": (of_layers("enas", layers=100), f"{PLACE}.graph_config.num_layers: 100"),
    "an operation without a type": (
        of_operation(choice("size", "3"), kind=""),
        f"{OPERATION}.operation_type: Missing operationType",
    ),
    "an operation without parameters": (of_operation(), f"{OPERATION}.parameter_specs.parameters"),
    "a parameter without a name": (of_operation(choice("", "3")), "Missing Name"),
    "a parameter twice": (
        of_operation(choice("size", "3"), choice("size", "5")),
        "Detect duplicated parameter name: size",
    ),
    "a list without values": (of_operation(choice("size")), "size: is empty"),
    "an int without an end": (of_operation(whole("size", "1", "")), "size: must be specified"),
    "a double without a step": (
        of_operation(double("rate", "0", "1")),
        "feasible_space.step: Step parameter should be > 0",
    ),
    "a quotation mark": (of_operation(choice("size", "3'")), "quotation mark"),
    "another algorithm": (of_another_algorithm(), f"{PLACE}: tpe searches parameters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_searched_is_refused_at_its_place(name: str) -> None:
    experiment, says = REFUSED[name]
    assert says in refusal(experiment)
