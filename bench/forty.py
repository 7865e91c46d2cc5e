"""Forty problems, split by a hash of their names: on one half anybody may tune,
the other half is only measured.

Eleven are tables of trained networks, ten are tabulated scikit-learn models, ten are functions of
`problems`, and nine are functions like those of BBOB (Hansen et al., 2009), shifted and rotated.
Choose no problem, and no half for one, by how an algorithm does on it. No optimum is in the middle
of the space, where some algorithms begin.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from itertools import pairwise, product

from problems import (
    FUNCTIONS,
    Problem,
    ackley,
    cube,
    rastrigin,
    rosenbrock,
    rotated,
    shifted,
    sphere,
    vector,
)
from tabulated import NETWORKS, TRAINED, Tabulated

from suggest.proposal import generator
from suggest.samplers.uniform import BITS, at_fraction
from suggest.space import Choice

ROUGH = 1000.0  # condition number


def discus(x: list[float]) -> float:
    return ROUGH * x[0] ** 2 + sphere(x[1:])


def cigar(x: list[float]) -> float:
    return x[0] ** 2 + ROUGH * sphere(x[1:])


def powers(x: list[float]) -> float:
    return math.sqrt(sum(abs(v) ** (2 + 4 * k / (len(x) - 1)) for k, v in enumerate(x)))


def steps(x: list[float]) -> float:
    """An ellipsoid of plateaus; the lowest one is around the optimum."""
    return sum(100 ** (k / (len(x) - 1)) * math.floor(v + 0.5) ** 2 for k, v in enumerate(x))


def schaffer(x: list[float]) -> float:
    """Schaffer's F7: a bowl with waves that are the faster the farther away."""
    away = [math.hypot(a, b) for a, b in pairwise(x)]
    return (sum(math.sqrt(s) * (1 + math.sin(50 * s**0.2) ** 2) for s in away) / len(away)) ** 2


def peaks(x: list[float]) -> float:
    """Gallagher's 21 peaks in random places; the highest is the first one."""
    rng = generator(0, len(x), "peaks")
    lowest = 10.0
    for k in range(21):
        height = 10.0 if k == 0 else 1.1 + 8 * (k - 1) / 19
        width = 10 ** rng.uniform(-0.5, 1.0)
        away = [v - rng.choice((-1, 1)) * rng.uniform(0.8, 4) for v in x]
        lowest = min(lowest, 10 - height * math.exp(-width * sphere(away) / (2 * len(x))))
    return lowest


def _moved(
    name: str, count: int, function: Callable[[list[float]], float], noise: float = 0.0
) -> Problem:
    """Return a problem with the function's optimum, which is 0 at the origin,
    moved and its axes rotated.
    """

    def loss(x: list[float]) -> float:
        return function(rotated(name, shifted(name, x, 4)))

    return Problem(name, cube(count, -5, 5), lambda p: loss(vector(p)), noise, lowest=0.0)


BBOB: tuple[Problem, ...] = (
    _moved("Rosenbrock rotated 6-D", 6, lambda z: rosenbrock([1 + v for v in z])),
    _moved("Rastrigin rotated 4-D, noisy", 4, rastrigin, 2.0),
    _moved("Ackley rotated 6-D, noisy", 6, ackley, 0.5),
    _moved("discus 8-D", 8, discus),
    _moved("bent cigar 6-D", 6, cigar),
    _moved("different powers 5-D", 5, powers),
    _moved("step ellipsoid 6-D", 6, steps),
    _moved("Schaffer F7 4-D", 4, schaffer),
    Problem("Gallagher 4-D", cube(4, -5, 5), lambda p: peaks(vector(p)), lowest=0.0),
)
FORTY: tuple[Problem, ...] = (*NETWORKS, *TRAINED, *FUNCTIONS, *BBOB)


def lowest(problem: Problem) -> float:
    """Return the lowest loss that any point of one of the forty problems has."""
    return problem.table().least if isinstance(problem, Tabulated) else problem.lowest


def halves(problems: Iterable[Problem]) -> dict[str, tuple[Problem, ...]]:
    """Split into the half to tune on, with the lower hashes, and the half that is only measured."""
    ordered = sorted(problems, key=lambda problem: hashlib.sha256(problem.name.encode()).digest())
    middle = len(ordered) // 2
    return {"tune": tuple(ordered[:middle]), "measure": tuple(ordered[middle:])}


HALVES = halves(FORTY)


def loss_in_the_middle(problem: Problem) -> float:
    """Return the lowest loss of points with all numbers in the middle,
    with any choices; NaN without numbers.
    """
    choices = {
        p.name: p.domain.values for p in problem.space.parameters if isinstance(p.domain, Choice)
    }
    middle = {
        p.name: at_fraction(p.domain, 1 << (BITS - 1))
        for p in problem.space.parameters
        if p.name not in choices
    }
    if not middle:
        return math.nan
    chosen = (dict(zip(choices, values, strict=True)) for values in product(*choices.values()))
    return min(problem.loss(problem.space.restricted({**middle, **values})) for values in chosen)


def list_halves(split: dict[str, tuple[Problem, ...]]) -> None:
    """Print each problem with its half, its lowest loss, and the loss in the middle."""
    print("half", "problem", "lowest loss", "loss in the middle", sep="\t")
    for half, problems in split.items():
        for problem in problems:
            print(
                half,
                problem.name,
                f"{lowest(problem):.6g}",
                f"{loss_in_the_middle(problem):.6g}",
                sep="\t",
            )


if __name__ == "__main__":
    list_halves(HALVES)
