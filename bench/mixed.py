"""The search space for measurements of cost: six parameters of mixed types, as in a real search."""

from __future__ import annotations

import random

from suggest.space import Choice, Float, Int, Parameter, Scale, Space

SPACE = Space(
    (
        Parameter("lr", Float(1e-5, 1.0, Scale.LOG)),
        Parameter("momentum", Float(0.0, 1.0)),
        Parameter("dropout", Float(0.0, 0.7)),
        Parameter("layers", Int(1, 12)),
        Parameter("width", Int(16, 1024, Scale.LOG)),
        Parameter("activation", Choice(("relu", "tanh", "gelu"))),
    )
)

Point = dict[str, str | int | float | bool]


def drawn(rng: random.Random) -> Point:
    """Draw a random point of the space, on the scales of its parameters."""
    return {
        "lr": 10 ** rng.uniform(-5, 0),
        "momentum": rng.random(),
        "dropout": rng.uniform(0, 0.7),
        "layers": rng.randint(1, 12),
        "width": round(2 ** rng.uniform(4, 10)),
        "activation": rng.choice(["relu", "tanh", "gelu"]),
    }
