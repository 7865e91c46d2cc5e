"""Functions to minimize: pure functions of a point, and of the trial's number if there is noise.

No optimum is in the middle of the space, where some algorithms begin.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from suggest.proposal import generator
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Scale, Space


@dataclass(frozen=True, slots=True)
class Problem:
    """A function to minimize. `loss` is NaN for infeasible points.
    Trials report it with noise of deviation `noise`.

    `lowest` is the lowest loss of all points, NaN if unknown.
    """

    name: str
    space: Space
    loss: Callable[[Assignment], float]
    noise: float = 0.0
    lowest: float = math.nan

    def told(self, point: Assignment, *, seed: int, number: int) -> float:
        loss = self.loss(point)
        return (
            loss
            if not self.noise
            else loss + generator(seed, number, "noise").gauss(0.0, self.noise)
        )


def cube(count: int, low: float, high: float) -> Space:
    return Space(tuple(Parameter(f"x{k}", Float(low, high)) for k in range(count)))


def vector(point: Assignment) -> list[float]:
    return [float(value) for value in point.values()]


def shifted(name: str, x: list[float], most: float) -> list[float]:
    """Return x relative to an optimum that differs from the middle
    in each dimension, by up to `most`.
    """
    rng = generator(0, 0, f"shift {name}")
    return [v - rng.choice((-1, 1)) * rng.uniform(0.2, 1.0) * most for v in x]


@functools.cache
def rotation(name: str, count: int) -> list[list[float]]:
    """Return a fixed random orthogonal matrix (Gram-Schmidt on normal vectors)."""
    rng = generator(0, count, f"rotation {name}")
    rows: list[list[float]] = []
    while len(rows) < count:
        row = [rng.gauss(0.0, 1.0) for _ in range(count)]
        for other in rows:
            along = sum(a * b for a, b in zip(row, other, strict=True))
            row = [a - along * b for a, b in zip(row, other, strict=True)]
        length = math.sqrt(sphere(row))
        rows.append([a / length for a in row])
    return rows


def rotated(name: str, x: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, x, strict=True)) for row in rotation(name, len(x))]


def sphere(x: list[float]) -> float:
    return sum(v * v for v in x)


def rosenbrock(x: list[float]) -> float:
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in itertools.pairwise(x))


def ackley(x: list[float]) -> float:
    n = len(x)
    waves = math.exp(sum(math.cos(2 * math.pi * v) for v in x) / n)
    return 20 - 20 * math.exp(-0.2 * math.sqrt(sphere(x) / n)) + math.e - waves


def rastrigin(x: list[float]) -> float:
    return sum(v * v - 10 * math.cos(2 * math.pi * v) + 10 for v in x)


HARTMANN = (
    (1.0, (10, 3, 17, 3.5, 1.7, 8), (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886)),
    (1.2, (0.05, 10, 17, 0.1, 8, 14), (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991)),
    (3.0, (3, 3.5, 1.7, 10, 17, 8), (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650)),
    (3.2, (17, 8, 0.05, 10, 0.1, 14), (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381)),
)


def hartmann(x: list[float]) -> float:
    return -sum(
        height * math.exp(-sum(w * (v - c) ** 2 for w, v, c in zip(width, x, center, strict=True)))
        for height, width, center in HARTMANN
    )


def levy(x: list[float]) -> float:
    w = [1 + v / 4 for v in x]
    middle = sum((v - 1) ** 2 * (1 + 10 * math.sin(math.pi * v + 1) ** 2) for v in w[:-1])
    last = (w[-1] - 1) ** 2 * (1 + math.sin(2 * math.pi * w[-1]) ** 2)
    return math.sin(math.pi * w[0]) ** 2 + middle + last


def styblinski(x: list[float]) -> float:
    return sum(v**4 - 16 * v * v + 5 * v for v in x) / 2 + 39.16616570377142 * len(x)


def griewank(x: list[float]) -> float:
    waves = math.prod(math.cos(v / math.sqrt(k + 1)) for k, v in enumerate(x))
    return 1 + sphere(x) / 4000 - waves


def schwefel(x: list[float]) -> float:
    return 418.9828872724338 * len(x) - sum(v * math.sin(math.sqrt(abs(v))) for v in x)


def michalewicz(x: list[float]) -> float:
    return -sum(math.sin(v) * math.sin((k + 1) * v * v / math.pi) ** 20 for k, v in enumerate(x))


def ellipsoid(x: list[float]) -> float:
    return sum(1000 ** (k / (len(x) - 1)) * v * v for k, v in enumerate(x))


def valley(x: list[float]) -> float:
    return sum((b - a * a) ** 2 + 0.1 * (1 - a) ** 2 for a, b in itertools.pairwise(x))


def whole(p: Assignment) -> float:
    """Six whole numbers of different ranges, two of which depend on each other."""
    a, b, c, d, e, f = (float(p[name]) for name in "abcdef")
    apart = abs(a - 7) / 3 + (b - 90) ** 2 / 800 + abs(math.log2(c) - 7.5) + (d - 2) ** 2 / 2
    return apart + abs(e - 3 - a / 2) / 4 + (0.3 if f % 2 else 0.0) + abs(f - 14) / 10


WHOLE = Space(
    (
        Parameter("a", Int(1, 12)),
        Parameter("b", Int(0, 200, step=5)),
        Parameter("c", Int(1, 1024, Scale.LOG)),
        Parameter("d", Int(0, 4)),
        Parameter("e", Int(0, 30)),
        Parameter("f", Int(0, 20)),
    )
)


def network(p: Assignment) -> float:
    """A function that resembles a network's loss: of layers, each with its width,
    and of an optimizer's settings.
    """
    layers = int(p["layers"])
    best = {1: (6.0,), 2: (7.0, 5.5), 3: (7.5, 6.5, 4.0)}[layers]
    widths = sum((math.log2(float(p[f"width{k}"])) - v) ** 2 for k, v in enumerate(best)) / layers
    loss = {1: 0.8, 2: 0.2, 3: 0.3}[layers] + 0.15 * widths
    rate = math.log10(float(p["lr"]))
    if p["optimizer"] == "sgd":
        return loss + 0.2 * (rate + 1.2) ** 2 + 2.0 * (float(p["momentum"]) - 0.85) ** 2
    return loss + 0.1 + 0.3 * (rate + 3.1) ** 2


def _when(name: str, *values: str | int) -> tuple[Condition, ...]:
    return (Condition(name, values),)


NETWORK = Space(
    (
        Parameter("layers", Int(1, 3)),
        Parameter("width0", Int(8, 512, Scale.LOG)),
        Parameter("width1", Int(8, 512, Scale.LOG), _when("layers", 2, 3)),
        Parameter("width2", Int(8, 512, Scale.LOG), _when("layers", 3)),
        Parameter("optimizer", Choice(("sgd", "adam"))),
        Parameter("momentum", Float(0, 0.99), _when("optimizer", "sgd")),
        Parameter("lr", Float(1e-5, 1, Scale.LOG)),
    )
)


def barred(p: Assignment) -> float:
    """Hartmann's function with two constraints: on the sum of all parameters,
    and on two of them together.
    """
    x = vector(p)
    if sum(x) > 3.2 or x[0] + x[4] < 0.35:
        return math.nan
    return hartmann(x)


FUNCTIONS: tuple[Problem, ...] = (
    Problem(
        "Levy 8-D",
        cube(8, -10, 10),
        lambda p: levy(rotated("levy", shifted("levy", vector(p), 6))),
        lowest=0.0,
    ),
    Problem("Styblinski-Tang 6-D", cube(6, -5, 5), lambda p: styblinski(vector(p)), lowest=0.0),
    Problem(
        "Griewank 6-D",
        cube(6, -20, 20),
        lambda p: griewank(rotated("g", shifted("griewank", vector(p), 12))),
        lowest=0.0,
    ),
    Problem(
        "Schwefel 4-D, noisy",
        cube(4, -500, 500),
        lambda p: schwefel(vector(p)) / 100,
        0.3,
        lowest=0.0,
    ),
    Problem(
        "Michalewicz 5-D", cube(5, 0, math.pi), lambda p: michalewicz(vector(p)), lowest=-4.687658
    ),
    Problem(
        "ellipsoid 12-D",
        cube(12, -5, 5),
        lambda p: ellipsoid(rotated("e", shifted("ellipsoid", vector(p), 3))),
        lowest=0.0,
    ),
    Problem("valley 25-D", cube(25, -2, 2), lambda p: valley(vector(p)), lowest=0.0),
    Problem(
        "whole 6-D, noisy",
        WHOLE,
        whole,
        0.1,
        lowest=whole({"a": 7, "b": 90, "c": 181, "d": 2, "e": 6, "f": 14}),
    ),
    Problem("network 7-D, noisy", NETWORK, network, 0.03, lowest=0.200005),
    Problem("Hartmann 6-D, partly infeasible", cube(6, 0, 1), barred, lowest=-3.322369),
)
