"""The model of `gp`: beside the process of the numbers as they are declared, one of the logarithms
of those that span decades.

Numbers that act by their logarithms, as learning rates do, are often declared without it: for long
Katib's files had no way to, and `suggest_float` has to be told. The results tell (docs/adr/0016).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from suggest.estimate import Estimate
from suggest.proposal import PointRequest
from suggest.samplers.gp import LEAST_STARTUP, GpSettings, fitted_below, teaches
from suggest.samplers.gp_model import GpModel
from suggest.space import Assignment, Choice, Parameter, Scale, Space
from suggest.study import StudySpec
from suggest.trial import Trial

# Of the ends of a range, from which on its scale is in question.
DECADES = 100.0
# Of the log density, by which the logarithms must explain the results better.
NATS = 2.0


class ScalesModel:
    """Computes with the logarithms while they explain the results better."""

    def __init__(self, spec: StudySpec, seed: int, settings: GpSettings) -> None:
        self._declared = GpModel(spec, seed, settings)
        space = in_logarithms(spec.space)
        # With beliefs, earlier studies, several objectives or constraints this was not measured.
        plain = spec.criteria.is_plain and not spec.learn_from and not spec.prior
        self._logarithmic = (
            GpModel(replace(spec, space=space), seed, settings)
            if plain and space != spec.space
            else None
        )
        self._criteria = spec.criteria
        self._chosen = self._declared
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
        if self._logarithmic is None or not finished:
            return self._declared
        below = fitted_below(finished[-1].number, [trial.number for trial in running])
        end = _compared_below(below)
        first = [t for t in finished if t.number < end and teaches(t, self._criteria)]
        numbers = [trial.number for trial in first]
        if numbers != self._compared:
            self._compared, self._chosen = numbers, self._declared
            if len(first) >= LEAST_STARTUP:
                gain = self._logarithmic.density(first) - self._declared.density(first)
                if gain > NATS:
                    self._chosen = self._logarithmic
        return self._chosen


def _compared_below(below: int) -> int:
    """Return the number below which trials decide the scale, which grows by a quarter at a time."""
    here = LEAST_STARTUP
    while (after := here * 5 // 4) <= below:
        here = after
    return here


def in_logarithms(space: Space) -> Space:
    """Return the space with the logarithmic scale for all numbers that span decades."""
    return Space(tuple(map(_in_logarithms, space.parameters)))


def _in_logarithms(parameter: Parameter) -> Parameter:
    domain = parameter.domain
    if isinstance(domain, Choice) or domain.normal is not None or domain.step not in (None, 1):
        return parameter
    if domain.min <= 0 or domain.max < DECADES * domain.min:
        return parameter
    return replace(parameter, domain=replace(domain, scale=Scale.LOG))
