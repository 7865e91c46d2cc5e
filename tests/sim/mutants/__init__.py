"""Planted bugs: each takes the place of one right function, and the simulation must notice.

`python -m tests.sim.mutants` runs them all; one that survives is a hole in the simulation, not a detail.
"""
