"""The circuit breaker: it pauses an experiment whose trials all fail, before they burn its budget.

It opens in two cases. Nothing has ended otherwise yet, and two trials have failed by themselves, one after the other:
the script, its command or its metric is wrong. Or the last k trials that ended have all failed for one reason, k being
`parallelism`, at least 3: something has broken meanwhile. After the first failure of all it is half-open: one more
trial runs alone, whatever the budget says, and decides.

Pure. It judges trials in the order in which the study saw them end. `Attempt.rerun` marks what it has set aside to run
again on resume, `Attempt.reviewed` what a person has resumed after: neither is held against the experiment again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from controller.core.model import FINAL, Attempt, AttemptState, ExperimentSpec, FailureClass
from suggest.trial import Outcome, TrialState

FEWEST_ALIKE = 3
FEWEST_FIRST = 2
# Failures for which the first trials are stopped: the program's own, not the machine's. A timeout and a lack of memory
# depend on the parameters, but of the first two trials it is more likely the file that is wrong.
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
# What differs between trials that fail for one reason: quoted values, paths, and whatever has a digit in it.
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_WORD = re.compile(r"[^\W\d_]+")
MOST_WORDS = 40


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a trial failed, without what is particular to that trial."""

    failure_class: str
    exit_code: str
    words: tuple[str, ...]

    @classmethod
    def of(cls, outcome: Outcome) -> Cause:
        code = _EXIT_CODE.match(outcome.reason)
        said = _QUOTED.sub(" ", outcome.reason[code.end() if code else 0 :])
        plain = (token for token in said.split() if not any(c.isdigit() or c in "/\\" for c in token))
        words = [word for token in plain for word in _WORD.findall(token)]
        return cls(outcome.failure_class, code.group() if code else "", tuple(words[:MOST_WORDS]))


@dataclass(frozen=True, slots=True)
class Streak:
    """The failures that a breaker looks at, by the numbers of their trials, oldest first.

    first: those that failed by themselves while no trial has ended otherwise; None: one has. alike: the newest, which
    failed for one cause. reason: why the newest failed, in its own words.
    """

    first: tuple[int, ...] | None = ()
    alike: tuple[int, ...] = ()
    cause: Cause | None = None
    reason: str = ""

    def after(self, number: int, outcome: Outcome) -> Streak:
        """When this trial has ended, too. A cancelled one says nothing; every other one that has not failed ends the
        streak: the program does what it should."""
        if outcome.state is TrialState.CANCELLED:
            return self
        if outcome.state is not TrialState.FAILED:
            return Streak(first=None)
        cause = Cause.of(outcome)
        first = None if self.first is None or outcome.failure_class not in _BY_ITSELF else (*self.first, number)
        alike = (*self.alike, number) if cause == self.cause else (number,)
        return Streak(first, alike, cause, outcome.reason)

    def without(self, numbers: Collection[int] = ()) -> Streak:
        """When these were set aside, or a failure was reviewed: what comes next is no continuation."""
        first = None if self.first is None else tuple(number for number in self.first if number not in numbers)
        return Streak(first)


@dataclass(frozen=True, slots=True)
class Trip:
    """The breaker opens. `trials`: whose failures it sets aside."""

    trials: tuple[int, ...]
    reason: str


def trip(spec: ExperimentSpec, streak: Streak, *, alone: bool) -> Trip | None:
    """`alone`: no other trial runs."""
    first = streak.first or ()
    if spec.canary_s > 0 and alone and len(first) >= FEWEST_FIRST:
        return Trip(first, f"the first {len(first)} trials failed: {streak.reason}")
    if len(streak.alike) >= most_alike(spec):
        return Trip(streak.alike, f"the last {len(streak.alike)} trials failed for one reason: {streak.reason}")
    return None


def most_alike(spec: ExperimentSpec) -> int:
    """So many failures for one reason open the breaker. A limit of failures that is smaller lowers it: what failed for
    one reason is to pause the experiment, not to end it. A limit of 1 says that the first failure ends it."""
    most = max(FEWEST_ALIKE, spec.parallelism)
    limit = spec.budget.failed_trials
    return most if limit is None or limit < FEWEST_FIRST else min(most, limit)


def half_open(spec: ExperimentSpec, streak: Streak, *, exhausted: bool) -> bool:
    """The first trial has failed by itself, and one more decides whether that was the script or its parameters."""
    return spec.canary_s > 0 and streak.first is not None and len(streak.first) == 1 and not exhausted


def reviewed(attempts: Iterable[Attempt]) -> list[Attempt]:
    """The failures that a person who goes on from here has seen, marked as such; those that are marked already, or are
    to run again, are left out. `attempts`: all of the experiment."""
    newest = {attempt.trial: attempt for attempt in sorted(attempts, key=lambda each: each.number)}
    return [
        replace(attempt, reviewed=True)
        for attempt in newest.values()
        if attempt.trial is not FINAL
        and attempt.state is AttemptState.FAILED
        and not (attempt.reviewed or attempt.rerun)
    ]
