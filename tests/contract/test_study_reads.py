"""The contract of `StudyReads`, over three topologies: an object over a store,
the service's own process, and TCP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from controller.app.stored_studies import PAGE, stored_studies
from controller.app.workspace import StudyReads
from suggest.client import AsyncClient
from suggest.errors import FailedPrecondition, NotFound
from suggest.imports import FinishedTrial
from suggest.server import Protection, Server
from suggest.storage.opening import open_store
from suggest.studies import StudyService
from suggest.study import Study, StudyName
from suggest.trial import Measurement, Outcome, Trial, TrialState
from tests.service.running import NAME, SPEC, score

LONG = StudyName("default", "long")
ELSEWHERE = StudyName("vision", "empty")
MORE = PAGE + 5
T = TypeVar("T")


@pytest.fixture(scope="module")
def storage_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store with three studies; one of them has more than a page
    of trials and of measurements.
    """
    url = f"sqlite:///{tmp_path_factory.mktemp('reads')}/studies.db"
    with closing(open_store(url)) as store, closing(StudyService(store, address="")) as studies:
        for name in (NAME, LONG, ELSEWHERE):
            studies.create_study(name, SPEC, request_id="create", labels={"team": name.namespace})
        studies.suggest(NAME, 4, client_id="me", request_id="first", labels={"team": "vision"})
        studies.report(NAME, 0, [score(0, 0.25), Measurement(1, "loss", 0, 2.0), score(3, 0.5)])
        studies.report(NAME, 1, [score(0, float("-inf"))])
        studies.complete(NAME, 0, Outcome(TrialState.SUCCEEDED), measurements=[score(4, 0.75)])
        studies.complete(
            NAME, 1, Outcome(TrialState.FAILED, reason="out of memory", failure_class="outOfMemory")
        )
        studies.add_trial(NAME, {"x": 1.5}, request_id="added")
        point = FinishedTrial(
            {"x": 1.0, "kind": "a"}, Outcome(TrialState.SUCCEEDED, 0.5), (score(1, 0.5),)
        )
        for first in range(0, MORE, 1000):
            some = [replace(point, source_id=str(k)) for k in range(first, min(MORE, first + 1000))]
            studies.import_trials(LONG, some, source="a test", request_id="import")
    return url


class StudyReadsContract:
    """Each topology is a subclass, which opens the studies of a store."""

    def opened(self, storage_url: str) -> AbstractAsyncContextManager[StudyReads]:
        raise NotImplementedError

    @pytest.fixture
    def read(self, storage_url: str) -> Callable[[Callable[[StudyReads], Awaitable[T]]], T]:
        def read(ask: Callable[[StudyReads], Awaitable[T]]) -> T:
            async def run() -> T:
                async with self.opened(storage_url) as studies:
                    return await ask(studies)

            return asyncio.run(run())

        return read

    def test_a_study_is_as_it_was_created(self, read: Callable[..., Study]) -> None:
        study = read(lambda studies: studies.get_study(NAME))
        assert (study.name, study.spec, study.labels) == (NAME, SPEC, {"team": "default"})

    def test_an_unknown_study_is_not_found(self, read: Callable[..., None]) -> None:
        unknown = StudyName("default", "nosuch")
        for ask in (
            lambda studies: studies.get_study(unknown),
            lambda studies: studies.list_trials(unknown),
            lambda studies: studies.list_measurements(unknown, latest=True),
            lambda studies: studies.optimal_trials(unknown),
            lambda studies: studies.estimate(unknown),
        ):
            with pytest.raises(NotFound, match=f"^{unknown} does not exist$"):
                read(ask)

    def test_an_unknown_trial_is_not_found(self, read: Callable[..., None]) -> None:
        for ask in (
            lambda studies: studies.get_trial(NAME, 7),
            lambda studies: studies.list_measurements(NAME, 7),
        ):
            with pytest.raises(NotFound, match=f"^{NAME} has no trial 7$"):
                read(ask)

    @pytest.mark.parametrize(
        ("namespace", "names"), [("-", [LONG, NAME, ELSEWHERE]), ("vision", [ELSEWHERE])]
    )
    def test_studies_are_listed_by_namespace(
        self, read: Callable[..., list[Study]], namespace: str, names: list[StudyName]
    ) -> None:
        assert [
            study.name for study in read(lambda studies: studies.list_studies(namespace))
        ] == names

    def test_a_summary_counts_the_trials_and_has_the_best(
        self, read: Callable[..., object]
    ) -> None:
        async def summary(studies: StudyReads) -> tuple[dict[TrialState, int], float | None]:
            found = {study.name: summary for study, summary in await studies.study_summaries()}[
                NAME
            ]
            assert found is not None
            assert found.best is not None
            return dict(found.trials), found.best.value

        counts = {
            TrialState.SUCCEEDED: 1,
            TrialState.FAILED: 1,
            TrialState.RUNNING: 2,
            TrialState.QUEUED: 1,
        }
        assert read(summary) == (counts, 0.75)

    def test_a_trial_has_its_outcome(self, read: Callable[..., Trial]) -> None:
        trial = read(lambda studies: studies.get_trial(NAME, 1))
        outcome = (trial.state, trial.reason, trial.failure_class, trial.value)
        assert outcome == (TrialState.FAILED, "out of memory", "outOfMemory", None)
        assert (trial.client_id, trial.labels) == ("me", {"team": "vision"})
        assert trial.create_time is not None
        assert trial.end_time is not None
        assert trial.create_time < trial.end_time

    def test_trials_are_listed_by_state_client_and_number(
        self, read: Callable[..., list[list[int]]]
    ) -> None:
        async def numbers(studies: StudyReads) -> list[list[int]]:
            lists = (
                await studies.list_trials(NAME),
                await studies.list_trials(NAME, client_id="me"),
                await studies.list_trials(NAME, states=[TrialState.FAILED, TrialState.QUEUED]),
                await studies.list_trials(NAME, first_number=3),
            )
            return [[trial.number for trial in trials] for trials in lists]

        assert read(numbers) == [[0, 1, 2, 3, 4], [0, 1, 2, 3], [1, 4], [3, 4]]

    def test_a_list_has_the_trials_of_all_pages(self, read: Callable[..., list[Trial]]) -> None:
        trials = read(lambda studies: studies.list_trials(LONG))
        assert [trial.number for trial in trials] == list(range(MORE))

    def test_pages_continue_where_the_last_one_ended(
        self, read: Callable[..., list[list[int]]]
    ) -> None:
        async def pages(studies: StudyReads) -> list[list[int]]:
            found: list[list[int]] = []
            token = ""
            while token or not found:
                page, token = await studies.trials_page(NAME, token, page_size=2)
                found.append([trial.number for trial in page])
            return found

        assert read(pages) == [[0, 1], [2, 3], [4]]

    def test_measurements_are_listed_in_the_order_of_the_reports(
        self, read: Callable[..., object]
    ) -> None:
        of_trial_0 = [score(0, 0.25), Measurement(1, "loss", 0, 2.0), score(3, 0.5), score(4, 0.75)]
        of_trial_1 = [score(0, float("-inf"))]
        assert read(lambda studies: studies.list_measurements(NAME, 0)) == [
            (0, sample) for sample in of_trial_0
        ]
        assert read(lambda studies: studies.list_measurements(NAME)) == [
            *((0, sample) for sample in of_trial_0[:3]),
            (1, of_trial_1[0]),
            (0, of_trial_0[3]),
        ]

    def test_a_list_has_the_measurements_of_all_pages(
        self, read: Callable[..., list[tuple[int, Measurement]]]
    ) -> None:
        for latest in (False, True):
            measured = read(
                lambda studies, latest=latest: studies.list_measurements(LONG, latest=latest)
            )
            assert [number for number, _ in measured] == list(range(MORE))

    def test_the_latest_measurements_are_the_last_ones_of_each_metric(
        self, read: Callable[..., object]
    ) -> None:
        latest = [
            (0, Measurement(1, "loss", 0, 2.0)),
            (0, score(4, 0.75)),
            (1, score(0, float("-inf"))),
        ]
        assert read(lambda studies: studies.list_measurements(NAME, latest=True)) == latest
        assert read(lambda studies: studies.list_measurements(NAME, 1, latest=True)) == latest[2:]
        assert read(lambda studies: studies.latest_page(NAME, "")) == (latest, "")

    def test_pages_of_the_latest_measurements_continue(
        self, read: Callable[..., list[int]]
    ) -> None:
        async def numbers(studies: StudyReads) -> list[int]:
            first, token = await studies.latest_page(LONG, "")
            second, end = await studies.latest_page(LONG, token)
            assert end == ""
            return [number for number, _ in (*first, *second)]

        assert read(numbers) == list(range(MORE))

    def test_the_best_trial_is_the_optimal_one(self, read: Callable[..., list[Trial]]) -> None:
        best = read(lambda studies: studies.optimal_trials(NAME))
        assert [(trial.number, trial.value) for trial in best] == [(0, 0.75)]
        assert read(lambda studies: studies.optimal_trials(ELSEWHERE)) == []

    def test_an_estimate_needs_ten_values(self, read: Callable[..., object]) -> None:
        with pytest.raises(
            FailedPrecondition, match="has 1 values, and an estimate needs at least 10"
        ):
            read(lambda studies: studies.estimate(NAME))


class TestStoredStudies(StudyReadsContract):
    def opened(self, storage_url: str) -> AbstractAsyncContextManager[StudyReads]:
        return stored_studies(storage_url)


class TestClientInTheProcess(StudyReadsContract):
    @asynccontextmanager
    async def opened(self, storage_url: str) -> AsyncIterator[StudyReads]:
        folder = Path(storage_url.removeprefix("sqlite:///")).parent
        async with _started(Server(storage_url, f"unix:{folder}/s.sock")) as server:
            yield AsyncClient(server.address, inside=server.inside())


class TestClientOverTcp(StudyReadsContract):
    @asynccontextmanager
    async def opened(self, storage_url: str) -> AsyncIterator[StudyReads]:
        started = _started(Server(storage_url, "localhost:0", protection=Protection(insecure=True)))
        async with started as server, AsyncClient(server.address) as client:
            yield client


@asynccontextmanager
async def _started(server: Server) -> AsyncIterator[Server]:
    await server.start()
    try:
        yield server
    finally:
        await server.stop(1)
