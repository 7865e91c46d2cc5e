"""The algorithms by name: what each is, its settings, and how its sampler is made.

Importing this brings neither Optuna nor NumPy; a sampler that needs them loads them with its first proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from suggest import settings as checked
from suggest.errors import Problem, did_you_mean
from suggest.samplers.default import GRID, NAME, DefaultSettings, chosen_settings, default
from suggest.samplers.distinct import ALLOW, REUSE, Distinct, DrawSettings
from suggest.samplers.gp import GpSettings, gp
from suggest.samplers.grid import GridSampler, grid_problems
from suggest.samplers.sampler import Sampler
from suggest.samplers.tpe import OwnSettings, TpeSettings, optuna_tpe, tpe
from suggest.samplers.uniform import RandomSampler
from suggest.settings import NoSettings, Setting
from suggest.study import Algorithm, StudySpec
from suggest.workers import Workers


@dataclass(frozen=True, slots=True)
class Family:
    """`settings_type` and the third argument of `build` belong together; Any, for a table cannot say so."""

    name: str
    summary: str
    settings_type: type
    build: Callable[..., Sampler]  # of spec, seed, settings; if it learns, also of `workers`
    learns: bool  # from outcomes
    space_problems: Callable[[StudySpec], Iterator[Problem]] | None = None

    @property
    def settings(self) -> tuple[Setting, ...]:
        return checked.declared(self.settings_type)


_FAMILIES = (
    Family(
        NAME,
        "Chooses between the others by space, budget and parallelism, once for each study.",
        DefaultSettings,
        default,
        True,
    ),
    Family("random", "Independent points, uniform on each parameter's scale.", DrawSettings, RandomSampler, False),
    Family("grid", "Every point of a finite space once, in order.", NoSettings, GridSampler, False, grid_problems),
    Family("tpe", "Learns from finished trials where good points are dense.", OwnSettings, tpe, True),
    Family("optuna:tpe", "Optuna's own TPESampler, which `tpe` computes anew.", TpeSettings, optuna_tpe, True),
    Family(
        "gp", "Models values by a Gaussian process, for studies of up to some hundreds of trials.", GpSettings, gp, True
    ),
)
_BY_NAME = {family.name: family for family in _FAMILIES}


def algorithms() -> tuple[Family, ...]:
    return _FAMILIES


def algorithm_problems(algorithm: Algorithm) -> Iterator[Problem]:
    """Paths are the algorithm's fields: `name`, `settings.window`."""
    family = _BY_NAME.get(algorithm.name)
    if family is None:
        hint = did_you_mean(algorithm.name, _BY_NAME) or f"; there are {', '.join(_BY_NAME)}"
        yield Problem("name", f"{algorithm.name!r} is not an algorithm{hint}")
        return
    for problem in checked.problems(family.settings_type, algorithm.settings):
        yield Problem(f"settings.{problem.path}", problem.message)


def space_problems(spec: StudySpec) -> Iterator[Problem]:
    """What the algorithm asks of a space beyond being one; paths are relative to the space."""
    family = _BY_NAME.get(spec.algorithm.name)
    if family is not None and family.space_problems is not None:
        yield from family.space_problems(spec)


def learns(algorithm: Algorithm) -> bool:
    """Whether what it proposes depends on how trials end."""
    settings = algorithm.settings
    return (_BY_NAME[algorithm.name].learns or settings.get("duplicates") == REUSE) and settings.get("chosen") != GRID


def chosen(spec: StudySpec) -> StudySpec:
    """As it is stored with a new study: `default` has made its choice."""
    algorithm = spec.algorithm
    if algorithm.name != NAME:
        return spec
    return replace(spec, algorithm=replace(algorithm, settings=chosen_settings(spec.space, algorithm.settings)))


def new_sampler(spec: StudySpec, seed: int, workers: Workers | None = None) -> Sampler:
    """For a spec without problems. workers: for proposals that take long; None: all is computed in this process."""
    spec = chosen(spec)
    family = _BY_NAME[spec.algorithm.name]
    settings: object = checked.read(family.settings_type, spec.algorithm.settings)
    pool = {"workers": workers} if family.learns else {}
    sampler = family.build(spec, seed, settings, **pool)
    if isinstance(settings, DrawSettings) and settings.duplicates != ALLOW:
        return Distinct(spec, seed, sampler, policy=settings.duplicates)
    return sampler
