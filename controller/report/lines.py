"""A run as plain lines on stderr, where no terminal is: one for what matters, and one of progress now and then.

Draws what it is told and decides nothing. The same events in the same order give the same lines.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Protocol

from controller.core.model import AttemptState, Event, ExperimentState
from controller.core.progress import Progress
from controller.phrases import quantity
from controller.report import formatting
from suggest.trial import TrialState

logger = logging.getLogger(__name__)

PROGRESS_S = 10.0
_ENDINGS = frozenset(state.value for state in ExperimentState)  # the last words say it, and what to do
# What trials wait for changes with every other trial's end: it is told in one line for all of them.
_QUIET_KINDS = frozenset({"created", "stopping", "waiting", AttemptState.RUNNING.value})


class View(Protocol):
    """Whoever shows a run. All are called on the loop's thread and must be quick."""

    draws: bool
    """It is to be refreshed."""

    def event(self, event: Event) -> None:
        """Something happened."""

    def say(self, text: str) -> None:
        """A sentence for the person."""

    def refresh(self, progress: Progress) -> None:
        """A few times a second."""

    def close(self, progress: Progress | None) -> None:
        """The run is over; no further calls."""


class Silence:
    """-q."""

    draws = False

    def event(self, event: Event) -> None: ...

    def say(self, text: str) -> None: ...

    def refresh(self, progress: Progress) -> None: ...

    def close(self, progress: Progress | None) -> None: ...


class LoggedView:
    """-v and --log-format json: the loop logs each event itself; what else is said joins it there."""

    draws = False

    def event(self, event: Event) -> None: ...

    def say(self, text: str) -> None:
        logger.info("%s", text)

    def refresh(self, progress: Progress) -> None: ...

    def close(self, progress: Progress | None) -> None: ...


class Lines:
    draws = True

    def __init__(self) -> None:
        self._told_at_s = 0.0
        self._best: int | None = None
        self._trouble = ""
        self._held_up = ""
        self._final_told = False

    def event(self, event: Event) -> None:
        if event.kind in _QUIET_KINDS or (event.trial is None and event.kind in _ENDINGS):
            return
        self.say(event.message)

    def say(self, text: str) -> None:
        with suppress(OSError):  # nobody reads any more; that is no reason to stop
            print(text, file=sys.stderr, flush=True)

    def refresh(self, progress: Progress) -> None:
        best = progress.best
        if best is not None and best.number != self._best:
            self._best = best.number
            told = formatting.scores(progress.experiment.spec.criteria, best)
            self.say(f"best so far: trial {best.number}, {told}")
        if progress.trouble != self._trouble:
            self._trouble = progress.trouble
            if progress.trouble:
                self.say(f"waiting: {progress.trouble}")
        reason = progress.held_up[0].waiting_for if progress.held_up else ""
        # Its first word names what is lacking; figures follow.
        if reason and reason.split(":")[0] != self._held_up:
            self._held_up = reason.split(":")[0]
            self.say(f"waiting: {reason}")
        if progress.final_runs and not self._final_told:
            self._final_told = True
            self.say(progress.experiment.reason or "the search is over; its final stage runs")
        running_s = progress.experiment.running_s
        if progress.known and running_s - self._told_at_s >= PROGRESS_S:
            self._told_at_s = running_s
            self.say(summary(progress))

    def close(self, progress: Progress | None) -> None:
        if progress is not None:
            self.refresh(progress)


def summary(progress: Progress) -> str:
    """`12/40 trials (9 succeeded, 3 pruned), 2 running, about 1m20s left`."""
    spec = progress.experiment.spec
    done = finished(progress)
    limit = "" if spec.budget.trials is None else f"/{spec.budget.trials}"
    states = ", ".join(f"{n} {state.value}" for state, n in progress.counts.items() if n)
    trials = quantity(done, "trial") if not limit else f"{done}{limit} trial{'' if limit == '/1' else 's'}"
    words = [trials + (f" ({states})" if states else ""), f"{len(progress.at_work)} running"]
    if progress.held_up:
        words.append(f"{len(progress.held_up)} waiting ({progress.held_up[0].waiting_for})")
    left_s = time_left_s(progress)
    if left_s is not None:
        words.append(f"about {formatting.duration(left_s)} left")
    return ", ".join(words)


def finished(progress: Progress) -> int:
    """Trials that cost budget."""
    return sum(n for state, n in progress.counts.items() if state.finished and state is not TrialState.CANCELLED)


def time_left_s(progress: Progress) -> float | None:
    """By the pace so far, and at most what the wall clock leaves; None while nothing is known, or goes on."""
    if progress.trouble or not progress.known:
        return None
    experiment = progress.experiment
    budget = experiment.spec.budget
    done = finished(progress)
    estimates = []
    if budget.trials is not None and done:
        estimates.append(experiment.running_s / done * max(0, budget.trials - done))
    if budget.wall_clock_s is not None:
        estimates.append(max(0.0, budget.wall_clock_s - experiment.running_s))
    return min(estimates, default=None)
