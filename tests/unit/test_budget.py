"""When an experiment is over, as a table; which reason takes precedence;
how many trials may still start.
"""

from dataclasses import replace

import pytest

from controller.core.budget import Ending, Standing, ending, needs_estimate, room, spent_trials
from controller.core.model import (
    Budget,
    ExperimentObjective,
    ExperimentSpec,
    ExperimentState,
    Overrun,
    ReasonCode,
)
from controller.core.spending import NOTHING_SPENT, Spent
from suggest.study import Constraint, Direction, Fidelity
from suggest.trial import TrialState
from tests.unit.builders import a_spec, an_objective

OK, BAD = ExperimentState.SUCCEEDED, ExperimentState.FAILED
ALL = dict.fromkeys(TrialState, 1)


def judged(
    spec: ExperimentSpec,
    *,
    done: int = 0,
    failed: int = 0,
    best: float | None = None,
    s: float = 0.0,
    last: bool = False,
    since_best: int = 0,
    reached: str = "",
    regret_bound: float | None = None,
    suspended: bool = False,
    paused: int = 0,
    pruned: int = 0,
    spent: Spent = NOTHING_SPENT,
    ended_by: str = "",
    idle: bool = False,
) -> Ending | None:
    counts = {TrialState.SUCCEEDED: done, TrialState.FAILED: failed, TrialState.PRUNED: pruned}
    standing = Standing(
        counts=counts,
        best=best,
        exhausted=last,
        running_s=s,
        since_best=since_best,
        reached=reached,
        regret_bound=regret_bound,
        paused=paused,
        spent=spent,
        ended_by=ended_by,
        idle=idle,
    )
    return ending(spec, standing, suspended=suspended)


UP, DOWN = an_objective(target=0.9), an_objective(target=0.1, maximize=False)
FAILURES = Ending(
    BAD, "3 trials failed (budget.failedTrials: 3)", False, ReasonCode.TOO_MANY_FAILURES
)
TARGET = Ending(
    OK,
    "the target was reached: accuracy 0.95 (objective.target: 0.9)",
    False,
    ReasonCode.TARGET_REACHED,
)
WALL = Ending(
    OK, "the time budget is used up (budget.wallClock: 60 s)", False, ReasonCode.TIME_SPENT
)
TRIALS = Ending(OK, "all 5 trials are done", True, ReasonCode.TRIALS_DONE)
SPACE = Ending(
    OK, "every point of the search space has been tried", True, ReasonCode.SPACE_EXHAUSTED
)
NO_VALUE = Ending(
    BAD, "all 5 trials are done; no trial succeeded", True, ReasonCode.NO_TRIAL_SUCCEEDED
)
PATIENCE = Ending(
    OK, "no improvement in 4 trials (budget.noImprovement: 4)", True, ReasonCode.NO_IMPROVEMENT
)
PATIENT = replace(a_spec(), budget=Budget(no_improvement=4))
NEAR = Ending(
    OK,
    "no point is likely to be better by more than 0.008 (budget.regretBelow: 0.01)",
    True,
    ReasonCode.REGRET_BELOW,
)
CONTENT = replace(a_spec(), budget=Budget(regret_below=0.01))
IN_STEPS = replace(a_spec(wall_clock_s=60.0), fidelity=Fidelity("epochs", 1, 81))
PARTIAL = Ending(
    BAD,
    "the time budget is used up (budget.wallClock: 60 s) before a trial reached epochs 81; "
    "raise budget.wallClock, or lower fidelity.max",
    False,
    ReasonCode.NO_TRIAL_SUCCEEDED,
)
PAID = replace(a_spec(trials=5), budget=Budget(trials=5, gpu_hours=10.0, cost=25.0))
CUT = replace(PAID, budget=replace(PAID.budget, overrun=Overrun.STOP))
HOURS = Ending(
    OK,
    "the GPU-hours are used up (budget.gpuHours: 10)",
    True,
    ReasonCode.GPU_HOURS_SPENT,
    closed=True,
)
MONEY = Ending(
    OK, "the money is used up (budget.cost: 25)", True, ReasonCode.COST_SPENT, closed=True
)
STOPPED = Ending(OK, "trial 3 called study.stop()", True, ReasonCode.STOPPED_BY_TRIAL, closed=True)
NOTHING_FOR_IT = Ending(
    BAD,
    "the money is used up (budget.cost: 25); no trial succeeded",
    True,
    ReasonCode.NO_TRIAL_SUCCEEDED,
    closed=True,
)
TWO = replace(
    a_spec(objective=UP), further=(ExperimentObjective("size", Direction.MINIMIZE, target=3.0),)
)
EVERYTHING = a_spec(trials=5, failed_trials=3, wall_clock_s=60.0, objective=UP)
FINISHING = replace(EVERYTHING, budget=replace(EVERYTHING.budget, overrun=Overrun.FINISH))


@pytest.mark.parametrize(
    ("sentence", "found", "expected"),
    [
        ("nothing is limited", judged(a_spec(), done=99, failed=99, best=1.0, s=1e9), None),
        ("one failure short", judged(EVERYTHING, failed=2), None),
        ("the last failure", judged(EVERYTHING, failed=3), FAILURES),
        ("above the target", judged(EVERYTHING, done=1, best=0.95), TARGET),
        ("at the target", judged(a_spec(objective=UP), best=0.9) is not None, True),
        ("below the target", judged(EVERYTHING, done=1, best=0.89), None),
        ("minimizing, at the target", judged(a_spec(objective=DOWN), best=0.1) is not None, True),
        ("minimizing, above the target", judged(a_spec(objective=DOWN), best=0.11), None),
        ("a trial has ended it", judged(EVERYTHING, done=1, best=0.5, ended_by="trial 3"), STOPPED),
        (
            "a trial has ended it, and the breaker is undecided",
            judged(EVERYTHING, done=1, best=0.5, ended_by="trial 3", suspended=True),
            STOPPED,
        ),
        ("the time is up", judged(EVERYTHING, best=0.5, s=60.0), WALL),
        (
            "the time is up, and running trials finish",
            judged(FINISHING, best=0.5, s=60.0),
            replace(WALL, drain=True, closed=True),
        ),
        ("some time is left", judged(EVERYTHING, s=59.9), None),
        (
            "all trials are done, a failed one too",
            judged(EVERYTHING, done=4, best=0.5, failed=1),
            TRIALS,
        ),
        ("one trial is left", judged(EVERYTHING, done=4), None),
        ("no further point", judged(EVERYTHING, best=0.5, last=True), SPACE),
        (
            "failures before all else",
            judged(EVERYTHING, done=9, failed=3, best=0.95, s=99, last=True),
            FAILURES,
        ),
        (
            "the target before the clock",
            judged(EVERYTHING, done=9, best=0.95, s=99, last=True),
            TARGET,
        ),
        (
            "the clock before the trials",
            judged(EVERYTHING, done=9, best=0.5, s=99, last=True),
            WALL,
        ),
        (
            "the trials before the money once nothing runs",
            judged(PAID, done=5, best=0.5, spent=Spent(cost=25.0), idle=True),
            TRIALS,
        ),
        (
            "the money before the trials while one runs",
            judged(PAID, done=5, best=0.5, spent=Spent(cost=25.0)),
            MONEY,
        ),
        (
            "the money if trials are left",
            judged(PAID, done=4, best=0.5, spent=Spent(cost=25.0), idle=True),
            MONEY,
        ),
        ("the trials before the space", judged(EVERYTHING, done=5, best=0.5, last=True), TRIALS),
        ("without one value it has failed", judged(EVERYTHING, done=5), NO_VALUE),
        ("the time is up for trials in steps", judged(IN_STEPS, s=60, paused=5), PARTIAL),
        ("the same once they are pruned", judged(IN_STEPS, s=60, pruned=5), PARTIAL),
        (
            "the time is up after one that is complete",
            judged(IN_STEPS, done=1, best=0.5, s=60, paused=5),
            WALL,
        ),
        ("nothing better for some time", judged(PATIENT, done=9, best=0.5, since_best=4), PATIENCE),
        ("nothing better, not long enough", judged(PATIENT, done=9, best=0.5, since_best=3), None),
        ("little is left to gain", judged(CONTENT, done=20, best=0.5, regret_bound=0.008), NEAR),
        ("more is left to gain", judged(CONTENT, done=20, best=0.5, regret_bound=0.011), None),
        ("nothing is known of what is left to gain", judged(CONTENT, done=20, best=0.5), None),
        ("the first of two targets is not enough", judged(TWO, done=1, best=0.95), None),
        (
            "both of two targets",
            judged(TWO, done=1, best=0.95, reached="accuracy 0.95 and size 2"),
            Ending(
                OK,
                "the target was reached: accuracy 0.95 and size 2",
                False,
                ReasonCode.TARGET_REACHED,
            ),
        ),
        (
            "trials that break a constraint have succeeded all the same",
            judged(replace(a_spec(trials=5), constraints=(Constraint("ms", max=1),)), done=5),
            TRIALS,
        ),
        (
            "what the breaker has not judged",
            judged(EVERYTHING, failed=5, last=True, suspended=True),
            None,
        ),
        ("some GPU-hours are left", judged(PAID, best=0.5, spent=Spent(9.9, 24.9)), None),
        ("all GPU-hours are used", judged(PAID, best=0.5, spent=Spent(10, 24)), HOURS),
        ("all money is used", judged(PAID, best=0.5, spent=Spent(9, 25)), MONEY),
        ("the money before the trials", judged(PAID, done=5, best=0.5, spent=Spent(9, 25)), MONEY),
        ("all money for nothing", judged(PAID, spent=Spent(0, 26)), NOTHING_FOR_IT),
        (
            "all money is used, and nothing may finish",
            judged(CUT, best=0.5, spent=Spent(0, 26)),
            replace(MONEY, drain=False),
        ),
        (
            "what the breaker has not judged costs money too",
            judged(PAID, failed=1, best=0.5, spent=Spent(0, 26), suspended=True),
            MONEY,
        ),
        (
            "does not hold up the clock",
            judged(EVERYTHING, failed=5, best=0.5, s=60, suspended=True),
            WALL,
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_budget_ends_an_experiment(sentence: str, found: object, expected: object) -> None:
    assert found == expected


def test_every_outcome_costs_budget_but_cancelled() -> None:
    assert spent_trials(ALL) == 4  # succeeded, pruned, infeasible, failed


@pytest.mark.parametrize(
    ("trials", "done", "unfinished", "left"),
    [(None, 99, 9, None), (10, 0, 0, 10), (10, 7, 2, 1), (10, 7, 5, 0)],
)
def test_the_room_is_what_neither_ended_nor_running_trials_use(
    trials: int | None, done: int, unfinished: int, left: int | None
) -> None:
    assert room(a_spec(trials=trials), {TrialState.SUCCEEDED: done}, unfinished) == left


@pytest.mark.parametrize(
    ("done", "failed", "estimated", "due"),
    [
        (9, 5, 0, False),
        (10, 0, 0, True),
        (10, 0, 10, False),
        (11, 0, 10, True),
        (104, 0, 100, False),
        (60, 45, 100, True),
    ],
)
def test_the_regret_is_bounded_again_after_a_twentieth_more_trials_have_ended(
    done: int, failed: int, estimated: int, due: bool
) -> None:
    counts = {TrialState.SUCCEEDED: done, TrialState.FAILED: failed}
    assert needs_estimate(CONTENT, counts, estimated) is due
    assert not needs_estimate(a_spec(), counts, estimated)
