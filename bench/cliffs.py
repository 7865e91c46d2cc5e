"""Eight problems whose loss jumps to a plateau where training diverges, split by the rule of
`forty.py` into a half to tune on and a half that is only measured.

The best points are near the jump. Choose no problem by how an algorithm does on it.
"""

from __future__ import annotations

import math

from forty import halves, list_halves
from problems import Problem, cube, rotated, shifted, sphere, vector

from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Scale, Space

CHANCE = 2.303  # the loss of a network that knows nothing of ten classes

RATE = Parameter("lr", Float(1e-6, 1, Scale.LOG))
WIDTH = Space(
    (
        RATE,
        Parameter("decay", Float(1e-7, 1e-1, Scale.LOG)),
        Parameter("dropout", Float(0, 0.8)),
        Parameter("width", Int(16, 512, Scale.LOG)),
    )
)


def _log(p: Assignment, name: str) -> float:
    return math.log10(float(p[name]))


def width(p: Assignment) -> float:
    """The wider the network, the better, and the lower its best rate."""
    doublings = math.log2(float(p["width"])) - 4
    away = _log(p, "lr") + 2 + 0.25 * doublings
    if away > 0.9:
        return CHANCE
    loss = 0.25 + 0.18 * away**2 / (1 + 0.05 * away**2) + 0.02 * (5 - doublings)
    return loss + 0.015 * (_log(p, "decay") + 4) ** 2 + 0.25 * (float(p["dropout"]) - 0.25) ** 2


MOMENTUM = Space(
    (
        Parameter("lr", Float(1e-5, 10, Scale.LOG)),
        Parameter("momentum", Float(0, 0.99)),
        Parameter("decay", Float(1e-6, 1e-1, Scale.LOG)),
    )
)


def momentum(p: Assignment) -> float:
    """Diverges at a product of two parameters."""
    step = _log(p, "lr") - math.log10(1 - float(p["momentum"]))
    if step > 0.4:
        return CHANCE
    loss = 0.4 + 0.12 * step**2 + 0.6 * (float(p["momentum"]) - 0.85) ** 2
    return loss + 0.02 * (_log(p, "decay") + 3.5) ** 2


OPTIMIZER = Space(
    (
        Parameter("optimizer", Choice(("sgd", "adam", "lion"))),
        RATE,
        Parameter("beta", Float(0.5, 0.999), (Condition("optimizer", ("adam", "lion")),)),
        Parameter("clip", Float(0.01, 10, Scale.LOG)),
        Parameter("warmup", Int(0, 20)),
    )
)
# optimizer: its loss, and the logs of its best rate and of the rate at which it diverges
OPTIMIZERS = {"sgd": (0.35, -1.2, -0.5), "adam": (0.30, -2.9, -2.3), "lion": (0.31, -3.8, -3.4)}


def optimizer(p: Assignment) -> float:
    """Each optimizer diverges at a rate of its own; warming up and clipping allow a higher one."""
    loss, best, most = OPTIMIZERS[str(p["optimizer"])]
    most += 0.02 * float(p["warmup"]) - 0.2 * _log(p, "clip")
    rate = _log(p, "lr")
    if rate > most:
        return CHANCE
    loss += 0.1 * (rate - best) ** 2 + 0.03 * (_log(p, "clip") - 0.2) ** 2
    loss += 0.0005 * (float(p["warmup"]) - 6) ** 2
    return loss + (0.5 * (float(p["beta"]) - 0.9) ** 2 if "beta" in p else 0.0)


LAYERS = Space(
    (
        RATE,
        Parameter("layers", Int(1, 24)),
        Parameter("scale", Float(0.05, 5, Scale.LOG)),
        Parameter("batch", Int(8, 1024, Scale.LOG)),
        Parameter("smoothing", Float(0, 0.4)),
    )
)


def layers(p: Assignment) -> float:
    """Many layers need small weights and a low rate."""
    many, scale = float(p["layers"]), _log(p, "scale")
    if 0.05 * many + scale + 0.5 * (_log(p, "lr") + 3) > 1.0:
        return 0.9
    batch = math.log2(float(p["batch"]))
    loss = 0.08 + 0.0006 * (many - 18) ** 2 + 0.03 * (_log(p, "lr") + 2.6 - 0.1 * (batch - 6)) ** 2
    return loss + 0.04 * (scale + 0.1) ** 2 + 0.3 * (float(p["smoothing"]) - 0.1) ** 2


SCHEDULE = Space(
    (
        RATE,
        Parameter("warmup", Int(1, 1000, Scale.LOG)),
        Parameter("last", Float(1e-3, 1, Scale.LOG)),
        Parameter("period", Int(1, 10)),
        Parameter("decay", Float(0.001, 0.5, Scale.LOG)),
    )
)


def schedule(p: Assignment) -> float:
    """A language model whose loss is that of guessing where the rate rises too fast."""
    rate, rise = _log(p, "lr"), _log(p, "warmup")
    if rate - 0.5 * rise > -3.2:
        return 6.9
    loss = 1.2 + 0.5 * (rate + 2.3) ** 2 + 0.15 * (rise - 2.1) ** 2
    loss += 0.1 * (_log(p, "last") + 1.2) ** 2 + 0.02 * abs(float(p["period"]) - 3)
    return loss + 0.1 * (_log(p, "decay") + 1) ** 2


def slope(name: str, count: int, p: Assignment) -> float:
    """A bowl that ends beside its lowest point, at a plane that is not along the axes."""
    x = rotated(name, shifted(name, vector(p), 2))
    return 3.0 * count if x[0] > 0.3 else 0.05 * sphere(x)


CLIFFS: tuple[Problem, ...] = (
    Problem("width 4-D", WIDTH, width, lowest=0.25),
    Problem("schedule 5-D, noisy", SCHEDULE, schedule, 0.02, lowest=1.2),
    Problem("momentum 3-D", MOMENTUM, momentum, lowest=0.4),
    Problem("momentum 3-D, noisy", MOMENTUM, momentum, 0.02, lowest=0.4),
    Problem("optimizers 5-D, noisy", OPTIMIZER, optimizer, 0.01, lowest=0.3),
    Problem("layers 5-D, noisy", LAYERS, layers, 0.005, lowest=0.08),
    Problem("plane 3-D", cube(3, -4, 4), lambda p: slope("plane", 3, p), lowest=0.0),
    Problem("plane 6-D", cube(6, -4, 4), lambda p: slope("plane", 6, p), lowest=0.0),
)

STEEP = halves(CLIFFS)


if __name__ == "__main__":
    list_halves(STEEP)
