"""Decisions as a table: a sentence, a snapshot, and the expected actions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.breaker import Cause, Streak
from controller.core.budget import spent_trials
from controller.core.decide import beginnings, decide, follow_ups
from controller.core.model import (
    AttemptState,
    Budget,
    ExperimentState,
    FailureClass,
    Overrun,
    ReasonCode,
    StopCause,
)
from controller.core.snapshot import (
    UNCOUNTED,
    Action,
    AskStop,
    BoundRegret,
    ChangeState,
    Complete,
    CreateAttempt,
    DesiredState,
    Forget,
    OpenBreaker,
    RemoveAttempt,
    SendStop,
    Snapshot,
    StartAttempt,
    Suggest,
    UnfinishedTrial,
)
from controller.core.spending import Spent
from suggest.study import Fidelity
from suggest.trial import Outcome, TrialState
from tests.unit.builders import (
    CANCELLED,
    CREATED,
    FAILED,
    INFEASIBLE,
    PRUNED,
    RUNNING,
    STOPPING,
    SUCCEEDED,
    a_spec,
    a_template,
    an_objective,
    attempt,
    open_trial,
    snapshot,
)

LOST, CRASHED, CONFIG = (
    FailureClass.INFRASTRUCTURE,
    FailureClass.USER_ERROR,
    FailureClass.CONFIGURATION,
)
INTERRUPTED, UNWANTED, HOPELESS = StopCause.INTERRUPTED, StopCause.CANCELLED, StopCause.PRUNED
PAUSED, STOPPED = ExperimentState.PAUSED, ExperimentState.STOPPED
OK, BAD = TrialState.SUCCEEDED, TrialState.FAILED

one, two, four = a_spec(), a_spec(parallelism=2), a_spec(parallelism=4)
ten = a_spec(parallelism=4, trials=10)
fragile = a_spec(parallelism=2, trials=10, failed_trials=2)
aiming = a_spec(parallelism=2, objective=an_objective(target=0.9))
timed = a_spec(parallelism=2, wall_clock_s=60.0)
paid = replace(a_spec(parallelism=4), budget=Budget(cost=25.0))
cut = replace(paid, budget=replace(paid.budget, overrun=Overrun.STOP))
paid_ten = replace(paid, budget=replace(paid.budget, trials=10))
over = Spent(0.0, 25.0)
huge = a_spec(parallelism=1000)
greedy = a_spec(parallelism=2, trial=a_template(gpu=16.0))


def gone(
    trial: int, state: TrialState, value: float | None = None, reason: str = "", failure: str = ""
) -> Complete:
    return Complete(trial, Outcome(state, value, reason, failure))


def cancelled(trial: int, reason: str) -> Complete:
    return gone(trial, TrialState.CANCELLED, reason=reason)


def done(state: ExperimentState, reason: str, code: ReasonCode | None = None) -> ChangeState:
    return ChangeState(state, reason, True, code)


STOPS = ChangeState(ExperimentState.STOPPING, "tuner stop", False, ReasonCode.STOP_REQUESTED)


FAILED_TWICE = "2 trials failed (budget.failedTrials: 2)"
TARGET = "the target was reached: accuracy 0.95 (objective.target: 0.9)"
TIME_UP = "the time budget is used up (budget.wallClock: 60 s)"
PAID_OUT = "the money is used up (budget.cost: 25)"
TEN = "all 10 trials are done"
AGAIN = "interrupted; its trials run again on resume"
BY_STOP = "stopped by tuner stop"
NO_GPU = "a trial asks for more GPUs (16) than this machine has; lower spec.trial.resources.gpu"
TRIED = "every point of the search space has been tried"
FOREIGN = "the trial was completed by another client"

first_lost = attempt(1, FAILED, failed=LOST)
thrice = (first_lost, attempt(2, FAILED, failed=LOST), attempt(3, FAILED, failed=LOST))
paused_for = open_trial(0, FAILED, failed=CONFIG, reason="no such file: trian.py")
waits_again = open_trial(0, CANCELLED, cause=INTERRUPTED)


def said(number: int, reason: str) -> UnfinishedTrial:
    """A trial that failed by itself, with this reason."""
    return open_trial(number, FAILED, failed=CRASHED, reason=reason)


ONE_BAD = Streak((0,), (0,), Cause("userError", "", ("no",)), "no module x")
ALIKE = Streak(None, (6, 7, 8), Cause("userError", "", ()), "lr=0.1")

SENTENCES: list[tuple[str, Snapshot, list[Action]]] = [
    # Asking for trials, and starting them.
    ("an empty experiment asks for as many trials as may run", snapshot(four), [Suggest(4)]),
    ("no request is larger than the service likes", snapshot(huge), [Suggest(100)]),
    (
        "no more trials are asked for than may wait to run, whatever parallelism allows",
        snapshot(huge, *(open_trial(n, CREATED) for n in range(290)), held={*range(290)}),
        [Suggest(10)],
    ),
    (
        "those that run do not count as waiting",
        snapshot(huge, *(open_trial(n, RUNNING) for n in range(400))),
        [Suggest(100)],
    ),
    ("a new trial gets its first attempt", snapshot(one, open_trial(0)), [CreateAttempt(0, 1)]),
    (
        "a recorded attempt that does not run is started again",
        snapshot(one, open_trial(0, CREATED)),
        [StartAttempt(0, 1)],
    ),
    ("nothing to do while all slots are taken", snapshot(one, open_trial(0, RUNNING)), []),
    ("a free slot is filled", snapshot(two, open_trial(0, RUNNING)), [Suggest(1)]),
    (
        "one that is stopping still holds its slot",
        snapshot(one, open_trial(0, STOPPING, cause=HOPELESS), sent={0: 30.0}),
        [],
    ),
    (
        "parallelism was lowered: nothing is stopped, nothing is started",
        snapshot(one, open_trial(0, RUNNING), open_trial(1, RUNNING), open_trial(2)),
        [],
    ),
    (
        "waiting trials come before new ones, the oldest first",
        snapshot(two, open_trial(3), open_trial(4), open_trial(5)),
        [CreateAttempt(3, 1), CreateAttempt(4, 1)],
    ),
    (
        "an ended trial is told, and its slot filled in the same turn",
        snapshot(one, open_trial(0, SUCCEEDED, value=0.5)),
        [gone(0, OK, 0.5), Suggest(1)],
    ),
    # The canary, and the runtime's slots.
    ("the first trial goes alone", snapshot(four, canary_over=False), [Suggest(1)]),
    (
        "the canary runs alone until it has reported",
        snapshot(four, open_trial(0, RUNNING), canary_over=False),
        [],
    ),
    (
        "after a restart, those that run stay, and none is added",
        snapshot(four, open_trial(0, RUNNING), open_trial(1, RUNNING), canary_over=False),
        [],
    ),
    ("the machine holds fewer than parallelism allows", snapshot(four, slots=3), [Suggest(3)]),
    ("the machine holds more than parallelism allows", snapshot(two, slots=9), [Suggest(2)]),
    (
        "a machine that cannot hold one pauses",
        snapshot(greedy, slots=0),
        [done(PAUSED, NO_GPU, ReasonCode.TOO_FEW_GPUS)],
    ),
    (
        "a machine that cannot hold all workers of one pauses",
        snapshot(
            replace(greedy, trial=replace(greedy.trial, cluster={"distributed": {"workers": 2}})),
            slots=0,
        ),
        [done(PAUSED, NO_GPU.replace("16", "16 for each of 2 workers"), ReasonCode.TOO_FEW_GPUS)],
    ),
    (
        "the canary cannot run there either",
        snapshot(greedy, slots=0, canary_over=False),
        [done(PAUSED, NO_GPU, ReasonCode.TOO_FEW_GPUS)],
    ),
    (
        "nor can a trial that waits",
        snapshot(greedy, open_trial(0), slots=0),
        [done(PAUSED, NO_GPU, ReasonCode.TOO_FEW_GPUS)],
    ),
    ("what runs there is let finish first", snapshot(greedy, open_trial(0, RUNNING), slots=0), []),
    # Trials of the search that another controller runs.
    (
        "what runs elsewhere takes room",
        replace(snapshot(four, open_trial(0, RUNNING)), elsewhere=2),
        [Suggest(1)],
    ),
    ("nothing begins as long as all room is taken", replace(snapshot(four), elsewhere=4), []),
    ("or nobody has counted", replace(snapshot(four), elsewhere=UNCOUNTED), []),
    (
        "the canary goes beside them",
        replace(snapshot(four, canary_over=False), elsewhere=3),
        [Suggest(1)],
    ),
    (
        "no successor is created for room that is taken",
        replace(snapshot(two, open_trial(0, RUNNING)), elsewhere=1, prefetch=2),
        [],
    ),
    (
        "the end waits for them",
        replace(snapshot(ten, done={OK: 10}, best=0.5), elsewhere=1),
        [],
    ),
    (
        "unless the target is reached",
        replace(snapshot(aiming, done={OK: 1}, best=0.95), elsewhere=1),
        [done(ExperimentState.SUCCEEDED, TARGET, ReasonCode.TARGET_REACHED)],
    ),
    (
        "a person's stop does not wait",
        replace(
            snapshot(
                ten,
                done={OK: 10},
                best=0.5,
                desired=DesiredState.STOP,
                state=ExperimentState.STOPPING,
            ),
            elsewhere=1,
        ),
        [done(STOPPED, BY_STOP, ReasonCode.STOP_REQUESTED)],
    ),
    # Outcomes.
    (
        "pruned, infeasible and failed are told as they are",
        snapshot(
            a_spec(parallelism=1, trials=4),
            open_trial(0, PRUNED, cause=HOPELESS, value=0.2, reason="below the median"),
            open_trial(1, INFEASIBLE, reason="too wide"),
            open_trial(2, FAILED, failed=CRASHED, reason="exit code 1"),
        ),
        [
            gone(0, TrialState.PRUNED, 0.2, "below the median"),
            gone(1, TrialState.INFEASIBLE, reason="too wide"),
            gone(2, BAD, None, "exit code 1", "userError"),
            Suggest(1),
        ],
    ),
    (
        "a value that is not a number is not told",
        snapshot(a_spec(trials=1), open_trial(0, PRUNED, cause=HOPELESS, value=float("nan"))),
        [gone(0, TrialState.PRUNED)],
    ),
    (
        "cancelled is told, and costs no budget",
        snapshot(a_spec(trials=1), open_trial(0, CANCELLED, cause=UNWANTED, reason="tuner stop")),
        [cancelled(0, "tuner stop"), Suggest(1)],
    ),
    # Retries.
    (
        "a machine's fault runs again",
        snapshot(one, open_trial(0, FAILED, failed=LOST)),
        [CreateAttempt(0, 2)],
    ),
    (
        "the third retry is still allowed",
        snapshot(one, open_trial(0, FAILED, failed=LOST, earlier=thrice[:2])),
        [CreateAttempt(0, 4)],
    ),
    (
        "a fourth is not",
        snapshot(
            a_spec(trials=1), open_trial(0, FAILED, failed=LOST, earlier=thrice, reason="lost")
        ),
        [gone(0, BAD, None, "lost", "infrastructure")],
    ),
    (
        "a program's error does not run again",
        snapshot(
            a_spec(trials=2),
            open_trial(0, FAILED, failed=CRASHED, earlier=(first_lost,)),
            done={OK: 1},
        ),
        [gone(0, BAD, None, "", "userError")],
    ),
    (
        "an interrupted trial runs again first",
        snapshot(one, waits_again, open_trial(1)),
        [CreateAttempt(0, 2)],
    ),
    (
        "a retry waits for a free slot",
        snapshot(one, open_trial(0, FAILED, failed=LOST), open_trial(1, RUNNING)),
        [],
    ),
    # Stopping one.
    (
        "a hopeless trial: the stop is recorded first",
        snapshot(one, open_trial(0, RUNNING), advised={0: "below the median"}),
        [AskStop(0, HOPELESS, "below the median")],
    ),
    ("and sent then", snapshot(one, open_trial(0, STOPPING, cause=HOPELESS)), [SendStop(0, 30.0)]),
    ("once", snapshot(one, open_trial(0, STOPPING, cause=HOPELESS), sent={0: 30.0}), []),
    (
        "advice comes too late for what has ended",
        snapshot(
            a_spec(trials=1), open_trial(0, SUCCEEDED, value=0.5), advised={0: "below the median"}
        ),
        [gone(0, OK, 0.5)],
    ),
    (
        "what another client completed is stopped",
        snapshot(one, open_trial(0, RUNNING, running=False)),
        [AskStop(0, UNWANTED, FOREIGN)],
    ),
    (
        "and not started, if it was only recorded",
        snapshot(one, open_trial(0, CREATED, running=False)),
        [AskStop(0, UNWANTED, FOREIGN)],
    ),
    (
        "and forgotten once it has ended, however",
        snapshot(a_spec(trials=1), open_trial(0, FAILED, failed=LOST, running=False), done={OK: 1}),
        [Forget(0)],
    ),
    (
        "and not retried or told",
        snapshot(one, UnfinishedTrial(0, (), running=False)),
        [Suggest(1), Forget(0)],
    ),
    # The budget.
    (
        "no more is asked for than the budget has room for",
        snapshot(ten, done={OK: 8}),
        [Suggest(2)],
    ),
    (
        "what runs has its place in the budget",
        snapshot(ten, open_trial(8, RUNNING), done={OK: 8}),
        [Suggest(1)],
    ),
    (
        "what waits has its place too",
        snapshot(ten, waits_again, done={OK: 9}),
        [CreateAttempt(0, 2)],
    ),
    (
        "what another client completed is not spent_trials twice",
        snapshot(
            ten,
            open_trial(8, STOPPING, cause=UNWANTED, running=False),
            done={OK: 9},
            sent={8: 30.0},
        ),
        [Suggest(1)],
    ),
    (
        "the last trial ends: told in this turn",
        snapshot(ten, open_trial(9, SUCCEEDED, value=0.5), done={OK: 9}),
        [gone(9, OK, 0.5)],
    ),
    (
        "and all is done in the next",
        snapshot(ten, done={OK: 10}, best=0.5),
        [done(ExperimentState.SUCCEEDED, TEN, ReasonCode.TRIALS_DONE)],
    ),
    (
        "an exhausted search lets what was begun finish",
        snapshot(two, open_trial(0, RUNNING), open_trial(1), exhausted=True),
        [CreateAttempt(1, 1)],
    ),
    (
        "its retries too",
        snapshot(two, open_trial(0, FAILED, failed=LOST), exhausted=True),
        [CreateAttempt(0, 2)],
    ),
    (
        "and is done then",
        snapshot(two, exhausted=True, best=0.5),
        [done(ExperimentState.SUCCEEDED, TRIED, ReasonCode.SPACE_EXHAUSTED)],
    ),
    (
        "and has failed if nothing has a value",
        snapshot(two, exhausted=True),
        [
            done(
                ExperimentState.FAILED,
                f"{TRIED}; no trial succeeded",
                ReasonCode.NO_TRIAL_SUCCEEDED,
            )
        ],
    ),
    (
        "the last failure: nothing new is asked for in its turn, and what runs is cancelled",
        snapshot(
            fragile, open_trial(0, FAILED, failed=CRASHED), open_trial(1, RUNNING), done={BAD: 1}
        ),
        [gone(0, BAD, None, "", "userError"), AskStop(1, UNWANTED, FAILED_TWICE)],
    ),
    # The circuit breaker.
    (
        "the first trial fails by itself: one more runs alone",
        snapshot(four, said(0, "no module x"), canary_over=False),
        [gone(0, BAD, None, "no module x", "userError"), Suggest(1)],
    ),
    (
        "that comes before the limit of failures, and before the budget",
        snapshot(a_spec(trials=1, failed_trials=1), said(0, "no module x"), canary_over=False),
        [gone(0, BAD, None, "no module x", "userError"), Suggest(1)],
    ),
    (
        "but where nothing else can be tried it has failed",
        snapshot(
            a_spec(trials=1), done={BAD: 1}, streak=ONE_BAD, exhausted=True, canary_over=False
        ),
        [
            done(
                ExperimentState.FAILED,
                "its one trial is done; no trial succeeded",
                ReasonCode.NO_TRIAL_SUCCEEDED,
            )
        ],
    ),
    (
        "one more, not two: a budget of one that was spent twice is spent",
        snapshot(a_spec(trials=1), done={BAD: 2}, streak=ONE_BAD, canary_over=False),
        [
            done(
                ExperimentState.FAILED,
                "its one trial is done; no trial succeeded",
                ReasonCode.NO_TRIAL_SUCCEEDED,
            )
        ],
    ),
    (
        "the second one fails too, for whatever reason: a person is needed",
        snapshot(ten, said(1, "no module y"), done={BAD: 1}, streak=ONE_BAD, canary_over=False),
        [
            gone(1, BAD, None, "no module y", "userError"),
            OpenBreaker((0, 1), "the first 2 trials failed: no module y"),
        ],
    ),
    (
        "without a canary the first trials are like all others",
        snapshot(a_spec(canary_s=0), said(1, "no module y"), done={BAD: 1}, streak=ONE_BAD),
        [gone(1, BAD, None, "no module y", "userError"), Suggest(1)],
    ),
    (
        "without the breaker the first failures pause nothing",
        snapshot(a_spec(breaker=False), said(1, "no module x"), done={BAD: 1}, streak=ONE_BAD),
        [gone(1, BAD, None, "no module x", "userError"), Suggest(1)],
    ),
    (
        "nor do later ones that are alike",
        snapshot(a_spec(breaker=False), said(9, "lr=0.3"), done={OK: 5, BAD: 2}, streak=ALIKE),
        [gone(9, BAD, None, "lr=0.3", "userError"), Suggest(1)],
    ),
    (
        "but their number ends the experiment",
        snapshot(a_spec(failed_trials=3, breaker=False), done={OK: 5, BAD: 3}, streak=ALIKE),
        [
            done(
                ExperimentState.FAILED,
                "3 trials failed (budget.failedTrials: 3)",
                ReasonCode.TOO_MANY_FAILURES,
            )
        ],
    ),
    (
        "what runs beside the second may still show that it is not the script",
        snapshot(
            four,
            said(1, "b"),
            open_trial(2, RUNNING),
            done={BAD: 1},
            streak=ONE_BAD,
            canary_over=False,
        ),
        [gone(1, BAD, None, "b", "userError")],
    ),
    (
        "and is waited for, where the limit of failures is reached",
        snapshot(fragile, said(1, "b"), open_trial(2, RUNNING), done={BAD: 1}, streak=ONE_BAD),
        [gone(1, BAD, None, "b", "userError")],
    ),
    (
        "an infeasible trial is no failure: the limit of failures holds again",
        snapshot(a_spec(failed_trials=1), open_trial(1, INFEASIBLE), done={BAD: 1}, streak=ONE_BAD),
        [gone(1, TrialState.INFEASIBLE)],
    ),
    (
        "what the machine did to the first trials is not their script's fault",
        snapshot(
            one, open_trial(1, FAILED, failed=LOST, earlier=thrice), done={BAD: 1}, streak=ONE_BAD
        ),
        [gone(1, BAD, None, "", "infrastructure"), Suggest(1)],
    ),
    (
        "later on, the last k failed alike: nothing new, what waits is not begun, what is "
        "recorded is started",
        snapshot(
            four,
            said(9, "lr=0.3"),
            open_trial(10, CREATED),
            open_trial(11),
            done={OK: 5},
            streak=ALIKE,
        ),
        [
            gone(9, BAD, None, "lr=0.3", "userError"),
            StartAttempt(10, 1),
            OpenBreaker((6, 7, 8, 9), "the last 4 trials failed for one reason: lr=0.3"),
        ],
    ),
    (
        "another reason is another streak",
        snapshot(four, said(9, "disk full"), done={OK: 5}, streak=ALIKE),
        [gone(9, BAD, None, "disk full", "userError"), Suggest(4)],
    ),
    (
        "a limit of failures below k lowers it",
        snapshot(a_spec(failed_trials=2), said(9, "lr=0.3"), done={OK: 5, BAD: 1}, streak=ALIKE),
        [
            gone(9, BAD, None, "lr=0.3", "userError"),
            OpenBreaker((6, 7, 8, 9), "the last 4 trials failed for one reason: lr=0.3"),
        ],
    ),
    (
        "a limit of one failure ends it at the first",
        snapshot(a_spec(failed_trials=1), said(9, "lr=0.3"), done={OK: 5}),
        [gone(9, BAD, None, "lr=0.3", "userError")],
    ),
    (
        "a search that has found something ends well, though its last trials failed alike",
        snapshot(ten, said(9, "lr=0.3"), done={OK: 6, BAD: 3}, streak=ALIKE, best=0.5),
        [gone(9, BAD, None, "lr=0.3", "userError")],
    ),
    (
        "tuner stop needs no breaker",
        snapshot(four, said(9, "lr=0.3"), done={OK: 5}, streak=ALIKE, desired=DesiredState.STOP),
        [gone(9, BAD, None, "lr=0.3", "userError"), STOPS],
    ),
    (
        "what still ran when the breaker opened is set aside with the others",
        snapshot(
            four, said(9, "x"), done={OK: 5}, streak=Streak(None), set_aside={6, 7, 8}, state=PAUSED
        ),
        [gone(9, BAD, None, "x", "userError"), OpenBreaker((9,), "")],
    ),
    (
        "failures while it is paused for another reason are set aside too, and do not end it",
        snapshot(
            fragile, paused_for, said(2, "no module y"), done={BAD: 1}, streak=ONE_BAD, state=PAUSED
        ),
        [
            gone(2, BAD, None, "no module y", "userError"),
            OpenBreaker((0, 2), "the first 2 trials failed: no module y"),
        ],
    ),
    (
        "no limit ends what is paused by the breaker",
        snapshot(fragile, done={OK: 3, BAD: 2}, exhausted=True, set_aside={6, 7}, state=PAUSED),
        [done(PAUSED, "")],
    ),
    (
        "a failure that was set aside runs again, retries or not",
        snapshot(
            four,
            UnfinishedTrial(0, (replace(attempt(1, FAILED, failed=CRASHED), set_aside=True),)),
            canary_over=False,
        ),
        [CreateAttempt(0, 2)],
    ),
    (
        "then it has failed",
        snapshot(fragile, done={BAD: 2}),
        [done(ExperimentState.FAILED, FAILED_TWICE, ReasonCode.TOO_MANY_FAILURES)],
    ),
    (
        "the target: what runs is cancelled, what waits too",
        snapshot(
            aiming,
            open_trial(0, SUCCEEDED, value=0.95),
            open_trial(1, RUNNING),
            open_trial(2),
            waits_again,
        ),
        [
            gone(0, OK, 0.95),
            AskStop(1, UNWANTED, TARGET),
            cancelled(2, TARGET),
            cancelled(0, TARGET),
        ],
    ),
    (
        "the wall clock: the same, after the record comes the signal",
        snapshot(timed, open_trial(0, STOPPING, cause=UNWANTED), running_s=60.0),
        [SendStop(0, 30.0)],
    ),
    (
        "a retry is not begun after the end",
        snapshot(timed, open_trial(0, FAILED, failed=LOST), running_s=60.0, best=0.5),
        [cancelled(0, TIME_UP)],
    ),
    (
        "the money is used up: what runs may finish, and nothing begins, not even a retry",
        snapshot(
            paid,
            waits_again,
            open_trial(1, RUNNING),
            open_trial(2, CREATED),
            open_trial(3),
            open_trial(4, FAILED, failed=LOST),
            best=0.5,
            spent=over,
        ),
        [
            cancelled(0, PAID_OUT),
            AskStop(2, UNWANTED, PAID_OUT),
            cancelled(3, PAID_OUT),
            cancelled(4, PAID_OUT),
        ],
    ),
    (
        "what runs then is cut if the file says so",
        snapshot(cut, open_trial(1, RUNNING), best=0.5, spent=over),
        [AskStop(1, UNWANTED, PAID_OUT)],
    ),
    (
        "what runs then may still be pruned",
        snapshot(paid, open_trial(1, RUNNING), advised={1: "worse"}, best=0.5, spent=over),
        [AskStop(1, HOPELESS, "worse")],
    ),
    (
        "and the experiment ends once nothing runs",
        snapshot(paid, best=0.5, spent=over),
        [done(ExperimentState.SUCCEEDED, PAID_OUT, ReasonCode.COST_SPENT)],
    ),
    (
        "the last trial reaches the limit: it keeps nothing from beginning",
        snapshot(paid_ten, done={OK: 10}, best=0.5, spent=over),
        [done(ExperimentState.SUCCEEDED, TEN, ReasonCode.TRIALS_DONE)],
    ),
    # Pausing.
    (
        "a configuration failure waits for a person",
        snapshot(two, paused_for, state=PAUSED),
        [done(PAUSED, "")],
    ),
    (
        "what runs continues, nothing new is started",
        snapshot(four, paused_for, open_trial(1, RUNNING), open_trial(2), state=PAUSED),
        [],
    ),
    (
        "what ends meanwhile is told",
        snapshot(two, paused_for, open_trial(1, SUCCEEDED, value=0.5), state=PAUSED),
        [gone(1, OK, 0.5)],
    ),
    ("the pause lifted, it runs again", snapshot(one, paused_for), [CreateAttempt(0, 2)]),
    (
        "a paused experiment can be stopped for good",
        snapshot(two, paused_for, state=PAUSED, desired=DesiredState.STOP),
        [cancelled(0, "tuner stop"), STOPS],
    ),
    (
        "an interrupted one stays paused",
        snapshot(two, paused_for, state=PAUSED, desired=DesiredState.INTERRUPT),
        [done(PAUSED, "")],
    ),
    # Ctrl-C.
    (
        "the first Ctrl-C records the stops",
        snapshot(
            two, open_trial(0, RUNNING), open_trial(1, CREATED), desired=DesiredState.INTERRUPT
        ),
        [AskStop(0, INTERRUPTED, "interrupted"), AskStop(1, INTERRUPTED, "interrupted")],
    ),
    (
        "sends them with grace",
        snapshot(two, open_trial(0, STOPPING, cause=INTERRUPTED), desired=DesiredState.INTERRUPT),
        [SendStop(0, 30.0)],
    ),
    (
        "and waits",
        snapshot(
            two,
            open_trial(0, STOPPING, cause=INTERRUPTED),
            desired=DesiredState.INTERRUPT,
            sent={0: 30.0},
        ),
        [],
    ),
    (
        "a stop for good can be hurried too",
        snapshot(
            two,
            open_trial(0, STOPPING, cause=UNWANTED),
            state=ExperimentState.STOPPING,
            desired=DesiredState.STOP,
            without_grace=True,
            sent={0: 30.0},
        ),
        [SendStop(0, 0.0)],
    ),
    (
        "the second Ctrl-C takes the grace away",
        snapshot(
            two,
            open_trial(0, STOPPING, cause=INTERRUPTED),
            desired=DesiredState.INTERRUPT,
            without_grace=True,
            sent={0: 30.0},
        ),
        [SendStop(0, 0.0)],
    ),
    (
        "once",
        snapshot(
            two,
            open_trial(0, STOPPING, cause=INTERRUPTED),
            desired=DesiredState.INTERRUPT,
            without_grace=True,
            sent={0: 0.0},
        ),
        [],
    ),
    (
        "what is interrupted waits, and the controller goes",
        snapshot(two, waits_again, open_trial(1), desired=DesiredState.INTERRUPT),
        [done(STOPPED, AGAIN, ReasonCode.INTERRUPTED)],
    ),
    (
        "the restarted controller still sends a stop that only was recorded",
        snapshot(one, open_trial(0, STOPPING, cause=INTERRUPTED)),
        [SendStop(0, 30.0)],
    ),
    (
        "an experiment that ends while interrupted has ended",
        snapshot(ten, desired=DesiredState.INTERRUPT, done={OK: 10}, best=0.5),
        [done(ExperimentState.SUCCEEDED, TEN, ReasonCode.TRIALS_DONE)],
    ),
    # tuner stop.
    (
        "tuner stop cancels what runs and what waits",
        snapshot(two, open_trial(0, RUNNING), open_trial(1), desired=DesiredState.STOP),
        [
            AskStop(0, UNWANTED, "tuner stop"),
            cancelled(1, "tuner stop"),
            STOPS,
        ],
    ),
    (
        "and says so once",
        snapshot(
            two,
            open_trial(0, STOPPING, cause=UNWANTED),
            desired=DesiredState.STOP,
            state=ExperimentState.STOPPING,
            sent={0: 30.0},
        ),
        [],
    ),
    (
        "what Ctrl-C had interrupted is cancelled too",
        snapshot(two, waits_again, desired=DesiredState.STOP, state=ExperimentState.STOPPING),
        [cancelled(0, "tuner stop")],
    ),
    (
        "then nothing is left",
        snapshot(two, desired=DesiredState.STOP, state=ExperimentState.STOPPING),
        [done(STOPPED, BY_STOP, ReasonCode.STOP_REQUESTED)],
    ),
]


@pytest.mark.parametrize(
    ("before", "actions"), [s[1:] for s in SENTENCES], ids=[s[0] for s in SENTENCES]
)
def test_decide_returns_the_expected_actions(before: Snapshot, actions: list[Action]) -> None:
    assert decide(before) == actions


STATES = st.sampled_from([None, *AttemptState])


@st.composite
def situations(draw: st.DrawFn) -> Snapshot:
    trials = []
    for number in range(draw(st.integers(0, 6))):
        state = draw(STATES)
        cause = draw(st.sampled_from(StopCause)) if state in (STOPPING, PRUNED, CANCELLED) else None
        trials.append(
            open_trial(
                number,
                state,
                cause=cause,
                failed=draw(st.sampled_from(FailureClass)) if state is FAILED else None,
                value=draw(st.floats(0, 1)) if state is SUCCEEDED else None,
                running=draw(st.booleans()),
            )
        )
    return snapshot(
        a_spec(
            parallelism=draw(st.integers(1, 5)),
            trials=draw(st.none() | st.integers(1, 9)),
            failed_trials=draw(st.none() | st.integers(1, 3)),
            objective=an_objective(target=draw(st.none() | st.just(0.5))),
        ),
        *trials,
        state=draw(st.sampled_from([ExperimentState.RUNNING, PAUSED, ExperimentState.STOPPING])),
        done={state: draw(st.integers(0, 3)) for state in (OK, BAD, TrialState.CANCELLED)},
        desired=draw(st.sampled_from(DesiredState)),
        exhausted=draw(st.booleans()),
        slots=draw(st.none() | st.integers(0, 3)),
        canary_over=draw(st.booleans()),
        advised=dict.fromkeys(draw(st.sets(st.integers(0, 5), max_size=2)), "below the median"),
        sent=dict.fromkeys(draw(st.sets(st.integers(0, 5), max_size=2)), 30.0),
    )


@given(situations())
def test_no_slot_and_no_room_is_given_away_twice(before: Snapshot) -> None:
    actions = decide(before)
    asked = sum(a.count for a in actions if isinstance(a, Suggest))
    created = sum(isinstance(a, CreateAttempt) for a in actions)
    held = sum(t.occupies_slot for t in before.trials)
    limit = (
        before.spec.parallelism
        if before.slots is None
        else min(before.spec.parallelism, before.slots)
    )
    assert created + asked == 0 or held + created + asked <= limit
    if asked and before.spec.budget.trials is not None:
        unfinished = sum(t.running for t in before.trials)
        told = sum(
            isinstance(a, Complete) and a.outcome.state is TrialState.CANCELLED for a in actions
        )
        assert spent_trials(before.counts) + unfinished - told + asked <= before.spec.budget.trials


@given(situations())
def test_a_controller_leaves_only_when_nothing_runs(before: Snapshot) -> None:
    actions = decide(before)
    changes = [a for a in actions if isinstance(a, ChangeState)]
    assert len(changes) <= 1
    if changes and changes[0].done:
        assert actions == changes
        assert not any(t.occupies_slot for t in before.trials)
    if not actions:
        assert any(t.occupies_slot for t in before.trials), "nothing to do, and nothing to wait for"


@given(situations())
def test_each_trial_gets_one_action_at_a_time(before: Snapshot) -> None:
    numbers = [a.trial for a in decide(before) if not isinstance(a, Suggest | ChangeState)]
    assert len(numbers) == len(set(numbers))


def test_a_failed_attempt_is_removed_before_the_next_begins() -> None:
    lost = open_trial(0, FAILED, failed=LOST)
    assert decide(snapshot(one, lost, removed=set())) == [RemoveAttempt(0), CreateAttempt(0, 2)]
    assert decide(snapshot(one, lost, removed={0})) == [CreateAttempt(0, 2)]


def test_a_failed_attempt_does_not_run_on_while_the_experiment_is_paused() -> None:
    paused = ExperimentState.PAUSED
    wrong = open_trial(0, FAILED, failed=CONFIG)
    assert decide(snapshot(two, wrong, open_trial(1, RUNNING), state=paused, removed=set())) == [
        RemoveAttempt(0)
    ]
    assert RemoveAttempt(0) in decide(
        snapshot(two, wrong, desired=DesiredState.INTERRUPT, removed=set())
    )


def test_what_may_not_run_is_stopped_and_runs_again() -> None:
    reason = "TenantBudgetSpent: 5 of 5 GPU-hours of 2026-11 are used"
    running = open_trial(0, RUNNING)
    assert decide(replace(snapshot(one, running), barred={0: reason})) == [
        AskStop(0, StopCause.INTERRUPTED, reason)
    ]
    stopped = open_trial(0, CANCELLED, cause=StopCause.INTERRUPTED, reason=reason)
    assert decide(snapshot(one, stopped)) == [CreateAttempt(0, 2)]


def test_a_held_attempt_is_not_started_again_and_keeps_its_slot() -> None:
    waiting = open_trial(0, CREATED, reason="QuotaExceeded: pods 4/4")
    assert decide(snapshot(a_spec(parallelism=1), waiting, held={0})) == []
    assert decide(snapshot(a_spec(parallelism=1), waiting)) == [StartAttempt(0, 1)]
    assert decide(snapshot(a_spec(), waiting, held={0}, desired=DesiredState.STOP))[0] == AskStop(
        0, StopCause.CANCELLED, "tuner stop"
    )


def test_a_suggestion_begins_at_once_and_nothing_else_is_done_about_it() -> None:
    brought = snapshot(
        two,
        open_trial(0, SUCCEEDED, value=0.5, running=False),
        open_trial(1, CREATED),
        open_trial(2),
    )
    assert {type(action) for action in decide(brought)} == {StartAttempt, CreateAttempt, Forget}
    assert beginnings(brought) == [CreateAttempt(2, 1)]


def test_no_suggestion_begins_after_a_stop_request() -> None:
    assert beginnings(snapshot(two, open_trial(0), desired=DesiredState.STOP)) == []


def test_a_started_attempt_is_not_started_again_before_the_next_observation() -> None:
    left = snapshot(
        two,
        open_trial(0, SUCCEEDED, value=0.5, running=False),
        open_trial(1, CREATED),
        open_trial(2),
    )
    assert follow_ups(left) == [CreateAttempt(2, 1), Forget(0)]


# Trials that run in steps

stepped = replace(a_spec(parallelism=2, trials=4), fidelity=Fidelity("epochs", 1, 9, 3))


in_a_minute = replace(stepped, budget=replace(stepped.budget, wall_clock_s=60.0))
TOO_LATE = (
    "the time budget is used up (budget.wallClock: 60 s) before a trial reached epochs 9; "
    "raise budget.wallClock, or lower fidelity.max"
)


def step(
    number: int, state: AttemptState | None, *, at: float = 1, wanted: float = 1, value: float = 0.5
) -> UnfinishedTrial:
    """A trial that has to run up to `wanted`, whose newest attempt ran up to `at`."""
    trial = open_trial(number, state, value=value if state is SUCCEEDED else None)
    attempts = tuple(replace(each, fidelity=at) for each in trial.attempts)
    return replace(trial, attempts=attempts, fidelity=wanted)


def waiting(*trials: UnfinishedTrial, **known: object) -> Snapshot:
    paused = known.pop("paused", {})
    none_goes_on = known.pop("none_goes_on", False)
    before = snapshot(stepped, *trials, **known)  # type: ignore[arg-type]  # what a builder takes
    return replace(before, paused=paused, none_goes_on=none_goes_on)  # type: ignore[arg-type]


def not_promoted(number: int, reached: float, reason: str = "") -> Complete:
    return gone(number, TrialState.PRUNED, reason=f"not promoted beyond epochs {reached:g}{reason}")


STEPS: list[tuple[str, Snapshot, list[Action]]] = [
    (
        "A step that succeeds is told to the study, and the trial counts as one of the budget "
        "while it is paused",
        waiting(step(3, SUCCEEDED), paused={0: 1.0, 1: 1.0}),
        [gone(3, OK, 0.5), Suggest(1)],
    ),
    (
        "A promoted trial continues in another attempt, after the objects of the last one are "
        "removed",
        waiting(step(3, SUCCEEDED, at=1, wanted=3), removed=frozenset()),
        [RemoveAttempt(3), CreateAttempt(3, 2), Suggest(1)],
    ),
    (
        "The last step ends the trial",
        waiting(step(3, SUCCEEDED, at=9, wanted=9)),
        [gone(3, OK, 0.5), Suggest(2)],
    ),
    (
        "Without room for new trials only paused ones are asked for",
        waiting(paused={0: 1.0, 1: 1.0, 2: 1.0, 3: 3.0}),
        [Suggest(2, paused_only=True)],
    ),
    (
        "Nobody asks again as long as no trial has ended since none could continue",
        waiting(step(3, RUNNING), paused={0: 1.0, 1: 1.0, 2: 1.0}, none_goes_on=True),
        [],
    ),
    (
        "When none continues any more, the paused trials are pruned",
        waiting(paused={0: 1.0, 2: 3.0}, done={OK: 2}, best=0.9, none_goes_on=True),
        [not_promoted(0, 1), not_promoted(2, 3)],
    ),
    (
        "A finite space that is exhausted ends only after its paused trials",
        waiting(paused={0: 1.0}, done={OK: 1}, best=0.9, exhausted=True),
        [Suggest(1, paused_only=True)],
    ),
    (
        "tuner stop cancels what is paused",
        waiting(paused={0: 1.0}, desired=DesiredState.STOP),
        [cancelled(0, "tuner stop"), STOPS],
    ),
    (
        "Ctrl-C leaves paused trials as they are",
        waiting(paused={0: 1.0}, desired=DesiredState.INTERRUPT),
        [done(STOPPED, AGAIN, ReasonCode.INTERRUPTED)],
    ),
    (
        "A paused experiment promotes nobody and prunes nobody",
        waiting(paused={0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}, state=PAUSED, none_goes_on=True),
        [done(PAUSED, "")],
    ),
    (
        "The end of the time prunes paused trials",
        replace(waiting(paused={0: 1.0}), spec=in_a_minute, running_s=60.0),
        [not_promoted(0, 1, f": {TOO_LATE}")],
    ),
    (
        "and then says that none of them was complete",
        replace(waiting(done={TrialState.PRUNED: 1}), spec=in_a_minute, running_s=60.0),
        [done(ExperimentState.FAILED, TOO_LATE, ReasonCode.NO_TRIAL_SUCCEEDED)],
    ),
    (
        "A trial that is forgotten is forgotten before the suggestion that may let it continue",
        waiting(replace(step(0, SUCCEEDED), running=False), paused={0: 1.0}),
        [Forget(0), Suggest(2)],
    ),
]


@pytest.mark.parametrize(("before", "actions"), [s[1:] for s in STEPS], ids=[s[0] for s in STEPS])
def test_decide_returns_the_actions_of_trials_with_a_fidelity(
    before: Snapshot, actions: list[Action]
) -> None:
    assert decide(before) == actions


content = replace(two, budget=replace(two.budget, regret_below=0.01))


def test_the_regret_is_bounded_after_the_slots_are_filled() -> None:
    complete = snapshot(content, open_trial(12, attempt(RUNNING)), done={OK: 12}, best=0.5)
    assert decide(complete) == [Suggest(1), BoundRegret(12)]
    assert decide(replace(complete, estimated=12, regret_bound=0.5)) == [Suggest(1)]


def test_a_small_regret_lets_running_trials_end_and_starts_none() -> None:
    complete = snapshot(content, open_trial(12, attempt(RUNNING)), done={OK: 12}, best=0.5)
    assert decide(replace(complete, estimated=12, regret_bound=0.001)) == []
    over = replace(snapshot(content, done={OK: 13}, best=0.5), estimated=12, regret_bound=0.001)
    reason = "no point is likely to be better by more than 0.001 (budget.regretBelow: 0.01)"
    assert decide(over) == [done(ExperimentState.SUCCEEDED, reason, ReasonCode.REGRET_BELOW)]


def generation(*trials: UnfinishedTrial, **known: object) -> Snapshot:
    """The study has said that no trial begins before a running one ends."""
    # what a builder takes
    before = snapshot(a_spec(trials=9, parallelism=4), *trials, **known)  # type: ignore[arg-type]
    return replace(before, none_begins=True)


GENERATIONS: list[tuple[str, Snapshot, list[Action]]] = [
    (
        "Free slots stay empty while a generation is not complete enough",
        generation(open_trial(0, RUNNING)),
        [],
    ),
    (
        "The next end is a reason to ask again",
        generation(open_trial(0, RUNNING), open_trial(1, SUCCEEDED, value=0.5)),
        [gone(1, OK, 0.5), Suggest(3)],
    ),
    (
        "and so is a failure, after which the generation needs another member",
        generation(
            open_trial(0, RUNNING), open_trial(1, FAILED, failed=CRASHED, reason="exit code 1")
        ),
        [gone(1, BAD, reason="exit code 1", failure="userError"), Suggest(3)],
    ),
    (
        "With nothing running the study is asked again",
        generation(done={OK: 2}, best=0.5),
        [Suggest(4)],
    ),
    (
        "A trial that waits to run again does so",
        generation(open_trial(0, RUNNING), open_trial(1)),
        [CreateAttempt(1, 1)],
    ),
]


@pytest.mark.parametrize(
    ("before", "actions"), [g[1:] for g in GENERATIONS], ids=[g[0] for g in GENERATIONS]
)
def test_decide_returns_the_actions_of_generations(before: Snapshot, actions: list[Action]) -> None:
    assert decide(before) == actions
