"""optuna-dashboard for Tuner's studies: a read-only storage of several studies,
and the WSGI application.

Imports Optuna; optuna-dashboard is an extra, imported by `application`. The studies come from a
`StudySource`, which is asked in the threads that answer requests.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from suggest.domain import Choice, Domain, Float, Scale, Value, show
from suggest.optuna_storage import METRIC_NAMES, WindowStorage, refuse
from suggest.space import Space
from suggest.study import Criteria
from suggest.trial import Measurement, Trial, TrialState

# Optuna numbers the trials of all studies together.
TRIALS_OF_A_STUDY = 10**7
_STATES = {
    TrialState.QUEUED: OptunaState.WAITING,
    TrialState.RUNNING: OptunaState.RUNNING,
    TrialState.PAUSED: OptunaState.RUNNING,
    TrialState.SUCCEEDED: OptunaState.COMPLETE,
    TrialState.PRUNED: OptunaState.PRUNED,
}  # the other states are FAIL


@dataclass(frozen=True, slots=True)
class ShownStudy:
    """A study as the dashboard lists it.

    `identity` is its number, the same as long as the dashboard runs.
    """

    identity: int
    name: str
    criteria: Criteria
    space: Space


class StudySource(Protocol):
    """Where the studies come from. Methods are called in several threads."""

    def studies(self) -> Sequence[ShownStudy]: ...

    def trials(self, identity: int) -> Sequence[tuple[Trial, Sequence[Measurement]]]:
        """Return the trials of a study, by number, with the measurements of the first objective."""


# Any: a WSGI application of an untyped package.
def application(source: StudySource) -> Any:
    """Return the dashboard. Raises ImportError if it is not installed."""
    from optuna_dashboard import wsgi  # type: ignore[import-not-found,import-untyped,unused-ignore]

    return wsgi(DashboardStorage(source))


class DashboardStorage(WindowStorage):
    def __init__(self, source: StudySource) -> None:
        super().__init__((), ())
        self._source = source

    def get_all_studies(self) -> list[FrozenStudy]:
        return [
            FrozenStudy(
                study.name,
                None,
                {},
                self.get_study_system_attrs(study.identity),
                study.identity,
                directions=_directions(study.criteria),
            )
            for study in self._source.studies()
        ]

    def get_study_id_from_name(self, study_name: str) -> int:
        for study in self._source.studies():
            if study.name == study_name:
                return study.identity
        raise KeyError(study_name)

    def get_study_name_from_id(self, study_id: int) -> str:
        return self._study(study_id).name

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return _directions(self._study(study_id).criteria)

    # Any in attributes: Optuna's own type for them.
    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return {
            METRIC_NAMES: [
                objective.metric for objective in self._study(study_id).criteria.objectives
            ]
        }

    def get_trial(self, trial_id: int) -> FrozenTrial:
        for trial in self.get_all_trials(trial_id // TRIALS_OF_A_STUDY, deepcopy=False):
            if trial._trial_id == trial_id:
                return trial
        raise KeyError(trial_id)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[OptunaState] | None = None
    ) -> list[FrozenTrial]:
        """Return new objects, so that there is nothing to copy."""
        study = self._study(study_id)
        axes = [_Shown(parameter.domain) for parameter in study.space.parameters]
        by_name = dict(
            zip((parameter.name for parameter in study.space.parameters), axes, strict=True)
        )
        frozen = [_frozen(study, by_name, *trial) for trial in self._source.trials(study_id)]
        return [trial for trial in frozen if states is None or trial.state in states]

    set_trial_system_attr = set_study_system_attr = refuse

    def _study(self, study_id: int) -> ShownStudy:
        for study in self._source.studies():
            if study.identity == study_id:
                return study
        raise KeyError(study_id)


class _Shown:
    """A domain as people read it: a choice is shown as its value.

    `distributions` serves samplers instead.
    """

    def __init__(self, domain: Domain) -> None:
        self._texts = isinstance(domain, Choice) and not _plain(domain)
        self.distribution = self._of(domain)

    def _of(self, domain: Domain) -> BaseDistribution:
        match domain:
            case Choice(values):
                return CategoricalDistribution(tuple(map(self.value, values)))
            case Float():
                if domain.scale is Scale.LOG:
                    return FloatDistribution(domain.min, domain.max, log=True)
                return FloatDistribution(domain.min, domain.max, step=domain.step)
        return IntDistribution(
            domain.min, domain.max, log=domain.scale is Scale.LOG, step=domain.step
        )

    def value(self, value: Value) -> Any:  # Any: what Optuna takes
        return show(value) if self._texts else value


def _plain(domain: Choice) -> bool:
    """Return whether Optuna can tell the values apart.

    For it, 1 and True are one choice, and lists are none.
    """
    scalars = all(
        value is None or isinstance(value, str | int | float | bool) for value in domain.values
    )
    return scalars and len(set(map(str, domain.values))) == len(domain.values)


def _directions(criteria: Criteria) -> list[StudyDirection]:
    return [StudyDirection[objective.direction.name] for objective in criteria.objectives]


def _frozen(
    study: ShownStudy, axes: Mapping[str, _Shown], trial: Trial, measured: Sequence[Measurement]
) -> FrozenTrial:
    state = _STATES.get(trial.state, OptunaState.FAIL)
    complete = state is OptunaState.COMPLETE and study.criteria.losses(trial) is not None
    if state is OptunaState.COMPLETE and not complete:
        state = OptunaState.FAIL
    newest = max((measurement.attempt for measurement in measured), default=0)
    parameters = {
        name: axes[name].value(value) for name, value in trial.parameters.items() if name in axes
    }
    attributes = {"reason": trial.reason, "labels": dict(trial.labels)}
    return FrozenTrial(
        number=trial.number,
        state=state,
        value=None,
        values=list(trial.values) if complete else None,
        datetime_start=_naive(trial.create_time),
        datetime_complete=_naive(trial.end_time),
        params=parameters,
        distributions={name: axes[name].distribution for name in parameters},
        user_attrs={name: value for name, value in attributes.items() if value},
        system_attrs={},
        intermediate_values={
            measurement.step: measurement.value
            for measurement in measured
            if measurement.attempt == newest
        },
        trial_id=study.identity * TRIALS_OF_A_STUDY + trial.number,
    )


def _naive(moment: datetime | None) -> datetime | None:
    """Return the time as Optuna has it, without a zone."""
    return None if moment is None else moment.astimezone(UTC).replace(tzinfo=None)
