"""Decide what to do next: `decide` turns a snapshot into a list of actions.

No clock, no I/O, no randomness, no state.

Every turn decides from durable facts alone, so a restarted controller makes the same decisions. The
loop carries out the actions in order, and each of them is idempotent. The list covers one turn:
after acting, the loop takes the next turn without waiting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.core import breaker, budget
from controller.core.failures import may_retry
from controller.core.model import (
    FINAL,
    AttemptState,
    ExperimentState,
    FailureClass,
    ReasonCode,
    StopCause,
)
from controller.core.snapshot import (
    Action,
    AskStop,
    BoundRegret,
    ChangeState,
    Complete,
    CreateAttempt,
    DesiredState,
    FinalStage,
    Forget,
    OpenBreaker,
    OutdateFinal,
    RemoveAttempt,
    SendStop,
    Snapshot,
    StartAttempt,
    Suggest,
    UnfinishedTrial,
)
from suggest.trial import Outcome, TrialState

MAX_SUGGESTIONS = 100  # per request
# The most attempts of an experiment that are created and do not run yet. Each costs memory, and its
# trial was suggested without the results of running ones. `parallelism` may be far above what the
# cluster has room for.
MOST_WAITING = 300
PAUSED = "the experiment was paused before it started"
COMPLETED_ELSEWHERE = "the trial was completed by another client"


@dataclass(slots=True)
class _Turn:
    """What is known once the trials that end in this turn have ended.

    actions: complete these trials, and forget paused ones.
    forgets: carried out last, because free slots wait for the other actions.
    unfinished: the trials that stay open.
    improved: a trial that ends in this turn is the best one, or may join the Pareto front.
    """

    counts: dict[TrialState, int]
    best: float | None
    since_best: int
    streak: breaker.Streak
    paused: dict[int, float]
    none_goes_on: bool
    none_begins: bool
    actions: list[Action] = field(default_factory=list)
    forgets: list[Action] = field(default_factory=list)
    unfinished: list[UnfinishedTrial] = field(default_factory=list)
    improved: bool = False

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Turn:
        turn = cls(
            counts=dict(snapshot.counts),
            best=snapshot.best,
            since_best=snapshot.since_best,
            streak=snapshot.streak,
            paused=dict(snapshot.paused),
            none_goes_on=snapshot.none_goes_on,
            none_begins=snapshot.none_begins,
        )
        for trial in snapshot.trials:
            closing = _close(trial, snapshot)
            if closing is None:
                turn.unfinished.append(trial)
                continue
            # A paused trial is forgotten before the suggestion, which may let it continue.
            can_wait = isinstance(closing, Forget) and closing.trial not in snapshot.paused
            (turn.forgets if can_wait else turn.actions).append(closing)
            if isinstance(closing, Complete):
                turn._count(trial, closing, snapshot)
        if not snapshot.spec.criteria.is_plain:
            # Only the next turn knows whether one of them joined the front:
            # the study needs all of its values first.
            before = snapshot.counts.get(TrialState.SUCCEEDED, 0)
            turn.improved |= turn.counts.get(TrialState.SUCCEEDED, 0) > before
        return turn

    def _count(self, trial: UnfinishedTrial, closing: Complete, snapshot: Snapshot) -> None:
        outcome = closing.outcome
        self.none_goes_on = self.none_begins = False
        if _pauses(trial, outcome, snapshot):
            self.paused[closing.trial] = trial.fidelity or 0.0
            return
        self.counts[outcome.state] = self.counts.get(outcome.state, 0) + 1
        self.streak = self.streak.after(closing.trial, outcome)
        if outcome.state is TrialState.SUCCEEDED:
            better = snapshot.spec.objective.better(self.best, outcome.value)
            self.improved |= better != self.best
            self.best = better
        self.since_best += outcome.state is not TrialState.CANCELLED


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What the limits and the circuit breaker say, including the trials that end in this turn.

    That way, no trial is requested after the last allowed failure or beyond the target.

    ending: the experiment is over; running trials may still finish.
    trip: the circuit breaker opens, or is open.
    one_more: the breaker waits for one more trial, even beyond the budget.
    may_suggest: new trials may be requested.
    """

    ending: budget.Ending | None
    trip: breaker.Trip | None
    one_more: bool
    may_suggest: bool

    @classmethod
    def of(cls, turn: _Turn, snapshot: Snapshot) -> _Verdict:
        spec, unfinished = snapshot.spec, turn.unfinished
        standing = budget.Standing(
            counts=turn.counts,
            best=turn.best,
            running_s=snapshot.running_s,
            exhausted=snapshot.exhausted and not turn.paused,
            since_best=0 if turn.improved else turn.since_best,
            reached=snapshot.reached,
            regret_bound=snapshot.regret_bound,
            paused=len(turn.paused),
            spent=snapshot.spent,
            ended_by=snapshot.ended_by,
            idle=not unfinished and not turn.paused,
        )
        ending = budget.ending(spec, standing)
        # Ask the breaker before the experiment may end as failed,
        # because trials that it sets aside have not failed.
        trip = _trip(unfinished, turn.streak, snapshot)
        one_more = _one_more(unfinished, turn.counts, turn.streak, snapshot)
        failing = ending is None or ending.state is ExperimentState.FAILED
        waits = one_more or _undecided(unfinished, turn.streak, snapshot)
        suspended = failing and (trip is not None or waits)
        # If only the breaker keeps the experiment from ending, the running trials decide, or one
        # more if none runs.
        awaited = ending is not None and bool(unfinished)
        if suspended or snapshot.set_aside:
            ending = budget.ending(spec, standing, suspended=True)
        if ending is not None:
            ending = replace(ending, reason=spec.words(ending.reason))
            return cls(ending, None, one_more, may_suggest=False)
        may_end = awaited or _may_end_without_improvement(turn, snapshot)
        return cls(None, trip, one_more, may_suggest=trip is None and not may_end)


def decide(snapshot: Snapshot) -> list[Action]:
    final, turn = snapshot.final, _Turn.of(snapshot)
    verdict = _Verdict.of(turn, snapshot)
    actions: list[Action] = [OutdateFinal()] if _final_is_outdated(snapshot) else []
    actions += turn.actions
    actions += _search(turn, verdict, snapshot)
    actions += turn.forgets
    needs_estimate = budget.needs_estimate(snapshot.spec, turn.counts, snapshot.estimated)
    if verdict.ending is None and needs_estimate:
        # Takes time, and no slot waits for it.
        actions.append(BoundRegret(budget.spent_trials(turn.counts)))
    unfinished = list(turn.unfinished)
    if final is not None:
        quiet = not unfinished and not actions
        actions += _finish(final, unfinished, snapshot, verdict.ending, begin=quiet)
        if final.active or (quiet and _final_is_due(final, snapshot, verdict.ending)):
            unfinished.append(final.as_trial)
    if verdict.trip is not None and snapshot.desired is not DesiredState.STOP:
        actions.append(OpenBreaker(verdict.trip.trials, verdict.trip.reason))
    else:
        actions += _change(unfinished, actions, snapshot, verdict.ending)
    return actions


def _search(turn: _Turn, verdict: _Verdict, snapshot: Snapshot) -> Iterator[Action]:
    """Yield the stops and starts of trials, and the end of paused trials."""
    final, unfinished, ending = snapshot.final, turn.unfinished, verdict.ending
    stopping = _stop_cause(snapshot, ending)
    # Otherwise the trial is closed with all its attempts.
    if stopping is None or stopping[0] is StopCause.INTERRUPTED:
        ended = (trial for trial in unfinished if _is_over(trial, snapshot))
        yield from (RemoveAttempt(trial.number) for trial in ended)
    if stopping is not None:
        yield from _stop_everything(unfinished, snapshot, *stopping)
        if stopping[0] is StopCause.CANCELLED:
            yield from _end_paused(turn.paused, snapshot, stopping[1])
    elif not unfinished and (ending is not None or _paused_are_over(turn, snapshot)):
        yield from _end_paused(turn.paused, snapshot, "" if ending is None else ending.reason)
    else:
        yield from _stops(unfinished, snapshot)
        if ending is not None and ending.closed:
            yield from _withdraw(unfinished, snapshot, ending.reason)
            return
        # While the final stage runs, only ask whether the search has more points:
        # then the stage is stopped for them.
        if final is None or not final.active or not unfinished:
            yield from _starts(turn, verdict, snapshot)


def _may_end_without_improvement(turn: _Turn, snapshot: Snapshot) -> bool:
    """Return whether trials without improvement reach the limit, unless one just joined the front.

    The next turn knows: the study needs all values of the trial first.
    """
    limit = snapshot.spec.budget.no_improvement
    may_have_joined = turn.improved and not snapshot.spec.criteria.is_plain
    return may_have_joined and limit is not None and turn.since_best >= limit


def _no_trial_begins(turn: _Turn, snapshot: Snapshot) -> bool:
    """Return whether the budget or the space has no room for another new trial."""
    unfinished = sum(trial.running for trial in turn.unfinished) + len(turn.paused)
    return snapshot.exhausted or budget.room(snapshot.spec, turn.counts, unfinished) == 0


def _paused_are_over(turn: _Turn, snapshot: Snapshot) -> bool:
    """Return whether nothing lets a paused trial continue any more, if no trial is open."""
    is_paused = snapshot.state is ExperimentState.PAUSED
    return turn.none_goes_on and not is_paused and _no_trial_begins(turn, snapshot)


def _trip(
    unfinished: Sequence[UnfinishedTrial], streak: breaker.Streak, snapshot: Snapshot
) -> breaker.Trip | None:
    """Return the trip of the circuit breaker, if it opens or is open.

    A trial that was still running when the breaker opened, and then fails for the same reason, is
    set aside as well. The breaker also opens while the experiment is paused for another reason, so
    that failures do not end it.
    """
    if snapshot.state is ExperimentState.PAUSED and snapshot.set_aside:
        return breaker.Trip(streak.alike, "") if streak.alike else None
    newest = None if snapshot.final is None else snapshot.final.newest
    if newest is not None and newest.state is not AttemptState.CANCELLED and not unfinished:
        # The search may have ended: a restarted controller does not know yet
        # whether the space is exhausted.
        return None
    return breaker.trip(
        snapshot.spec, streak, alone=not any(trial.occupies_slot for trial in unfinished)
    )


def _one_more(
    unfinished: Sequence[UnfinishedTrial],
    counts: Mapping[TrialState, int],
    streak: breaker.Streak,
    snapshot: Snapshot,
) -> bool:
    """Return whether the breaker waits for one more trial that may run.

    The trial is within the budget, or the second of all.
    """
    if not breaker.half_open(snapshot.spec, streak, exhausted=snapshot.exhausted):
        return False
    may_be_second = bool(unfinished) or budget.spent_trials(counts) == 1
    return may_be_second or budget.room(snapshot.spec, counts, 0) != 0


def _undecided(
    unfinished: Sequence[UnfinishedTrial], streak: breaker.Streak, snapshot: Snapshot
) -> bool:
    """Return whether all ended trials failed by themselves, but a running one may end otherwise."""
    running = any(trial.occupies_slot for trial in unfinished)
    return running and breaker.watches_first(snapshot.spec) and bool(streak.first)


def _finish(
    final: FinalStage,
    unfinished: Sequence[UnfinishedTrial],
    snapshot: Snapshot,
    ending: budget.Ending | None,
    *,
    begin: bool,
) -> Iterator[Action]:
    """Yield the actions of the final stage.

    `begin` says that the search is over and needs no more actions.
    """
    if final.active:
        stop = _final_stop_cause(snapshot, search_goes_on=bool(unfinished))
        if stop is not None:
            yield from _stop_everything([final.as_trial], snapshot, *stop)
        else:
            yield from _stops([final.as_trial], snapshot)
            yield from _attempts([final.as_trial], snapshot)
    elif _final_is_due(final, snapshot, ending):
        if begin and snapshot.desired is DesiredState.RUN:
            if final.kept and _is_over(final.as_trial, snapshot):
                yield RemoveAttempt(FINAL)
            yield CreateAttempt(FINAL, final.next_number)
    elif final.kept:
        yield Forget(FINAL)


def _final_stop_cause(snapshot: Snapshot, *, search_goes_on: bool) -> tuple[StopCause, str] | None:
    """Return why the final stage must stop.

    A reached target or a spent budget does not stop it: it begins there.
    """
    if snapshot.desired is DesiredState.STOP:
        return StopCause.CANCELLED, "tuner stop"
    if search_goes_on:
        return StopCause.CANCELLED, "the search continues"
    if snapshot.spec.final is None:
        return StopCause.CANCELLED, "the file has no final stage any more"
    if snapshot.desired is DesiredState.INTERRUPT:
        return (StopCause.INTERRUPTED, "interrupted")
    return None


def _final_is_due(final: FinalStage, snapshot: Snapshot, ending: budget.Ending | None) -> bool:
    """Return whether the final stage has to run (again) before the experiment may end."""
    if snapshot.spec.final is None or snapshot.best is None:
        return False
    if snapshot.desired is DesiredState.STOP:
        return False
    if ending is None or ending.state is not ExperimentState.SUCCEEDED:
        return False
    match final.newest.state if final.newest is not None else None:
        # Interrupted, or stopped and resumed.
        case None | AttemptState.CANCELLED:
            return True
        case AttemptState.FAILED:
            return may_retry(final.attempts, snapshot.spec.trial.retries)
        case _:
            return False


def _final_is_outdated(snapshot: Snapshot) -> bool:
    """Return whether the search has trials again after the final stage ran.

    This is recorded before anything is done about these trials,
    because nothing shows it once they are closed.
    """
    final = snapshot.final
    return final is not None and bool(final.attempts) and not final.active and bool(snapshot.trials)


def beginnings(snapshot: Snapshot) -> list[CreateAttempt]:
    """Return the actions that a suggestion allows in the same turn: its trials begin.

    All other actions wait for the next observation. That includes the final stage: actions that
    were decided before the suggestion are still pending, and one of them may be to forget how the
    final stage last ended.
    """
    created = (action for action in decide(snapshot) if isinstance(action, CreateAttempt))
    return [action for action in created if action.trial is not FINAL]


def follow_ups(snapshot: Snapshot) -> list[Action]:
    """Return what to do after acting, without observing again.

    Attempts that were just started are not started again merely
    because they were not seen running yet.
    """
    return [action for action in decide(snapshot) if not isinstance(action, StartAttempt)]


def _stop_cause(snapshot: Snapshot, ending: budget.Ending | None) -> tuple[StopCause, str] | None:
    """Return why all attempts must stop, and what that makes of them; None: they need not."""
    if snapshot.desired is DesiredState.STOP:
        return StopCause.CANCELLED, "tuner stop"
    if ending is not None and not ending.drain:
        return StopCause.CANCELLED, ending.reason
    if snapshot.desired is DesiredState.INTERRUPT:
        return StopCause.INTERRUPTED, "interrupted"
    return None


def _pauses(trial: UnfinishedTrial, outcome: Outcome, snapshot: Snapshot) -> bool:
    """Return whether the study will pause the trial on this outcome.

    It does so if the trial has a larger fidelity to reach.
    """
    fidelity = snapshot.spec.fidelity
    if fidelity is None or trial.fidelity is None:
        return False
    return outcome.state is TrialState.SUCCEEDED and trial.fidelity < fidelity.levels[-1]


def _end_paused(paused: Mapping[int, float], snapshot: Snapshot, reason: str) -> Iterator[Complete]:
    """Yield the end of paused trials: cancelled by `tuner stop`, else pruned with their value."""
    stopped = snapshot.desired is DesiredState.STOP
    state = TrialState.CANCELLED if stopped else TrialState.PRUNED
    fidelity = snapshot.spec.fidelity
    name = "" if fidelity is None else fidelity.parameter
    cause = f": {reason}" if reason else ""
    for number, reached in sorted(paused.items()):
        explanation = reason if stopped else f"not promoted beyond {name} {reached:g}{cause}"
        yield Complete(number, Outcome(state, reason=explanation))


def _close(trial: UnfinishedTrial, snapshot: Snapshot) -> Complete | Forget | None:
    """Return the action that ends a trial by its newest attempt; None while it is undecided."""
    newest, number = trial.newest, trial.number
    # Snapshot.trials has trials only: the final stage has no outcome for the study.
    assert number is not FINAL
    if not trial.running:
        return Forget(number) if newest is None or newest.ended else None
    if newest is None or trial.goes_on:
        return None
    match newest.state:
        case AttemptState.SUCCEEDED:
            return Complete(number, Outcome(TrialState.SUCCEEDED, newest.value))
        case AttemptState.PRUNED:
            is_number = newest.value is not None and math.isfinite(newest.value)
            value = newest.value if is_number else None
            return Complete(number, Outcome(TrialState.PRUNED, value, newest.reason))
        case AttemptState.INFEASIBLE:
            return Complete(number, Outcome(TrialState.INFEASIBLE, reason=newest.reason))
        case AttemptState.CANCELLED if newest.stop_cause is not StopCause.INTERRUPTED:
            return Complete(number, Outcome(TrialState.CANCELLED, reason=newest.reason))
        case AttemptState.FAILED if not _runs_again(trial, snapshot):
            failure_class = newest.failure_class.value if newest.failure_class else ""
            return Complete(number, Outcome(TrialState.FAILED, None, newest.reason, failure_class))
        case _:
            return None


def _runs_again(trial: UnfinishedTrial, snapshot: Snapshot) -> bool:
    """Return whether the trial of a failed newest attempt runs again: now, or after a pause."""
    newest = trial.newest
    if newest is None or newest.failure_class is None:
        return False
    # A configuration failure paused the experiment; resuming runs the trial again.
    if newest.set_aside or newest.failure_class is FailureClass.CONFIGURATION:
        return True
    return may_retry(trial.attempts, snapshot.spec.trial.retries)


def _is_over(trial: UnfinishedTrial, snapshot: Snapshot) -> bool:
    """Return whether another attempt may follow an ended one whose objects may still exist."""
    newest = trial.newest
    over = newest is not None and (newest.state is AttemptState.FAILED or trial.goes_on)
    return over and trial.number not in snapshot.removed


def _stops(unfinished: Sequence[UnfinishedTrial], snapshot: Snapshot) -> Iterator[Action]:
    for trial in unfinished:
        newest = trial.newest
        if newest is None or newest.ended:
            continue
        if newest.state is AttemptState.STOPPING:
            if trial.number not in snapshot.stops_sent:
                yield SendStop(trial.number, snapshot.spec.trial.grace_s)
        elif not trial.running:
            yield AskStop(trial.number, StopCause.CANCELLED, COMPLETED_ELSEWHERE)
        elif trial.number in snapshot.advised:
            yield AskStop(trial.number, StopCause.PRUNED, snapshot.advised[trial.number])
        elif trial.number in snapshot.barred:
            yield AskStop(trial.number, StopCause.INTERRUPTED, snapshot.barred[trial.number])
        elif trial.number in snapshot.held and snapshot.state is ExperimentState.PAUSED:
            yield AskStop(trial.number, StopCause.INTERRUPTED, PAUSED)


def _stop_everything(
    unfinished: Sequence[UnfinishedTrial], snapshot: Snapshot, cause: StopCause, reason: str
) -> Iterator[Action]:
    grace_s = 0.0 if snapshot.without_grace else snapshot.spec.trial.grace_s
    for trial in unfinished:
        newest = trial.newest
        if newest is None or newest.ended:
            # The trial waits to run (again). It keeps waiting if interrupted;
            # if cancelled, that is its outcome.
            if cause is StopCause.CANCELLED and trial.running and trial.number is not FINAL:
                yield Complete(trial.number, Outcome(TrialState.CANCELLED, reason=reason))
        elif newest.state is not AttemptState.STOPPING:
            yield AskStop(trial.number, cause, reason)
        elif snapshot.stops_sent.get(trial.number, math.inf) > grace_s:
            yield SendStop(trial.number, grace_s)


def _withdraw(
    unfinished: Sequence[UnfinishedTrial], snapshot: Snapshot, reason: str
) -> Iterator[Action]:
    """Yield the end of trials whose attempts do not run yet. Those that run may finish."""
    for trial in unfinished:
        newest = trial.newest
        if not trial.running or trial.number in snapshot.advised:
            continue
        if newest is None or newest.ended:
            # The final stage begins only once the search is over.
            assert trial.number is not FINAL
            yield Complete(trial.number, Outcome(TrialState.CANCELLED, reason=reason))
        elif newest.state is AttemptState.CREATED:
            yield AskStop(trial.number, StopCause.CANCELLED, reason)


def _starts(turn: _Turn, verdict: _Verdict, snapshot: Snapshot) -> Iterator[Action]:
    """Yield the attempts to start, oldest trial first, and then the request for new trials."""
    begun = list(_attempts(turn.unfinished, snapshot, may_create=verdict.trip is None))
    yield from begun
    if verdict.may_suggest and snapshot.state is not ExperimentState.PAUSED:
        created = sum(isinstance(action, CreateAttempt) for action in begun)
        free = _free(turn.unfinished, snapshot) - created
        yield from _requests(turn, snapshot, min(free, MAX_SUGGESTIONS), one_more=verdict.one_more)


def _attempts(
    unfinished: Sequence[UnfinishedTrial], snapshot: Snapshot, *, may_create: bool = True
) -> Iterator[StartAttempt | CreateAttempt]:
    """Yield the starts of attempts that were created, and new attempts of trials that have none."""
    may_create = may_create and snapshot.state is not ExperimentState.PAUSED
    free = _free(unfinished, snapshot) if may_create else 0
    for trial in unfinished:
        newest = trial.newest
        if newest is not None and newest.state is AttemptState.CREATED:
            if trial.number in snapshot.held:
                continue
            # Otherwise it was just asked to stop.
            if trial.running and trial.number not in snapshot.advised:
                yield StartAttempt(trial.number, newest.number)
        elif trial.running and not trial.occupies_slot and free > 0:
            free -= 1
            yield CreateAttempt(trial.number, 1 if newest is None else newest.number + 1)


def _requests(turn: _Turn, snapshot: Snapshot, limit: int, *, one_more: bool) -> Iterator[Suggest]:
    """Yield the request for at most `limit` trials: paused ones if no new trial may begin.

    With `one_more`, at least one trial is requested if none is open, even beyond the budget.
    """
    if limit <= 0:
        return
    if turn.paused and _no_trial_begins(turn, snapshot):
        if not turn.none_goes_on:
            yield Suggest(min(limit, len(turn.paused)), paused_only=True)
        return
    unfinished = sum(trial.running for trial in turn.unfinished)
    if turn.none_begins and unfinished:
        return
    room = budget.room(snapshot.spec, turn.counts, unfinished + len(turn.paused))
    if one_more and not unfinished and room is not None:
        room = max(room, 1)
    count = limit if room is None else min(limit, room)
    if count > 0:
        yield Suggest(count)


def _free(unfinished: Sequence[UnfinishedTrial], snapshot: Snapshot) -> int:
    """Return how many more attempts may be created."""
    newest = [trial.newest for trial in unfinished if trial.newest is not None]
    open_ = sum(not attempt.ended for attempt in newest)
    waiting = sum(attempt.state is AttemptState.CREATED for attempt in newest)
    return min(_limit(snapshot) - open_, MOST_WAITING - waiting)


def _limit(snapshot: Snapshot) -> int:
    """Return how many attempts may be created and not ended.

    Successors beyond `parallelism` are created ahead of need only where trials are short enough to
    gain from it, and `Launch.slots` keeps them from running. Where the runtime has a fixed number
    of slots, no successor is created: its GPUs are assigned when it starts.
    """
    room = snapshot.spec.parallelism - snapshot.elsewhere
    parallelism = room if snapshot.canary_over else min(room, 1)
    if snapshot.slots is not None:
        return min(parallelism, snapshot.slots)
    if snapshot.canary_over and not snapshot.elsewhere:
        return parallelism + min(parallelism, snapshot.prefetch)
    return parallelism


def _change(
    unfinished: Sequence[UnfinishedTrial],
    actions: Sequence[Action],
    snapshot: Snapshot,
    ending: budget.Ending | None,
) -> Iterator[ChangeState]:
    """Yield the change of the experiment's own state, at most one per turn.

    Its end comes only when nothing is open.
    """
    busy = any(trial.occupies_slot for trial in unfinished) or bool(actions)
    if ending is not None and ending.drain and snapshot.elsewhere:
        ending = None
    failure = snapshot.final.failure if snapshot.final is not None else ""
    if snapshot.desired is DesiredState.STOP:
        code = ReasonCode.STOP_REQUESTED
        if not (unfinished or actions):
            yield ChangeState(ExperimentState.STOPPED, "stopped by tuner stop", True, code)
        elif snapshot.state is not ExperimentState.STOPPING:
            yield ChangeState(ExperimentState.STOPPING, "tuner stop", False, code)
    elif ending is not None and not unfinished and not actions:
        yield ChangeState(ending.state, ending.reason + failure, True, ending.code)
    elif snapshot.slots == 0 and snapshot.state is not ExperimentState.PAUSED and not busy:
        trial = snapshot.spec.trial
        gpus = f"{trial.resources.gpu:g}"
        if trial.workers > 1:
            gpus += f" for each of {trial.workers} workers"
        reason = snapshot.spec.words(
            f"a trial asks for more GPUs ({gpus}) than this machine has; lower "
            "spec.trial.resources.gpu"
        )
        yield ChangeState(ExperimentState.PAUSED, reason, True, ReasonCode.TOO_FEW_GPUS)
    elif snapshot.state is ExperimentState.PAUSED:
        if not busy:
            yield ChangeState(ExperimentState.PAUSED, "", True)
    elif snapshot.desired is DesiredState.INTERRUPT and not busy:
        is_final = bool(unfinished) and unfinished[-1].number is FINAL
        runs = "its final stage runs" if is_final else "its trials run"
        reason = f"interrupted; {runs} again on resume"
        yield ChangeState(ExperimentState.STOPPED, reason, True, ReasonCode.INTERRUPTED)
