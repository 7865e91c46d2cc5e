"""Ten scikit-learn models on the data that comes with it,
and the table of their cross-validated losses.

`python bench/models.py` trains each model at every combination of choices and grid values with
three seeds, which split the data and initialize the model. It takes ten minutes on one CPU and
continues where it was stopped. The benchmark itself only reads the table.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Scale, Space, Value

TABLES = Path(__file__).parent / "data/models.npz"
SEEDS, FOLDS = 3, 3


@dataclass(frozen=True, slots=True)
class Model:
    """losses: returns those of one training, for each value on the axis `path`
    if there is one, else one loss.

    `grid` is how many values of each number are tabulated, evenly spaced on its scale.
    """

    space: Space
    grid: Mapping[str, int]
    losses: Callable[[Assignment, int], float | Sequence[float]]
    is_random: bool = True
    path: str = ""

    def axes(self) -> dict[str, tuple[float, ...]]:
        return {
            p.name: _values(p, self.grid[p.name])
            for p in self.space.parameters
            if p.name in self.grid
        }

    def branches(self) -> Iterator[dict[str, Value]]:
        """Yield each combination of the active choices."""
        yield from self._completed(
            {}, [p for p in self.space.ordered if isinstance(p.domain, Choice)]
        )

    def _completed(
        self, point: dict[str, Value], rest: Sequence[Parameter]
    ) -> Iterator[dict[str, Value]]:
        if not rest:
            yield point
        elif not rest[0].active(point):
            yield from self._completed(point, rest[1:])
        else:
            assert isinstance(rest[0].domain, Choice)
            for value in rest[0].domain.values:
                yield from self._completed({**point, rest[0].name: value}, rest[1:])

    def tabulate(self, branch: Mapping[str, Value]) -> np.ndarray:
        """Return (seeds, *axes of the active numbers) losses;
        the axis `path` must be the last one.
        """
        axes = self.axes()
        numbers = [p for p in self.space.ordered if p.name in axes and p.active(branch)]
        varied = [p for p in numbers if p.name != self.path]
        losses = [
            self.losses({**branch, **typed(varied, values)}, seed)
            for seed in range(SEEDS)
            for values in itertools.product(*(axes[p.name] for p in varied))
        ]
        return np.array(losses, dtype=np.float32).reshape(
            SEEDS, *(len(axes[p.name]) for p in numbers)
        )


def typed(parameters: Sequence[Parameter], values: Sequence[float]) -> dict[str, Value]:
    return {
        p.name: int(v) if isinstance(p.domain, Int) else v
        for p, v in zip(parameters, values, strict=True)
    }


def _values(parameter: Parameter, count: int) -> tuple[float, ...]:
    domain = parameter.domain
    assert isinstance(domain, Float | Int)
    spaced = np.geomspace if domain.scale is Scale.LOG else np.linspace
    values = spaced(domain.min, domain.max, count).tolist()
    values[0], values[-1] = domain.min, domain.max  # not off by rounding
    return tuple(sorted({round(v) for v in values})) if isinstance(domain, Int) else tuple(values)


def _when(name: str, *values: str) -> tuple[Condition, ...]:
    return (Condition(name, values),)


@functools.cache
def _data(name: str, size: int) -> tuple[Any, Any]:
    from sklearn import datasets
    from sklearn.preprocessing import StandardScaler

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))[:size]
    return StandardScaler().fit_transform(x[order]), y[order]


def _validated(model: Any, data: str, seed: int, scoring: str, size: int = 500) -> float:
    """Return 1 - the mean score of a cross-validation, which is split by the seed."""
    from sklearn.model_selection import KFold, cross_val_score

    x, y = _data(data, size)
    folds = KFold(FOLDS, shuffle=True, random_state=seed)
    return 1 - float(cross_val_score(model, x, y, cv=folds, scoring=scoring).mean())


def _support_vectors(p: Assignment, seed: int) -> float:
    from sklearn.svm import SVC

    return _validated(
        SVC(C=p["C"], gamma=p["gamma"], max_iter=2000), "digits", seed, "accuracy", size=250
    )


def _weighted(p: Assignment, seed: int) -> float:
    from sklearn.svm import SVC

    model = SVC(C=p["C"], gamma=p["gamma"], class_weight={1: p["weight"]}, max_iter=5000)
    return _validated(model, "breast_cancer", seed, "balanced_accuracy")


def _kernels(p: Assignment, seed: int) -> float:
    from sklearn.svm import SVC

    return _validated(SVC(**p, max_iter=2000), "digits", seed, "accuracy", size=250)


def _boosting(p: Assignment, seed: int) -> Sequence[float]:
    """Return 1 - the share of variance explained, after each number of trees on the axis."""
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.metrics import r2_score
    from sklearn.model_selection import KFold

    x, y = _data("diabetes", 300)
    model = GradientBoostingRegressor(
        n_estimators=TREES[-1],
        learning_rate=p["rate"],
        max_depth=p["depth"],
        subsample=p["share"],
        max_features=p["features"],
        random_state=seed,
    )
    found = []
    for train, test in KFold(FOLDS, shuffle=True, random_state=seed).split(x):
        stages = list(model.fit(x[train], y[train]).staged_predict(x[test]))
        found.append([1 - r2_score(y[test], stages[trees - 1]) for trees in TREES])
    return np.mean(found, axis=0).tolist()


def _forest(p: Assignment, seed: int) -> float:
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(
        10,
        criterion=p["criterion"],
        max_depth=p["depth"],
        min_samples_leaf=p["leaf"],
        max_features=p["features"],
        bootstrap=p["bootstrap"] == "yes",
        random_state=seed,
    )
    return _validated(model, "digits", seed, "accuracy", size=250)


def _descent(p: Assignment, seed: int) -> float:
    from sklearn.linear_model import SGDClassifier

    model = SGDClassifier(
        loss=p["loss"],
        penalty=p["penalty"],
        alpha=p["alpha"],
        learning_rate=p["schedule"],
        eta0=p.get("eta0", 1.0),
        max_iter=8,
        tol=None,
        random_state=seed,
    )
    return _validated(model, "digits", seed, "accuracy", size=300)


def _neighbors(p: Assignment, seed: int) -> float:
    from sklearn.decomposition import PCA
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline

    nearest = KNeighborsClassifier(
        p["k"], weights=p["weights"], metric=p["metric"], algorithm="brute"
    )
    return _validated(
        make_pipeline(PCA(p["components"], random_state=0), nearest),
        "digits",
        seed,
        "accuracy",
        size=300,
    )


def _families(p: Assignment, seed: int) -> float:
    from sklearn.linear_model import Lasso, Ridge
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.svm import SVR
    from sklearn.tree import DecisionTreeRegressor

    match p["model"]:
        case "ridge":
            model: Any = Ridge(alpha=p["alpha"])
        case "lasso":
            model = Lasso(alpha=p["penalty"])
        case "neighbors":
            model = KNeighborsRegressor(p["k"], weights=p["weights"])
        case "tree":
            model = DecisionTreeRegressor(
                max_depth=p["depth"], min_samples_leaf=p["leaf"], random_state=seed
            )
        case _:
            model = SVR(C=p["C"], gamma=p["gamma"], epsilon=p["epsilon"], max_iter=5000)
    return _validated(model, "diabetes", seed, "r2")


def _elastic(p: Assignment, seed: int) -> float:
    from sklearn.linear_model import ElasticNet
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures

    linear = ElasticNet(alpha=p["alpha"], l1_ratio=p["l1_ratio"], max_iter=300)
    return _validated(
        make_pipeline(PolynomialFeatures(p["degree"]), linear), "diabetes", seed, "r2"
    )


def _pipeline(p: Assignment, seed: int) -> float:
    from sklearn.decomposition import PCA
    from sklearn.feature_selection import SelectKBest
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, QuantileTransformer
    from sklearn.svm import SVC

    scaler = {
        "uniform": QuantileTransformer(n_quantiles=100, random_state=0),
        "range": MinMaxScaler(),
    }[p["scaler"]]
    match p["reducer"]:
        case "pca":
            reducer: Any = PCA(p["components"], random_state=0)
        case "best":
            reducer = SelectKBest(k=p["features"])
        case _:
            reducer = "passthrough"
    match p["classifier"]:
        case "logistic":
            classifier: Any = LogisticRegression(C=p["strength"], max_iter=200)
        case "svm":
            classifier = SVC(C=p["C"], gamma=p["gamma"], max_iter=5000)
        case _:
            classifier = KNeighborsClassifier(p["k"], algorithm="brute")
    return _validated(
        make_pipeline(scaler, reducer, classifier),
        "breast_cancer",
        seed,
        "balanced_accuracy",
        size=200,
    )


C_AND_GAMMA = (
    Parameter("C", Float(1e-2, 1e3, Scale.LOG)),
    Parameter("gamma", Float(1e-5, 1, Scale.LOG)),
)
TREES = (4, 6, 9, 13, 19, 28, 40)
MODELS: dict[str, Model] = {
    "support vectors on digits": Model(
        Space(C_AND_GAMMA), {"C": 12, "gamma": 12}, _support_vectors, is_random=False
    ),
    "weighted support vectors on cancer": Model(
        Space((*C_AND_GAMMA, Parameter("weight", Float(0.05, 20, Scale.LOG)))),
        {"C": 7, "gamma": 8, "weight": 6},
        _weighted,
        is_random=False,
    ),
    "kernels on digits": Model(
        Space(
            (
                Parameter("kernel", Choice(("linear", "rbf", "poly", "sigmoid"))),
                Parameter("C", Float(1e-3, 1e3, Scale.LOG)),
                Parameter(
                    "gamma", Float(1e-5, 1, Scale.LOG), _when("kernel", "rbf", "poly", "sigmoid")
                ),
                Parameter("degree", Int(2, 4), _when("kernel", "poly")),
                Parameter("coef0", Float(-1, 1), _when("kernel", "poly", "sigmoid")),
            )
        ),
        {"C": 7, "gamma": 8, "degree": 3, "coef0": 4},
        _kernels,
    ),
    "boosting on diabetes": Model(
        Space(
            (
                Parameter("rate", Float(3e-3, 1, Scale.LOG)),
                Parameter("depth", Int(1, 4)),
                Parameter("share", Float(0.2, 1)),
                Parameter("features", Float(0.1, 1)),
                Parameter("trees", Int(TREES[0], TREES[-1], Scale.LOG)),
            )
        ),
        {"rate": 8, "depth": 4, "share": 3, "features": 3, "trees": len(TREES)},
        _boosting,
        path="trees",
    ),
    "forest on digits": Model(
        Space(
            (
                Parameter("criterion", Choice(("gini", "entropy"))),
                Parameter("bootstrap", Choice(("yes", "no"))),
                Parameter("depth", Int(2, 16)),
                Parameter("leaf", Int(1, 20, Scale.LOG)),
                Parameter("features", Float(0.02, 1, Scale.LOG)),
            )
        ),
        {"depth": 4, "leaf": 5, "features": 5},
        _forest,
    ),
    "gradient descent on digits": Model(
        Space(
            (
                Parameter("loss", Choice(("hinge", "log_loss", "modified_huber"))),
                Parameter("penalty", Choice(("l2", "l1"))),
                Parameter("schedule", Choice(("optimal", "constant", "invscaling"))),
                Parameter("alpha", Float(1e-6, 1, Scale.LOG)),
                Parameter(
                    "eta0", Float(1e-4, 10, Scale.LOG), _when("schedule", "constant", "invscaling")
                ),
            )
        ),
        {"alpha": 6, "eta0": 6},
        _descent,
    ),
    "neighbors on digits": Model(
        Space(
            (
                Parameter("weights", Choice(("uniform", "distance"))),
                Parameter("metric", Choice(("manhattan", "euclidean", "cosine"))),
                Parameter("components", Int(1, 60)),
                Parameter("k", Int(1, 60, Scale.LOG)),
            )
        ),
        {"components": 11, "k": 7},
        _neighbors,
        is_random=False,
    ),
    "families on diabetes": Model(
        Space(
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
        ),
        {
            "alpha": 15,
            "penalty": 12,
            "k": 12,
            "depth": 7,
            "leaf": 8,
            "C": 7,
            "gamma": 7,
            "epsilon": 4,
        },
        _families,
    ),
    "elastic net on diabetes": Model(
        Space(
            (
                Parameter("degree", Int(1, 2)),
                Parameter("alpha", Float(1e-3, 1e3, Scale.LOG)),
                Parameter("l1_ratio", Float(0, 1)),
            )
        ),
        {"degree": 2, "alpha": 13, "l1_ratio": 6},
        _elastic,
        is_random=False,
    ),
    "pipeline on cancer": Model(
        Space(
            (
                Parameter("scaler", Choice(("uniform", "range"))),
                Parameter("reducer", Choice(("none", "pca", "best"))),
                Parameter("components", Int(1, 25), _when("reducer", "pca")),
                Parameter("features", Int(1, 25), _when("reducer", "best")),
                Parameter("classifier", Choice(("logistic", "svm", "neighbors"))),
                Parameter("strength", Float(1e-4, 1e3, Scale.LOG), _when("classifier", "logistic")),
                Parameter("C", Float(1e-2, 1e3, Scale.LOG), _when("classifier", "svm")),
                Parameter("gamma", Float(1e-4, 1e2, Scale.LOG), _when("classifier", "svm")),
                Parameter("k", Int(1, 60, Scale.LOG), _when("classifier", "neighbors")),
            )
        ),
        {"components": 4, "features": 4, "strength": 6, "C": 5, "gamma": 5, "k": 6},
        _pipeline,
    ),
}


def main() -> None:
    os.nice(10)
    # about training that does not converge, which is a property of the point
    warnings.simplefilter("ignore")
    losses = dict(np.load(TABLES)) if TABLES.exists() else {}
    for name, model in MODELS.items():
        for branch in model.branches():
            key = "|".join((name, *map(str, branch.values())))
            if key not in losses:
                losses[key] = model.tabulate(branch)
                np.savez_compressed(TABLES, **losses)
                print(key, losses[key].shape, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
