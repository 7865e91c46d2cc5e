"""The Trials of a real Katib, as its controller leaves them: how they ended, and what a search
learns from them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from controller.app.csv_source import read_value
from controller.app.import_sources import MOST_MEASURED
from controller.core.model import KATIB_EXPERIMENT_LABEL, ExperimentSpec, FailureClass
from controller.kube.client import KubernetesClient
from controller.kube.custom_resource import KATIB_TRIALS
from controller.kube.errors import ApiNotFound
from controller.kube.objects import Raw
from suggest.client import FinishedTrial, Measurement, Outcome, TrialState
from suggest.errors import Problem
from suggest.imports import Source
from suggest.space import Assignment

NOTHING_REPORTED: Mapping[str, Sequence[float]] = {}


class KatibTrialEnd(enum.Enum):
    """How a Trial ended: the type of its condition."""

    KILLED = "Killed"
    FAILED = "Failed"
    SUCCEEDED = "Succeeded"
    EARLY_STOPPED = "EarlyStopped"
    METRICS_UNAVAILABLE = "MetricsUnavailable"


@dataclass(frozen=True, slots=True)
class KatibTrials:
    """The Trials of one Experiment.

    ended: with their ends. running: those that Katib has begun, and whose end it has not written.
    """

    ended: Sequence[tuple[Raw, KatibTrialEnd]]
    running: Sequence[Raw]

    @classmethod
    def of(cls, found: Sequence[Raw], experiment_uid: str) -> KatibTrials:
        """Sort the Trials of this Experiment; those of an earlier one of its name are left out."""
        own = [trial for trial in found if _is_owned(trial, experiment_uid)]
        ends = [(trial, end_of(trial)) for trial in own]
        ended = [(trial, end) for trial, end in ends if end is not None]
        return cls(ended, [trial for trial, end in ends if end is None])

    @property
    def begun(self) -> int:
        return len(self.ended) + len(self.running)

    @property
    def failed(self) -> int:
        """Return how many count for `maxFailedTrialCount`."""
        failures = (KatibTrialEnd.FAILED, KatibTrialEnd.METRICS_UNAVAILABLE)
        return sum(end in failures for _, end in self.ended)

    @property
    def names(self) -> Sequence[str]:
        """Return those of the ended ones."""
        return [str(trial["metadata"]["name"]) for trial, _ in self.ended]

    def without(self, names: Set[str]) -> KatibTrials:
        """Return the same without ended ones of these names."""
        ended = [each for each in self.ended if each[0]["metadata"]["name"] not in names]
        return KatibTrials(ended, self.running)

    def source(
        self,
        spec: ExperimentSpec,
        experiment_uid: str,
        reported: Mapping[str, Sequence[float]] = NOTHING_REPORTED,
    ) -> Source:
        """Return what the search of the spec learns from those that have ended.

        reported: the values of the objective over time, by the names of the Trials.
        """
        finished: list[tuple[str, FinishedTrial]] = []
        refused: list[Problem] = []
        killed = 0
        for trial, end in self.ended:
            name = str(trial["metadata"]["name"])
            if end is KatibTrialEnd.KILLED:
                killed += 1
                continue
            try:
                finished.append((name, _finished(trial, end, spec, reported.get(name, ()))))
            except ValueError as error:
                refused.append(Problem(name, str(error)))
        return Source(
            title=f"experiments.kubeflow.org {spec.name}",
            identity=f"katib-{experiment_uid}",
            trials=finished,
            objectives=spec.objectives,
            left_out={"killed": killed} if killed else {},
            refused=refused,
        )


async def trials_of_katib(
    client: KubernetesClient, namespace: str, experiment: str, uid: str
) -> KatibTrials:
    """Return the Trials of an Experiment of Katib's; none if its kinds are gone with it."""
    labels = f"{KATIB_EXPERIMENT_LABEL}={experiment}"
    try:
        found, _ = await client.list(KATIB_TRIALS, namespace, labels=labels)
    except ApiNotFound:
        found = []
    return KatibTrials.of(found, uid)


def _is_owned(trial: Raw, uid: str) -> bool:
    owners = trial["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def is_true(resource: Raw, kind: str) -> bool:
    """Return whether the condition of this type is true."""
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == kind and each.get("status") == "True" for each in conditions)


def end_of(trial: Raw) -> KatibTrialEnd | None:
    """Return how Katib counts a Trial; None: it may still change."""
    for end in (KatibTrialEnd.KILLED, KatibTrialEnd.FAILED, KatibTrialEnd.SUCCEEDED):
        if is_true(trial, end.value):
            return end
    if is_true(trial, KatibTrialEnd.EARLY_STOPPED.value):
        # Its values come later, from the sidecar.
        return KatibTrialEnd.EARLY_STOPPED if _metrics(trial) else None
    unavailable = KatibTrialEnd.METRICS_UNAVAILABLE
    is_over = is_true(trial, unavailable.value) and not is_true(trial, "Running")
    return unavailable if is_over else None


def _metrics(trial: Raw) -> dict[str, Raw]:
    observation = (trial.get("status") or {}).get("observation") or {}
    return {str(each["name"]): each for each in observation.get("metrics") or ()}


def _finished(
    trial: Raw, end: KatibTrialEnd, spec: ExperimentSpec, reported: Sequence[float]
) -> FinishedTrial:
    """Raises ValueError if a parameter has a text that is no value of it."""
    values = dict(_values(trial))
    objective = spec.objective.metric
    value = values.pop(objective, math.nan)
    curve = [*enumerate(reported, 1)]
    return FinishedTrial(
        _parameters(trial, spec),
        _outcome(trial, end, value if math.isfinite(value) else None),
        [
            *(Measurement(1, metric, 1, each) for metric, each in values.items()),
            *(Measurement(1, objective, step, each) for step, each in curve[-MOST_MEASURED:]),
        ],
        source_id=str(trial["metadata"]["name"]),
    )


def _parameters(trial: Raw, spec: ExperimentSpec) -> Assignment:
    parameters = spec.space.by_name
    return {
        each["name"]: read_value(parameters[each["name"]], str(each["value"]))
        for each in trial["spec"].get("parameterAssignments") or ()
        if each["name"] in parameters
    }


def _values(trial: Raw) -> Iterator[tuple[str, float]]:
    """Yield each metric with the value that its strategy chooses, if that is a number."""
    objective: dict[str, Any] = trial["spec"]["objective"]
    best = {"minimize": "min", "maximize": "max"}[objective["type"]]
    chosen = {each["name"]: each["value"] for each in objective.get("metricStrategies") or ()}
    for name, metric in _metrics(trial).items():
        # Katib writes `unavailable` for what is not a number.
        for key in (chosen.get(name, best), "latest"):
            try:
                yield name, float(metric.get(key, ""))
            except ValueError:
                continue
            break


def _outcome(trial: Raw, end: KatibTrialEnd, value: float | None) -> Outcome:
    if end is KatibTrialEnd.EARLY_STOPPED:
        return Outcome(TrialState.PRUNED, value, "Katib has stopped it early")
    if end is KatibTrialEnd.SUCCEEDED and value is not None:
        return Outcome(TrialState.SUCCEEDED, value)
    conditions = trial["status"]["conditions"]
    said = next(str(each.get("message", "")) for each in conditions if each["type"] == end.value)
    if end is KatibTrialEnd.FAILED:
        return Outcome(TrialState.FAILED, reason=said, failure_class=FailureClass.USER_ERROR.value)
    missing = FailureClass.METRICS_MISSING.value
    return Outcome(TrialState.FAILED, reason=said, failure_class=missing)
