"""What an experiment has used of GPU-hours and money, and will use, in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from controller.core.forecast import Forecast
from controller.core.model import Experiment, ExperimentSpec, ReasonCode
from controller.core.spending import Spent
from controller.phrases import command, quantity

# From here on, an amount is written as a power of ten.
_MOST_DIGITS = 1e15
# The ends of searches that more money, GPU-hours or time alone does not continue.
_NEED_NOTHING = frozenset(
    {
        ReasonCode.TRIALS_DONE,
        ReasonCode.NO_IMPROVEMENT,
        ReasonCode.REGRET_BELOW,
        ReasonCode.SPACE_EXHAUSTED,
        ReasonCode.TARGET_REACHED,
        ReasonCode.STOPPED_BY_TRIAL,
    }
)


def used(experiment: Experiment) -> list[str]:
    """Return what was used: `61.2 of 100 GPU-hours`, `cost 153 of 250`, `cost 153`."""
    spec, phrases = experiment.spec, []
    if spec.budget.gpu_hours is not None:
        phrases.append(f"{amount(experiment.gpu_hours)} of {spec.budget.gpu_hours:g} GPU-hours")
    if spec.prices:
        phrases.append(f"cost {amount(experiment.cost)}{of_limit(spec.budget.cost)}")
    return phrases


def raise_limit(experiment: Experiment) -> str:
    """Return the command that raises a limit of money, GPU-hours or time that is used up.

    Return "" if none is, or if something else has ended the experiment.
    """
    if experiment.reason_code in _NEED_NOTHING:
        return ""
    budget = experiment.spec.budget
    limits = (
        ("cost", budget.cost, experiment.cost),
        ("gpuHours", budget.gpu_hours, experiment.gpu_hours),
        ("wallClock", budget.wall_clock_s, experiment.running_s),
    )
    flags: list[str] = []
    for key, limit, so_far in limits:
        if limit is None or so_far < limit:
            continue
        # Attempts that were let finish may have used several times the limit.
        total = limit * (1 + so_far // limit)
        value = f"{math.ceil(total)}s" if key == "wallClock" else _plain(total)
        flags += ["--set", f"spec.budget.{key}={value}"]
    more_of_it = command("extend", experiment.name, *flags)
    return f"to raise the limit: {more_of_it}" if flags else ""


def _plain(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".")


def of_limit(limit: float | None) -> str:
    return "" if limit is None else f" of {limit:g}"


def gpu_hours(experiment: Experiment) -> float | None:
    """Return the GPU-hours used; None where what attempts use is not counted."""
    return round(experiment.gpu_hours, 6) if experiment.spec.is_metered else None


def cost(experiment: Experiment) -> float | None:
    return round(experiment.cost, 6) if experiment.spec.prices else None


def amount(value: float) -> str:
    """Return an amount with three digits: people compare it with a limit."""
    return f"{value:.0f}" if 1000 <= value < _MOST_DIGITS else f"{value:.3g}"


def foreseen(spec: ExperimentSpec, forecast: Forecast | None) -> list[str]:
    """Return what will be used of each limit: `about 61 of 100 GPU-hours, 90 %: 48–75`."""
    if forecast is None:
        return []
    budget, phrases = spec.budget, []
    if budget.gpu_hours is not None:
        what = f"of {budget.gpu_hours:g} GPU-hours"
        phrases.append(_foreseen(forecast, what, lambda spent: spent.gpu_hours))
    if spec.prices:
        what = "in cost" if budget.cost is None else f"of cost {budget.cost:g}"
        phrases.append(_foreseen(forecast, what, lambda spent: spent.cost))
    return phrases


def document(spec: ExperimentSpec, forecast: Forecast | None) -> dict[str, Any] | None:
    """Return the forecast in numbers: `{trials: 4, gpuHours: {expected: 61, low: 48, high: 75}}`.

    trials: how many it is from; with 0, it is the most that is used without retries. atLeast: it
    is a lower bound.
    """
    if forecast is None:
        return None
    ends = {"expected": forecast.expected, "low": forecast.low, "high": forecast.high}
    known = {name: spent for name, spent in ends.items() if spent is not None}
    told: dict[str, Any] = {"trials": forecast.seen}
    if forecast.at_least:
        told["atLeast"] = True
    told["gpuHours"] = {name: round(spent.gpu_hours, 6) for name, spent in known.items()}
    if spec.prices:
        told["cost"] = {name: round(spent.cost, 6) for name, spent in known.items()}
    return told


def _foreseen(forecast: Forecast, what: str, of: Callable[[Spent], float]) -> str:
    expected = amount(of(forecast.expected))
    if forecast.seen == 0:
        return f"at most {expected} {what}, by trial.timeout without retries"
    if forecast.at_least:
        return f"at least {expected} {what}, from {quantity(forecast.seen, 'trial')}"
    if forecast.low is None or forecast.high is None:
        return f"about {expected} {what}, from {quantity(forecast.seen, 'trial')}"
    low, high = amount(of(forecast.low)), amount(of(forecast.high))
    return f"about {expected} {what}, 90 %: {low}–{high}"
