"""Pruning rules: one module for each family, and the registry that knows them by name."""

from suggest.pruners.pruner import Pruner
from suggest.pruners.registry import Rule, new_pruner, pruning_problems, rules

__all__ = ["Pruner", "Rule", "new_pruner", "pruning_problems", "rules"]
