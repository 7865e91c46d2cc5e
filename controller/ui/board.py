"""The data of the page, which is read again only when a store may have changed, and once for all open pages.

For a store on this machine, changes show in the times of its files, which cost a few system calls to check. A shared
service is asked again after `SHARED_S`. After each read, the next one waits at least as long as that read took.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.app import query
from controller.app.experiments import find
from controller.app.local_experiments import LocalExperiments
from controller.app.suggestion_service import SessionClient
from controller.app.workspace import Workspace
from controller.core.model import Experiment
from controller.report import description, documents
from controller.report.formatting import json_number, timestamp
from controller.report.record import ExperimentRecord, TrialRecord
from suggest.errors import NotFound, TunerError

Json = dict[str, Any]  # Any: what JSON holds
LOOK_S = 0.05  # between checks of the files
SHARED_S = 1.0
LATEST_EVENTS = 30
Mark = tuple[object, ...]
Row = list[Any]


@dataclass(frozen=True, slots=True)
class Table:
    """An experiment at one moment, in the form of the page.

    rows: the cells of each trial, by its number and in the order of the columns.
    """

    summary: Json
    columns: list[Json]
    rows: dict[int, Row]
    record: ExperimentRecord


@dataclass(slots=True)
class _Watched:
    mark: Mark = ()
    table: Table | None = None
    idle_until: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Board:
    """Reads experiments for all pages, in one event loop. `close` closes the connections that it opened."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._stack = AsyncExitStack()
        self._experiments: LocalExperiments | None = None
        self._clients: dict[str, SessionClient] = {}
        self._connecting = asyncio.Lock()
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._listed: dict[str, tuple[Mark, Experiment, Json]] = {}

    async def close(self) -> None:
        await self._stack.aclose()

    def experiments(self) -> LocalExperiments:
        """Return the experiments of the state directory. Raises NotFound if nothing was run yet."""
        if self._experiments is None:
            self._experiments = self._stack.enter_context(self.workspace.opened())
        return self._experiments

    async def client(self, experiment: Experiment) -> SessionClient:
        """Return a client for the experiment. Raises FailedPrecondition if a different service was requested."""
        service = self.workspace.service_of(experiment)
        async with self._connecting:
            if service not in self._clients:
                self._clients[service] = await self._stack.enter_async_context(self.workspace.connected(service))
        return self._clients[service]

    def find(self, namespace: str, name: str) -> Experiment:
        """Return the experiment of that name. Raises NotFound."""
        return find(self.experiments(), name, namespace)

    # One experiment

    async def table(self, namespace: str, name: str) -> Table:
        """Return the current experiment. Raises NotFound and the errors of its service."""
        watched = self._watched.setdefault((namespace, name), _Watched())
        async with watched.lock:
            experiment = self.find(namespace, name)
            mark = self._mark(experiment)
            if watched.table is None or mark != watched.mark:
                await asyncio.sleep(max(0.0, watched.idle_until - time.monotonic()))
                mark = self._mark(experiment)  # before reading, so that concurrent changes are read next time
                began = time.monotonic()
                record = await query.gather(self.experiments(), experiment, await self.client(experiment), latest=True)
                watched.table = _table(record)
                watched.mark = mark
                watched.idle_until = 2 * time.monotonic() - began
            return watched.table

    async def follow(self, namespace: str, name: str) -> AsyncIterator[tuple[str, Json]]:
        """Yield the experiment and its changes, as names of events with their data.

        The first event is the whole experiment (`reset`), followed by changes (`update`). If the store does not answer,
        a `trouble` event says so, and the store is asked again. The last event is `gone`, when the experiment is
        deleted.
        """
        shown: Table | None = None
        trouble = ""
        while True:
            try:
                table = await self.table(namespace, name)
            except NotFound as error:
                yield "gone", {"message": str(error)}
                return
            except TunerError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    yield "trouble", {"message": trouble}
                await asyncio.sleep(SHARED_S)
                continue
            if shown is None or table.columns != shown.columns or table.rows.keys() < shown.rows.keys():
                yield "reset", {"summary": table.summary, "columns": table.columns, "rows": list(table.rows.values())}
            elif table is not shown or trouble:
                changed = [row for number, row in table.rows.items() if row != shown.rows.get(number)]
                if changed or table.summary != shown.summary or trouble:
                    yield "update", {"summary": table.summary, "rows": changed}
            shown, trouble = table, ""
            await asyncio.sleep(LOOK_S)

    # All experiments

    async def follow_list(self) -> AsyncIterator[tuple[str, Json]]:
        shown: Json | None = None
        while True:
            now = await self._list()
            if now != shown:
                yield "list", now
            shown = now
            await asyncio.sleep(0.25)

    async def _list(self) -> Json:
        found: list[Json] = []
        trouble = ""
        known: list[Experiment] = []
        with suppress(NotFound):  # nothing was run yet
            known = self.experiments().experiments()
        for experiment in reversed(known):
            mark = self._mark(experiment)
            before = self._listed.get(experiment.uid)
            if before is None or before[:2] != (mark, experiment):
                try:
                    shown = (await self.table(experiment.namespace, experiment.name)).summary
                except TunerError as error:
                    trouble = str(error)
                    shown = _summary(ExperimentRecord(experiment))
                before = (mark, experiment, {key: value for key, value in shown.items() if key != "events"})
                self._listed[experiment.uid] = before
            found.append(before[2])
        return {"experiments": found, "trouble": trouble, "stateDirectory": str(self.workspace.state.root)}

    def _mark(self, experiment: Experiment) -> Mark:
        """Return a value that differs from the last one if the experiment may have changed."""
        holder = self.experiments().holder(experiment.uid)
        service = self.workspace.service_of(experiment)
        state = self.workspace.state
        files = [state.controller_db]
        clock = 0
        if not service:
            files.append(state.studies_db)
        elif service.startswith("sqlite:///"):
            files.append(Path(service.removeprefix("sqlite:///")))
        else:
            clock = int(time.monotonic() / SHARED_S)
        return (experiment.uid, holder, clock, *(mark for file in files for mark in _times(str(file))))


def _times(database: str) -> Iterator[object]:
    for path in (database, f"{database}-wal"):
        try:
            found = Path(path).stat()
            yield found.st_mtime_ns, found.st_size
        except OSError:
            yield None


def _table(record: ExperimentRecord) -> Table:
    metrics = sorted({name for of_trial in record.metrics.values() for name in of_trial})
    parameters = record.parameter_names
    spec = record.experiment.spec
    columns: list[Json] = [
        {"key": "number", "title": "Trial"},
        {"key": "state", "title": "State"},
        {"key": "value", "title": spec.objective.metric},
        {"key": "step", "title": "Step"},
        *({"key": f"parameters.{name}", "title": name, "parameter": True} for name in parameters),
        *(_metric_column(name, parameters) for name in metrics),
        {"key": "startTime", "title": "Started"},
        {"key": "endTime", "title": "Ended"},
        {"key": "attempts", "title": "Attempts"},
        {"key": "reason", "title": "Reason"},
        {"key": "labels", "title": "Labels"},
    ]
    rows = {one.trial.number: _row(record, one, parameters, metrics) for one in record.trials}
    return Table(_summary(record), columns, rows, record)


def _metric_column(name: str, parameters: list[str]) -> Json:
    """Return a metric's column, whose name must differ from a parameter that the program prints as a metric."""
    if name in parameters:
        return {"key": f"metrics.{name}", "title": f"metrics.{name}", "hidden": True}
    return {"key": f"metrics.{name}", "title": name}


def _row(record: ExperimentRecord, one: TrialRecord, parameters: list[str], metrics: list[str]) -> Row:
    it = one.trial
    measured = record.metrics.get(it.number, {})
    start, end = one.start_time, one.end_time
    return [
        it.number,
        one.state.value,
        None if it.value is None else json_number(it.value),
        it.step,
        *(it.parameters.get(name) for name in parameters),
        *(json_number(measured[name]) if name in measured else None for name in metrics),
        None if start is None else timestamp(start),
        None if end is None else timestamp(end),
        len(one.attempts),
        record.reason_of(one),
        " ".join(f"{key}={value}" for key, value in it.labels.items()),
    ]


def _summary(record: ExperimentRecord) -> Json:
    it = record.experiment
    spec = it.spec
    shown = documents.experiment(record) | {
        "why": description.why_experiment(record),
        "controlledBy": record.controlled_by,
        "metric": spec.objective.metric,
        "direction": spec.objective.direction.value,
        "algorithm": spec.algorithm.name,
        "runtime": spec.runtime,
        "parallelism": spec.parallelism,
        "budget": {"trials": spec.budget.trials, "failedTrials": spec.budget.failed_trials},
        "done": sum(n for state, n in record.counts.items() if state.finished and state.value != "cancelled"),
        "revision": it.revision,
        "events": [documents.event(each) for each in record.events[-LATEST_EVENTS:]],
    }
    return shown


def trial_document(record: ExperimentRecord, one: TrialRecord) -> Json:
    """Return one trial with the reason for its state and its events."""
    number = one.trial.number
    return documents.trial(record, one) | {
        "why": description.why_trial(record, one),
        "events": [documents.event(each) for each in record.events if each.trial == number],
    }
