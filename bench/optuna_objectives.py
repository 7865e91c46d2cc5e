"""Twenty objectives of the kinds that Optuna's documentation and examples show, written for Optuna.

They compute what a training would return, in no time: branches, loops that suggest for each layer,
ranges that depend on other values, late pruning, several objectives and constraints. No imports but
the standard library and Optuna, so that a test runs them as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

Objective = Callable[[Any], Any]


def quadratic(trial: Any) -> float:
    x = trial.suggest_float("x", -10, 10)
    return (x - 2) ** 2


def plane(trial: Any) -> float:
    x, y = trial.suggest_float("x", -5, 10), trial.suggest_float("y", 0, 15)
    bowl = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return bowl**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.397887


def rastrigin(trial: Any) -> float:
    xs = [trial.suggest_float(f"x{i}", -5.12, 5.12) for i in range(4)]
    return sum(x * x - 10 * math.cos(2 * math.pi * x) + 10 for x in xs)


def rosenbrock(trial: Any) -> float:
    xs = [trial.suggest_float(f"x{i}", -2, 2) for i in range(5)]
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in pairwise(xs))


def classifier(trial: Any) -> float:
    """A support vector machine or a random forest, as on Optuna's first page."""
    if trial.suggest_categorical("classifier", ["SVC", "RandomForest"]) == "SVC":
        c = trial.suggest_float("svc_c", 1e-10, 1e10, log=True)
        return 0.02 + 0.01 * abs(math.log10(c) - 1.5)
    depth = trial.suggest_int("rf_max_depth", 2, 32, log=True)
    return 0.04 + 0.02 * abs(math.log2(depth) - 3.2)


def layers(trial: Any) -> float:
    """A perceptron whose number of layers is searched."""
    count = trial.suggest_int("n_layers", 1, 4)
    loss = 0.1 * abs(count - 3)
    for i in range(count):
        units = trial.suggest_int(f"n_units_l{i}", 4, 128, log=True)
        loss += 0.05 * abs(math.log2(units) - (6 - i))
        loss += abs(trial.suggest_float(f"dropout_l{i}", 0.2, 0.5) - 0.3) / count
    return loss + 0.1 * abs(math.log10(trial.suggest_float("lr", 1e-5, 1e-1, log=True)) + 3)


def optimizer(trial: Any) -> float:
    name = trial.suggest_categorical("optimizer", ["Adam", "RMSprop", "SGD"])
    lr = math.log10(trial.suggest_float("lr", 1e-5, 1e-1, log=True))
    if name == "SGD":
        momentum = trial.suggest_float("momentum", 0.0, 0.99)
        return 0.05 + 0.1 * abs(lr + 1.5) + abs(momentum - 0.9)
    if name == "RMSprop":
        return 0.1 + 0.1 * abs(lr + 3) + abs(trial.suggest_float("alpha", 0.8, 1.0) - 0.95)
    return 0.12 + 0.08 * abs(lr + 3.2)


def boosting(trial: Any) -> float:
    """XGBoost's three boosters, each with its own parameters."""
    booster = trial.suggest_categorical("booster", ["gbtree", "gblinear", "dart"])
    loss = 0.03 * abs(math.log10(trial.suggest_float("lambda", 1e-8, 1.0, log=True)) + 4)
    loss += 0.03 * abs(math.log10(trial.suggest_float("alpha", 1e-8, 1.0, log=True)) + 6)
    if booster == "gblinear":
        return 0.3 + loss
    loss += 0.05 * abs(trial.suggest_int("max_depth", 3, 9, step=2) - 7)
    loss += 0.05 * abs(math.log10(trial.suggest_float("eta", 1e-8, 1.0, log=True)) + 1)
    if booster == "dart":
        trial.suggest_categorical("sample_type", ["uniform", "weighted"])
        loss += abs(trial.suggest_float("rate_drop", 0.0, 0.5) - 0.1)
    return loss + (0.1 if booster == "gbtree" else 0.05)


def nested(trial: Any) -> float:
    """Branches in branches in branches."""
    if trial.suggest_categorical("family", ["tree", "net", "linear"]) == "net":
        if trial.suggest_categorical("net", ["cnn", "mlp"]) == "cnn":
            kernel = trial.suggest_int("kernel", 1, 11, step=2)
            if trial.suggest_categorical("pool", [True, False]):
                return 0.05 * abs(kernel - 5) + abs(trial.suggest_float("stride", 0.0, 1.0) - 0.4)
            return 0.3 + 0.05 * abs(kernel - 3)
        return 0.2 + 0.1 * abs(trial.suggest_int("width", 1, 9) - 6)
    return 0.4 + abs(trial.suggest_float("penalty", 0.0, 1.0) - 0.7)


def grown_range(trial: Any) -> float:
    """The range of one parameter depends on another one."""
    low = trial.suggest_float("low", 0, 5)
    high = trial.suggest_float("high", low, 10)
    return abs(low - 2) + abs(high - 6)


def simplex(trial: Any) -> float:
    """The shares of three parts, each at most what is left."""
    a = trial.suggest_float("a", 0, 1)
    b = trial.suggest_float("b", 0, 1 - a)
    return (a - 0.2) ** 2 + (b - 0.5) ** 2


def steps(trial: Any) -> float:
    units = trial.suggest_int("units", 16, 512, step=16)
    rate = trial.suggest_float("rate", 0.0, 0.9, step=0.1)
    batch = trial.suggest_categorical("batch", [16, 32, 64, 128])
    return abs(units - 208) / 100 + abs(rate - 0.3) + abs(math.log2(batch) - 5) / 4


def choices(trial: Any) -> float:
    names = ["relu", "tanh", "gelu", "elu", "silu"]
    picked = [trial.suggest_categorical(f"activation{i}", names) for i in range(5)]
    return float(sum(names.index(name) != (2 * i) % 5 for i, name in enumerate(picked)))


def mixture(trial: Any) -> float:
    x = trial.suggest_float("x", -1, 1)
    n = trial.suggest_int("n", 1, 20)
    kind = trial.suggest_categorical("kind", ["a", "b", None])
    shift = {"a": 0.0, "b": 0.5, None: -0.5}[kind]
    return (x - shift) ** 2 + abs(n - 12) / 10 + (0.0 if kind == "b" else 0.2)


def hartmann(trial: Any) -> float:
    xs = [trial.suggest_float(f"x{i}", 0, 1) for i in range(6)]
    best = (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573)
    near = sum((x - b) ** 2 for x, b in zip(xs, best, strict=True))
    return 1 - math.exp(-2 * near) + 0.05 * math.sin(20 * xs[0]) ** 2


def chosen_features(trial: Any) -> float:
    """A switch for each feature, and a weight for each that is on."""
    loss = 0.0
    for i in range(6):
        if trial.suggest_categorical(f"use{i}", [False, True]):
            loss += abs(trial.suggest_float(f"weight{i}", -1, 1) - i / 6) * 0.5
            loss += 0.3 * (i % 2)
        else:
            loss += 0.6 * (1 - i % 2)
    return loss


def learning_curve(trial: Any) -> float:
    """Reports each epoch, and stops when it should."""
    lr = math.log10(trial.suggest_float("lr", 1e-4, 1, log=True))
    decay = trial.suggest_float("decay", 0, 1)
    loss = 1.0
    for epoch in range(20):
        loss = abs(lr + 2) * 0.2 + decay**2 * 0.3 + math.exp(-epoch / 5)
        trial.report(loss, epoch)
        if trial.should_prune():
            # Only an objective that is asked to stop needs the exception.
            from optuna import TrialPruned

            raise TrialPruned
    return loss


def blocks(trial: Any) -> float:
    """Layers of several types, each with parameters of its own."""
    loss = 0.2 * abs(trial.suggest_int("blocks", 1, 3) - 2)
    for i in range(trial.suggest_int("blocks", 1, 3)):
        if trial.suggest_categorical(f"type{i}", ["conv", "dense"]) == "conv":
            loss += 0.1 * abs(trial.suggest_int(f"filters{i}", 8, 64, log=True) - 32) / 8
        else:
            loss += 0.15 + 0.1 * abs(trial.suggest_int(f"units{i}", 16, 256, log=True) - 64) / 32
    return loss


def several(trial: Any) -> tuple[float, float]:
    """Binh and Korn's two objectives."""
    x, y = trial.suggest_float("x", 0, 5), trial.suggest_float("y", 0, 3)
    return 4 * x**2 + 4 * y**2, (x - 5) ** 2 + (y - 5) ** 2


def constrained(trial: Any) -> float:
    x, y = trial.suggest_float("x", -2, 2), trial.suggest_float("y", -2, 2)
    trial.set_constraint("circle", x**2 + y**2 - 2)
    return (1 - x) ** 2 + (y - 0.5) ** 2


SINGLE: dict[str, Objective] = {
    f.__name__: f
    for f in (
        quadratic,
        plane,
        rastrigin,
        rosenbrock,
        classifier,
        layers,
        optimizer,
        boosting,
        nested,
        grown_range,
        simplex,
        steps,
        choices,
        mixture,
        hartmann,
        chosen_features,
        learning_curve,
        blocks,
    )
}
OTHERS: dict[str, Objective] = {"several": several, "constrained": constrained}
