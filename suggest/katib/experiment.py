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
    DARTS_SETTINGS,
    ENAS,
    ENAS_SETTINGS,
    ArchitectureText,
    ConfigText,
    SettingRefused,
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
    if name == PBT and (lacking := [each for each in _PBT_REQUIRED if each not in given]):
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


@dataclass(frozen=True, slots=True)
class _AlgorithmMapping:
    """Our algorithm for one of Katib's.

    It has `fixed` settings, and a function for each setting that reads its text.
    """

    name: str
    read: Mapping[str, Callable[[str], dict[str, Value]]]
    fixed: Mapping[str, Value]


def _algorithm(message: pb.AlgorithmSpec, problems: Problems) -> Algorithm | None:
    name = message.algorithm_name
    ours = _ALGORITHMS.get(name)
    if ours is None:
        problems.add("", f"unknown algorithm name {name[:80]}")
        return None
    settings, seed = dict(ours.fixed), None
    for given in message.algorithm_settings:
        read = ours.read.get(given.name)
        if read is None:
            problems.add("", f"unknown setting {given.name[:80]} for algorithm {name}")
            continue
        try:
            found = read(given.value)
        except SettingRefused as e:
            problems.add("", str(e))
        except (ValueError, OverflowError) as e:
            problems.add("", f"failed to validate {given.name}({given.value[:80]}): {e}")
        else:
            seed = found.pop(_SEED, seed)
            settings |= found
    return Algorithm(ours.name, None if seed is None else int(str(seed)), settings)


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


_SEED = "seed"


# What Katib's services for hyperopt and skopt say, and those for Optuna and goptuna.
_GREAT, _GREATE = "great", "greate"


def _seed(word: str) -> Callable[[str], dict[str, Value]]:
    def read(text: str) -> dict[str, Value]:
        return {_SEED: _not_negative("random_state", int(text), word) % 2**63}

    return read


def _startup(name: str, word: str) -> Callable[[str], dict[str, Value]]:
    def read(text: str) -> dict[str, Value]:
        return {"startupTrials": min(_not_negative(name, int(text), word), 10**6)}

    return read


def _ei_candidates(text: str) -> dict[str, Value]:
    count = _not_negative("n_ei_candidates", int(text), _GREATE)
    return {"candidates": min(max(count, 1), 1000)}


def _hyperopt_candidates(text: str) -> dict[str, Value]:
    count = int(text)
    if count <= 0:
        raise SettingRefused("n_EI_candidates should be great than zero")
    return {"candidates": min(count, 1000)}


def _not_negative(name: str, count: int, word: str) -> int:
    if count < 0:
        raise SettingRefused(f"{name} should be {word} or equal than zero")
    return count


# Settings that Katib's engines read and ours have no counterpart
# for are checked, as in Katib's files.


def _number(
    holds: Callable[[float], bool], rule: str, ours: str = ""
) -> Callable[[str], dict[str, Value]]:
    """Return a reader of a number, refused with Katib's `rule`. ours: our setting, if any."""

    def read(text: str) -> dict[str, Value]:
        value = float(text)
        if not holds(value):
            raise SettingRefused(rule)
        return {ours: value} if ours else {}

    return read


def _restarts(text: str) -> dict[str, Value]:
    if text not in ("ipop", "bipop", "None", "none"):
        raise SettingRefused(f"restart_strategy {text[:80]} is not supported in CMAES optimization")
    # Without restarts, a converged search would try its last point again and again.
    return {"populationGrowth": 1} if text in ("None", "none") else {}


def _word(name: str, *words: str) -> Callable[[str], dict[str, Value]]:
    def read(text: str) -> dict[str, Value]:
        if text not in words:
            raise SettingRefused(f"{name} {text[:80]} is not supported in Bayesian optimization")
        return {}

    return read


def _r_l(text: str) -> dict[str, Value]:
    try:
        most = float(text)
    except ValueError:
        most = math.nan
    if not 0 < most < math.inf:
        raise SettingRefused("r_l must be a positive float number.")
    if not 1 <= most < 2**53:
        raise ValueError("at least 1, and below 2^53: resources are whole numbers")
    return {}


def _eta(text: str) -> dict[str, Value]:
    if _eta_of(text) < 2:
        raise ValueError("eta should be greater than one")
    return {}


def _eta_of(text: str) -> int:
    """Read eta as Katib does: down to a whole number, and 3 if it is not positive."""
    eta = int(float(text))
    return eta if eta > 0 else 3


def _trial_dir(text: str) -> dict[str, Value]:
    if not text.startswith("/"):
        raise ValueError("expected the absolute path of a folder")
    return {}


def _population(text: str) -> dict[str, Value]:
    count = int(text)
    if count < 5:
        raise SettingRefused("Param(n_population) should be >= 5")
    if count > 1000:
        raise ValueError("at most 1000")
    return {"population": count}


def _is_share(value: float) -> bool:
    return 0 <= value <= 1


def _anything(text: str) -> dict[str, Value]:
    return {}


HYPERBAND, PBT = "hyperband", "pbt"
_PBT_REQUIRED = ("suggestion_trial_dir", "n_population", "truncation_threshold")
# What Katib's own service keeps in the settings. Nothing of it is needed: the trials say it.
_HYPERBAND_STATE = ("s_max", "b_l", "r", "n", "current_s", "current_i", "evaluating_trials")
_OPTUNA_TPE = {
    "random_state": _seed(_GREATE),
    "n_startup_trials": _startup("n_startup_trials", _GREATE),
    "n_ei_candidates": _ei_candidates,
}
_ALGORITHMS = {
    "random": _AlgorithmMapping("random", {"random_state": _seed(_GREAT)}, {}),
    "grid": _AlgorithmMapping("grid", {"random_state": _seed(_GREATE)}, {}),
    "tpe": _AlgorithmMapping(
        "tpe",
        {
            **_OPTUNA_TPE,
            "random_state": _seed(_GREAT),
            "n_EI_candidates": _hyperopt_candidates,
            "gamma": _number(lambda x: 0 < x < 1, "gamma should be in the range of (0, 1)"),
            "prior_weight": _number(lambda x: x > 0, "prior_weight should be great than zero"),
        },
        {"multivariate": False},
    ),
    "multivariate-tpe": _AlgorithmMapping("tpe", _OPTUNA_TPE, {"multivariate": True}),
    "bayesianoptimization": _AlgorithmMapping(
        "gp",
        {
            "random_state": _seed(_GREAT),
            "n_initial_points": _startup("n_initial_points", _GREAT),
            "base_estimator": _word("base_estimator", "GP", "RF", "ET", "GBRT"),
            "acq_func": _word("acq_func", "gp_hedge", "LCB", "EI", "PI", "EIps", "PIps"),
            "acq_optimizer": _word("acq_optimizer", "auto", "sampling", "lbfgs"),
        },
        {},
    ),
    "cmaes": _AlgorithmMapping(
        "cmaes",
        {
            "random_state": _seed(_GREATE),
            "sigma": _number(lambda x: x >= 0, "sigma should be greate or equal than zero"),
            "restart_strategy": _restarts,
        },
        {},
    ),
    "sobol": _AlgorithmMapping("sobol", {}, {}),
    HYPERBAND: _AlgorithmMapping(
        "random",
        {
            "r_l": _r_l,
            "resource_name": _anything,  # `_hyperband` checks it
            "eta": _eta,
            **dict.fromkeys(_HYPERBAND_STATE, _anything),
        },
        {},
    ),
    # Katib's LSTM learns from the mean of all trials; bench/architectures.py compares both.
    ENAS: _AlgorithmMapping("tpe", ENAS_SETTINGS, {}),
    # All trials are equal, and search by themselves.
    DARTS: _AlgorithmMapping("random", DARTS_SETTINGS, {}),
    # Without a probability, Katib perturbs every parameter of a replaced trial.
    PBT: _AlgorithmMapping(
        "pbt",
        {
            "suggestion_trial_dir": _trial_dir,  # where Katib mounts the trial's folder
            "n_population": _population,
            "truncation_threshold": _number(
                _is_share,
                "Param(truncation_threshold) should be between 0 and 1, inclusive",
                "truncation",
            ),
            "resample_probability": _number(
                _is_share,
                "Param(resample_probability) should be null to perturb at 0.8 or 1.2, or be "
                "between 0 and 1, inclusive, to resample",
                "resampleProbability",
            ),
        },
        {"resampleProbability": 0.0},
    ),
}
