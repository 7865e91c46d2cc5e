"""`cmaes`: CMA-ES with margin. A generation consists of trials of the study.

Parameters must not have conditions, and one at least must be a number. The model, `cmaes_model`,
runs in a worker process and needs the package `cmaes`; nothing here imports either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from suggest.errors import Problem
from suggest.samplers.family import DrawSettings, Family
from suggest.samplers.history import History, ModelSampler
from suggest.settings import setting
from suggest.space import Choice
from suggest.study import StudySpec
from suggest.workers import ModelSetup, Workers


@dataclass(frozen=True, slots=True)
class CmaEsSettings(DrawSettings):
    sigma: float = setting(
        0.3, "standard deviation at the start, as a share of each range", min=0.01, max=1.0
    )
    population_size: int = setting(
        0, "trials of a generation, 4 or more; 0: 4 + 3 ln(parameters)", min=0, max=10_000
    )
    warm_start: int = setting(
        0,
        "number of first trials whose best tenth determines where the search starts; 0: it starts "
        "in the middle",
        min=0,
    )
    population_growth: int = setting(
        2,
        "how many times larger the population is after each restart; 1: it stays as it is",
        min=1,
        max=10,
    )


CMAES_PACKAGES = ("cmaes",)


def cmaes_problems(spec: StudySpec) -> Iterator[Problem]:
    searched = [p for p in spec.space.parameters if p.domain.count != 1]
    for parameter in spec.space.parameters:
        if parameter.when:
            yield Problem(parameter.name, "cmaes has no conditions; remove `when`, or use tpe")
    if searched and all(isinstance(p.domain, Choice) for p in searched):
        yield Problem(
            searched[0].name, "cmaes needs a number, and all parameters are choices; use tpe"
        )


def cmaes(
    spec: StudySpec, seed: int, settings: CmaEsSettings, *, workers: Workers | None = None
) -> ModelSampler:
    setup = ModelSetup("suggest.samplers.cmaes_model:CmaEsModel", spec, seed, settings)
    trials = History(spec.criteria)
    return ModelSampler(setup, trials, requires=CMAES_PACKAGES, workers=workers)


ENTRIES = (
    Family(
        "cmaes",
        "Adapts a normal distribution to where good points are: CMA-ES with margin.",
        CmaEsSettings,
        cmaes,
        space_problems=cmaes_problems,
        requires=CMAES_PACKAGES,
        instead=("tpe",),
        several=False,
    ),
)
