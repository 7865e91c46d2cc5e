"""An experiment built in Python instead of a file; `to_yaml` writes the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from controller.app.experiment_file import ExperimentFile
from controller.spec import file_text, read
from suggest.client.search_space import Parameters, json_value, named, refuse
from suggest.domain import Choice, Float, Int, Scale
from suggest.space import Parameter
from tuner.arguments import arguments_of_keys, problems_by_argument

if TYPE_CHECKING:
    from controller.app.experiment_file import FileOptions
    from controller.app.state_directory import StateDirectory


_ARGUMENTS = (
    "name",
    "parameters",
    "command",
    "metric",
    "direction",
    "objectives",
    "constraints",
    "trials",
    "parallelism",
)

BOUNDS = "a dict of metrics to bounds, such as {'latency_ms': {'max': 20}}"


class Experiment:
    """What to search, what to run and when to stop, as in a file.

    Args:
        name: Lower-case letters, digits and `-`. A stored experiment of this name is continued.
        parameters: Names to `Float`, `Int`, `Choice`, or a list of choices.
        command: The program of a trial, as a list of words; `${name}` is a parameter.
        metric: The objective, as the program prints it.
        direction: `minimize` or `maximize`.
        objectives: Instead of these two, the directions of several objectives by metric.
        constraints: Bounds by metric, such as `{"latency_ms": {"max": 20}}`.
        trials: The budget; None: 100.
        parallelism: Trials at a time.
        spec: Any other keys of the file's `spec`, such as `{"trial": {"timeout": "1h"}}`; mappings
            are merged.
        source: Its name in messages.
        arguments: The arguments by the keys that they set, for messages; None: those of this class.

    Wrong values are reported, with their arguments, when the experiment is run or written. Raises
    TypeError for a value that a file cannot have.
    """

    def __init__(
        self,
        name: str,
        parameters: Parameters,
        command: Sequence[str],
        *,
        metric: str = "",
        direction: str = "",
        objectives: Mapping[str, str] | None = None,
        constraints: Mapping[str, Mapping[str, float]] | None = None,
        trials: int | None = None,
        parallelism: int = 1,
        spec: Mapping[str, object] | None = None,
        source: str = "",
        arguments: Mapping[str, str] | None = None,
    ) -> None:
        caller = source or "Experiment"
        if isinstance(command, str):
            raise TypeError(f"Experiment: command: expected a list of words, got {command!r}")
        if spec is not None and not isinstance(spec, Mapping):
            refuse(caller, "spec", spec, "a dict of keys of an experiment file's spec")
        if objectives is not None and not isinstance(objectives, Mapping):
            refuse(
                caller, "objectives", objectives, "a dict of metrics to 'minimize' or 'maximize'"
            )
        bounds_by_metric = {} if constraints is None else constraints
        if not isinstance(bounds_by_metric, Mapping) or not all(
            isinstance(bounds, Mapping) for bounds in bounds_by_metric.values()
        ):
            refuse(caller, "constraints", constraints, BOUNDS)
        goal: dict[str, object] = {"objective": {"metric": metric, "direction": direction}}
        if objectives is not None:
            goal = {
                "objectives": [
                    {"metric": name, "direction": way} for name, way in objectives.items()
                ]
            }
        if bounds_by_metric:
            goal["constraints"] = [
                {"metric": name, **bounds} for name, bounds in bounds_by_metric.items()
            ]
        space = named(parameters, caller=caller)
        fields: dict[str, object] = {
            **goal,
            "parameters": {parameter.name: _described(parameter) for parameter in space},
            "parallelism": parallelism,
            "trial": {"command": list(command)},
        }
        if trials is not None:
            fields["budget"] = {"trials": trials}
        self.name = name
        self._source = source or f"experiment {name}"
        self.arguments = arguments or arguments_of_keys(
            _ARGUMENTS,
            written=spec or {},
            parameters=[parameter.name for parameter in space],
            objectives=objectives or (),
            constraints=bounds_by_metric,
        )
        self._file: dict[str, object] = {
            "apiVersion": "tuner.dev/v1",
            "kind": "Experiment",
            "metadata": {"name": name},
            "spec": json_value(self._source, "spec", merged(fields, spec or {})),
        }

    def to_yaml(self) -> str:
        """Return the file, with every default.

        Raises SpecErrors (a TunerError) if it cannot be run.
        """
        with problems_by_argument(self.arguments):
            return file_text(read(self._text, source=self._source, is_file=False).spec.document)

    def file(self, options: FileOptions, state: StateDirectory) -> ExperimentFile:
        """Return the file as `tuner run` reads one, with paths relative to the current folder.

        Raises SpecErrors.
        """
        return ExperimentFile.of_text(self._text, self._source, options, state)

    @property
    def _text(self) -> str:
        return json.dumps(self._file, indent=1, ensure_ascii=False) + "\n"


def merged(first: Mapping[str, object], second: Mapping[str, object]) -> dict[str, object]:
    """Return both mappings as one. The second wins; mappings in both are merged."""
    both = dict(first)
    for key, value in second.items():
        old = both.get(key)
        both[key] = (
            merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
        )
    return both


def _described(parameter: Parameter) -> dict[str, object]:
    """Return the parameter as a file describes it."""
    domain = parameter.domain
    match domain:
        case Float():
            described: dict[str, object] = {"type": "float", "min": domain.min, "max": domain.max}
            described |= {
                key: value
                for key, value in (("step", domain.step), ("points", domain.points))
                if value
            }
        case Int():
            described = {"type": "int", "min": domain.min, "max": domain.max}
            described |= {"step": domain.step} if domain.step != 1 else {}
        case Choice():
            described = {"type": "choice", "values": list(domain.values)}
    if not isinstance(domain, Choice):
        if domain.scale is Scale.LOG:
            described["scale"] = "log"
        if (normal := domain.normal) is not None:
            described |= {
                "distribution": "normal",
                "mean": normal.mean,
                "deviation": normal.deviation,
            }
    if parameter.when:
        described["when"] = {
            condition.parameter: list(condition.values) for condition in parameter.when
        }
    return described
