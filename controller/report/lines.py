"""Show a run as plain lines on stderr, without a terminal:
a line per important event, and progress at intervals.

This module makes no decisions. The same events in the same order give the same lines.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress

from controller.core.budget import spent_trials
from controller.core.model import AttemptState, Event, ExperimentState
from controller.core.progress import Progress
from controller.phrases import quantity
from controller.report import formatting, spending
from suggest.trial import IMPORTED_FROM

logger = logging.getLogger(__name__)

PROGRESS_S = 10.0
# The end of the run says it, and what to do.
_ENDINGS = frozenset(state.value for state in ExperimentState)
# The reason why trials wait changes whenever another trial ends,
# so one line shows it for all of them.
_QUIET_KINDS = frozenset({"created", "stopping", "waiting", AttemptState.RUNNING.value})


class View:
    """A view of a run, which shows nothing.

    All methods are called on the loop's thread and must return quickly.
    """

    draws = False
    """The view has to be refreshed."""

    def event(self, event: Event) -> None:
        """Show an event."""

    def print_line(self, text: str) -> None:
        """Show a sentence for people."""

    def refresh(self, progress: Progress) -> None:
        """Show the progress. Called a few times a second."""

    def close(self, progress: Progress | None) -> None:
        """End the view. No method is called after this one."""


class EventView(View):
    """The view of a program that only wants the events."""

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event

    def event(self, event: Event) -> None:
        self._on_event(event)


class LoggedView(View):
    """The view of -v and --log-format json.

    The loop logs the events, and this view logs all other sentences.
    """

    def print_line(self, text: str) -> None:
        logger.info("%s", text)


class Lines(View):
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
        self.print_line(event.message)

    def print_line(self, text: str) -> None:
        # A closed stderr must not stop the run.
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)

    def refresh(self, progress: Progress) -> None:
        best = progress.best
        if best is not None and best.number != self._best:
            self._best = best.number
            best_scores = formatting.scores(progress.experiment.spec.criteria, best)
            origin = " (imported)" if IMPORTED_FROM in best.labels else ""
            self.print_line(f"best so far: trial {best.number}{origin}, {best_scores}")
        if progress.trouble != self._trouble:
            self._trouble = progress.trouble
            if progress.trouble:
                self.print_line(f"waiting: {progress.trouble}")
        reason = progress.held_up[0].waiting_for if progress.held_up else ""
        # The first word of the reason says what is lacking; changing figures follow.
        if reason and reason.split(":")[0] != self._held_up:
            self._held_up = reason.split(":")[0]
            self.print_line(f"waiting: {reason}")
        if progress.final_runs and not self._final_told:
            self._final_told = True
            self.print_line(
                progress.experiment.reason or "the search is over; its final stage runs"
            )
        running_s = progress.experiment.running_s
        if progress.known and running_s - self._told_at_s >= PROGRESS_S:
            self._told_at_s = running_s
            self.print_line(summary(progress))

    def close(self, progress: Progress | None) -> None:
        if progress is not None:
            self.refresh(progress)


def summary(progress: Progress) -> str:
    """Return a line such as `12/40 trials (9 succeeded, 3 pruned), 2 running, about 1m20s left`."""
    done = spent_trials(progress.counts)
    limit = progress.experiment.spec.budget.trials
    trials = quantity(done, "trial") if limit is None else f"{done}/{quantity(limit, 'trial')}"
    states = ", ".join(f"{n} {state.value}" for state, n in progress.counts.items() if n)
    words = [f"{trials} ({states})" if states else trials, f"{len(progress.at_work)} running"]
    if progress.held_up:
        words.append(f"{len(progress.held_up)} waiting ({progress.held_up[0].waiting_for})")
    words += spending.used(progress.experiment)
    foreseen = spending.foreseen(progress.experiment.spec, progress.forecast)
    words += [f"in all {each}" for each in foreseen]
    left_s = time_left_s(progress)
    if left_s is not None:
        words.append(f"about {formatting.duration(left_s)} left")
    return ", ".join(words)


def time_left_s(progress: Progress) -> float | None:
    """Estimate the remaining seconds from the pace so far, limited by the wall clock budget.

    None while nothing is known, while the loop waits for an error to pass,
    or without such a budget.
    """
    if progress.trouble or not progress.known:
        return None
    experiment = progress.experiment
    budget = experiment.spec.budget
    done = spent_trials(progress.counts)
    estimates = []
    if budget.trials is not None and done:
        estimates.append(experiment.running_s / done * max(0, budget.trials - done))
    if budget.wall_clock_s is not None:
        estimates.append(max(0.0, budget.wall_clock_s - experiment.running_s))
    return min(estimates, default=None)
