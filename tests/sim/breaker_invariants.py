"""Invariants of the circuit breaker, stated independently of its implementation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from controller.core.model import (
    FINAL,
    Attempt,
    AttemptState,
    Experiment,
    ExperimentSpec,
    FailureClass,
)
from controller.core.progress import RunningTrial
from suggest.trial import Trial, TrialState
from tests.sim.invariant import InvariantViolation
from tests.sim.simulated_runtime import Script

GOOD = Script(((0.2, "epoch=1 score=0.5"),), 0.3, 0)
ITS_OWN = ("userError", "metricsMissing", "timeout", "outOfMemory")
_EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass
class BreakerInvariants:
    """Checks the pauses of one experiment.

    failed_before: how many attempts had failed when the experiment last continued.
    aside_at_end: the failed trials that were set aside when the experiment ended.
    """

    pauses: int = 0
    failed_before: int = 0
    aside_at_end: set[int] = field(default_factory=set)

    def go_on(self, attempts: Sequence[Attempt]) -> None:
        self.failed_before = _failed(attempts)

    def check_pause(self, experiment: Experiment, attempts: Sequence[Attempt]) -> None:
        if not experiment.reason.startswith(("the first", "the last")):
            return
        if not experiment.spec.breaker:
            raise InvariantViolation(f"paused for {experiment.reason} although the breaker is off")
        self.pauses += 1
        newest = {attempt.trial: attempt for attempt in attempts}
        aside = [attempt for attempt in newest.values() if attempt.set_aside]
        if len(aside) < 2:
            raise InvariantViolation(
                f"paused for {experiment.reason}, and these are to run again: {aside}"
            )
        if _failed(attempts) - self.failed_before < 2:
            raise InvariantViolation(
                f"paused again for what had failed before: {experiment.reason}"
            )

    def note_end(self, attempts: Sequence[Attempt], trials: Sequence[Trial]) -> None:
        newest = {attempt.trial: attempt for attempt in attempts}
        failed = {trial.number for trial in trials if trial.state is TrialState.FAILED}
        self.aside_at_end = {
            number for number in failed if number in newest and newest[number].set_aside
        }

    def check_begun(
        self,
        spec: ExperimentSpec,
        running: Sequence[RunningTrial],
        attempts: Sequence[Attempt],
        trials: Sequence[Trial],
        *,
        now: datetime,
    ) -> None:
        """Check that the breaker is not open when a new trial begins."""
        ended = judged(trials, attempts)
        causes = [cause for _, cause in ended]
        most = max(3, spec.parallelism)
        if (limit := spec.budget.failed_trials) is not None and limit > 1:
            most = min(most, limit)
        if spec.breaker and len(causes) >= most and causes[-1] and len(set(causes[-most:])) == 1:
            raise InvariantViolation(f"{most} trials failed for {causes[-1]}, and it continues")
        if spec.canary_s <= 0:
            return
        if (
            spec.breaker
            and len(causes) > 1
            and not running
            and all(cause.startswith(ITS_OWN) for cause in causes)
        ):
            raise InvariantViolation(f"the first trials failed for {causes}, and it continues")
        live = [each for each in running if each.number != FINAL]
        proven = any(a.step is not None and not _by_itself(a) for a in attempts) or any(
            each.value is not None
            or (
                each.start_time is not None
                and (now - each.start_time).total_seconds() >= spec.canary_s
            )
            for each in live
        )
        if live and not proven:
            raise InvariantViolation(
                f"another trial is begun beside {live}, and nothing has shown itself yet"
            )

    def check_end(
        self,
        spec: ExperimentSpec,
        attempts: Sequence[Attempt],
        trials: Sequence[Trial],
        reason: str,
    ) -> None:
        newest = {attempt.trial: attempt for attempt in attempts}
        for trial in trials:
            if (
                trial.state is not TrialState.CANCELLED
                and trial.number in newest
                and newest[trial.number].set_aside
            ):
                raise InvariantViolation(
                    f"the experiment ended, and {trial} is still marked to run again"
                )
        if (
            not spec.breaker
            or spec.canary_s <= 0
            or "used up" in reason
            or any(newest[n].reviewed for n in newest)
        ):
            return
        ended = [trial for trial in trials if trial.state is not TrialState.CANCELLED]
        if ended and all(
            t.state is TrialState.FAILED and t.failure_class in ITS_OWN for t in ended
        ):
            raise InvariantViolation(
                f"the first trials failed by themselves, and that ended it: {reason}"
            )


def judged(trials: Sequence[Trial], attempts: Sequence[Attempt]) -> list[tuple[int, str]]:
    """Return the trials that ended since the last resume, in order,
    with the reason of failure ("" for none).
    """
    newest = {attempt.trial: attempt for attempt in attempts}
    found: list[tuple[int, str]] = []
    for trial in sorted(
        (t for t in trials if t.finished), key=lambda t: (t.end_time or _EARLIEST, t.number)
    ):
        attempt = newest.get(trial.number)
        if trial.state is TrialState.CANCELLED or attempt is None:
            continue
        if trial.state is not TrialState.FAILED:
            found.append((trial.number, ""))
        elif attempt.set_aside or attempt.reviewed:
            found = [(number, cause) for number, cause in found if not cause]
        else:
            found.append(
                (trial.number, f"{trial.failure_class}: {re.sub(r'[0-9.]+', '#', trial.reason)}")
            )
    return found


def spent_since_set_aside(attempts: Sequence[Attempt]) -> int:
    """Return the failures of the newest attempt's class that count against its retries."""
    since = max(
        (place + 1 for place, attempt in enumerate(attempts[:-1]) if attempt.set_aside), default=0
    )
    return sum(attempt.failure_class is attempts[-1].failure_class for attempt in attempts[since:])


def _by_itself(attempt: Attempt) -> bool:
    return attempt.state is AttemptState.FAILED and attempt.failure_class in {
        FailureClass(each) for each in ITS_OWN
    }


def _failed(attempts: Sequence[Attempt]) -> int:
    return sum(attempt.state is AttemptState.FAILED for attempt in attempts)
