"""The studies of a store that this process reads itself: no server, no client, no messages.

Reads block, for a page of entries at a time. Between two pages other tasks of the loop run, as
those of `tuner ui`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from itertools import chain
from typing import TypeVar

from suggest.estimate import Estimate
from suggest.replies import StudySummary
from suggest.storage.opening import open_store
from suggest.studies.reading import StudyReader
from suggest.study import Direction, Study, StudyName
from suggest.trial import NO_LABELS, Measurement, Trial, TrialState

PAGE = 1000
Item = TypeVar("Item")
Measured = tuple[int, int, Measurement]  # position, trial, measurement


class StoredStudies:
    """`StudyReads` of a store. Methods raise NotFound, Unavailable and StoreBroken."""

    def __init__(self, studies: StudyReader) -> None:
        self._studies = studies

    async def get_study(self, name: StudyName) -> Study:
        return self._studies.study(name)

    async def list_studies(
        self, namespace: str = "-", *, labels: Mapping[str, str] = NO_LABELS
    ) -> list[Study]:
        whose = None if namespace == "-" else namespace
        return await _all(
            lambda last: self._studies.list_studies(
                whose, labels=labels, after=None if last is None else last.name, limit=PAGE
            )
        )

    async def study_summaries(self, namespace: str = "-") -> list[tuple[Study, StudySummary]]:
        studies = await self.list_studies(namespace)
        return list(zip(studies, self._studies.summaries(studies), strict=True))

    async def summaries_of_clients(
        self, clients: Mapping[StudyName, str], directions: Mapping[StudyName, Direction]
    ) -> dict[StudyName, StudySummary]:
        """Return what one client of each study has done: see `StudyReader`."""
        # In a thread, because a statement reads a row for each trial of many studies.
        return await asyncio.to_thread(self._studies.summaries_of_clients, clients, directions)

    async def get_trial(self, name: StudyName, number: int) -> Trial:
        return self._studies.trial(name, number)

    async def list_trials(
        self,
        name: StudyName,
        *,
        client_id: str = "",
        states: Iterable[TrialState] = (),
        first_number: int = 0,
    ) -> list[Trial]:
        wanted = tuple(states)

        def page(last: Trial | None) -> list[Trial]:
            after = first_number - 1 if last is None else last.number
            return self._studies.list_trials(
                name, states=wanted, client_id=client_id, after=after, limit=PAGE
            )

        return await _all(page)

    async def trials_page(
        self, name: StudyName, token: str, *, page_size: int
    ) -> tuple[list[Trial], str]:
        trials = self._studies.list_trials(name, after=int(token or -1), limit=page_size)
        return trials, _token(trials, page_size, lambda trial: trial.number)

    async def list_measurements(
        self, name: StudyName, number: int | None = None, *, latest: bool = False
    ) -> list[tuple[int, Measurement]]:
        def page(last: Measured | None) -> list[Measured]:
            return self._page(name, number, None if last is None else last[0], latest=latest)

        return [(trial, measurement) for _, trial, measurement in await _all(page)]

    async def latest_page(
        self, name: StudyName, token: str
    ) -> tuple[list[tuple[int, Measurement]], str]:
        measured = self._page(name, None, int(token) if token else None, latest=True)
        pairs = [(trial, measurement) for _, trial, measurement in measured]
        return pairs, _token(measured, PAGE, lambda entry: entry[0])

    def _page(
        self, name: StudyName, number: int | None, after: int | None, *, latest: bool
    ) -> list[Measured]:
        """Return a page of measurements after a position; None is the first page."""
        first = -1 if latest else 0
        return self._studies.list_measurements(
            name, number, latest=latest, after=first if after is None else after, limit=PAGE
        )

    async def optimal_trials(self, name: StudyName) -> list[Trial]:
        return self._studies.optimal_trials(name)

    async def estimate(self, name: StudyName) -> Estimate:
        return self._studies.estimate(name)


@asynccontextmanager
async def stored_studies(storage_url: str) -> AsyncIterator[StoredStudies]:
    """Open the store while the block runs. Raises InvalidArgument, Unavailable, StoreBroken."""
    with closing(open_store(storage_url)) as store:
        yield StoredStudies(StudyReader(store))


async def _all(read_page: Callable[[Item | None], list[Item]]) -> list[Item]:
    """Return the entries of all pages. read_page: the page after an entry; None: the first one."""
    pages: list[Sequence[Item]] = []
    last: Item | None = None
    while True:
        page = read_page(last)
        pages.append(page)
        if len(page) < PAGE:
            return list(chain.from_iterable(pages))
        last = page[-1]
        await asyncio.sleep(0)


def _token(page: Sequence[Item], size: int, position: Callable[[Item], int]) -> str:
    """Return the token of the page after a page, "" if it is the last one."""
    return str(position(page[-1])) if len(page) == size else ""
