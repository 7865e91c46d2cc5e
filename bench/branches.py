"""Fourteen problems with a choice between families that have their own numbers, as pipelines and
optimizers have, split by the rule of `forty.py` into a half to tune on and a half that is only
measured.

The best family often looks bad until its numbers are tuned. Three are trained with scikit-learn.
Choose no problem by how an algorithm does on it.
"""

from __future__ import annotations

import functools
import math

from forty import halves, list_halves
from problems import Problem, rosenbrock, rotated, sphere
from scales import error

from suggest.proposal import generator
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Scale, Space, Value


def _when(name: str, *values: Value) -> tuple[Condition, ...]:
    return (Condition(name, values),)


def _log(p: Assignment, name: str) -> float:
    return math.log10(float(p[name]))


def _numbers(p: Assignment) -> list[float]:
    return [float(v) for v in p.values() if not isinstance(v, str)]


OPTIMIZERS = Space(
    (
        Parameter("optimizer", Choice(("sgd", "adam", "lamb"))),
        Parameter("sgd_lr", Float(1e-5, 10, Scale.LOG), _when("optimizer", "sgd")),
        Parameter("momentum", Float(0, 0.99), _when("optimizer", "sgd")),
        Parameter("adam_lr", Float(1e-6, 1, Scale.LOG), _when("optimizer", "adam")),
        Parameter("beta", Float(0.5, 0.999), _when("optimizer", "adam")),
        Parameter("lamb_lr", Float(1e-5, 1, Scale.LOG), _when("optimizer", "lamb")),
        Parameter("decay", Float(1e-6, 1e-1, Scale.LOG)),
    )
)


def optimizers(p: Assignment) -> float:
    """Momentum and rate of SGD depend on each other; it is the best when both are right."""
    loss = 0.02 * (_log(p, "decay") + 3.5) ** 2
    if p["optimizer"] == "sgd":
        effective = _log(p, "sgd_lr") - math.log10(1 - float(p["momentum"])) + 0.5
        return 0.1 + loss + min(1.5, 0.4 * effective**2 + 0.1 * (float(p["momentum"]) - 0.9) ** 2)
    if p["optimizer"] == "adam":
        return 0.13 + loss + 0.06 * (_log(p, "adam_lr") + 3) ** 2 + (float(p["beta"]) - 0.9) ** 2
    return 0.2 + loss + 0.03 * (_log(p, "lamb_lr") + 2) ** 2


def _bowls(
    name: str,
    sizes: tuple[int, ...],
    step: float,
    steep: tuple[float, float],
    noise: float = 0.0,
) -> Problem:
    """Families of bowls with so many numbers each: each next best one is `step` worse, and less
    steep.
    """
    names = {chr(97 + k): size for k, size in enumerate(sizes)}
    own = (
        Parameter(f"{family}{i}", Float(0, 1), _when("family", family))
        for family, size in names.items()
        for i in range(size)
    )
    space = Space((Parameter("family", Choice(tuple(names))), *own))
    rng = generator(0, len(sizes), f"bowls {name}")
    order = list(names)
    rng.shuffle(order)
    low, high = steep
    centers = {f: [rng.uniform(0.1, 0.9) for _ in range(n)] for f, n in names.items()}

    def loss(p: Assignment) -> float:
        family = str(p["family"])
        rank = order.index(family)
        away = [v - c for v, c in zip(_numbers(p), centers[family], strict=True)]
        share = 1 - rank / max(1, len(order) - 1)
        return rank * step + low * (high / low) ** share * sphere(rotated(f"{name}{family}", away))

    return Problem(name, space, loss, noise, lowest=0.0)


VALLEY = Space(
    (
        Parameter("model", Choice(("line", "valley"))),
        Parameter("slope", Float(0, 1), _when("model", "line")),
        *(Parameter(f"x{k}", Float(-2, 2), _when("model", "valley")) for k in range(4)),
    )
)


def valley(p: Assignment) -> float:
    if p["model"] == "line":
        return 3.0 + (float(p["slope"]) - 0.3) ** 2
    return rosenbrock(_numbers(p))


LAYERS = Space(
    (
        Parameter("layers", Choice((1, 2, 3, 4))),
        *(
            Parameter(f"units{k}", Int(8, 512, Scale.LOG), _when("layers", *range(k, 5)))
            for k in range(1, 5)
        ),
        Parameter("lr", Float(1e-5, 1, Scale.LOG)),
    )
)


def layers(p: Assignment) -> float:
    """Deeper is better, if each layer has its width and the rate is low enough for the depth."""
    depth = int(p["layers"])
    loss = 0.3 - 0.06 * depth + 0.08 * (_log(p, "lr") + 1.5 + 0.5 * depth) ** 2
    for k in range(1, depth + 1):
        loss += 0.015 * (math.log2(float(p[f"units{k}"])) - 8 + 0.7 * k) ** 2
    return loss


SHARED = Space(
    (
        Parameter("model", Choice(("net", "trees", "kernel"))),
        Parameter("rate", Float(1e-4, 1, Scale.LOG)),
        Parameter("depth", Int(1, 16), _when("model", "net", "trees")),
        Parameter("width", Float(1e-4, 1e2, Scale.LOG), _when("model", "kernel")),
    )
)


def shared(p: Assignment) -> float:
    """The best rate of each model is another one, and the kernel's width must be exact."""
    best, base = {"net": (-3, 0.06), "trees": (-1, 0.04), "kernel": (-2, 0.0)}[str(p["model"])]
    loss = base + 0.03 * (_log(p, "rate") - best) ** 2
    if p["model"] == "kernel":
        return loss + min(0.4, 0.5 * (_log(p, "width") + 1.7) ** 2)
    return loss + 0.001 * (int(p["depth"]) - 6) ** 2


NESTED = Space(
    (
        Parameter("kind", Choice(("linear", "ensemble"))),
        Parameter("penalty", Choice(("l1", "l2")), _when("kind", "linear")),
        Parameter("l1", Float(1e-5, 1, Scale.LOG), _when("penalty", "l1")),
        Parameter("l2", Float(1e-5, 1, Scale.LOG), _when("penalty", "l2")),
        Parameter("booster", Choice(("gbtree", "dart", "forest")), _when("kind", "ensemble")),
        Parameter("eta", Float(1e-3, 1, Scale.LOG), _when("booster", "gbtree", "dart")),
        Parameter("trees", Int(10, 1000, Scale.LOG), _when("kind", "ensemble")),
        Parameter("dropped", Float(0, 0.9), _when("booster", "dart")),
        Parameter("features", Float(0.05, 1), _when("booster", "forest")),
    )
)


def nested(p: Assignment) -> float:
    if p["kind"] == "linear":
        if p["penalty"] == "l1":
            return 0.2 + 0.01 * (_log(p, "l1") + 3) ** 2
        return 0.18 + 0.01 * (_log(p, "l2") + 2) ** 2
    trees = _log(p, "trees")
    if p["booster"] == "forest":
        return 0.15 + 0.05 * (float(p["features"]) - 0.3) ** 2 + 0.02 * (3 - trees)
    loss = 0.1 + 0.2 * (_log(p, "eta") + trees - 1.1) ** 2 + 0.01 * (trees - 2.6) ** 2
    return loss + (0.8 * (float(p["dropped"]) - 0.12) ** 2 - 0.01 if p["booster"] == "dart" else 0)


BASELINE = Space(
    (
        Parameter("model", Choice(("constant", "rule", "network"))),
        Parameter("cut", Float(0, 100), _when("model", "rule")),
        Parameter("lr", Float(1e-6, 10, Scale.LOG), _when("model", "network")),
        Parameter("decay", Float(1e-6, 1, Scale.LOG), _when("model", "network")),
        Parameter("units", Int(1, 256, Scale.LOG), _when("model", "network")),
    )
)


def baseline(p: Assignment) -> float:
    """Two simple models, and a network that diverges with most rates."""
    if p["model"] == "constant":
        return 0.5
    if p["model"] == "rule":
        return 0.35 + 1e-4 * (float(p["cut"]) - 42) ** 2
    rate = _log(p, "lr") + 2.5
    if rate > 0.6:
        return 2.3
    loss = 0.2 + 0.05 * (math.log2(float(p["units"])) - 6) ** 2 + 0.02 * (_log(p, "decay") + 4) ** 2
    return min(2.3, loss + 0.3 * rate**2)


MANY = Space(
    (
        Parameter("scaler", Choice(("none", "standard", "robust", "quantile"))),
        Parameter("reducer", Choice(("none", "pca", "select"))),
        Parameter("share", Float(0.05, 1), _when("reducer", "pca", "select")),
        Parameter("model", Choice(("svm", "forest", "neighbors", "ridge"))),
        Parameter("C", Float(1e-3, 1e3, Scale.LOG), _when("model", "svm")),
        Parameter("gamma", Float(1e-4, 10, Scale.LOG), _when("model", "svm")),
        Parameter("leaf", Int(1, 50, Scale.LOG), _when("model", "forest")),
        Parameter("k", Int(1, 50, Scale.LOG), _when("model", "neighbors")),
        Parameter("alpha", Float(1e-3, 1e3, Scale.LOG), _when("model", "ridge")),
    )
)


def _steps(p: Assignment) -> list[object]:
    from sklearn.decomposition import PCA
    from sklearn.feature_selection import SelectPercentile
    from sklearn.preprocessing import QuantileTransformer, RobustScaler, StandardScaler

    scalers = {
        "standard": StandardScaler(),
        "robust": RobustScaler(),
        "quantile": QuantileTransformer(n_quantiles=50),
    }
    steps: list[object] = [scalers[str(p["scaler"])]] if p["scaler"] != "none" else []
    if p["reducer"] == "pca":
        steps.append(PCA(min(0.99, float(p["share"])), random_state=0))
    elif p["reducer"] == "select":
        steps.append(SelectPercentile(percentile=100 * float(p["share"])))
    return steps


def _classifier(p: Assignment) -> object:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import RidgeClassifier
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    match p["model"]:
        case "svm":
            return SVC(C=p["C"], gamma=p["gamma"], max_iter=20_000)
        case "forest":
            return RandomForestClassifier(20, min_samples_leaf=p["leaf"], random_state=0)
        case "neighbors":
            return KNeighborsClassifier(p["k"])
    return RidgeClassifier(p["alpha"])


def pipeline(data: str, p: Assignment) -> float:
    from sklearn.pipeline import make_pipeline

    return error(make_pipeline(*_steps(p), _classifier(p)), data)


REGRESSION = Space(
    (
        Parameter("model", Choice(("elastic", "kernel", "boosted", "neighbors"))),
        Parameter("alpha", Float(1e-4, 1e3, Scale.LOG), _when("model", "elastic", "kernel")),
        Parameter("ratio", Float(0, 1), _when("model", "elastic")),
        Parameter("gamma", Float(1e-5, 1, Scale.LOG), _when("model", "kernel")),
        Parameter("rate", Float(1e-3, 1, Scale.LOG), _when("model", "boosted")),
        Parameter("depth", Int(1, 6), _when("model", "boosted")),
        Parameter("k", Int(1, 100, Scale.LOG), _when("model", "neighbors")),
    )
)


def regression(p: Assignment) -> float:
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import ElasticNet
    from sklearn.neighbors import KNeighborsRegressor

    match p["model"]:
        case "elastic":
            model = ElasticNet(alpha=p["alpha"], l1_ratio=p["ratio"])
        case "kernel":
            model = KernelRidge(alpha=p["alpha"], gamma=p["gamma"], kernel="rbf")
        case "boosted":
            model = GradientBoostingRegressor(
                n_estimators=30, learning_rate=p["rate"], max_depth=p["depth"], random_state=0
            )
        case _:
            model = KNeighborsRegressor(p["k"])
    return error(model, "diabetes")


FAMILIES: tuple[Problem, ...] = (
    Problem("branches of optimizers", OPTIMIZERS, optimizers, lowest=0.1),
    Problem("branches of a valley", VALLEY, valley, lowest=0.0),
    Problem("branches of layers", LAYERS, layers, lowest=0.06),
    Problem("branches with a shared rate, noisy", SHARED, shared, 0.005, lowest=0.0),
    Problem("branches in branches", NESTED, nested, lowest=0.09),
    Problem("branches with a baseline", BASELINE, baseline, lowest=0.2),
    _bowls("5 branches of 2 numbers", (2,) * 5, 0.05, (0.2, 12)),
    _bowls("8 branches of 1 number, noisy", (1,) * 8, 0.02, (0.1, 2), 0.005),
    _bowls("branches of 1, 3 and 5 numbers", (1, 3, 5), 0.1, (0.5, 12)),
    _bowls("12 branches of 2 numbers", (2,) * 12, 0.02, (0.2, 4)),
    _bowls("4 branches of 3 numbers, noisy", (3,) * 4, 0.01, (1, 1), 0.002),
    # Below the lowest loss that any search has found.
    Problem("pipeline on digits", MANY, functools.partial(pipeline, "digits"), lowest=0.0),
    Problem(
        "branches on breast_cancer", MANY, functools.partial(pipeline, "breast_cancer"), lowest=0.0
    ),
    Problem("regressions on diabetes", REGRESSION, regression, lowest=0.45),
)

BRANCHES = halves(FAMILIES)


if __name__ == "__main__":
    list_halves(BRANCHES)
