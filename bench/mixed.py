"""The search space for measurements of cost: six parameters of mixed types, as in a real search."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from suggest.space import Choice, Float, Int, Parameter, Scale, Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

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


def optuna_space() -> dict[str, BaseDistribution]:
    """Return the space as Optuna's distributions.

    Imports Optuna, which not every measurement needs.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    return {
        "lr": FloatDistribution(1e-5, 1.0, log=True),
        "momentum": FloatDistribution(0.0, 1.0),
        "dropout": FloatDistribution(0.0, 0.7),
        "layers": IntDistribution(1, 12),
        "width": IntDistribution(16, 1024, log=True),
        "activation": CategoricalDistribution(("relu", "tanh", "gelu")),
    }
