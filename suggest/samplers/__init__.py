"""Samplers: one module for each family, and the registry that knows them by name."""

from suggest.proposal import Computation, Computed, PointRequest, completed
from suggest.samplers.distinct import Distinct
from suggest.samplers.registry import (
    algorithm_problems,
    cheaper_sampler,
    new_sampler,
    not_installed,
    objective_problems,
    space_problems,
)
from suggest.samplers.sampler import Sampler

__all__ = [
    "Computation",
    "Computed",
    "Distinct",
    "PointRequest",
    "Sampler",
    "algorithm_problems",
    "cheaper_sampler",
    "completed",
    "new_sampler",
    "not_installed",
    "objective_problems",
    "space_problems",
]
