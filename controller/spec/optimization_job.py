"""The reader of Trainer's OptimizationJob, `apiVersion: trainer.kubeflow.org/v1alpha1`: converts it
to the data of a native file.

No released Trainer serves this resource (2.3 does not), so its objects are converted and not run.
It refuses what the definition on Trainer's main branch refuses.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from controller.core.substitute import literal
from controller.spec.katib_section import Json, KatibFile, KatibSectionReader, shown
from controller.spec.problems import ProblemCollector
from suggest.domain import Scale

API_VERSION = "trainer.kubeflow.org/v1alpha1"
# Of Trainer's definition: of trials, of parameters, and of the choices of one.
_MOST = 100
_MOST_LETTERS = 64
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = "KUBEFLOW_TRAINER_OPT_"
_SPACES = ("uniform", "logUniform", "categorical")
_ALGORITHMS = ("random", "grid")
_TEMPLATE = "spec.trainJobTemplate"
_PLACES = {
    "spec.objective": "spec.objectives[0]",
    "spec.objective.metric": "spec.objectives[0].metric",
    "spec.objective.direction": "spec.objectives[0].direction",
    "spec.algorithm": "spec.searchAlgorithm",
    "spec.algorithm.seed": "spec.searchAlgorithm.random.seed",
    "spec.budget": "spec.numTrials",
    "spec.parallelism": "spec.parallelTrials",
    "spec.trial": _TEMPLATE,
}


class OptimizationJobReader(KatibSectionReader):
    """The reader of one file.

    `native` returns the native data; `problems` get the paths of Trainer's file.
    """

    def __init__(self, data: Json, problems: ProblemCollector) -> None:
        super().__init__(KatibFile(problems, places=dict(_PLACES)))
        self._data = data
        self.warnings = self._file.warnings

    def place_of(self, path: str) -> str:
        """Return the place in this file of a native key, or of the nearest key around it."""
        around, places = path, self._file.places
        while around not in places and "." in around:
            around = around.rpartition(".")[0]
        return places.get(around, path)

    def words(self, message: str) -> str:
        """Return the message: what it names is in the native file that is asked for."""
        return message

    def native(self) -> Json | None:
        """Return the native data; None if the file has problems."""
        before = len(self._problems.found)
        self._only(self._data, "", ("apiVersion", "kind", "metadata", "spec", "status"))
        spec = self._mapping(self._data, "spec", "")
        known = ("objectives", "searchAlgorithm", "parameters", "numTrials", "parallelTrials")
        self._only(spec, "spec", (*known, "trainJobTemplate", "runtime"))
        parameters = self._parameters(spec)
        native = {
            "objective": self._objective(spec),
            "parameters": parameters,
            "algorithm": self._algorithm(spec),
            **self._counts(spec),
            # Trainer knows no pause, and goes on whatever fails.
            "canary": "0s",
            "breaker": "off",
            "runtime": spec.get("runtime", "kubernetes"),
            "trial": {"template": self._template(spec, list(parameters))},
        }
        metadata = self._mapping(self._data, "metadata", "")
        if "name" not in metadata:
            cure = "write metadata.name, or add --set metadata.name=NAME"
            self._problems.add("metadata.name", f"an experiment continues by its name; {cure}")
        if len(self._problems.found) > before:
            return None
        kept = {key: metadata[key] for key in ("name", "namespace", "labels") if key in metadata}
        return {
            "apiVersion": "tuner.dev/v1",
            "kind": "Experiment",
            "metadata": kept,
            "spec": native,
        }

    def _objective(self, spec: Json) -> Json:
        objectives = self._list(spec, "objectives", "spec")
        match objectives:
            case [dict(objective)]:
                pass
            case _:
                cure = "write one, and the others in the native file, under spec.objectives"
                self._problems.add("spec.objectives", f"expected a list of one objective; {cure}")
                return {}
        at = "spec.objectives[0]"
        self._only(objective, at, ("metric", "direction"))
        metric, direction = objective.get("metric"), objective.get("direction", "Minimize")
        if not isinstance(metric, str) or not 1 <= len(metric) <= _MOST_LETTERS:
            rule = f"write the name of a metric, of 1 to {_MOST_LETTERS} letters"
            self._problems.add(f"{at}.metric", f"must be specified; {rule}")
        if direction not in ("Minimize", "Maximize"):
            self._problems.add(
                f"{at}.direction",
                f"{shown(direction)} is not supported; write Minimize or Maximize",
            )
            return {}
        self.warnings.append(
            f"{at}.metric: Trainer reads it from the status of a TrainJob, Tuner from the log; "
            f"have the program print {metric}=VALUE, or edit spec.metrics of the native file"
        )
        return {"metric": metric, "direction": direction.lower()}

    def _algorithm(self, spec: Json) -> Json:
        at = "spec.searchAlgorithm"
        if spec.get("searchAlgorithm") is None:
            return {"name": "random"}
        name, settings = self._one_of(
            self._mapping(spec, "searchAlgorithm", "spec"), at, _ALGORITHMS
        )
        self._only(settings, f"{at}.{name}", ("seed",) if name == "random" else ())
        return {"name": name} | settings

    def _one_of(self, section: Json, at: str, keys: tuple[str, ...]) -> tuple[str, Json]:
        """Return the only key of a section and what is below it; the first key if it is wrong."""
        self._only(section, at, keys)
        names = [key for key in keys if section.get(key) is not None]
        if len(names) == 1:
            return names[0], self._mapping(section, names[0], at)
        self._problems.add(at, f"expected exactly one of {', '.join(keys)}")
        return keys[0], {}

    def _parameters(self, spec: Json) -> Json:
        native: Json = {}
        variables: dict[str, str] = {}
        listed = self._list(spec, "parameters", "spec")
        self._check_length(listed, "spec.parameters")
        algorithm = spec.get("searchAlgorithm")
        is_grid = isinstance(algorithm, dict) and algorithm.get("grid") is not None
        for i, parameter in enumerate(listed):
            at = f"spec.parameters[{i}]"
            name = parameter.get("name") if isinstance(parameter, dict) else None
            if not isinstance(name, str) or not _is_name(name):
                rule = f"up to {_MOST_LETTERS} letters, digits and _, without a digit first"
                self._problems.add(at, f"must be a mapping with searchSpace and a name: {rule}")
                continue
            self._only(parameter, at, ("name", "searchSpace"))
            other = variables.setdefault(_variable(name), name)
            if name in native:
                self._problems.add(f"{at}.name", f"{name} occurs twice; rename one")
            elif other != name:
                message = f"{name} and {other} would both be {_variable(name)}; rename one"
                self._problems.add(f"{at}.name", message)
            space, fields = self._one_of(
                self._mapping(parameter, "searchSpace", at), f"{at}.searchSpace", _SPACES
            )
            below = f"{at}.searchSpace.{space}"
            self._file.places[f"spec.parameters.{name}"] = below
            if is_grid and space != "categorical":
                cure = "write categorical, or points or a step in the native file"
                self._problems.add(below, f"grid needs choices; {cure}", at_key=True)
            native[name] = self._domain(fields, space, below)
        return native

    def _domain(self, fields: Json, space: str, at: str) -> Json:
        if space == "categorical":
            self._only(fields, at, ("choices",))
            choices = self._list(fields, "choices", at)
            self._check_length(choices, f"{at}.choices")
            if any(not isinstance(each, str) or len(each) > _MOST_LETTERS for each in choices):
                rule = f"write each in quotes, with at most {_MOST_LETTERS} letters"
                self._problems.add(f"{at}.choices", f"expected texts; {rule}")
            return {"type": "choice", "values": choices}
        self._only(fields, at, ("min", "max", "type"))
        kind = fields.get("type", "Float")
        if kind not in ("Float", "Int"):
            self._problems.add(f"{at}.type", f"{shown(kind)} is not supported; write Float or Int")
            return {}
        low, high = (self._number(fields, key, kind, at) for key in ("min", "max"))
        if low is None or high is None:
            return {}
        if low >= high:
            self._problems.add(at, f"min {fields['min']} is not below max {fields['max']}")
        native = {"type": kind.lower(), "min": low, "max": high}
        if space == "logUniform":
            if low <= 0:
                self._problems.add(f"{at}.min", "must be above 0 in logUniform")
            native["scale"] = Scale.LOG.value
        return native

    def _number(self, fields: Json, key: str, kind: str, at: str) -> int | float | None:
        raw = fields.get(key)
        is_int = kind == "Int"
        if isinstance(raw, str) and len(raw) <= _MOST_LETTERS and _NUMBER.fullmatch(raw):
            value = float(raw)
            if math.isfinite(value) and not is_int:
                return value
            if math.isfinite(value) and value.is_integer():
                return int(Decimal(raw))
        expected = "a whole number" if is_int else "a number"
        self._problems.add(
            f"{at}.{key}", f'expected {expected} in quotes, such as "1", got {shown(raw)}'
        )
        return None

    def _counts(self, spec: Json) -> Json:
        trials, parallel = (self._count(spec, key) for key in ("numTrials", "parallelTrials"))
        if trials is not None and parallel is not None and parallel > trials:
            self._problems.add("spec.parallelTrials", f"cannot exceed numTrials, {trials}")
        return {"parallelism": parallel, "budget": {"trials": trials, "failedTrials": "none"}}

    def _count(self, spec: Json, key: str) -> int | None:
        count = spec.get(key, 1)
        if type(count) is int and 1 <= count <= _MOST:
            return count
        self._problems.add(f"spec.{key}", f"expected 1 to {_MOST}, got {shown(count)}")
        return None

    def _check_length(self, listed: list[Any], at: str) -> None:
        if not 1 <= len(listed) <= _MOST:
            self._problems.add(at, f"expected 1 to {_MOST} entries, got {len(listed)}")

    def _template(self, spec: Json, parameters: list[str]) -> Json:
        """Return the TrainJob, whose program gets the parameters as Trainer gives them."""
        section = self._mapping(spec, "trainJobTemplate", "spec")
        self._only(section, _TEMPLATE, ("metadata", "spec"))
        metadata = {}
        if section.get("metadata") is not None:
            metadata = self._mapping(section, "metadata", _TEMPLATE)
        for key in ("name", "namespace"):
            if key in metadata:
                self._problems.add(
                    f"{_TEMPLATE}.metadata.{key}", "each trial has its own; remove it"
                )
        job = self._mapping(section, "spec", _TEMPLATE)
        self._mapping(job, "runtimeRef", f"{_TEMPLATE}.spec")
        trainer = {}
        if job.get("trainer") is not None:
            trainer = self._mapping(job, "trainer", f"{_TEMPLATE}.spec")
        at = f"{_TEMPLATE}.spec.trainer"
        env = self._optional(trainer, "env", at)
        given = {_variable(name): "${" + name + "}" for name in parameters}
        for i, each in enumerate(env):
            if isinstance(each, dict) and each.get("name") in given:
                message = f"{each['name']} is how a trial gets its parameter; remove it"
                self._problems.add(f"{at}.env[{i}].name", message)
        added = [{"name": name, "value": value} for name, value in given.items()]
        with_them = {**_as_written(trainer), "env": [*_as_written(env), *added]}
        whole = {**_as_written(job), "trainer": with_them}
        template: Json = {"apiVersion": API_VERSION, "kind": "TrainJob", "spec": whole}
        return template | ({"metadata": _as_written(metadata)} if metadata else {})


def _is_name(text: str) -> bool:
    return len(text) <= _MOST_LETTERS and _PARAMETER.fullmatch(text) is not None


def _variable(parameter: str) -> str:
    return f"{_VARIABLE}{parameter.upper()}"


# Any: any of YAML's types, as it is given
def _as_written(data: Any) -> Any:
    """Return the data with texts that a trial gets unchanged."""
    match data:
        case str():
            return literal(data)
        case list():
            return [_as_written(each) for each in data]
        case dict():
            return {key: _as_written(each) for key, each in data.items()}
    return data
