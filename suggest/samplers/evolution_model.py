"""The models behind `nsga2`, `nsga3` and `regularized-evolution`: parents, crossover and mutation.

Deb et al. 2002 (NSGA-II), Deb and Jain 2014 (NSGA-III), Real et al. 2019 (regularized evolution). A
generation has as many succeeded trials as the population has members, in the order of their numbers
(see `generations`), so it is a function of the trials. Trial n is a child of the current
population, drawn with the random numbers of (study seed, n). Before the first generation is
complete, it is a random point. If a child equals a parent or a running trial, it is drawn again,
and finally mutated further.

A point is a row of places, see `gp_space`. A parameter that is inactive,
or whose value is not in the space, is missing in the row (NaN). A child
then takes the other parent's value, or a random one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from suggest import deadline
from suggest.proposal import PointRequest, generator
from suggest.samplers import survival
from suggest.samplers.evolution import AgingSettings, GeneticSettings
from suggest.samplers.generations import Generations
from suggest.samplers.gp_space import Places
from suggest.samplers.normal import Flags, Floats
from suggest.samplers.running import LIARS
from suggest.samplers.uniform import draw_point
from suggest.space import Assignment
from suggest.study import StudySpec
from suggest.trial import Trial

# How often a child is drawn, and then mutated, until its point is new.
CHILDREN, MUTATIONS = 4, 16


@dataclass(frozen=True, slots=True)
class Population:
    """The points that parents are chosen from.

    rows: (members, axes), places.
    losses: (members, objectives).
    violations: (members,), by how much each member breaks the constraints.
    merits: (members, any). The parent with the lexicographically smallest row is the best one.
    """

    rows: Floats
    losses: Floats
    violations: Floats
    merits: Floats


class _GeneticAlgorithm(ABC):
    """The common part of the algorithms.

    Subclasses choose the population and create a child from it.
    """

    def __init__(self, spec: StudySpec, seed: int) -> None:
        self._spec = spec
        self._criteria = spec.criteria
        self._seed = seed
        self._places = Places(spec.space)

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
            population = self._population(list(learned)) if self._places.size else None
            if population is None:
                return [draw_point(self._spec.space, self._seed, one) for one in wanted]
            parents = {_key(row) for row in population.rows}
            pending = [trial.parameters for trial in list(running)[-LIARS:]]
            taken = [_key(row) for row in self._places.encoded(pending)]
            points: list[Assignment] = []
            for one in wanted:
                deadline.check()
                row = self._new_child(population, one, parents.union(taken[-LIARS:]))
                taken.append(_key(row))
                points.append(self._places.decoded(row, one.fixed))
            return points

    def _new_child(self, population: Population, one: PointRequest, taken: set[bytes]) -> Floats:
        source = one.source(self._seed, self._spec.algorithm.name)
        rng = np.random.Generator(np.random.PCG64(source.getrandbits(128)))
        decided = self._places.encoded([one.fixed])[0]
        row: Floats = decided
        for attempt in range(CHILDREN + MUTATIONS):
            if attempt < CHILDREN:
                row = self._child(population, rng)
            else:
                row = self._mutated_in_one(row, 0.0, rng)
            row = np.where(np.isnan(decided), row, decided)
            row = self._places.completed(row[None], rng.random((1, self._places.size)))[0]
            if _key(row) not in taken:
                break
        return row

    @abstractmethod
    def _population(self, learned: Sequence[Trial]) -> Population | None:
        """Return the current population; None if too few trials have succeeded."""

    @abstractmethod
    def _child(self, population: Population, rng: np.random.Generator) -> Floats:
        """Return a new row. It may still lack parameters."""

    def _members(self, trials: Sequence[Trial]) -> Population:
        """Return these trials, all of which have finite losses, as a population without merits."""
        count = len(trials)
        losses = np.array([self._criteria.losses(trial) for trial in trials])
        violations = np.array([self._criteria.violation(trial) for trial in trials])
        rows = self._places.encoded([trial.parameters for trial in trials])
        return Population(rows, losses.reshape(count, -1), violations, np.zeros((count, 0)))

    def _mutated_in_one(self, row: Floats, eta: float, rng: np.random.Generator) -> Floats:
        """Return the row with a mutation of one of the parameters that it has."""
        active = np.flatnonzero(~np.isnan(row))
        which = np.zeros(len(row), dtype=np.bool_)
        if len(active):
            drawn = active[int(rng.integers(len(active)))]
            which[drawn] = True
        return self._mutated(row, which, eta, rng)

    def _mutated(self, row: Floats, which: Flags, eta: float, rng: np.random.Generator) -> Floats:
        """Return the row with mutations of the parameters `which`.

        Numbers change by polynomial mutation (Deb and Agrawal 1999), by at least one step. Choices
        take another value.
        """
        row = row.copy()
        for k in np.flatnonzero(which & ~np.isnan(row)):
            axis, share = self._places.axes[k], float(rng.random())
            if self._places.choice[k]:
                other = int(share * (axis.count - 1))
                row[k] = other + (other >= row[k])
                continue
            x = float(row[k])
            step = _polynomial_step(x, share, eta)
            if not self._places.smooth[k]:
                size = max(abs(step), 1.0 / axis.count)
                step = size if step > 0 else -size
                # Reflect it: the other side always has another value.
                if not 0.0 < x + step < 1.0:
                    step = -step
            row[k] = min(max(x + step, 0.0), 1.0)
        return row


class GeneticModel(_GeneticAlgorithm):
    """`nsga2` and `nsga3`.

    They differ in the members that survive a generation and in how parents are compared.
    """

    def __init__(self, spec: StudySpec, seed: int, settings: GeneticSettings) -> None:
        super().__init__(spec, seed)
        self._settings = settings
        self._by_reference_points = spec.algorithm.name == "nsga3"
        self._generations: Generations[Trial, Population | None] = Generations(
            settings.population_size, lambda: None, self._survivors
        )

    def _population(self, learned: Sequence[Trial]) -> Population | None:
        return self._generations.replay(learned)[1]

    def _survivors(
        self, generation: int, trials: Sequence[Trial], memories: Mapping[int, Population | None]
    ) -> Population:
        with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
            new, old = self._members(trials), memories[generation]
            rows, losses, violations = new.rows, new.losses, new.violations
            if old is not None:
                rows = np.concatenate([old.rows, rows])
                losses = np.concatenate([old.losses, losses])
                violations = np.concatenate([old.violations, violations])
            size = self._settings.population_size
            if self._by_reference_points:
                source = generator(self._seed, generation, "nsga3 niches")
                rng = np.random.Generator(np.random.PCG64(source.getrandbits(128)))
                chosen, merits = survival.by_reference_points(losses, violations, size, rng)
            else:
                chosen, merits = survival.by_crowding(losses, violations, size)
            return Population(rows[chosen], losses[chosen], violations[chosen], merits)

    def _child(self, population: Population, rng: np.random.Generator) -> Floats:
        settings, size = self._settings, self._places.size
        one = self._parent(population, rng)
        if rng.random() < settings.crossover_probability:
            one = self._crossed(one, self._parent(population, rng), rng)
        share = settings.mutation_probability or 1.0 / size
        return self._mutated(one, rng.random(size) < share, settings.mutation_eta, rng)

    def _parent(self, population: Population, rng: np.random.Generator) -> Floats:
        """Return the winner of a binary tournament; between equal members, the first one drawn."""
        one, other = rng.integers(0, len(population.rows), 2)
        merits = population.merits
        winner = other if tuple(merits[other]) < tuple(merits[one]) else one
        row: Floats = population.rows[winner]
        return row

    def _crossed(self, one: Floats, other: Floats, rng: np.random.Generator) -> Floats:
        """Return one of the two children.

        Simulated binary crossover (Deb and Agrawal 1995) for numbers,
        uniform crossover for choices.
        """
        size = self._places.size
        share = rng.random(size)
        power = 1.0 / (self._settings.crossover_eta + 1.0)
        contracting, expanding = 2.0 * share, 0.5 / (1.0 - share)
        spread = np.where(share <= 0.5, contracting, expanding) ** power
        side = np.where(rng.random(size) < 0.5, 1.0, -1.0)
        middle = 0.5 * (one + other)
        blended = np.clip(middle + 0.5 * spread * side * (one - other), 0.0, 1.0)
        swapped = np.where(rng.random(size) < 0.5, one, other)
        # As in the paper, each number is crossed with probability 1/2, and otherwise keeps the
        # first parent's value.
        numbers = np.where(rng.random(size) < 0.5, blended, one)
        child = np.where(self._places.choice, swapped, numbers)
        child = np.where(np.isnan(child), one, child)
        return np.where(np.isnan(child), other, child)


class AgingModel(_GeneticAlgorithm):
    """Regularized evolution: the population consists of the most recent trials.

    Their values do not matter. A child has one parent and one mutation. With several objectives or
    constraints, the first drawn member of the best front wins the tournament.
    """

    def __init__(self, spec: StudySpec, seed: int, settings: AgingSettings) -> None:
        super().__init__(spec, seed)
        self._settings = settings

    def _population(self, learned: Sequence[Trial]) -> Population | None:
        """Return the population; None before it is full.

        `learned` has at most as many trials as the population.
        """
        if len(learned) < self._settings.population_size:
            return None
        return self._members(learned)

    def _child(self, population: Population, rng: np.random.Generator) -> Floats:
        drawn = rng.integers(0, len(population.rows), self._settings.tournament_size)
        fronts = survival.levels(population.losses[drawn], population.violations[drawn])
        winner = drawn[int(np.argmin(fronts))]
        row: Floats = population.rows[winner]
        return self._mutated_in_one(row, self._settings.mutation_eta, rng)


def _key(row: Floats) -> bytes:
    return np.round(row, 12).tobytes()


def _polynomial_step(x: float, share: float, eta: float) -> float:
    """Return the change of x in 0…1 by polynomial mutation. share: uniform in [0, 1)."""
    power = eta + 1
    if share < 0.5:
        below: float = 2 * share + (1 - 2 * share) * (1 - x) ** power
        return float(below ** (1 / power) - 1)
    above: float = 2 * (1 - share) + (2 * share - 1) * x**power
    return float(1 - above ** (1 / power))
