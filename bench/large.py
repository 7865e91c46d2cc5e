"""Many parameters and many trials: our algorithms on functions of 12 to 40 floats, whose optimum each seed moves.

Prints the medians over seeds of the loss of the best point after several numbers of trials; all lowest losses are 0.
`python bench/large.py --trials 1000 --parallel 4 --seeds 1 --who default,cmaes,tpe`. Games are as in `games.py`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

from games import OPTUNA, Game, play
from held_out import levy
from problems import Problem, ackley, cube, rastrigin, rosenbrock, rotated, shifted, sphere, vector
from record import keep, machine, table

LOOKS = (25, 50, 100, 200, 400, 700, 1000)
FAR = 0.8  # of the distance from the middle to the border: how far away the optimum is at most, in each parameter
Function = Callable[[list[float]], float]


def ellipsoid(x: list[float]) -> float:
    return sum(1000 ** (k / (len(x) - 1)) * v * v for k, v in enumerate(x))


def valley(x: list[float]) -> float:
    return rosenbrock([1 + v for v in x])


FUNCTIONS: dict[str, tuple[int, float, Function, bool]] = {
    "valley, rotated": (12, 3, valley, True),
    "Rastrigin, rotated": (12, 5, rastrigin, True),
    "ellipsoid": (20, 5, ellipsoid, False),
    "ellipsoid, rotated": (20, 5, ellipsoid, True),
    "Levy": (20, 10, levy, False),
    "valley": (25, 2, valley, False),
    "Ackley": (30, 32, ackley, False),
    "sphere": (40, 5, sphere, False),
}


def problem(name: str, seed: int) -> Problem:
    count, half, function, is_rotated = FUNCTIONS[name]
    key = f"{name} {seed}"

    def loss(x: list[float]) -> float:
        away = shifted(key, x, FAR * half)
        return function(rotated(key, away) if is_rotated else away)

    return Problem(f"{name} {count}-D", cube(count, -half, half), lambda p: loss(vector(p)), lowest=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--who", default=f"default,gp,cmaes,tpe,{OPTUNA}", help="contestants, with commas")
    parser.add_argument("--only", default="", help="functions with this text in their names")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="write docs/benchmarks.md")
    asked = parser.parse_args()
    looks = [look for look in LOOKS if look <= asked.trials]
    who = asked.who.split(",")
    rows = []
    for name in (name for name in FUNCTIONS if asked.only.lower() in name.lower()):
        found = {
            w: [
                play(Game(problem(name, seed), asked.parallel, w, seed, asked.trials), looks).losses
                for seed in range(asked.seeds)
            ]
            for w in who
        }
        for place, look in enumerate(looks):
            medians = [statistics.median(losses[place] for losses in found[w]) for w in who]
            rows.append([problem(name, 0).name, str(look), *(f"{m:.3g}" for m in medians)])
            print(*rows[-1], sep="\t", flush=True)
    text = f"{table(['function', 'trials', *who], rows)}\n\n{asked.seeds} seeds; {machine()}"
    if asked.keep:
        keep(f"large-{asked.trials}-{asked.parallel}", text)
    else:
        print(text)


if __name__ == "__main__":
    main()
