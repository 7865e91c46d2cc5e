"""The comparison of trials that `tuner confirm` ran again, with other seeds.

The value with which a trial won a search is too good on average: the winner is the one that was
also lucky (the winner's curse). The reruns have new seeds and the searched values do not count, so
their means have no such bias. All candidates run with the same seeds, and are compared by the
paired t-test (Student 1908). How sure the winner is: one minus the two-sided p-value of its test
against the candidate that it beats least clearly, which holds although the winner was chosen after
the fact (Hung and Fithian 2019, "Rank verification for exponential families", Annals of Statistics
47(2); exact for normal values with known variance).

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from controller.core.model import KATIB_SUFFIX, MAX_NAME_LENGTH
from controller.core.student import t_quantile, t_within
from controller.phrases import command, quantity
from controller.report import formatting, text_tables
from controller.report.record import ExperimentRecord
from suggest.study import Direction
from suggest.trial import TrialState

Json = dict[str, Any]

SURE = 0.95
MOST_SURE = 99  # percent: a test of few values says no more


def name_of_reruns(name: str, suffix: str) -> str:
    """Return the name of the experiment with reruns of trials of `name`."""
    name = name.removesuffix(KATIB_SUFFIX)
    return f"{name[: MAX_NAME_LENGTH - len(suffix)].rstrip('-')}{suffix}"


def confirmation_name(name: str) -> str:
    return name_of_reruns(name, "-confirm")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trial that ran again: its value in the search, and those of its reruns by seed."""

    trial: int
    recorded: float | None
    values: Mapping[int, float]

    @property
    def mean(self) -> float:
        return fmean(self.values.values())

    @property
    def half_width(self) -> float | None:
        """Return half of the 95 % interval of the mean; None with fewer than two values."""
        count = len(self.values)
        if count < 2:
            return None
        return t_quantile(SURE, count - 1) * stdev(self.values.values()) / math.sqrt(count)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The candidates by the mean of their reruns, best first; those without a value come last.

    rival: the candidate that the first one beats least clearly; None if there is no other.
    sure: from 0 to 1, that the first one is better than the rival; None if that is unknown.
    missing: the best trial of the search, if the search found it later and it did not run again.
    failed: the numbers of the reruns that failed.
    """

    experiment: str
    direction: Direction
    seeds: int
    candidates: Sequence[Candidate]
    rival: int | None
    sure: float | None
    missing: int | None = None
    failed: Sequence[int] = ()

    @classmethod
    def of(cls, search: ExperimentRecord, reruns: ExperimentRecord) -> Confirmation:
        """Compare the trials of `search` by the reruns, which may not have ended."""
        rerun = reruns.experiment.spec.rerun
        assert rerun is not None
        direction = search.experiment.spec.objective.direction
        recorded = {entry.trial.number: entry.trial.value for entry in search.trials}
        values: dict[int, dict[int, float]] = {number: {} for number in rerun.trials}
        for entry in reruns.trials:
            source, value = rerun.of(entry.trial.number), entry.trial.value
            if source is not None and entry.state is TrialState.SUCCEEDED and value is not None:
                trial, seed = source
                values[trial][seed] = value
        candidates = [
            Candidate(number, recorded.get(number), found) for number, found in values.items()
        ]
        candidates.sort(key=lambda each: direction.sign * each.mean if each.values else math.inf)
        rival, sure = _least_clear(candidates)
        best = search.best
        missing = None if best is None or best.number in rerun.trials else best.number
        failed = [entry.trial.number for entry in reruns.trials if entry.state is TrialState.FAILED]
        return cls(
            search.experiment.name,
            direction,
            len(rerun.seeds),
            candidates,
            rival,
            sure,
            missing,
            failed,
        )

    @property
    def winner(self) -> Candidate | None:
        return self.candidates[0] if self.candidates[0].values else None

    @property
    def is_decided(self) -> bool:
        return self.sure is not None and self.sure >= SURE


def _least_clear(candidates: Sequence[Candidate]) -> tuple[int | None, float | None]:
    """Return the candidate that the first one beats least clearly, and how clearly it does."""
    first, *others = candidates
    sure = {other.trial: paired(first.values, other.values) for other in others if other.values}
    known = {trial: value for trial, value in sure.items() if value is not None}
    if not known:
        return (others[0].trial if others else None), None
    rival = min(known, key=known.__getitem__)
    return rival, known[rival]


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> float | None:
    """Return one minus the two-sided p-value of the paired t-test.

    None with fewer than two pairs, or if the values do not depend on the seed.
    """
    differences = [first[seed] - second[seed] for seed in first if seed in second]
    count = len(differences)
    if count < 2:
        return None
    spread = stdev(differences) / math.sqrt(count)
    if spread == 0:
        if len(set(first.values())) == 1:
            return None
        return 1.0 if differences[0] else 0.0
    return t_within(abs(fmean(differences)) / spread, count - 1)


def text(found: Confirmation) -> str:
    """Return the table, and what follows from it."""
    rows = [_row(candidate, found.direction) for candidate in found.candidates]
    table = text_tables.aligned(
        ("TRIAL", "RECORDED", "MEAN", "95 %", "RERUNS", "RECORDED TOO GOOD BY"), rows
    )
    title = f"Reruns of {found.experiment}, with {found.seeds} new seeds"
    lines = [title, "", table, verdict(found)]
    if found.failed:
        reruns = confirmation_name(found.experiment)
        lines.append(
            f"{quantity(len(found.failed), 'rerun')} failed, so means may be of different seeds; "
            f"see why: {command('describe', f'{reruns}/{found.failed[0]}')}, then run them again: "
            f"{command('retry', reruns, '--failed')}"
        )
    if found.missing is not None:
        lines.append(
            f"trial {found.missing}, the best of the search, did not run again; delete "
            f"{confirmation_name(found.experiment)} and run: {command('confirm', found.experiment)}"
        )
    return "\n".join(lines) + "\n"


def _row(candidate: Candidate, direction: Direction) -> list[str]:
    count = len(candidate.values)
    if not count:
        return [str(candidate.trial), formatting.number(candidate.recorded), "", "", "0", ""]
    mean, width = candidate.mean, candidate.half_width
    interval = "" if width is None else f"{mean - width:.4g} to {mean + width:.4g}"
    luck = None if candidate.recorded is None else direction.sign * (mean - candidate.recorded)
    return [
        str(candidate.trial),
        formatting.number(candidate.recorded),
        formatting.number(mean),
        interval,
        str(count),
        formatting.number(luck),
    ]


def verdict(found: Confirmation) -> str:
    """Say which candidate is better, and how sure that is."""
    winner = found.winner
    if winner is None:
        return "no rerun has succeeded yet"
    if found.rival is None:
        return f"trial {winner.trial} is the only one that ran again"
    if found.sure is None:
        same = all(len(set(each.values.values())) <= 1 for each in found.candidates)
        if same and len(winner.values) > 1:
            return (
                f"trial {winner.trial} is the best; the values do not depend on the seed, so one "
                "run of each is enough, or the program does not read TUNER_SEED"
            )
        return f"trial {winner.trial} is ahead; fewer than two seeds have succeeded with both"
    percent = math.floor(100 * found.sure)
    by = f"{percent} % sure" if percent <= MOST_SURE else f"more than {MOST_SURE} % sure"
    by += ", paired t-test over the seeds"
    if found.is_decided:
        rest = [each for each in found.candidates[1:] if each.trial != found.rival]
        unknown = [each for each in rest if paired(winner.values, each.values) is None]
        others = " and the others" if len(unknown) < len(rest) else ""
        if unknown:
            listed = ", ".join(str(each.trial) for each in unknown)
            by += f"; not compared, with fewer than two seeds in common: {listed}"
        return f"trial {winner.trial} is better than trial {found.rival}{others}: {by}"
    more = command("confirm", found.experiment, "--seeds", str(4 * found.seeds))
    return (
        f"trial {winner.trial} is ahead of trial {found.rival}, and that may be chance: {by}; for "
        f"more seeds, delete {confirmation_name(found.experiment)} and run: {more}"
    )


def document(found: Confirmation) -> Json:
    """Return the comparison as JSON."""
    return {
        "seeds": found.seeds,
        "sure": found.sure,
        "better": found.is_decided,
        "rival": found.rival,
        "failed": len(found.failed),
        "candidates": [
            {
                "trial": each.trial,
                "recorded": each.recorded,
                "mean": each.mean if each.values else None,
                "halfWidth95": each.half_width,
                "values": list(each.values.values()),
            }
            for each in found.candidates
        ],
    }


def comparison(about: str, recorded: float, values: Sequence[float]) -> str:
    """Return the reruns of a trial beside a recorded value of it: see `tuner reproduce`."""
    shown = ", ".join(map(formatting.number, values)) or "none has succeeded yet"
    lines = [
        f"{about}: recorded {formatting.number(recorded)}",
        f"reproduced ({quantity(len(values), 'run')}): {shown}",
    ]
    if len(values) > 1:
        lines.append(
            f"mean {formatting.number(fmean(values))}, standard deviation "
            f"{formatting.number(stdev(values))}, from {formatting.number(min(values))} to "
            f"{formatting.number(max(values))}"
        )
    if values:
        lines.append(_beside(recorded, values))
    return "\n".join(lines)


def _beside(recorded: float, values: Sequence[float]) -> str:
    if all(value == recorded for value in values):
        return "the recorded value is reproduced exactly"
    if min(values) <= recorded <= max(values):
        return "the recorded value is within the spread of the reruns"
    nearest = min(values, key=lambda value: abs(value - recorded))
    return f"the recorded value differs by {formatting.number(abs(nearest - recorded))} or more"
