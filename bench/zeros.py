"""Twelve problems with ranges that begin at 0, split by the rule of `forty.py` into a half to tune
on and a half that is only measured.

Eight depend on the logarithms of such numbers, as decays and penalties do, two of them trained with
scikit-learn. Four are really linear, with their optima near 0 in some numbers. Choose no problem by
how an algorithm does on it.
"""

from __future__ import annotations

import math

from forty import halves, list_halves
from problems import Problem, cube, rotated, vector
from scales import error

from suggest.space import Assignment, Float, Int, Parameter, Scale, Space


def _log(p: Assignment, name: str, least: float = 0.0) -> float:
    """Return the logarithm; below `least`, the number makes no difference."""
    return math.log10(float(p[name]) + least)


DECAY = Space(
    (
        Parameter("lr", Float(1e-5, 1)),
        Parameter("decay", Float(0, 0.1)),
        Parameter("dropout", Float(0, 0.8)),
    )
)


def decay(p: Assignment) -> float:
    loss = 0.1 + 0.05 * (_log(p, "lr") + 2.5) ** 2 + 0.03 * (_log(p, "decay", 1e-7) + 4) ** 2
    return loss + 0.2 * (float(p["dropout"]) - 0.3) ** 2


PENALTIES = Space(
    (
        Parameter("lr", Float(1e-5, 1, Scale.LOG)),
        Parameter("l1", Float(0, 1)),
        Parameter("l2", Float(0, 1)),
        Parameter("momentum", Float(0, 0.99)),
    )
)


def penalties(p: Assignment) -> float:
    loss = 0.2 + 0.05 * (_log(p, "lr") + 2) ** 2 + 0.1 * (float(p["momentum"]) - 0.9) ** 2
    return loss + 0.02 * ((_log(p, "l1", 1e-6) + 4) ** 2 + (_log(p, "l2", 1e-6) + 2.5) ** 2)


RATE = Space((Parameter("lr", Float(0, 1)), Parameter("units", Int(8, 512, Scale.LOG))))


def rate(p: Assignment) -> float:
    wide = math.log2(float(p["units"])) - 7
    loss = 0.05 + 0.2 * (_log(p, "lr", 1e-7) + 2.8 + 0.2 * wide) ** 2 + 0.01 * wide**2
    return min(2.3, loss)


BOOST = Space(
    (
        Parameter("gamma", Float(0, 10)),
        Parameter("penalty", Float(0, 100)),
        Parameter("eta", Float(0, 1)),
        Parameter("depth", Int(1, 12)),
    )
)


def boost(p: Assignment) -> float:
    loss = 0.1 + 0.02 * (_log(p, "gamma", 1e-3) + 1) ** 2 + 0.1 * (_log(p, "eta", 1e-5) + 1.5) ** 2
    loss += 0.01 * (_log(p, "penalty", 1e-2) - 0.2) ** 2
    return loss + 0.003 * (float(p["depth"]) - 6) ** 2


WARMUP = Space(
    (
        Parameter("warmup", Int(0, 5000)),
        Parameter("lr", Float(1e-6, 1e-2, Scale.LOG)),
        Parameter("decay", Float(0, 0.5)),
    )
)


def warmup(p: Assignment) -> float:
    loss = 2 + 0.05 * (_log(p, "warmup", 3) - 2) ** 2 + 0.1 * (_log(p, "lr") + 3.5) ** 2
    return loss + 0.03 * (_log(p, "decay", 1e-6) + 3) ** 2


ALONE = Space((Parameter("decay", Float(0, 0.1)),))


def alone(p: Assignment) -> float:
    return 0.05 * (_log(p, "decay", 1e-7) + 4.3) ** 2


def linear(p: Assignment) -> float:
    x = [v - c for v, c in zip(vector(p), (0.03, 0.5, 0.08, 0.7), strict=True)]
    return sum(2**k * v * v for k, v in enumerate(rotated("zero linear", x)))


DROPOUT = Space(
    (
        Parameter("dropout", Float(0, 0.6)),
        Parameter("smoothing", Float(0, 0.3)),
        Parameter("mixed", Float(0, 1)),
        Parameter("lr", Float(1e-4, 1, Scale.LOG)),
    )
)


def dropout(p: Assignment) -> float:
    loss = 0.1 + 0.5 * (float(p["dropout"]) - 0.05) ** 2 + (float(p["smoothing"]) - 0.02) ** 2
    return loss + 0.1 * (float(p["mixed"]) - 0.1) ** 2 + 0.03 * (_log(p, "lr") + 2) ** 2


SIZES = Space((Parameter("a", Int(0, 1000)), Parameter("b", Float(0, 20))))


def sizes(p: Assignment) -> float:
    b = float(p["b"]) / 20 - 0.3
    return 4 * (float(p["a"]) / 1000 - 0.06 + 0.3 * b) ** 2 + b * b


def at_0(p: Assignment) -> float:
    return sum(k * v for k, v in enumerate(vector(p), start=1))


DESCENT = Space(tuple(Parameter(name, Float(0, 1)) for name in ("alpha", "l1_ratio", "eta0")))


def descent(p: Assignment) -> float:
    from sklearn.linear_model import SGDClassifier

    settings = {name: float(value) + 1e-12 for name, value in p.items() if name != "l1_ratio"}
    model = SGDClassifier(
        **settings,
        l1_ratio=p["l1_ratio"],
        penalty="elasticnet",
        learning_rate="constant",
        loss="log_loss",
        max_iter=10,
        tol=None,
        random_state=0,
    )
    return error(model, "digits")


SUPPORT = Space(
    (
        Parameter("C", Float(0, 100)),
        Parameter("gamma", Float(0, 1)),
        Parameter("epsilon", Float(0, 100)),
    )
)


def support(p: Assignment) -> float:
    from sklearn.svm import SVR

    settings = {name: float(value) + 1e-12 for name, value in p.items()}
    return error(SVR(**settings, max_iter=20_000), "diabetes")


FROM_0: tuple[Problem, ...] = (
    Problem("decay from 0, 3-D", DECAY, decay, lowest=0.1),
    Problem("penalties from 0, 4-D, noisy", PENALTIES, penalties, 0.005, lowest=0.2),
    Problem("rate from 0, 2-D", RATE, rate, lowest=0.05),
    Problem("boosting from 0, 4-D", BOOST, boost, lowest=0.1),
    Problem("warmup from 0, 3-D", WARMUP, warmup, lowest=2.0),
    Problem("decay from 0, 1-D", ALONE, alone, lowest=0.0),
    Problem("linear from 0, 4-D", cube(4, 0, 1), linear, lowest=0.0),
    Problem("dropout from 0, 4-D, noisy", DROPOUT, dropout, 0.005, lowest=0.1),
    Problem("sizes from 0, 2-D", SIZES, sizes, lowest=0.0),
    Problem("best at 0, 3-D", cube(3, 0, 1), at_0, lowest=0.0),
    # Below the lowest loss that any search has found.
    Problem("descent from 0, 3-D", DESCENT, descent, lowest=0.02),
    Problem("support from 0, 3-D", SUPPORT, support, lowest=0.55),
)

ZEROS = halves(FROM_0)


if __name__ == "__main__":
    list_halves(ZEROS)
