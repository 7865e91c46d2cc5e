"""What an experiment has used of its GPU-hours and its money, and will use, in words. Pure."""

from __future__ import annotations

from controller.core.forecast import Forecast
from controller.core.model import Experiment, ExperimentSpec
from controller.phrases import quantity


def used(experiment: Experiment) -> list[str]:
    """Return what was used of each limit: `61.2 of 100 GPU-hours`, `cost 153 of 250`."""
    budget = experiment.spec.budget
    phrases = []
    if budget.gpu_hours is not None:
        phrases.append(f"{amount(experiment.gpu_hours)} of {budget.gpu_hours:g} GPU-hours")
    if budget.cost is not None:
        phrases.append(f"cost {amount(experiment.cost)} of {budget.cost:g}")
    return phrases


def gpu_hours(experiment: Experiment) -> float | None:
    """Return the GPU-hours used; None where the budget does not limit what attempts use."""
    return round(experiment.gpu_hours, 6) if experiment.spec.budget.is_metered else None


def cost(experiment: Experiment) -> float | None:
    return round(experiment.cost, 6) if experiment.spec.budget.cost is not None else None


def amount(value: float) -> str:
    """Return an amount with three digits: people compare it with a limit."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def foreseen(spec: ExperimentSpec, forecast: Forecast | None) -> list[str]:
    """Return what will be used of each limit: `about 61 of 100 GPU-hours, 90 %: 48–75`."""
    if forecast is None:
        return []
    budget, phrases = spec.budget, []
    low, high = forecast.low, forecast.high
    if budget.gpu_hours is not None:
        interval = None if low is None or high is None else (low.gpu_hours, high.gpu_hours)
        what = f"of {budget.gpu_hours:g} GPU-hours"
        phrases.append(_foreseen(forecast, forecast.expected.gpu_hours, what, interval))
    if budget.cost is not None:
        interval = None if low is None or high is None else (low.cost, high.cost)
        what = f"of cost {budget.cost:g}"
        phrases.append(_foreseen(forecast, forecast.expected.cost, what, interval))
    return phrases


def _foreseen(
    forecast: Forecast, expected: float, what: str, interval: tuple[float, float] | None
) -> str:
    if forecast.seen == 0:
        return f"at most {amount(expected)} {what}, by trial.timeout without retries"
    if interval is None:
        return f"about {amount(expected)} {what}, from {quantity(forecast.seen, 'trial')}"
    low, high = interval
    return f"about {amount(expected)} {what}, 90 %: {amount(low)}–{amount(high)}"
