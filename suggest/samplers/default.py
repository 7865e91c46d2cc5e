"""`default`: chooses an algorithm by the space, the budget and the number of trials in parallel.

It chooses once, when the study is created (`chosen_settings`), and all settings that it chose are
stored with the study. A later version may choose differently for new studies without changing old
ones. Settings that a person gives are kept. The reasons are in docs/adr.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from suggest import settings as checked
from suggest.errors import Problem
from suggest.grid import grid_points
from suggest.samplers.cmaes import CMAES_PACKAGES
from suggest.samplers.distinct import is_countable
from suggest.samplers.family import (
    DEFAULT,
    GRID,
    MOST_MODELED,
    RESAMPLE,
    TPE,
    Family,
    missing,
)
from suggest.samplers.gp import GpSettings
from suggest.samplers.grid import GridSampler, grid_problems
from suggest.samplers.hedge import LONG, HedgeSampler
from suggest.samplers.low_discrepancy import spread
from suggest.samplers.sampler import Sampler
from suggest.samplers.tpe import OwnSettings, tpe
from suggest.settings import NoSettings, setting
from suggest.space import Value
from suggest.study import StudySpec
from suggest.workers import Workers

log = logging.getLogger(__name__)
TO_CHOOSE, HEDGE, CMAES_HEDGE = "to choose", "hedge", "hedge with cmaes"
CHOICES = (TO_CHOOSE, GRID, TPE, HEDGE, CMAES_HEDGE)
RANDOM, SPREAD = FIRST_POINTS = ("random", "spread")
# Trials in parallel from which on a study begins with spread points,
# and with models that know few trials.
WIDE = 8
# Finished trials from which on the models of such a study propose.
EARLY = 5


@dataclass(frozen=True, slots=True)
class DefaultSettings(OwnSettings):
    trials: int = setting(0, "the budget, 0 for none; the choice depends on it", min=0)
    parallelism: int = setting(1, "trials that run at a time; the choice depends on it", min=1)
    chosen: str = setting(
        TO_CHOOSE, "the algorithm that it chose when the study was created", words=CHOICES
    )
    first_points: str = setting(
        RANDOM,
        "points before the first model: random, or spread evenly and nearer to the middle",
        words=FIRST_POINTS,
    )


def default_problems(spec: StudySpec) -> Iterator[Problem]:
    """Yield what keeps the choice that the settings name from searching the space."""
    if spec.algorithm.settings.get("chosen") == GRID:
        yield from grid_problems(spec)


def default(
    spec: StudySpec, seed: int, settings: DefaultSettings, *, workers: Workers | None = None
) -> Sampler:
    if settings.chosen == GRID:
        return GridSampler(spec, seed, NoSettings())
    first = spread(spec, seed) if settings.first_points == SPREAD else None
    if settings.chosen in (HEDGE, CMAES_HEDGE):
        late_cmaes = settings.chosen == CMAES_HEDGE
        # The study has moved to another server; it must not stop there.
        if late_cmaes and missing(CMAES_PACKAGES):
            log.warning(
                "the package cmaes is not installed; from trial %d on, gp and tpe propose its "
                "points",
                LONG,
            )
            late_cmaes = False
        return HedgeSampler(
            spec,
            seed,
            GpSettings(startup_trials=settings.startup_trials),
            settings,
            parallelism=settings.parallelism,
            late_cmaes=late_cmaes,
            first=first,
            workers=workers,
        )
    return tpe(spec, seed, settings, workers=workers, first=first)


def chosen_settings(spec: StudySpec, given: Mapping[str, Value]) -> dict[str, Value]:
    """Return all settings of a search for this spec.

    Given ones are kept; if they name a choice, nothing is added.
    """
    known = checked.read(DefaultSettings, given)
    if known.chosen != TO_CHOOSE:
        return dict(given)
    # A define-by-run study begins without parameters.
    finite = not spec.define_by_run and is_countable(spec.space)
    has_hints = bool(spec.learn_from or spec.prior)
    points = grid_points(spec.space) if finite and not has_hints else None
    if points is not None and points <= known.trials:
        return {"trials": known.trials, "parallelism": known.parallelism, "chosen": GRID}
    every = {s.name: s.default for s in checked.declared(DefaultSettings)}
    # One at a time and for several objectives this was no better, or not measured: docs/adr/0008.
    wide = known.parallelism >= WIDE and len(spec.objectives) == 1
    return {
        **every,
        **({"duplicates": RESAMPLE} if finite else {}),
        **({"firstPoints": SPREAD, "startupTrials": EARLY} if wide else {}),
        **given,
        "chosen": _model(spec, known.trials),
    }


def _model(spec: StudySpec, budget: int) -> str:
    if len(spec.objectives) > MOST_MODELED:
        return TPE
    floats = all(p.domain.count is None and not p.when for p in spec.space.parameters)
    floats = floats and not spec.define_by_run
    long = budget == 0 or budget > LONG
    # `cmaes` learns from succeeded trials alone, and pruning leaves few of them.
    plain = spec.criteria.is_plain and spec.fidelity is None and spec.pruning is None
    return CMAES_HEDGE if floats and long and plain and not missing(CMAES_PACKAGES) else HEDGE


ENTRIES = (
    Family(
        DEFAULT,
        "Chooses between the others by space, budget and parallelism, once for each study.",
        DefaultSettings,
        default,
        space_problems=default_problems,
    ),
)
