"""Sixteen problems on which no algorithm was tuned, for the quality figures in docs/benchmarks.md.

There are shifted and rotated functions, conditional spaces, whole numbers, infeasible regions, and scikit-learn models
trained on the data sets that it contains. Five problems are noisy. `loss` is the true loss of a point: if training is
random, its mean over fixed seeds, while a trial reports the loss with another seed.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from problems import Problem, cube, hartmann, rotated, shifted, sphere, vector
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, Ridge, SGDClassifier
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeRegressor

from suggest.proposal import generator
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Scale, Space

warnings.simplefilter("ignore", ConvergenceWarning)


@dataclass(frozen=True, slots=True)
class Trained(Problem):
    """A problem with random training. `at` returns the loss of a point with a training seed."""

    at: Callable[[Assignment, int], float] = lambda point, seed: math.nan

    def told(self, point: Assignment, *, seed: int, number: int) -> float:
        return self.at(point, 1000 + generator(seed, number, "training").randrange(10**6))


# Functions


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
    """A function that resembles a network's loss: of layers, each with its width, and of an optimizer's settings."""
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
    """Hartmann's function with two constraints: on the sum of all parameters, and on two of them together."""
    x = vector(p)
    if sum(x) > 3.2 or x[0] + x[4] < 0.35:
        return math.nan
    return hartmann(x)


# Models


@functools.cache
def _data(name: str) -> tuple[Any, Any]:
    loaded = {"cancer": load_breast_cancer, "diabetes": load_diabetes, "digits": load_digits, "wine": load_wine}[name]
    x, y = loaded(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))[:500]
    return StandardScaler().fit_transform(x[order]), y[order]


def _validated(model: Any, data: str, seed: int, scoring: str, folds: int = 3) -> float:
    """Return minus the mean score of a cross-validation, which is split by the seed."""
    x, y = _data(data)
    return -float(
        cross_val_score(model, x, y, cv=KFold(folds, shuffle=True, random_state=seed), scoring=scoring).mean()
    )


def _mean(at: Callable[[Assignment, int], float], point: Assignment) -> float:
    return sum(at(point, seed) for seed in range(3)) / 3


def cancer(p: Assignment) -> float:
    model = SVC(C=float(p["C"]), gamma=float(p["gamma"]), class_weight={1: float(p["weight"])}, max_iter=5000)
    return 1 + _validated(model, "cancer", 0, "balanced_accuracy", folds=5)


CANCER = Space(
    (
        Parameter("C", Float(1e-3, 1e4, Scale.LOG)),
        Parameter("gamma", Float(1e-6, 10, Scale.LOG)),
        Parameter("weight", Float(0.1, 10, Scale.LOG)),
    )
)


def kernels(p: Assignment) -> float:
    settings = {name: p[name] for name in ("gamma", "degree", "coef0") if name in p}
    model = SVC(C=float(p["C"]), kernel=p["kernel"], max_iter=2000, **settings)
    return 1 + _validated(model, "digits", 0, "accuracy")


KERNELS = Space(
    (
        Parameter("kernel", Choice(("linear", "rbf", "poly", "sigmoid"))),
        Parameter("C", Float(1e-3, 1e3, Scale.LOG)),
        Parameter("gamma", Float(1e-5, 1, Scale.LOG), _when("kernel", "rbf", "poly", "sigmoid")),
        Parameter("degree", Int(2, 5), _when("kernel", "poly")),
        Parameter("coef0", Float(-1, 1), _when("kernel", "poly", "sigmoid")),
    )
)


def families(p: Assignment, seed: int) -> float:
    match p["model"]:
        case "ridge":
            model: Any = Ridge(alpha=float(p["alpha"]))
        case "lasso":
            model = Lasso(alpha=float(p["penalty"]))
        case "neighbors":
            model = KNeighborsRegressor(n_neighbors=p["k"], weights=p["weights"])
        case "tree":
            model = DecisionTreeRegressor(max_depth=p["depth"], min_samples_leaf=p["leaf"], random_state=seed)
        case _:
            model = SVR(C=float(p["C"]), gamma=float(p["gamma"]), epsilon=float(p["epsilon"]), max_iter=5000)
    return _validated(model, "diabetes", seed, "neg_root_mean_squared_error") / 50


FAMILIES = Space(
    (
        Parameter("model", Choice(("ridge", "lasso", "neighbors", "tree", "svr"))),
        Parameter("alpha", Float(1e-3, 1e4, Scale.LOG), _when("model", "ridge")),
        Parameter("penalty", Float(1e-3, 1e2, Scale.LOG), _when("model", "lasso")),
        Parameter("k", Int(1, 60), _when("model", "neighbors")),
        Parameter("weights", Choice(("uniform", "distance")), _when("model", "neighbors")),
        Parameter("depth", Int(1, 12), _when("model", "tree")),
        Parameter("leaf", Int(1, 60), _when("model", "tree")),
        Parameter("C", Float(1e-1, 1e4, Scale.LOG), _when("model", "svr")),
        Parameter("gamma", Float(1e-5, 1, Scale.LOG), _when("model", "svr")),
        Parameter("epsilon", Float(0.1, 50, Scale.LOG), _when("model", "svr")),
    )
)


def boosted(p: Assignment, seed: int) -> float:
    model = GradientBoostingRegressor(
        n_estimators=p["trees"],
        learning_rate=p["rate"],
        max_depth=p["depth"],
        subsample=p["share"],
        min_samples_leaf=p["leaf"],
        max_features=p["features"],
        random_state=seed,
    )
    return _validated(model, "diabetes", seed, "neg_root_mean_squared_error") / 50


BOOSTED = Space(
    (
        Parameter("trees", Int(5, 80)),
        Parameter("rate", Float(1e-3, 1, Scale.LOG)),
        Parameter("depth", Int(1, 5)),
        Parameter("share", Float(0.2, 1)),
        Parameter("leaf", Int(1, 50)),
        Parameter("features", Float(0.1, 1)),
    )
)


def descent(p: Assignment, seed: int) -> float:
    settings = {name: p[name] for name in ("l1_ratio", "eta0") if name in p}
    model = SGDClassifier(
        loss=p["loss"],
        alpha=p["alpha"],
        penalty=p["penalty"],
        learning_rate=p["schedule"],
        max_iter=8,
        tol=None,
        random_state=seed,
        **settings,
    )
    return 1 + _validated(model, "digits", seed, "accuracy")


DESCENT = Space(
    (
        Parameter("loss", Choice(("hinge", "log_loss", "modified_huber", "perceptron"))),
        Parameter("alpha", Float(1e-7, 1, Scale.LOG)),
        Parameter("penalty", Choice(("l2", "l1", "elasticnet"))),
        Parameter("l1_ratio", Float(0, 1), _when("penalty", "elasticnet")),
        Parameter("schedule", Choice(("optimal", "constant", "invscaling"))),
        Parameter("eta0", Float(1e-4, 10, Scale.LOG), _when("schedule", "constant", "invscaling")),
    )
)


def wine(p: Assignment) -> float:
    """The logarithm of the loss of a nearest-neighbor classifier with weighted features."""
    x, y = _data("wine")
    weighted = x * np.array([float(p[f"w{k}"]) for k in range(x.shape[1])])
    model = make_pipeline(KNeighborsClassifier(n_neighbors=p["k"], weights="distance"))
    folds = KFold(5, shuffle=True, random_state=0)
    return -float(cross_val_score(model, weighted, y, cv=folds, scoring="neg_brier_score").mean())


WINE = Space((*(Parameter(f"w{k}", Float(0, 1)) for k in range(13)), Parameter("k", Int(1, 40))))


HELD_OUT: tuple[Problem, ...] = (
    Problem("Levy 8-D", cube(8, -10, 10), lambda p: levy(rotated("levy", shifted("levy", vector(p), 6))), lowest=0.0),
    Problem("Styblinski-Tang 6-D", cube(6, -5, 5), lambda p: styblinski(vector(p)), lowest=0.0),
    Problem(
        "Griewank 6-D",
        cube(6, -20, 20),
        lambda p: griewank(rotated("g", shifted("griewank", vector(p), 12))),
        lowest=0.0,
    ),
    Problem("Schwefel 4-D, noisy", cube(4, -500, 500), lambda p: schwefel(vector(p)) / 100, 0.3, lowest=0.0),
    Problem("Michalewicz 5-D", cube(5, 0, math.pi), lambda p: michalewicz(vector(p)), lowest=-4.687658),
    Problem(
        "ellipsoid 12-D",
        cube(12, -5, 5),
        lambda p: ellipsoid(rotated("e", shifted("ellipsoid", vector(p), 3))),
        lowest=0.0,
    ),
    Problem("valley 25-D", cube(25, -2, 2), lambda p: valley(vector(p)), lowest=0.0),
    Problem("whole 6-D, noisy", WHOLE, whole, 0.1, lowest=whole({"a": 7, "b": 90, "c": 181, "d": 2, "e": 6, "f": 14})),
    Problem("network 7-D, noisy", NETWORK, network, 0.03, lowest=0.200005),
    Problem("Hartmann 6-D, partly infeasible", cube(6, 0, 1), barred, lowest=-3.322369),
    Problem("breast cancer: SVM", CANCER, cancer),
    Problem("digits: kernels", KERNELS, kernels),
    Trained("diabetes: families, noisy", FAMILIES, lambda p: _mean(families, p), at=families),
    Trained("diabetes: boosting, noisy", BOOSTED, lambda p: _mean(boosted, p), at=boosted),
    Trained("digits: descent, noisy", DESCENT, lambda p: _mean(descent, p), at=descent),
    Problem("wine: neighbors 14-D", WINE, wine),
)
