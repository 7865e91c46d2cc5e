"""A study as an Optuna storage: the trials that one sampler is shown for one proposal.

Read-only except for the attributes that Optuna's samplers set: `WindowStorage` drops them,
`OverlayStorage` keeps them for its caller. Any other write raises. There is one study (id 0); a
trial's id is its number.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState

STUDY_ID = 0
STUDY_NAME = "window"
METRIC_NAMES = "study:metric_names"  # Optuna's own attribute of a study


def refuse(*_: Any, **__: Any) -> NoReturn:
    """Refuse a write, whatever its arguments."""
    raise NotImplementedError(
        "a study seen through Optuna is read-only; change it through the suggestion service"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings that are expected of Optuna, NumPy and SciPy.

    They warn of densities that underflow to zero, NaN, experimental classes, and sequences whose
    length is not a power of two.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def frozen_trial(
    number: int,
    state: TrialState,
    params: dict[str, Any] | None = None,
    distributions: dict[str, BaseDistribution] | None = None,
    *,
    value: float | None = None,
    values: Sequence[float] | None = None,
    system_attrs: dict[str, Any] | None = None,
    reported: dict[int, float] | None = None,
) -> FrozenTrial:
    """Return a trial of Optuna without times, whose id is its number.

    `reported` are its intermediate values.
    """
    return FrozenTrial(
        number=number,
        state=state,
        value=value,
        values=values,
        datetime_start=None,
        datetime_complete=None,
        params=params or {},
        distributions=distributions or {},
        user_attrs={},
        system_attrs=system_attrs or {},
        intermediate_values=reported or {},
        trial_id=number,
    )


class WindowStorage(BaseStorage):
    def __init__(self, directions: Sequence[StudyDirection], trials: Sequence[FrozenTrial]) -> None:
        self._directions = list(directions)
        self._trials = list(trials)

    def get_study_id_from_name(self, study_name: str) -> int:
        return STUDY_ID

    def get_study_name_from_id(self, study_id: int) -> str:
        return STUDY_NAME

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return self._directions

    # Any in attributes: Optuna's own type for them.
    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return {}

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return {}

    def get_all_studies(self) -> list[FrozenStudy]:
        return [FrozenStudy(STUDY_NAME, None, {}, {}, STUDY_ID, directions=self._directions)]

    def get_trial(self, trial_id: int) -> FrozenTrial:
        for trial in self._trials:
            if trial.number == trial_id:
                return trial
        raise KeyError(trial_id)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        trials = [trial for trial in self._trials if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    def set_trial_system_attr(self, trial_id: int, key: str, value: object) -> None:
        """Drop the attribute, with which a sampler informs its twins in other processes."""

    def set_study_system_attr(self, study_id: int, key: str, value: object) -> None:
        """Drop the attribute, as those of trials."""

    create_new_study = delete_study = set_study_user_attr = refuse
    create_new_trial = set_trial_param = set_trial_state_values = refuse
    set_trial_intermediate_value = set_trial_user_attr = refuse


class OverlayStorage(WindowStorage):
    """Sets attributes of trials on the given trials, and the study's in `study_attributes`."""

    def __init__(
        self,
        directions: Sequence[StudyDirection],
        trials: Sequence[FrozenTrial],
        study_attributes: dict[str, Any],
    ) -> None:
        super().__init__(directions, trials)
        self._study_attributes = study_attributes

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return dict(self._study_attributes)

    def set_study_system_attr(self, study_id: int, key: str, value: object) -> None:
        self._study_attributes[key] = value

    def set_trial_system_attr(self, trial_id: int, key: str, value: object) -> None:
        self.get_trial(trial_id).system_attrs[key] = value
