"""Katib's algorithms, their settings under the names of all of Katib's engines,
and what they are in a native file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from controller.spec.yaml_text import MAX_NUMBER_LENGTH
from suggest import darts


def whole(text: str, least: int) -> int:
    if len(text) > MAX_NUMBER_LENGTH:
        raise ValueError(f"expected a number of at most {MAX_NUMBER_LENGTH} digits")
    if not re.fullmatch(r"[0-9]+", text) or int(text) < least:
        raise ValueError(f"expected a whole number from {least}")
    return int(text)


def real(text: str) -> float:
    value = (
        float(text)
        if re.fullmatch(r"[+-]?([0-9]*[.])?[0-9]+([eE][+-]?[0-9]+)?", text)
        else math.nan
    )
    if not math.isfinite(value):
        raise ValueError("expected a number")
    return value


def _number(which: str, holds: Callable[[float], bool]) -> Callable[[str], float]:
    def taken(text: str) -> float:
        if not holds(value := real(text)):
            raise ValueError(f"expected a number {which}")
        return value

    return taken


_positive = _number("above 0", lambda value: value > 0)
_not_negative = _number("from 0", lambda value: value >= 0)
_share = _number("between 0 and 1", lambda value: 0 < value < 1)
_share_above_0 = _number("above 0, at most 1", lambda value: 0 < value <= 1)
_share_or_all = _number("from 0 to 1", lambda value: 0 <= value <= 1)


def _folder(text: str) -> str:
    if not text.startswith("/") or not text.strip("/"):
        raise ValueError("expected the absolute path of a folder")
    return text.rstrip("/")


def _one_of(*words: str) -> Callable[[str], str]:
    def taken(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return text

    return taken


def _growth(text: str) -> int | None:
    """Return the factor of cmaes's population per restart: none with `none`, else the default."""
    return 1 if _one_of("ipop", "bipop", "none", "None")(text) in ("none", "None") else None


def _or_none(take: Callable[[str], object]) -> Callable[[str], object]:
    def taken(text: str) -> object:
        return None if text == "None" else take(text)

    return taken


def _as_written(take: Callable[[str], object]) -> Callable[[str], str]:
    """Return a reader that checks a text and returns it."""

    def taken(text: str) -> str:
        take(text)
        return text

    return taken


@dataclass(frozen=True, slots=True)
class KatibSetting:
    """A setting of an algorithm.

    take: reads its text; None is the default of the native setting. to: its name in the native
    file; "" if it has no effect here, which a warning says.
    """

    take: Callable[[str], object]
    to: str = ""


# Where the program of a pbt trial expects its checkpoint; not a setting of the native file.
TRIAL_DIR = "trialDir"
_SEED = KatibSetting(lambda text: whole(text, 0), "seed")
_TPE_SETTINGS = {  # of Optuna's service
    "random_state": _SEED,
    "n_startup_trials": KatibSetting(lambda text: whole(text, 0), "startupTrials"),
    "n_ei_candidates": KatibSetting(lambda text: max(1, whole(text, 0)), "candidates"),
}
_HYPEROPT_SETTINGS = {
    "n_EI_candidates": KatibSetting(lambda text: whole(text, 1), "candidates"),
    "gamma": KatibSetting(_share),
    "prior_weight": KatibSetting(_positive),
}
_at_least_1 = KatibSetting(lambda text: whole(text, 1))
# Of Katib's LSTM, which is not used here.
_CONTROLLER_SETTINGS = {
    "controller_hidden_size": _at_least_1,
    "controller_temperature": KatibSetting(_or_none(_positive)),
    "controller_tanh_const": KatibSetting(_or_none(_positive)),
    "controller_entropy_weight": KatibSetting(_or_none(_positive)),
    "controller_baseline_decay": KatibSetting(_share_above_0),
    "controller_learning_rate": KatibSetting(_share_above_0),
    "controller_skip_target": KatibSetting(_share_above_0),
    "controller_skip_weight": KatibSetting(_or_none(_positive)),
    "controller_train_steps": _at_least_1,
    "controller_log_every_steps": _at_least_1,
}


def _darts_setting(name: str, default: float) -> KatibSetting:
    """Return a setting that the program gets as it is written."""
    take: Callable[[str], object] = _not_negative
    if isinstance(default, int):
        take = partial(whole, least=0 if name == "num_workers" else 1)
    if name in darts.OPTIONAL:
        take = _or_none(take)
    return KatibSetting(_as_written(take), name)


@dataclass(frozen=True, slots=True)
class KatibAlgorithm:
    """An algorithm of Katib's: its native name and settings, and the settings that it takes."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    takes: dict[str, KatibSetting] = field(default_factory=dict)


ALGORITHMS = {
    "random": KatibAlgorithm("random", takes={"random_state": _SEED}),
    "grid": KatibAlgorithm(
        "grid", takes={"random_state": KatibSetting(lambda text: whole(text, 0))}
    ),
    "tpe": KatibAlgorithm("tpe", {"multivariate": False}, _TPE_SETTINGS | _HYPEROPT_SETTINGS),
    "multivariate-tpe": KatibAlgorithm("tpe", {"multivariate": True}, _TPE_SETTINGS),
    "bayesianoptimization": KatibAlgorithm(
        "gp",
        takes={
            "random_state": _SEED,
            "n_initial_points": KatibSetting(lambda text: whole(text, 0), "startupTrials"),
            "base_estimator": KatibSetting(_one_of("GP", "RF", "ET", "GBRT")),
            "acq_func": KatibSetting(_one_of("gp_hedge", "LCB", "EI", "PI", "EIps", "PIps")),
            "acq_optimizer": KatibSetting(_one_of("auto", "sampling", "lbfgs")),
        },
    ),
    "cmaes": KatibAlgorithm(
        "cmaes",
        takes={
            "random_state": _SEED,
            "sigma": KatibSetting(_not_negative),
            "restart_strategy": KatibSetting(_growth, "populationGrowth"),
        },
    ),
    "sobol": KatibAlgorithm("sobol"),
    "hyperband": KatibAlgorithm(
        "hyperband",
        takes={
            "r_l": KatibSetting(_positive, "max"),
            "eta": KatibSetting(lambda text: whole(text, 2), "eta"),
            "resource_name": KatibSetting(str, "parameter"),
        },
    ),
    # Katib's LSTM learns from the mean of all trials; bench/architectures.py compares both.
    "enas": KatibAlgorithm("tpe", takes=_CONTROLLER_SETTINGS),
    "darts": KatibAlgorithm(
        "random",
        takes={name: _darts_setting(name, default) for name, default in darts.DEFAULTS.items()},
    ),
    # Without a probability, Katib perturbs every parameter.
    "pbt": KatibAlgorithm(
        "pbt",
        {"resampleProbability": 0.0},
        {
            "suggestion_trial_dir": KatibSetting(_folder, TRIAL_DIR),
            "n_population": KatibSetting(lambda text: whole(text, 5), "population"),
            "truncation_threshold": KatibSetting(_share_or_all, "truncation"),
            "resample_probability": KatibSetting(_share_or_all, "resampleProbability"),
        },
    ),
}
