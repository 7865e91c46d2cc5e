"""`spec.network`: a search for a network's layers, which `suggest.network` makes a space.

This module checks types only; the rules are in `suggest.network`.
"""

from __future__ import annotations

from controller.spec.fields import (
    INVALID,
    REQUIRED,
    Key,
    ListOf,
    Schema,
    Text,
    WholeNumber,
)
from controller.spec.parameters import ParameterKind
from controller.spec.problems import ProblemCollector
from controller.spec.sections import MapOf, Section
from suggest.space import name_rule

MAX_NAME = 100

SIZES = ListOf(WholeNumber(1), "a list of sizes such as [8, 8, 1]", least=1)


_PARAMETER = ParameterKind()


class OperationParameter:
    """A parameter of an operation: one of `spec.parameters` without conditions."""

    expected = _PARAMETER.expected

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if isinstance(raw, dict) and "when" in raw:
            message = "belongs to spec.parameters: here the operation decides; remove it"
            problems.add(f"{at}.when", message, at_key=True)
            return INVALID
        return _PARAMETER.take(raw, at, problems)

    def schema(self) -> Schema:
        kinds = _PARAMETER.schema()["oneOf"]
        return {"oneOf": [_without_conditions(kind) for kind in kinds]}


def _without_conditions(kind: Schema) -> Schema:
    if "properties" not in kind:
        return kind
    properties = {name: of for name, of in kind["properties"].items() if name != "when"}
    return {**kind, "properties": properties}


OPERATION = Section(
    (
        Key(
            "type",
            Text("the name of an operation", r"[^{}]+", name_rule(MAX_NAME), MAX_NAME),
            "Name of the operation.",
            REQUIRED,
        ),
        Key(
            "parameters",
            MapOf(OperationParameter(), "a mapping of names to parameters"),
            "Parameters of the operation, as in `spec.parameters` without `when`. A float needs a "
            "`step`, because operations are numbered.",
            {},
        ),
    ),
    expected="a mapping such as {type: convolution, parameters: {filter_size: [3, 5]}}",
)
NETWORK = Section(
    (
        Key("layers", WholeNumber(1), "Number of layers.", REQUIRED),
        Key("inputs", SIZES, "Sizes of the input, which only the program reads.", REQUIRED),
        Key("outputs", SIZES, "Sizes of the output, which only the program reads.", REQUIRED),
        Key(
            "operations",
            ListOf(OPERATION, "a list of operations", least=1),
            "Operations to choose from for each layer.",
            REQUIRED,
        ),
    ),
    expected="a mapping with layers, inputs, outputs and operations",
)
