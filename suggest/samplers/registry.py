"""The algorithms by name: where each is declared, its problems with a study,
and how its sampler is created.

Importing this module loads no algorithm. Neither Optuna nor NumPy is loaded
before a sampler's first proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from suggest import settings as checked
from suggest.errors import Problem
from suggest.samplers.by_fidelity import ByFidelity
from suggest.samplers.distinct import Distinct
from suggest.samplers.family import (
    ALLOW,
    DEFAULT,
    GRID,
    REUSE,
    TPE,
    DrawSettings,
    Family,
    missing,
    missing_message,
)
from suggest.samplers.quantiles import on_quantiles
from suggest.samplers.sampler import Sampler
from suggest.settings import Catalog
from suggest.study import Algorithm, StudySpec
from suggest.workers import Workers

_OPTUNA = ("random", "grid", "bruteforce", "qmc", "gp", "cmaes", "nsgaii", "nsgaiii")
_MODULES = {
    DEFAULT: "suggest.samplers.default",
    "random": "suggest.samplers.uniform",
    GRID: "suggest.samplers.grid",
    "sobol": "suggest.samplers.low_discrepancy",
    "halton": "suggest.samplers.low_discrepancy",
    TPE: "suggest.samplers.tpe",
    "gp": "suggest.samplers.gp",
    "cmaes": "suggest.samplers.cmaes",
    "nsga2": "suggest.samplers.evolution",
    "nsga3": "suggest.samplers.evolution",
    "regularized-evolution": "suggest.samplers.evolution",
    "pbt": "suggest.samplers.pbt",
    "hyperband": "suggest.samplers.uniform",
    "bohb": "suggest.samplers.bohb",
    "optuna:tpe": "suggest.samplers.tpe",
    **{f"optuna:{name}": "suggest.samplers.optuna_family" for name in _OPTUNA},
}
_ELSEWHERE = {
    DEFAULT: "auto automatic",
    "random": "uniform montecarlo",
    GRID: "exhaustive full fullfactorial",
    "sobol": "qmc quasirandom quasimontecarlo lowdiscrepancy lhs latinhypercube",
    TPE: "hyperopt parzen treestructuredparzenestimator multivariatetpe optuna",
    "gp": "bayes bayesian bayesopt bayesianopt bo gaussianprocess gaussianprocesses kriging skopt "
    "botorch ax hebo gpei",
    "cmaes": "cma",
    "nsga2": "nsga multiobjective moea",
    "regularized-evolution": "genetic geneticalgorithm ga evolution evolutionary "
    "differentialevolution de",
    "pbt": "populationbasedtraining",
    "hyperband": "asha sha successivehalving",
}
_BY_NAME: Catalog[Family] = Catalog("an algorithm", _MODULES, _ELSEWHERE)


def algorithms() -> tuple[Family, ...]:
    return tuple(_BY_NAME)


def algorithm_problems(algorithm: Algorithm) -> Iterator[Problem]:
    """Yield the problems of an algorithm. Paths are its fields: `name`, `settings.window`."""
    return _BY_NAME.problems(algorithm.name, algorithm.settings)


def not_installed(algorithm: Algorithm) -> str:
    """Return which packages of an algorithm this process lacks, with the cure.

    Return "" if it lacks none.
    """
    family = _BY_NAME.get(algorithm.name)
    if family is None or not (packages := missing(family.requires)):
        return ""
    instead = [name for name in family.instead if _BY_NAME.get(name) is not None]
    return missing_message(family.name, packages, instead)


def objective_problems(spec: StudySpec) -> Iterator[Problem]:
    """Yield what keeps the algorithm from this study's objectives and constraints.

    Paths are the algorithm's fields.
    """
    family = _BY_NAME.get(spec.algorithm.name)
    if family is None or spec.criteria.is_plain:
        return
    count = len(spec.objectives)
    others = ", ".join(f.name for f in _BY_NAME if f.several and _takes(f, count))
    if not family.several:
        what = "constraints" if count == 1 else f"{count} objectives"
        yield Problem(
            "name",
            f"{family.name} takes one objective without constraints, and there are {what}; use "
            f"{others}",
        )
    elif not _takes(family, count):
        most = family.most_objectives
        yield Problem(
            "name",
            f"{family.name} takes at most {most} objectives, and there are {count}; use {others}",
        )


def _takes(family: Family, objectives: int) -> bool:
    return family.most_objectives is None or objectives <= family.most_objectives


def space_problems(spec: StudySpec) -> Iterator[Problem]:
    """Yield what keeps the algorithm from searching this space. Paths are relative to the space."""
    family = _BY_NAME.get(spec.algorithm.name)
    if family is not None and family.space_problems is not None:
        yield from family.space_problems(spec)


def learns(algorithm: Algorithm) -> bool:
    """Return whether the algorithm's proposals depend on the outcomes of trials."""
    settings = algorithm.settings
    return (
        _BY_NAME[algorithm.name].learns or settings.get("duplicates") == REUSE
    ) and settings.get("chosen") != GRID


def search_of(algorithm: Algorithm) -> tuple[str, str]:
    """Return which search proposes: the algorithm's name, and what `default` chose.

    It decides which modules load.
    """
    return algorithm.name, str(algorithm.settings.get("chosen", ""))


def waits(algorithm: Algorithm) -> bool:
    """Return whether the algorithm has fewer points than wanted while a trial has to end first."""
    family = _BY_NAME.get(algorithm.name)
    return family is not None and family.waits


def resolve(spec: StudySpec) -> StudySpec:
    """Return the spec as it is stored with a new study, in which `default` has made its choice."""
    algorithm = spec.algorithm
    if algorithm.name != DEFAULT:
        return spec
    # No algorithm is loaded before it is used.
    from suggest.samplers.default import chosen_settings

    return replace(
        spec, algorithm=replace(algorithm, settings=chosen_settings(spec, algorithm.settings))
    )


def new_sampler(spec: StudySpec, seed: int, workers: Workers | None = None) -> Sampler:
    """Return the sampler of a spec without problems.

    `workers` compute proposals that take long; with None, this process computes them.
    """
    spec = resolve(spec)
    family = _BY_NAME[spec.algorithm.name]
    settings: object = checked.read(family.settings_type, spec.algorithm.settings)
    pool = {"workers": workers} if family.learns or family.in_workers else {}

    def build(shown: StudySpec) -> Sampler:
        def make() -> Sampler:
            return family.build(shown, seed, settings, **pool)

        return _by_fidelity(shown, make, settings) if learns(spec.algorithm) else make()

    enumerates = family.enumerates or spec.algorithm.settings.get("chosen") == GRID
    sampler = build(spec) if enumerates else on_quantiles(spec, build)
    if isinstance(settings, DrawSettings) and settings.duplicates != ALLOW:
        return Distinct(spec, seed, sampler, policy=settings.duplicates)
    return sampler


def _by_fidelity(spec: StudySpec, make: Callable[[], Sampler], settings: object) -> Sampler:
    """Return a sampler that learns, which in a study with a fidelity is shown one level."""
    if spec.fidelity is None:
        return make()
    startup: int = getattr(settings, "startup_trials", 0)
    return ByFidelity(spec.fidelity, make, enough=max(startup, len(spec.space.parameters) + 2))


CHEAPER = TPE


def cheaper_sampler(spec: StudySpec, seed: int) -> Sampler | None:
    """Return `tpe` with its default settings, in this process.

    It is for trials that cannot wait for the study's algorithm.

    Returns None if `tpe` is not cheaper, or if the algorithm decides which point follows which.
    """
    name, settings = spec.algorithm.name, resolve(spec).algorithm.settings
    if (
        name == CHEAPER
        or waits(spec.algorithm)
        or not _BY_NAME[name].learns
        or settings.get("chosen") in (GRID, TPE)
    ):
        return None
    # No algorithm is loaded before it is used.
    from suggest.samplers.tpe import OwnSettings, tpe

    cheap = OwnSettings()

    return on_quantiles(
        spec, lambda shown: _by_fidelity(shown, lambda: tpe(shown, seed, cheap), cheap)
    )
