"""Invariants of trials that continue from the checkpoints of others, and what the simulated
programs do with these.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from controller.core.model import Attempt, ExperimentSpec
from controller.folders import ExperimentFolders
from suggest.samplers.population import PbtPopulation
from suggest.trial import Trial, TrialState
from tests.sim.invariant import InvariantViolation

POPULATION, TRUNCATION = 3, 0.34


class SimulatedCheckpoints:
    """Real folders. A program reads the numbers of the trials
    in its checkpoint, and appends its own.
    """

    def __init__(self, folders: ExperimentFolders) -> None:
        self._folders = folders

    def prepare(self, trial: Trial, attempt: Attempt) -> None:
        """Do what the launcher of this machine does."""
        if trial.parent is not None:
            where = self._folders.attempt(trial.number, attempt.number)
            where.inherit(self._folders.checkpoint(trial.parent))
        self._folders.checkpoint(trial.number).mkdir(parents=True, exist_ok=True)

    def begin(self, number: int, trials: Sequence[Trial]) -> None:
        """Run the program of a trial.

        Raises InvariantViolation unless it finds exactly its parent's training.
        """
        known = {trial.number: trial for trial in trials}
        line: list[int] = []
        parent = known[number].parent
        if parent is not None and known[parent].state is not TrialState.SUCCEEDED:
            raise InvariantViolation(
                f"trial {number} continues from trial {parent}, which {known[parent].state.value}"
            )
        while parent is not None:
            line.insert(0, parent)
            parent = known[parent].parent
        file = self._folders.checkpoint(number) / "trials.json"
        found: list[int] = json.loads(file.read_text()) if file.exists() else []
        if found not in (line, [*line, number]):
            raise InvariantViolation(
                f"trial {number} continues from the training of {found}, not of {line}"
            )
        file.write_text(json.dumps([*line, number]))


def waits(spec: ExperimentSpec, trials: Sequence[Trial]) -> bool:
    """Return whether no trial may begin before another one ends."""
    if spec.algorithm.name != "pbt":
        return False
    population = PbtPopulation(POPULATION, TRUNCATION, spec.objective.direction)
    for trial in trials:
        population.put(trial)
    return population.next(random.Random(0)) is None
