"""Pruning rules: one module for each family, and the registry that knows them by name."""

from suggest.pruners.pruner import Pruner
from suggest.pruners.registry import new_pruner, pruning_problems, rules

__all__ = ["Pruner", "new_pruner", "pruning_problems", "rules"]
