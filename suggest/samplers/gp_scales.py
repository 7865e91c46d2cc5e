"""The scales of `gp`: beside the process of the numbers as they are declared, those with the
logarithms of numbers that span decades, or whose range begins at 0.

Numbers that act by their logarithms, as learning rates do, are often declared without it: for long
Katib's files had no way to, `suggest_float` has to be told, and a weight decay from 0 cannot have
it. The results tell (docs/adr/0016).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from suggest.domain import number
from suggest.estimate import Estimate
from suggest.proposal import PointRequest
from suggest.samplers.gp import LEAST_STARTUP, GpSettings, fitted_below, teaches
from suggest.samplers.gp_model import GpModel
from suggest.space import Assignment, Choice, Domain, Float, Int, Scale
from suggest.study import StudySpec
from suggest.trial import Trial

# Of the ends of a range, from which on its scale is in question.
DECADES = 100.0
# Of the log density, by which the logarithms must explain the results better.
NATS = 2.0
# Of this many best trials, at least half have a number below this share of its range, if the scale
# of a range from 0 is in question.
BEST, NEAR_0 = 4, 0.1
# Of the ranges from 0 in question, beyond which they are compared together: each comparison is a
# fit.
MOST_ALONE = 4


class ScalesModel:
    """Computes with the logarithms while they explain the results better."""

    def __init__(self, spec: StudySpec, seed: int, settings: GpSettings) -> None:
        def model(as_log: frozenset[str]) -> GpModel:
            return GpModel(spec, seed, settings, as_log=as_log)

        self._spec = spec
        # One comparison needs the chosen one, and one for each question.
        self._model = functools.lru_cache(MOST_ALONE + 3)(model)
        # With beliefs, earlier studies, several objectives or constraints this was not measured.
        plain = spec.criteria.is_plain and not spec.learn_from and not spec.prior
        questioned = spec.space.parameters if plain else ()
        self._decades = frozenset(p.name for p in questioned if spans_decades(p.domain))
        # The ends of the lowest parts of ranges from 0.
        self._from_0 = {p.name: NEAR_0 * p.domain.max for p in questioned if begins_at_0(p.domain)}
        self._chosen = self._model(frozenset())
        self._compared: list[int] = []  # the trials that decided it

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        finished, pending = list(learned), list(running)
        return self._better(finished, pending).propose(finished, pending, wanted)

    def estimate(self, learned: Iterable[Trial]) -> Estimate | None:
        finished = list(learned)
        return self._better(finished, ()).estimate(finished)

    def _better(self, finished: Sequence[Trial], running: Iterable[Trial]) -> GpModel:
        """Return the model that explains the results better."""
        if not (self._decades or self._from_0) or not finished:
            return self._chosen
        below = fitted_below(finished[-1].number, [trial.number for trial in running])
        end = _compared_below(below)
        first = [t for t in finished if t.number < end and teaches(t, self._spec.criteria)]
        numbers = [trial.number for trial in first]
        if numbers != self._compared:
            self._compared = numbers
            self._chosen = self._model(self._better_as_logs(first))
        return self._chosen

    def _better_as_logs(self, first: list[Trial]) -> frozenset[str]:
        """Return the numbers whose logarithms explain the results better.

        Those that span decades are compared together, for fewer fits, and so are many from 0.
        """
        chosen: frozenset[str] = frozenset()
        near_0 = [name for name in self._from_0 if self._is_near_0(name, first)]
        alone = [near_0] if len(near_0) > MOST_ALONE else [[name] for name in near_0]
        questions = [each for each in (self._decades, *map(frozenset, alone)) if each]
        if not questions or len(first) < LEAST_STARTUP:
            return chosen
        density = self._model(chosen).density(first)
        for more in questions:
            other = self._model(chosen | more).density(first)
            if other > density + NATS:
                chosen, density = chosen | more, other
        return chosen

    def _is_near_0(self, name: str, first: list[Trial]) -> bool:
        """Return whether most of the best trials have the number in the lowest part of its range.

        Otherwise its logarithm is not worth a fit.
        """
        sign = self._spec.criteria.objectives[0].direction.sign
        found = [
            (sign * trial.value, trial.number, value)
            for trial in first
            if trial.value is not None and (value := number(trial.parameters.get(name))) is not None
        ]
        best = sorted(found)[:BEST]
        low = [value for _, _, value in best if value <= self._from_0[name]]
        return 2 * len(low) >= BEST


def _compared_below(below: int) -> int:
    """Return the number below which trials decide the scale, which grows by a quarter at a time."""
    here = LEAST_STARTUP
    while (after := here * 5 // 4) <= below:
        here = after
    return here


def spans_decades(domain: Domain) -> bool:
    """Return whether a number's range is so wide, by ratio, that its scale is in question."""
    return _is_plain(domain) and 0 < domain.min <= domain.max / DECADES


def begins_at_0(domain: Domain) -> TypeGuard[Float | Int]:
    """Return whether a range begins at 0 and may hide decades."""
    return _is_plain(domain) and domain.min == 0 and (domain.count or math.inf) > DECADES


def _is_plain(domain: Domain) -> TypeGuard[Float | Int]:
    if isinstance(domain, Choice) or domain.normal is not None or domain.scale is Scale.LOG:
        return False
    return domain.step in (None, 1)
