"""Katib's `nasConfig`, converted to the native `spec.network` for `enas`,
and to the parameters that every trial of `darts` gets.

Refuses what Katib's webhook and its services refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from controller.spec.document import network_of
from controller.spec.katib_domain import KatibDomainReader
from controller.spec.katib_section import Json, KatibFile, shown
from suggest import darts
from suggest.network import TEXTS, Network

OF_LAYERS = ("enas", "darts")
AT = "spec.nasConfig"
_GRAPH = f"{AT}.graphConfig"
# Native keys, by those of `graphConfig`.
_SIZES = {"numLayers": "layers", "inputSizes": "inputs", "outputSizes": "outputs"}


@dataclass(frozen=True, slots=True)
class Layers:
    """What a search for layers is natively.

    names: what the trial's template may refer to. native: keys of the native spec.
    """

    names: tuple[str, ...]
    parameters: Json = field(default_factory=dict)
    native: Json = field(default_factory=dict)


class KatibLayersReader(KatibDomainReader):
    """Reads `spec.nasConfig` of one file."""

    def __init__(self, file: KatibFile, spec: Json) -> None:
        super().__init__(file)
        self._spec = spec

    def read(self, algorithm: str, settings: Json) -> Layers:
        """Return the search. settings: those of `darts`, as text."""
        before = len(self._problems.found)
        if self._spec.get("parameters") is not None:
            message = "only one of spec.parameters and spec.nasConfig can be specified; remove one"
            self._problems.add("spec.parameters", message, at_key=True)
        config = self._mapping(self._spec, "nasConfig", "spec")
        if not config:
            return Layers(())
        self._only(config, AT, ("graphConfig", "operations"))
        graph = self._mapping(config, "graphConfig", AT)
        self._only(graph, _GRAPH, _SIZES)
        network = {
            "layers": self._layers(graph),
            "inputs": self._sizes(graph, "inputSizes", is_needed=algorithm == "enas"),
            "outputs": self._sizes(graph, "outputSizes", is_needed=algorithm == "enas"),
            "operations": list(self._operations(config, algorithm)),
        }
        if not network["operations"] and len(self._problems.found) == before:
            self._problems.add(f"{AT}.operations", "no operations; write one or more")
        for key, to in _SIZES.items():
            self._file.places[f"spec.network.{to}"] = f"{_GRAPH}.{key}"
        self._file.places["spec.network.operations"] = f"{AT}.operations"
        if algorithm == "enas":
            return Layers(TEXTS, native={"network": network})
        if len(self._problems.found) > before:
            return Layers(())
        return self._darts(network, settings)

    def _darts(self, network: Json, settings: Json) -> Layers:
        read = network_of(network)
        assert read is not None
        found = list(self._problems_of_darts(read))
        for path, message in found:
            self._problems.add(path, message)
        if found:
            return Layers(())
        texts = darts.texts(settings, read.operations, read.layers)
        parameters = {name: {"type": "choice", "values": [text]} for name, text in texts.items()}
        return Layers(tuple(texts), parameters)

    def _problems_of_darts(self, network: Network) -> Iterator[tuple[str, str]]:
        if sum(operation.count for operation in network.operations) > darts.MAX_OPERATIONS:
            message = f"more than {darts.MAX_OPERATIONS} operations; write fewer values"
            yield f"{AT}.operations", message
        for problem in network.problems():
            if problem.path.startswith("operations"):
                yield f"{AT}.{problem.path}", problem.message

    def _layers(self, graph: Json) -> int:
        count = graph.get("numLayers")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            got = "" if count is None else f", got {shown(count)}"
            message = f"expected the number of layers, a whole number from 1{got}"
            self._problems.add(f"{_GRAPH}.numLayers", message)
            return 1
        return count

    def _sizes(self, graph: Json, key: str, *, is_needed: bool) -> list[int]:
        if graph.get(key) is None and not is_needed:
            return []
        sizes = self._list(graph, key, _GRAPH)
        if graph.get(key) == []:
            self._problems.add(f"{_GRAPH}.{key}", "has no sizes; write a list such as [8, 8, 1]")
        for i, size in enumerate(sizes):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                message = f"expected a whole number from 1, got {shown(size)}"
                self._problems.add(f"{_GRAPH}.{key}[{i}]", message)
        return sizes

    def _operations(self, config: Json, algorithm: str) -> Iterator[Json]:
        for i, operation in enumerate(self._list(config, "operations", AT)):
            at = f"{AT}.operations[{i}]"
            if not isinstance(operation, dict):
                self._problems.add(at, "must be a mapping with operationType and parameters")
                continue
            self._only(operation, at, ("operationType", "parameters"))
            kind = operation.get("operationType")
            if not isinstance(kind, str) or not kind:
                message = "must be specified; write a name such as convolution"
                self._problems.add(f"{at}.operationType", message)
                kind = ""
            native_at = f"spec.network.operations[{i}]"
            self._file.places[f"{native_at}.type"] = f"{at}.operationType"
            # Katib's own darts-gpu.yaml gives it none, and its search space has none for it.
            has_no_size = algorithm == "darts" and kind == darts.WITHOUT_SIZE
            is_absent = operation.get("parameters") is None
            given = [] if has_no_size and is_absent else self._list(operation, "parameters", at)
            if operation.get("parameters") == []:
                self._problems.add(f"{at}.parameters", "has no parameters; write one or more")
            parameters: Json = {}
            for k, parameter in enumerate(given):
                below = f"{at}.parameters[{k}]"
                domain = self._add_parameter(
                    parameter, below, parameters, f"{native_at}.parameters"
                )
                is_float = domain.get("type") == "float"
                if is_float and "step" not in domain and domain["min"] < domain["max"]:
                    cure = 'because operations are numbered; write one such as "0.1"'
                    self._problems.add(f"{below}.feasibleSpace.step", f"must be specified, {cure}")
            yield {"type": kind, "parameters": parameters}
