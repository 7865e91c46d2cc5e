"""Katib's experiments: converts an `api.v1.beta1.Experiment` to the spec of a study,
and texts to values and back.

Pure. Errors that Katib reports have Katib's texts. Experiments that Katib accepts but never
finishes are refused too. An algorithm accepts the settings of all of Katib's services for it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from suggest.domain import (
    NO_MEMBER,
    Choice,
    Domain,
    Float,
    Int,
    NoMember,
    Normal,
    Scale,
    Value,
    last_step,
)
from suggest.errors import InvalidArgument, Problem
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.space import NAME_RULE, Parameter, Space, is_name
from suggest.studies.spec_rules import spec_problems
from suggest.study import Algorithm, Direction, Fidelity, Objective, StudySpec
from suggest.trial import ValueColumn

MAX_NAME = 253  # characters of an experiment's or a trial's name
MAX_PARAMETERS = 1000
MAX_TEXT = 10_000  # characters of a parameter's value
_WHOLE = re.compile(r"[+-]?[0-9]{1,16}", re.ASCII)
_AT = "experiment.spec"
_PARAMETERS = f"{_AT}.parameter_specs.parameters"
_DISTRIBUTIONS = (pb.DISTRIBUTION_UNSPECIFIED, pb.UNIFORM, pb.LOG_UNIFORM, pb.NORMAL, pb.LOG_NORMAL)


@dataclass(frozen=True, slots=True)
class KatibExperiment:
    """An experiment as the spec of a study.

    `fidelity` is that of hyperband, whose parameter is one of the space here. `key` is equal for
    experiments with the same name, parameters, objective, algorithm and settings. The rest of the
    message may change during an experiment.
    """

    name: str
    key: str
    metric: str  # "": each trial names its own
    spec: StudySpec
    texts: tuple[ParameterText, ...]  # in the order of the space
    fidelity: Fidelity | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters."""
        return tuple(text.name for text in self.texts)

    @property
    def is_population(self) -> bool:
        """Return whether trials continue from checkpoints of others."""
        return self.spec.algorithm.name == PBT


class TextValues(NamedTuple):
    """A parameter's texts as values; the places of those outside of the domain or unreadable."""

    column: ValueColumn
    outside: Sequence[int]
    unreadable: Sequence[int]


class ParameterText:
    """Converts the values of one parameter between Katib's texts and the study's domain."""

    def __init__(self, name: str, domain: Domain) -> None:
        self.name = name
        self.domain = domain

    def text(self, value: Value) -> str:
        """Return the text for a value of the domain."""
        return str(value)

    def values(self, texts: Sequence[str]) -> TextValues:
        """Return the values of many texts, None for one that has none."""
        if isinstance(self.domain, Float) and self.domain.count is None:
            return _values_of_range(self.domain, texts)
        # Thousands of trials have few different texts.
        known = {text: self._value(text) for text in set(texts)}
        as_json = {text: json.dumps(value) for text, (value, _) in known.items()}
        values = [known[text][0] for text in texts]
        outside = [place for place, text in enumerate(texts) if not known[text][1]]
        unreadable = [place for place in outside if values[place] is None]
        return TextValues(
            ValueColumn(values, [as_json[text] for text in texts]), outside, unreadable
        )

    def _value(self, text: str) -> tuple[Value, bool]:
        """Return the text's value, None if it has none, and whether it is in the domain."""
        domain = self.domain
        if isinstance(domain, Choice):
            return (None, False) if len(text) > MAX_TEXT else (text, domain.contains(text))
        x = finite(text)
        if x is None or (isinstance(domain, Int) and x != int(x)):
            return None, False
        member: Value | NoMember = domain.canonical(x)
        if member is NO_MEMBER:
            return (int(x) if isinstance(domain, Int) else x), False
        return member, True


def _values_of_range(domain: Float, texts: Sequence[str]) -> TextValues:
    """Return the values of texts in a range without steps, where each number is a member."""
    low, high = domain.min, domain.max
    numbers = list(map(finite, texts))
    outside = [place for place, x in enumerate(numbers) if x is None or not low <= x <= high]
    unreadable = [place for place in outside if numbers[place] is None]
    # orjson writes numbers ten times as fast as json.
    as_json = orjson.dumps(numbers).decode()[1:-1].split(",") if numbers else []
    return TextValues(ValueColumn(numbers, as_json), outside, unreadable)


def finite(text: str) -> float | None:
    """Return the number in a text, None if it is not a finite number."""
    if len(text) > MAX_TEXT:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_experiment(message: pb.Experiment) -> KatibExperiment:
    """Convert an experiment to suggest for it. Raises InvalidArgument with all problems."""
    problems: list[Problem] = []
    if not message.name or len(message.name) > MAX_NAME:
        problems.append(Problem("experiment.name", f"give a name of 1 to {MAX_NAME} characters"))
    if not message.spec.parameter_specs.parameters:
        problems.append(Problem(_PARAMETERS, f"0 parameters; give 1 to {MAX_PARAMETERS}"))
    return _converted(message, problems)


def validate(message: pb.Experiment) -> KatibExperiment:
    """Check an experiment as ValidateAlgorithmSettings does, and return it. Raises InvalidArgument.

    Katib's webhook guarantees parameters, a metric and a direction, and its services do not ask for
    them. What is there is checked.
    """
    experiment = _converted(message, [])
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


def _converted(message: pb.Experiment, problems: list[Problem]) -> KatibExperiment:
    """Convert an experiment, perhaps without parameters.

    Raises InvalidArgument with `problems` and all others.
    """
    spec = message.spec
    name = spec.algorithm.algorithm_name
    if spec.HasField("nas_config"):
        problems.append(
            Problem(
                f"{_AT}.nas_config", "a search for a network's layers is not served; use parameters"
            )
        )
    fidelity = _hyperband(spec, problems) if name == HYPERBAND else None
    algorithm = _algorithm(spec.algorithm, problems)
    given = {each.name for each in spec.algorithm.algorithm_settings}
    if name == PBT and (lacking := [each for each in _PBT_REQUIRED if each not in given]):
        problems.append(Problem("", f"Required params missing: {', '.join(lacking)}"))
    texts = tuple(_parameters(spec.parameter_specs.parameters, problems, is_grid=name == "grid"))
    if fidelity is not None:
        resource = Int(round(fidelity.min), round(fidelity.max))
        texts = tuple(
            ParameterText(t.name, resource) if t.name == fidelity.parameter else t for t in texts
        )
    metric = spec.objective.objective_metric_name
    if len(metric) > 1000:
        problems.append(
            Problem(f"{_AT}.objective.objective_metric_name", "has more than 1000 characters")
        )
    if problems or algorithm is None:
        raise InvalidArgument(problems)
    # As in Katib's services, every other direction means the smallest value.
    direction = Direction.MAXIMIZE if spec.objective.type == pb.MAXIMIZE else Direction.MINIMIZE
    objective = Objective(metric or "objective", direction)
    study = StudySpec(
        Space(tuple(Parameter(t.name, t.domain) for t in texts)), (objective,), algorithm
    )
    if name == "cmaes" and sum(not isinstance(t.domain, Choice) for t in texts) < 2:
        raise InvalidArgument.at(
            "", "cmaes only supports two or more dimensional continuous search space."
        )
    if texts and (found := spec_problems(study)):
        raise InvalidArgument(
            [Problem(p.path.replace("spec.parameters.", "parameter ", 1), p.message) for p in found]
        )
    return KatibExperiment(message.name, _key(message), metric, study, texts, fidelity)


def _key(message: pb.Experiment) -> str:
    """Return a hash of the fields that define the search.

    A setting with another text is another setting.
    """
    spec = message.spec
    parts = pb.Experiment(name=message.name)
    parts.spec.parameter_specs.CopyFrom(spec.parameter_specs)
    parts.spec.algorithm.CopyFrom(spec.algorithm)
    if spec.algorithm.algorithm_name == HYPERBAND:  # its state in Katib changes with each request
        del parts.spec.algorithm.algorithm_settings[:]
        parts.spec.algorithm.algorithm_settings.extend(
            each for each in spec.algorithm.algorithm_settings if each.name not in _HYPERBAND_STATE
        )
    parts.spec.objective.type = spec.objective.type
    parts.spec.objective.objective_metric_name = spec.objective.objective_metric_name
    return hashlib.sha256(parts.SerializeToString(deterministic=True)).hexdigest()


# Parameters


def _parameters(
    given: Sequence[pb.ParameterSpec], problems: list[Problem], *, is_grid: bool
) -> Iterator[ParameterText]:
    if len(given) > MAX_PARAMETERS:
        problems.append(
            Problem(_PARAMETERS, f"{len(given)} parameters; give 1 to {MAX_PARAMETERS}")
        )
        return
    if is_grid and (
        without := [
            p.name for p in given if p.parameter_type == pb.DOUBLE and not p.feasible_space.step
        ]
    ):
        inner = (
            f"Param {without[0]} step is nil; For discrete search space, all parameters must "
            f"include step"
        )
        problems.append(
            Problem(
                "", f"failed to validate parameters({', '.join(p.name for p in given)}): {inner}"
            )
        )
        return
    names: set[str] = set()
    for place, parameter in enumerate(given):
        path = f"{_PARAMETERS}[{place}]"
        if parameter.name in names:
            problems.append(
                Problem(f"{path}.name", f"Detect duplicated parameter name: {parameter.name}")
            )
        elif not is_name(parameter.name):
            problems.append(
                Problem(f"{path}.name", f"{parameter.name[:80]!r} is not a name; use {NAME_RULE}")
            )
        names.add(parameter.name)
        try:
            yield _parameter(parameter, is_grid=is_grid)
        except InvalidArgument as e:
            problems += [
                Problem(f"{path}.{p.path}", f"{parameter.name}: {p.message}") for p in e.problems
            ]


def _parameter(parameter: pb.ParameterSpec, *, is_grid: bool) -> ParameterText:
    """Convert a parameter. Raises InvalidArgument."""
    space, name = parameter.feasible_space, parameter.name
    if parameter.parameter_type in (pb.CATEGORICAL, pb.DISCRETE):
        return ParameterText(
            name, _choice(space, is_numeric=parameter.parameter_type == pb.DISCRETE)
        )
    if parameter.parameter_type not in (pb.INT, pb.DOUBLE):
        raise InvalidArgument.at(
            "parameter_type", "is not supported; use int, double, discrete or categorical"
        )
    is_int = parameter.parameter_type == pb.INT
    if space.list:
        raise InvalidArgument.at(
            "feasible_space.list", "an int or a double has min and max; omit the list"
        )
    low, high = (_number(getattr(space, end), end, is_int=is_int) for end in ("min", "max"))
    step = _step(space.step, is_int=is_int) if space.step else None
    if low > high:
        raise InvalidArgument.at(
            "feasible_space", f"min {space.min} is above max {space.max}; exchange them"
        )
    if step is not None and step <= 0:
        raise InvalidArgument.at(
            "feasible_space.step", f"{space.step} is not a step; use a number above 0"
        )
    shape = pb.DISTRIBUTION_UNSPECIFIED if is_grid else space.distribution
    is_log = shape in (pb.LOG_UNIFORM, pb.LOG_NORMAL)
    if is_log and low <= 0:
        raise InvalidArgument.at(
            "feasible_space.min", f"{space.min} cannot be on a log scale; use a min above 0"
        )
    if shape not in _DISTRIBUTIONS:
        raise InvalidArgument.at(
            "feasible_space.distribution", f"distribution {shape} is not supported"
        )
    scale = Scale.LOG if is_log else Scale.LINEAR
    is_normal = shape in (pb.NORMAL, pb.LOG_NORMAL)
    if is_normal and low == high:
        raise InvalidArgument.at(
            "feasible_space", "min equals max, so a normal distribution has no width; use uniform"
        )
    normal = Normal.within(low, high, scale) if is_normal else None
    if not is_int and step is not None and (high - low) / step > 10**15:
        raise InvalidArgument.at(
            "feasible_space.step", f"{space.step} makes more than 10^15 values; use a larger step"
        )
    # The end of Katib's range need not be on a step.
    last = high if step is None else last_step(low, high, step)
    if last == low < high:
        return ParameterText(
            name, Int(int(low), int(low)) if is_int else Float(float(low), float(low))
        )
    if is_int:
        return ParameterText(name, Int(int(low), int(last), scale, int(step or 1), normal))
    return ParameterText(name, Float(float(low), float(last), scale, step, normal=normal))


def _choice(space: pb.FeasibleSpace, *, is_numeric: bool) -> Choice:
    if space.min or space.max or space.step:
        raise InvalidArgument.at(
            "feasible_space", "a list has neither min, max nor step; omit them"
        )
    if not space.list:
        raise InvalidArgument.at("feasible_space.list", "is empty; give one value or more")
    values = tuple(space.list)
    if len(set(values)) < len(values):
        raise InvalidArgument.at("feasible_space.list", "has a value twice; remove one")
    if is_numeric:
        for value in values:
            _number(value, "list", is_int=False)
    return Choice(values)


def _step(text: str, *, is_int: bool) -> float | int:
    """Return a step. A step of an int below 1 is 1.

    Rounded down, as in Katib, its values are all whole numbers.
    """
    if is_int and not _WHOLE.fullmatch(text):
        step = _number(text, "step", is_int=False)
        if 0 < step < 1:
            return 1
    return _number(text, "step", is_int=is_int)


def _number(text: str, field: str, *, is_int: bool) -> float | int:
    at = f"feasible_space.{field}"
    if not text:
        raise InvalidArgument.at(at, "must be specified; write a number as text")
    if is_int:
        if not _WHOLE.fullmatch(text):
            raise InvalidArgument.at(
                at, f'expected a whole number of at most 16 digits such as "1", got {text[:80]!r}'
            )
        return int(text)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidArgument.at(at, f'expected a number such as "0.1", got {text[:80]!r}')
    return number


# Algorithms


@dataclass(frozen=True, slots=True)
class _AlgorithmMapping:
    """Our algorithm for one of Katib's.

    It has `fixed` settings, and a function for each setting that reads its text.
    """

    name: str
    read: Mapping[str, Callable[[str], dict[str, Value]]]
    fixed: Mapping[str, Value]


def _algorithm(message: pb.AlgorithmSpec, problems: list[Problem]) -> Algorithm | None:
    name = message.algorithm_name
    ours = _ALGORITHMS.get(name)
    if ours is None:
        cure = (
            "; search the layers of a network with conditions in a native file: docs/katib.md "
            "shows how"
        )
        served = f"{cure}. {', '.join(_ALGORITHMS)} are served" if name in _NOT_SERVED else ""
        problems.append(Problem("", f"unknown algorithm name {name[:80]}{served}"))
        return None
    settings, seed = dict(ours.fixed), None
    for given in message.algorithm_settings:
        read = ours.read.get(given.name)
        if read is None:
            problems.append(Problem("", f"unknown setting {given.name[:80]} for algorithm {name}"))
            continue
        try:
            found = read(given.value)
        except _RequestRefused as e:
            problems.append(Problem("", str(e)))
        except (ValueError, OverflowError) as e:
            problems.append(
                Problem("", f"failed to validate {given.name}({given.value[:80]}): {e}")
            )
        else:
            seed = found.pop(_SEED, seed)
            settings |= found
    return Algorithm(ours.name, None if seed is None else int(str(seed)), settings)


def _hyperband(spec: pb.ExperimentSpec, problems: list[Problem]) -> Fidelity | None:
    """Return the fidelity of hyperband. Its other settings are read like those of any algorithm."""
    given = {each.name: each.value for each in spec.algorithm.algorithm_settings}
    resource, text = given.get("resource_name"), given.get("r_l")
    if resource is None or text is None:
        problems.append(Problem("", "r_l and resource_name must be set."))
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
        problems.append(
            Problem(
                "", f"{resource[:80]}, of resource_name, must be an int: it counts what is trained"
            )
        )
        return None
    return Fidelity.of_resource(resource, most, eta)


class _RequestRefused(Exception):
    """A setting is refused with a text of Katib's that does not have the usual form."""


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
        raise _RequestRefused("n_EI_candidates should be great than zero")
    return {"candidates": min(count, 1000)}


def _not_negative(name: str, count: int, word: str) -> int:
    if count < 0:
        raise _RequestRefused(f"{name} should be {word} or equal than zero")
    return count


# Settings that Katib's engines read and ours have no counterpart
# for are checked, as in Katib's files.


def _gamma(text: str) -> dict[str, Value]:
    share = float(text)
    if not 0 < share < 1:
        raise _RequestRefused("gamma should be in the range of (0, 1)")
    return {}


def _prior_weight(text: str) -> dict[str, Value]:
    if not float(text) > 0:
        raise _RequestRefused("prior_weight should be great than zero")
    return {}


def _sigma(text: str) -> dict[str, Value]:
    sigma = float(text)
    if not sigma >= 0:
        raise _RequestRefused("sigma should be greate or equal than zero")
    return {}


def _restarts(text: str) -> dict[str, Value]:
    if text not in ("ipop", "bipop", "None", "none"):
        raise _RequestRefused(
            f"restart_strategy {text[:80]} is not supported in CMAES optimization"
        )
    # Without restarts, a converged search would try its last point again and again.
    return {"populationGrowth": 1} if text in ("None", "none") else {}


def _word(name: str, *words: str) -> Callable[[str], dict[str, Value]]:
    def read(text: str) -> dict[str, Value]:
        if text not in words:
            raise _RequestRefused(f"{name} {text[:80]} is not supported in Bayesian optimization")
        return {}

    return read


def _r_l(text: str) -> dict[str, Value]:
    try:
        most = float(text)
    except ValueError:
        most = math.nan
    if not 0 < most < math.inf:
        raise _RequestRefused("r_l must be a positive float number.")
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
        raise _RequestRefused("Param(n_population) should be >= 5")
    if count > 1000:
        raise ValueError("at most 1000")
    return {"population": count}


def _share(setting: str, rule: str) -> Callable[[str], dict[str, Value]]:
    def read(text: str) -> dict[str, Value]:
        share = float(text)
        if not 0 <= share <= 1:
            raise _RequestRefused(rule)
        return {setting: share}

    return read


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
            "gamma": _gamma,
            "prior_weight": _prior_weight,
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
        {"random_state": _seed(_GREATE), "sigma": _sigma, "restart_strategy": _restarts},
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
    # Without a probability, Katib perturbs every parameter of a replaced trial.
    PBT: _AlgorithmMapping(
        "pbt",
        {
            "suggestion_trial_dir": _trial_dir,  # where Katib mounts the trial's folder
            "n_population": _population,
            "truncation_threshold": _share(
                "truncation", "Param(truncation_threshold) should be between 0 and 1, inclusive"
            ),
            "resample_probability": _share(
                "resampleProbability",
                "Param(resample_probability) should be null to perturb at 0.8 or 1.2, or be "
                "between 0 and 1, inclusive, to resample",
            ),
        },
        {"resampleProbability": 0.0},
    ),
}
_NOT_SERVED = ("enas", "darts")
