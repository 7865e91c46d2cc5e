"""Plays games of the forty problems in `forty.py` and saves each as a line of a file: `bench/quality.py --set forty`.

`--half tune --who default,gp --seeds 3` plays those contestants on the half to tune on. Known games are not played
again, so a stopped run is continued by the same command. The results after 25, 50, 100 and 200 trials are looks at one
run. `--summary` prints the standing of what has been played, and `--keep` writes it to docs/benchmarks.md. SMAC3 is
played with the Python of an environment that has it: `--interpreter ENVIRONMENT/bin/python`.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from forty import FORTY, HALVES
from games import OPTUNA, OPTUNAS_CMA, SMAC, Game, play
from problems import Problem

GAMES = Path(__file__).parent / "data/forty.jsonl"
LOOKS = (25, 50, 100, 200)
PARALLEL = (1, 8, 32)
BY_NAME = {problem.name: problem for problem in FORTY}
CONTESTANTS = ("default", "gp", "tpe", OPTUNA, OPTUNAS_CMA, "random")


@dataclass(frozen=True, slots=True)
class Played:
    """One line of the file. losses: of the point that looked best at each look, infinite if none was feasible."""

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
        losses = [rounded(x) if math.isfinite(x) else None for x in self.losses]
        parts = [self.problem, self.who, self.parallel, self.seed, self.trials, losses, round(self.cpu_s, 2)]
        return json.dumps([*parts, self.played_by])


def rounded(loss: float) -> float:
    return float(f"{loss:.7g}")


def parsed(line: str) -> Played:
    problem, who, parallel, seed, trials, losses, cpu_s, played_by = json.loads(line)
    return Played(
        problem, who, parallel, seed, trials, tuple(math.inf if x is None else x for x in losses), cpu_s, played_by
    )


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


def wanted(
    problems: Sequence[Problem], who: Sequence[str], parallel: Sequence[int], seeds: Iterable[int], trials: int
) -> Iterator[Game]:
    """Yield games seed by seed, so that a stopped run has all problems and contestants."""
    for seed in seeds:
        for at_once in parallel:
            for problem in problems:
                for name in who:
                    yield Game(problem, at_once, name, seed, trials)


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("for --set forty")
    group.add_argument("--half", choices=(*HALVES, "both"), default="measure")
    group.add_argument("--parallel", default="1,8", help="how many trials run at a time, with commas")
    group.add_argument("--trials", type=int, default=100)
    group.add_argument("--workers", type=int, default=2, help="games at a time, each in a process")
    group.add_argument("--interpreter", default="", help=f"a Python that has {SMAC}")
    group.add_argument("--summary", action="store_true", help="print the standing of what has been played")


def chosen_problems(half: str, only: str) -> list[Problem]:
    problems = [*HALVES["tune"], *HALVES["measure"]] if half == "both" else HALVES[half]
    return [problem for problem in problems if only.lower() in problem.name.lower()]


def run(asked: argparse.Namespace) -> None:
    path = asked.games or GAMES
    who = asked.who.split(",") if asked.who else CONTESTANTS
    parallel = [int(k) for k in asked.parallel.split(",")]
    drop_cut_line(path)
    known = read(path)
    games = [
        replace(game, interpreter=asked.interpreter)
        for game in wanted(chosen_problems(asked.half, asked.only), who, parallel, range(asked.seeds), asked.trials)
        if (key := (game.problem.name, game.who, game.parallel, game.seed)) not in known
        or known[key].trials < game.trials
    ]
    failed = play_all(games, path, asked.workers)
    if failed:
        sys.exit(f"{failed} of {len(games)} games failed; the errors are above")


def play_all(games: Sequence[Game], path: Path, workers: int) -> int:
    """Play the games, append each to the file when it ends, and return how many failed."""
    # Each worker computes with one thread; OpenBLAS and PyTorch read this when they are imported.
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    failed = 0
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool, path.open("a") as out:
        running = {pool.submit(_play, _Sent.of(game)): game.name for game in games}
        for ended, future in enumerate(as_completed(running), start=1):
            try:
                played = future.result()
            except Exception:
                failed += 1
                print(f"{running[future]} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
                continue
            out.write(played.line() + "\n")
            out.flush()
            print(f"{ended}/{len(games)} {running[future]} {played.cpu_s:.1f} s", file=sys.stderr, flush=True)
    return failed


@dataclass(frozen=True, slots=True)
class _Sent:
    """A game as it is sent to a worker: with the name of the problem, whose functions cannot be sent."""

    problem: str
    rest: tuple[int, str, int, int, str]

    @staticmethod
    def of(game: Game) -> _Sent:
        return _Sent(game.problem.name, (game.parallel, game.who, game.seed, game.trials, game.interpreter))


def _play(sent: _Sent) -> Played:
    game = Game(BY_NAME[sent.problem], *sent.rest)
    result = play(game, LOOKS)
    losses = tuple(result.losses)
    return Played(sent.problem, game.who, game.parallel, game.seed, game.trials, losses, result.cpu_s, result.played_by)
