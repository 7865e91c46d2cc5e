"""Turn what the runtime shows into events for the state machine. Pure.

Observation is level-triggered: every turn looks at the status of every attempt that has not ended,
and an unchanged status gives no event. An attempt that was seen running and is no longer shown has
vanished and failed. One that was only recorded is started again. A running attempt goes back to
waiting only when its queue suspends it: a runtime may show no start time for a moment, while it
replaces one of several workers.
"""

from __future__ import annotations

import math
from datetime import datetime

from controller.core.attempt import AttemptStatus, Exit
from controller.core.failures import CollectedSummary, LogSummary, judge, verdict_of
from controller.core.metrics import LogReader
from controller.core.model import (
    FINAL,
    Attempt,
    AttemptState,
    ExperimentSpec,
    FailureClass,
)
from controller.core.states import AttemptEvent, Ended, ObservedRunning, Waits


def event_for(
    attempt: Attempt,
    status: AttemptStatus | None,
    log: LogReader,
    spec: ExperimentSpec,
    *,
    metrics: LogReader,
    now: datetime,
) -> AttemptEvent | None:
    """Return the event that takes the attempt from its recorded state to the observed one.

    None if nothing changed.

    If the attempt has ended, `log` and `metrics` must have read everything that it wrote. They are
    one reader unless a collector reads the measurements.
    """
    if status is None:
        return _missing(attempt, metrics, now)
    if status.exit is not None:
        return _ended(attempt, status, status.exit, log, metrics, spec)
    waiting = spec.words(status.waiting)
    if attempt.state is AttemptState.RUNNING and status.suspended:
        return Waits(waiting, now)
    gap = _gap(log, metrics)
    if status.start_time is not None and gap not in attempt.log_gap:
        return ObservedRunning(status.start_time, status.node, status.image, gap)
    if attempt.state is not AttemptState.CREATED:
        return None
    if status.start_time is not None:
        return ObservedRunning(status.start_time, status.node, status.image)
    return Waits(waiting, now) if waiting != attempt.reason else None


def _missing(attempt: Attempt, metrics: LogReader, now: datetime) -> Ended | None:
    if attempt.state is AttemptState.CREATED:
        return None
    if attempt.state is AttemptState.STOPPING and attempt.stop_cause is not None:
        return Ended(verdict_of(attempt.stop_cause), now, step=metrics.step, reason=attempt.reason)
    reason = "the attempt disappeared from the runtime"
    return Ended(
        AttemptState.FAILED,
        now,
        step=metrics.step,
        reason=reason,
        failure_class=FailureClass.INFRASTRUCTURE,
    )


def _place_of(metric: str, spec: ExperimentSpec) -> str:
    """Return the key of the experiment's file that names the metric."""
    for objective in spec.objectives:
        if objective.metric == metric:
            return f"spec.{spec.place_of(objective)}.metric"
    constrained = [constraint.metric for constraint in spec.constraints]
    return f"spec.constraints[{constrained.index(metric)}].metric"


def _ended(
    attempt: Attempt,
    status: AttemptStatus,
    end: Exit,
    log: LogReader,
    metrics: LogReader,
    spec: ExperimentSpec,
) -> Ended:
    template = spec.template_of(attempt.trial)
    metric = metrics.lacking or spec.objective.metric
    end_lost = end.log_end_lost if metrics is log else end.metrics_end_lost
    reported = metrics.value_of(metric)
    other_names = metrics.other_names(metric) if reported is None else ()
    collected = None
    if (source := spec.metrics.source) is not None:
        collected = CollectedSummary(str(source), metrics.is_empty, metrics.skipped, metrics.note)
    judged = judge(
        end,
        LogSummary(
            reported,
            metric,
            log.last_line,
            other_names,
            _place_of(metric, spec),
            collected,
            metrics.unreadable(metric),
            spec.metrics.not_finite_fails,
            end_lost or metrics.gap,
            log.exception,
        ),
        attempt.stop_cause,
        of_trial=attempt.trial is not FINAL,
        asked_because=attempt.reason,
        timeout_s=template.timeout_s,
        may_pause=spec.breaker,
        calls_function=template.calls_function,
    )
    value, reason = metrics.value, spec.words(judged.reason)
    if judged.verdict is AttemptState.SUCCEEDED and attempt.trial is not FINAL and metrics.text:
        # The larger number is the later trial.
        value, reason = float(attempt.trial), f"{spec.objective.metric}={metrics.text}"
    carries_value = judged.verdict in (AttemptState.SUCCEEDED, AttemptState.PRUNED)
    return Ended(
        judged.verdict,
        end.time,
        start_time=status.start_time,
        value=value if carries_value and value is not None and math.isfinite(value) else None,
        step=metrics.step,
        reason=reason,
        failure_class=judged.failure_class,
        exit_code=end.code,
        signal=end.signal,
        node=status.node,
        image=status.image,
        log_gap=_joined(_gap(log, metrics), end.log_end_lost, end_lost),
        value_doubt=_value_doubt(metrics, spec, end_lost) if carries_value else "",
    )


def _gap(log: LogReader, metrics: LogReader) -> str:
    return _joined(log.gap, "" if metrics is log else metrics.gap)


def _joined(*descriptions: str) -> str:
    return "; ".join(dict.fromkeys(filter(None, descriptions)))


def _value_doubt(metrics: LogReader, spec: ExperimentSpec, end_lost: str) -> str:
    """Return why the values of an ended attempt may be others without the gaps.

    Return "" if they do not depend on them.
    """
    required = [spec.objective.metric, *spec.other_metrics]
    if doubted := [metric for metric in required if end_lost or metrics.may_lack(metric)]:
        return f"the lines that were not read may have had another value of {', '.join(doubted)}"
    if spec.pruning is not None and metrics.gap:
        return (
            f"its curve, which pruning {spec.pruning.name} compares, lacks the steps that were "
            "not read"
        )
    return ""
