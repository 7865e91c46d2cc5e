"""Fourteen problems whose numbers have ranges of several decades without `scale: log`, split by the
rule of `forty.py` into a half to tune on and a half that is only measured.

Ten depend on the logarithms of some of these numbers, as rates, sizes and penalties do; four are
really linear. Three are trained with scikit-learn. Choose no problem by how an algorithm does on
it.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

from forty import halves, list_halves
from problems import Problem, rotated

from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Space

RATE = Parameter("lr", Float(1e-5, 1))


def _log(p: Assignment, name: str) -> float:
    return math.log10(float(p[name]))


def _share(p: Assignment, name: str, most: float) -> float:
    return float(p[name]) / most


UNITS = Space((RATE, Parameter("units", Int(8, 1024)), Parameter("dropout", Float(0, 0.8))))


def units(p: Assignment) -> float:
    wide = math.log2(float(p["units"])) - 7.5
    loss = 0.2 + 0.08 * (_log(p, "lr") + 2.4 + 0.1 * wide) ** 2 + 0.01 * wide**2
    return loss + 0.3 * (float(p["dropout"]) - 0.2) ** 2


BATCH = Space(
    (
        Parameter("lr", Float(1e-4, 1)),
        Parameter("momentum", Float(0.1, 0.99)),
        Parameter("batch", Int(8, 1024)),
        Parameter("optimizer", Choice(("sgd", "adam", "ftrl"))),
    )
)


def batch(p: Assignment) -> float:
    """The best rate grows with the batch and falls with the momentum."""
    best = {"sgd": -1.0, "adam": -2.7, "ftrl": -1.7}[str(p["optimizer"])]
    best += 0.5 * (_log(p, "batch") - 1.8) + 0.5 * math.log10(1 - float(p["momentum"]))
    loss = {"sgd": 0.04, "adam": 0.03, "ftrl": 0.09}[str(p["optimizer"])]
    loss += 0.06 * math.tanh(0.5 * (_log(p, "lr") - best) ** 2)
    return loss + 0.01 * (_log(p, "batch") - 1.8) ** 2 + 0.02 * (float(p["momentum"]) - 0.8) ** 2


BOOST = Space(
    (
        Parameter("eta", Float(1e-3, 1)),
        Parameter("trees", Int(10, 2000)),
        Parameter("depth", Int(1, 14)),
        Parameter("penalty", Float(1e-3, 100)),
    )
)


def boost(p: Assignment) -> float:
    steps = _log(p, "eta") + _log(p, "trees")
    loss = 0.1 + 0.03 * (steps - 1.4) ** 2 + 0.01 * (_log(p, "eta") + 1.8) ** 2
    loss += 0.002 * (float(p["depth"]) - 5) ** 2
    return loss + 0.006 * (_log(p, "penalty") - 0.1 * (float(p["depth"]) - 5)) ** 2


WARMUP = Space(
    (
        Parameter("lr", Float(1e-6, 1e-2)),
        Parameter("warmup", Int(1, 10_000)),
        Parameter("decay", Float(1e-4, 1)),
        Parameter("smoothing", Float(0, 0.3)),
    )
)


def warmup(p: Assignment) -> float:
    loss = 2.1 + 0.3 * (_log(p, "lr") + 3.6) ** 2 + 0.04 * (_log(p, "warmup") - 2.7) ** 2
    return loss + 0.05 * (_log(p, "decay") + 1.3) ** 2 + (float(p["smoothing"]) - 0.1) ** 2


SIZES = Space((Parameter("n", Int(1, 10**6)), Parameter("m", Int(1, 1000))))


def sizes(p: Assignment) -> float:
    return 0.2 * abs(_log(p, "n") - 3.3) + (_share(p, "m", 1000) - 0.25) ** 2


WAVES = Space(tuple(Parameter(f"x{k}", Float(0.01, 10)) for k in range(3)))


def waves(p: Assignment) -> float:
    """Vincent's function over three decades."""
    return 1 - sum(math.sin(10 * math.log(float(v))) for v in p.values()) / 3


HALF = Space(
    (
        Parameter("lr", Float(1e-4, 1)),
        Parameter("decay", Float(1e-5, 0.1)),
        Parameter("temperature", Float(0.02, 5)),
        Parameter("length", Int(1, 500)),
    )
)


def half(p: Assignment) -> float:
    """Two logarithms and two numbers as they are."""
    loss = 0.5 + 0.1 * (_log(p, "lr") + 2.2) ** 2 + 0.03 * (_log(p, "decay") + 3.1) ** 2
    away = _share(p, "temperature", 5) - 0.7
    return loss + away**2 + (_share(p, "length", 500) - 0.6 + 0.4 * away) ** 2


LINEAR = Space(
    (
        Parameter("a", Int(1, 1000)),
        Parameter("b", Float(0.01, 10)),
        Parameter("c", Int(5, 2000)),
    )
)


def linear(p: Assignment) -> float:
    x = [_share(p, "a", 1000) - 0.62, _share(p, "b", 10) - 0.31, _share(p, "c", 2000) - 0.78]
    return sum(4**k * v * v for k, v in enumerate(rotated("linear", x)))


LINEARS = Space(tuple(Parameter(f"x{k}", Float(0.01, 4)) for k in range(5)))


def linears(p: Assignment) -> float:
    x = [float(v) / 4 - c for v, c in zip(p.values(), (0.2, 0.7, 0.55, 0.9, 0.35), strict=True)]
    return sum(3**k * v * v for k, v in enumerate(rotated("linears", x)))


LATE = Space((Parameter("temperature", Float(0.01, 2)), Parameter("top", Int(1, 500))))


def late(p: Assignment) -> float:
    hot, top = float(p["temperature"]) - 1.5, _share(p, "top", 500) - 0.8
    return hot**2 + 0.5 * hot * top + top**2 + 0.1 * (1 - math.cos(6 * hot))


@functools.cache
def _data(name: str) -> tuple[Any, Any, Any, Any]:
    from sklearn import datasets
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    train, test, labels, answers = train_test_split(x, y, test_size=0.4, random_state=1)
    scaler = StandardScaler().fit(train)
    return scaler.transform(train), scaler.transform(test), labels, answers


def error(model: Any, data: str) -> float:
    """Return 1 - the accuracy of a classifier, or 1 - R² of a regression, at most 10."""
    train, test, labels, answers = _data(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about iterations
        return min(10.0, 1 - float(model.fit(train, labels).score(test, answers)))


SUPPORT = Space(
    (
        Parameter("C", Float(1e-3, 1e3)),
        Parameter("gamma", Float(1e-5, 1)),
        Parameter("epsilon", Float(0.01, 100)),
    )
)


def support(p: Assignment) -> float:
    from sklearn.svm import SVR

    return error(SVR(**p, max_iter=20_000), "diabetes")


DESCENT = Space(
    (
        Parameter("alpha", Float(1e-6, 0.1)),
        Parameter("eta0", Float(1e-3, 10)),
        Parameter("penalty", Choice(("l1", "l2", "elasticnet"))),
        Parameter("l1_ratio", Float(0, 1), (Condition("penalty", ("elasticnet",)),)),
    )
)


def descent(p: Assignment) -> float:
    from sklearn.linear_model import SGDRegressor

    return error(
        SGDRegressor(**p, learning_rate="constant", max_iter=20, tol=None, random_state=0),
        "diabetes",
    )


NETWORK = Space(
    (
        Parameter("learning_rate_init", Float(1e-4, 0.5)),
        Parameter("alpha", Float(1e-5, 10)),
        Parameter("batch_size", Int(4, 400)),
        Parameter("width", Int(2, 200)),
    )
)


def network(p: Assignment) -> float:
    from sklearn.neural_network import MLPRegressor

    settings = {name: value for name, value in p.items() if name != "width"}
    sizes = (int(p["width"]),)
    return error(
        MLPRegressor(hidden_layer_sizes=sizes, **settings, max_iter=10, tol=0, random_state=0),
        "diabetes",
    )


DECADES: tuple[Problem, ...] = (
    Problem("units 3-D, noisy", UNITS, units, 0.01, lowest=0.2),
    Problem("batch 4-D, noisy", BATCH, batch, 0.003, lowest=0.03),
    Problem("boosting 4-D", BOOST, boost, lowest=0.1),
    Problem("warmup 4-D, noisy", WARMUP, warmup, 0.02, lowest=2.1),
    Problem("sizes 2-D", SIZES, sizes, lowest=0.0),
    Problem("waves 3-D", WAVES, waves, lowest=0.0),
    Problem("half 4-D", HALF, half, lowest=0.5),
    Problem("linear 3-D", LINEAR, linear, lowest=0.0),
    Problem("linear 3-D, noisy", LINEAR, linear, 0.02, lowest=0.0),
    Problem("linear 5-D", LINEARS, linears, lowest=0.0),
    Problem("late 2-D", LATE, late, lowest=0.0),
    # Below the lowest loss that any search has found.
    Problem("support vectors 3-D", SUPPORT, support, lowest=0.553),
    Problem("descent 4-D", DESCENT, descent, lowest=0.5816),
    Problem("network 4-D", NETWORK, network, lowest=0.545),
)

SCALES = halves(DECADES)


if __name__ == "__main__":
    list_halves(SCALES)
