"""A search for a network's layers: a space with conditions,
and the texts with which Katib's programs get a point of it.

Each layer has an operation with its parameters, and may read earlier layers beside the one before
it. The space is derived from the `Network`, so that any algorithm searches it. The texts are a
function of the point, and the point one of the texts. Pure, standard library only.

Texts as Katib's services send them: `architecture` is a list with an entry per layer, the number
of its operation and a 0 or 1 for each earlier layer; `nn_config` says what the numbers mean. A
quotation mark in them is an apostrophe, which programs turn back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from suggest.errors import Problem, under
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Space, Value

ARCHITECTURE, CONFIG = "architecture", "nn_config"
TEXTS = (ARCHITECTURE, CONFIG)
MAX_PARAMETERS = 1000  # of a study
INPUT = "input"
Texts: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True)
class Operation:
    """What a layer may do. Its parameters have countable domains and no conditions."""

    type: str
    parameters: tuple[Parameter, ...] = ()

    @property
    def count(self) -> int:
        """Return how many combinations of values the parameters have."""
        return math.prod(parameter.domain.count or 0 for parameter in self.parameters)


@dataclass(frozen=True, slots=True)
class Network:
    """The networks of a search.

    inputs, outputs: sizes, which only the program reads.
    """

    layers: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operations: tuple[Operation, ...]
    # Derived from the operations when first needed.
    _parameters: tuple[Parameter, ...] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def problems(self) -> Iterator[Problem]:
        """Yield all problems. Paths are the fields."""
        if self.layers < 1:
            yield Problem("layers", f"{self.layers} layers; use 1 or more")
        for name, sizes in (("inputs", self.inputs), ("outputs", self.outputs)):
            if not sizes:
                yield Problem(name, "no sizes; write a list such as [8, 8, 1]")
            for place, size in enumerate(sizes):
                if size < 1:
                    yield Problem(f"{name}[{place}]", f"{size} is not a size; use 1 or more")
        if not self.operations:
            yield Problem("operations", "no operations; a layer needs at least one")
        for place, operation in enumerate(self.operations):
            yield from under(f"operations[{place}]", _operation_problems(operation))
        if (count := self._parameter_count) > MAX_PARAMETERS:
            yield Problem(
                "layers",
                f"{self.layers} layers make {count:,} parameters, with a choice for each pair of "
                f"layers; use fewer layers, at most {MAX_PARAMETERS:,} parameters",
            )

    @property
    def _parameter_count(self) -> int:
        pairs = self.layers * (self.layers - 1) // 2
        of_layer = 1 + sum(len(operation.parameters) for operation in self.operations)
        return pairs + self.layers * of_layer

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return the parameters of the space: of the first layer, then of the second, …"""
        if self._parameters is None:
            layers = [self._of_layer(layer) for layer in range(1, self.layers + 1)]
            object.__setattr__(self, "_parameters", sum(layers, ()))
        assert self._parameters is not None
        return self._parameters

    @property
    def space(self) -> Space:
        return Space(self.parameters)

    def _of_layer(self, layer: int) -> tuple[Parameter, ...]:
        name, labels = _layer(layer), self._labels
        made = [Parameter(name, Choice(labels))]
        for label, operation in zip(labels, self.operations, strict=True):
            condition = (Condition(name, (label,)),)
            for parameter in operation.parameters:
                made.append(
                    Parameter(f"{name}.{label}.{parameter.name}", parameter.domain, condition)
                )
        made += [Parameter(_join(layer, earlier), Choice((False, True))) for earlier in _to(layer)]
        return tuple(made)

    @property
    def _labels(self) -> tuple[str, ...]:
        """Return the names of the operations: their types, numbered where two are the same."""
        labels: list[str] = []
        for operation in self.operations:
            label, number = operation.type, 1
            while label in labels:
                number += 1
                label = f"{operation.type}-{number}"
            labels.append(label)
        return tuple(labels)

    def texts(self, point: Assignment) -> Texts:
        """Return `architecture` and `nn_config` of a point, which has all active parameters."""
        entries: list[list[int]] = []
        embedding: dict[str, object] = {}
        labels, firsts = self._labels, self._firsts
        for layer in range(1, self.layers + 1):
            place = labels.index(str(point[_layer(layer)]))
            operation = self.operations[place]
            values = {
                parameter.name: point[f"{_layer(layer)}.{labels[place]}.{parameter.name}"]
                for parameter in operation.parameters
            }
            number = firsts[place] + _index(operation, values)
            joined = [int(point[_join(layer, earlier)] is True) for earlier in _to(layer)]
            entries.append([number, *joined])
            embedding[str(number)] = {
                "opt_id": number,
                "opt_type": operation.type,
                "opt_params": values,
            }
        config = {
            "num_layers": self.layers,
            "input_sizes": list(self.inputs),
            "output_sizes": list(self.outputs),
            "embedding": embedding,
        }
        return {ARCHITECTURE: as_text(entries), CONFIG: as_text(config)}

    def point(self, architecture: str) -> dict[str, Value] | None:
        """Return the point with this architecture, None if it is not one of these networks."""
        try:
            entries = json.loads(architecture)
        except (ValueError, RecursionError):
            return None
        if not isinstance(entries, list) or len(entries) != self.layers:
            return None
        point: dict[str, Value] = {}
        for layer, entry in enumerate(entries, 1):
            if not isinstance(entry, list) or len(entry) != layer or not _are_whole(entry):
                return None
            number, *joined = entry
            values = self._values(number)
            if values is None or not {0, 1}.issuperset(joined):
                return None
            label, of_operation = values
            point[_layer(layer)] = label
            for name, value in of_operation.items():
                point[f"{_layer(layer)}.{label}.{name}"] = value
            for earlier, is_joined in zip(_to(layer), joined, strict=True):
                point[_join(layer, earlier)] = bool(is_joined)
        return point

    @property
    def _firsts(self) -> list[int]:
        """Return the number of each operation's first combination of values."""
        firsts = [0]
        for operation in self.operations:
            firsts.append(firsts[-1] + operation.count)
        return firsts

    def _values(self, number: int) -> tuple[str, dict[str, Value]] | None:
        """Return the name of the operation with this number, and its parameters' values."""
        firsts = self._firsts
        if not 0 <= number < firsts[-1]:
            return None
        place = next(place for place, first in enumerate(firsts[1:]) if number < first)
        index, values = number - firsts[place], dict[str, Value]()
        for parameter in reversed(self.operations[place].parameters):
            assert parameter.domain.count is not None
            index, digit = divmod(index, parameter.domain.count)
            values[parameter.name] = parameter.domain.at(digit)
        return self._labels[place], dict(reversed(values.items()))


def as_text(value: object) -> str:
    """Return JSON as Katib's services send it in a parameter."""
    return json.dumps(value).replace('"', "'")


def _operation_problems(operation: Operation) -> Iterator[Problem]:
    if not operation.type:
        yield Problem("type", "must be specified; write a name such as convolution")
    elif problem := _quoted(operation.type):
        yield Problem("type", problem)
    for parameter in operation.parameters:
        path = f"parameters.{parameter.name}"
        domain = parameter.domain
        if problem := _quoted(parameter.name):
            yield Problem(path, problem)
        found = list(domain.problems())
        yield from under(path, iter(found))
        if not found and domain.count is None:
            yield Problem(f"{path}.step", "is missing; operations are numbered, so write a step")
        for value in domain.values if isinstance(domain, Choice) else ():
            if isinstance(value, str) and (problem := _quoted(value)):
                yield Problem(f"{path}.values", problem)


def _quoted(text: str) -> str:
    if "'" not in text and '"' not in text:
        return ""
    return f"{text[:80]!r} has a quotation mark, which programs of Katib cannot read; remove it"


def _index(operation: Operation, values: Mapping[str, Value]) -> int:
    """Return the place of these values in the product of the domains, the first one slowest."""
    index = 0
    for parameter in operation.parameters:
        count, digit = parameter.domain.count, _digit(parameter.domain, values[parameter.name])
        assert count is not None
        index = index * count + digit
    return index


def _digit(domain: Choice | Int | Float, value: Value) -> int:
    index = domain.index_of(value)
    assert index is not None, "the value is in the domain"
    return index


def _layer(layer: int) -> str:
    return f"layer{layer}"


def _to(layer: int) -> range:
    """Return the earlier layers that a layer may read beside the one before it; 0: the input."""
    return range(layer - 1)


def _join(layer: int, earlier: int) -> str:
    return f"{_layer(layer)}.from.{_layer(earlier) if earlier else INPUT}"


def _are_whole(entry: Sequence[object]) -> bool:
    return all(isinstance(each, int) and not isinstance(each, bool) for each in entry)
