"""The data of the page, which is read again only when a store may have changed, and once for all open pages.

For a store on this machine, changes show in the times of its files, which cost a few system calls to check. A shared
service is asked again after `SHARED_S`. What is read each time is decided in `controller.app.following`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from controller.app.experiments import find
from controller.app.following import Changed, ExperimentFollower
from controller.app.local_experiments import LocalExperiments
from controller.app.suggestion_service import SessionClient
from controller.app.workspace import Workspace
from controller.core.model import Event, Experiment
from controller.report import description, documents
from controller.report.record import ExperimentRecord, TrialRecord
from controller.ui.live_table import Json, LiveTable
from suggest.errors import NotFound, TunerError

LOOK_S = 0.04  # between checks of the files
LIST_S = 0.25
SHARED_S = 1.0
READS_AT_ONCE = 2  # so that many experiments do not keep the one that a person looks at waiting
Mark = tuple[object, ...]


@dataclass(slots=True)
class _Watched:
    """One experiment that pages show. `error` is that of the last read, if it failed."""

    experiment: Experiment
    follower: ExperimentFollower | None = None  # None until its service was reached
    table: LiveTable = field(default_factory=LiveTable)
    summary: Json = field(default_factory=dict)
    mark: Mark = ()
    began: float = 0.0  # when the last successful read began
    reading: asyncio.Task[None] | None = None
    idle_until: float = 0.0
    error: TunerError | None = None

    def show(self, record: ExperimentRecord, trials: Changed, *, loaded: bool) -> None:
        self.summary = _summary(record, loaded=loaded)
        self.table.apply(record, self.summary, trials)


class Board:
    """Reads experiments for all pages, in one event loop. `close` closes the connections that it opened."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._stack = AsyncExitStack()
        self._experiments: LocalExperiments | None = None
        self._clients: dict[str, SessionClient] = {}
        self._connecting = asyncio.Lock()
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._slots = asyncio.Semaphore(READS_AT_ONCE)
        self._known: tuple[Mark, list[Experiment]] = ((), [])

    async def close(self) -> None:
        reading = [one.reading for one in self._watched.values() if one.reading is not None]
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
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

    async def record(self, namespace: str, name: str) -> ExperimentRecord:
        """Return the current experiment. Raises NotFound and the errors of its service."""
        asked = time.monotonic()
        while True:
            watched = self._look(self.find(namespace, name))
            await self._wait(watched)
            if watched.error is not None:
                raise watched.error
            if watched.follower is not None and self._is_current(watched, asked):
                return watched.follower.record

    def expire(self, experiment: Experiment) -> None:
        """Read all of the experiment again when it is next needed, because a trial that has ended was changed."""
        watched = self._watched.get((experiment.namespace, experiment.name))
        if watched is not None and watched.follower is not None:
            watched.follower.expire()

    async def follow(self, namespace: str, name: str, position: str = "") -> AsyncIterator[tuple[str, Json]]:
        """Yield what has changed since `position`, and later changes, as names of events with their data.

        The events are those of `LiveTable.since`. If the store does not answer, a `trouble` event says so, and the
        store is asked again. The last event is `gone`, when the experiment is deleted.
        """
        trouble = ""
        try:
            experiment = self.find(namespace, name)
        except NotFound as error:
            yield "gone", {"message": str(error)}
            return
        asked = time.monotonic()
        while True:
            watched = self._look(experiment)
            await self._wait(watched)
            if isinstance(watched.error, NotFound):
                yield "gone", {"message": str(watched.error)}
                return
            if (message := str(watched.error or "")) != trouble:
                trouble = message
                yield "trouble", {"message": message}
            # While an experiment is read for the first time, what is known of it is shown already.
            if watched.summary and (not watched.summary["loaded"] or self._is_current(watched, asked)):
                for event, data in watched.table.since(position):
                    yield event, data
                position = watched.table.position

    async def _wait(self, watched: _Watched) -> None:
        if watched.reading is not None:
            await asyncio.wait({watched.reading}, timeout=LOOK_S)
        else:
            await asyncio.sleep(LOOK_S)

    def _is_current(self, watched: _Watched, asked: float) -> bool:
        """Return whether what is known is not older than a request of the time `asked`."""
        return watched.began >= asked or self._mark(watched.experiment) == watched.mark

    def _look(self, experiment: Experiment) -> _Watched:
        """Return what is known of the experiment, and begin to read it if it may have changed."""
        key = (experiment.namespace, experiment.name)
        watched = self._watched.get(key)
        if watched is None or watched.experiment.uid != experiment.uid:
            watched = self._watched[key] = _Watched(experiment)
        if watched.reading is not None and watched.reading.done():
            watched.reading.result()  # a bug must not stay unseen
            watched.reading = None
        if watched.reading is None and time.monotonic() >= watched.idle_until:
            due = watched.follower is not None and watched.follower.due
            if due or self._mark(watched.experiment) != watched.mark:
                watched.reading = asyncio.create_task(self._read(watched))
        return watched

    async def _read(self, watched: _Watched) -> None:
        async with self._slots:
            began = time.monotonic()
            mark = self._mark(watched.experiment)  # before reading, so that concurrent changes are read next time
            try:
                client = await self.client(watched.experiment)
                if watched.follower is None:
                    watched.follower = ExperimentFollower(self.experiments(), watched.experiment, client)
                follower = watched.follower
                async for trials in follower.read():
                    watched.show(follower.record, trials, loaded=follower.loaded)
                watched.show(follower.record, {}, loaded=True)
                watched.mark, watched.began, watched.error = mark, began, None
                # Reading takes at most half of the time.
                watched.idle_until = 2 * time.monotonic() - began
            except TunerError as error:
                watched.error, watched.idle_until = error, time.monotonic() + SHARED_S
                if isinstance(error, NotFound):
                    self._watched.pop((watched.experiment.namespace, watched.experiment.name), None)

    # All experiments

    async def follow_list(self) -> AsyncIterator[tuple[str, Json]]:
        shown: Json | None = None
        while True:
            now = self._list()
            if now != shown:
                yield "list", now
            shown = now
            await asyncio.sleep(LIST_S)

    def _list(self) -> Json:
        found: list[Json] = []
        trouble = ""
        with suppress(NotFound):  # nothing was run yet
            mark = (*_times(str(self.workspace.state.controller_db)),)
            if mark != self._known[0]:
                self._known = (mark, self.experiments().experiments())
        for experiment in reversed(self._known[1]):
            watched = self._look(experiment)
            trouble = trouble or str(watched.error or "")
            shown = watched.summary or _summary(ExperimentRecord(experiment), loaded=watched.error is not None)
            found.append({key: value for key, value in shown.items() if key != "events"})
        return {"experiments": found, "trouble": trouble, "stateDirectory": str(self.workspace.state.root)}

    def _mark(self, experiment: Experiment) -> Mark:
        """Return a value that differs from the last one if the experiment may have changed."""
        holder = self.experiments().holder(experiment.uid)
        service = self.workspace.service or experiment.server
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


def _summary(record: ExperimentRecord, *, loaded: bool) -> Json:
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
        "events": [documents.event(each) for each in record.events],
        "loaded": loaded,
    }
    return shown


def trial_document(record: ExperimentRecord, one: TrialRecord, events: Sequence[Event]) -> Json:
    """Return one trial with the reason for its state and its events."""
    return documents.trial(record, one) | {
        "why": description.why_trial(record, one),
        "events": [documents.event(each) for each in events],
    }
