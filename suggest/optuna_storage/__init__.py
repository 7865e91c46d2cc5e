"""A study as an Optuna storage: the trials that one sampler is shown for one proposal.

Read-only, but for the attributes that Optuna's samplers set: `WindowStorage` drops them, `OverlayStorage` keeps them
for its caller. Any other write raises. There is one study (id 0); a trial's id is its number.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Sequence
from typing import Any, NoReturn

from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState

STUDY_ID = 0
STUDY_NAME = "window"


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
        """Dropped: what a sampler would tell its twins in other processes."""

    def set_study_system_attr(self, study_id: int, key: str, value: object) -> None:
        """Dropped, as those of trials."""

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> NoReturn:
        refuse()

    def delete_study(self, study_id: int) -> NoReturn:
        refuse()

    def set_study_user_attr(self, study_id: int, key: str, value: object) -> NoReturn:
        refuse()

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> NoReturn:
        refuse()

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> NoReturn:
        refuse()

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> NoReturn:
        refuse()

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> NoReturn:
        refuse()

    def set_trial_user_attr(self, trial_id: int, key: str, value: object) -> NoReturn:
        refuse()


class OverlayStorage(WindowStorage):
    """Attributes of trials are set on the given trials themselves, those of the study in `study_attributes`."""

    def __init__(
        self, directions: Sequence[StudyDirection], trials: Sequence[FrozenTrial], study_attributes: dict[str, Any]
    ) -> None:
        super().__init__(directions, trials)
        self._study_attributes = study_attributes

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return dict(self._study_attributes)

    def set_study_system_attr(self, study_id: int, key: str, value: object) -> None:
        self._study_attributes[key] = value

    def set_trial_system_attr(self, trial_id: int, key: str, value: object) -> None:
        self.get_trial(trial_id).system_attrs[key] = value


def refuse() -> NoReturn:
    raise NotImplementedError("a study seen through Optuna is read-only; change it through the suggestion service")
