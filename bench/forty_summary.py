"""The standing of the forty problems: regrets, mean ranks, wins and tests, from the games that have been played.

A case is a problem with a number of parallel trials. Regret is the true loss of the point that looked best, less the
lowest loss of the problem, which is known.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from forty import lowest
from forty_games import BY_NAME, LOOKS, Played
from games import PEERS

RANDOM = "random"
Regrets = dict[str, list[float]]  # of each contestant, by seed


@dataclass(frozen=True, slots=True)
class Case:
    problem: str
    parallel: int

    def __str__(self) -> str:
        return f"{self.problem} ({self.parallel})"


@functools.cache
def _lowest(problem: str) -> float:
    return lowest(BY_NAME[problem])


def regrets(games: Sequence[Played], look: int) -> dict[Case, Regrets]:
    """Return the regrets of the games that are long enough, by case."""
    found: dict[Case, Regrets] = {}
    place = LOOKS.index(look)
    for game in sorted(games, key=lambda game: game.seed):
        if game.trials >= look:
            least = max(0.0, game.losses[place] - _lowest(game.problem))
            found.setdefault(Case(game.problem, game.parallel), {}).setdefault(game.who, []).append(least)
    return found


def complete(cases: dict[Case, Regrets], who: Sequence[str]) -> dict[Case, Regrets]:
    """Return the cases that all of `who` played."""
    return {case: found for case, found in cases.items() if all(name in found for name in who)}


def contestants(cases: dict[Case, Regrets]) -> list[str]:
    """Return those that played at least one case and are not only in a few: ours by name, then peers, then random."""
    played: dict[str, int] = {}
    for found in cases.values():
        for name in found:
            played[name] = played.get(name, 0) + 1
    most = max(played.values(), default=0)
    order = {name: k for k, name in enumerate([*PEERS, RANDOM])}
    return sorted((n for n, count in played.items() if 2 * count > most), key=lambda n: (order.get(n, -1), n))


def show(asked: argparse.Namespace) -> None:
    raise SystemExit("not yet")
