"""The prices of the platform team, as flags of `tuner controller`."""

from __future__ import annotations

import pytest

from controller.cli.arguments import parse
from controller.cli.operator import node_prices_of, prices_of
from suggest.errors import InvalidArgument


def test_prices_are_those_of_the_file() -> None:
    given = prices_of(["nvidia.com/gpu=2.5", "cpu=0.04", "memory=0"])
    assert given == {"nvidia.com/gpu": 2.5, "cpu": 0.04, "memory": 0}
    assert prices_of([]) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cpu=-1", "--price.cpu: expected a number of at least 0, got the number -1"),
        ("cpu", "--price.cpu: expected a number of at least 0, got the string ''"),
        ("gpu=1", "--price.gpu: is not accepted here; write nvidia.com/gpu"),
        ("gold=1", "--price.gold: no such key"),
    ],
)
def test_a_wrong_price_is_refused_at_its_resource(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        prices_of([text])
    assert message in str(refused.value)


def test_prices_of_nodes_are_by_the_value_of_their_label() -> None:
    flags = ["--price=cpu=1", "--node-price-label=pool"]
    prices = ["--node-price=a100:nvidia.com/gpu=2.5", "--node-price=a100:cpu=2"]
    given = node_prices_of(parse(["controller", *flags, *prices]))
    assert given == {"a100": {"nvidia.com/gpu": 2.5, "cpu": 2}}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--node-price=a:cpu=1"], "--node-price: belongs to --node-price-label"),
        (["--node-price-label=pool"], "--node-price: belongs to --node-price-label"),
        (["--node-price-label=pool", "--node-price=a:cpu=1"], "--node-price: requires --price"),
        (
            ["--price=cpu=1", "--node-price-label=pool", "--node-price=a:cpu=-1"],
            "--node-price a.cpu: expected a number of at least 0, got the number -1",
        ),
    ],
)
def test_wrong_prices_of_nodes_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        node_prices_of(parse(["controller", *flags]))
    assert message in str(refused.value)
