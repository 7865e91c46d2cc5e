"""Optuna's samplers by name: their requirements, their settings, and how each sampler is created.

Nothing here imports Optuna; `optuna_model` does, in a worker process. `optuna:tpe` is in `tpe`,
beside our own TPE. A model sees every trial that its sampler learns from, because generations and
exhaustive searches need them all. The Gaussian process sees a window, because its time grows with
the cube of the number of trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from suggest.axis import axis_of
from suggest.errors import Problem
from suggest.samplers.distinct import COUNTED
from suggest.samplers.family import DrawSettings, Family
from suggest.samplers.history import History, ModelSampler, ShownTrials
from suggest.samplers.tpe import Window
from suggest.settings import NoSettings, setting
from suggest.space import Choice
from suggest.study import StudySpec
from suggest.trial import Trial, TrialState
from suggest.workers import ModelSetup, Workers

PREFIX = "optuna:"
# Values of a stepped parameter, which Optuna's Gaussian process puts into an array.
MOST_STEPS = 10**6
_STARTUP = "finished trials before the model takes over from random search"


@dataclass(frozen=True, slots=True)
class OptunaGpSettings(DrawSettings):
    startup_trials: int = setting(10, _STARTUP, min=1)
    window: int = setting(
        200, "finished trials the model sees: the best 25 and the most recent", min=50, max=500
    )
    deterministic_objective: bool = setting(
        False, "the same point always has the same value: no noise is modeled"
    )


@dataclass(frozen=True, slots=True)
class OptunaCmaEsSettings(DrawSettings):
    startup_trials: int = setting(1, _STARTUP, min=0)
    popsize: int = setting(
        0, "trials of a generation, 2 or more; 0: 4 + 3 ln(parameters)", min=0, max=10_000
    )
    use_separable_cma: bool = setting(False, "a diagonal covariance matrix: for many parameters")


@dataclass(frozen=True, slots=True)
class OptunaGeneticSettings(DrawSettings):
    population_size: int = setting(50, "trials of a generation", min=2, max=10_000)
    mutation_prob: float = setting(
        0.0, "probability that a parameter mutates; 0: 1 / (number of parameters)", min=0.0, max=1.0
    )
    crossover_prob: float = setting(
        0.9, "probability that a point has two parents", min=0.0, max=1.0
    )
    swapping_prob: float = setting(
        0.5, "probability that a value comes from the second parent", min=0.0, max=1.0
    )


@dataclass(frozen=True, slots=True)
class OptunaQmcSettings(DrawSettings):
    qmc_type: str = setting("sobol", "kind of sequence", words=("sobol", "halton"))
    scramble: bool = setting(False, "scramble the sequence, by the study's seed")


def _cmaes_problems(spec: StudySpec) -> Iterator[Problem]:
    free = [p for p in spec.space.parameters if p.domain.count != 1]
    if free and all(p.when or isinstance(p.domain, Choice) for p in free):
        why = "is a choice" if isinstance(free[0].domain, Choice) else "has conditions"
        yield Problem(
            free[0].name,
            f"{why}; optuna:cmaes needs a number that is always active, and there is none: use tpe",
        )


def _gp_problems(spec: StudySpec) -> Iterator[Problem]:
    for parameter in spec.space.parameters:
        count = parameter.domain.count
        if count is not None and count > MOST_STEPS and not parameter.when:
            why = f"{count:,} values; optuna:gp looks at each of at most {MOST_STEPS:,}"
            yield Problem(parameter.name, f"{why}, use a larger step, a float without step, or tpe")


def _bruteforce_problems(spec: StudySpec) -> Iterator[Problem]:
    for parameter in spec.space.parameters:
        if parameter.domain.count is None:
            yield Problem(
                parameter.name,
                f"{spec.algorithm.name} needs step on a float; add one, or use grid or tpe",
            )
    yield from _size_problems(spec, [p.domain.count for p in spec.space.parameters])


def _grid_problems(spec: StudySpec) -> Iterator[Problem]:
    axes = [axis_of(p.domain) for p in spec.space.parameters]
    for parameter, axis in zip(spec.space.parameters, axes, strict=True):
        if axis is None:
            yield Problem(
                parameter.name,
                f"{spec.algorithm.name} needs points or step on a float; add one (points: 5), or "
                "use tpe",
            )
    yield from _size_problems(spec, [None if axis is None else axis.count for axis in axes])


def _size_problems(spec: StudySpec, counts: Sequence[int | None]) -> Iterator[Problem]:
    known = [count for count in counts if count is not None]
    total = math.prod(known)
    if len(known) == len(counts) and total > COUNTED:
        shown = f"{total:,}" if total < 10**15 else "more than 10^15"
        yield Problem(
            "", f"{shown} points; {spec.algorithm.name} takes at most {COUNTED:,}, use grid"
        )


class ValueWindow(Window):
    """The best and the most recent succeeded trials."""

    def put(self, trial: Trial) -> None:
        finished = trial.state is not TrialState.PRUNED
        super().put(trial if finished else replace(trial, state=TrialState.FAILED))


def _family(
    name: str,
    summary: str,
    settings_type: type,
    model: str,
    *,
    points: bool = False,
    requires: tuple[str, ...] = (),
    # Any: fields of `Family`, each of another type.
    **fields: Any,
) -> Family:
    """Return one sampler of Optuna.

    Args:
        model: The class in `optuna_model`.
        points: It learns from the points of all trials but cancelled ones; otherwise from the
            values of succeeded ones.
        requires: Packages besides Optuna.
    """

    def build(
        spec: StudySpec, seed: int, settings: object, *, workers: Workers | None = None
    ) -> ModelSampler:
        setup = ModelSetup(f"suggest.samplers.optuna_model:{model}", spec, seed, settings)
        shown: ShownTrials = History(spec.criteria, points=points)
        if isinstance(settings, OptunaGpSettings):
            shown = ValueWindow(spec, settings.window)
        return ModelSampler(setup, shown, requires=requires, workers=workers)

    return Family(
        PREFIX + name,
        summary,
        settings_type,
        build,
        enumerates=points,
        in_workers=True,
        requires=requires,
        **fields,
    )


ENTRIES = (
    _family(
        "random",
        "Optuna's RandomSampler.",
        DrawSettings,
        "OptunaRandomModel",
        instead=("random",),
        learns=False,
    ),
    _family(
        "grid",
        "Optuna's GridSampler: every point once, in random order.",
        NoSettings,
        "OptunaGridModel",
        instead=("grid",),
        learns=False,
        points=True,
        space_problems=_grid_problems,
    ),
    _family(
        "bruteforce",
        "Optuna's BruteForceSampler: every point once, in random order; conditions are followed.",
        NoSettings,
        "OptunaBruteForceModel",
        instead=("grid",),
        learns=False,
        points=True,
        space_problems=_bruteforce_problems,
    ),
    _family(
        "qmc",
        "Optuna's QMCSampler: a Sobol' or Halton sequence.",
        OptunaQmcSettings,
        "OptunaQmcModel",
        instead=("sobol", "halton"),
        learns=False,
        requires=("scipy",),
    ),
    _family(
        "gp",
        "Optuna's GPSampler: a Gaussian process with the expected improvement.",
        OptunaGpSettings,
        "OptunaGpModel",
        instead=("gp", "tpe"),
        requires=("torch", "scipy"),
        space_problems=_gp_problems,
    ),
    _family(
        "cmaes",
        "Optuna's CmaEsSampler: the covariance matrix adaptation evolution strategy.",
        OptunaCmaEsSettings,
        "OptunaCmaEsModel",
        instead=("tpe",),
        several=False,
        requires=("cmaes",),
        space_problems=_cmaes_problems,
    ),
    _family(
        "nsgaii",
        "Optuna's NSGAIISampler, a genetic algorithm, for one objective or several.",
        OptunaGeneticSettings,
        "OptunaGeneticModel",
        instead=("tpe",),
    ),
    _family(
        "nsgaiii",
        "Optuna's NSGAIIISampler, a genetic algorithm, for three objectives or more.",
        OptunaGeneticSettings,
        "OptunaGeneticModel",
        instead=("tpe",),
    ),
)
