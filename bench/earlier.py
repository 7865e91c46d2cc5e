"""Learning from earlier searches and from beliefs: `default` with and without four searches of
related tasks, or a prior.

A source is a search of `default` with 50 trials. `--half tune` searches the tasks to tune on, whose
sources are the other tasks of that half; without it, the tasks that are only measured, whose
sources are tasks of the other half. `with` learns from the sources, and `reversed` from sources
whose values have the other sign. With `--kinds "without,right prior,wrong prior"`, there is a
belief about each parameter: right ones are as far from the best values as their probability says,
and wrong ones at the other end. Regrets are relative to that of the median random point.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from games import Game, ours, play
from problems import Problem
from related import FAMILIES, KEPT

from suggest.proposal import generator
from suggest.samplers import uniform
from suggest.samplers.belief import distribution
from suggest.space import Assignment, Choice
from suggest.study import Algorithm, Belief, EarlierStudy, EarlierTrial

TRIALS = 50
LOOKS = (5, 10, 15, 25, 50)
FLOOR = 1e-3
KINDS = ("without", "with", "reversed")
SURE = 0.6  # of each belief
_BY_NAME = {family.name: family for family in FAMILIES}


def _searched(family: str, task: str, seed: int) -> list[tuple[dict, float]]:
    """Return the trials of a search of a source, which is kept in a file."""
    kept = KEPT / f"source-{family}-{task}-{seed}.json".replace(" ", "_")
    if kept.exists():
        return [tuple(each) for each in json.loads(kept.read_text())]
    trials: list[tuple[dict, float]] = []
    settings = {"trials": TRIALS, "parallelism": 1}
    game = Game(_BY_NAME[family].tasks[task], 1, "default", 1000 + seed, TRIALS)

    def make(game: Game):
        who = ours(game, Algorithm("default", None, settings))
        tell = who.tell

        def told(point, loss):
            trials.append((dict(point[1]), loss))
            tell(point, loss)

        who.tell = told
        return who

    play(game, (), make)
    KEPT.mkdir(exist_ok=True)
    kept.write_text(json.dumps(trials))
    return trials


def searched(family: str, task: str, seed: int, kind: str) -> dict:
    problem = _BY_NAME[family].tasks[task]
    earlier: tuple[EarlierStudy, ...] = ()
    prior = _prior(family, task, seed, kind.split()[0]) if kind.endswith(" prior") else ()
    if kind in ("with", "reversed"):
        sign = -1.0 if kind == "reversed" else 1.0
        earlier = tuple(
            EarlierStudy(
                each,
                1.0,
                tuple(EarlierTrial(p, sign * v) for p, v in _searched(family, each, seed)),
            )
            for each in _BY_NAME[family].sources(task)
        )
    game = Game(problem, 1, "default", seed, TRIALS)
    settings = {"trials": TRIALS, "parallelism": 1}
    make = functools.partial(
        ours, algorithm=Algorithm("default", None, settings), learn_from=earlier, prior=prior
    )
    result = play(game, LOOKS, make)
    least, middle = _scale(family, task)
    regrets = [(loss - least) / (middle - least) for loss in result.losses]
    return {
        "family": family,
        "task": task,
        "seed": seed,
        "kind": kind,
        "regrets": regrets,
        "cpu_s": result.cpu_s,
    }


def _prior(family: str, task: str, seed: int, kind: str) -> tuple[Belief, ...]:
    best = _best(family, task)
    rng = generator(seed, 0, "prior")
    found = []
    for parameter in _BY_NAME[family].tasks[task].space.parameters:
        domain, value = parameter.domain, best[parameter.name]
        if isinstance(domain, Choice):
            others = [other for other in domain.values if other != value]
            found.append(Belief(parameter.name, value if kind == "right" else others[0], SURE))
            continue
        about = distribution(Belief(parameter.name, value, SURE), domain)
        place = rng.gauss(about.mean, about.stdev) if kind == "right" else about.mean < 0.5
        word = int(min(max(place, 0.02), 0.98) * 2**uniform.BITS)
        found.append(Belief(parameter.name, uniform.at_fraction(domain, word), SURE))
    return tuple(found)


@functools.cache
def _best(family: str, task: str) -> dict:
    """Return the best of many random points."""
    problem = _BY_NAME[family].tasks[task]
    return min(_random_points(problem, 3000, "best"), key=problem.loss)


@functools.cache
def _scale(family: str, task: str) -> tuple[float, float]:
    """Return the least loss of a task and the median of random points."""
    problem = _BY_NAME[family].tasks[task]
    losses = map(problem.loss, _random_points(problem, 500, "scale"))
    return problem.table().least, statistics.median(losses)


def _random_points(problem: Problem, count: int, purpose: str) -> Iterator[Assignment]:
    rng = generator(0, 0, purpose)
    for _ in range(count):
        yield problem.space.point(
            lambda p: uniform.at_fraction(p.domain, rng.getrandbits(uniform.BITS))
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("tune", "measure"), default="measure")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--only", default="")
    parser.add_argument("--games", type=Path, required=True, help="results, one a line, added to")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    os.nice(5)
    known = set()
    if asked.games.exists():
        for line in asked.games.read_text().splitlines():
            r = json.loads(line)
            known.add((r["family"], r["task"], r["seed"], r["kind"]))
    wanted = [
        (family.name, task, seed, kind)
        for seed in range(asked.seeds)
        for family in FAMILIES
        if asked.only in family.name
        for task in family.halves[asked.half]
        for kind in asked.kinds.split(",")
    ]
    with ProcessPoolExecutor(asked.workers) as pool, asked.games.open("a") as out:
        for r in pool.map(_one, [each for each in wanted if each not in known]):
            out.write(json.dumps(r) + "\n")
            out.flush()
    show([json.loads(line) for line in asked.games.read_text().splitlines()], asked)


def _one(each: tuple[str, str, int, str]) -> dict:
    return searched(*each)


def show(results: list[dict], asked: argparse.Namespace) -> None:
    """Print the median regrets of each task, and a summary over tasks and searches."""
    found = {
        (r["family"], r["task"], r["seed"], r["kind"]): r
        for r in results
        if r["seed"] < asked.seeds
    }
    tasks = [(f.name, t) for f in FAMILIES for t in f.halves[asked.half] if asked.only in f.name]
    kinds = asked.kinds.split(",")
    medians: dict[tuple[str, int], list[float]] = {}
    print("family", "task", *(f"{kind} {look}" for kind in kinds for look in LOOKS), sep="\t")
    for family, task in tasks:
        row = []
        for kind in kinds:
            for at, look in enumerate(LOOKS):
                each = (found[family, task, n, kind]["regrets"][at] for n in range(asked.seeds))
                medians.setdefault((kind, look), []).append(statistics.median(each))
                row.append(f"{medians[kind, look][-1]:.4f}")
        print(family, task, *row, sep="\t")
    head = ("kind", "trials", "median of tasks", "geometric mean", "better", "worse", "ratio")
    print(*head, sep="\t")
    for kind in kinds:
        for at, look in enumerate(LOOKS):
            pairs = [
                (r["regrets"][at], found[*key[:3], "without"]["regrets"][at])
                for key, r in found.items()
                if key[3] == kind and "without" in kinds
            ]
            print(
                kind,
                look,
                f"{statistics.median(medians[kind, look]):.4f}",
                f"{_mean(medians[kind, look]):.4f}",
                sum(regret < other for regret, other in pairs),
                sum(regret > other for regret, other in pairs),
                _ratio(found, kind, at) if "without" in kinds else "",
                sep="\t",
            )
    for kind in kinds:
        cpu_s = statistics.fmean(r["cpu_s"] for key, r in found.items() if key[3] == kind)
        print(kind, f"{1000 * cpu_s / TRIALS:.2f} ms a proposal")


def _ratio(found: dict, kind: str, at: int) -> str:
    """Return the mean ratio to `without` over tasks, with twice its standard error."""
    logs: dict[tuple[str, str], list[float]] = {}
    for key, r in found.items():
        if key[3] == kind:
            other = found[*key[:3], "without"]["regrets"][at]
            ratio = math.log((r["regrets"][at] + FLOOR) / (other + FLOOR))
            logs.setdefault(key[:2], []).append(ratio)
    means = [statistics.fmean(each) for each in logs.values()]
    middle = statistics.fmean(means)
    error = 2 * statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    low, high = math.exp(middle - error), math.exp(middle + error)
    return f"{math.exp(middle):.2f} ({low:.2f} to {high:.2f})"


def _mean(regrets: list[float]) -> float:
    """Return the geometric mean; a thousandth is added first, because some regrets are 0."""
    return math.exp(statistics.fmean(math.log(r + FLOOR) for r in regrets)) - FLOOR


if __name__ == "__main__":
    main()
