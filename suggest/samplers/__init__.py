"""Samplers: one module for each family, and the registry that knows them by name."""

from suggest.samplers.distinct import Distinct
from suggest.samplers.registry import (
    Family,
    algorithm_problems,
    algorithms,
    new_sampler,
    objective_problems,
    space_problems,
)
from suggest.samplers.sampler import PointRequest, Sampler

__all__ = [
    "Distinct",
    "Family",
    "PointRequest",
    "Sampler",
    "algorithm_problems",
    "algorithms",
    "new_sampler",
    "objective_problems",
    "space_problems",
]
