"""The planted bugs. Each is a mistake that a careful developer could make,
with its effect on a user.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from controller import folders, journal, loop, memory, search
from controller.core import breaker, budget, decide, failures, observe
from controller.core import snapshot as asked
from controller.core.attempt import Exit
from controller.core.failures import Judgment, LogSummary
from controller.core.metrics import LogReader
from controller.core.model import (
    FINAL,
    Attempt,
    AttemptState,
    ExperimentSpec,
    ExperimentState,
    FailureClass,
    ReasonCode,
    StopCause,
)
from controller.core.snapshot import Snapshot, UnfinishedTrial
from controller.core.states import Ended
from controller.experiment_store import Changes
from controller.runtime.protocol import Launch
from suggest.trial import Outcome, Trial, TrialState

Loop = Any  # the mutants use private attributes of the loop


@dataclass(frozen=True)
class Mutant:
    """A planted bug. `places` are (module or class, name of the function) that `bug` replaces.

    rare_run: the run to begin with, which met a rare bug when it was planted; it saves minutes.
    """

    name: str
    costs: str
    places: tuple[tuple[Any, str], ...]
    bug: Callable[..., Any]
    rare_run: int = 1


MUTANTS: list[Mutant] = []


def mutant(
    costs: str, *places: tuple[Any, str], rare_run: int = 1
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def plant(bug: Callable[..., Any]) -> Callable[..., Any]:
        MUTANTS.append(Mutant(bug.__name__, costs, places, bug, rare_run))
        return bug

    return plant


_limit, _close, _judge, _missing = decide._limit, decide._close, failures.judge, observe._missing
_open, _act = loop.Loop.open, loop.Loop._act
_trip, _ending, _follow = breaker.trip, budget.ending, memory.Memory._follow
_note_attempt = memory.Memory.note_attempt
_finish, _final_is_due = decide._finish, decide._final_is_due
_inherit = folders.AttemptFolders.inherit


@mutant("more trials run at once than there are GPUs", (decide, "_limit"))
def one_too_many_at_once(snapshot: Snapshot) -> int:
    return _limit(snapshot) + 1


@mutant("a search that learns knows less than it could", (decide, "_limit"))
def two_prefetched_although_it_learns(snapshot: Snapshot) -> int:
    return _limit(replace(snapshot, prefetch=2))


@mutant("a broken command fails in every slot at once", (decide, "_limit"))
def no_canary(snapshot: Snapshot) -> int:
    return _limit(replace(snapshot, canary_over=True))


@mutant("the budget is overspent while trials are under way", (budget, "room"))
def room_forgets_what_is_under_way(
    spec: ExperimentSpec, counts: Mapping[TrialState, int], unfinished: int
) -> int | None:
    return (
        None
        if spec.budget.trials is None
        else max(0, spec.budget.trials - budget.spent_trials(counts))
    )


@mutant(
    "failed attempts cost nothing, and the budget is overspent", (memory.Memory, "note_attempt")
)
def only_what_succeeded_costs(self: Any, attempt: Attempt) -> None:
    spent = self._spent_by_ended
    _note_attempt(self, attempt)
    if attempt.state is AttemptState.FAILED:
        self._spent_by_ended = spent


@mutant("retries begin after the money is used up", (decide, "_withdraw"))
def what_waits_begins_after_the_end(
    unfinished: Sequence[UnfinishedTrial], snapshot: Snapshot, reason: str
) -> Iterator[asked.Action]:
    return decide._attempts(unfinished, snapshot)


@mutant("cancelled trials eat the budget", (budget, "spent_trials"), rare_run=5)
def cancelled_trials_count(counts: Mapping[TrialState, int]) -> int:
    return sum(n for state, n in counts.items() if state.finished)


@mutant("a trial that failed for good is run again and again", (decide, "may_retry"))
def one_retry_too_many(attempts: Sequence[Attempt], retries: Mapping[FailureClass, int]) -> bool:
    return failures.may_retry(attempts, {c: retries.get(c, 0) + 1 for c in FailureClass})


@mutant("a lost node loses the trial", (decide, "may_retry"))
def never_a_retry(attempts: Sequence[Attempt], retries: Mapping[FailureClass, int]) -> bool:
    return False


@mutant("nan is the best value of the study", (observe, "judge"), rare_run=3)
def nan_is_a_value(end: Exit, log: LogSummary, cause: StopCause | None, **words: Any) -> Judgment:
    if log.value is not None and not math.isfinite(log.value):
        log = replace(log, value=0.0)
    return _judge(end, log, cause, **words)


@mutant("a pruned trial counts as killed by the cluster", (observe, "judge"))
def our_own_signal_is_a_failure(
    end: Exit, log: LogSummary, cause: StopCause | None, **words: Any
) -> Judgment:
    return _judge(replace(end, stopped=False), log, cause, **words)


@mutant("a vanished trial is waited for for ever", (observe, "_missing"))
def nobody_misses_the_vanished(attempt: Attempt, log: LogReader, now: datetime) -> Ended | None:
    return None


@mutant("Ctrl-C throws away what was running", (decide, "_close"))
def interrupted_is_cancelled(trial: UnfinishedTrial, snapshot: Snapshot) -> Any:
    newest = trial.newest
    if newest is not None and newest.state is AttemptState.CANCELLED and trial.running:
        return asked.Complete(trial.number, Outcome(TrialState.CANCELLED, reason=newest.reason))
    return _close(trial, snapshot)


@mutant("a missing command burns the whole budget", (journal.Journal, "_with_pause"))
def configuration_does_not_pause(
    self: Any, attempts: list[Attempt], events: list[Any], now: datetime
) -> Changes:
    return Changes(None, attempts, events)


@mutant("a corrected experiment counts its trial as failed", (decide, "_runs_again"))
def lifting_a_pause_forgets_the_trial(trial: UnfinishedTrial, snapshot: Snapshot) -> bool:
    return failures.may_retry(trial.attempts, snapshot.spec.trial.retries)


_serial = itertools.count()


@mutant(
    "a lost reply costs a trial that nobody runs", (search.ExperimentStudy, "suggest"), rare_run=9
)
async def every_request_has_a_new_id(
    self: Any, count: int, *, handed_out: int, paused_only: bool = False
) -> Any:
    request_id = f"{self._uid}-{next(_serial)}-x"
    more = {"labels": {}, "paused_only": paused_only}
    return await self._studies.suggest(
        self._name, count, client_id=self._uid, request_id=request_id, **more
    )


@mutant("a promoted trial begins with its first attempt again", (memory.Memory, "pause"))
def pausing_forgets_the_attempts(
    self: memory.Memory, trial: Trial, attempts: list[Attempt]
) -> None:
    self.paused[trial.number] = memory.Opened(
        trial, [], *self.new_readers(trial, []), running=False
    )
    self.none_goes_on = False


@mutant("an ended experiment leaves trials paused", (decide, "_end_paused"))
def nobody_ends_the_paused(paused: Any, snapshot: Snapshot, reason: str) -> Any:
    return ()


@mutant("a kill between start and record runs the attempt twice", (loop.Loop, "_act"))
async def start_before_the_record(self: Loop, action: Any) -> bool:
    if not isinstance(action, asked.CreateAttempt) or action.trial == FINAL:
        return bool(await _act(self, action))
    known = self._memory.opened[action.trial]
    created = Attempt(action.trial, action.number)
    template = self.experiment.spec.trial
    here = Path("/")
    await self._runtime.start(
        Launch(
            self._journal.name(created),
            ("true",),
            {},
            here,
            here,
            template.timeout_s,
            template.grace_s,
        )
    )
    self._journal.attempt_created(created, now=self._clock.now())
    self._memory.begin(known, created, now_s=self._clock.elapsed_s())
    return False


@mutant("what the store refused is remembered as done", (loop.Loop, "_save"))
def remember_then_store(self: Loop, changes: list[tuple[Any, Attempt]]) -> None:
    pairs = [(known.attempts[-1], after) for known, after in changes if after != known.attempts[-1]]
    for known, after in changes:
        known.attempts[-1] = after
    self._journal.attempts_changed(pairs, now=self._clock.now())


@mutant("after a kill the budget starts over", (loop.Loop, "open"))
async def finished_trials_are_forgotten(self: Loop) -> None:
    await _open(self)
    self._memory.counts.clear()


@mutant("a trial that ended while the controller was dead runs again", (loop.Loop, "_sweep"))
async def sweep_everything(self: Loop) -> None:
    for name in await self._runtime.observe():
        await self._runtime.remove(name)


@mutant("a trial that failed in the cluster counts twice", (loop.Loop, "_complete"))
async def counted_before_it_is_told(self: Loop, number: int, outcome: Outcome) -> None:
    known = self._memory.opened.get(number)
    counts = self._memory.counts
    counts[outcome.state] = counts.get(outcome.state, 0) + 1
    await self._search.complete(number, outcome, [] if known is None else known.unreported)
    if known is not None:
        known.running = False


@mutant("the search continues after the target is reached", (budget, "ending"))
def no_ending_but_the_budget(spec: ExperimentSpec, standing: budget.Standing, **_more: Any) -> Any:
    spent = budget.spent_trials(standing.counts)
    if spec.budget.trials is not None and spent >= spec.budget.trials:
        return budget.Ending(ExperimentState.SUCCEEDED, "done", True, ReasonCode.TRIALS_DONE)
    return (
        budget.Ending(ExperimentState.SUCCEEDED, "tried", True, ReasonCode.SPACE_EXHAUSTED)
        if standing.exhausted
        else None
    )


@mutant("hopeless trials run to their end", (decide, "_stops"))
def advice_is_not_taken(left: Sequence[UnfinishedTrial], snapshot: Snapshot) -> Iterator[Any]:
    return iter(())


@mutant(
    "a restarted controller never sends the stop it recorded",
    (decide, "_stop_everything"),
    rare_run=2,
)
def stops_are_recorded_only(
    left: Sequence[UnfinishedTrial], snapshot: Snapshot, cause: StopCause, reason: str
) -> Any:
    for trial in left:
        newest = trial.newest
        if newest is not None and newest.state in (AttemptState.CREATED, AttemptState.RUNNING):
            yield asked.AskStop(trial.number, cause, reason)


@mutant("a preempted trial holds a GPU on paper while another workload has it", (loop, "event_for"))
def preemption_is_not_seen(attempt: Attempt, status: Any, *rest: Any, **known: Any) -> Any:
    shown = None if status is None else replace(status, suspended=False)
    return observe.event_for(attempt, shown, *rest, **known)


@mutant("the final stage takes a GPU from trials that still run", (decide, "_finish"), rare_run=2)
def final_stage_does_not_wait(
    final: Any, left: Any, snapshot: Snapshot, ending: Any, *, begin: bool
) -> Iterator[Any]:
    return _finish(final, [], snapshot, ending, begin=True)


@mutant(
    "the model that is shipped has the parameters of the last trial",
    (search.ExperimentStudy, "best"),
    rare_run=8,
)
async def latest_instead_of_best(self: Any) -> Any:
    return max(
        (trial for trial in await self.trials() if trial.state is TrialState.SUCCEEDED),
        key=lambda trial: trial.number,
    )


@mutant("after a kill the final stage runs a second time", (memory.Memory, "recall_finals"))
def final_stage_is_forgotten(self: Any, attempts: Sequence[Attempt], *, begun: Any) -> None:
    self.finals, self.earlier_finals = [], max((each.number for each in attempts), default=0)


@mutant("after Ctrl-C and resume there is no model", (decide, "_final_is_due"))
def interrupted_final_stage_is_over(final: Any, snapshot: Snapshot, ending: Any) -> bool:
    stopped = final.newest is not None and final.newest.state is AttemptState.CANCELLED
    return not stopped and _final_is_due(final, snapshot, ending)


@mutant(
    "a search that was extended ships the model of its first end",
    (decide, "_final_is_outdated"),
    rare_run=3,
)
def final_stage_never_ages(snapshot: Snapshot) -> bool:
    return False


@mutant("a broken script burns the whole budget", (breaker, "trip"), rare_run=4)
def the_breaker_never_opens(spec: ExperimentSpec, streak: Any, *, alone: bool) -> None:
    return None


@mutant(
    "a script that broke meanwhile burns the rest of the budget",
    (breaker, "max_same_failures"),
    rare_run=8,
)
def only_the_first_trials_are_looked_at(spec: ExperimentSpec) -> int:
    return 10**6


@mutant(
    "with failedTrials: 1 the first mistake ends the experiment", (budget, "ending"), rare_run=4
)
def failures_come_before_the_breaker(*known: Any, suspended: bool = False, **more: Any) -> Any:
    return _ending(*known, **more)


@mutant(
    "the one failed trial of a budget of one ends the experiment",
    (breaker, "half_open"),
    rare_run=4,
)
def nothing_is_tried_a_second_time(spec: ExperimentSpec, streak: Any, *, exhausted: bool) -> bool:
    return False


@mutant("a corrected script is blamed for what failed before", (journal.Journal, "broken"))
def the_pause_sets_nothing_aside(
    self: Any, failures: list[Attempt], reason: str, *, now: datetime
) -> None:
    code = ReasonCode.REPEATED_FAILURES
    self.experiment_changed(ExperimentState.PAUSED, reason or self.experiment.reason, code, now=now)


@mutant("after resume it pauses at once for what a person has seen", (memory.Memory, "_follow"))
def reviewed_failures_count_again(self: Any, trial: Any, newest: Attempt | None) -> None:
    _follow(self, trial, None if newest is None else replace(newest, reviewed=False))


@mutant("what was set aside stays failed", (loop.Loop, "_reopened"))
async def set_aside_for_good(self: Loop, trials: list[Any], attempts: Any) -> list[Any]:
    return trials


@mutant(
    "what failed before the correction uses up the retries after it",
    (decide, "may_retry"),
    rare_run=51,
)
def retries_remember_too_much(
    attempts: Sequence[Attempt], retries: Mapping[FailureClass, int]
) -> bool:
    return failures.may_retry([replace(each, set_aside=False) for each in attempts], retries)


@mutant("after a failed first trial all others start at once", (memory.Memory, "note_attempt"))
def a_failed_canary_has_shown_itself(self: Any, attempt: Attempt) -> None:
    self._shown |= attempt.trial != FINAL and attempt.step is not None


@mutant(
    "a child trains from the beginning, although its parent has a checkpoint",
    (folders.AttemptFolders, "inherit"),
    rare_run=8,
)
def the_folder_is_made_before_the_copy(self: folders.AttemptFolders, parent: Path) -> None:
    self.checkpoint.mkdir(parents=True, exist_ok=True)
    _inherit(self, parent)
