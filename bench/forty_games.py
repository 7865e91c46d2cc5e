"""Plays games of the problems in `forty.py`, `many_minima.py`, `cliffs.py`, `scales.py`,
`zeros.py` and `branches.py`, and saves each as a line of a file, for `bench/quality.py`.

The results after 25, 50, 100 and 200 trials are looks at one run. SMAC3 and BoTorch are played with
the Python of an environment that has them: `--interpreter ENVIRONMENT/bin/python`.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import astuple, dataclass, replace
from itertools import product
from pathlib import Path

from branches import BRANCHES, FAMILIES
from cliffs import CLIFFS, STEEP
from forty import FORTY, HALVES
from games import OPTUNA, OPTUNAS_CMA, Game, play
from many_minima import MANY_MINIMA, MINIMA
from problems import Problem
from scales import DECADES, SCALES
from zeros import FROM_0, ZEROS

GAMES = Path(__file__).parent / "data/forty.jsonl"
LOOKS = (25, 50, 100, 200)
PARALLEL = (1, 8, 32)
BY_NAME = {p.name: p for p in (*FORTY, *MANY_MINIMA, *CLIFFS, *DECADES, *FROM_0, *FAMILIES)}
SETS = {
    **HALVES,
    **{f"minima-{half}": found for half, found in MINIMA.items()},
    **{f"cliffs-{half}": found for half, found in STEEP.items()},
    **{f"scales-{half}": found for half, found in SCALES.items()},
    **{f"zeros-{half}": found for half, found in ZEROS.items()},
    **{f"branches-{half}": found for half, found in BRANCHES.items()},
}
CONTESTANTS = ("default", "gp", "tpe", OPTUNA, OPTUNAS_CMA, "random")


@dataclass(frozen=True, slots=True)
class Played:
    """One line of the file. losses: of the point that looked best at each look,
    infinite if none was feasible.
    """

    problem: str
    who: str
    parallel: int
    seed: int
    trials: int
    losses: tuple[float, ...]
    cpu_s: float
    played_by: str  # the version of the contestant

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.problem, self.who, self.parallel, self.seed

    def line(self) -> str:
        losses = tuple(rounded(x) if math.isfinite(x) else None for x in self.losses)
        return json.dumps(astuple(replace(self, losses=losses, cpu_s=round(self.cpu_s, 2))))


def rounded(loss: float) -> float:
    return float(f"{loss:.7g}")


def parsed(line: str) -> Played:
    game = Played(*json.loads(line))
    return replace(game, losses=tuple(math.inf if x is None else x for x in game.losses))


def read(path: Path) -> dict[tuple[str, str, int, int], Played]:
    """Return the longest game with each key."""
    known: dict[tuple[str, str, int, int], Played] = {}
    for game in map(parsed, path.read_text().splitlines() if path.exists() else ()):
        if game.key not in known or known[game.key].trials <= game.trials:
            known[game.key] = game
    return known


def drop_cut_line(path: Path) -> None:
    """Remove a last line without its end, which a killed run leaves."""
    text = path.read_text() if path.exists() else ""
    if not text.endswith("\n") and text:
        path.write_text(text[: text.rfind("\n") + 1])


def chosen_problems(half: str, only: str) -> list[Problem]:
    problems = [*HALVES["tune"], *HALVES["measure"]] if half == "both" else SETS[half]
    return [problem for problem in problems if only.lower() in problem.name.lower()]


def run(asked: argparse.Namespace) -> None:
    path = asked.games or GAMES
    drop_cut_line(path)
    trials = {key: game.trials for key, game in read(path).items()}
    who = asked.who.split(",") if asked.who else CONTESTANTS
    parallel = [int(k) for k in asked.parallel.split(",")]
    problems = chosen_problems(asked.half, asked.only)
    games = [
        Game(problem, at_once, name, seed, asked.trials, asked.interpreter)
        # Seed by seed, so that a stopped run has all problems and contestants.
        for seed, at_once, problem, name in product(range(asked.seeds), parallel, problems, who)
        if trials.get((problem.name, name, at_once, seed), 0) < asked.trials
    ]
    failed = play_all(games, path, asked.workers)
    if failed:
        sys.exit(f"{failed} of {len(games)} games failed; the errors are above")


def play_all(games: Sequence[Game], path: Path, workers: int) -> int:
    """Play the games, append each to the file when it ends, and return how many failed."""
    # Each worker computes with one thread; OpenBLAS and PyTorch read this when they are imported.
    os.environ.update(
        dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    )
    failed = 0
    with (
        ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool,
        path.open("a") as out,
    ):
        running = {
            # By the problem's name, because its functions cannot be sent.
            pool.submit(
                _play, g.problem.name, g.parallel, g.who, g.seed, g.trials, g.interpreter
            ): g.name
            for g in games
        }
        try:
            for ended, future in enumerate(as_completed(running), start=1):
                try:
                    played = future.result()
                except Exception:
                    failed += 1
                    print(
                        f"{running[future]} failed:\n{traceback.format_exc()}",
                        file=sys.stderr,
                        flush=True,
                    )
                    continue
                out.write(played.line() + "\n")
                out.flush()
                print(
                    f"{ended}/{len(games)} {running[future]} {played.cpu_s:.1f} s",
                    file=sys.stderr,
                    flush=True,
                )
        finally:
            pool.shutdown(cancel_futures=True)  # Ctrl-C does not wait for games that have not begun
    return failed


def _play(
    problem: str, parallel: int, who: str, seed: int, trials: int, interpreter: str
) -> Played:
    result = play(Game(BY_NAME[problem], parallel, who, seed, trials, interpreter), LOOKS)
    return Played(
        problem, who, parallel, seed, trials, tuple(result.losses), result.cpu_s, result.played_by
    )
