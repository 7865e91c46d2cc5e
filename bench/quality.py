"""How good the points are: `tpe` beside Optuna's own and random search, on functions with known minima.

Each contestant plays the same seeds, one trial at a time and 16 in parallel, where it never knows the outcomes of those
that run. Medians of the best value found, and a rank test (Mann-Whitney, Holm-corrected) of whether `tpe` is worse than
`optuna:tpe`. By hand: `python bench/quality.py --seeds 10 --trials 100`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from record import machine, table
from scipy.stats import mannwhitneyu

from suggest.engine import Engine
from suggest.space import Assignment, Choice, Float, Int, Parameter, Scale, Space
from suggest.study import Algorithm, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Trial, TrialState

CONTESTANTS = ("tpe", "optuna:tpe", "random")
PARALLEL = (1, 16)


@dataclass(frozen=True, slots=True)
class Problem:
    name: str
    space: Space
    loss: Callable[[Assignment], float]


def cube(count: int, low: float, high: float) -> Space:
    return Space(tuple(Parameter(f"x{k}", Float(low, high)) for k in range(count)))


def vector(point: Assignment) -> list[float]:
    return [float(value) for value in point.values()]


def sphere(x: list[float]) -> float:
    return sum(v * v for v in x)


def rosenbrock(x: list[float]) -> float:
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in itertools.pairwise(x))


def ackley(x: list[float]) -> float:
    n = len(x)
    waves = math.exp(sum(math.cos(2 * math.pi * v) for v in x) / n)
    return 20 - 20 * math.exp(-0.2 * math.sqrt(sphere(x) / n)) + math.e - waves


def branin(x: list[float]) -> float:
    a, b = x
    bend = b - 5.1 / (4 * math.pi**2) * a * a + 5 / math.pi * a - 6
    return bend * bend + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10


HARTMANN = (
    (1.0, (10, 3, 17, 3.5, 1.7, 8), (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886)),
    (1.2, (0.05, 10, 17, 0.1, 8, 14), (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991)),
    (3.0, (3, 3.5, 1.7, 10, 17, 8), (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650)),
    (3.2, (17, 8, 0.05, 10, 0.1, 14), (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381)),
)


def hartmann(x: list[float]) -> float:
    return -sum(
        height * math.exp(-sum(w * (v - c) ** 2 for w, v, c in zip(width, x, centre, strict=True)))
        for height, width, centre in HARTMANN
    )


def mixed(point: Assignment) -> float:
    """Rosenbrock in two floats, spheres in two log floats and two ints, and a price on wrong choices."""
    small = [math.log10(float(point[name])) + 2 for name in ("lr", "decay")]
    whole = [(float(point[name]) - 20) / 64 for name in ("layers", "width")]
    wrong = 0.5 * (point["act"] != "relu") + 0.2 * (point["opt"] != "adam")
    return rosenbrock([float(point["a"]), float(point["b"])]) + sphere(small) + sphere(whole) + wrong


MIXED = Space(
    (
        *cube(2, -2, 2).parameters,
        Parameter("lr", Float(1e-4, 1, Scale.LOG)),
        Parameter("decay", Float(1e-4, 1, Scale.LOG)),
        Parameter("layers", Int(1, 64)),
        Parameter("width", Int(1, 64)),
        Parameter("act", Choice(("relu", "tanh", "gelu"))),
        Parameter("opt", Choice(("sgd", "adam", "lamb", "lion", "rms"))),
    )
)
PROBLEMS = (
    Problem("sphere 5-D", cube(5, -5, 5), lambda p: sphere(vector(p))),
    Problem("Ackley 10-D", cube(10, -32.768, 32.768), lambda p: ackley(vector(p))),
    Problem("Hartmann 6-D", cube(6, 0, 1), lambda p: hartmann(vector(p))),
    Problem(
        "Branin 2-D", Space((Parameter("x", Float(-5, 10)), Parameter("y", Float(0, 15)))), lambda p: branin(vector(p))
    ),
    Problem("mixed 8-D", MIXED, lambda p: mixed({**p, "a": p["x0"], "b": p["x1"]})),
)


def play(problem: Problem, algorithm: str, *, seed: int, trials: int, parallel: int) -> float:
    """The least loss of so many trials; of those that run, the oldest ends next."""
    spec = StudySpec(problem.space, (Objective("loss", Direction.MINIMIZE),), Algorithm(algorithm))
    engine = Engine(Study(StudyName("default", "quality"), "uid", spec, seed), (), ())
    running: deque[Trial] = deque()
    asked, best = 0, math.inf
    while asked < trials or running:
        while asked < trials and len(running) < parallel:
            (new,) = engine.propose(1).trials
            running.append(Trial(new.number, TrialState.RUNNING, new.parameters))
            engine.put(running[-1])
            asked += 1
        oldest = running.popleft()
        value = problem.loss(oldest.parameters)
        engine.put(Trial(oldest.number, TrialState.SUCCEEDED, oldest.parameters, value=value))
        best = min(best, value)
    return best


def holm(chances: list[float]) -> list[float]:
    """The same, corrected for how many there are."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    corrected, least = [0.0] * len(chances), 0.0
    for place, k in enumerate(order):
        least = corrected[k] = max(least, min(1.0, chances[k] * (len(chances) - place)))
    return corrected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--only", default="", help="problems whose name has this in it")
    asked = parser.parse_args()
    rows, chances = [], []
    for problem in PROBLEMS:
        if asked.only.lower() not in problem.name.lower():
            continue
        for parallel in PARALLEL:
            best: dict[str, list[float]] = {}
            seconds: dict[str, float] = {}
            for who in CONTESTANTS:
                start = time.perf_counter()
                best[who] = [
                    play(problem, who, seed=seed, trials=asked.trials, parallel=parallel) for seed in range(asked.seeds)
                ]
                seconds[who] = time.perf_counter() - start
            chances.append(float(mannwhitneyu(best["tpe"], best["optuna:tpe"], alternative="greater").pvalue))
            medians = [f"{statistics.median(best[who]):.3g}" for who in CONTESTANTS]
            rows.append([problem.name, str(parallel), *medians, f"{chances[-1]:.2f}"])
            took = ", ".join(f"{who} {s:.1f} s" for who, s in seconds.items())
            print(" ".join(rows[-1]), f"({took})", file=sys.stderr, flush=True)
    corrected = [f"{chance:.2f}" for chance in holm(chances)]
    head = ["problem", "in parallel", *CONTESTANTS, "p that tpe is worse", "corrected"]
    print(table(head, [[*row, p] for row, p in zip(rows, corrected, strict=True)]))
    print(f"\nMedian best of {asked.seeds} seeds after {asked.trials} trials. {machine()}")


if __name__ == "__main__":
    main()
