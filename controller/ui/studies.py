"""The studies of a server, as the page of `tuner serve --ui` shows them
to one client of the service.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

from controller.app.enqueue import enqueue_in_study
from controller.app.following import StudyFollower
from controller.core.budget import spent_trials
from controller.report import documents
from controller.report.record import StudyTrials, TrialRecord
from controller.ui.board import READS_AT_ONCE, measurements_of_curves, parameter_hint, search_of
from controller.ui.live_table import Encoded, Event, Json
from controller.ui.shared_reader import Mark, SharedReader, when_changed
from controller.ui.visitor import VisitorLimits
from suggest.client import AsyncClient, StudyName, StudySummary
from suggest.errors import TunerError
from suggest.study import Study
from suggest.trial import Trial

LIST_S = 0.5
RUN, MANAGE = "run", "manage"  # verbs of tokens


class StudyBoard:
    """`application.PageContent` for studies.

    Args:
        mark: Returns a value that changes when the store may have changed.
        verbs: Returns the names of the verbs that the client's token permits now.
        visitor: What refusals call a person who sees the client's pages.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        source: str,
        mark: Callable[[], Mark],
        verbs: Callable[[], frozenset[str]],
        visitor: str,
    ) -> None:
        self._client = client
        self._source = source
        self._mark = mark
        self._verbs = verbs
        self._readers: dict[StudyName, SharedReader[StudyTrials]] = {}
        self._slots = asyncio.Semaphore(READS_AT_ONCE)
        self._listing = asyncio.Lock()
        self._listed = Encoded("")
        self._listed_mark: Mark = ()
        self._listed_s = -LIST_S  # when it began to be read
        self.limits = VisitorLimits(visitor)

    async def close(self) -> None:
        for reader in self._readers.values():
            await reader.close()
        await self._client.close()

    def follow_list(self) -> AsyncIterator[Event]:
        return when_changed("list", self._list, every_s=LIST_S)

    async def _list(self) -> Encoded:
        """Return the list, which is read once for all pages, and at most once in LIST_S."""
        async with self._listing:
            now, mark = time.monotonic(), self._mark()
            if mark != self._listed_mark and now - self._listed_s >= LIST_S:
                self._listed = Encoded.of(await self._read_list())
                self._listed_mark, self._listed_s = mark, now
            return self._listed

    async def _read_list(self) -> Json:
        try:
            summaries = await self._client.study_summaries()
        except TunerError as error:
            return {"searches": [], "trouble": str(error), "source": self._source}
        summaries.sort(
            key=lambda pair: (pair[0].create_time is not None, pair[0].create_time), reverse=True
        )
        return {
            "searches": [self._document(study, summary) for study, summary in summaries],
            "trouble": "",
            "source": self._source,
        }

    async def follow(
        self, namespace: str, name: str, position: str = "", trials: frozenset[int] | None = None
    ) -> AsyncIterator[Event]:
        reader = self._reader(StudyName(namespace, name))
        async for event in reader.follow(position, trials):
            yield event
        self._readers.pop(StudyName(namespace, name), None)  # it is gone

    async def record(self, namespace: str, name: str) -> StudyTrials:
        return await self._reader(StudyName(namespace, name)).record()

    async def drawn(
        self, namespace: str, name: str, figure: str, trials: Sequence[int]
    ) -> StudyTrials:
        record = await self.record(namespace, name)
        if figure == "curves":
            measured = await measurements_of_curves(self._client, record.study.name, record, trials)
            record = replace(record, measurements=measured)
        if trials:
            found = [_find(record, number, await self._trial(record, number)) for number in trials]
            record = replace(record, trials=found)
        return record

    async def trial(self, namespace: str, name: str, number: int) -> Json:
        record = await self.record(namespace, name)
        entry = _find(record, number, await self._trial(record, number))
        measured = await self._client.list_measurements(record.study.name, number)
        return documents.trial(record, entry) | {
            "why": entry.trial.reason,
            "measurements": [documents.measurement(sample) for _, sample in measured],
            "actions": {"labels": RUN in self._verbs()},
        }

    async def label(
        self, namespace: str, name: str, number: int, labels: Mapping[str, str]
    ) -> None:
        study = StudyName(namespace, name)
        await self._client.update_trial(study, number, labels=labels)
        self._reader(study).read_again(number)

    async def enqueue(self, namespace: str, name: str, texts: Mapping[str, str]) -> int:
        study = await self._client.get_study(StudyName(namespace, name))
        return (
            await enqueue_in_study(self._client, study.name, study.spec.space.parameters, texts)
        ).number

    async def delete(self, namespace: str, name: str) -> None:
        await self._client.delete_study(StudyName(namespace, name))

    async def _trial(self, record: StudyTrials, number: int) -> Trial:
        return await self._client.get_trial(record.study.name, number)

    def _reader(self, name: StudyName) -> SharedReader[StudyTrials]:
        async def connect() -> StudyFollower:
            return StudyFollower(self._client, await self._client.get_study(name))

        reader = self._readers.get(name)
        if reader is None or reader.gone:
            reader = self._readers[name] = SharedReader(
                mark=self._mark, connect=connect, summarize=self._summary, slots=self._slots
            )
        return reader

    def _summary(self, record: StudyTrials, loaded: bool) -> Json:
        assert record.totals is not None, "followers keep it"
        best = next(iter(record.totals.best), None)
        return self._document(record.study, StudySummary(record.totals.counts, best)) | {
            "front": documents.front(record.front, record.criteria),
            "parameters": [parameter_hint(parameter) for parameter in record.space.parameters],
            "loaded": loaded,
        }

    def _document(self, study: Study, summary: StudySummary) -> Json:
        """Return a study as an experiment's summary, without what only experiments have."""
        spec, verbs = study.spec, self._verbs()
        document = documents.study(study, summary)
        return document | {
            "why": "",
            **search_of(spec),
            "budget": {"trials": None},
            "done": spent_trials(summary.trials),
            "revision": 1,
            "actions": {"enqueue": RUN in verbs, "delete": MANAGE in verbs},
            "loaded": True,
        }


def _find(record: StudyTrials, number: int, trial: Trial) -> TrialRecord:
    return next(
        (entry for entry in record.trials if entry.trial.number == number),
        TrialRecord(trial, by_client=True),
    )
