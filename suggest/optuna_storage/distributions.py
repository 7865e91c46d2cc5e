"""Domains as Optuna's distributions, and values as the numbers that Optuna sees.

A stepped value is its index, and so is a choice: for Optuna, 1 and True would be the same choice.
"""

from __future__ import annotations

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from suggest.domain import NO_MEMBER
from suggest.space import Choice, Domain, Float, Int, Scale, Value


def distribution(domain: Domain) -> BaseDistribution:
    """For a domain of more than one value."""
    match domain:
        case Float() if domain.count is None:
            return FloatDistribution(domain.min, domain.max, log=domain.scale is Scale.LOG)
        case Int(scale=Scale.LOG, step=1):
            return IntDistribution(domain.min, domain.max, log=True)
        case Choice():
            return CategoricalDistribution(tuple(range(domain.count)))
    assert domain.count is not None
    return IntDistribution(0, domain.count - 1)


def _by_value(domain: Domain) -> bool:
    return domain.count is None or (isinstance(domain, Int) and domain.scale is Scale.LOG and domain.step == 1)


def encode(domain: Domain, value: Value) -> float | int | None:
    """None for what is not of the domain."""
    if isinstance(domain, Choice) or not _by_value(domain):
        return domain.index_of(value)
    member = domain.canonical(value)
    return None if member is NO_MEMBER else member


def decode(domain: Domain, number: float | int) -> Value:
    if not _by_value(domain):
        return domain.at(int(number))
    assert not isinstance(domain, Choice)
    inside = min(max(number, domain.min), domain.max)
    return float(inside) if isinstance(domain, Float) else int(inside)
