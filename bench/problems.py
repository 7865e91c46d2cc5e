"""Ten functions to minimize, on which algorithms may be tuned; the reported figures use those in `held_out`.

They are pure functions of a point (and of the trial's number if there is noise). No optimum is in the middle of the
space, where some algorithms begin.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import digits_table

from suggest.proposal import generator
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Scale, Space

NOISE = 0.1


@dataclass(frozen=True, slots=True)
class Problem:
    """A function to minimize. `loss` is NaN for infeasible points. Trials report it with noise of deviation `noise`.

    `lowest` is the lowest loss of all points, NaN if unknown.
    """

    name: str
    space: Space
    loss: Callable[[Assignment], float]
    noise: float = 0.0
    lowest: float = math.nan

    def told(self, point: Assignment, *, seed: int, number: int) -> float:
        loss = self.loss(point)
        return loss if not self.noise else loss + generator(seed, number, "noise").gauss(0.0, self.noise)


def cube(count: int, low: float, high: float) -> Space:
    return Space(tuple(Parameter(f"x{k}", Float(low, high)) for k in range(count)))


def vector(point: Assignment) -> list[float]:
    return [float(value) for value in point.values()]


def shifted(name: str, x: list[float], most: float) -> list[float]:
    """Return x relative to an optimum that differs from the middle in each dimension, by up to `most`."""
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


def branin(x: list[float]) -> float:
    a, b = x
    bend = b - 5.1 / (4 * math.pi**2) * a * a + 5 / math.pi * a - 6
    return bend * bend + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10


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


def mixed(p: Assignment) -> float:
    """Rosenbrock in two floats, spheres in two log floats and two ints, and a penalty for wrong choices."""
    small = [math.log10(float(p[name])) + 2 for name in ("lr", "decay")]
    whole = [(float(p[name]) - 20) / 64 for name in ("layers", "width")]
    wrong = 0.5 * (p["act"] != "relu") + 0.2 * (p["opt"] != "adam")
    return rosenbrock([float(p["x0"]), float(p["x1"])]) + sphere(small) + sphere(whole) + wrong


MIXED = Space(
    (
        *cube(2, -2, 2).parameters,
        Parameter("lr", Float(1e-4, 1, Scale.LOG)),
        Parameter("decay", Float(1e-4, 1, Scale.LOG)),
        Parameter("layers", Int(1, 64)),
        Parameter("width", Int(1, 64)),
        Parameter("act", Choice(("relu", "tanh", "gelu"))),
        Parameter("opt", Choice(("sgd", "adam", "lamb", "lion", "rms"))),
    )
)


def conditional(p: Assignment) -> float:
    """One of three functions, each with its own two parameters."""
    match p["kind"]:
        case "branin":
            return branin([float(p["b0"]), float(p["b1"])])
        case "ackley":
            return 0.5 + ackley([float(p["a0"]), float(p["a1"])])
    return 1.0 + sphere([float(p["s0"]), float(p["s1"])])


def _only(kind: str, name: str, low: float, high: float) -> Parameter:
    return Parameter(name, Float(low, high), (Condition("kind", (kind,)),))


CONDITIONAL = Space(
    (
        Parameter("kind", Choice(("branin", "ackley", "sphere"))),
        _only("branin", "b0", -5, 10),
        _only("branin", "b1", 0, 15),
        _only("ackley", "a0", -32.768, 32.768),
        _only("ackley", "a1", -32.768, 32.768),
        _only("sphere", "s0", -5, 5),
        _only("sphere", "s1", -5, 5),
    )
)


@functools.cache
def _digits() -> digits_table.Table:
    return digits_table.Table()


PROBLEMS = (
    Problem("sphere 5-D", cube(5, -5, 5), lambda p: sphere(shifted("sphere", vector(p), 4))),
    Problem("Rosenbrock 5-D", cube(5, -2, 2), lambda p: rosenbrock(vector(p))),
    Problem("Ackley 10-D", cube(10, -32.768, 32.768), lambda p: ackley(shifted("ackley", vector(p), 20))),
    Problem(
        "Rastrigin 5-D",
        cube(5, -5.12, 5.12),
        lambda p: rastrigin(rotated("rastrigin", shifted("rastrigin", vector(p), 3))),
    ),
    Problem("Hartmann 6-D", cube(6, 0, 1), lambda p: hartmann(vector(p))),
    Problem(
        "Branin 2-D", Space((Parameter("x", Float(-5, 10)), Parameter("y", Float(0, 15)))), lambda p: branin(vector(p))
    ),
    Problem("mixed 8-D", MIXED, mixed),
    Problem("conditional 6-D", CONDITIONAL, conditional),
    Problem("Hartmann 6-D, noisy", cube(6, 0, 1), lambda p: hartmann(vector(p)), NOISE),
    Problem("digits, 1 - accuracy", digits_table.SPACE, lambda p: 1.0 - _digits().accuracy(p)),
)
