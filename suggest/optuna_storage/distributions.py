"""Domains as the distributions of the numbers that `suggest.domain.encode` returns."""

from __future__ import annotations

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from suggest.space import Choice, Domain, Float, Int, Scale


def distribution(domain: Domain) -> BaseDistribution:
    """Return the distribution of a domain of more than one value."""
    match domain:
        case Float() if domain.count is None:
            return FloatDistribution(domain.min, domain.max, log=domain.scale is Scale.LOG)
        case Int(scale=Scale.LOG, step=1):
            return IntDistribution(domain.min, domain.max, log=True)
        case Choice():
            return CategoricalDistribution(tuple(range(domain.count)))
    assert domain.count is not None
    return IntDistribution(0, domain.count - 1)
