"""`TunerSearchCV`: scikit-learn's RandomizedSearchCV, with the candidates chosen
by an algorithm of the service.

scikit-learn's `BaseSearchCV` evaluates, scores, refits and runs fits in parallel. This module
chooses candidates, each a trial of a study, and stores their scores; with a name, the study
outlives the process.

Candidates are evaluated in this process, not in processes of their own as objective functions are:
most fits take milliseconds, and a process would import scikit-learn each time. `BaseSearchCV` is
the only private name that is used.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from suggest import wire
from suggest.client import Measurement, Outcome, StudyName, Trial, TrialState, maximize
from suggest.client.search_space import Float, Int, named
from suggest.domain import Choice, Domain
from suggest.errors import AlreadyExists, FailedPrecondition
from suggest.space import Parameter, Space
from suggest.study import Algorithm, StudySpec
from tuner.integrations import needed
from tuner.study import workspace_of

with needed("sklearn"):
    import joblib
    from sklearn.model_selection._search import BaseSearchCV
    from sklearn.utils import check_random_state

if TYPE_CHECKING:
    from suggest.client import AsyncClient

Result = TypeVar("Result")
# Scikit-learn's record of one fit: test_scores, fit_time and others.
Scores = dict[str, Any]
# The same as metrics: test_score or test_NAME, the same with train, fit_time, score_time.
Columns = dict[str, float]

# label: the hash of the data that the study's candidates are scored on.
DATA = "tuner.dev/data"
REASON_LENGTH = 1000  # characters of a reason
_TIMES = ("fit_time", "score_time")


class TunerSearchCV(BaseSearchCV):  # type: ignore[misc]  # Any, see pyproject.toml
    """Cross-validated search as RandomizedSearchCV, but candidates are not random.

    Each one is chosen by what is known of the earlier ones.

    Args:
        estimator: As for RandomizedSearchCV, like all arguments that are not described here.
        param_distributions: Names to `tuner.Float`, `tuner.Int`, `tuner.Choice`, a list of choices,
            a `range`, or SciPy's `uniform`, `loguniform` or `randint`.
        n_iter: How many candidates to evaluate, including those that are stored.
        n_jobs: Fits at a time. Candidates are chosen one by one, or as many at once as keep the
            jobs busy.
        error_score: The score of a fit that fails. If it is NaN, the algorithm learns that the
            candidate is infeasible.
        algorithm: How candidates are chosen, such as "default", "tpe", "gp" or "random".
        name: Of the stored search, which `fit` continues. It evaluates none of the stored
            candidates again, but for the best one if there is no new one. Without a name, nothing
            is stored. One process at a time may use a name.
        state_dir: Where the search is stored, as `--state-dir`.
    """

    def __init__(
        self,
        estimator: object,
        param_distributions: Mapping[str, object],
        *,
        n_iter: int = 10,
        scoring: object = None,
        n_jobs: int | None = None,
        refit: bool | str | Callable[..., int] = True,
        cv: object = None,
        verbose: int = 0,
        pre_dispatch: int | str = "2*n_jobs",
        random_state: object = None,
        error_score: float | str = math.nan,
        return_train_score: bool = False,
        algorithm: str = "default",
        name: str | None = None,
        state_dir: str | Path | None = None,
    ) -> None:
        self.param_distributions = param_distributions
        self.n_iter = n_iter
        self.random_state = random_state
        self.algorithm = algorithm
        self.name = name
        self.state_dir = state_dir
        super().__init__(
            estimator=estimator,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
            pre_dispatch=pre_dispatch,
            error_score=error_score,
            return_train_score=return_train_score,
        )

    # X is scikit-learn's name.
    def fit(self, X: object, y: object = None, **params: object) -> TunerSearchCV:  # noqa: N803
        """Evaluate candidates and refit the best one, as RandomizedSearchCV.

        Raises:
            AlreadyExists: The stored search of this name has another search space, algorithm or
            random state. FailedPrecondition: Its candidates were scored on other data.
        """
        self._data_hash = joblib.hash((X, y)) if self.name else ""
        self._fits: Sequence[Scores] = []
        try:
            super().fit(X, y, **params)
        finally:
            del self._data_hash, self._fits
        return self

    def _run_search(
        self, evaluate_candidates: Callable[[Iterable[dict[str, Any]]], dict[str, Any]]
    ) -> None:
        """Called by BaseSearchCV.fit.

        `evaluate_candidates` returns the `cv_results_` of all that it has evaluated.
        """
        space = _SearchSpace(self.param_distributions)
        seed = (
            None
            if self.random_state is None
            else int(check_random_state(self.random_state).randint(2**31 - 1))
        )
        spec = StudySpec(space.space, (maximize("score"),), Algorithm(self.algorithm, seed))
        results: dict[str, Any] = {}
        failure: ValueError | None = None
        with _opened(spec, self.name, self.state_dir, self._data_hash) as study:
            scored, trials = study.scored(), study.begun()
            while trials := trials or study.suggest(
                min(self._at_once(), self.n_iter - len(scored))
            ):
                failure = None
                try:
                    results = evaluate_candidates([space.values_of(trial) for trial in trials])
                except ValueError as error:
                    if self.error_score == "raise":
                        raise
                    # All fits of these candidates have failed, or each call will raise this.
                    failure = error
                for trial, fits in zip(
                    trials, self._newest_fits(trials, failed=failure is not None), strict=True
                ):
                    scored[trial.number] = _Scored(trial, fits)
                    study.complete(
                        trial, fits, self._value_of(fits), str(failure or "a score is not finite")
                    )
                trials = []
        # BaseSearchCV needs a candidate that it has evaluated itself.
        if not results:
            values = {
                number: candidate.trial.value
                for number, candidate in scored.items()
                if candidate.trial.value is not None
            }
            if not values:
                raise failure or ValueError("no candidate could be evaluated")
            results = evaluate_candidates(
                [space.values_of(scored[max(values, key=values.__getitem__)].trial)]
            )
        in_order = [scored[number] for number in sorted(scored)]
        score_of_failure = math.nan if self.error_score == "raise" else float(self.error_score)
        fits = []
        for candidate in in_order:
            for split in range(self.n_splits_):
                fit = candidate.fit(split, like=self._fits[0], score_of_failure=score_of_failure)
                fits.append(fit)
        # The dictionary is the one that BaseSearchCV keeps as cv_results_.
        results.update(
            super()._format_results(
                [space.values_of(candidate.trial) for candidate in in_order], self.n_splits_, fits
            )
        )

    def _format_results(
        self,
        candidate_params: object,
        n_splits: int,
        out: Sequence[Scores],
        more_results: object = None,
    ) -> dict[str, Any]:
        """Called by BaseSearchCV with all fits so far, split by split of each candidate."""
        self._fits = list(out)
        results: dict[str, Any] = super()._format_results(
            candidate_params, n_splits, out, more_results
        )
        return results

    def _at_once(self) -> int:
        """How many candidates keep the jobs busy."""
        jobs: int = joblib.effective_n_jobs(self.n_jobs)
        return math.ceil(jobs / int(self.n_splits_))

    def _newest_fits(self, trials: Sequence[Trial], *, failed: bool) -> list[list[Columns]]:
        """The fits of each candidate that was evaluated last; none if all failed."""
        if failed:
            return [[] for _ in trials]
        columns = [_columns(fit) for fit in self._fits[-len(trials) * self.n_splits_ :]]
        return [
            columns[start : start + self.n_splits_]
            for start in range(0, len(columns), self.n_splits_)
        ]

    def _value_of(self, fits: Sequence[Columns]) -> float:
        """The mean test score that is maximized: that of `refit`, else of the first metric."""
        if not fits:
            return float(self.error_score)
        refit = f"test_{self.refit}"
        metric = (
            refit
            if refit in fits[0]
            else next(name for name in fits[0] if name.startswith("test_"))
        )
        return math.fsum(fit[metric] for fit in fits) / len(fits)


@dataclass(frozen=True, slots=True)
class _Scored:
    """A candidate with its fits by split; none if all failed."""

    trial: Trial
    fits: Sequence[Columns]

    def fit(self, split: int, *, like: Scores, score_of_failure: float) -> Scores:
        """As scikit-learn's own record `like`.

        Scores that are missing have the value `score_of_failure`.
        """
        columns = self.fits[split] if split < len(self.fits) else {}
        return {
            name: _uncolumned(columns, name, value, score_of_failure)
            for name, value in like.items()
        }


def _columns(fit: Scores) -> Columns:
    times = {name: float(fit[name]) for name in _TIMES}
    scores: Columns = {}
    for kind in ("test", "train"):
        found = fit.get(f"{kind}_scores", {})
        found = found if isinstance(found, Mapping) else {"score": found}
        scores |= {f"{kind}_{name}": float(value) for name, value in found.items()}
    return {**scores, **times}


def _uncolumned(columns: Columns, name: str, value: object, score_of_failure: float) -> object:
    """What scikit-learn's record has under `name`, in the form of `value`."""
    if name in _TIMES:
        return columns.get(name, 0.0)
    kind = name.removesuffix("_scores")
    # "fit_error" and "n_test_samples", which are not part of cv_results_.
    if kind == name:
        return value
    if isinstance(value, Mapping):
        return {metric: columns.get(f"{kind}_{metric}", score_of_failure) for metric in value}
    return columns.get(f"{kind}_score", score_of_failure)


# The search space


class _SearchSpace:
    """The parameters as the service knows them, and the values that an estimator is given."""

    def __init__(self, distributions: Mapping[str, object]) -> None:
        if not isinstance(distributions, Mapping):
            raise TypeError(
                f"param_distributions: expected a dict of names to values, got {distributions!r}"
            )
        self._objects: dict[str, dict[str, Any]] = {}
        self.space = Space(
            named(
                {
                    name: self._parameter(name, distribution)
                    for name, distribution in distributions.items()
                }
            )
        )

    def values_of(self, trial: Trial) -> dict[str, Any]:
        values: dict[str, Any] = dict(trial.parameters)
        for name, objects in self._objects.items():
            if name in values:
                values[name] = objects[values[name]]
        return values

    def _parameter(self, name: str, distribution: object) -> Domain | Parameter | Sequence[object]:
        if isinstance(distribution, Domain | Parameter | range):
            return distribution
        if hasattr(distribution, "tolist"):
            distribution = distribution.tolist()
        if isinstance(distribution, list | tuple):
            return self._choice(name, distribution)
        if (domain := _of_scipy(distribution)) is not None:
            return domain
        raise TypeError(
            f"param_distributions: {name}: expected tuner.Float, tuner.Int, tuner.Choice, a list, "
            f"a range, or uniform, loguniform or randint of scipy.stats, got {distribution!r}"
        )

    def _choice(self, name: str, values: Sequence[Any]) -> Choice:
        if all(type(value) in (str, int, float, bool) for value in values):
            return Choice(tuple(values))
        # Estimators, None, tuples: chosen by their text.
        objects = {f"{value!r}": value for value in values}
        if len(objects) < len(values):
            objects = {f"{index}: {value!r}": value for index, value in enumerate(values)}
        self._objects[name] = objects
        return Choice(tuple(objects))


def _of_scipy(distribution: Any) -> Domain | Parameter | None:
    """A frozen distribution of scipy.stats; None for anything else."""
    kind = getattr(getattr(distribution, "dist", None), "name", "")
    if kind == "uniform":
        low, high = distribution.support()
        return Float(float(low), float(high))
    if kind in ("loguniform", "reciprocal"):
        low, high = distribution.support()
        return Float(float(low), float(high), log=True)
    if kind == "randint":
        low, high = distribution.support()
        return Int(int(low), int(high))
    return None


# The study


class _CandidateStudy:
    """Blocking calls to the study. The service runs in the event loop of another thread."""

    def __init__(
        self, client: AsyncClient, name: StudyName, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._client = client
        self._name = name
        self._loop = loop

    def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def begin(self, spec: StudySpec, data: str) -> None:
        labels = {DATA: data} if data else {}
        request_id = wire.request_id_of(spec)
        try:
            study = self.call(
                self._client.create_study(self._name, spec, request_id=request_id, labels=labels)
            )
        except AlreadyExists:
            study = self.call(self._client.get_study(self._name))
            if study.labels.get(DATA, "") == data:
                raise
        if study.labels.get(DATA, "") != data:
            raise FailedPrecondition(
                f"the candidates of {self._name.study} were scored on other data; use another "
                "name, or delete it"
            )

    def scored(self) -> dict[int, _Scored]:
        """The candidates that have ended, by number."""
        fits: dict[int, dict[int, Columns]] = {}
        for number, measurement in self.call(self._client.list_measurements(self._name)):
            fits.setdefault(number, {}).setdefault(measurement.step, {})[measurement.metric] = (
                measurement.value
            )
        ended = (TrialState.SUCCEEDED, TrialState.INFEASIBLE)
        trials = self.call(self._client.list_trials(self._name, states=ended))
        return {
            trial.number: _Scored(trial, list(fits.get(trial.number, {}).values()))
            for trial in trials
        }

    def begun(self) -> list[Trial]:
        """The candidates that a process left unfinished when it ended."""
        return self.call(self._client.list_trials(self._name, states=(TrialState.RUNNING,)))

    def suggest(self, count: int) -> list[Trial]:
        """New candidates; fewer than `count` if the search space has no further ones."""
        if count <= 0:
            return []
        suggestions = self._client.suggest(
            self._name, count, client_id="sklearn", request_id=secrets.token_hex(16)
        )
        return list(self.call(suggestions).trials)

    def complete(self, trial: Trial, fits: Sequence[Columns], value: float, reason: str) -> None:
        """reason: why the candidate is infeasible if its value is not finite."""
        measurements = []
        for split, columns in enumerate(fits):
            for name, number in columns.items():
                measurements.append(Measurement(1, name, split, number))
        if math.isfinite(value):
            outcome = Outcome(TrialState.SUCCEEDED, value)
        else:
            outcome = Outcome(TrialState.INFEASIBLE, reason=reason.strip()[:REASON_LENGTH])
        self.call(
            self._client.complete(self._name, trial.number, outcome, measurements=measurements)
        )


@contextmanager
def _opened(
    spec: StudySpec, name: str | None, state_dir: str | Path | None, data: str
) -> Iterator[_CandidateStudy]:
    """The stored study of this name, or a study in a temporary folder.

    Raises:
        AlreadyExists: The study has another spec.
        FailedPrecondition: The study belongs to other data.
    """
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder, _running_loop() as loop:
        serving = workspace_of(state_dir if name else folder).connected("")
        client = asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result()
        study = _CandidateStudy(client, StudyName("default", name or "search"), loop)
        try:
            study.begin(spec, data)
            yield study
        finally:
            study.call(serving.__aexit__(None, None, None))


@contextmanager
def _running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own.

    The caller's thread may have one that runs, as in a notebook.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tuner-search-cv", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
