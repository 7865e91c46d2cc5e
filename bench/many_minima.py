"""Sixteen problems with several minima, of families that the forty of `forty.py` lack, split by
the same rule into a half to tune on and a half that is only measured.

A search that stays at the first minimum that it finds is behind here. Choose no problem by how an
algorithm does on it.
"""

from __future__ import annotations

import functools
import math

from forty import halves, list_halves
from problems import Problem, cube, rastrigin, rotated, shifted, sphere, vector

from suggest.proposal import generator
from suggest.space import Assignment, Choice, Float, Int, Parameter, Scale, Space

SHEKEL = (
    (0.1, (4, 4, 4, 4)),
    (0.2, (1, 1, 1, 1)),
    (0.2, (8, 8, 8, 8)),
    (0.4, (6, 6, 6, 6)),
    (0.4, (3, 7, 3, 7)),
    (0.6, (2, 9, 2, 9)),
    (0.3, (5, 5, 3, 3)),
    (0.7, (8, 1, 8, 1)),
    (0.5, (6, 2, 6, 2)),
    (0.5, (7, 3.6, 7, 3.6)),
)
LANGERMANN = ((1, 3, 5), (2, 5, 2), (5, 2, 1), (2, 1, 4), (3, 7, 9))  # heights and centers


def shekel(x: list[float]) -> float:
    return -sum(
        1 / (width + sphere([v - c for v, c in zip(x, center, strict=True)]))
        for width, center in SHEKEL
    )


def branin(x: list[float]) -> float:
    a, b = x
    bend = b - 5.1 * a * a / (4 * math.pi**2) + 5 * a / math.pi - 6
    return bend * bend + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10


def camel(x: list[float]) -> float:
    a, b = x
    return (4 - 2.1 * a * a + a**4 / 3) * a * a + a * b + (4 * b * b - 4) * b * b


def eggholder(x: list[float]) -> float:
    a, b = x
    high = b + 47
    return -high * math.sin(math.sqrt(abs(a / 2 + high))) - a * math.sin(math.sqrt(abs(a - high)))


def shubert(x: list[float]) -> float:
    return math.prod(sum(i * math.cos((i + 1) * v + i) for i in range(1, 6)) for v in x)


def holder(x: list[float]) -> float:
    a, b = x
    return -abs(math.sin(a) * math.cos(b) * math.exp(abs(1 - math.hypot(a, b) / math.pi)))


def langermann(x: list[float]) -> float:
    found = 0.0
    for height, *center in LANGERMANN:
        away = sphere([v - c for v, c in zip(x, center, strict=True)])
        found -= height * math.exp(-away / math.pi) * math.cos(math.pi * away)
    return found


def alpine(x: list[float]) -> float:
    return sum(abs(v * math.sin(v) + 0.1 * v) for v in x)


def cosines(x: list[float]) -> float:
    return sum(v * v + 0.1 * (1 - math.cos(5 * math.pi * v)) for v in x)


def salomon(x: list[float]) -> float:
    away = math.sqrt(sphere(x))
    return 1 - math.cos(2 * math.pi * away) + 0.1 * away


def drop_wave(x: list[float]) -> float:
    away = sphere(x)
    return 1 - (1 + math.cos(12 * math.sqrt(away))) / (0.5 * away + 2)


def vincent(x: list[float]) -> float:
    return -sum(math.sin(10 * math.log(v)) for v in x) / len(x)


def funnels(x: list[float]) -> float:
    """Two funnels with waves; the wider one is the worse (the idea: Lunacek et al., 2008)."""
    narrow = sphere(x)
    wide = 2.0 * len(x) + 0.5 * sphere([v + 3.5 for v in x])
    waves = rastrigin(x) - narrow
    return min(narrow, wide) + 0.2 * waves


@functools.cache
def _dips(count: int) -> tuple[tuple[float, float, tuple[float, ...]], ...]:
    """Return the depth, width and center of each of twelve dips."""
    rng = generator(0, count, "dips")
    found = []
    for k in range(12):
        center = tuple(rng.uniform(0.1, 0.9) for _ in range(count))
        found.append((1.0 - 0.04 * k, rng.uniform(0.1, 0.35), center))
    return tuple(found)


def dips(x: list[float]) -> float:
    return -max(
        depth
        * math.exp(
            -sphere([v - c for v, c in zip(x, center, strict=True)]) / (2 * len(x) * width**2)
        )
        for depth, width, center in _dips(len(x))
    )


def two_optima(x: list[float]) -> float:
    """Two bowls far apart, of which the narrow one is slightly deeper."""
    narrow = 8 * sphere([v - c for v, c in zip(x, (0.8, 0.25, 0.7), strict=True)])
    wide = 0.03 + 2 * sphere([v - c for v, c in zip(x, (0.2, 0.7, 0.3), strict=True)])
    return min(narrow, wide)


TRAINING = Space(
    (
        Parameter("lr", Float(1e-5, 1, Scale.LOG)),
        Parameter("decay", Float(1e-6, 1e-1, Scale.LOG)),
        Parameter("width", Int(16, 1024, Scale.LOG)),
        Parameter("dropout", Float(0, 0.7)),
        Parameter("optimizer", Choice(("sgd", "adam", "lamb"))),
    )
)
# optimizer: its loss, and the logs of its best learning rate and decay
OPTIMIZERS = {"sgd": (0.20, -0.8, -3.5), "adam": (0.21, -3.2, -5.0), "lamb": (0.24, -2.0, -2.0)}


def training(p: Assignment) -> float:
    """A network's loss, nearly the same with each of two optimizers at rates of their own."""
    loss, rate, decay = OPTIMIZERS[str(p["optimizer"])]
    off = 0.15 * (math.log10(float(p["lr"])) - rate) ** 2
    off += 0.02 * (math.log10(float(p["decay"])) - decay) ** 2
    off += 0.03 * (math.log2(float(p["width"])) - 8.0) ** 2
    return loss + off + 0.3 * (float(p["dropout"]) - 0.2) ** 2


MANY_MINIMA: tuple[Problem, ...] = (
    Problem(
        "Branin 2-D",
        Space((Parameter("x0", Float(-5, 10)), Parameter("x1", Float(0, 15)))),
        lambda p: branin(vector(p)),
        lowest=0.3978874,
    ),
    Problem("Shekel 4-D", cube(4, 0, 10), lambda p: shekel(vector(p)), lowest=-10.53641),
    Problem("camel 2-D", cube(2, -3, 3), lambda p: camel(vector(p)), lowest=-1.031628),
    Problem("Eggholder 2-D", cube(2, -512, 512), lambda p: eggholder(vector(p)), lowest=-959.6407),
    Problem("Shubert 2-D", cube(2, -10, 10), lambda p: shubert(vector(p)), lowest=-186.7309),
    Problem("Holder table 2-D", cube(2, -10, 10), lambda p: holder(vector(p)), lowest=-19.2085),
    Problem("Langermann 2-D", cube(2, 0, 10), lambda p: langermann(vector(p)), lowest=-5.162126),
    Problem(
        "Alpine 4-D",
        cube(4, -8, 8),
        lambda p: alpine(rotated("alpine", shifted("alpine", vector(p), 5))),
        lowest=0.0,
    ),
    Problem(
        "cosines 5-D",
        cube(5, -1, 1),
        lambda p: cosines(rotated("cosines", shifted("cosines", vector(p), 0.7))),
        lowest=0.0,
    ),
    Problem(
        "Salomon 4-D",
        cube(4, -10, 10),
        lambda p: salomon(shifted("salomon", vector(p), 7)),
        lowest=0.0,
    ),
    Problem(
        "drop wave 2-D",
        cube(2, -5, 5),
        lambda p: drop_wave(shifted("drop wave", vector(p), 3)),
        lowest=0.0,
    ),
    Problem("Vincent 3-D", cube(3, 0.25, 10), lambda p: vincent(vector(p)), lowest=-1.0),
    Problem(
        "funnels 4-D",
        cube(4, -5, 5),
        lambda p: funnels(shifted("funnels", vector(p), 1.5)),
        lowest=0.0,
    ),
    Problem("dips 5-D, noisy", cube(5, 0, 1), lambda p: dips(vector(p)), 0.03, lowest=-1.0),
    Problem(
        "two optima 3-D, noisy", cube(3, 0, 1), lambda p: two_optima(vector(p)), 0.05, lowest=0.0
    ),
    Problem("training 5-D, noisy", TRAINING, training, 0.02, lowest=0.2),
)

MINIMA = halves(MANY_MINIMA)


if __name__ == "__main__":
    list_halves(MINIMA)
