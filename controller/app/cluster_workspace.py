"""The experiments of a cluster's controller, for verbs that read: no state directory, no database.

Rows travel as JSON with the columns of controller.db, and become the same values as theirs.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Any
from urllib.parse import quote

from controller import experiment_rows as table_rows
from controller.app.controller_api import OFFSET, ControllerApi, ServiceChannel
from controller.app.experiments import Holder, NeverRan, Overview, Summarize
from controller.core.model import Attempt, Event, Experiment, TrialOrFinal, Uid, trial_label
from controller.kube.errors import BackendError
from controller.kube.kubeconfig import namespace_of
from controller.spec import from_document
from suggest.client import AsyncClient
from suggest.errors import NotFound, PermissionDenied
from suggest.replies import StudySummary
from suggest.trial import Trial, TrialState

# The client needs an address, for messages about connections. It never connects to it.
_ADDRESS = "unix:/tuner-controller"
_EXPERIMENTS = "/api/v1/experiments"


@dataclass(frozen=True, slots=True)
class ClusterWorkspace:
    """Implements `ReadableWorkspace` for the controller of the cluster of one context."""

    api: ControllerApi
    service: str = ""
    has_studies: bool = True

    @property
    def place(self) -> str:
        return f"the cluster of context {self.api.context}"

    @property
    def place_of_studies(self) -> str:
        # Messages have an article before it.
        return self.place.removeprefix("the ")

    @contextmanager
    def opened(self) -> Iterator[ClusterExperiments]:
        yield ClusterExperiments(self.api)

    def service_of(self, experiment: Experiment) -> str:
        return self.service

    @asynccontextmanager
    async def reading(self, service: str) -> AsyncIterator[AsyncClient]:
        client = AsyncClient(_ADDRESS, inside=ServiceChannel(self.api))
        try:
            yield client
        finally:
            await client.close()


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Implements `Trouble`: the sentence that the controller has sent."""

    sentence: str

    def read(self, *, controlled: bool) -> str:
        return self.sentence


@dataclass(slots=True)
class ClusterExperiments:
    """Implements `ReadableExperiments`. Each method sends at least one request, and waits."""

    api: ControllerApi
    poll_s: float = 1.0
    # What the controller says of each experiment that was read, besides the experiment itself.
    _paths: dict[Uid, str] = field(default_factory=dict)
    _troubles: dict[Uid, str] = field(default_factory=dict)
    _budgets: dict[str, str] = field(default_factory=dict)
    _overviews: dict[Uid, Overview] = field(default_factory=dict)
    _never_ran: list[NeverRan] = field(default_factory=list)

    def in_namespace(self, namespace: str | None) -> list[Experiment]:
        self._never_ran.clear()
        if namespace is not None:
            return self._listed(namespace=namespace)
        try:
            return self._listed()
        except PermissionDenied as denied:
            # The controller asks about namespaces that have experiments only.
            try:
                return self._listed(namespace=namespace_of(self.api.context))
            except PermissionDenied:
                raise denied from None

    def named(self, name: str) -> list[Experiment]:
        return self._listed(name=name)

    def names(self, namespace: str | None) -> list[str]:
        path = "/api/v1/names"
        found = self._get(path) if namespace is None else self._get(path, namespace=namespace)
        return [str(name) for name in found["names"]]

    def experiment(self, namespace: str, name: str) -> Experiment | None:
        try:
            document = self._get(_path(namespace, name))
        except NotFound as error:
            if self._is_about_the_way(error):
                raise
            return None
        return self._noted(document)

    def holder(self, uid: Uid) -> Holder | None:
        document = self._get(self._paths[uid], uid=uid)
        self._noted(document)
        return _holder(document)

    def trouble(self, uid: Uid) -> _Trouble:
        return _Trouble(self._troubles.get(uid, ""))

    def tenant_budget(self, namespace: str) -> str:
        return self._budgets.get(namespace, "")

    def attempts(self, uid: Uid, trial: TrialOrFinal | None = None) -> list[Attempt]:
        path = f"{self._paths[uid]}/attempts"
        if trial is not None:
            rows = self._get(path, uid=uid, trial=str(table_rows.trial_column(trial)))["attempts"]
            return [table_rows.attempt_of(row) for row in rows]
        attempts: list[Attempt] = []
        query: dict[str, str] = {}
        while True:
            page = self._get(path, uid=uid, **query)
            attempts += map(table_rows.attempt_of, page["attempts"])
            if page["next"] is None:
                return attempts
            query = {"first": str(page["next"])}

    def never_ran(self) -> list[NeverRan]:
        return self._never_ran

    async def overviews(
        self, listed: Sequence[Experiment], summarize: Summarize | None
    ) -> Mapping[Uid, Overview]:
        """Return what the controller has sent with the list."""
        return self._overviews

    def events(self, uid: Uid, trial: TrialOrFinal | None = None) -> list[Event]:
        query = {} if trial is None else {"trial": str(table_rows.trial_column(trial))}
        rows = self._get(f"{self._paths[uid]}/events", uid=uid, **query)["events"]
        return [table_rows.event_of(row) for row in rows]

    def log(self, uid: Uid, attempt: Attempt) -> ClusterLog:
        trial = trial_label(attempt.trial)
        path = f"{self._paths[uid]}/trials/{trial}/attempts/{attempt.number}/log"
        return ClusterLog(self.api, path, uid)

    def folders(self, uid: Uid) -> None:
        return None

    def download(self, experiment: Experiment, file: IO[bytes]) -> None:
        """Write the pack of an experiment. See `controller.app.pack`."""
        path = f"{self._paths[experiment.uid]}/pack"
        query = {"uid": experiment.uid, "context": self.api.context}
        self.api.call(self.api.download, path, query, file)

    def _listed(self, **query: str) -> list[Experiment]:
        found: list[Experiment] = []
        while True:
            page = self._get(_EXPERIMENTS, **query)
            found += map(self._noted, page["experiments"])
            self._never_ran += [NeverRan(**each) for each in page["neverRan"]]
            if page["next"] is None:
                return found
            query = query | {"after": page["next"]}

    def _noted(self, document: Mapping[str, Any]) -> Experiment:
        row = document["row"]
        spec = from_document(json.loads(row["document"]))
        # The context of the person's kubeconfig, by which the namespace's quotas are read. The
        # directory is the controller's.
        experiment = replace(
            table_rows.experiment_of(row, spec), context=self.api.context, directory=""
        )
        self._paths[experiment.uid] = _path(experiment.namespace, experiment.name)
        self._troubles[experiment.uid] = trouble = document.get("trouble", "")
        self._budgets[experiment.namespace] = document.get("tenantBudget", "")
        told = document.get("overview") or {}
        if "trials" in told:
            summary = _summary(told, experiment.uid)
            final = [table_rows.attempt_of(each) for each in told.get("final", ())]
            self._overviews[experiment.uid] = Overview(summary, _holder(document), trouble, final)
        return experiment

    def _get(self, path: str, **query: str) -> Any:  # JSON
        return self.api.call(self.api.get, path, **query)

    def _is_about_the_way(self, error: NotFound) -> bool:
        """Return whether it is the API server, and not the controller, that has found nothing."""
        return not isinstance(error.__cause__, BackendError)


class ClusterLog:
    """Implements `ReadableLog`."""

    def __init__(self, api: ControllerApi, path: str, uid: Uid) -> None:
        self._api = api
        self._path = path
        self._uid = uid

    def begins_at(self, tail: int) -> int:
        path = f"{self._path}/start"
        answer = self._api.call(self._api.get, path, uid=self._uid, tail=str(tail))
        return int(answer["offset"])

    def read(self, offset: int) -> tuple[int, bytes]:
        query = {"uid": self._uid, "offset": str(offset)}
        data, headers = self._api.call(self._api.exchange, "GET", self._path, query)
        return int(headers[OFFSET]), data


def _holder(document: Mapping[str, Any]) -> Holder | None:
    found = document.get("holder")
    return None if found is None else Holder(found["pid"], found["host"], found["since"])


def _summary(told: Mapping[str, Any], uid: Uid) -> StudySummary:
    numbers = {key: told.get(key, 0) for key in ("running", "queued")} | dict(told["trials"])
    counts = {state: n for state in TrialState if (n := numbers.get(state.value, 0))}
    best = told.get("best")
    if best is None:
        return StudySummary(counts)
    succeeded = TrialState.SUCCEEDED
    trial = Trial(best["number"], succeeded, best["parameters"], best["value"], client_id=uid)
    return StudySummary(counts, trial)


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/experiments/{quote(name, safe='')}"
