"""Compare the journal of the controllers with what the cluster saw, trial by trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from controller.core.model import Attempt, AttemptState, Experiment, attempt_name, by_trial
from controller.experiment_store import SqlExperimentStore, sqlite_database
from controller.search import study_name
from controller.spec import from_document
from suggest.server.admin import open_store
from suggest.storage.postgres import PostgresDatabase
from suggest.storage.sql_store import StudyStore
from suggest.trial import Trial, TrialState
from tests.kube.fake_api import FakeApi
from tests.kube.replicas import Replicas

Raw = dict[str, Any]
# The value that an attempt prints: of an experiment, a trial and an attempt.
Score = Callable[[str, int, int], float]


@dataclass
class Pod:
    """What the cluster saw of a pod, in versions of the API server."""

    job: str
    began: int | None = None
    ended: int | None = None
    exit_code: int | None = None


class Cluster:
    """What the cluster saw of the Jobs and pods of one namespace."""

    def __init__(self, api: FakeApi, namespace: str) -> None:
        self.created = Counter[str]()  # Jobs by name
        self.pods: dict[str, Pod] = {}  # by uid
        for change in api.changes:
            shown = change.after or change.before or {}
            if shown["metadata"].get("namespace") != namespace:
                continue
            if change.plural == "jobs" and change.before is None:
                self.created[shown["metadata"]["name"]] += 1
            if change.plural == "pods":
                self._saw(change.version, shown, is_gone=change.after is None)

    def _saw(self, version: int, pod: Raw, *, is_gone: bool) -> None:
        about, status = pod["metadata"], pod["status"]
        seen = self.pods.setdefault(about["uid"], Pod(about["labels"]["job-name"]))
        if status["phase"] == "Running" and seen.began is None:
            seen.began = version
        if seen.ended is None and (is_gone or status["phase"] in ("Succeeded", "Failed")):
            seen.ended = version
            for container in status.get("containerStatuses", ()):
                seen.exit_code = container["state"].get("terminated", {}).get("exitCode")

    def of(self, job: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.job == job]

    def check(self) -> None:
        """Check that each Job was created once, and that every pod has ended."""
        twice = {job: count for job, count in self.created.items() if count > 1}
        assert not twice, f"created more than once: {twice}"
        endless = [pod for pod in self.pods.values() if pod.ended is None]
        assert not endless, f"never ended: {endless}"


class Audit:
    """The journal and the studies of an installation, beside what its cluster saw."""

    def __init__(
        self, api: FakeApi, store: SqlExperimentStore, studies: StudyStore, score: Score
    ) -> None:
        self._api = api
        self._store = store
        self._studies = studies
        self._score = score

    def check_deleted(self, namespace: str, name: str) -> None:
        """Check that nothing of the experiment is left."""
        Cluster(self._api, namespace).check()
        assert self._api.find("experiments", namespace, name) is None
        assert self._store.experiment(namespace, name) is None
        jobs = [job["metadata"]["name"] for job in self._api.all("jobs", namespace)]
        assert not [job for job in jobs if job.startswith(f"{name}-")]

    def check_ended(self, namespace: str, name: str) -> None:
        """Check that each trial has one result, which is what the cluster saw."""
        cluster = Cluster(self._api, namespace)
        cluster.check()
        stored = self._store.experiment(namespace, name)
        assert stored is not None
        assert stored.state.value == "succeeded", stored.reason
        trials = self._studies.trials(
            study_name(stored), states=(), client_id="", after=-1, limit=9999
        )
        attempts = by_trial((each.trial, each) for each in self._store.attempts(stored.uid))
        assert [trial.number for trial in trials] == list(range(len(trials)))
        for trial in trials:
            _check_result(trial, attempts.pop(trial.number, []))
        assert not attempts, f"attempts of trials that do not exist: {attempts}"
        known = self._check_attempts(stored, cluster)
        of_experiment = {job for job in cluster.created if job.startswith(f"{name}-")}
        assert of_experiment <= known, f"the journal lacks {of_experiment - known}"
        status = self._api.get("experiments", namespace, name)["status"]
        assert status["trials"] == Counter(trial.state.value for trial in trials)
        target = stored.spec.objective.target
        assert target is not None or len(trials) == stored.spec.budget.trials

    def _check_attempts(self, stored: Experiment, cluster: Cluster) -> set[str]:
        """Return the Jobs of all attempts."""
        jobs = set()
        before: dict[object, Pod] = {}
        for attempt in self._store.attempts(stored.uid):
            assert isinstance(attempt.trial, int)
            job = attempt_name(stored.name, stored.uid, attempt.trial, attempt.number)
            pods = cluster.of(job)
            score = self._score(stored.name, attempt.trial, attempt.number)
            _check_attempt(attempt, pods, score)
            jobs.add(job)
            for pod in pods:
                _check_order(before.get(attempt.trial), pod)
                before[attempt.trial] = pod
        return jobs


def _check_result(trial: Trial, attempts: Sequence[Attempt]) -> None:
    """Check that the trial has the result of its last attempt, and no other one."""
    about = f"{trial.number} is {trial.state.value}: {attempts}"
    assert trial.state.finished, about
    assert [each.number for each in attempts] == list(range(1, len(attempts) + 1)), about
    if not attempts:
        assert trial.state is TrialState.CANCELLED, about
        return
    *earlier, last = attempts
    again = (AttemptState.FAILED, AttemptState.CANCELLED)
    assert all(each.state in again for each in earlier), about
    # A trial that was stopped needs no result of its attempt.
    was_stopped = trial.state is TrialState.CANCELLED and last.stop_cause is not None
    assert was_stopped or trial.state.value == last.state.value, about
    if trial.state is TrialState.SUCCEEDED:
        assert trial.value == last.value, about


def _check_attempt(attempt: Attempt, pods: Sequence[Pod], score: float) -> None:
    """Check that the attempt ended as its pod did."""
    about = f"{attempt}: {pods}"
    ends = [pod.exit_code for pod in pods]
    match attempt.state:
        case AttemptState.SUCCEEDED:
            assert (ends, attempt.value) == ([0], score), about
        case AttemptState.FAILED:
            assert ends == [1] or attempt.stop_cause is not None, about
        case AttemptState.PRUNED | AttemptState.CANCELLED:
            assert len(pods) <= 1, about
        case _:
            raise AssertionError(f"has not ended: {about}")


def _check_order(before: Pod | None, after: Pod) -> None:
    """Check that one attempt of a trial had ended when the next one began."""
    if before is None or before.began is None or after.began is None:
        return
    assert before.ended is not None
    assert before.ended <= after.began, f"two attempts ran at once: {before}, {after}"


@contextmanager
def audit(installation: Replicas, score: Score) -> Iterator[Audit]:
    """Open the store of an installation."""
    url = installation.storage
    state = installation.replicas[0].folder / "state"
    database = PostgresDatabase(url) if url else sqlite_database(state / "controller.db")
    store = SqlExperimentStore(database, from_document)
    studies = open_store(url or f"sqlite:///{state / 'studies.db'}")
    try:
        yield Audit(installation.api, store, studies, score)
    finally:
        studies.close()
        store.close()
