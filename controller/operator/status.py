"""The status of the custom resource, from what is known of its experiment. Pure.

`observedGeneration` is that of the spec that was looked at; conditions keep the time of their last
transition. The names are those of docs/cluster.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from controller.core.budget import spent_trials
from controller.core.model import Experiment, ExperimentState, ReasonCode
from controller.core.progress import Progress
from controller.core.snapshot import UNCOUNTED
from controller.operator.resource import RESUME
from controller.phrases import quantity
from controller.report import spending
from suggest.space import Assignment
from suggest.trial import Trial

Status: TypeAlias = Mapping[str, Any]

_MOST = 1000  # characters of a message, and of a parameter
_MOST_OF_PARAMETERS = 64 << 10  # characters of all
ACCEPTED, INVALID, CHANGE_REFUSED, UNCHECKED = "Valid", "Invalid", "ChangeRefused", "NotChecked"
SUSPENDED, WAITING = "Suspended", "Waiting"
PENDING, LOST = "pending", "lost"  # states
STATE_LOST = "StateLost"
# Fields that grow as long as trials run.
AMOUNTS = ("gpuHours", "cost")
ARCHIVE_AWAY = "ArchiveAway"  # a condition that most experiments never have


@dataclass(frozen=True, slots=True)
class SpecRefusal:
    """Why the spec is not in force. reason: CamelCase; message: for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of a resource's experiment.

    generation: of the resource's spec, as it was read.
    experiment: None: it was never accepted.
    progress: of its controller's loop; None: no loop runs, or has run in this process.
    refusal: why the spec, or a change of it, is not in force.
    trouble: what keeps it from running, if that may pass.
    archive_trouble: why the bucket has refused logs of its trials; "": no logs wait for it; None:
    not known yet.
    is_valid: the spec is right, and the experiment has not begun.
    """

    generation: int
    experiment: Experiment | None = None
    progress: Progress | None = None
    refusal: SpecRefusal | None = None
    trouble: str = ""
    archive_trouble: str | None = None
    is_valid: bool = False
    suspended: bool = False
    before: Status = field(default_factory=dict)


def status_of(seen: Observation, now: datetime) -> dict[str, Any]:
    """Return the status that the resource has from now on, without empty fields."""
    status: dict[str, Any] = {
        "observedGeneration": seen.generation,
        "state": _state(seen),
        "reason": _reason(seen),
        **_revision(seen),
        **_trials(seen),
    }
    status["conditions"] = list(_conditions(seen, now))
    return {key: value for key, value in status.items() if value not in ("", None)}


def _state(seen: Observation) -> str:
    experiment = seen.experiment
    if experiment is None:
        return _state_without_experiment(seen)
    if seen.suspended and not experiment.state.finished:
        return "suspended" if seen.progress is None or not seen.progress.running else "stopping"
    return experiment.state.value


def _state_without_experiment(seen: Observation) -> str:
    before = str(seen.before.get("state", ""))
    if _begins_later(seen):
        return "suspended"
    if seen.refusal is None:
        # It has not been looked at yet. What has ended has also ended if it is lost.
        return before if before in _ENDED else PENDING
    if seen.refusal.reason != STATE_LOST:
        return "invalid"
    return before if before in _ENDED else LOST


def _begins_later(seen: Observation) -> bool:
    """Return whether it is valid, and was suspended before it began."""
    is_new = seen.experiment is None and "revision" not in seen.before
    return is_new and seen.suspended and seen.refusal is None and not seen.trouble


def _reason(seen: Observation) -> str:
    """Return one sentence: why it is in its state, or what its first waiting trial waits for."""
    experiment = seen.experiment
    if experiment is None:
        return shortened(seen.trouble or ("" if seen.refusal is None else seen.refusal.message))
    waiting = () if seen.progress is None else seen.progress.held_up
    if experiment.state is ExperimentState.RUNNING and not seen.suspended:
        first = next((trial.waiting_for for trial in waiting if trial.waiting_for), "")
        return shortened(seen.trouble or first)
    return shortened((not experiment.state.finished and seen.trouble) or experiment.reason)


def _revision(seen: Observation) -> dict[str, Any]:
    """Return the revision; that of before says that the experiment has run, also if it is lost."""
    if seen.experiment is None:
        return {"revision": seen.before.get("revision")}
    return {"revision": seen.experiment.revision}


def _trials(seen: Observation) -> dict[str, Any]:
    """Return the counts and the best trial; those of before if no loop has run in this process."""
    progress, experiment = seen.progress, seen.experiment
    keys = ("trials", "done", "running", "queued", "best", "optimal", *AMOUNTS)
    if experiment is None or progress is None or not progress.known:
        return {key: seen.before[key] for key in keys if key in seen.before}
    at_work, held_up = len(progress.at_work), len(progress.held_up)
    budget = experiment.spec.budget.trials
    done = spent_trials(progress.counts)
    return {
        "trials": {state.value: n for state, n in progress.counts.items() if n},
        "done": f"{done}" if budget is None else f"{done}/{budget}",
        "running": at_work,
        "queued": progress.queued + held_up,
        "best": None if progress.best is None else _best(progress.best),
        "optimal": progress.optimal,
        "gpuHours": spending.gpu_hours(experiment),
        "cost": spending.cost(experiment),
    }


def _best(trial: Trial) -> dict[str, Any]:
    values = list(trial.values)
    return {
        "number": trial.number,
        "value": values[0] if values else trial.value,
        **({"values": values} if len(values) > 1 else {}),
        "parameters": _bounded(trial.parameters),
    }


def _bounded(parameters: Assignment) -> dict[str, Any]:
    """Return the parameters without what would make the resource too large for the cluster."""
    kept: dict[str, Any] = {}
    left = _MOST_OF_PARAMETERS
    for name, value in parameters.items():
        text = json.dumps(value)
        kept[name] = value if len(text) <= _MOST else shortened(text)
        left -= len(name) + min(len(text), _MOST)
        if left < 0:
            del kept[name]
            break
    return kept


def _conditions(seen: Observation, now: datetime) -> Iterator[dict[str, Any]]:
    before = {each.get("type"): each for each in seen.before.get("conditions", ())}
    for kind, is_true, reason, message in _judged(seen):
        state = "True" if is_true else "False"
        earlier: Mapping[str, Any] = before.get(kind, {})
        since = earlier.get("lastTransitionTime") if earlier.get("status") == state else None
        yield {
            "type": kind,
            "status": state,
            "reason": reason,
            "message": shortened(message),
            "observedGeneration": seen.generation,
            "lastTransitionTime": since or time_text(now),
        }


_Judgement: TypeAlias = tuple[str, bool, str, str]


def _judged(seen: Observation) -> Sequence[_Judgement]:
    """Return type, truth, reason and message of each condition."""
    judged = [_accepted(seen)]
    experiment = seen.experiment
    if _begins_later(seen):
        judged.append(("Paused", True, SUSPENDED, _SUSPENDED))
    if experiment is None:
        return judged
    code = experiment.reason_code
    named = _NAMES.get(experiment.state, "Running") if code is None else code.value
    state = experiment.state
    judged.append(_running(seen, experiment, named))
    if seen.suspended and not state.finished:
        judged.append(("Paused", True, SUSPENDED, _SUSPENDED))
    elif state in (ExperimentState.PAUSED, ExperimentState.STOPPED):
        sentence = seen.trouble or (
            f"{experiment.reason}; it continues after a change of spec, or, as it is, with the "
            f"annotation {RESUME}"
        )
        judged.append(("Paused", True, named, sentence))
    else:
        judged.append(("Paused", False, named, ""))
    for kind, end in (("Succeeded", ExperimentState.SUCCEEDED), ("Failed", ExperimentState.FAILED)):
        judged.append((kind, state is end, named, experiment.reason if state is end else ""))
    judged += _archive_away(seen)
    return judged


def _archive_away(seen: Observation) -> Sequence[_Judgement]:
    before = condition_of(seen.before, ARCHIVE_AWAY)
    if seen.archive_trouble:
        sentence = (
            f"logs of ended trials cannot be copied to the bucket: {seen.archive_trouble}; the "
            "controller keeps them, and tries again at most a minute later"
        )
        return [(ARCHIVE_AWAY, True, "LogsWait", sentence)]
    if not before:
        return []
    if seen.archive_trouble is None:
        is_true = before["status"] == "True"
        return [(ARCHIVE_AWAY, is_true, before["reason"], before.get("message", ""))]
    return [(ARCHIVE_AWAY, False, "NoLogsWait", "no logs of ended trials wait for the bucket")]


_SUSPENDED = "spec.suspend is true; it continues when that is false"
_ENDED = {state.value for state in ExperimentState if state.finished}
_NAMES = {
    ExperimentState.RUNNING: "Running",
    ExperimentState.STOPPING: "Stopping",
    ExperimentState.STOPPED: "Stopped",
    ExperimentState.PAUSED: "Paused",
}


def _accepted(seen: Observation) -> _Judgement:
    if seen.refusal is not None:
        return "Accepted", False, seen.refusal.reason, seen.refusal.message
    if _begins_later(seen):
        return "Accepted", True, ACCEPTED, "it begins when spec.suspend is false"
    if seen.is_valid:
        return "Accepted", True, ACCEPTED, seen.trouble
    if seen.experiment is None:
        return "Accepted", False, UNCHECKED, seen.trouble or "not looked at yet"
    return "Accepted", True, ACCEPTED, f"revision {seen.experiment.revision} is in force"


def _running(seen: Observation, experiment: Experiment, named: str) -> _Judgement:
    runs = experiment.state is ExperimentState.RUNNING and not seen.suspended
    if not runs:
        return "Running", False, SUSPENDED if _is_suspended(seen, experiment) else named, ""
    if seen.trouble:
        return "Running", False, WAITING, seen.trouble
    progress = seen.progress
    if progress is None or not progress.known:
        before = condition_of(seen.before, "Running")
        if before.get("status") == "True":  # as the counts of trials, which are those of before
            return "Running", True, before["reason"], before.get("message", "")
        return "Running", True, "Starting", "its controller starts"
    at_work = f"{quantity(len(progress.at_work), 'trial')} run"
    queued = progress.queued + len(progress.held_up)
    message = f"{at_work} (parallelism {experiment.spec.parallelism}), {queued} queued"
    if progress.elsewhere:
        message += f"; {_of_katib(progress)}"
    reason = ReasonCode.FINAL_STAGE_RUNS.value if progress.final_runs else "TrialsRunning"
    return "Running", True, reason, message


def _of_katib(progress: Progress) -> str:
    if progress.elsewhere == UNCOUNTED:
        return "the Trials of Katib's Experiment have not been read yet"
    return f"{quantity(progress.elsewhere, 'Trial')} of Katib's Experiment run, and count"


def _is_suspended(seen: Observation, experiment: Experiment) -> bool:
    return seen.suspended and not experiment.state.finished


def waiting_status(before: Status, generation: int, trouble: str, now: datetime) -> dict[str, Any]:
    """Return the status of a resource while the store of its experiment is away.

    What runs waits, and new ones are not looked at. The others are as they were.
    """
    state = before.get("state", "pending")
    if state == "pending":
        seen = Observation(generation, trouble=trouble, before=before)
        return status_of(seen, now)
    running = condition_of(before, "Running")
    if state != ExperimentState.RUNNING.value or running.get("message") == shortened(trouble):
        return dict(before)
    told = {"lastTransitionTime": time_text(now), **running, "type": "Running"}
    told |= {"status": "False", "reason": "Waiting", "message": shortened(trouble)}
    if running.get("status") == "True":
        told["lastTransitionTime"] = time_text(now)
    # A dict keeps their order.
    conditions = {each["type"]: each for each in before.get("conditions", ())} | {"Running": told}
    return {**before, "reason": shortened(trouble), "conditions": list(conditions.values())}


def is_accepted(status: Status) -> bool:
    """Return whether the condition Accepted of a status is true."""
    return condition_of(status, "Accepted").get("status") == "True"


def condition_of(status: Status, kind: str) -> Mapping[str, Any]:
    """Return the condition of that type; empty if the status has none."""
    return next((each for each in status.get("conditions", ()) if each.get("type") == kind), {})


def time_text(moment: datetime) -> str:
    """Return a time as objects of the cluster have it, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def shortened(message: str) -> str:
    return message if len(message) <= _MOST else f"{message[: _MOST - 1]}…"
