"""The algorithms by name: a summary, the settings, and how the sampler is created.

Importing this module loads neither Optuna nor NumPy. Samplers that need them load them with their first proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from suggest import settings as checked
from suggest.errors import Problem
from suggest.samplers.bohb import BohbSampler, BohbSettings
from suggest.samplers.by_fidelity import ByFidelity
from suggest.samplers.cmaes import CMAES_PACKAGES, CmaEsSettings, cmaes, cmaes_problems
from suggest.samplers.default import GRID, NAME, TPE, DefaultSettings, chosen_settings, default, default_problems
from suggest.samplers.distinct import ALLOW, REUSE, Distinct, DrawSettings
from suggest.samplers.evolution import AgeingSettings, GeneticSettings, genetic, regularized_evolution
from suggest.samplers.gp import MOST_OBJECTIVES, GpSampler, GpSettings
from suggest.samplers.grid import GridSampler, grid_problems
from suggest.samplers.history import missing, missing_message
from suggest.samplers.low_discrepancy import halton, sobol, sobol_problems
from suggest.samplers.optuna_family import KINDS, PREFIX, optuna_sampler
from suggest.samplers.pbt import PbtSampler, PbtSettings
from suggest.samplers.quantiles import on_quantiles
from suggest.samplers.sampler import Sampler
from suggest.samplers.tpe import OwnSettings, TpeSettings, optuna_tpe, tpe
from suggest.samplers.uniform import RandomSampler
from suggest.settings import Catalog, Choosable, NoSettings
from suggest.study import Algorithm, StudySpec
from suggest.workers import Workers


@dataclass(frozen=True, slots=True)
class Family(Choosable):
    """An algorithm. `build` takes an instance of `settings_type`, which the type of a table cannot express."""

    build: Callable[..., Sampler]  # takes spec, seed and settings; also `workers` if it learns or is `in_workers`
    learns: bool = True  # from outcomes
    space_problems: Callable[[StudySpec], Iterator[Problem]] | None = None
    several: bool = True  # it supports several objectives and constraints, or reads no values
    most_objectives: int | None = None  # None: no limit
    enumerates: bool = False  # it takes the values of the space in turn, whatever their distribution
    in_workers: bool = False  # it takes `workers` although it does not learn
    requires: tuple[str, ...] = ()  # packages; each is also an extra
    instead: tuple[str, ...] = ()  # what to use without those packages
    waits: bool = False  # it has fewer points than wanted while a trial has to end first; its space has no end


_FAMILIES = (
    Family(
        NAME,
        "Chooses between the others by space, budget and parallelism, once for each study.",
        DefaultSettings,
        default,
        space_problems=default_problems,
    ),
    Family(
        "random",
        "Independent points, each parameter drawn from its distribution.",
        DrawSettings,
        RandomSampler,
        learns=False,
    ),
    Family(
        "grid",
        "Every point of a finite space once, in order.",
        NoSettings,
        GridSampler,
        learns=False,
        space_problems=grid_problems,
        enumerates=True,
    ),
    Family(
        "sobol",
        "Points that fill the space evenly: a scrambled Sobol' sequence.",
        DrawSettings,
        sobol,
        learns=False,
        space_problems=sobol_problems,
    ),
    Family(
        "halton",
        "Points that fill the space evenly: a scrambled Halton sequence.",
        DrawSettings,
        halton,
        learns=False,
    ),
    Family(
        "tpe",
        "Models where good points are dense, from finished trials (Tree-structured Parzen Estimator).",
        OwnSettings,
        tpe,
    ),
    Family(
        "gp",
        "Models values by a Gaussian process, for studies of up to some hundreds of trials.",
        GpSettings,
        GpSampler,
        most_objectives=MOST_OBJECTIVES,
    ),
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
    Family(
        "nsga2",
        "A genetic algorithm for several objectives: survivors by fronts and crowding distance (NSGA-II).",
        GeneticSettings,
        genetic,
    ),
    Family(
        "nsga3",
        "A genetic algorithm for three objectives or more: survivors spread over reference points (NSGA-III).",
        GeneticSettings,
        genetic,
    ),
    Family(
        "regularized-evolution",
        "Mutates one parameter of a good trial among the most recent ones (regularized evolution).",
        AgeingSettings,
        regularized_evolution,
    ),
    Family(
        "pbt",
        "Trains generations of trials that continue from the checkpoints of the best (population based training).",
        PbtSettings,
        PbtSampler,
        waits=True,
        several=False,
    ),
    Family(
        "hyperband",
        "Random points for trials of several fidelities, which begin in the brackets of Hyperband.",
        DrawSettings,
        RandomSampler,
        learns=False,
        several=False,
    ),
    Family(
        "bohb",
        "Points of TPE's model and random ones, for trials of several fidelities: BOHB.",
        BohbSettings,
        BohbSampler,
        several=False,
    ),
    Family("optuna:tpe", "Optuna's own TPESampler, which `tpe` reimplements.", TpeSettings, optuna_tpe),
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
_BY_NAME = Catalog("an algorithm", _FAMILIES)


def algorithms() -> tuple[Family, ...]:
    return _FAMILIES


def algorithm_problems(algorithm: Algorithm) -> Iterator[Problem]:
    """Yield the problems of an algorithm. Paths are its fields: `name`, `settings.window`."""
    yield from _BY_NAME.problems(algorithm.name, algorithm.settings)
    family = _BY_NAME.get(algorithm.name)
    if family is not None and (packages := missing(family.requires)):
        instead = [name for name in family.instead if _BY_NAME.get(name) is not None]
        yield Problem("name", missing_message(family.name, packages, instead))


def objective_problems(spec: StudySpec) -> Iterator[Problem]:
    """Yield what keeps the algorithm from this study's objectives and constraints. Paths are the algorithm's fields."""
    family = _BY_NAME.get(spec.algorithm.name)
    if family is None or spec.criteria.is_plain:
        return
    count = len(spec.objectives)
    others = ", ".join(f.name for f in _FAMILIES if f.several and _takes(f, count))
    if not family.several:
        what = "constraints" if count == 1 else f"{count} objectives"
        yield Problem(
            "name", f"{family.name} takes one objective without constraints, and there are {what}; use {others}"
        )
    elif not _takes(family, count):
        most = family.most_objectives
        yield Problem("name", f"{family.name} takes at most {most} objectives, and there are {count}; use {others}")


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
    return (_BY_NAME[algorithm.name].learns or settings.get("duplicates") == REUSE) and settings.get("chosen") != GRID


def search_of(algorithm: Algorithm) -> tuple[str, str]:
    """Return which search proposes: the algorithm's name, and what `default` chose. It decides which modules load."""
    return algorithm.name, str(algorithm.settings.get("chosen", ""))


def waits(algorithm: Algorithm) -> bool:
    """Return whether the algorithm has fewer points than wanted while a trial has to end first."""
    family = _BY_NAME.get(algorithm.name)
    return family is not None and family.waits


def chosen(spec: StudySpec) -> StudySpec:
    """Return the spec as it is stored with a new study, in which `default` has made its choice."""
    algorithm = spec.algorithm
    if algorithm.name != NAME:
        return spec
    return replace(spec, algorithm=replace(algorithm, settings=chosen_settings(spec, algorithm.settings)))


def new_sampler(spec: StudySpec, seed: int, workers: Workers | None = None) -> Sampler:
    """Return the sampler of a spec without problems.

    `workers` compute proposals that take long; with None, this process computes them.
    """
    spec = chosen(spec)
    family = _BY_NAME[spec.algorithm.name]
    settings: object = checked.read(family.settings_type, spec.algorithm.settings)
    pool = {"workers": workers} if family.learns or family.in_workers else {}

    def build(shown: StudySpec) -> Sampler:
        def make() -> Sampler:
            return family.build(shown, seed, settings, **pool)

        with_levels = spec.fidelity is not None and learns(spec.algorithm)
        return _by_fidelity(shown, make, settings) if with_levels else make()

    enumerates = family.enumerates or spec.algorithm.settings.get("chosen") == GRID
    sampler = build(spec) if enumerates else on_quantiles(spec, build)
    if isinstance(settings, DrawSettings) and settings.duplicates != ALLOW:
        return Distinct(spec, seed, sampler, policy=settings.duplicates)
    return sampler


def _by_fidelity(spec: StudySpec, make: Callable[[], Sampler], settings: object) -> Sampler:
    assert spec.fidelity is not None
    startup: int = getattr(settings, "startup_trials", 0)
    return ByFidelity(spec.fidelity, make, enough=max(startup, len(spec.space.parameters) + 2))


CHEAPER = "tpe"


def cheaper_sampler(spec: StudySpec, seed: int) -> Sampler | None:
    """Return `tpe` with its default settings, in this process, for trials that cannot wait for the study's algorithm.

    Returns None if `tpe` is not cheaper, or if the algorithm decides which point follows which.
    """
    name, settings = spec.algorithm.name, chosen(spec).algorithm.settings
    if name == CHEAPER or waits(spec.algorithm) or not _BY_NAME[name].learns or settings.get("chosen") in (GRID, TPE):
        return None
    cheap = OwnSettings()

    def build(shown: StudySpec) -> Sampler:
        if shown.fidelity is None:
            return tpe(shown, seed, cheap)
        return _by_fidelity(shown, lambda: tpe(shown, seed, cheap), cheap)

    return on_quantiles(spec, build)
