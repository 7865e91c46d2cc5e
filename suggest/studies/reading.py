"""The reads of studies, on any store. They need no lease and no engine, and change nothing.

`StudyService` adds the writes. A process that only reads a store needs nothing but `StudyReader`:
this module must not import engines, samplers or workers before an estimate needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from suggest.errors import NotFound
from suggest.estimate import Estimate
from suggest.replies import StudySummary
from suggest.storage.store import StudyRecord
from suggest.study import Direction, Study, StudyName
from suggest.trial import Measurement, Trial, TrialState

if TYPE_CHECKING:
    from suggest.storage.sql_store import StudyStore


class StudyReader:
    """All reads of the studies of one store. Thread-safe and blocking. Methods raise NotFound."""

    def __init__(self, store: StudyStore) -> None:
        self._store = store

    def record(self, name: StudyName) -> StudyRecord:
        record = self._store.study(name)
        if record is None:
            raise NotFound(f"{name} does not exist")
        return record

    def study(self, name: StudyName) -> Study:
        return self.record(name).study

    def list_studies(
        self,
        namespace: str | None,
        *,
        labels: Mapping[str, str],
        after: StudyName | None,
        limit: int,
    ) -> list[Study]:
        return self._store.studies(namespace, labels=labels, after=after, limit=limit)

    def summaries(self, studies: Sequence[Study]) -> list[StudySummary]:
        counts = self._store.trial_counts([study.name for study in studies])
        plain = [study for study in studies if study.spec.criteria.is_plain]
        best: dict[StudyName, Trial | None] = {
            **self._store.best_trials(
                {study.name: study.spec.objective.direction for study in plain}
            )
        }
        for study in studies:
            if not study.spec.criteria.is_plain:
                best[study.name] = study.spec.criteria.first_best(self._best(study))
        return [StudySummary(counts[study.name], best.get(study.name)) for study in studies]

    def summaries_of_clients(
        self, clients: Mapping[StudyName, str], directions: Mapping[StudyName, Direction]
    ) -> dict[StudyName, StudySummary]:
        """Return summaries of what one client of each study has done, with imported best trials.

        A study that does not exist has no trials.
        """
        counts = self._store.trial_counts([*clients], clients=clients)
        best = self._store.best_trials(directions, clients=clients)
        return {name: StudySummary(counts[name], best.get(name)) for name in clients}

    def trial(self, name: StudyName, number: int) -> Trial:
        """Read the trial from the store, which, unlike an engine, returns no deleted trials."""
        trial = self._store.trial(name, number)
        if trial is None:
            self.record(name)
            raise NotFound(f"{name} has no trial {number}")
        return trial

    def list_trials(
        self,
        name: StudyName,
        *,
        states: Sequence[TrialState] = (),
        client_id: str = "",
        after: int = -1,
        limit: int,
    ) -> list[Trial]:
        trials = self._store.trials(
            name, states=states, client_id=client_id, after=after, limit=limit
        )
        if not trials:
            self.record(name)
        return trials

    def list_measurements(
        self,
        name: StudyName,
        number: int | None,
        *,
        latest: bool = False,
        after: int = 0,
        limit: int,
    ) -> list[tuple[int, int, Measurement]]:
        """Return tuples (position, trial, measurement).

        With `latest`, only the last one of each trial and metric.
        """
        read_page = self._store.latest_measurements if latest else self._store.measurements
        measurements = read_page(name, number, after=after, limit=limit)
        if not measurements:
            self.record(name) if number is None else self.trial(name, number)
        return measurements

    def optimal_trials(self, name: StudyName) -> list[Trial]:
        """Return the best trial or, with several objectives, the Pareto front, by number."""
        return self._best(self.study(name))

    def estimate(self, name: StudyName) -> Estimate:
        """Return what a model says of the study, fitted in a worker process.

        Raises the errors of `Estimates.of`.
        """
        # the models, which no other read needs
        from suggest.studies.estimates import Estimates
        from suggest.workers import Workers

        study = self.study(name)
        with closing(Workers()) as pool:
            return Estimates(self._store, pool).of(study)

    def _best(self, study: Study) -> list[Trial]:
        spec = study.spec
        if spec.criteria.is_plain:
            return [*self._store.best_trials({study.name: spec.objective.direction}).values()]
        candidates: list[Trial] = []
        for page in self._store.pages_of_trials(study.name, [TrialState.SUCCEEDED]):
            candidates = spec.criteria.best([*candidates, *page])
        return candidates
