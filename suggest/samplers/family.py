"""How an algorithm is declared: `ENTRIES` of its module, and the settings that most share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from suggest.distribution import install_command
from suggest.errors import Problem
from suggest.samplers.sampler import Sampler
from suggest.settings import Choosable, setting
from suggest.study import StudySpec

DEFAULT, GRID, TPE = "default", "grid", "tpe"
ALLOW, RESAMPLE, REUSE = POLICIES = ("allow", "resample", "reuse")
# Objectives of a Gaussian process: the expected gain of hypervolume takes too long with more.
MOST_MODELED = 3
_MEANING = (
    "what to do with a point that the study already has: run it again, draw another, or reuse its "
    "value"
)


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """The settings of every algorithm that draws its points."""

    duplicates: str = setting(ALLOW, _MEANING, words=POLICIES)


@dataclass(frozen=True, slots=True)
class Family(Choosable):
    """An algorithm.

    `build` takes an instance of `settings_type`, which the type of a table cannot express.
    """

    # Takes spec, seed and settings; also `workers` if it learns or is `in_workers`.
    build: Callable[..., Sampler]
    learns: bool = True  # from outcomes
    space_problems: Callable[[StudySpec], Iterator[Problem]] | None = None
    # It supports several objectives and constraints, or reads no values.
    several: bool = True
    most_objectives: int | None = None  # None: no limit
    # It takes the values of the space in turn, whatever their distribution.
    enumerates: bool = False
    # It takes `workers` although it does not learn.
    in_workers: bool = False
    requires: tuple[str, ...] = ()  # packages; each is also an extra
    instead: tuple[str, ...] = ()  # what to use without those packages
    # It has fewer points than wanted while a trial has to end first; its space has no end.
    waits: bool = False


def missing(requires: Sequence[str]) -> tuple[str, ...]:
    """Return the packages that are not installed."""
    return tuple(name for name in requires if importlib.util.find_spec(name) is None)


def missing_message(algorithm: str, packages: Sequence[str], instead: Sequence[str]) -> str:
    one = len(packages) == 1
    needs = f"{'the package' if one else 'the packages'} {' and '.join(packages)}"
    which = "which is not installed" if one else "which are not installed"
    cure = f"install with: {install_command(*packages)}; or use {' or '.join(instead)}"
    return f"{algorithm} needs {needs}, {which}; {cure}"
