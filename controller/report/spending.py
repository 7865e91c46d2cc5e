"""What an experiment has used of its GPU-hours and its money, in words. Pure."""

from __future__ import annotations

from controller.core.model import Experiment


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
