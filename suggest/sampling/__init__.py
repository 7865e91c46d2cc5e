"""Samplers: one module for each family, and the registry that knows them by name."""

from suggest.sampling.distinct import Distinct
from suggest.sampling.registry import Family, algorithm_problems, algorithms, new_sampler, space_problems
from suggest.sampling.sampler import Sampler, Wanted

__all__ = [
    "Distinct",
    "Family",
    "Sampler",
    "Wanted",
    "algorithm_problems",
    "algorithms",
    "new_sampler",
    "space_problems",
]
