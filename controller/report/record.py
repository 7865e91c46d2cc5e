"""What is known of an experiment at one moment, in one value: everything else in `report` is a function of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from controller.model import Attempt, AttemptState, Event, Experiment, ExperimentState, FailureClass
from controller.report.final import FinalRecord
from suggest.space import Value
from suggest.trial import REUSED, Measurement, Trial, TrialState

IMPORTED_FROM = "tuner.dev/imported-from"  # the service's label on what came from elsewhere


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial with its attempts, oldest first."""

    trial: Trial
    attempts: Sequence[Attempt] = ()

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
        if self.trial.state is TrialState.FAILED and self.newest is not None and self.newest.rerun:
            return TrialState.QUEUED
        if self.trial.state is TrialState.RUNNING and (self.newest is None or self.newest.ended or self.waiting):
            return TrialState.QUEUED
        return self.trial.state


@dataclass(frozen=True, slots=True)
class ExperimentRecord:
    """`controlled_by`: who runs it now, "" = nobody."""

    experiment: Experiment
    trials: Sequence[TrialRecord] = ()
    events: Sequence[Event] = ()
    controlled_by: str = ""
    measurements: Mapping[int, Sequence[Measurement]] = field(default_factory=dict)
    # Of the algorithm, where its study has more of them than the file.
    settings: Mapping[str, Value] = field(default_factory=dict)
    final: FinalRecord | None = None

    @property
    def counts(self) -> dict[TrialState, int]:
        """Of its own trials that ran, in the order of `TrialState`; states without a trial are not there."""
        shown = [record.state for record in self.trials if not (record.imported_from or record.value_of)]
        return {state: n for state in TrialState if (n := shown.count(state))}

    @property
    def best(self) -> Trial | None:
        """The best succeeded trial, imported ones included; of equals the first."""
        maximize = self.experiment.spec.objective.maximize
        found: Trial | None = None
        for record in self.trials:
            value = record.trial.value
            if record.trial.state is not TrialState.SUCCEEDED or value is None:
                continue
            if found is None or found.value is None or (value > found.value if maximize else value < found.value):
                found = record.trial
        return found

    @property
    def gpus(self) -> float:
        """Of one attempt; 0 where they are in a template, whose meaning is its kind's."""
        return self.experiment.spec.trial.resources.gpu * self.experiment.spec.trial.workers

    def gpu_seconds(self, attempt: Attempt, *, now: datetime) -> float:
        """What it has held so far, whether or not it used them."""
        if attempt.start_time is None:
            return 0.0
        template = self.experiment.spec.template_of(attempt.trial)
        held = template.resources.gpu * template.workers
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
