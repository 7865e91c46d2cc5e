"""Katib's algorithms: which of ours each is, and the settings of all of Katib's engines for it.

Katib writes settings as text. What reads them from a file and what reads them from a request accept
the same by this table. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from suggest import darts
from suggest.domain import Value

# A test of numbers, and its words for people.
_Range: TypeAlias = tuple[Callable[[float], bool], str]

_POSITIVE: _Range = (lambda x: x > 0, "a number above 0")
_FINITE: _Range = (lambda x: 0 < x < math.inf, "a number above 0")
_NOT_NEGATIVE: _Range = (lambda x: x >= 0, "a number from 0")
_BETWEEN: _Range = (lambda x: 0 < x < 1, "a number between 0 and 1")
_ABOVE_0: _Range = (lambda x: 0 < x <= 1, "a number above 0, at most 1")
_FROM_0: _Range = (lambda x: 0 <= x <= 1, "a number from 0 to 1")

SEED = "seed"
# Where the program of a pbt trial expects its checkpoint; not a setting of ours.
TRIAL_DIR = "trialDir"


@dataclass(frozen=True, slots=True)
class KatibSetting:
    """A setting of one of Katib's algorithms.

    Args:
        to: Our setting; "" if it has no effect here.
        kind: What its text is.
        holds: Whether a number is possible.
        expected: What is possible, for a person.
        rule: What Katib's service says of anything else. `{text}` is the setting's text.
        words: For one of a few words, the values of our setting; None for its default.
        is_optional: "None" is possible, and means the default.
        is_as_written: The program gets the text.
        least_used: Smaller numbers are possible, and count as this one.
    """

    to: str
    kind: type[int] | type[float] | type[str]
    holds: Callable[[float], bool] = lambda value: True
    expected: str = ""
    rule: str = ""
    words: Mapping[str, Value] = field(default_factory=dict)
    is_optional: bool = False
    is_as_written: bool = False
    least_used: float = -math.inf


@dataclass(frozen=True, slots=True)
class KatibAlgorithm:
    """An algorithm of Katib's: our name of it, our settings that it has in any case, the settings
    that it takes, and those that it must be given.
    """

    name: str
    settings: Mapping[str, Value] = field(default_factory=dict)
    takes: Mapping[str, KatibSetting] = field(default_factory=dict)
    required: tuple[str, ...] = ()


def _whole(to: str, least: int, rule: str, *, least_used: float = -math.inf) -> KatibSetting:
    expected = f"a whole number from {least}"
    return KatibSetting(to, int, lambda x: x >= least, expected, rule, least_used=least_used)


def _real(to: str, numbers: _Range, rule: str) -> KatibSetting:
    return KatibSetting(to, float, *numbers, rule)


def _words(to: str, words: Mapping[str, Value], rule: str) -> KatibSetting:
    return KatibSetting(to, str, rule=rule, words=words)


def _of_skopt(name: str, *words: str) -> KatibSetting:
    rule = f"{name} {{text}} is not supported in Bayesian optimization"
    return _words("", dict.fromkeys(words), rule)


def _seed(word: str, to: str = SEED) -> KatibSetting:
    return _whole(to, 0, f"random_state should be {word} or equal than zero")


def _of_lstm(
    name: str, kind: type[int] | type[float], numbers: _Range, *, is_optional: bool = False
) -> tuple[str, KatibSetting]:
    """Return a setting of Katib's LSTM, which is not used here, with its name."""
    possible = "[1, inf)" if kind is int else "(0, inf)"
    if numbers is _ABOVE_0:
        possible = "(0, 1]"
    rule = (
        f"Algorithm Setting {name}: {{text}} with {kind.__name__} type must be in range {possible}"
    )
    return name, KatibSetting("", kind, *numbers, rule, is_optional=is_optional)


def _of_darts(name: str, default: float) -> KatibSetting:
    """Return a setting that the program gets as it is written."""
    kind = type(default)
    least = 0 if kind is float or name == "num_workers" else 1
    word = "zero" if least == 0 else "one"
    rule = f"{name} should be greate or equal than {word}"
    if name == "num_epochs":
        rule = "num_epochs should be greate than zero"
    return KatibSetting(
        name,
        kind,
        lambda x: least <= x < math.inf,
        f"a whole number from {least}" if kind is int else "a number from 0",
        rule,
        is_optional=name in darts.OPTIONAL,
        is_as_written=True,
    )


# What Katib's services for hyperopt and skopt say, and those for Optuna and goptuna.
_GREAT, _GREATE = "great", "greate"
_AT_LEAST_1: _Range = (lambda x: x >= 1, "a whole number from 1")
_OPTUNA_TPE = {
    "random_state": _seed(_GREATE),
    "n_startup_trials": _whole(
        "startupTrials", 0, "n_startup_trials should be greate or equal than zero"
    ),
    "n_ei_candidates": _whole(
        "candidates", 0, "n_ei_candidates should be greate or equal than zero", least_used=1
    ),
}
_SHARE = "Param(truncation_threshold) should be between 0 and 1, inclusive"
_PROBABILITY = (
    "Param(resample_probability) should be null to perturb at 0.8 or 1.2, or be between 0 and 1, "
    "inclusive, to resample"
)
# The settings of early stopping.
MEDIAN_STOPPING: Mapping[str, KatibSetting] = {
    "min_trials_required": _whole(
        "minTrials", 1, "min_trials_required must be greater than zero (>0)"
    ),
    "start_step": _whole("warmupSteps", 1, "start_step must be greater or equal than one (>=1)"),
}
MEDIAN_DEFAULTS: Mapping[str, int] = {"min_trials_required": 3, "start_step": 4}
ALGORITHMS: Mapping[str, KatibAlgorithm] = {
    "random": KatibAlgorithm("random", takes={"random_state": _seed(_GREAT)}),
    "grid": KatibAlgorithm("grid", takes={"random_state": _seed(_GREATE, to="")}),
    "tpe": KatibAlgorithm(
        "tpe",
        {"multivariate": False},
        {
            **_OPTUNA_TPE,
            "random_state": _seed(_GREAT),
            "n_EI_candidates": _whole("candidates", 1, "n_EI_candidates should be great than zero"),
            "gamma": _real("", _BETWEEN, "gamma should be in the range of (0, 1)"),
            "prior_weight": _real("", _POSITIVE, "prior_weight should be great than zero"),
        },
    ),
    "multivariate-tpe": KatibAlgorithm("tpe", {"multivariate": True}, _OPTUNA_TPE),
    "bayesianoptimization": KatibAlgorithm(
        "gp",
        takes={
            "random_state": _seed(_GREAT),
            "n_initial_points": _whole(
                "startupTrials", 0, "n_initial_points should be great or equal than zero"
            ),
            "base_estimator": _of_skopt("base_estimator", "GP", "RF", "ET", "GBRT"),
            "acq_func": _of_skopt("acq_func", "gp_hedge", "LCB", "EI", "PI", "EIps", "PIps"),
            "acq_optimizer": _of_skopt("acq_optimizer", "auto", "sampling", "lbfgs"),
        },
    ),
    "cmaes": KatibAlgorithm(
        "cmaes",
        takes={
            "random_state": _seed(_GREATE),
            "sigma": _real("", _NOT_NEGATIVE, "sigma should be greate or equal than zero"),
            # Without restarts, a converged search would try its last point again and again.
            "restart_strategy": _words(
                "populationGrowth",
                {"ipop": None, "bipop": None, "none": 1, "None": 1},
                "restart_strategy {text} is not supported in CMAES optimization",
            ),
        },
    ),
    "sobol": KatibAlgorithm("sobol"),
    "hyperband": KatibAlgorithm(
        "hyperband",
        takes={
            "r_l": _real("max", _POSITIVE, "r_l must be a positive float number."),
            "eta": _whole("eta", 2, "eta should be greater than one"),
            "resource_name": KatibSetting("parameter", str),
        },
    ),
    # Katib's LSTM learns from the mean of all trials; bench/architectures.py compares both.
    "enas": KatibAlgorithm(
        "tpe",
        takes=dict(
            (
                _of_lstm("controller_hidden_size", int, _AT_LEAST_1),
                _of_lstm("controller_temperature", float, _FINITE, is_optional=True),
                _of_lstm("controller_tanh_const", float, _FINITE, is_optional=True),
                _of_lstm("controller_entropy_weight", float, _FINITE, is_optional=True),
                _of_lstm("controller_baseline_decay", float, _ABOVE_0),
                _of_lstm("controller_learning_rate", float, _ABOVE_0),
                _of_lstm("controller_skip_target", float, _ABOVE_0),
                _of_lstm("controller_skip_weight", float, _FINITE, is_optional=True),
                _of_lstm("controller_train_steps", int, _AT_LEAST_1),
                _of_lstm("controller_log_every_steps", int, _AT_LEAST_1),
            )
        ),
    ),
    # All trials are equal, and search by themselves.
    "darts": KatibAlgorithm(
        "random",
        takes={name: _of_darts(name, default) for name, default in darts.DEFAULTS.items()},
    ),
    # Without a probability, Katib perturbs every parameter of a replaced trial.
    "pbt": KatibAlgorithm(
        "pbt",
        {"resampleProbability": 0.0},
        {
            "suggestion_trial_dir": KatibSetting(TRIAL_DIR, str),
            "n_population": _whole("population", 5, "Param(n_population) should be >= 5"),
            "truncation_threshold": _real("truncation", _FROM_0, _SHARE),
            "resample_probability": _real("resampleProbability", _FROM_0, _PROBABILITY),
        },
        required=("suggestion_trial_dir", "n_population", "truncation_threshold"),
    ),
}
