"""The results on the forty problems: mean ranks, ratios of regrets,
cases ahead and tests, from finished searches.

A cell is a number of parallel trials and a number of trials; a case is a problem in a cell. The
regret of a game is the true loss of the point that looked best, less the lowest loss of any point,
which is known for all problems. Medians are over seeds. Nothing here plays games.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from forty import lowest
from forty_games import (
    BY_NAME,
    CONTESTANTS,
    GAMES,
    LOOKS,
    PARALLEL,
    Played,
    chosen_problems,
    read,
    rounded,
)
from games import OPTUNA, PEERS
from record import keep, table
from scipy.stats import mannwhitneyu, rankdata, wilcoxon

OURS = tuple(who for who in CONTESTANTS if who not in PEERS and who != "random")
CLAIMANT = "default"
# least share of cases ahead
CLAIMED = 0.75
CLAIMED_LOOKS = (50, 100, 200)
# Of the standings: the claims are about all cells.
SHOWN_LOOKS, SHOWN_PARALLEL = (50, 100), (1, 8)
EQUAL = 1e-9  # relative; regrets that differ by less are tied
SIGNIFICANT = 0.05

Regrets = Mapping[str, Mapping[str, list[float]]]  # by problem and contestant, for each seed


@dataclass(frozen=True, slots=True)
class Cell:
    """The regrets of `contestants` on those problems that all of them played."""

    parallel: int
    look: int
    contestants: Sequence[str]
    regrets: Regrets

    def median(self, problem: str, who: str) -> float:
        return statistics.median(self.regrets[problem][who])

    def seeds(self, who: str) -> str:
        counts = {len(found[who]) for found in self.regrets.values()}
        return str(min(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"

    def compared(self, mine: str, theirs: str) -> dict[str, list[str]]:
        """Return the problems on which `mine` is ahead in the median, tied and behind."""
        found: dict[str, list[str]] = {"ahead": [], "tied": [], "behind": []}
        for problem in self.regrets:
            a, b = self.median(problem, mine), self.median(problem, theirs)
            tied = math.isclose(a, b, rel_tol=EQUAL, abs_tol=EQUAL)
            found["tied" if tied else "ahead" if a < b else "behind"].append(problem)
        return found

    def counts(self, mine: str, theirs: str) -> str:
        return "/".join(str(len(problems)) for problems in self.compared(mine, theirs).values())

    def mean_ranks(self) -> dict[str, float]:
        medians = [
            [self.median(problem, who) for who in self.contestants] for problem in self.regrets
        ]
        means = rankdata(medians, axis=1).mean(axis=0)
        return dict(zip(self.contestants, means, strict=True))

    def log_ratios(self, mine: str, theirs: str) -> list[float]:
        medians = self.median
        return [
            log_ratio(medians(p, mine), medians(p, theirs), medians(p, "random"))
            for p in self.regrets
        ]


def log_ratio(mine: float, theirs: float, randoms: float) -> float:
    """Return the log ratio of regrets, each at least a thousandth of random search's."""
    least = max(randoms * 1e-3, 1e-12)
    return math.log(max(mine, least) / max(theirs, least))


def holm(chances: Sequence[float]) -> list[float]:
    """Return the p-values with Holm's correction for multiple tests."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    corrected, least = [0.0] * len(chances), 0.0
    for place, k in enumerate(order):
        least = corrected[k] = max(least, min(1.0, chances[k] * (len(chances) - place)))
    return corrected


def _p_if_not_worse(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the p-value of such ranks if `mine` were not worse than `theirs`."""
    return float(mannwhitneyu(mine, theirs, alternative="greater").pvalue)


@functools.cache
def _lowest(problem: str) -> float:
    # as losses are saved, so that the regret of an optimum is 0
    return rounded(lowest(BY_NAME[problem]))


def cells(games: Iterable[Played]) -> Iterator[Cell]:
    """Yield the cells with Optuna's TPE and random search,
    of contestants that played nine in ten of its problems.
    """
    chosen = sorted(games, key=lambda game: game.seed)
    for parallel in PARALLEL:
        for place, look in enumerate(LOOKS):
            found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
            for game in chosen:
                if game.parallel == parallel and game.trials >= look:
                    found[game.problem][game.who].append(
                        max(0.0, game.losses[place] - _lowest(game.problem))
                    )
            played = Counter(who for by_who in found.values() for who in by_who)
            who = sorted(
                (name for name, problems in played.items() if problems >= 0.9 * len(found)),
                key=_order,
            )
            regrets = {problem: x for problem, x in found.items() if set(who) <= set(x)}
            if {OPTUNA, "random"} <= set(who) and regrets:
                yield Cell(parallel, look, who, regrets)


def _order(who: str) -> tuple[int, str]:
    order = [*OURS, *PEERS, "random"]
    return (order.index(who) if who in order else len(order), who)


def standings(found: Sequence[Cell]) -> str:
    rows = []
    for cell in found:
        ranked = cell.mean_ranks()
        for who in cell.contestants:
            mean = math.exp(statistics.fmean(cell.log_ratios(who, OPTUNA)))
            first = sum(
                cell.median(p, who) <= min(cell.median(p, other) for other in cell.contestants)
                for p in cell.regrets
            )
            against = "" if who == OPTUNA else cell.counts(who, OPTUNA)
            place = [
                str(cell.parallel),
                str(cell.look),
                str(len(cell.regrets)),
                who,
                cell.seeds(who),
            ]
            rows.append([*place, f"{ranked[who]:.2f}", f"{mean:.2f}", str(first), against])
    head = [
        "in parallel",
        "trials",
        "problems",
        "contestant",
        "seeds",
        "mean rank",
        f"geometric mean, {OPTUNA} = 1",
        "first",
    ]
    return table([*head, f"ahead/tied/behind {OPTUNA}"], rows)


def claims(found: Sequence[Cell]) -> str:
    """Return a table that compares `default` with each peer,
    and names the cases in which it is behind.
    """
    rows = []
    for theirs in (*PEERS, "random"):
        pairs = [cell for cell in found if {CLAIMANT, theirs} <= set(cell.contestants)]
        lost = worse_cases(pairs, theirs)
        for cell in pairs:
            compared = cell.compared(CLAIMANT, theirs)
            share = len(compared["ahead"]) / len(cell.regrets)
            claim = f"{CLAIMED:.0%}: {'yes' if share >= CLAIMED else '**no**'}"
            differences = cell.log_ratios(CLAIMANT, theirs)
            p = float(wilcoxon(differences).pvalue) if any(differences) else 1.0
            significant = lost[cell.parallel, cell.look]
            behind = "; ".join(
                f"**{n}**" if n in significant else n for n in sorted(compared["behind"])
            )
            place = [theirs, str(cell.parallel), str(cell.look), cell.counts(CLAIMANT, theirs)]
            rows.append(
                [*place, f"{share:.0%}", claim, "< 0.001" if p < 0.001 else f"{p:.3f}", behind]
            )
    head = [
        "peer",
        "in parallel",
        "trials",
        "ahead/tied/behind",
        "ahead",
        "claim",
        "p, Wilcoxon",
        "behind on",
    ]
    return table(head, rows)


def worse_cases(pairs: Sequence[Cell], theirs: str) -> dict[tuple[int, int], list[str]]:
    """Return by cell the problems on which `default` is significantly worse, corrected for all
    cases of the pair.
    """
    cases = [(cell, problem) for cell in pairs for problem in cell.regrets]
    chances = holm(
        [
            _p_if_not_worse(cell.regrets[problem][CLAIMANT], cell.regrets[problem][theirs])
            for cell, problem in cases
        ]
    )
    found: dict[tuple[int, int], list[str]] = defaultdict(list)
    for (cell, problem), p in zip(cases, chances, strict=True):
        if p < SIGNIFICANT:
            found[cell.parallel, cell.look].append(problem)
    return found


def costs(games: Iterable[Played]) -> str:
    """Return the processor time of a point, the mean over all games
    with as many trials, by contestant.
    """
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for game in games:
        if game.parallel == 1:
            found[game.who, game.trials].append(1000 * game.cpu_s / game.trials)
    rows = [[who, str(n), f"{statistics.fmean(x):.1f}"] for (who, n), x in sorted(found.items())]
    return table(
        ["contestant", "trials of a game, one at a time", "ms of processor time per point, mean"],
        rows,
    )


def report(games: Sequence[Played]) -> str:
    found = [cell for cell in cells(games) if cell.look in CLAIMED_LOOKS]
    shown = [cell for cell in found if cell.look in SHOWN_LOOKS and cell.parallel in SHOWN_PARALLEL]
    versions = sorted({(game.who, game.played_by) for game in games if game.who != "random"})
    played_by = ", ".join(f"{who} ({version})" for who, version in versions)
    return "\n\n".join([standings(shown), claims(found), costs(games), played_by])


def show(asked: argparse.Namespace) -> None:
    names = {problem.name for problem in chosen_problems(asked.half, asked.only)}
    who = set(asked.who.split(",")) if asked.who else None
    known = read(asked.games or GAMES).values()
    games = [game for game in known if game.problem in names and (who is None or game.who in who)]
    keep(f"quality-forty-{asked.half}", report(games), quick=not asked.keep)
