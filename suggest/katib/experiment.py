"""Katib's experiments: converts an `api.v1.beta1.Experiment` to the spec of a study,
and texts to values and back.

Pure. Errors that Katib reports have Katib's texts. Experiments that Katib accepts but never
finishes are refused too. An algorithm accepts the settings of all of Katib's services for it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from suggest.domain import Choice, Int, Value
from suggest.errors import InvalidArgument, Problem, Problems
from suggest.katib.layers import (
    DARTS,
    ENAS,
    ArchitectureText,
    ConfigText,
    darts_parameters,
    read_network,
)
from suggest.katib.layers import NAMES as OF_LAYERS
from suggest.katib.parameters import (
    MAX_PARAMETERS,
    PARAMETERS,
    ParameterText,
    read_parameters,
)
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.katib_settings import ALGORITHMS, KatibSetting
from suggest.network import Network
from suggest.space import Assignment, Parameter, Space
from suggest.studies.spec_rules import spec_problems
from suggest.study import Algorithm, Direction, Fidelity, Objective, StudySpec
from suggest.trial import ValueColumn

MAX_NAME = 253  # characters of an experiment's or a trial's name
_AT = "experiment.spec"


@dataclass(frozen=True, slots=True)
class KatibExperiment:
    """An experiment as the spec of a study.

    `fidelity` is that of hyperband, whose parameter is one of the space here. `key` is equal for
    experiments with the same name, parameters, objective, algorithm and settings. The rest of the
    message may change during an experiment.

    `network` is that of enas, whose callers know a point of the space by two texts. The objective
    of darts is a text, so `has_text` trials succeed with any value, and none is better. `unused`
    are settings without an effect here.
    """

    name: str
    key: str
    metric: str  # "": each trial names its own
    spec: StudySpec
    texts: tuple[ParameterText, ...]  # what callers see; in the order of the space
    fidelity: Fidelity | None = None
    network: Network | None = None
    has_text: bool = False
    unused: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters."""
        return tuple(text.name for text in self.texts)

    def point(self, parameters: Assignment) -> tuple[Value, ...]:
        """Return the values that callers see, of a study's trial; None for one that is missing."""
        if self.network is not None and not self.spec.space.missing(parameters):
            parameters = self.network.texts(parameters)
        return tuple(map(parameters.get, self.names))

    def parameters(self, point: Sequence[Value]) -> Assignment:
        """Return the parameters of a study's trial whose values callers see as `point`."""
        if self.network is None:
            return dict(zip(self.names, point, strict=True))
        return self.network.point(str(point[0])) or {}

    def columns(self, seen: Sequence[ValueColumn]) -> dict[str, ValueColumn]:
        """Return the columns of a study's trials from those that callers see.

        Trials of a network must be one at a time, because their parameters differ.
        """
        if self.network is None:
            return dict(zip(self.names, seen, strict=True))
        (point,) = zip(*(column.values for column in seen), strict=True)
        return {
            name: ValueColumn([value], [json.dumps(value)])
            for name, value in self.parameters(point).items()
        }

    @property
    def is_population(self) -> bool:
        """Return whether trials continue from checkpoints of others."""
        return self.spec.algorithm.name == PBT


def read_experiment(message: pb.Experiment) -> KatibExperiment:
    """Convert an experiment to suggest for it. Raises InvalidArgument with all problems."""
    problems = Problems()
    if not message.name or len(message.name) > MAX_NAME:
        problems.add("experiment.name", f"give a name of 1 to {MAX_NAME} characters")
    is_of_layers = message.spec.algorithm.algorithm_name in OF_LAYERS
    if not is_of_layers and not message.spec.parameter_specs.parameters:
        problems.add(PARAMETERS, f"0 parameters; give 1 to {MAX_PARAMETERS}")
    return _converted(message, problems)


def validate(message: pb.Experiment) -> KatibExperiment:
    """Check an experiment as ValidateAlgorithmSettings does, and return it. Raises InvalidArgument.

    Katib's webhook guarantees parameters, a metric and a direction, and its services do not ask for
    them. What is there is checked.
    """
    experiment = _converted(message, Problems())
    name, most = message.spec.algorithm.algorithm_name, message.spec.max_trial_count
    if name == HYPERBAND and experiment.fidelity is None:
        raise InvalidArgument.at("", "value of resource_name setting must be in parameters.")
    if name == "grid" and experiment.texts and most > 0:
        points = math.prod(t.domain.count or 1 for t in experiment.texts)
        if most > points:
            raise InvalidArgument.at(
                "", f"Max Trial Count: {most} > all possible search combinations: {points}"
            )
    return experiment


def _converted(message: pb.Experiment, problems: Problems) -> KatibExperiment:
    """Convert an experiment, perhaps without parameters.

    Raises InvalidArgument with `problems` and all others.
    """
    spec = message.spec
    name = spec.algorithm.algorithm_name
    is_of_layers = name in OF_LAYERS
    if spec.HasField("nas_config") and not is_of_layers:
        cure = f"remove it, or use {' or '.join(OF_LAYERS)}"
        problems.add(f"{_AT}.nas_config", f"{name[:80]} searches parameters; {cure}")
    network = read_network(spec, problems) if is_of_layers else None
    fidelity = _hyperband(spec, problems) if name == HYPERBAND else None
    algorithm = _algorithm(spec.algorithm, problems)
    given = {each.name for each in spec.algorithm.algorithm_settings}
    required = () if algorithm is None else ALGORITHMS[name].required
    if lacking := [each for each in required if each not in given]:
        problems.add("", f"Required params missing: {', '.join(lacking)}")
    texts: tuple[ParameterText, ...] = ()
    if not is_of_layers:
        given_parameters = spec.parameter_specs.parameters
        texts = tuple(read_parameters(given_parameters, problems, is_grid=name == "grid"))
    if fidelity is not None:
        resource = Int(round(fidelity.min), round(fidelity.max))
        texts = tuple(
            ParameterText(t.name, resource) if t.name == fidelity.parameter else t for t in texts
        )
    metric = spec.objective.objective_metric_name
    if len(metric) > 1000:
        problems.add(f"{_AT}.objective.objective_metric_name", "has more than 1000 characters")
    if problems or algorithm is None:
        raise InvalidArgument(problems)
    if network is not None and name == DARTS:
        settings = {each.name: each.value for each in spec.algorithm.algorithm_settings}
        texts, network = darts_parameters(network, settings), None
    # As in Katib's services, every other direction means the smallest value.
    direction = Direction.MAXIMIZE if spec.objective.type == pb.MAXIMIZE else Direction.MINIMIZE
    objective = Objective(metric or "objective", direction)
    space = Space(tuple(Parameter(t.name, t.domain) for t in texts))
    if network is not None:
        space, texts = network.space, (ArchitectureText(network), ConfigText())
    study = StudySpec(space, (objective,), algorithm)
    if name == "cmaes" and sum(not isinstance(t.domain, Choice) for t in texts) < 2:
        raise InvalidArgument.at(
            "", "cmaes only supports two or more dimensional continuous search space."
        )
    if texts and (found := spec_problems(study)):
        raise InvalidArgument(
            [Problem(p.path.replace("spec.parameters.", "parameter ", 1), p.message) for p in found]
        )
    return KatibExperiment(
        message.name,
        _key(message),
        metric,
        study,
        texts,
        fidelity,
        network,
        has_text=name == DARTS,
        unused=tuple(sorted(given)) if name == ENAS else (),
    )


def _key(message: pb.Experiment) -> str:
    """Return a hash of the fields that define the search.

    A setting with another text is another setting.
    """
    spec = message.spec
    parts = pb.Experiment(name=message.name)
    parts.spec.parameter_specs.CopyFrom(spec.parameter_specs)
    if spec.HasField("nas_config"):
        parts.spec.nas_config.CopyFrom(spec.nas_config)
    parts.spec.algorithm.CopyFrom(spec.algorithm)
    if spec.algorithm.algorithm_name == HYPERBAND:  # its state in Katib changes with each request
        del parts.spec.algorithm.algorithm_settings[:]
        parts.spec.algorithm.algorithm_settings.extend(
            each for each in spec.algorithm.algorithm_settings if each.name not in _HYPERBAND_STATE
        )
    parts.spec.objective.type = spec.objective.type
    parts.spec.objective.objective_metric_name = spec.objective.objective_metric_name
    return hashlib.sha256(parts.SerializeToString(deterministic=True)).hexdigest()


# Algorithms


class SettingRefused(Exception):
    """A setting is refused with a text of Katib's that does not have the usual form."""


def _algorithm(message: pb.AlgorithmSpec, problems: Problems) -> Algorithm | None:
    name = message.algorithm_name
    ours = ALGORITHMS.get(name)
    if ours is None:
        problems.add("", f"unknown algorithm name {name[:80]}")
        return None
    settings, seed = dict(ours.settings), None
    for given in message.algorithm_settings:
        if name == HYPERBAND and given.name in _HYPERBAND_STATE:
            continue
        setting = ours.takes.get(given.name)
        if setting is None:
            problems.add("", f"unknown setting {given.name[:80]} for algorithm {name}")
            continue
        try:
            value = _value_of(given.name, setting, given.value)
        except SettingRefused as e:
            problems.add("", str(e))
        except (ValueError, OverflowError) as e:
            text, kind = given.value[:80], setting.kind.__name__
            refused = f"failed to validate {given.name}({text}): {e}"
            if name == ENAS:
                refused = f"Algorithm Setting {given.name} must be {kind} type, got {text}"
            problems.add("", refused)
        else:
            if given.name == "random_state":
                seed = int(str(value)) % 2**63
            elif setting.to and value is not None:
                settings[setting.to] = value
    return Algorithm("random" if name == HYPERBAND else ours.name, seed, settings)


def _value_of(name: str, setting: KatibSetting, text: str) -> Value:
    """Return the value of our setting; None if the text sets none.

    Raises SettingRefused, and ValueError or OverflowError with a part of a sentence.
    """
    if setting.is_optional and text == "None":
        return None
    if check := _CHECKS.get(name):
        check(text)
        return None
    if setting.words:
        if text not in setting.words:
            raise SettingRefused(setting.rule.replace("{text}", text[:80]))
        return setting.words[text]
    number = setting.kind(text)
    assert not isinstance(number, str)
    if not setting.holds(number):
        raise SettingRefused(setting.rule.replace("{text}", text[:80]))
    if setting.to == "population" and number > 1000:
        raise ValueError("at most 1000")
    used = max(min(number, _MOST_USED.get(setting.to, number)), setting.least_used)
    return None if setting.is_as_written else used


def _hyperband(spec: pb.ExperimentSpec, problems: Problems) -> Fidelity | None:
    """Return the fidelity of hyperband. Its other settings are read like those of any algorithm."""
    given = {each.name: each.value for each in spec.algorithm.algorithm_settings}
    resource, text = given.get("resource_name"), given.get("r_l")
    if resource is None or text is None:
        problems.add("", "r_l and resource_name must be set.")
        return None
    try:
        most, eta = float(text), _eta_of(given.get("eta", "3"))
    except (ValueError, OverflowError):
        return None  # reading the settings reports it
    if not (1 <= most < 2**53 and eta >= 2):
        return None  # likewise
    of_resource = [each for each in spec.parameter_specs.parameters if each.name == resource]
    if not of_resource:
        return None  # `validate` reports it
    if of_resource[0].parameter_type != pb.INT:
        problems.add(
            "", f"{resource[:80]}, of resource_name, must be an int: it counts what is trained"
        )
        return None
    return Fidelity.of_resource(resource, most, eta)


# The largest values of our settings; larger ones count as these.
_MOST_USED = {"startupTrials": 10**6, "candidates": 1000}


def _check_r_l(text: str) -> None:
    try:
        most = float(text)
    except ValueError:
        most = math.nan
    if not 0 < most < math.inf:
        raise SettingRefused("r_l must be a positive float number.")
    if not 1 <= most < 2**53:
        raise ValueError("at least 1, and below 2^53: resources are whole numbers")


def _check_eta(text: str) -> None:
    if _eta_of(text) < 2:
        raise ValueError("eta should be greater than one")


def _eta_of(text: str) -> int:
    """Read eta as Katib does: down to a whole number, and 3 if it is not positive."""
    eta = int(float(text))
    return eta if eta > 0 else 3


def _check_trial_dir(text: str) -> None:
    if not text.startswith("/"):
        raise ValueError("expected the absolute path of a folder")


HYPERBAND, PBT = "hyperband", "pbt"
# What Katib's own service keeps in the settings. Nothing of it is needed: the trials say it.
_HYPERBAND_STATE = ("s_max", "b_l", "r", "n", "current_s", "current_i", "evaluating_trials")
# Checks of settings that are not ours. `_hyperband` reads those of hyperband as its fidelity.
_CHECKS: Mapping[str, Callable[[str], None]] = {
    "r_l": _check_r_l,
    "eta": _check_eta,
    "resource_name": lambda text: None,
    "suggestion_trial_dir": _check_trial_dir,
}
