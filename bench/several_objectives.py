"""Quality of searches for several objectives: the hypervolume that their Pareto fronts dominate,
compared to Optuna's.

The problems are ZDT1 to 3 (Zitzler et al., 2000) and DTLZ2 (Deb et al., 2002) with shifted optima,
a decision tree, gradient boosting and a random forest of scikit-learn (loss against leaves or
nodes), and the network of examples/digits (error against weights, looked up in the table of
digits_table.py). No algorithm of Tuner was tuned on them. Trials run one at a time; Tuner's
algorithms run in this process without a store. Each search is saved as a line of a file, so a
stopped run is continued by the same command. `--quick` is a smoke test that keeps no results.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import digits_table
import optuna
from games import suggested
from record import keep, table
from scipy.stats import rankdata
from sklearn.datasets import load_diabetes
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.model_selection import cross_val_score
from sklearn.tree import DecisionTreeRegressor

from suggest import pareto
from suggest.engine import Engine
from suggest.samplers import registry
from suggest.space import Assignment, Float, Int, Parameter, Scale, Space
from suggest.study import Algorithm, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Trial, TrialState

BUDGETS = (50, 100, 200)
SHOWN = 100
SEEDS, SLOW_SEEDS = 5, 1
KNOWN = Path(__file__).parent / "data/several_objectives.jsonl"
OURS = ("default", "gp", "tpe", "random")
PEERS: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    "Optuna TPE": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "Optuna NSGA-II": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
    "Optuna NSGA-III": lambda seed: optuna.samplers.NSGAIIISampler(seed=seed),
    "Optuna GP": lambda seed: optuna.samplers.GPSampler(seed=seed),
}
SLOW = ("Optuna GP",)  # it takes seconds for a point, and has fewer seeds
Losses = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A problem: a function that returns the losses of a point,
    all to be minimized, and the reference point.

    Points worse than the reference contribute nothing to the hypervolume.
    """

    name: str
    space: Space
    losses: Callable[[Assignment], Losses]
    reference: Losses


def _unit(count: int) -> Space:
    return Space(tuple(Parameter(f"x{k}", Float(0, 1)) for k in range(count)))


def _vector(point: Assignment) -> list[float]:
    return [float(str(point[f"x{k}"])) for k in range(len(point))]


def _shifted(rest: Sequence[float]) -> list[float]:
    """Shift the optimum to 0.3, 0.45, … from the edge, where some samplers draw more often."""
    return [abs(v - (0.3 + 0.15 * (k % 4))) / 0.7 for k, v in enumerate(rest)]


def _zdt(point: Assignment, form: Callable[[float, float], float]) -> Losses:
    first, *rest = _vector(point)
    g = 1 + 9 * sum(_shifted(rest)) / len(rest)
    return first, g * form(first, g)


def _dtlz2(point: Assignment) -> Losses:
    x, y, *rest = _vector(point)
    g = 1 + sum(v * v for v in _shifted(rest))
    a, b = x * math.pi / 2, y * math.pi / 2
    return g * math.cos(a) * math.cos(b), g * math.cos(a) * math.sin(b), g * math.sin(a)


@functools.cache
def _diabetes() -> tuple[object, object]:
    data = load_diabetes(return_X_y=True)
    return data[0], data[1]


def _validated(model: object) -> float:
    x, y = _diabetes()
    scores = cross_val_score(model, x, y, cv=3, scoring="neg_mean_squared_error")
    return -float(scores.mean()) / 1000


def _tree(point: Assignment) -> Losses:
    x, y = _diabetes()
    model = DecisionTreeRegressor(
        max_leaf_nodes=point["leaves"],
        min_samples_leaf=point["least"],
        max_features=point["features"],
        random_state=0,
    )
    return _validated(model), math.log(float(model.fit(x, y).get_n_leaves()))


def _boosting(point: Assignment) -> Losses:
    x, y = _diabetes()
    model = GradientBoostingRegressor(
        n_estimators=point["trees"],
        max_depth=point["depth"],
        learning_rate=point["rate"],
        subsample=point["share"],
        random_state=0,
    )
    nodes = sum(tree[0].tree_.node_count for tree in model.fit(x, y).estimators_)
    return _validated(model), math.log(float(nodes))


def _forest(point: Assignment) -> Losses:
    x, y = _diabetes()
    model = RandomForestRegressor(
        n_estimators=point["trees"],
        max_depth=point["depth"],
        min_samples_leaf=point["least"],
        max_features=point["features"],
        random_state=0,
    )
    nodes = sum(tree.tree_.node_count for tree in model.fit(x, y).estimators_)
    return _validated(model), math.log(float(nodes))


def _digits(point: Assignment) -> Losses:
    accuracy = _table().accuracy(point)
    weights = float(str(point["width"])) * (64 + 1 + 10) + 10
    return (1.0 if math.isnan(accuracy) else 1.0 - accuracy), math.log(weights)


@functools.cache
def _table() -> digits_table.Table:
    return digits_table.Table()


TASKS = (
    Task("ZDT1 6-D", _unit(6), lambda p: _zdt(p, lambda f, g: 1 - math.sqrt(f / g)), (1.1, 6.0)),
    Task("ZDT2 6-D", _unit(6), lambda p: _zdt(p, lambda f, g: 1 - (f / g) ** 2), (1.1, 6.0)),
    Task(
        "ZDT3 6-D",
        _unit(6),
        lambda p: _zdt(p, lambda f, g: 1 - math.sqrt(f / g) - f / g * math.sin(10 * math.pi * f)),
        (1.1, 6.0),
    ),
    Task("DTLZ2 7-D, 3 objectives", _unit(7), _dtlz2, (2.0, 2.0, 2.0)),
    Task(
        "decision tree: loss, leaves",
        Space(
            (
                Parameter("leaves", Int(2, 200, Scale.LOG)),
                Parameter("least", Int(1, 60, Scale.LOG)),
                Parameter("features", Float(0.1, 1.0)),
            )
        ),
        _tree,
        (8.0, math.log(200)),
    ),
    Task(
        "boosting: loss, nodes",
        Space(
            (
                Parameter("trees", Int(5, 60, Scale.LOG)),
                Parameter("depth", Int(1, 5)),
                Parameter("rate", Float(0.01, 1.0, Scale.LOG)),
                Parameter("share", Float(0.3, 1.0)),
            )
        ),
        _boosting,
        (6.0, math.log(2000)),
    ),
    Task(
        "random forest: loss, nodes",
        Space(
            (
                Parameter("trees", Int(2, 50, Scale.LOG)),
                Parameter("depth", Int(1, 12)),
                Parameter("least", Int(1, 30, Scale.LOG)),
                Parameter("features", Float(0.1, 1.0)),
            )
        ),
        _forest,
        (6.0, math.log(10_000)),
    ),
    Task("digits network: error, weights", digits_table.SPACE, _digits, (0.9, math.log(10_000))),
)


def ours(task: Task, algorithm: str, seed: int, trials: int) -> list[Losses]:
    objectives = tuple(
        Objective(f"loss{k}", Direction.MINIMIZE) for k in range(len(task.reference))
    )
    settings = {"trials": trials} if algorithm == "default" else {}
    spec = registry.resolve(StudySpec(task.space, objectives, Algorithm(algorithm, seed, settings)))
    engine = Engine(Study(StudyName("default", "bench"), "uid", spec, seed), (), ())
    found = []
    for _ in range(trials):
        (proposed,) = engine.propose(1).trials
        running = Trial(proposed.number, TrialState.RUNNING, proposed.parameters)
        engine.put(running)
        losses = task.losses(proposed.parameters)
        engine.put(
            replace(
                running, state=TrialState.SUCCEEDED, value=losses[0], step=1, further=losses[1:]
            )
        )
        found.append(losses)
    return found


def optunas(task: Task, peer: str, seed: int, trials: int) -> list[Losses]:
    study = optuna.create_study(
        directions=["minimize"] * len(task.reference), sampler=PEERS[peer](seed)
    )
    found = []
    for _ in range(trials):
        trial = study.ask()
        losses = task.losses(suggested(trial, task.space))
        study.tell(trial, losses)
        found.append(losses)
    return found


@dataclass(frozen=True, slots=True)
class Search:
    """A search for one seed. volumes: The dominated hypervolume after each of BUDGETS."""

    task: str
    who: str
    seed: int
    volumes: tuple[float, ...]

    @property
    def key(self) -> tuple[str, str, int]:
        return self.task, self.who, self.seed


def read(path: Path) -> dict[tuple[str, str, int], Search]:
    """Return the searches of a file; a last line without its end,
    which a killed run leaves, is not one.
    """
    text = path.read_text() if path.exists() else ""
    rows = (json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines())
    found = [Search(task, who, seed, tuple(volumes)) for task, who, seed, volumes in rows]
    return {search.key: search for search in found}


def searched(task: Task, who: str, seed: int) -> Search:
    run = optunas if who in PEERS else ours
    losses = run(task, who, seed, BUDGETS[-1])
    volumes = tuple(float(f"{pareto.hypervolume(losses[:b], task.reference):.7g}") for b in BUDGETS)
    return Search(task.name, who, seed, volumes)


def seeds_of(who: str, seeds: int) -> int:
    return min(seeds, SLOW_SEEDS) if who in SLOW else seeds


def table_rows(
    names: Sequence[str], known: dict[tuple[str, str, int], Search], seeds: int
) -> list[list[str]]:
    """Return a row for each problem: medians over the seeds,
    as shares of the most that any search found.
    """
    rows: list[list[str]] = []
    ranks: dict[str, list[float]] = {name: [] for name in names}
    for task in TASKS:
        volumes = {
            name: [known[task.name, name, seed].volumes for seed in range(seeds_of(name, seeds))]
            for name in names
            if all((task.name, name, seed) in known for seed in range(seeds_of(name, seeds)))
        }
        if len(volumes) < len(names):
            continue  # not all have searched it yet
        most = max(one[-1] for runs in volumes.values() for one in runs)
        for place, budget in enumerate(BUDGETS):
            shares = {
                name: statistics.median(one[place] for one in runs) / most
                for name, runs in volumes.items()
            }
            if budget == SHOWN:
                rows.append([task.name, *(f"{shares[name]:.3f}" for name in names)])
            for name, rank in zip(names, rankdata([-shares[name] for name in names]), strict=True):
                ranks[name].append(rank)
    if rows:
        rows.append(
            [
                "mean rank after 50, 100 and 200 trials",
                *(f"{statistics.fmean(ranks[name]):.2f}" for name in names),
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="the first problem with one seed; keeps nothing"
    )
    parser.add_argument("--who", default="", help="only these, with commas")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--summary", action="store_true", help="write what is known to docs/benchmarks.md"
    )
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    names = given.who.split(",") if given.who else [*OURS, *PEERS]
    known = read(KNOWN)
    seeds = 1 if given.quick else given.seeds
    if not given.summary:
        tasks = TASKS[:1] if given.quick else TASKS
        # Seed by seed, so that a stopped run has all problems and algorithms.
        for seed, task, name in itertools.product(range(seeds), tasks, names):
            if given.quick or (
                seed < seeds_of(name, seeds) and (task.name, name, seed) not in known
            ):
                found = searched(task, name, seed)
                known[found.key] = found
                print(*found.key, *found.volumes, file=sys.stderr, flush=True)
                if not given.quick:
                    with KNOWN.open("a") as file:
                        file.write(json.dumps([*found.key, found.volumes]) + "\n")
    rows = table_rows(names, known, seeds)
    is_part = given.quick or given.who != "" or not rows
    keep("several-objectives", table(["problem", *names], rows), quick=is_part)


if __name__ == "__main__":
    main()
