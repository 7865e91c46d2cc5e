"""The model of `gp`: beside the process of the whole space, one of each branch of a space with
conditions.

The process of the whole space leaves a branch whose numbers have to be tuned before it is good,
such as a model beside a simpler one. So every fourth point is in a branch that the best trial is
not in, each in turn, and comes from a process of the trials there alone (docs/adr/0016).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from suggest.domain import identity
from suggest.estimate import Estimate
from suggest.proposal import PointRequest
from suggest.samplers.gp import GpSettings, teaches
from suggest.samplers.gp_scales import ScalesModel
from suggest.samplers.uniform import draw_point
from suggest.space import Assignment, Condition, Space
from suggest.study import StudySpec
from suggest.trial import Trial, TrialState

# The trials with these numbers are in other branches: TURN, TURN + EVERY and so on, from FIRST on.
# With at most 32 in parallel, `default` gives them to `gp` (`hedge`).
EVERY, TURN, FIRST = 4, 1, 40
# Trials of a branch before its process proposes; before, points are drawn.
LEAST = 3
# The most processes of branches that are kept.
KEPT = 16

Branch = tuple[Condition, ...]  # of one value each


class BranchesModel:
    def __init__(self, spec: StudySpec, seed: int, settings: GpSettings) -> None:
        @functools.lru_cache(KEPT)
        def model(_index: int) -> ScalesModel:
            return ScalesModel(spec, seed, settings)

        self._spec = spec
        self._seed = seed
        self._whole = ScalesModel(spec, seed, settings)
        self._model = model
        # With beliefs, earlier studies, several objectives or constraints this was not measured.
        plain = spec.criteria.is_plain and not spec.learn_from and not spec.prior
        self._branches = branches(spec.space) if plain else []

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        finished, pending = list(learned), list(running)
        points: dict[tuple[int, int], Assignment] = {}
        for one in wanted:
            index = self._turn(one, finished)
            if index is None:
                continue
            point = self._within(index, finished, pending, one)
            # A branch may have no point that is left.
            if all(trial.parameters != point for trial in (*finished, *pending)):
                points[one.key] = point
                pending.append(Trial(one.number, TrialState.RUNNING, point))
        others = [one for one in wanted if one.key not in points]
        found = self._whole.propose(finished, pending, others) if others else []
        points |= {one.key: point for one, point in zip(others, found, strict=True)}
        return [points[one.key] for one in wanted]

    def estimate(self, learned: Iterable[Trial]) -> Estimate | None:
        return self._whole.estimate(learned)

    def _turn(self, one: PointRequest, finished: Sequence[Trial]) -> int | None:
        """Return the branch that this trial is to be in; None for any."""
        if not self._branches or one.number < FIRST or one.number % EVERY != TURN:
            return None
        best = self._spec.criteria.best(finished)
        others = [
            k for k, branch in enumerate(self._branches) if not any(_is_in(t, branch) for t in best)
        ]
        if not best or not others:
            return None
        first = one.number // EVERY % len(others)
        in_turn = (*others[first:], *others[:first])
        chosen = next((k for k in in_turn if not self._fails(self._there(k, finished))), None)
        if chosen is None:
            return None
        decided = {condition.parameter for condition in self._branches[chosen]}
        return None if decided & one.fixed.keys() else chosen

    def _there(self, index: int, trials: Iterable[Trial]) -> list[Trial]:
        """Return the trials that are in a branch."""
        return [trial for trial in trials if _is_in(trial, self._branches[index])]

    def _fails(self, there: Sequence[Trial]) -> bool:
        """Return whether trials of a branch have failed and hardly one has a value."""
        taught = self._count_taught(there)
        return taught < LEAST <= len(there) - taught

    def _count_taught(self, trials: Sequence[Trial]) -> int:
        return sum(teaches(trial, self._spec.criteria) for trial in trials)

    def _within(
        self, index: int, finished: list[Trial], pending: list[Trial], one: PointRequest
    ) -> Assignment:
        """Return a point of the branch."""
        values = {each.parameter: each.values[0] for each in self._branches[index]}
        asked = replace(one, fixed={**one.fixed, **values})
        there = self._there(index, finished)
        if self._count_taught(there) < LEAST:
            return draw_point(self._spec.space, self._seed, asked)
        beside = self._there(index, pending)
        return self._model(index).propose(there, beside, [asked])[0]


def branches(space: Space) -> list[Branch]:
    """Return what each value that conditions name needs to be active: its parents' first values."""
    named = {
        (condition.parameter, identity(value)): Condition(condition.parameter, (value,))
        for parameter in space.parameters
        for condition in parameter.when
        for value in condition.values
    }
    return [tuple(_with_parents(each, space)) for each in named.values()]


def _with_parents(condition: Condition, space: Space) -> Iterator[Condition]:
    yield condition
    for above in space.by_name[condition.parameter].when:
        yield from _with_parents(Condition(above.parameter, above.values[:1]), space)


def _is_in(trial: Trial, branch: Branch) -> bool:
    return all(condition.holds(trial.parameters) for condition in branch)
