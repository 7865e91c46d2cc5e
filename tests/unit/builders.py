"""Builders for tests of the controller's core: an experiment,
its attempts and a snapshot in one line each.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import UTC, datetime, timedelta

from controller.core.breaker import Streak
from controller.core.model import (
    FINAL,
    Attempt,
    AttemptState,
    Budget,
    Experiment,
    ExperimentObjective,
    ExperimentSpec,
    ExperimentState,
    FailureClass,
    Resources,
    StopCause,
    TrialOrFinal,
    TrialTemplate,
)
from controller.core.snapshot import DesiredState, FinalStage, Snapshot, UnfinishedTrial
from controller.core.spending import NOTHING_SPENT, Spent
from suggest.space import Choice, Condition, Float, Parameter, Space, Value
from suggest.study import Algorithm, Direction, ValueRule
from suggest.trial import Trial, TrialState

CREATED, RUNNING, STOPPING = AttemptState.CREATED, AttemptState.RUNNING, AttemptState.STOPPING
SUCCEEDED, PRUNED, INFEASIBLE = AttemptState.SUCCEEDED, AttemptState.PRUNED, AttemptState.INFEASIBLE
FAILED, CANCELLED = AttemptState.FAILED, AttemptState.CANCELLED

UID = "x7k2qaaaaaaaaaaa"
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SPACE = Space(
    (
        Parameter("lr", Float(1e-4, 1.0)),
        Parameter("activation", Choice(("relu", "tanh"))),
        Parameter("dropout", Float(0.0, 0.7), (Condition("activation", ("relu",)),)),
    )
)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def an_objective(
    *, maximize: bool = True, target: float | None = None, value: str = "last"
) -> ExperimentObjective:
    direction = Direction.MAXIMIZE if maximize else Direction.MINIMIZE
    return ExperimentObjective("accuracy", direction, ValueRule(value), target)


def a_template(
    *command: str, env: Mapping[str, object] | None = None, gpu: float = 0.0
) -> TrialTemplate:
    return TrialTemplate(
        command or ("python", "train.py", "--lr=${lr}"),
        env=env or {},  # type: ignore[arg-type]  # strings and secrets
        resources=Resources(gpu=gpu),
        timeout_s=60.0,
        grace_s=30.0,
        retries={FailureClass.INFRASTRUCTURE: 3},
    )


def a_spec(
    *,
    parallelism: int = 1,
    trials: int | None = None,
    failed_trials: int | None = None,
    canary_s: float = 10.0,
    breaker: bool = True,
    wall_clock_s: float | None = None,
    objective: ExperimentObjective | None = None,
    trial: TrialTemplate | None = None,
    name: str = "digits",
    final: TrialTemplate | None = None,
) -> ExperimentSpec:
    return ExperimentSpec(
        name=name,
        namespace="default",
        space=SPACE,
        objective=objective or an_objective(),
        algorithm=Algorithm("random", 7),
        trial=trial or a_template(),
        parallelism=parallelism,
        budget=Budget(trials, failed_trials, wall_clock_s),
        canary_s=canary_s,
        breaker=breaker,
        final=final,
        document={"name": name},
    )


def an_experiment(spec: ExperimentSpec | None = None, *, uid: str = UID) -> Experiment:
    spec = spec or a_spec()
    study = f"namespaces/default/studies/{spec.name}-{uid[:5]}"
    return Experiment(uid, spec, 1, "/work", study, start_time=START)


def attempt(
    number: int,
    state: AttemptState = CREATED,
    *,
    trial: TrialOrFinal = 0,
    cause: StopCause | None = None,
    failed: FailureClass | None = None,
    value: float | None = None,
    reason: str = "",
) -> Attempt:
    start = None if state is CREATED else START
    return Attempt(
        trial, number, state, cause, start, value=value, failure_class=failed, reason=reason
    )


def final_stage(
    state: AttemptState | None = None,
    *,
    cause: StopCause | None = None,
    failed: FailureClass | None = None,
    reason: str = "",
    earlier: tuple[Attempt, ...] = (),
    first: int = 1,
    kept: bool = True,
) -> FinalStage:
    """A final stage whose newest attempt is in `state`; None before it begins.

    `first`: its first attempt's number.
    """
    if state is None:
        return FinalStage((), first - 1)
    newest = attempt(
        first + len(earlier), state, trial=FINAL, cause=cause, failed=failed, reason=reason
    )
    return FinalStage((*earlier, newest), first - 1, kept)


def open_trial(
    number: int,
    state: AttemptState | None = None,
    *,
    cause: StopCause | None = None,
    failed: FailureClass | None = None,
    value: float | None = None,
    reason: str = "",
    earlier: tuple[Attempt, ...] = (),
    running: bool = True,
) -> UnfinishedTrial:
    """A trial whose newest attempt is in `state`; None if it waits for its first one."""
    if state is None:
        return UnfinishedTrial(number, earlier, running)
    newest = attempt(
        len(earlier) + 1,
        state,
        trial=number,
        cause=cause,
        failed=failed,
        value=value,
        reason=reason,
    )
    return UnfinishedTrial(number, (*earlier, newest), running)


def snapshot(
    spec: ExperimentSpec | None = None,
    *trials: UnfinishedTrial,
    state: ExperimentState = ExperimentState.RUNNING,
    done: Mapping[TrialState, int] | None = None,
    desired: DesiredState = DesiredState.RUN,
    without_grace: bool = False,
    best: float | None = None,
    exhausted: bool = False,
    running_s: float = 0.0,
    slots: int | None = None,
    canary_over: bool = True,
    advised: Mapping[TrialOrFinal, str] | None = None,
    sent: Mapping[TrialOrFinal, float] | None = None,
    removed: Set[int] | None = None,
    held: Set[int] = frozenset(),
    final: FinalStage | None = None,
    streak: Streak | None = None,
    set_aside: Set[int] = frozenset(),
    spent: Spent = NOTHING_SPENT,
) -> Snapshot:
    """`done`: finished trials by outcome; without `streak`, some of them have not failed. `sent`:
    stops sent in this process's life, with their grace. `removed`: None = all that have failed.
    """
    return Snapshot(
        spec=spec or a_spec(),
        state=state,
        trials=trials,
        counts=done or {},
        desired=desired,
        without_grace=without_grace,
        best=best,
        exhausted=exhausted,
        running_s=running_s,
        slots=slots,
        canary_over=canary_over,
        advised=advised or {},
        stops_sent=sent or {},
        removed={FINAL, *(trial.number for trial in trials)} if removed is None else removed,
        held=held,
        final=final,
        streak=Streak(first=None if done else ()) if streak is None else streak,
        set_aside=set_aside,
        spent=spent,
    )


def a_trial(number: int = 12, **parameters: Value) -> Trial:
    return Trial(number, TrialState.RUNNING, parameters)
