"""What is known of an experiment at one moment, in one value: everything else in `report` is a function of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from controller.core.model import (
    Attempt,
    AttemptState,
    Event,
    Experiment,
    ExperimentState,
    FailureClass,
    TrialTemplate,
    trial_name,
)
from controller.report.final import FinalRecord
from controller.runtime.kubernetes.demand import demand_of, is_gpu
from suggest import pareto
from suggest.space import Value
from suggest.study import Criteria, Study
from suggest.trial import IMPORTED_FROM, REUSED, Measurement, Trial, TrialState


def gpus_of(template: TrialTemplate) -> float:
    """Of one attempt; of a whole object, as far as it says what its pods ask for, and no parameter decides it."""
    manifest = template.cluster.get("template")
    if not isinstance(manifest, dict):
        return template.resources.gpu * template.workers
    try:
        asked = demand_of([manifest]).total()
    except ValueError:
        return 0.0
    return float(sum(amount for key, amount in asked.items() if is_gpu(key.removeprefix("requests."))))


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial with its attempts, oldest first. by_client: of a study without an experiment; a client runs it."""

    trial: Trial
    attempts: Sequence[Attempt] = ()
    by_client: bool = False

    @property
    def newest(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def imported_from(self) -> str:
        """Where somebody had run it before it came here; "" of a trial of the experiment's own."""
        return self.trial.labels.get(IMPORTED_FROM, "")

    @property
    def value_of(self) -> str:
        """The number of the trial whose value it took over without running; "" of any other trial."""
        return self.trial.labels.get(REUSED, "")

    @property
    def waiting(self) -> bool:
        """Its newest attempt is made, and does not run yet."""
        return self.newest is not None and self.newest.state is AttemptState.CREATED

    @property
    def state(self) -> TrialState:
        """As people see it: what the study calls running waits, until an attempt of it runs; so does what failed and is
        to run again."""
        if self.by_client:
            return self.trial.state
        if self.trial.state is TrialState.FAILED and self.newest is not None and self.newest.rerun:
            return TrialState.QUEUED
        if self.trial.state is TrialState.RUNNING and (self.newest is None or self.newest.ended or self.waiting):
            return TrialState.QUEUED
        return self.trial.state

    @property
    def start_time(self) -> datetime | None:
        """Of its first attempt that began."""
        if self.by_client:
            return self.trial.create_time
        return min((each.start_time for each in self.attempts if each.start_time is not None), default=None)

    @property
    def end_time(self) -> datetime | None:
        """None of one that goes on."""
        if self.by_client or not self.trial.finished:
            return self.trial.end_time if self.by_client else None
        return None if self.newest is None else self.newest.end_time


Metrics = Mapping[int, Mapping[str, float]]


class TrialList(Protocol):
    """Trials and what a list of them shows beside them: an experiment's, or a study's that has none."""

    @property
    def trials(self) -> Sequence[TrialRecord]: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def name(self) -> str: ...

    @property
    def parameter_names(self) -> list[str]: ...

    @property
    def criteria(self) -> Criteria: ...

    def trial_name(self, number: int) -> str: ...

    def reason_of(self, record: TrialRecord) -> str: ...


def best_of(trials: Sequence[TrialRecord], criteria: Criteria) -> list[Trial]:
    """The best succeeded trials, imported ones included, by the first objective: one, or the Pareto front."""
    sign = criteria.objectives[0].direction.sign
    found = criteria.best(record.trial for record in trials)
    return sorted(found, key=lambda trial: sign * (trial.value or 0.0))


def last_values(measured: Iterable[tuple[int, Measurement]], *, without: str) -> dict[int, dict[str, float]]:
    """By trial, of its newest attempt: each metric's value at its last step. `without`: the objective's metric."""
    newest: dict[int, int] = {}
    latest: dict[int, dict[str, Measurement]] = {}
    for number, each in measured:
        if each.attempt > newest.get(number, 0):
            newest[number] = each.attempt
            latest[number] = {}
        known = latest[number].get(each.metric)
        if each.metric != without and each.attempt == newest[number] and (known is None or each.step > known.step):
            latest[number][each.metric] = each
    return {number: {name: one.value for name, one in found.items()} for number, found in latest.items() if found}


@dataclass(frozen=True, slots=True)
class StudyTrials:
    """The trials of a study that clients of the service run: no experiment has it."""

    study: Study
    trials: Sequence[TrialRecord] = ()
    metrics: Metrics = field(default_factory=dict)
    measurements: Mapping[int, Sequence[Measurement]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.study.name.study

    @property
    def parameter_names(self) -> list[str]:
        return [parameter.name for parameter in self.study.spec.space.parameters]

    @property
    def criteria(self) -> Criteria:
        return self.study.spec.criteria

    def trial_name(self, number: int) -> str:
        return f"{self.study.name}/trials/{number}"

    def reason_of(self, record: TrialRecord) -> str:
        return record.trial.reason


@dataclass(frozen=True, slots=True)
class ExperimentRecord:
    """`controlled_by`: who runs it now, "" = nobody. `metrics`: by trial, the last values but the objective's."""

    experiment: Experiment
    trials: Sequence[TrialRecord] = ()
    events: Sequence[Event] = ()
    controlled_by: str = ""
    measurements: Mapping[int, Sequence[Measurement]] = field(default_factory=dict)
    # Of the algorithm, where its study has more of them than the file.
    settings: Mapping[str, Value] = field(default_factory=dict)
    final: FinalRecord | None = None
    metrics: Metrics = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def parameter_names(self) -> list[str]:
        return [parameter.name for parameter in self.experiment.spec.space.parameters]

    def trial_name(self, number: int) -> str:
        return trial_name(self.experiment.name, self.experiment.uid, number)

    @property
    def counts(self) -> dict[TrialState, int]:
        """Of its own trials that ran, in the order of `TrialState`; states without a trial are not there."""
        shown = [record.state for record in self.trials if not (record.imported_from or record.value_of)]
        return {state: n for state in TrialState if (n := shown.count(state))}

    @property
    def criteria(self) -> Criteria:
        return self.experiment.spec.criteria

    @property
    def best(self) -> Trial | None:
        """With several objectives the one of the Pareto front that is best in the first."""
        return next(iter(self.front), None)

    @property
    def front(self) -> list[Trial]:
        """The best trials, by the first objective: one, or the Pareto front."""
        return best_of(self.trials, self.criteria)

    @property
    def dominated_share(self) -> float | None:
        """See `pareto.dominated_share`: of the succeeded trials that keep the constraints; None with one objective."""
        criteria = self.criteria
        if len(criteria.objectives) == 1:
            return None
        succeeded = [one.trial for one in self.trials if one.trial.state is TrialState.SUCCEEDED]
        kept = [losses for t in succeeded if (losses := criteria.losses(t)) and criteria.violation(t) == 0]
        return pareto.dominated_share(kept)

    @property
    def gpus(self) -> float:
        """Of one attempt."""
        return gpus_of(self.experiment.spec.trial)

    def gpu_seconds(self, attempt: Attempt, *, now: datetime) -> float:
        """What it has held so far, whether or not it used them."""
        if attempt.start_time is None:
            return 0.0
        held = gpus_of(self.experiment.spec.template_of(attempt.trial))
        return held * ((attempt.end_time or now) - attempt.start_time).total_seconds()

    def reason_of(self, record: TrialRecord) -> str:
        """Why the trial is as it is; empty where its state says it all."""
        if record.state is not TrialState.QUEUED:
            newest = record.newest
            return record.trial.reason or (newest.reason if newest is not None else "")
        experiment, newest = self.experiment, record.newest
        if experiment.state is ExperimentState.PAUSED:
            if newest is not None and (newest.rerun or newest.failure_class is FailureClass.CONFIGURATION):
                return f"runs again when the experiment is resumed: {newest.reason}"
            return "the experiment is paused"
        if not self.controlled_by:
            return "nobody runs the experiment now"
        if newest is not None and record.waiting:
            return newest.reason or "is being started"
        if newest is not None and newest.rerun:
            return f"runs again: {newest.reason}"
        if newest is not None and newest.failure_class is not None:
            return f"to be retried: {newest.reason}"
        return "waits for a free slot" if newest is None else "interrupted; runs again"
