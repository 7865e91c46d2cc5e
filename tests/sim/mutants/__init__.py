"""Planted bugs: each replaces one correct function, and the simulation must detect it.

`python -m tests.sim.mutants` runs them all. A bug that survives means
that the simulation has a gap.
"""
