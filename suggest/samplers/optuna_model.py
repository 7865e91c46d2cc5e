"""The model behind `optuna:tpe`: Optuna's own sampler, unchanged, over a window of trials, asked group by group.

Only Optuna's public methods are called. This module imports Optuna; the first proposal that needs it imports this.
Optuna sees numbers only: a stepped value is its index, and so is a choice (for Optuna, 1 and True are one choice).
"""

from __future__ import annotations

import warnings
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import TPESampler
from optuna.study import Study as OptunaStudy
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from suggest import deadline
from suggest.optuna_storage import STUDY_NAME, WindowStorage
from suggest.optuna_storage.distributions import decode, distribution, encode
from suggest.samplers.sampler import PointRequest
from suggest.samplers.tpe import LIARS, TpeSettings, groups
from suggest.space import Assignment, Value
from suggest.study import Direction, StudySpec
from suggest.trial import Trial, TrialState

_STATES = {
    TrialState.SUCCEEDED: OptunaState.COMPLETE,
    TrialState.PRUNED: OptunaState.PRUNED,
    TrialState.RUNNING: OptunaState.RUNNING,
}


class OptunaTpeModel:
    def __init__(self, spec: StudySpec, seed: int, settings: TpeSettings) -> None:
        self._space = spec.space
        self._seed = seed
        self._settings = settings
        maximize = spec.objective.direction is Direction.MAXIMIZE
        self._direction = StudyDirection.MAXIMIZE if maximize else StudyDirection.MINIMIZE
        self._groups = tuple(groups(spec.space))
        self._distributions = {p.name: distribution(p.domain) for p in spec.space.parameters if p.domain.count != 1}
        self._frozen: dict[int, FrozenTrial] = {}  # finished trials of the window, each built once

    def propose(
        self, learnt: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        known = self._frozen
        self._frozen = {t.number: known.get(t.number) or self._freeze(t) for t in learnt}
        away = [self._freeze(t) for t in running]
        points: list[Assignment] = []
        for one in wanted:
            deadline.check()
            storage = WindowStorage(self._direction, [*self._frozen.values(), *away[-LIARS:]])
            point = self._point(storage, one)
            points.append(point)
            insort(away, self._freeze(Trial(one.number, TrialState.RUNNING, point)), key=lambda t: t.number)
        return points

    def _point(self, storage: WindowStorage, wanted: PointRequest) -> Assignment:
        settings = self._settings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # Optuna 4 calls two of these settings that
            sampler = TPESampler(
                n_startup_trials=0,  # those were drawn before this model was asked
                n_ei_candidates=settings.candidates,
                multivariate=settings.multivariate,
                constant_liar=settings.constant_liar,
                seed=wanted.source(self._seed, "tpe").getrandbits(32),
            )
        study = OptunaStudy(STUDY_NAME, storage, sampler=sampler)
        trial = self._freeze(Trial(wanted.number, TrialState.RUNNING, {}))
        values: dict[str, Value] = {}
        for group in self._groups:
            if not group[0].active(values):
                continue
            free: dict[str, BaseDistribution] = {}
            for parameter in group:
                name = parameter.name
                if name in wanted.fixed:
                    values[name] = wanted.fixed[name]
                elif name in self._distributions:
                    free[name] = self._distributions[name]
                else:
                    values[name] = parameter.domain.at(0)
            for name, number in self._ask(study, trial, free).items():
                values[name] = decode(self._space.by_name[name].domain, number)
        return {p.name: values[p.name] for p in self._space.parameters if p.name in values}

    def _ask(
        self, study: OptunaStudy, trial: FrozenTrial, free: dict[str, BaseDistribution]
    ) -> Mapping[str, float | int]:
        # Far from all trials densities underflow to zero, which Optuna means and NumPy would warn of.
        with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
            if self._settings.multivariate:
                return study.sampler.sample_relative(study, trial, free)
            values: dict[str, float | int] = {}
            for name, among in free.items():
                values[name] = study.sampler.sample_independent(study, trial, name, among)
            return values

    def _freeze(self, trial: Trial) -> FrozenTrial:
        params: dict[str, float | int] = {}
        for name, value in trial.parameters.items():
            if name in self._distributions:
                number = encode(self._space.by_name[name].domain, value)
                if number is not None:
                    params[name] = number
        reported = {} if trial.value is None or trial.step is None else {trial.step: trial.value}
        return FrozenTrial(
            number=trial.number,
            state=_STATES[trial.state],
            value=trial.value,
            datetime_start=None,
            datetime_complete=None,
            params=params,
            distributions={name: self._distributions[name] for name in params},
            user_attrs={},
            system_attrs={},
            intermediate_values=reported,
            trial_id=trial.number,
        )
