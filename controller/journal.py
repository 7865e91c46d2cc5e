"""The journal of an experiment: every change is stored first, then applied in memory,
then logged and published.

Each transition is one log line.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from controller.core.model import (
    FINAL,
    Attempt,
    AttemptState,
    Event,
    Experiment,
    ExperimentState,
    FailureClass,
    FinalRun,
    ReasonCode,
    attempt_name,
)
from controller.core.spending import Spent
from controller.experiment_store import Changes, SqlExperimentStore
from controller.phrases import quantity
from suggest.errors import Unavailable

logger = logging.getLogger(__name__)

SHORTEST_SAVE_S = 0.5
LOG_LIMIT = "logLimit"  # an event's kind


class Journal:
    """Stores and publishes changes.

    `experiment` is as stored, except for the newest running time (see `spend`).
    """

    def __init__(
        self, experiment: Experiment, store: SqlExperimentStore, on_event: Callable[[Event], None]
    ) -> None:
        self.experiment = experiment
        # A failed write of attempts may have been stored all the same,
        # or there is a newer revision: `reload`.
        self.in_doubt = False
        self._store = store
        self._on_event = on_event
        self._saved_running_s = self._running_s_before = experiment.running_s
        self._save_after_s = SHORTEST_SAVE_S  # so much running time at the latest
        self._remarks: set[str] = set()  # the kinds of those that were recorded

    def reload(self) -> None:
        """Read the experiment again after a write that failed but may have been stored."""
        stored = self._store.experiment(self.experiment.namespace, self.experiment.name)
        if stored is not None and stored.uid == self.experiment.uid:
            self.experiment = replace(stored, running_s=self.experiment.running_s)

    def name(self, attempt: Attempt) -> str:
        return attempt_name(
            self.experiment.name, self.experiment.uid, attempt.trial, attempt.number
        )

    def spend(self, seconds: float, *, save_every_s: float) -> None:
        """Add wall clock time.

        It is stored at intervals, so that a kill may lose up to `save_every_s` of it, and of a
        short run at most half. In the second half of an interval it is stored with the next other
        change, so that it takes no transactions of its own while trials begin and end.
        """
        self.experiment = replace(self.experiment, running_s=self.experiment.running_s + seconds)
        spent_s = self.experiment.running_s - self._running_s_before
        self._save_after_s = min(save_every_s, max(SHORTEST_SAVE_S, spent_s / 2))
        if self._unsaved_s >= self._save_after_s:
            self._save(Changes(self.experiment))

    @property
    def _unsaved_s(self) -> float:
        return self.experiment.running_s - self._saved_running_s

    def note_spent(self, spent: Spent) -> None:
        """Note what all attempts have used; it is stored with the next change of the experiment."""
        self.experiment = replace(self.experiment, gpu_hours=spent.gpu_hours, cost=spent.cost)

    def attempt_created(self, attempt: Attempt, *, now: datetime, of: int | None = None) -> None:
        """Record a new attempt.

        `of` is the trial whose parameters the final stage has from now on. The beginning of the
        final stage overrides a pause of the search, just as the end of the search does.
        """
        text = "created"
        experiment = None
        if of is not None:
            text += f" parameters=trial-{of}"
            begun = FinalRun(of, attempt.number)
            reason = f"the search is over; its final stage runs with the parameters of trial {of}"
            experiment = replace(
                self.experiment,
                final=begun,
                state=ExperimentState.RUNNING,
                reason=reason,
                reason_code=ReasonCode.FINAL_STAGE_RUNS,
            )
        created = self._event(attempt, "created", text, now)
        self._save(Changes(experiment, [attempt], [created], final=of is not None))

    def end_asked(self, by: str, trial: int, *, now: datetime) -> None:
        """Record that a trial, or a callback that was told of its end, ends the search."""
        asked = Event(now, "endAsked", f"{by} called study.stop()", trial)
        self._save(Changes(replace(self.experiment, ended_by=by), events=[asked]))

    def final_outdated(self) -> None:
        self._save(Changes(replace(self.experiment, final=None), final=True))

    def attempts_changed(self, changes: list[tuple[Attempt, Attempt]], *, now: datetime) -> None:
        """Record the changes of attempts, each given as (before, after), in one write."""
        events = [
            self._transition(before, after, now)
            for before, after in changes
            if before.state is not after.state
        ]
        events += [
            self._event(after, "waiting", f"waiting reason={_quoted(after.reason)}", now)
            for before, after in changes
            if before.state is after.state and after.reason not in ("", before.reason)
        ]
        events += [
            self._log_gap(after, now)
            for before, after in changes
            if (before.log_gap, before.value_doubt) != (after.log_gap, after.value_doubt)
        ]
        attempts = [after for _, after in changes]
        self._save(self._with_pause(attempts, events, now))

    def broken(self, failures: list[Attempt], reason: str, *, now: datetime) -> None:
        """Record that the circuit breaker opened.

        Pauses the experiment and marks the failures in the same write.
        """
        attempts = [replace(attempt, set_aside=True) for attempt in failures]
        if self.experiment.state is ExperimentState.PAUSED:
            self._save(Changes(None, attempts))
            return
        paused = self._paused(reason, ReasonCode.REPEATED_FAILURES)
        self._save(Changes(paused, attempts, [Event(now, "paused", reason)]))

    def _paused(self, reason: str, code: ReasonCode) -> Experiment:
        return replace(
            self.experiment, state=ExperimentState.PAUSED, reason=reason, reason_code=code
        )

    def experiment_changed(
        self,
        state: ExperimentState,
        reason: str,
        code: ReasonCode | None,
        *,
        now: datetime,
        end: bool = False,
    ) -> None:
        end_time = now if end else None
        changed = replace(
            self.experiment, state=state, reason=reason, reason_code=code, end_time=end_time
        )
        events = [] if state is self.experiment.state else [Event(now, state.value, reason)]
        self._save(Changes(changed, (), events))

    def experiment_finished(
        self,
        state: ExperimentState,
        reason: str,
        code: ReasonCode | None,
        set_aside: list[Attempt],
        *,
        now: datetime,
    ) -> None:
        """Record the end of the experiment.

        Failures that were set aside do not run again, and count as failures.
        """
        ended = replace(self.experiment, state=state, reason=reason, reason_code=code, end_time=now)
        attempts = [replace(attempt, set_aside=False) for attempt in set_aside]
        self._save(Changes(ended, attempts, [Event(now, state.value, reason)]))

    def remark(self, kind: str, message: str, *, now: datetime) -> None:
        """Record a remark, once in an experiment's life."""
        if kind in self._remarks:
            return
        if not any(event.kind == kind for event in self._store.events(self.experiment.uid)):
            self._save(Changes(events=[Event(now, kind, message)]))
        self._remarks.add(kind)

    def revision_applied(self, *, now: datetime) -> None:
        """Record that the controller has taken up a revision that was stored while it ran."""
        message = f"revision {self.experiment.revision} is in effect"
        self._save(Changes(events=[Event(now, "applied", message)]))

    def trials_lost(self, numbers: Sequence[int], *, now: datetime) -> None:
        """Record, once, that the study no longer knows trials that were run."""
        trials = f"{len(numbers)} trials up to {numbers[-1]}"
        if len(numbers) == 1:
            trials = f"trial {numbers[0]}"
        what = "its database was set back to an older state; cancelled, and the search goes on"
        message = f"the study has lost {trials}: {what}"
        if not any(event.message == message for event in self._store.events(self.experiment.uid)):
            self._save(Changes(events=[Event(now, "trialsLost", message)]))

    def lines_skipped(self, attempt: Attempt, skipped: int, place: str, *, now: datetime) -> None:
        """Record that a collector found lines that are not JSON objects."""
        text = f"skipped {quantity(skipped, 'line')} of {place}: not a JSON object"
        self._save(Changes(events=[self._event(attempt, "linesSkipped", text, now)]))

    def starts_over(self, attempt: Attempt, reason: str, *, now: datetime) -> None:
        """Record that an attempt lacks its checkpoint, so that it repeats what has been run."""
        event = self._event(attempt, "startsOver", f"starts over: {reason}", now)
        self._save(Changes(events=[event]))

    def _with_pause(self, attempts: list[Attempt], events: list[Event], now: datetime) -> Changes:
        """Pause in the same write after a configuration failure or refused parameters."""
        for attempt in attempts:
            if attempt.trial is FINAL:
                continue  # the search is over, so a pause would save no budget
            if attempt.failure_class is FailureClass.CONFIGURATION and attempt.ended:
                reason = f"trial {attempt.trial} cannot run: {attempt.reason}"
                paused = self._paused(reason, ReasonCode.CANNOT_RUN)
                return Changes(paused, attempts, [*events, Event(now, "paused", reason)])
        return Changes(None, attempts, events)

    def _save(self, changes: Changes) -> None:
        if not changes:
            return
        if changes.experiment is None and self._unsaved_s >= self._save_after_s / 2:
            changes = replace(changes, experiment=self.experiment)
        try:
            self._store.save(self.experiment.uid, changes)
        except Unavailable:
            # The final stage, and the end, are recorded together with their experiment: recording
            # both again is enough.
            ends = changes.experiment is not None and changes.experiment.state.finished
            of_trials = any(attempt.trial is not FINAL for attempt in changes.attempts)
            self.in_doubt |= of_trials and not ends
            raise
        if changes.experiment is not None:
            self.experiment = changes.experiment
            self._saved_running_s = self.experiment.running_s
        for event in changes.events:
            logger.info("%s", event.message)
            self._on_event(event)

    def _event(self, attempt: Attempt, kind: str, text: str, now: datetime) -> Event:
        message = f"trial={self.name(attempt)} attempt={attempt.number} {text}"
        return Event(now, kind, message, attempt.trial, attempt.number)

    def _log_gap(self, attempt: Attempt, now: datetime) -> Event:
        text = f"gap in its log: {attempt.log_gap}"
        if attempt.value_doubt:
            text += f"; {attempt.value_doubt}"
        return self._event(attempt, "logGap", text, now)

    def _transition(self, before: Attempt, after: Attempt, now: datetime) -> Event:
        words = [f"{before.state.value}->{after.state.value}"]
        if after.failure_class is not None:
            words.append(f"class={after.failure_class.value}")
        if after.value is not None:
            words.append(f"value={after.value:g}")
        if after.reason and after.state is not AttemptState.RUNNING:
            words.append(f"reason={_quoted(after.reason)}")
        kind = "waiting" if after.state is AttemptState.CREATED else after.state.value
        event = self._event(after, kind, " ".join(words), now)
        return replace(event, failure_class=after.failure_class)


def _quoted(reason: str) -> str:
    return json.dumps(reason, ensure_ascii=False)
