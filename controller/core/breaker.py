"""The circuit breaker: it pauses an experiment whose trials all fail,
before they use up its budget.

The breaker opens in two cases:

1. No trial has ended in any other way yet, and two trials in a row have failed by themselves: the
   script, its command or its metric is wrong. Of a single rerun, its only trial.
2. The last k trials that ended have all failed for the same reason, where k is `parallelism` but at
   least 3: something has broken since the experiment began.

After the very first failure the breaker is half-open: one more trial runs alone, even beyond the
budget, and its outcome decides.

Everything here is pure. Trials are judged in the order in which the study saw them end.
`Attempt.set_aside` marks the failures that the breaker has set aside to run again on resume,
`Attempt.reviewed` those after which a person has resumed the experiment. Neither kind counts
against the experiment again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from controller.core.model import FINAL, Attempt, AttemptState, ExperimentSpec, FailureClass
from suggest.trial import Outcome, TrialState

FEWEST_ALIKE = 3
FEWEST_FIRST = 2
# Failure classes that count as "failed by itself": the program is to blame, not the machine. A
# timeout and a lack of memory may depend on the parameters, but if the first two trials fail that
# way, the file is more likely wrong.
BY_ITSELF = frozenset(
    {
        FailureClass.USER_ERROR,
        FailureClass.METRICS_MISSING,
        FailureClass.TIMEOUT,
        FailureClass.OUT_OF_MEMORY,
    }
)
_BY_ITSELF = frozenset(each.value for each in BY_ITSELF)
_EXIT_CODE = re.compile(r"^exit code \d+")
# These parts of a message differ between trials that fail for the same reason: quoted values,
# paths, and every word with a digit in it.
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_PARTICULAR = re.compile(r"[\d/\\]")
_WORD = re.compile(r"[^\W\d_]+")
MOST_WORDS = 40


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a trial failed, without the details that are particular to that trial."""

    failure_class: str
    exit_code: str
    words: tuple[str, ...]

    @classmethod
    def of(cls, outcome: Outcome) -> Cause:
        code = _EXIT_CODE.match(outcome.reason)
        exit_code = code.group() if code else ""
        unquoted = _QUOTED.sub(" ", outcome.reason.removeprefix(exit_code))
        words: list[str] = []
        for token in unquoted.split():
            if not _PARTICULAR.search(token):
                words += _WORD.findall(token)
        return cls(outcome.failure_class, exit_code, tuple(words[:MOST_WORDS]))


@dataclass(frozen=True, slots=True)
class Streak:
    """The failures that the breaker looks at, as trial numbers, oldest first.

    first: the trials that failed by themselves before any trial ended in another way; None once a
        trial has done so.
    alike: the newest failed trials, all of which have the same cause.
    reason: the message of the newest failure.
    """

    first: tuple[int, ...] | None = ()
    alike: tuple[int, ...] = ()
    cause: Cause | None = None
    reason: str = ""

    def after(self, number: int, outcome: Outcome) -> Streak:
        """Return the streak after this trial has ended, too.

        A cancelled trial leaves the streak as it is. Every other trial that has not failed ends it,
        because it shows that the program works.
        """
        if outcome.state is TrialState.CANCELLED:
            return self
        if outcome.state is not TrialState.FAILED:
            return Streak(first=None)
        cause = Cause.of(outcome)
        first = None
        if self.first is not None and outcome.failure_class in _BY_ITSELF:
            first = (*self.first, number)
        alike = (*self.alike, number) if cause == self.cause else (number,)
        return Streak(first, alike, cause, outcome.reason)

    def without(self, numbers: Collection[int] = ()) -> Streak:
        """Return the streak after these failures were set aside, or a person reviewed a failure.

        The next failure does not continue this streak.
        """
        first = self.first
        if first is not None:
            first = tuple(number for number in first if number not in numbers)
        return Streak(first)


@dataclass(frozen=True, slots=True)
class Trip:
    """The breaker opens and sets aside the failures of `trials`."""

    trials: tuple[int, ...]
    reason: str


def trip(spec: ExperimentSpec, streak: Streak, *, alone: bool) -> Trip | None:
    """Return the trip if the breaker opens now. `alone` says that no other trial is running."""
    if not spec.breaker:
        return None
    first = streak.first or ()
    if watches_first(spec) and alone and len(first) >= _fewest_first(spec):
        which = f"the first {len(first)} trials" if len(first) > 1 else "the only run"
        return Trip(first, f"{which} failed: {streak.reason}")
    if len(streak.alike) >= max_same_failures(spec):
        return Trip(
            streak.alike,
            f"the last {len(streak.alike)} trials failed for one reason: {streak.reason}",
        )
    return None


def _fewest_first(spec: ExperimentSpec) -> int:
    """Return how many first trials have to fail. A single rerun has no other point to try."""
    is_single = spec.rerun is not None and len(spec.initial) == 1
    return 1 if is_single else FEWEST_FIRST


def watches_first(spec: ExperimentSpec) -> bool:
    """Return whether the first trials have to show that the script works."""
    return spec.breaker and spec.canary_s > 0


def max_same_failures(spec: ExperimentSpec) -> int:
    """Return how many failures for the same reason open the breaker.

    A smaller limit of failed trials lowers this number, because failures
    for the same reason should pause the experiment and not end it. A limit
    of 1 means that the first failure ends the experiment.
    """
    most_alike = max(FEWEST_ALIKE, spec.parallelism)
    limit = spec.budget.failed_trials
    return most_alike if limit is None or limit < FEWEST_FIRST else min(most_alike, limit)


def half_open(spec: ExperimentSpec, streak: Streak, *, exhausted: bool) -> bool:
    """Return whether one more trial must show if script or parameters made the first one fail."""
    if exhausted or streak.first is None or not watches_first(spec):
        return False
    return 0 < len(streak.first) < _fewest_first(spec)


def reviewed(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return the failed attempts, marked as reviewed, that a person has seen when they resume.

    Attempts that are already marked, or that will run again, are left out.
    `attempts` are all of the experiment.
    """
    newest = {
        attempt.trial: attempt for attempt in sorted(attempts, key=lambda attempt: attempt.number)
    }
    return [
        replace(attempt, reviewed=True)
        for attempt in newest.values()
        if attempt.trial is not FINAL
        and attempt.state is AttemptState.FAILED
        and not (attempt.reviewed or attempt.set_aside)
    ]
