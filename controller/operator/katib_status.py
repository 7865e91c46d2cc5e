"""The statuses of Katib's resources, from what is known of the experiment. Pure.

The words, the order and the odd names are Katib's, because its clients read them. A condition that
changes moves to the end, and the columns of kubectl show the last one.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from controller.core.model import (
    Attempt,
    AttemptState,
    Experiment,
    ExperimentState,
    FailureClass,
    ReasonCode,
)
from controller.core.substitute import as_text
from controller.kube.custom_resource import OWN_STATUS
from controller.operator.status import Observation, Status, shortened, time_text
from suggest.space import Assignment
from suggest.trial import Measurement, Trial, TrialState

# How many names each list of trials has; the counts are those of all.
MOST_LISTED = 1000
_EXACT = 1 << 53  # a float below it is one integer


class TrialClass(enum.Enum):
    """What Katib says of a trial: the type of its last condition."""

    CREATED = "Created"  # its Job exists, and does not run
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    EARLY_STOPPED = "EarlyStopped"
    FAILED = "Failed"
    METRICS_UNAVAILABLE = "MetricsUnavailable"
    KILLED = "Killed"

    @property
    def ended(self) -> bool:
        return self not in (TrialClass.CREATED, TrialClass.RUNNING)

    @property
    def is_failure(self) -> bool:
        return self in (TrialClass.FAILED, TrialClass.METRICS_UNAVAILABLE)


_ENDS = {
    TrialState.SUCCEEDED: TrialClass.SUCCEEDED,
    # A trial that reports nan has succeeded in Katib.
    TrialState.INFEASIBLE: TrialClass.SUCCEEDED,
    TrialState.PRUNED: TrialClass.EARLY_STOPPED,
    TrialState.FAILED: TrialClass.FAILED,
    TrialState.CANCELLED: TrialClass.KILLED,
}
# Keys of an Experiment's status: the list of names, and the count.
_LISTS = {
    TrialClass.CREATED: ("pendingTrialList", "trialsPending"),
    TrialClass.RUNNING: ("runningTrialList", "trialsRunning"),
    TrialClass.SUCCEEDED: ("succeededTrialList", "trialsSucceeded"),
    TrialClass.EARLY_STOPPED: ("earlyStoppedTrialList", "trialsEarlyStopped"),
    TrialClass.FAILED: ("failedTrialList", "trialsFailed"),
    TrialClass.METRICS_UNAVAILABLE: ("metricsUnavailableTrialList", "trialMetricsUnavailable"),
    TrialClass.KILLED: ("killedTrialList", "trialsKilled"),
}
_TRIAL_CONDITIONS = {
    TrialClass.CREATED: ("TrialCreated", "Trial is created"),
    TrialClass.RUNNING: ("TrialRunning", "Trial is running"),
    TrialClass.SUCCEEDED: ("TrialSucceeded", "Trial has succeeded"),
    TrialClass.EARLY_STOPPED: ("TrialEarlyStopped", "Trial is early stopped"),
    TrialClass.FAILED: ("TrialFailed", "Trial has failed"),
    TrialClass.METRICS_UNAVAILABLE: ("MetricsUnavailable", "Metrics are not available"),
    TrialClass.KILLED: ("TrialKilled", "Trial is killed"),
}


def mapping_of(value: object) -> dict[str, Any]:
    """Return a mapping of an object that no schema has checked; {} in place of anything else."""
    return value if isinstance(value, dict) else {}


# The types of the fields of Tuner's own status that are read again.
_OWN_TYPES = {
    "observedGeneration": int,
    "revision": int,
    "state": str,
    "reason": str,
    "trials": dict,
    "best": dict,
}


def sound_status(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status without what has another form than ours: anybody may have edited it."""
    sound = _with_sound_conditions(status)
    if OWN_STATUS in sound:
        own = _with_sound_conditions(mapping_of(sound[OWN_STATUS]))
        sound[OWN_STATUS] = {
            key: value
            for key, value in own.items()
            if isinstance(value, _OWN_TYPES.get(key, object))
        }
    return sound


def _with_sound_conditions(status: Mapping[str, Any]) -> dict[str, Any]:
    if "conditions" not in status:
        return dict(status)
    listed = status["conditions"]
    found = listed if isinstance(listed, list) else []
    sound = [each for each in found if isinstance(mapping_of(each).get("type"), str)]
    return {**status, "conditions": sound}


def listed_unfinished(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of Trials that the status of an Experiment says have not ended."""
    for each, (listed, _) in _LISTS.items():
        names = status.get(listed)
        if not each.ended and isinstance(names, list):
            yield from (name for name in names if isinstance(name, str))


def class_said(status: Mapping[str, Any]) -> TrialClass | None:
    """Return the class that the status of a Trial says."""
    said = [each["type"] for each in status.get("conditions", ())]
    known = {each.value: each for each in TrialClass}
    return known.get(said[-1]) if said else None


def class_of(trial: Trial, newest: Attempt | None, *, has_object: bool) -> TrialClass | None:
    """Return the class of a trial; None: its Trial is not to be seen yet.

    newest: its latest attempt. has_object: whether clients find an object of that attempt.
    """
    if trial.state is TrialState.FAILED:
        if trial.failure_class == FailureClass.METRICS_MISSING.value:
            return TrialClass.METRICS_UNAVAILABLE
        return TrialClass.FAILED
    if trial.finished:
        # One that was never begun is not known to Katib's clients.
        return None if newest is None else _ENDS[trial.state]
    if newest is None or not has_object:
        return None
    runs = newest.state in (AttemptState.RUNNING, AttemptState.STOPPING)
    return TrialClass.RUNNING if runs else TrialClass.CREATED


@dataclass(frozen=True, slots=True)
class TrialsOverview:
    """The trials that clients see. optimal: `currentOptimalTrial`; {} if there is none."""

    names: Mapping[TrialClass, Sequence[str]]
    optimal: Mapping[str, Any]


def experiment_status(
    seen: Observation, trials: TrialsOverview, before: Status, now: datetime
) -> dict[str, Any]:
    """Return Katib's part of the status of an Experiment. before: the whole status as it is."""
    experiment = seen.experiment
    status: dict[str, Any] = {}
    began = None if experiment is None else experiment.start_time
    status["startTime"] = time_text(began) if began else before.get("startTime") or time_text(now)
    if experiment is not None and experiment.state.finished:
        ended = None if experiment.end_time is None else time_text(experiment.end_time)
        status["completionTime"] = ended or before.get("completionTime") or time_text(now)
    if experiment is not None:
        # Katib has no such key: what a suspension by 0 in the spec goes back to.
        status["parallelTrialCount"] = experiment.spec.parallelism
    status["trials"] = sum(map(len, trials.names.values()))
    for each, (listed, counted) in _LISTS.items():
        names = trials.names.get(each, ())
        status[counted] = len(names)
        if names:
            status[listed] = list(names[-MOST_LISTED:])
    if trials.optimal:
        status["currentOptimalTrial"] = dict(trials.optimal)
    known = before.get("conditions", ())
    continues = _continues(seen, known)
    if continues:
        known = [each for each in known if each.get("type") not in _BEFORE_IT_CONTINUES]
    said = _said_of_experiment(seen, is_restarted=continues or "Restarting" in _true(known))
    status["conditions"] = conditions(known, said, now)
    return status


_BEFORE_IT_CONTINUES = ("Running", "Succeeded", "Failed")


def says_the_end(known: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the conditions of an Experiment say that it has ended."""
    return not _true(known).isdisjoint(("Succeeded", "Failed"))


def _true(known: Iterable[Mapping[str, Any]]) -> set[str]:
    return {str(each.get("type")) for each in known if each.get("status") == "True"}


def _continues(seen: Observation, known: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether it has ended before, and went on since the last status."""
    experiment, revision = seen.experiment, seen.before.get("revision")
    if experiment is None or revision is None or not says_the_end(known):
        return False
    # A short continuation may begin and end between two statuses.
    return not experiment.state.finished or experiment.revision != revision


# type, whether it is true, reason, message
Said: TypeAlias = tuple[str, bool, str, str]


def conditions(
    before: Iterable[Mapping[str, Any]], said: Iterable[Said], now: datetime
) -> list[dict[str, Any]]:
    """Return conditions that say so: unchanged ones in their places, then the changed ones."""
    known = {each["type"]: dict(each) for each in before if "type" in each}
    kept: dict[str, dict[str, Any]] = {}
    changed: list[dict[str, Any]] = []
    for kind, is_true, reason, message in said:
        text = shortened(message)
        state = "True" if is_true else "False"
        earlier = known.get(kind, {})
        if [earlier.get(key) for key in ("status", "reason", "message")] == [state, reason, text]:
            kept[kind] = earlier
            continue
        since = earlier.get("lastTransitionTime") if earlier.get("status") == state else None
        changed.append(
            {
                "type": kind,
                "status": state,
                "reason": reason,
                "message": text,
                "lastUpdateTime": time_text(now),
                "lastTransitionTime": since or time_text(now),
            }
        )
    return [kept[kind] for kind in known if kind in kept] + changed


_GOALS = {
    ReasonCode.TARGET_REACHED: ("ExperimentGoalReached", "Objective goal has reached"),
    ReasonCode.TRIALS_DONE: ("ExperimentMaxTrialsReached", "max trial count has reached"),
    ReasonCode.SPACE_EXHAUSTED: (
        "ExperimentSuggestionEndReached",
        "suggestion service has reached the end",
    ),
}
_TOO_MANY = "Experiment has failed because max failed count has reached"


def _said_of_experiment(seen: Observation, *, is_restarted: bool) -> Iterator[Said]:
    yield "Created", True, "ExperimentCreated", "Experiment is created"
    experiment = seen.experiment
    if experiment is None:
        if seen.refusal is not None:
            yield "Failed", True, f"Experiment{seen.refusal.reason}", seen.refusal.message
        elif seen.suspended:
            yield "Running", False, "ExperimentSuspended", _SUSPENDED
        return
    if is_restarted:
        yield "Restarting", True, "ExperimentRestarting", "Experiment is restarted"
    yield _running(seen, experiment)
    if experiment.state is ExperimentState.SUCCEEDED:
        yield _success(experiment)
    elif experiment.state is ExperimentState.FAILED:
        is_count = experiment.reason_code is ReasonCode.TOO_MANY_FAILURES
        yield "Failed", True, "ExperimentFailed", _TOO_MANY if is_count else experiment.reason


_SUSPENDED = "spec.parallelTrialCount is 0, or spec.suspend is true"


def _running(seen: Observation, experiment: Experiment) -> Said:
    if experiment.state.finished:
        return "Running", False, "ExperimentRunning", "Experiment is running"
    if seen.suspended:
        return "Running", False, "ExperimentSuspended", _SUSPENDED
    if experiment.state in (ExperimentState.PAUSED, ExperimentState.STOPPED):
        return "Running", False, "ExperimentPaused", experiment.reason
    return "Running", True, "ExperimentRunning", "Experiment is running"


def _success(experiment: Experiment) -> Said:
    found = None if experiment.reason_code is None else _GOALS.get(experiment.reason_code)
    if found is None:
        return "Succeeded", True, "ExperimentSucceeded", experiment.reason
    reason, why = found
    return "Succeeded", True, reason, f"Experiment has succeeded because {why}"


def assignments(parameters: Assignment) -> list[dict[str, str]]:
    """Return the parameters with the texts that the program got."""
    return [{"name": name, "value": as_text(value)} for name, value in parameters.items()]


def observation(
    trial: Trial, measured: Sequence[Measurement], metrics: Sequence[str]
) -> dict[str, Any]:
    """Return what the last attempt of a trial measured of these metrics; {} without the first.

    metrics: the objective, then the others.
    """
    last = max((each.attempt for each in measured), default=0)
    values: dict[str, list[float]] = {}
    for each in sorted(measured, key=lambda each: each.step):
        if each.attempt == last:
            values.setdefault(each.metric, []).append(each.value)
    if metrics[0] not in values and trial.value is not None:
        values[metrics[0]] = [trial.value]
    found = [_metric(name, values[name]) for name in metrics if name in values]
    return {"metrics": found} if metrics[0] in values else {}


def observed_text(metric: str, reason: str) -> dict[str, Any]:
    """Return the observation of a trial whose objective is a text; {} without one.

    reason: of its latest attempt, which says the text.
    """
    _, is_told, text = reason.partition(f"{metric}=")
    extremes = dict.fromkeys(("min", "max"), "unavailable")
    return {"metrics": [{"name": metric, "latest": text, **extremes}]} if is_told else {}


def _metric(name: str, values: Sequence[float]) -> dict[str, str]:
    # What is not finite is neither the least nor the greatest.
    numbers = [value for value in values if math.isfinite(value)] or list(values)
    return {
        "name": name,
        "latest": number_text(values[-1]),
        "min": number_text(min(numbers)),
        "max": number_text(max(numbers)),
    }


def number_text(value: float) -> str:
    """Return the text of a measured value: `2`, since to clients `2.0` is not an integer.

    Katib has the text of the log. How a program has printed the number is not known here.
    """
    is_whole = value.is_integer() and abs(value) < _EXACT
    return str(int(value)) if is_whole else as_text(value)


def trial_status(
    trial: Trial,
    shown: TrialClass,
    began: datetime | None,
    observed: Mapping[str, Any],
    before: Status,
    now: datetime,
) -> dict[str, Any]:
    """Return the status of a Trial. began: when its latest attempt was begun."""
    said = [_said_of_trial(TrialClass.CREATED, True, "")]
    if shown.ended:
        said.append(_said_of_trial(TrialClass.RUNNING, False, ""))
    if shown is not TrialClass.CREATED:
        said.append(_said_of_trial(shown, True, trial.reason if shown.ended else ""))
    status: dict[str, Any] = {
        "startTime": before.get("startTime") or time_text(began or trial.create_time or now),
        "conditions": conditions(before.get("conditions", ()), said, now),
    }
    if shown.ended:
        status["completionTime"] = time_text(trial.end_time or now)
    if observed:
        status["observation"] = dict(observed)
    return status


def _said_of_trial(shown: TrialClass, is_true: bool, why: str) -> Said:
    reason, message = _TRIAL_CONDITIONS[shown]
    if shown.is_failure and why:
        message = f"{message}. {why}"
    return shown.value, is_true, reason, message


def suggestion_status(
    seen: Observation, trials: int, policy: str | None, before: Status, now: datetime
) -> dict[str, Any]:
    """Return the status of the Suggestion, which Katib's clients read beside the Experiment.

    policy: the experiment's resumePolicy; LongRunning keeps the Suggestion after the end.
    """
    experiment = seen.experiment
    has_ended = experiment is not None and experiment.state.finished and policy != "LongRunning"
    said: list[Said] = [
        ("Created", True, "SuggestionCreated", "Suggestion is created"),
        ("DeploymentReady", True, "DeploymentReady", "Tuner's controller answers"),
        ("Running", not has_ended, "SuggestionRunning", "Suggestion is running"),
    ]
    if has_ended:
        said.append(("Succeeded", True, "SuggestionSucceeded", "Suggestion has succeeded"))
    return {
        "startTime": before.get("startTime") or time_text(now),
        **({"completionTime": before.get("completionTime") or time_text(now)} if has_ended else {}),
        "suggestionCount": trials,
        "conditions": conditions(before.get("conditions", ()), said, now),
    }
