"""Quality of proposals: Tuner's algorithms compared to Optuna's and random search, on the problems of `problems.py`.

Each contestant plays with the same seeds, one trial at a time and 16 in parallel, where it does not know the outcomes
of running trials. The result is the loss of the point that looked best after 50, 100 and 200 trials. Games are saved to
a file, one per line, so that a stopped run can be continued: `python bench/quality.py --games FILE`. `--keep` writes
docs/benchmarks.md. `--set held-out` uses the problems of `held_out.py`, on which nothing was tuned, one trial at a time
and 8 in parallel, with 100 trials each; Optuna's CMA-ES, which plays there too, needs the package `cmaes`.
`--set forty` uses the problems of `forty.py`: see `forty_games.py` for its options.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import forty_games
import forty_summary
from games import OPTUNA, OPTUNAS_CMA, Game, play
from problems import PROBLEMS
from record import keep, machine, table
from statistical import holm, log_ratio, worse

OURS = ("default", "tpe")
CONTESTANTS = (*OURS, "optuna:tpe", OPTUNA, "random")
HELD_OUT_CONTESTANTS = ("default", "gp", "tpe", OPTUNA, OPTUNAS_CMA, "random")
PARALLEL, HELD_OUT_PARALLEL = (1, 16), (1, 8)
LOOKS = (50, 100, 200, 1000)
HELD_OUT_TRIALS = 100
SHORT, LONG = 200, 1000  # trials of a game; long games use the first three problems and a quarter of the seeds


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
                math.exp(statistics.fmean(log_ratio(at[w], at[OPTUNA], at["random"]) for at in regrets)) for w in who
            ]
            rows.append([f"geometric mean, {OPTUNA} = 1", *(f"{m:.2f}" for m in means)])
            title = f"{parallel} in parallel, after {look} trials, {seeds} seeds: median regret"
            parts.append(f"{title}\n\n{table(['problem', *who], rows)}")
    return "\n\n".join([*parts, machine()])


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
    parser.add_argument("--set", choices=("ten", "held-out", "forty"), default="ten", help="which problems")
    parser.add_argument("--games", type=Path, help="what has been played, added to")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--who", default="", help="the contestants, with commas")
    parser.add_argument("--only", default="", help="problems whose name has this in it")
    parser.add_argument("--long", action="store_true", help="those of 1,000 trials")
    parser.add_argument("--keep", action="store_true", help="write the page from what has been played; play nothing")
    forty_games.add_options(parser)
    asked = parser.parse_args()
    os.nice(10)
    if asked.set == "forty":
        forty_summary.show(asked) if asked.keep or asked.summary else forty_games.run(asked)
        return
    path = asked.games or Path("quality.jsonl")
    is_held_out = asked.set == "held-out"
    lines = path.read_text().splitlines() if path.exists() else []
    known: dict[str, list[float]] = dict(json.loads(line) for line in lines)
    if asked.keep:
        keep("quality-held-out", held_out_report(known)) if is_held_out else keep("quality", report(known))
        return
    every = HELD_OUT_CONTESTANTS if is_held_out else CONTESTANTS
    who = asked.who.split(",") if asked.who else every
    if is_held_out:
        chosen = held_out_games(asked.seeds, who, asked.only)
    else:
        chosen = long_games(asked.seeds, who) if asked.long else games(asked.seeds, who, asked.only)
    with path.open("a") as out:
        for game in chosen:
            if game.name not in known:
                out.write(json.dumps([game.name, play(game, LOOKS).losses]) + "\n")
                out.flush()
                print(game.name, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
