"""Read a study or an experiment again and again: each time only what can
have changed since the last time.

A trial that has ended rarely changes, so a read costs what the unfinished trials cost, whatever the
history. Changes of ended trials (new labels, deletions) are found by sweeps: all trials are read
again, one page at a time.
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Generic, TypeAlias, TypeVar

from controller.app import query
from controller.app.local_experiments import LocalExperiments
from controller.app.workspace import StudyReads
from controller.background_tasks import cancelled
from controller.core.model import Attempt, Experiment
from controller.report.record import (
    ExperimentRecord,
    StudyTrials,
    Totals,
    TrialRecord,
    in_order,
    is_counted,
    note_latest,
)
from controller.search import lost, study_name
from suggest.errors import NotFound
from suggest.space import Value
from suggest.study import Criteria, Study, StudyName
from suggest.trial import OPEN, Measurement, Trial, TrialState

PAGE = 1000
ONE_BY_ONE = 50  # more trials than these are read as a list
LATEST_EVENTS = 30  # in a record
SWEEP_S = 20.0  # between two sweeps
SWEEP_SPARE = 10  # a page is read after this many times the duration of the last one
Item = TypeVar("Item")
Record = TypeVar("Record", StudyTrials, ExperimentRecord)
Changed: TypeAlias = Mapping[int, TrialRecord | None]  # by number; None: the trial was deleted


class _Records:
    """The records of the trials, and what follows from all of them.

    The cost of a change depends on the changed records only.
    """

    def __init__(self, criteria: Criteria) -> None:
        self._criteria = criteria
        self._counts: Counter[TrialState] = Counter()
        self._best: list[Trial] = []
        self._candidates: list[Trial] = []
        self._best_changed = False
        self.by_number: dict[int, TrialRecord] = {}
        self.metrics: dict[int, dict[str, float]] = {}

    def put(self, number: int, new: TrialRecord | None, last: Mapping[str, Measurement]) -> None:
        """Replace a trial's record, with its last measurements; None if it was deleted."""
        objective = self._criteria.objectives[0].metric
        if metrics := {
            name: measurement.value for name, measurement in last.items() if name != objective
        }:
            self.metrics[number] = metrics
        old = self.by_number.pop(number, None) if new is None else self.by_number.get(number)
        if new == old:
            return
        if new is not None:
            self.by_number[number] = new
        for record, by in ((old, -1), (new, 1)):
            if record is not None and is_counted(record):
                self._counts[record.state] += by
        if any(number == trial.number for trial in self._best):
            self._best_changed = True
        if new is not None and new.trial.state is TrialState.SUCCEEDED:
            self._candidates.append(new.trial)

    def totals(self) -> Totals:
        if self._best_changed:
            self._best = self._criteria.best(record.trial for record in self.by_number.values())
        elif self._candidates:
            self._best = self._criteria.best([*self._best, *self._candidates])
        self._candidates, self._best_changed = [], False
        counts = {state: n for state in TrialState if (n := self._counts[state])}
        return Totals(counts, in_order(self._best, self._criteria))


class _Pages(Generic[Item]):
    """A list that is read in pages.

    The next page is read while its reader is busy with the last one.
    """

    def __init__(self, read: Callable[[str], Awaitable[tuple[list[Item], str]]]) -> None:
        self._read = read
        self._next: asyncio.Future[tuple[list[Item], str]] | None = asyncio.ensure_future(read(""))

    @property
    def more(self) -> bool:
        return self._next is not None

    async def next(self) -> list[Item]:
        assert self._next is not None, "the last page was read"
        page, token = await self._next
        self._next = asyncio.ensure_future(self._read(token)) if token else None
        return page

    async def close(self) -> None:
        await cancelled(self._next)


class _Trials:
    """A study's trials, with each metric's last measurement in their newest attempts."""

    def __init__(
        self, studies: StudyReads, name: StudyName, is_wanted: Callable[[Trial], bool]
    ) -> None:
        self._studies = studies
        self._name = name
        self._wanted = is_wanted
        self._next = 0  # no larger number is known
        self._again: set[int] = set()  # ended trials to read again
        self._swept_to: str | None = None  # the token of the next page of a sweep
        self._unswept: set[int] = set()
        self.known: dict[int, Trial] = {}
        self.last: dict[int, dict[str, Measurement]] = {}
        self.unfinished: set[int] = set()  # also those that are not wanted yet

    async def read_all(self) -> AsyncIterator[set[int]]:
        """Yield the numbers of the trials that have changed, after each page."""
        began = time.monotonic()
        trials = _Pages(lambda token: self._studies.trials_page(self._name, token, page_size=PAGE))
        measurements = _Pages(lambda token: self._studies.latest_page(self._name, token))
        measured_to = -1
        try:
            while trials.more:
                page = await trials.next()
                numbers = self._keep(page)
                while measurements.more and (not trials.more or measured_to < page[-1].number):
                    measured = await measurements.next()
                    note_latest(self.last, measured)
                    measured_to = measured[-1][0] if measured else measured_to
                    numbers |= {number for number, _ in measured}
                yield numbers
        finally:
            await trials.close()
            await measurements.close()
        self._again |= self._ended_within(time.monotonic() - began)

    def _ended_within(self, seconds: float) -> set[int]:
        """Return the trials that may have ended in the last seconds.

        Their measurements may have been read before that. The server's clock may differ from this
        one, so the seconds are those before the newest end.
        """
        ends = {n: each.end_time for n, each in self.known.items() if each.end_time is not None}
        since = max(ends.values()) - timedelta(seconds=seconds) if ends else None
        return {number for number, end in ends.items() if since is not None and end >= since}

    def read_again(self, number: int) -> None:
        """Let the next read of changes include a trial that has ended."""
        self._again.add(number)

    @property
    def sweeping(self) -> bool:
        return self._swept_to is not None

    async def sweep(self) -> set[int]:
        """Read the next page of a sweep, and return the numbers of its trials.

        At the end of the sweep, the numbers of deleted trials are returned, too.
        """
        if self._swept_to is None:
            self._swept_to, self._unswept = "", set(self.known)
        page, token = await self._studies.trials_page(self._name, self._swept_to, page_size=PAGE)
        numbers = self._keep(page)
        self._unswept -= numbers
        self._swept_to = token or None
        if not token:
            for number in self._unswept:
                self._forget(number)
            numbers |= self._unswept
        return numbers

    async def read_changes(self) -> set[int]:
        """Read unfinished and new trials, and return the numbers that may have changed."""
        page = await self._studies.list_trials(self._name, states=OPEN)
        listed = {trial.number for trial in page}
        found = await self._studies.list_trials(self._name, first_number=self._next)
        page += [trial for trial in found if trial.number not in listed]
        ended = (self.unfinished | self._again) - {trial.number for trial in page}
        self._again.clear()
        if len(ended) > ONE_BY_ONE:
            since = await self._studies.list_trials(self._name, first_number=min(ended))
            page += [trial for trial in since if trial.number in ended]
        else:
            for number in ended:
                with suppress(NotFound):
                    page.append(await self._studies.get_trial(self._name, number))
        for number in ended - {trial.number for trial in page}:
            self._forget(number)
        numbers = self._keep(page)
        await self._measure([n for n in numbers if self.known[n].state is not TrialState.QUEUED])
        return numbers | ended

    async def _measure(self, numbers: Sequence[int]) -> None:
        if len(numbers) > ONE_BY_ONE:
            note_latest(self.last, await self._studies.list_measurements(self._name, latest=True))
            return
        for number in numbers:
            note_latest(
                self.last, await self._studies.list_measurements(self._name, number, latest=True)
            )

    def _keep(self, page: Sequence[Trial]) -> set[int]:
        if page:
            self._next = max(self._next, *(trial.number + 1 for trial in page))
        for trial in page:
            (self.unfinished.discard if trial.finished else self.unfinished.add)(trial.number)
        kept_trials = [trial for trial in page if self._wanted(trial)]
        self.known.update((trial.number, trial) for trial in kept_trials)
        return {trial.number for trial in kept_trials}

    def _forget(self, number: int) -> None:
        self.known.pop(number, None)
        self.last.pop(number, None)
        self.unfinished.discard(number)


class _SweepTimer:
    """When the next page of a sweep is read.

    Sweeps take a small share of the time, and end when nothing changes.
    """

    def __init__(self) -> None:
        self._next = math.inf
        self._changed = False

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next

    def changed(self) -> None:
        """Something may have changed, so a sweep must begin after now."""
        self._changed = True
        if self._next == math.inf:
            self._next = time.monotonic() + SWEEP_S

    def swept(self, began: float, *, sweeping: bool) -> None:
        """A page was read; `sweeping` says that the sweep continues."""
        now = time.monotonic()
        self._next = now + SWEEP_SPARE * (now - began)
        if not sweeping:
            self._next = now + SWEEP_S if self._changed else math.inf
            self._changed = False


class Follower(ABC, Generic[Record]):
    """Reads a search again and again.

    `record` is as of the last read, and `loaded` once everything was read.
    """

    def __init__(
        self,
        studies: StudyReads,
        name: StudyName,
        record: Record,
        is_wanted: Callable[[Trial], bool],
    ) -> None:
        self._studies = studies
        self._trials = _Trials(studies, name, is_wanted)
        self._records = _Records(record.criteria)
        self._sweeps = _SweepTimer()
        self.loaded = False
        self.record: Record = record

    @property
    def due(self) -> bool:
        """Return whether something should be read although nothing seems to have changed."""
        return self._sweeps.due

    @abstractmethod
    def read(self, *, changed: bool = True) -> AsyncIterator[Changed]:
        """Yield the trials that may have changed, in one part or several. Raises NotFound.

        `changed` says whether the store may have changed since the last read;
        without it, only a sweep continues.
        """

    def read_again(self, number: int) -> None:
        """Let the next read include a trial that has ended, because this process has changed it."""
        self._trials.read_again(number)

    @abstractmethod
    def _record_of(self, trial: Trial) -> TrialRecord: ...

    def _take(self, numbers: set[int]) -> Changed:
        objective = self.record.criteria.objectives[0].metric
        for number in numbers:
            trial, last = self._trials.known.get(number), self._trials.last.get(number, {})
            new = None if trial is None else self._record_of(trial).so_far(last.get(objective))
            self._records.put(number, new, last)
        trials = list(self._records.by_number.values())
        metrics, totals = self._records.metrics, self._records.totals()
        self.record = replace(self.record, trials=trials, metrics=metrics, totals=totals)
        return {number: self._records.by_number.get(number) for number in numbers}

    async def _sweep(self) -> Changed:
        began = time.monotonic()
        numbers = await self._trials.sweep()
        self._sweeps.swept(began, sweeping=self._trials.sweeping)
        return self._take(numbers)


class StudyFollower(Follower[StudyTrials]):
    """Follows a study without an experiment."""

    def __init__(self, studies: StudyReads, study: Study) -> None:
        super().__init__(
            studies, study.name, StudyTrials(study, totals=Totals({}, ())), lambda trial: True
        )

    async def read(self, *, changed: bool = True) -> AsyncIterator[Changed]:
        self.record = replace(
            self.record, study=await self._studies.get_study(self.record.study.name)
        )
        if not self.loaded:
            async for numbers in self._trials.read_all():
                yield self._take(numbers)
            self.loaded = True
            return
        if changed:
            self._sweeps.changed()
            yield self._take(await self._trials.read_changes())
        if self._sweeps.due:
            yield await self._sweep()

    def _record_of(self, trial: Trial) -> TrialRecord:
        return TrialRecord(trial, by_client=True)


class ExperimentFollower(Follower[ExperimentRecord]):
    """Follows an experiment with its trials, attempts and latest events."""

    def __init__(
        self, experiments: LocalExperiments, experiment: Experiment, studies: StudyReads
    ) -> None:
        record = ExperimentRecord(experiment, totals=Totals({}, ()))
        super().__init__(
            studies, study_name(experiment), record, lambda trial: query.belongs(trial, experiment)
        )
        self._experiments = experiments
        self._attempts: dict[int, list[Attempt]] = {}
        # trials that are unfinished, or whose newest attempt may change
        self._changing: set[int] = set()

    async def read(self, *, changed: bool = True) -> AsyncIterator[Changed]:
        before = self.record.experiment
        # The holder is read first, because a controller stores the end
        # before it releases its lease.
        holder = self._experiments.holder(before.uid)
        experiment = self._experiments.experiment(before.namespace, before.name)
        if experiment is None or experiment.uid != before.uid:
            raise NotFound(f"there is no experiment {before.name} in {before.namespace} any more")
        settings: Mapping[str, Value] = {}
        with suppress(NotFound):  # of the study, as below
            experiment, settings = await query.as_searched(
                experiment, self._studies, with_settings=not self.loaded
            )
        self.record = replace(
            self.record,
            experiment=experiment,
            settings=settings or self.record.settings,
            controlled_by="" if holder is None else str(holder),
            trouble=self._experiments.trouble(experiment.uid).read(controlled=holder is not None),
            tenant_budget=self._experiments.tenant_budget(experiment.namespace),
            events=self._experiments.latest_events(experiment.uid, LATEST_EVENTS),
            final=query.final_record(self._experiments, experiment),
        )
        try:
            if self.loaded:
                if changed:
                    self._sweeps.changed()
                    yield await self._read_changes(experiment)
                if self._sweeps.due:
                    yield await self._sweep()
                return
            async for numbers in self._trials.read_all():
                if numbers:
                    self._group(
                        self._experiments.attempts_between(
                            experiment.uid, min(numbers), max(numbers)
                        )
                    )
                yield self._take(numbers)
        except NotFound as error:
            if self._experiments.attempts(experiment.uid):
                raise lost(study_name(experiment), experiment.name) from error
            # The study is not created yet, or the controller was killed before it did so.
            yield self._take(set())
        self.loaded = True

    async def _read_changes(self, experiment: Experiment) -> Changed:
        # Attempts are read before trials, because an attempt ends before its trial.
        requested = self._changing | self._trials.unfinished
        changed = self._group(self._experiments.attempts_that_change(experiment.uid, requested))
        numbers = await self._trials.read_changes()
        if new := numbers - requested:
            self._group(self._experiments.attempts_that_change(experiment.uid, new))
        return self._take(changed | requested | numbers)

    def _group(self, attempts: Iterable[Attempt]) -> set[int]:
        """Replace the known attempts by those given, and return the numbers of their trials."""
        by_trial: dict[int, dict[int, Attempt]] = {}
        for attempt in attempts:
            if isinstance(attempt.trial, int):  # not of the final stage
                by_trial.setdefault(attempt.trial, {})[attempt.number] = attempt
        for number, new in by_trial.items():
            by_number = {attempt.number: attempt for attempt in self._attempts.get(number, ())}
            self._attempts[number] = [attempt for _, attempt in sorted((by_number | new).items())]
        return set(by_trial)

    def _take(self, numbers: set[int]) -> Changed:
        self._changing -= numbers
        return super()._take(numbers)

    def _record_of(self, trial: Trial) -> TrialRecord:
        record = TrialRecord(trial, self._attempts.get(trial.number, ()))
        if record.newest is not None and (not record.newest.ended or record.newest.set_aside):
            self._changing.add(trial.number)
        return record
