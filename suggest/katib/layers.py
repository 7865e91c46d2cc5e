"""Katib's searches for a network's layers: `nas_config` as a `Network` for `enas`,
and the texts of `darts`. Pure.

What Katib refuses is refused in Katib's words, and its place is the problem's path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from suggest import darts
from suggest.errors import InvalidArgument, Problem, Problems
from suggest.katib.parameters import PARAMETERS, ParameterText, read_parameter
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.network import ARCHITECTURE, CONFIG, Network, Operation
from suggest.space import NAME_RULE, Choice, Parameter, Value, is_name

ENAS, DARTS = NAMES = ("enas", "darts")
_AT = "experiment.spec.nas_config"
_GRAPH = f"{_AT}.graph_config"
_OPERATIONS = f"{_AT}.operations.operation"
# Places in `nas_config` of the fields of a `Network`.
_PLACES = {
    "layers": f"{_GRAPH}.num_layers",
    "inputs": f"{_GRAPH}.input_sizes",
    "outputs": f"{_GRAPH}.output_sizes",
    "operations": _OPERATIONS,
}


class ArchitectureText(ParameterText):
    """`architecture`: a text is a value if one of the networks has it."""

    def __init__(self, network: Network) -> None:
        super().__init__(ARCHITECTURE, Choice(()))
        self._network = network

    def _value(self, text: str) -> tuple[Value, bool]:
        if self._network.point(text) is None:
            return None, False
        return text, True


class ConfigText(ParameterText):
    """`nn_config`: any text, because the architecture says which network it is."""

    def __init__(self) -> None:
        super().__init__(CONFIG, Choice(()))

    def _value(self, text: str) -> tuple[Value, bool]:
        return text, True


def read_network(spec: pb.ExperimentSpec, problems: Problems) -> Network | None:
    """Return the networks of a search, None if the message has problems, which are added."""
    before = len(problems)
    if spec.parameter_specs.parameters:
        message = "only one of parameters and nas_config can be specified; remove one"
        problems.add(PARAMETERS, message)
    graph = spec.nas_config.graph_config
    network = Network(
        graph.num_layers,
        tuple(graph.input_sizes),
        tuple(graph.output_sizes),
        tuple(_operations(spec.nas_config.operations.operation, problems)),
    )
    if spec.algorithm.algorithm_name == ENAS:
        missing = (
            ("num_layers", network.layers == 0, "Missing numLayers in GraphConfig"),
            ("input_sizes", not network.inputs, "Missing InputSizes in GraphConfig"),
            ("output_sizes", not network.outputs, "Missing OutputSizes in GraphConfig"),
        )
        for name, is_missing, message in missing:
            if is_missing:
                problems.add(f"{_GRAPH}.{name}", f"{message}; give it")
    if not network.operations and len(problems) == before:
        problems.add(_OPERATIONS, "no operations; give one or more")
    if len(problems) == before:
        found = network.problems() if spec.algorithm.algorithm_name == ENAS else _of_darts(network)
        problems += [_placed(problem) for problem in found]
    return network if len(problems) == before else None


def darts_parameters(network: Network, settings: Mapping[str, str]) -> tuple[ParameterText, ...]:
    """Return the parameters of `darts`, each of which has one value."""
    texts = darts.texts(settings, network.operations, network.layers)
    return tuple(ParameterText(name, Choice((text,))) for name, text in texts.items())


def _of_darts(network: Network) -> Iterator[Problem]:
    yield from (p for p in network.problems() if not p.path.startswith(("inputs", "outputs")))
    if sum(operation.count for operation in network.operations) > darts.MAX_OPERATIONS:
        yield Problem("operations", f"more than {darts.MAX_OPERATIONS} operations; use fewer")


def _placed(problem: Problem) -> Problem:
    field = problem.path.partition(".")[0].partition("[")[0]
    return Problem(_PLACES[field] + problem.path.removeprefix(field), problem.message)


def _operations(given: Sequence[pb.Operation], problems: Problems) -> Iterator[Operation]:
    for place, operation in enumerate(given):
        at = f"{_OPERATIONS}[{place}]"
        parameters: list[Parameter] = []
        if not operation.operation_type:
            problems.add(f"{at}.operation_type", "Missing operationType in Operation")
        if not operation.parameter_specs.parameters:
            message = "Missing ParameterConfigs in Operation; give one parameter or more"
            problems.add(f"{at}.parameter_specs.parameters", message)
        for index, parameter in enumerate(operation.parameter_specs.parameters):
            below = f"{at}.parameter_specs.parameters[{index}]"
            if not parameter.name:
                problems.add(f"{below}.name", "Missing Name in ParameterConfig")
            elif not is_name(parameter.name):
                message = f"{parameter.name[:80]!r} is not a name; use {NAME_RULE}"
                problems.add(f"{below}.name", message)
            elif parameter.name in {each.name for each in parameters}:
                message = f"Detect duplicated parameter name: {parameter.name}"
                problems.add(f"{below}.name", message)
            if parameter.parameter_type == pb.DOUBLE and not parameter.feasible_space.step:
                message = (
                    "Step parameter should be > 0 in ParameterConfig.feasibleSpace: operations "
                    "are numbered"
                )
                problems.add(f"{below}.feasible_space.step", message)
                continue
            try:
                domain = read_parameter(parameter, is_grid=False).domain
            except InvalidArgument as error:
                problems += [
                    Problem(f"{below}.{each.path}", f"{parameter.name}: {each.message}")
                    for each in error.problems
                ]
            else:
                parameters.append(Parameter(parameter.name, domain))
        yield Operation(operation.operation_type, tuple(parameters))
