"""The model of `gp`: beside the process of the numbers as they are declared, one of the logarithms
of those that span decades.

Numbers that act by their logarithms, as learning rates do, are often declared without it: for long
Katib's files had no way to, and `suggest_float` has to be told. The results tell (docs/adr/0016).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from suggest.estimate import LEAST_TRIALS, Estimate
from suggest.proposal import PointRequest
from suggest.samplers.gp import GpSettings
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

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        finished, pending = list(learned), list(running)
        return self._better(finished, pending).propose(finished, pending, wanted)

    def estimate(self, learned: Iterable[Trial]) -> Estimate | None:
        finished = list(learned)
        if len(finished) < LEAST_TRIALS:
            return None
        return self._better(finished, ()).estimate(finished)

    def _better(self, finished: list[Trial], pending: Iterable[Trial]) -> GpModel:
        if self._logarithmic is None:
            return self._declared
        gain = self._logarithmic.density(finished, pending) - self._declared.density(
            finished, pending
        )
        return self._logarithmic if gain > NATS else self._declared


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
