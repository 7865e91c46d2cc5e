"""Optuna's samplers by name: their requirements, their settings, and how each sampler is created.

Nothing here imports Optuna; `optuna_model` does, in a worker process. `optuna:tpe` is in `tpe`,
beside our own TPE. A model sees every trial that its sampler learns from, because generations and
exhaustive searches need them all. The Gaussian process sees a window, because its time grows with
the cube of the number of trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from suggest.axis import axis_of
from suggest.errors import Problem
from suggest.samplers.distinct import COUNTED
from suggest.samplers.family import DrawSettings, Family
from suggest.samplers.history import History, ModelSampler, ValueWindow
from suggest.settings import NoSettings, setting
from suggest.space import Choice
from suggest.study import StudySpec
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


@dataclass(frozen=True, slots=True)
class OptunaKind:
    """One sampler of Optuna.

    model: the class in `optuna_model`.
    instead: our algorithms to use if it cannot be used.
    learns: its proposals depend on the outcomes of trials.
    points: it learns from the points of all trials but cancelled ones; otherwise from the values of
        succeeded ones.
    several: it supports several objectives, and constraints.
    requires: packages besides Optuna; each is also an extra.
    """

    name: str
    summary: str
    settings: type
    model: str
    instead: tuple[str, ...]
    learns: bool = True
    points: bool = False
    several: bool = True
    requires: tuple[str, ...] = ()
    space_problems: Callable[[StudySpec], Iterator[Problem]] | None = None


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


KINDS = (
    OptunaKind(
        "random",
        "Optuna's RandomSampler.",
        DrawSettings,
        "OptunaRandomModel",
        ("random",),
        learns=False,
    ),
    OptunaKind(
        "grid",
        "Optuna's GridSampler: every point once, in random order.",
        NoSettings,
        "OptunaGridModel",
        ("grid",),
        learns=False,
        points=True,
        space_problems=_grid_problems,
    ),
    OptunaKind(
        "bruteforce",
        "Optuna's BruteForceSampler: every point once, in random order; conditions are followed.",
        NoSettings,
        "OptunaBruteForceModel",
        ("grid",),
        learns=False,
        points=True,
        space_problems=_bruteforce_problems,
    ),
    OptunaKind(
        "qmc",
        "Optuna's QMCSampler: a Sobol' or Halton sequence.",
        OptunaQmcSettings,
        "OptunaQmcModel",
        ("sobol", "halton"),
        learns=False,
        requires=("scipy",),
    ),
    OptunaKind(
        "gp",
        "Optuna's GPSampler: a Gaussian process with the expected improvement.",
        OptunaGpSettings,
        "OptunaGpModel",
        ("gp", "tpe"),
        requires=("torch", "scipy"),
        space_problems=_gp_problems,
    ),
    OptunaKind(
        "cmaes",
        "Optuna's CmaEsSampler: the covariance matrix adaptation evolution strategy.",
        OptunaCmaEsSettings,
        "OptunaCmaEsModel",
        ("tpe",),
        several=False,
        requires=("cmaes",),
        space_problems=_cmaes_problems,
    ),
    OptunaKind(
        "nsgaii",
        "Optuna's NSGAIISampler, a genetic algorithm, for one objective or several.",
        OptunaGeneticSettings,
        "OptunaGeneticModel",
        ("tpe",),
    ),
    OptunaKind(
        "nsgaiii",
        "Optuna's NSGAIIISampler, a genetic algorithm, for three objectives or more.",
        OptunaGeneticSettings,
        "OptunaGeneticModel",
        ("tpe",),
    ),
)
_BY_NAME = {PREFIX + kind.name: kind for kind in KINDS}


def optuna_sampler(
    spec: StudySpec, seed: int, settings: object, *, workers: Workers | None = None
) -> ModelSampler:
    kind = _BY_NAME[spec.algorithm.name]
    setup = ModelSetup(f"suggest.samplers.optuna_model:{kind.model}", spec, seed, settings)
    if isinstance(settings, OptunaGpSettings):
        return ModelSampler(
            setup, ValueWindow(spec, settings.window), requires=kind.requires, workers=workers
        )
    return ModelSampler(setup, History(points=kind.points), requires=kind.requires, workers=workers)


ENTRIES = (
    *(
        Family(
            PREFIX + kind.name,
            kind.summary,
            kind.settings,
            optuna_sampler,
            learns=kind.learns,
            space_problems=kind.space_problems,
            several=kind.several,
            enumerates=kind.points,
            in_workers=True,
            requires=kind.requires,
            instead=kind.instead,
        )
        for kind in KINDS
    ),
)
