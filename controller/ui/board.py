"""The experiments of a state directory as the page of `tuner ui` shows them:
the list, one of them, and the queue.

What is read each time, and when, is decided in `controller.app.following` and
`controller.ui.shared_reader`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import ChainMap
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from controller.app import query
from controller.app.delete import delete
from controller.app.enqueue import enqueue
from controller.app.experiments import Overview, find
from controller.app.following import ExperimentFollower
from controller.app.local_experiments import LocalExperiments
from controller.app.retry import failed_here
from controller.app.suggestion_service import SessionClient
from controller.app.workspace import StudyReads, Workspace
from controller.background_tasks import cancelled
from controller.core.budget import spent_trials
from controller.core.model import Experiment, ExperimentSpec, ExperimentState, by_trial
from controller.core.quota_use import QuotaReport
from controller.folders import AttemptFolders
from controller.report import description, documents, figures, spending
from controller.report.record import ExperimentRecord, TrialList, TrialRecord
from controller.search import study_name
from controller.ui.live_table import Encoded, Event, Json
from controller.ui.shared_reader import (
    SHARED_S,
    Mark,
    SharedReader,
    clock_mark,
    file_mark,
    when_changed,
)
from controller.ui.visitor import VisitorLimits
from suggest.errors import NotFound, TunerError
from suggest.space import Choice, Parameter
from suggest.study import StudyName, StudySpec
from suggest.trial import Measurement, TrialState

LIST_S = 0.25
READ_S = 0.5  # a list shows what was known before if reading takes longer
SPARE = 10  # overviews are read again after this many times the duration of the last read
QUOTA_S = 10.0  # between two looks at the quotas of a namespace
READS_AT_ONCE = 2  # so that many experiments do not keep the one that a person looks at waiting
MOST_WAITING = 8
MOST_QUEUED = 200  # in a namespace's queue
MOST_ARTIFACTS = 500


class Board:
    """Reads experiments for all pages, in one event loop.

    `close` closes the stores and connections that it opened.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.limits = VisitorLimits("this link")
        self._stack = AsyncExitStack()
        self._experiments: LocalExperiments | None = None
        self._studies: dict[str, StudyReads] = {}  # by service
        self._connecting = asyncio.Lock()
        self.readers: dict[str, SharedReader[ExperimentRecord]] = {}  # by uid
        self._slots = asyncio.Semaphore(READS_AT_ONCE)
        self._known: tuple[Mark, list[Experiment]] = ((), [])
        # What the list shows of experiments whose trials need not be read; see `_read_overviews`.
        self._overviews: dict[str, Json] = {}  # by uid
        self._overviews_mark: Mark = ()
        self._overviews_idle_until = 0.0  # 0: they were never read
        self._overviews_trouble = ""
        self._reading_overviews: asyncio.Task[None] | None = None
        # By runtime and namespace, with the time when they were read.
        self._quotas: dict[tuple[str, str], tuple[float, QuotaReport | None]] = {}

    async def close(self) -> None:
        await cancelled(self._reading_overviews)
        for reader in self.readers.values():
            await reader.close()
        await self._stack.aclose()

    def experiments(self) -> LocalExperiments:
        """Return the experiments of the state directory. Raises NotFound if nothing was run yet."""
        if self._experiments is None:
            self._experiments = self._stack.enter_context(self.workspace.opened())
        return self._experiments

    async def studies(self, experiment: Experiment) -> StudyReads:
        """Return the experiment's studies. Raises FailedPrecondition for another service."""
        service = self.workspace.service_of(experiment)
        async with self._connecting:
            if service not in self._studies:
                self._studies[service] = await self._stack.enter_async_context(
                    self.workspace.reading(service)
                )
        return self._studies[service]

    def client(self, experiment: Experiment) -> AbstractAsyncContextManager[SessionClient]:
        """Return a client that changes the experiment's study. Raises as `studies` does."""
        return self.workspace.connected(self.workspace.service_of(experiment))

    def find(self, namespace: str, name: str) -> Experiment:
        """Return the experiment of that name. Raises NotFound."""
        return find(self.experiments(), name, namespace)

    # One experiment

    async def experiment(self, namespace: str, name: str) -> Experiment:
        return self.find(namespace, name)

    def permitted(self, namespace: str, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        return events

    async def record(self, namespace: str, name: str) -> ExperimentRecord:
        """Return the current experiment. Raises NotFound and the errors of its service."""
        return await self.reader(self.find(namespace, name)).record()

    async def follow(
        self, namespace: str, name: str, position: str = "", trials: frozenset[int] | None = None
    ) -> AsyncIterator[Event]:
        """Yield the events of `SharedReader.follow`."""
        try:
            reader = self.reader(self.find(namespace, name))
        except NotFound as error:
            yield "gone", Encoded.of({"message": str(error)})
            return
        async for event in reader.follow(position, trials):
            yield event

    async def drawn(
        self, namespace: str, name: str, figure: str, trials: Sequence[int]
    ) -> ExperimentRecord:
        record = await self.record(namespace, name)
        if figure == "curves":
            studies = await self.studies(record.experiment)
            measured = await measurements_of_curves(
                studies, study_name(record.experiment), record, trials
            )
            record = replace(record, measurements=measured)
        if trials:
            record = replace(record, trials=[query.find_trial(record, number) for number in trials])
        if figure == "timeline":
            record = replace(record, events=self.experiments().events(record.experiment.uid))
        return record

    async def trial(self, namespace: str, name: str, number: int) -> Json:
        record = await self.record(namespace, name)
        entry = query.find_trial(record, number)
        experiment = record.experiment
        studies = await self.studies(experiment)
        measured = await studies.list_measurements(study_name(experiment), number)
        events = self.experiments().events(experiment.uid, number)
        failed = entry.state is TrialState.FAILED and failed_here(entry.attempts)
        return documents.trial(record, entry) | {
            "why": description.why_trial(record, entry),
            "events": [documents.event(event) for event in events],
            "measurements": [documents.measurement(sample) for _, sample in measured],
            "provenance": self._provenance(experiment, entry),
            "artifacts": await asyncio.to_thread(self._artifacts, experiment, entry),
            "actions": {"labels": True, "retry": failed and not record.controlled_by},
        }

    def folder(self, experiment: Experiment, number: int, attempt: int) -> AttemptFolders:
        return self.workspace.state.folders(experiment.uid).attempt(number, attempt)

    async def log_file(self, experiment: Experiment, trial: TrialRecord, attempt: int) -> Path:
        """Return the file of an attempt's log, which may not exist yet."""
        return self.folder(experiment, trial.trial.number, attempt).log

    def _provenance(self, experiment: Experiment, entry: TrialRecord) -> dict[int, Json]:
        provenance = {}
        for attempt in entry.attempts:
            folder = self.folder(experiment, entry.trial.number, attempt.number)
            file = folder.root / "provenance.json"
            # the attempt was killed before it was written, or ran elsewhere
            with suppress(OSError, ValueError):
                provenance[attempt.number] = json.loads(file.read_text(encoding="utf-8"))
        return provenance

    def _artifacts(self, experiment: Experiment, entry: TrialRecord) -> list[Json]:
        """Return the files that the trial's attempts wrote to their output folders."""
        artifacts: list[Json] = []
        for attempt in entry.attempts:
            folder = self.folder(experiment, entry.trial.number, attempt.number)
            for output in query.files(folder.output):
                about = {"attempt": attempt.number, "path": output.path}
                artifacts.append({**about, "bytes": output.size_bytes})
        return artifacts[:MOST_ARTIFACTS]

    async def label(
        self, namespace: str, name: str, number: int, labels: Mapping[str, str]
    ) -> None:
        experiment = self.find(namespace, name)
        async with self.client(experiment) as client:
            await client.update_trial(study_name(experiment), number, labels=labels)
        self.reader(experiment).read_again(number)

    async def enqueue(self, namespace: str, name: str, texts: Mapping[str, str]) -> int:
        experiment = self.find(namespace, name)
        async with self.client(experiment) as client:
            return (await enqueue(client, experiment, texts)).number

    async def delete(self, namespace: str, name: str) -> None:
        await delete(self.workspace, [name], namespace, confirm=lambda _target: True)

    def reader(self, experiment: Experiment) -> SharedReader[ExperimentRecord]:
        async def connect() -> ExperimentFollower:
            return ExperimentFollower(
                self.experiments(), experiment, await self.studies(experiment)
            )

        reader = self.readers.get(experiment.uid)
        if reader is None:
            reader = self.readers[experiment.uid] = SharedReader(
                mark=lambda: self.mark(experiment),
                connect=connect,
                summarize=self.summary,
                slots=self._slots,
            )
        return reader

    def summary(self, record: ExperimentRecord, loaded: bool) -> Json:
        return summary(record, loaded)

    def mark(self, experiment: Experiment) -> Mark:
        """Return a value that changes when the experiment may have changed."""
        service = self.workspace.service or experiment.server
        trouble = self.experiments().trouble(experiment.uid).path
        holder = self.experiments().holder(experiment.uid)
        return (holder, *file_mark(trouble), *self._store_mark(service))

    def _store_mark(self, service: str) -> Mark:
        """Return a value that changes when the databases of experiments may have changed."""
        state = self.workspace.state
        if not service:
            return file_mark(state.controller_db, state.studies_db)
        if service.startswith("sqlite:///"):
            return file_mark(state.controller_db, Path(service.removeprefix("sqlite:///")))
        return clock_mark()

    # All experiments

    def follow_list(self) -> AsyncIterator[Event]:
        return when_changed("list", self._list, every_s=LIST_S)

    async def _list(self) -> Encoded:
        experiments: list[Json] = []
        reading = self._reading_overviews
        if reading is None or reading.done():
            reading = self._reading_overviews = asyncio.create_task(self._read_overviews())
        await asyncio.wait({reading}, timeout=READ_S)
        if reading.done():
            reading.result()  # a bug must not stay unseen
        trouble = self._overviews_trouble
        for experiment in reversed(self.all()):
            element = self._overviews.get(experiment.uid)
            if element is None and not self._overviews_idle_until:
                element = summary(ExperimentRecord(experiment), loaded=False)
            elif element is None:
                reader = self.reader(experiment)
                reader.look()
                if reader.gone:
                    continue
                trouble = trouble or str(reader.error or "")
                is_loaded = reader.error is not None
                element = reader.summary or summary(ExperimentRecord(experiment), is_loaded)
            experiments.append({key: value for key, value in element.items() if key != "events"})
        return Encoded.of(
            {"searches": experiments, "trouble": trouble, "source": str(self.workspace.state.root)}
        )

    async def _read_overviews(self) -> None:
        """Read again what the list shows of experiments that rest, if it may have changed.

        Takes a small share of the time, and no more statements for more experiments.
        """
        by_service: dict[str, list[Experiment]] = {}
        holders: list[object] = []
        for experiment in self.all():
            if not experiment.state.finished:
                holders.append(self.experiments().holder(experiment.uid))
            # If the experiment is on another service, the reader reports it.
            with suppress(TunerError):
                by_service.setdefault(self.workspace.service_of(experiment), []).append(experiment)
        mark: Mark = (*holders, *map(self._store_mark, by_service))
        began = time.monotonic()
        if mark == self._overviews_mark or began < self._overviews_idle_until:
            return
        try:
            found = [await self._overviews_of(some) for some in by_service.values()]
        except TunerError as error:
            self._overviews_mark, self._overviews_trouble = (), str(error)
            self._overviews_idle_until = time.monotonic() + SHARED_S
            return
        self._overviews_mark = mark
        self._overviews, self._overviews_trouble = dict(ChainMap(*found)), ""
        self._overviews_idle_until = time.monotonic() + SPARE * (time.monotonic() - began)

    async def _overviews_of(self, experiments: Sequence[Experiment]) -> dict[str, Json]:
        """Return by uid what the list shows of experiments of one service."""
        studies = await self.studies(experiments[0])
        told = await query.overviews(self.experiments(), experiments, studies)
        return {
            each.uid: summary(query.without_trials(self.experiments(), each, overview), loaded=True)
            for each in experiments
            if (overview := told.get(each.uid)) is not None and _needs_no_trial(each, overview)
        }

    def all(self) -> list[Experiment]:
        """Return all experiments, oldest first."""
        with suppress(NotFound):  # nothing was run yet
            mark = file_mark(self.workspace.state.controller_db)
            if mark != self._known[0]:
                self._known = (mark, self.experiments().experiments())
        return self._known[1]

    # The queue

    def follow_queue(self) -> AsyncIterator[Event]:
        """Yield the trials that run or wait, with the quotas, by namespace, after each change."""
        return when_changed("queue", self._queue, every_s=SHARED_S)

    async def _queue(self) -> Encoded:
        namespaces: dict[str, list[ExperimentRecord]] = {}
        trouble = ""
        for experiment in self.all():
            if experiment.state.finished or experiment.state is ExperimentState.STOPPED:
                continue
            try:
                record = await self.reader(experiment).record()
            except TunerError as error:
                trouble = str(error)
                continue
            namespaces.setdefault(experiment.namespace, []).append(record)
        found = [await self._namespace(*each) for each in sorted(namespaces.items())]
        return Encoded.of({"namespaces": found, "trouble": trouble})

    async def _namespace(self, namespace: str, records: Sequence[ExperimentRecord]) -> Json:
        states = (TrialState.RUNNING, TrialState.QUEUED)
        trials: list[tuple[TrialRecord, ExperimentRecord]] = []
        for record in records:
            trials += [(entry, record) for entry in record.trials if entry.state in states]
        trials.sort(key=lambda pair: states.index(pair[0].state))
        report = await self._quotas_of(records)
        return {
            "namespace": namespace,
            "quotas": [
                {"resource": q.resource, "used": q.used, "allowed": q.allowed, "quota": q.quota}
                for q in report.quotas or ()
            ],
            "quotaTrouble": report.trouble,
            "trials": [_queued(entry, record) for entry, record in trials[:MOST_QUEUED]],
            "more": max(0, len(trials) - MOST_QUEUED),
        }

    async def _quotas_of(self, records: Sequence[ExperimentRecord]) -> QuotaReport:
        """Return the quotas of a namespace: those of its first runtime that has some."""
        for runtime, experiment in {
            each.experiment.spec.runtime: each.experiment for each in records
        }.items():
            key = runtime, experiment.namespace
            at, report = self._quotas.get(key, (0.0, None))
            if time.monotonic() - at > QUOTA_S:
                report = await query.quotas_of(experiment)
                self._quotas[key] = time.monotonic(), report
            if report is not None:
                return report
        return QuotaReport([])


def _needs_no_trial(experiment: Experiment, overview: Overview) -> bool:
    """Return whether `description.why_experiment` names no trial."""
    state = experiment.state
    if state is ExperimentState.SUCCEEDED:
        return overview.summary.best is not None
    return state in (ExperimentState.STOPPED, ExperimentState.PAUSED)


def _queued(entry: TrialRecord, record: ExperimentRecord) -> Json:
    return {
        "experiment": record.name,
        "number": entry.trial.number,
        "state": entry.state.value,
        "startTime": documents.trial(record, entry).get("startTime"),
        "node": "" if entry.newest is None else entry.newest.node,
        "reason": record.reason_of(entry),
    }


def summary(record: ExperimentRecord, loaded: bool) -> Json:
    experiment = record.experiment
    spec = experiment.spec
    return documents.experiment(record) | {
        "why": description.why_experiment(record),
        **search_of(spec),
        "runtime": spec.runtime,
        "parallelism": spec.parallelism,
        "budget": {"trials": spec.budget.trials},
        "done": spent_trials(record.counts),
        "used": [*spending.used(experiment), *_foreseen(record), *_of_namespace(record)],
        "revision": experiment.revision,
        "ranSeconds": round(experiment.running_s, 1),
        "events": [documents.event(event) for event in record.events],
        "waiting": _waiting(record),
        "parameters": [parameter_hint(parameter) for parameter in record.space.parameters],
        "actions": _actions(record),
        "loaded": loaded,
    }


def _foreseen(record: ExperimentRecord) -> list[str]:
    forecast = record.forecast(datetime.now(UTC))
    return [f"in all {each}" for each in spending.foreseen(record.experiment.spec, forecast)]


def _of_namespace(record: ExperimentRecord) -> list[str]:
    budget = record.tenant_budget
    return [f"TenantBudget of {record.experiment.namespace}: {budget}"] if budget else []


def search_of(spec: ExperimentSpec | StudySpec) -> Json:
    """Return the summary line of every search: objective, algorithm and pruning."""
    return {
        "metric": spec.objective.metric,
        "direction": spec.objective.direction.value,
        "algorithm": spec.algorithm.name,
        "pruning": spec.pruning.name if spec.pruning else "",
    }


def _waiting(record: ExperimentRecord) -> list[tuple[int, str]]:
    """Return some of the queued trials with their reasons, oldest first."""
    expected = min(record.counts.get(TrialState.QUEUED, 0), MOST_WAITING)
    waiting: list[tuple[int, str]] = []
    for entry in reversed(record.trials):  # the newest trials wait
        if len(waiting) == expected:
            break
        if entry.state is TrialState.QUEUED:
            waiting.append((entry.trial.number, record.reason_of(entry)))
    return waiting[::-1]


def _actions(record: ExperimentRecord) -> dict[str, bool]:
    """Return what a person can do with an experiment, and whether it is possible now."""
    experiment, controlled = record.experiment, bool(record.controlled_by)
    grows = experiment.spec.budget.trials is not None and experiment.spec.rerun is None
    return {
        "stop": controlled or experiment.state in (ExperimentState.RUNNING, ExperimentState.PAUSED),
        "resume": not controlled and experiment.state is not ExperimentState.SUCCEEDED,
        **({"retry": not controlled} if record.counts.get(TrialState.FAILED) else {}),
        "extend": not controlled and grows,
        "set": not experiment.state.finished,
        "enqueue": not experiment.state.finished,
        "delete": not controlled,
    }


def parameter_hint(parameter: Parameter) -> Json:
    match parameter.domain:
        case Choice(values):
            return {"title": parameter.name, "hint": ", ".join(map(str, values))}
        case domain:
            return {"title": parameter.name, "hint": f"{domain.min:g} to {domain.max:g}"}


async def measurements_of_curves(
    studies: StudyReads, study: StudyName, record: TrialList, trials: Sequence[int]
) -> dict[int, list[Measurement]]:
    """Return the measurements of the given trials, or of those that the curves show."""
    numbers = trials or figures.trials_of_curves(record)
    if len(numbers) == len(record.trials) > 1:
        measured = await studies.list_measurements(study)
    else:
        measured = []
        for number in numbers:
            measured += await studies.list_measurements(study, number)
    return by_trial(measured)
