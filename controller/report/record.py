"""The record of an experiment at one moment.

Everything else in `report` is a function of such a record. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from controller.core.budget import most_trials
from controller.core.forecast import MOST_TRIALS, Forecast, forecast, trials_left
from controller.core.model import (
    Attempt,
    AttemptState,
    Event,
    Experiment,
    ExperimentState,
    FailureClass,
    trial_name,
)
from controller.core.spending import spent_by_all
from controller.report.final import FinalRecord
from controller.runtime.requested import attempt_rate, gpus_of
from suggest import pareto
from suggest.space import Space, Value
from suggest.study import Criteria, Importance, Study
from suggest.trial import IMPORTED_FROM, PROPOSED_BY, REUSED, Measurement, Trial, TrialState


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial with its attempts, oldest first.

    by_client: the study has no experiment, and a client of the service runs the trial.
    """

    trial: Trial
    attempts: Sequence[Attempt] = ()
    by_client: bool = False

    @property
    def newest(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def log_gap(self) -> str:
        """Return what is missing from the log of its newest attempt; "" if nothing is."""
        return "" if self.newest is None else self.newest.log_gap

    @property
    def value_doubt(self) -> str:
        """Return why its value or curve may be another without that gap; "" if it may not."""
        return "" if self.newest is None else self.newest.value_doubt

    @property
    def imported_from(self) -> str:
        """Return where the trial was imported from; "" for a trial of the experiment itself."""
        return self.trial.labels.get(IMPORTED_FROM, "")

    @property
    def value_of(self) -> str:
        """Return the number of the trial whose value it reuses without having run; else ""."""
        return self.trial.labels.get(REUSED, "")

    @property
    def proposed_by(self) -> str:
        """Return the algorithm that proposed it because the study's own was not ready; else ""."""
        return self.trial.labels.get(PROPOSED_BY, "")

    @property
    def waiting(self) -> bool:
        """Return whether its newest attempt has been created but does not run yet."""
        return self.newest is not None and self.newest.state is AttemptState.CREATED

    @property
    def state(self) -> TrialState:
        """Return the state that people see.

        A trial that the study calls running is shown as waiting until an attempt of it runs. So is
        a failed trial that will run again.
        """
        if self.by_client:
            return self.trial.state
        state, newest = self.trial.state, self.newest
        if state is TrialState.FAILED and newest is not None and newest.set_aside:
            return TrialState.QUEUED
        is_held = newest is None or newest.ended or self.waiting
        return TrialState.QUEUED if state is TrialState.RUNNING and is_held else state

    def so_far(self, last: Measurement | None) -> TrialRecord:
        """Return a running trial with the last value that it has reported.

        The study has none before the trial ends.
        """
        newest = self.newest
        if last is None or self.trial.state is not TrialState.RUNNING:
            return self
        if not self.by_client and (newest is None or newest.ended or newest.number != last.attempt):
            return self
        return replace(self, trial=replace(self.trial, value=last.value, step=last.step))

    @property
    def start_time(self) -> datetime | None:
        """Return the start time of its first attempt that began."""
        if self.by_client:
            return self.trial.create_time
        times = (attempt.start_time for attempt in self.attempts)
        return min(filter(None, times), default=None)

    @property
    def end_time(self) -> datetime | None:
        """Return the end time; None while the trial is unfinished."""
        if self.by_client:
            return self.trial.end_time
        return self.newest.end_time if self.trial.finished and self.newest is not None else None


Metrics = Mapping[int, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialList(ABC):
    """The trials of an experiment, or of a study without one, and what else lists and figures show.

    metrics: by trial, the last values of all metrics except the objective's.
    importances: of the parameters, largest first; empty if they were not computed.
    totals: if given, it is not computed from `trials`.
    """

    trials: Sequence[TrialRecord] = ()
    metrics: Metrics = field(default_factory=dict)
    measurements: Mapping[int, Sequence[Measurement]] = field(default_factory=dict)
    events: Sequence[Event] = ()
    importances: Sequence[Importance] = ()
    totals: Totals | None = None

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def space(self) -> Space: ...

    @property
    @abstractmethod
    def criteria(self) -> Criteria: ...

    @abstractmethod
    def trial_name(self, number: int) -> str: ...

    @abstractmethod
    def reason_of(self, record: TrialRecord) -> str:
        """Return the reason for the trial's state; empty if the state needs none."""

    @property
    def parameter_names(self) -> list[str]:
        return [parameter.name for parameter in self.space.parameters]

    @property
    def front(self) -> Sequence[Trial]:
        """Return the best trial, or the Pareto front sorted by the first objective.

        Imported trials also count.
        """
        if self.totals is not None:
            return self.totals.best
        return in_order(self.criteria.best(record.trial for record in self.trials), self.criteria)


def note_latest(
    latest: dict[int, dict[str, Measurement]], measured: Iterable[tuple[int, Measurement]]
) -> None:
    """Keep, by trial and metric, the measurement at the last step of the newest attempt."""
    for number, measurement in measured:
        last = latest.setdefault(number, {})
        attempt = next(iter(last.values())).attempt if last else measurement.attempt
        if measurement.attempt > attempt:
            last.clear()
        before = last.get(measurement.metric)
        if measurement.attempt >= attempt and (before is None or measurement.step >= before.step):
            last[measurement.metric] = measurement


def last_values(
    measured: Iterable[tuple[int, Measurement]], *, without: str
) -> dict[int, dict[str, float]]:
    """Return, by trial, each metric's last value in the newest attempt, except of `without`."""
    latest: dict[int, dict[str, Measurement]] = {}
    note_latest(latest, measured)
    values: dict[int, dict[str, float]] = {}
    for number, by_metric in latest.items():
        by_metric.pop(without, None)
        if by_metric:
            values[number] = {name: last.value for name, last in by_metric.items()}
    return values


@dataclass(frozen=True, slots=True)
class Totals:
    """What follows from all trials together.

    Readers keep it up to date instead of computing it each time.

    counts: as `ExperimentRecord.counts`. best: as `ExperimentRecord.front`.
    """

    counts: Mapping[TrialState, int]
    best: Sequence[Trial]


def in_order(best: Iterable[Trial], criteria: Criteria) -> list[Trial]:
    """Sort the trials of a Pareto front by the first objective."""
    sign = criteria.objectives[0].direction.sign
    return sorted(best, key=lambda trial: sign * (trial.value or 0.0))


def is_counted(record: TrialRecord) -> bool:
    """Return whether `counts` includes the trial: the search's own ones that ran or will run."""
    return not (record.imported_from or record.value_of)


@dataclass(frozen=True, slots=True)
class StudyTrials(TrialList):
    """The trials of a study without an experiment, which clients of the service run.

    Only controllers record events.
    """

    study: Study

    @property
    def name(self) -> str:
        return self.study.name.study

    @property
    def space(self) -> Space:
        return self.study.spec.space

    @property
    def criteria(self) -> Criteria:
        return self.study.spec.criteria

    def trial_name(self, number: int) -> str:
        return f"{self.study.name}/trials/{number}"

    def reason_of(self, record: TrialRecord) -> str:
        return record.trial.reason


@dataclass(frozen=True, slots=True)
class ExperimentRecord(TrialList):
    """Everything that is known about an experiment at one moment.

    controlled_by: the process that runs it now; "" if none does.
    trouble: what keeps that process from its work; without one, why the last one ended with an
        error.
    tenant_budget: what is used of the TenantBudget of its namespace, for people; "": it has none.
    unread: its trials could not be read.
    """

    experiment: Experiment
    controlled_by: str = ""
    trouble: str = ""
    tenant_budget: str = ""
    unread: bool = False
    # The algorithm's settings, if its study has more of them than the file.
    settings: Mapping[str, Value] = field(default_factory=dict)
    final: FinalRecord | None = None

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def space(self) -> Space:
        return self.experiment.spec.space

    def trial_name(self, number: int) -> str:
        return trial_name(self.experiment.name, self.experiment.uid, number)

    @property
    def counts(self) -> Mapping[TrialState, int]:
        """Return the counts of its own trials that ran, without zeros, in `TrialState`'s order."""
        if self.totals is not None:
            return self.totals.counts
        states = [record.state for record in self.trials if is_counted(record)]
        return {state: n for state in TrialState if (n := states.count(state))}

    @property
    def criteria(self) -> Criteria:
        return self.experiment.spec.criteria

    @property
    def best(self) -> Trial | None:
        """Return the best trial.

        With several objectives, the one of the Pareto front that is best in the first.
        """
        return next(iter(self.front), None)

    @property
    def best_entry(self) -> TrialRecord | None:
        best = self.best
        if best is None:
            return None
        return next((each for each in self.trials if each.trial.number == best.number), None)

    @property
    def dominated_share(self) -> float | None:
        """Return `pareto.dominated_share` of its feasible trials; None with one objective."""
        criteria = self.criteria
        if len(criteria.objectives) == 1:
            return None
        trials = (entry.trial for entry in self.trials)
        succeeded = [trial for trial in trials if trial.state is TrialState.SUCCEEDED]
        feasible = [trial for trial in succeeded if criteria.violation(trial) == 0]
        return pareto.dominated_share([*filter(None, map(criteria.losses, feasible))])

    @property
    def gpus(self) -> float:
        """Return the GPUs of one attempt."""
        return gpus_of(self.experiment.spec.trial)

    def forecast(self, now: datetime) -> Forecast | None:
        """Return what the search will have used; None if that is unknown, or no limit counts it."""
        spec = self.experiment.spec
        if not spec.is_metered or self.experiment.state.finished:
            return None
        if self.totals is not None and not self.trials:
            return None
        running_s, ran_s = [], []
        attempts = list(self.final.attempts) if self.final is not None else []
        for entry in self.trials:
            attempts += entry.attempts
            ended = [each for each in entry.attempts if each.ended]
            running_s += [each.ran_s(now) for each in entry.attempts if not each.ended]
            if ended:
                ran_s.append(sum(each.ran_s(now) for each in ended))
        rate = attempt_rate(spec, spec.trial)
        return forecast(
            spec,
            ran_s[-MOST_TRIALS:],
            seen=len(ran_s),
            left=trials_left(most_trials(spec), self.counts),
            running_s=running_s,
            rate=rate,
            # What is stored is some seconds older than `now`.
            spent=spent_by_all(attempts, now=now),
        )

    def reason_of(self, record: TrialRecord) -> str:
        if record.state is not TrialState.QUEUED:
            newest = record.newest
            return record.trial.reason or (newest.reason if newest is not None else "")
        experiment, newest = self.experiment, record.newest
        if experiment.state is ExperimentState.PAUSED:
            cannot_run = FailureClass.CONFIGURATION
            if newest is not None and (newest.set_aside or newest.failure_class is cannot_run):
                return f"runs again when the experiment is resumed: {newest.reason}"
            return "the experiment is paused"
        if not self.controlled_by:
            return "no controller is running"
        if newest is not None and record.waiting:
            return newest.reason or "is being started"
        if newest is not None and newest.set_aside:
            return f"runs again: {newest.reason}"
        if newest is not None and newest.failure_class is not None:
            return f"to be retried: {newest.reason}"
        return "waits for a free slot" if newest is None else "interrupted; runs again"
