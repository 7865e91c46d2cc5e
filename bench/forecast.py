"""How often the 90 % interval of the forecast of GPU-hours has what a search uses in the end.

Each search is simulated: trials run in parallel, and the forecast is made when a tenth, a quarter,
a half and three quarters of them have ended. A row has, at each of these moments: the share of the
searches with an interval, how many of these intervals have the truth, and how far the expected
value is from it on average.

    PYTHONPATH=. python bench/forecast.py
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import mean

from controller.core.forecast import Forecast, forecast
from controller.core.model import Budget
from controller.core.spending import HOUR_S, Spent
from tests.unit.builders import a_spec

MOMENTS = (0.1, 0.25, 0.5, 0.75)
RATE = Spent(1.0, 1.0)
# How many hours a trial runs: by the random numbers, and how much of the search lies before it.
Draw = Callable[[random.Random, float], float]


def pruned(draws: random.Random, _before: float) -> float:
    """Every second trial ends at a ninth or a third of its steps."""
    hours = draws.lognormvariate(0, 0.2)
    return hours if draws.random() < 0.5 else hours * draws.choice((1 / 9, 1 / 3))


def failing(draws: random.Random, _before: float) -> float:
    """Every third trial fails within a minute."""
    if draws.random() < 1 / 3:
        return draws.uniform(1, 60) / HOUR_S
    return draws.lognormvariate(0, 0.2)


def drifting(draws: random.Random, before: float) -> float:
    """The search moves to larger models, which run up to 16 times as long."""
    return float(16 ** min(1.0, max(0.0, draws.gauss(0.3 + 0.5 * before, 0.2))))


# The forecast was written with these …
KNOWN: Mapping[str, Draw] = {
    "alike, 1 %": lambda draws, _before: draws.gauss(1, 0.01),
    "normal, 30 %": lambda draws, _before: max(0.01, draws.gauss(1, 0.3)),
    "log-normal, sigma 0.8": lambda draws, _before: draws.lognormvariate(0, 0.8),
    "half pruned": pruned,
    "a third fails at once": failing,
    "16-fold by a parameter": lambda draws, _before: float(16 ** draws.random()),
    "uniform": lambda draws, _before: draws.random(),
    "exponential": lambda draws, _before: draws.expovariate(1),
    "Weibull, shape 0.7": lambda draws, _before: draws.weibullvariate(1, 0.7),
    "one in five 10 times longer": lambda draws, _before: (
        draws.lognormvariate(0, 0.1) * (10 if draws.random() < 0.2 else 1)
    ),
    "ASHA, three rungs": lambda draws, _before: draws.choices((1, 3, 9), (9, 3, 1))[0],
    "drifting": drifting,
}
# … and without these.
NEW: Mapping[str, Draw] = {
    "triangular": lambda draws, _before: draws.triangular(0.2, 3, 0.5),
    "Pareto, shape 2.5, at most 20": lambda draws, _before: min(20.0, draws.paretovariate(2.5)),
    "log-normal, sigma 1": lambda draws, _before: draws.lognormvariate(0, 1),
    "beta, most are short": lambda draws, _before: draws.betavariate(0.5, 2),
    "half 4 times longer": lambda draws, _before: draws.choice((1, 4)) * draws.gauss(1, 0.1),
    "exponential, timeout at 2": lambda draws, _before: min(2.0, draws.expovariate(1)),
    "a fifth fails, two thirds pruned": lambda draws, _before: (
        draws.lognormvariate(0, 0.3) * draws.choices((0.01, 0.11, 0.33, 1), (6, 10, 8, 6))[0]
    ),
}


def simulated(
    draw: Draw, seed: str, trials: int, parallelism: int
) -> tuple[float, Mapping[float, Forecast]]:
    """Return the hours that a search uses, and the forecasts at the moments."""
    draws = random.Random(seed)
    hours = [draw(draws, number / trials) for number in range(trials)]
    spec = replace(a_spec(trials=trials), budget=Budget(trials=trials, gpu_hours=1e6))
    at = {max(1, int(trials * moment)): moment for moment in MOMENTS}
    running = [(each, 0.0) for each in hours[:parallelism]]
    heapq.heapify(running)
    begun, ended, found = len(running), list[float](), dict[float, Forecast]()
    while running:
        now, began = heapq.heappop(running)
        ended.append(now - began)
        if begun < trials:
            heapq.heappush(running, (now + hours[begun], now))
            begun += 1
        if (moment := at.get(len(ended))) is not None:
            ran = [now - start for _, start in running]
            made = forecast(
                spec,
                [each * HOUR_S for each in ended],
                seen=len(ended),
                left=trials - len(ended),
                running_s=[each * HOUR_S for each in ran],
                rate=RATE,
                spent=RATE.times(sum(ended) + sum(ran)),
            )
            assert made is not None
            found[moment] = made
    return sum(hours), found


def row(draw: Draw, name: str, trials: int, parallelism: int, searches: int) -> str:
    made = [simulated(draw, f"{name} {number}", trials, parallelism) for number in range(searches)]
    cells = []
    for moment in MOMENTS:
        inside = []
        for used, found in made:
            low, high = found[moment].low, found[moment].high
            if low is not None and high is not None:
                # Of equal trials, the sums differ by their rounding.
                inside.append(low.gpu_hours - 1e-6 <= used <= high.gpu_hours + 1e-6)
        bias = mean(found[moment].expected.gpu_hours / used - 1 for used, found in made)
        coverage = f"{mean(inside):.0%}" if inside else "–"
        cells.append(f"{len(inside) / searches:.0%}, {coverage}, {bias:+.0%}")
    return f"| {name} | {parallelism} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--parallelism", type=int, nargs="+", default=[1, 8, 32])
    arguments = parser.parse_args()
    moments = " | ".join(f"{moment:.0%}" for moment in MOMENTS)
    print(f"| hours of a trial | parallelism | {moments} |")
    print("| --- | --- |" + " --- |" * len(MOMENTS))
    for name, draw in {**KNOWN, **NEW}.items():
        for parallelism in arguments.parallelism:
            print(row(draw, name, arguments.trials, parallelism, arguments.searches), flush=True)


if __name__ == "__main__":
    main()
