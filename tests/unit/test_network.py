"""Networks as spaces: the parameters of a search for layers, and the texts that programs get."""

from __future__ import annotations

import json

import pytest

from suggest.network import Network, Operation
from suggest.samplers import PointRequest
from suggest.samplers.uniform import draw_point
from suggest.space import Choice, Condition, Float, Int, Parameter

CONVOLUTION = Operation(
    "convolution",
    (
        Parameter("filter_size", Choice(("3", "5"))),
        Parameter("num_filter", Int(32, 96, step=32)),
    ),
)
POOLING = Operation("reduction", (Parameter("pool_size", Int(2, 3)),))
NETWORK = Network(3, (8, 8, 1), (10,), (CONVOLUTION, POOLING))


def test_a_layer_has_an_operation_with_its_parameters_and_a_choice_for_each_earlier_layer() -> None:
    assert [p.name for p in NETWORK.parameters if p.name.startswith("layer3")] == [
        "layer3",
        "layer3.convolution.filter_size",
        "layer3.convolution.num_filter",
        "layer3.reduction.pool_size",
        "layer3.from.input",
        "layer3.from.layer1",
    ]
    assert NETWORK.space.by_name["layer1.reduction.pool_size"].when == (
        Condition("layer1", ("reduction",)),
    )
    assert NETWORK.space.problems() == ()


def test_the_texts_of_a_point_are_katibs() -> None:
    point = {
        "layer1": "convolution",
        "layer1.convolution.filter_size": "5",
        "layer1.convolution.num_filter": 96,
        "layer2": "reduction",
        "layer2.reduction.pool_size": 2,
        "layer2.from.input": True,
        "layer3": "convolution",
        "layer3.convolution.filter_size": "3",
        "layer3.convolution.num_filter": 32,
        "layer3.from.input": False,
        "layer3.from.layer1": True,
    }
    texts = NETWORK.texts(point)
    assert texts["architecture"] == "[[5], [6, 1], [0, 0, 1]]"
    assert '"' not in texts["nn_config"]
    assert json.loads(texts["nn_config"].replace("'", '"')) == {
        "num_layers": 3,
        "input_sizes": [8, 8, 1],
        "output_sizes": [10],
        "embedding": {
            "5": {
                "opt_id": 5,
                "opt_type": "convolution",
                "opt_params": {"filter_size": "5", "num_filter": 96},
            },
            "6": {"opt_id": 6, "opt_type": "reduction", "opt_params": {"pool_size": 2}},
            "0": {
                "opt_id": 0,
                "opt_type": "convolution",
                "opt_params": {"filter_size": "3", "num_filter": 32},
            },
        },
    }
    assert NETWORK.point(texts["architecture"]) == point


def test_an_architecture_means_the_point_that_it_was_made_of() -> None:
    points = [draw_point(NETWORK.space, 1, PointRequest(number, {})) for number in range(200)]
    assert [NETWORK.point(NETWORK.texts(point)["architecture"]) for point in points] == points


@pytest.mark.parametrize(
    "architecture",
    [
        "",
        "{}",
        "[[0], [0, 0]]",
        "[[0], [0, 0], [8, 0, 0]]",
        "[[0], [0, 0], [-1, 0, 0]]",
        "[[0], [0, 2], [0, 0, 0]]",
        "[[0], [0], [0, 0, 0]]",
        "[[0], [0, 0], [0.5, 0, 0]]",
        "[[true], [0, 0], [0, 0, 0]]",
        "[0, 0, 0]",
        "[" * 100_000,
    ],
)
def test_other_texts_are_no_architecture(architecture: str) -> None:
    assert NETWORK.point(architecture) is None


def test_operations_of_one_type_are_told_apart() -> None:
    wide = Operation("convolution", (Parameter("filter_size", Choice(("7",))),))
    network = Network(1, (8,), (10,), (CONVOLUTION, wide))
    point = {"layer1": "convolution-2", "layer1.convolution-2.filter_size": "7"}
    assert network.texts(point)["architecture"] == "[[6]]"
    assert network.point("[[6]]") == point
    assert "'opt_type': 'convolution'," in network.texts(point)["nn_config"]


@pytest.mark.parametrize(
    ("network", "path", "says"),
    [
        (Network(0, (8,), (10,), (POOLING,)), "layers", "use 1 or more"),
        (Network(60, (8,), (10,), (POOLING,)), "layers", "use fewer layers"),
        (Network(2, (), (10,), (POOLING,)), "inputs", "no sizes"),
        (Network(2, (8,), (0,), (POOLING,)), "outputs[0]", "use 1 or more"),
        (Network(2, (8,), (10,), ()), "operations", "at least one"),
        (
            Network(2, (8,), (10,), (Operation("pool", (Parameter("rate", Float(0, 1)),)),)),
            "operations[0].parameters.rate.step",
            "write a step",
        ),
        (
            Network(2, (8,), (10,), (Operation("it's"),)),
            "operations[0].type",
            "quotation mark",
        ),
    ],
)
def test_a_network_that_cannot_be_searched_is_refused(
    network: Network, path: str, says: str
) -> None:
    (problem,) = network.problems()
    assert problem.path == path
    assert says in problem.message
