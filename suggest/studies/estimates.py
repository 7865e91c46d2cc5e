"""Estimates of a study by a Gaussian process, whatever algorithm proposes its points. Reads the
store; needs no lease.

The process is fitted in a worker process. The models of the studies that were asked about last are
kept, so that a worker that has one is sent only the trials that ended since.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from suggest.errors import FailedPrecondition
from suggest.estimate import LEAST_TRIALS, Estimate
from suggest.study import Study, StudySpec
from suggest.trial import TrialState
from suggest.workers import ModelSetup, RemoteModel, Workers

if TYPE_CHECKING:
    from suggest.storage.sql_store import StudyStore

MOST_MODELS = 64
TOLD = (TrialState.SUCCEEDED, TrialState.PRUNED, TrialState.FAILED, TrialState.INFEASIBLE)


class Estimates:
    """Thread-safe. The store and the workers belong to the caller."""

    def __init__(self, store: StudyStore, workers: Workers) -> None:
        self._store = store
        self._workers = workers
        # by the study's uid
        self._models: OrderedDict[str, tuple[StudySpec, RemoteModel]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, study: Study) -> Estimate:
        """Return the estimate from the best and the most recent trials.

        Raises:
            FailedPrecondition: the study has several objectives or constraints, or fewer than
            LEAST_TRIALS values.
            Unavailable, LimitReached, TimedOut: as `RemoteModel.computation`.
        """
        if not study.spec.criteria.is_plain:
            raise FailedPrecondition(
                f"{study.name} has several objectives or constraints; an estimate needs one value"
            )
        from suggest.samplers.gp import GpSettings, LearnedTrials  # lazy: few studies are estimated

        trials = LearnedTrials(study.spec.criteria, GpSettings().window)
        values = 0
        for page in self._store.pages_of_trials(study.name, TOLD):
            for trial in page:
                trials.put(trial)
                values += trial.state is TrialState.SUCCEEDED
        estimate = self._model(study).estimate(trials.learned()) if values >= LEAST_TRIALS else None
        if estimate is None:
            raise FailedPrecondition(
                f"{study.name} has {values} values, and an estimate needs at least {LEAST_TRIALS}"
            )
        return estimate

    def _model(self, study: Study) -> RemoteModel:
        from suggest.samplers.gp import MODEL, GpSettings

        with self._lock:
            spec, model = self._models.pop(study.uid, (None, None))
            if model is None or spec != study.spec:
                model = RemoteModel(
                    self._workers, ModelSetup(MODEL, study.spec, study.seed, GpSettings())
                )
            self._models[study.uid] = study.spec, model
            if len(self._models) > MOST_MODELS:
                self._models.popitem(last=False)
            return model
