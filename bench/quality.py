"""Quality of proposals: Tuner's algorithms compared to Optuna's and random search, on the problems of `problems.py`.

Each contestant plays with the same seeds, one trial at a time and 16 in parallel, where it does not know the outcomes
of running trials. The result is the loss of the point that looked best after 50, 100 and 200 trials. Games are saved to
a file, one per line, so that a stopped run can be continued: `python bench/quality.py --games FILE`. `--keep` writes
docs/benchmarks.md. `--held-out` uses the problems of `held_out.py`, on which nothing was tuned, one trial at a time and
8 in parallel, with 100 trials each; Optuna's CMA-ES, which plays there too, needs the package `cmaes`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from problems import PROBLEMS, Problem
from record import keep, machine, table
from scipy.stats import mannwhitneyu

from suggest.engine import Engine
from suggest.space import Assignment, Choice, Float, Scale
from suggest.study import Algorithm, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Trial, TrialState

OURS = ("default", "tpe")
OPTUNA, OPTUNAS_CMA = "Optuna 5", "Optuna 5 CMA-ES"
CONTESTANTS = (*OURS, "optuna:tpe", OPTUNA, "random")
HELD_OUT_CONTESTANTS = ("default", "gp", "tpe", OPTUNA, OPTUNAS_CMA, "random")
PARALLEL, HELD_OUT_PARALLEL = (1, 16), (1, 8)
LOOKS = (50, 100, 200, 1000)
HELD_OUT_TRIALS = 100
SHORT, LONG = 200, 1000  # trials of a game; long games use the first three problems and a quarter of the seeds

Point = tuple[int, Assignment]  # with the number by which the player identifies it
Ask = Callable[[], Point]
Tell = Callable[[Point, float], None]  # a loss of NaN means infeasible


@dataclass(frozen=True, slots=True)
class Game:
    problem: Problem
    parallel: int
    who: str
    seed: int
    trials: int

    @property
    def name(self) -> str:
        return f"{self.problem.name}/{self.parallel}/{self.who}/{self.seed}/{self.trials}"


def ours(game: Game) -> tuple[Ask, Tell]:
    told = {"trials": game.trials, "parallelism": game.parallel} if game.who == "default" else {}
    spec = StudySpec(game.problem.space, (Objective("loss", Direction.MINIMIZE),), Algorithm(game.who, None, told))
    engine = Engine(Study(StudyName("default", "quality"), "uid", spec, game.seed), (), ())

    def ask() -> Point:
        (new,) = engine.propose(1).trials
        engine.put(Trial(new.number, TrialState.RUNNING, new.parameters))
        return new.number, new.parameters

    def tell(point: Point, loss: float) -> None:
        number, parameters = point
        if math.isnan(loss):
            engine.put(Trial(number, TrialState.INFEASIBLE, parameters))
        else:
            engine.put(Trial(number, TrialState.SUCCEEDED, parameters, value=loss))

    return ask, tell


def optunas(game: Game) -> tuple[Ask, Tell]:
    """Return a study of Optuna with default settings except for the seed."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")  # about parameters that CMA-ES leaves to random search
    maker = optuna.samplers.CmaEsSampler if game.who == OPTUNAS_CMA else optuna.samplers.TPESampler
    study = optuna.create_study(sampler=maker(seed=game.seed))
    open_: dict[int, optuna.trial.Trial] = {}

    def ask() -> Point:
        trial = study.ask()
        point: dict[str, str | int | float | bool] = {}
        for parameter in game.problem.space.ordered:
            if not parameter.active(point):
                continue
            name, domain = parameter.name, parameter.domain
            if isinstance(domain, Choice):
                point[name] = trial.suggest_categorical(name, domain.values)
            elif isinstance(domain, Float):
                point[name] = trial.suggest_float(name, domain.min, domain.max, log=domain.scale is Scale.LOG)
            else:
                log = domain.scale is Scale.LOG
                point[name] = trial.suggest_int(name, domain.min, domain.max, step=domain.step, log=log)
        open_[trial.number] = trial
        return trial.number, point

    def tell(point: Point, loss: float) -> None:
        trial = open_.pop(point[0])
        if math.isnan(loss):
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, loss)

    return ask, tell


def play(game: Game) -> list[float]:
    """Return the loss of the point that looked best at each of LOOKS. The oldest running trial ends next."""
    ask, tell = (optunas if game.who in (OPTUNA, OPTUNAS_CMA) else ours)(game)
    running: deque[Point] = deque()
    asked, told, best, loss, found = 0, 0, math.inf, math.inf, []
    while told < game.trials:
        while asked < game.trials and len(running) < game.parallel:
            running.append(ask())
            asked += 1
        oldest = running.popleft()
        told += 1
        value = game.problem.told(oldest[1], seed=game.seed, number=oldest[0])
        tell(oldest, value)
        if value < best:
            best, loss = value, game.problem.loss(oldest[1])
        if told in LOOKS:
            found.append(loss)
    return found


def games(seeds: int, contestants: Sequence[str], only: str) -> Iterator[Game]:
    """Yield games with contestants taking turns, so that a stopped run has games of all."""
    chosen = [problem for problem in PROBLEMS if only.lower() in problem.name.lower()]
    for seed in range(seeds):
        for problem in chosen:
            for parallel in PARALLEL:
                for who in contestants:
                    yield Game(problem, parallel, who, seed, SHORT)


def long_games(seeds: int, contestants: Sequence[str]) -> Iterator[Game]:
    for seed in range(seeds):
        for problem in PROBLEMS[:3]:
            for who in contestants:
                yield Game(problem, 1, who, seed, LONG)


def held_out_games(seeds: int, contestants: Sequence[str], only: str) -> Iterator[Game]:
    from held_out import HELD_OUT

    for seed in range(seeds):
        for parallel in HELD_OUT_PARALLEL:
            for problem in HELD_OUT:
                if only.lower() in problem.name.lower():
                    for who in contestants:
                        yield Game(problem, parallel, who, seed, HELD_OUT_TRIALS)


def held_out_report(known: dict[str, list[float]]) -> str:
    """Report median regrets, each contestant's geometric mean relative to Optuna's TPE, and where it is ahead."""
    from held_out import HELD_OUT

    played = losses(known, HELD_OUT_TRIALS)
    who = HELD_OUT_CONTESTANTS
    parts = []
    for parallel in HELD_OUT_PARALLEL:
        names = [p.name for p in HELD_OUT if all((p.name, parallel, w) in played for w in who)]
        seeds = min(len(played[n, parallel, w]) for n in names for w in who)
        for place, look in enumerate((50, 100)):
            rows, regrets = [], []
            for name in names:
                # Relative to the best point of any game of the problem, because the optimum is mostly unknown.
                best = min(min(x) for (n, _, _), all_seeds in played.items() if n == name for x in all_seeds)
                at = {w: statistics.median(x[place] - best for x in played[name, parallel, w][:seeds]) for w in who}
                regrets.append(at)
                rows.append([name, *(f"{at[w]:.3g}" for w in who)])
            ahead_of = [sum(at[w] < at[OPTUNA] for at in regrets) for w in who]
            rows.append([f"ahead of {OPTUNA}, of {len(names)}", *map(str, ahead_of)])
            first = [sum(at[w] <= min(at.values()) for at in regrets) for w in who]
            rows.append(["first", *map(str, first)])
            means = [
                math.exp(statistics.fmean(_log_ratio(at[w], at[OPTUNA], at["random"]) for at in regrets)) for w in who
            ]
            rows.append([f"geometric mean, {OPTUNA} = 1", *(f"{m:.2f}" for m in means)])
            title = f"{parallel} in parallel, after {look} trials, {seeds} seeds: median regret"
            parts.append(f"{title}\n\n{table(['problem', *who], rows)}")
    return "\n\n".join([*parts, machine()])


def _log_ratio(mine: float, theirs: float, randoms: float) -> float:
    """Return the log ratio of regrets, each at least a thousandth of the regret of random search."""
    least = max(randoms * 1e-3, 1e-12)
    return math.log(max(mine, least) / max(theirs, least))


def holm(chances: Sequence[float]) -> list[float]:
    """Return the p-values with Holm's correction for multiple tests."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    corrected, least = [0.0] * len(chances), 0.0
    for place, k in enumerate(order):
        least = corrected[k] = max(least, min(1.0, chances[k] * (len(chances) - place)))
    return corrected


def worse(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the p-value of such ranks if `mine` were not worse than `theirs`."""
    return float(mannwhitneyu(mine, theirs, alternative="greater").pvalue)


def in_words(losses: Sequence[float]) -> str:
    """Return the median and its 95 % confidence interval between two of the losses, by the sign test."""
    ordered, n = sorted(losses), len(losses)
    k, below = 0, 0.5**n
    while below + math.comb(n, k + 1) * 0.5**n <= 0.025 and k + 1 < n // 2:
        k += 1
        below += math.comb(n, k) * 0.5**n
    return f"{statistics.median(ordered):.3g} ({ordered[k]:.3g} to {ordered[-1 - k]:.3g})"


Losses = dict[tuple[str, int, str], list[list[float]]]


def losses(known: dict[str, list[float]], trials: int) -> Losses:
    """Return the losses at each look for each seed in order, by problem, parallelism and contestant."""
    found: Losses = {}
    for name, looks in known.items():
        problem, parallel, who, _, length = name.rsplit("/", 4)
        if int(length) == trials:
            found.setdefault((problem, int(parallel), who), []).append(looks)
    return found


def report(known: dict[str, list[float]]) -> str:
    short = losses(known, SHORT)
    cells = [(p.name, k) for p in PROBLEMS for k in PARALLEL if all((p.name, k, who) in short for who in CONTESTANTS)]
    seeds = min(len(short[*cell, who]) for cell in cells for who in CONTESTANTS)
    parts = []
    for place, look in reversed(list(enumerate(LOOKS[:3]))):
        at = {(*cell, who): [x[place] for x in short[*cell, who][:seeds]] for cell in cells for who in CONTESTANTS}
        head = ["problem", "in parallel", *CONTESTANTS]
        rows = [[name, str(k), *(in_words(at[name, k, who]) for who in CONTESTANTS)] for name, k in cells]
        if look == SHORT:
            for who in OURS:
                corrected = holm([worse(at[*cell, who], at[*cell, "optuna:tpe"]) for cell in cells])
                head.append(f"p, {who} worse")
                for row, p in zip(rows, corrected, strict=True):
                    row.append(f"{p:.2f}" if p >= 0.05 else f"**{p:.3f}**")
        parts.append(f"After {look} trials, {seeds} seeds:\n\n{table(head, rows)}\n\n{ahead(at, cells)}")
    if long := losses(known, LONG):
        named = [p.name for p in PROBLEMS if (p.name, 1, "random") in long]
        head = ["problem", *CONTESTANTS]
        shown = [
            [n, *(in_words([x[-1] for x in long.get((n, 1, w), [[math.nan]])]) for w in CONTESTANTS)] for n in named
        ]
        parts.append(
            f"After 1,000 trials one at a time, 5 seeds (the interval is all of them):\n\n{table(head, shown)}"
        )
    return "\n\n".join([*parts, machine()])


def ahead(at: dict[tuple[str, int, str], list[float]], cells: Sequence[tuple[str, int]]) -> str:
    parts = []
    for who in OURS:
        counts = []
        for other in CONTESTANTS:
            if other not in OURS or (who == "default" and other == "tpe"):
                better = sum(statistics.median(at[*c, who]) < statistics.median(at[*c, other]) for c in cells)
                counts.append(f"{other} on {better}")
        parts.append(f"`{who}` is ahead in the median of {', '.join(counts)} of {len(cells)}.")
    return " ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=Path, default=Path("quality.jsonl"), help="what has been played, added to")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--who", default="", help="the contestants, with commas")
    parser.add_argument("--only", default="", help="problems whose name has this in it")
    parser.add_argument("--long", action="store_true", help="those of 1,000 trials")
    parser.add_argument("--held-out", action="store_true", help="the problems on which nothing was tuned")
    parser.add_argument("--keep", action="store_true", help="write the page from what has been played; play nothing")
    asked = parser.parse_args()
    lines = asked.games.read_text().splitlines() if asked.games.exists() else []
    known: dict[str, list[float]] = dict(json.loads(line) for line in lines)
    if asked.keep:
        keep("quality-held-out", held_out_report(known)) if asked.held_out else keep("quality", report(known))
        return
    every = HELD_OUT_CONTESTANTS if asked.held_out else CONTESTANTS
    who = asked.who.split(",") if asked.who else every
    if asked.held_out:
        chosen = held_out_games(asked.seeds, who, asked.only)
    else:
        chosen = long_games(asked.seeds, who) if asked.long else games(asked.seeds, who, asked.only)
    os.nice(10)
    with asked.games.open("a") as out:
        for game in chosen:
            if game.name not in known:
                out.write(json.dumps([game.name, play(game)]) + "\n")
                out.flush()
                print(game.name, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
