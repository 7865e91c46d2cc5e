"""What the pages of one visitor may use at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message

from controller.app.state_directory import StateDirectory
from controller.app.workspace import Workspace
from controller.report.record import StudyTrials
from controller.ui import studies
from controller.ui.application import application
from controller.ui.board import Board
from controller.ui.studies import StudyBoard
from controller.ui.vega import VegaBundle
from controller.ui.visitor import MOST_FIGURES, MOST_STREAMS, VisitorLimits
from suggest.client import AsyncClient, StudySummary
from suggest.errors import RateLimited
from suggest.space import Float, Parameter, Space
from suggest.study import Algorithm, Criteria, Direction, Objective, Study, StudyName, StudySpec
from tests.contract.local_testbed import eventually

SPEC = StudySpec(
    Space((Parameter("x", Float(0.0, 1.0)),)),
    (Objective("score", Direction.MAXIMIZE),),
    Algorithm("random"),
)
PATIENCE_S = 30.0


def test_a_stream_beyond_the_limit_is_refused_until_another_has_ended() -> None:
    limits = VisitorLimits("this token")
    with ExitStack() as streams:
        for _ in range(MOST_STREAMS):
            streams.enter_context(limits.streaming())
        with (
            pytest.raises(RateLimited, match=f"this token has {MOST_STREAMS} streams open"),
            limits.streaming(),
        ):
            pass
    with limits.streaming():
        pass


def test_the_page_of_experiments_is_named_by_its_link(tmp_path: Path) -> None:
    limits = Board(Workspace(StateDirectory(tmp_path))).limits
    with ExitStack() as streams:
        for _ in range(MOST_STREAMS):
            streams.enter_context(limits.streaming())
        with (
            pytest.raises(RateLimited, match=f"^this link has {MOST_STREAMS} streams open"),
            limits.streaming(),
        ):
            pass


@dataclass(frozen=True, slots=True)
class Drawn(StudyTrials):
    """A record that remembers which studies are drawn, and is drawn when the test lets it."""

    entered: list[str] = field(default_factory=list)
    drawable: threading.Event = field(default_factory=threading.Event)

    @property
    def criteria(self) -> Criteria:
        self.entered.append(self.name)
        assert self.drawable.wait(PATIENCE_S)
        return self.study.spec.criteria


class SlowBoard(StudyBoard):
    """Reads the study `slow` when the test lets it."""

    def __init__(self) -> None:
        client = AsyncClient("localhost:1")
        super().__init__(client, source="", mark=tuple, verbs=frozenset, visitor="this token")
        self.readable = asyncio.Event()
        self.drawable = threading.Event()
        self.requested: list[str] = []
        self.entered: list[str] = []

    async def record(self, namespace: str, name: str) -> StudyTrials:
        self.requested.append(name)
        if name == "slow":
            await self.readable.wait()
        study = Study(StudyName(namespace, name), "uid", SPEC, seed=1)
        return Drawn(study, entered=self.entered, drawable=self.drawable)


def everybody(app: ASGIApp) -> ASGIApp:
    return app


class Figures:
    """The figures of a page to which everybody has access."""

    def __init__(self) -> None:
        self.board = SlowBoard()
        self.app: Starlette = application(
            lambda request: self.board,
            Middleware(everybody),
            kind="studies",
            closing=asyncio.Event(),
            vega=VegaBundle(),
        )
        self._browser = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://localhost"
        )

    async def status(self, study: str, figure: str = "history") -> int:
        answer = await asyncio.wait_for(self._browser.get(path_of(study, figure)), PATIENCE_S)
        return answer.status_code

    async def requested(self, study: str, figure: str = "history") -> asyncio.Task[int]:
        """Request a figure, and return when its record is being read."""
        count = len(self.board.requested)
        request = asyncio.create_task(self.status(study, figure))
        await eventually(lambda: len(self.board.requested) > count)
        return request


def path_of(study: str, figure: str) -> str:
    return f"/api/studies/default/{study}/figures/{figure}.json"


def run(see: Callable[[Figures], Awaitable[None]]) -> None:
    async def seen() -> None:
        figures = Figures()
        try:
            await see(figures)
        finally:
            figures.board.drawable.set()
            await figures.board.close()

    asyncio.run(seen())


def test_a_figure_does_not_wait_for_the_record_of_another_to_be_read() -> None:
    async def see(figures: Figures) -> None:
        figures.board.drawable.set()
        slow = await figures.requested("slow")
        assert await figures.status("small") == 200
        figures.board.readable.set()
        assert await slow == 200

    run(see)


def test_figures_are_drawn_one_at_a_time_beside_a_slow_one() -> None:
    async def see(figures: Figures) -> None:
        entered = figures.board.entered
        requests = [await figures.requested("first")]
        await eventually(lambda: entered == ["first"])
        requests += [
            await figures.requested("second"),
            await figures.requested("other", "importance"),
        ]
        await eventually(lambda: len(entered) == 2)
        assert entered == ["first", "other"]
        figures.board.drawable.set()
        assert await asyncio.gather(*requests) == [200, 200, 200]

    run(see)


def test_a_figure_beyond_the_limit_is_refused_until_others_were_sent() -> None:
    async def see(figures: Figures) -> None:
        figures.board.drawable.set()
        requests = [await figures.requested("slow") for _ in range(MOST_FIGURES)]
        assert await figures.status("small") == 429
        figures.board.readable.set()
        assert set(await asyncio.gather(*requests)) == {200}
        assert await figures.status("small") == 200

    run(see)


def test_a_figure_whose_reader_has_left_is_not_drawn() -> None:
    async def see(figures: Figures) -> None:
        figures.board.drawable.set()
        path = path_of("slow", "history")
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}

        async def left() -> Message:
            return {"type": "http.disconnect"}

        async def unsent(_: Message) -> None:
            pass

        figures.board.readable.set()
        await figures.app(scope, left, unsent)
        assert (figures.board.requested, figures.board.entered) == (["slow"], [])

    run(see)


class Listing(AsyncClient):
    """Counts how often the studies are listed."""

    def __init__(self) -> None:
        super().__init__("localhost:1")
        self.reads = 0

    async def study_summaries(self, namespace: str = "-") -> list[tuple[Study, StudySummary]]:
        self.reads += 1
        return []


@pytest.mark.parametrize(("interval_s", "reads"), [(3600.0, 1), (0.0, 3)])
def test_a_list_that_changes_all_the_time_is_read_for_all_pages_at_intervals(
    monkeypatch: pytest.MonkeyPatch, interval_s: float, reads: int
) -> None:
    monkeypatch.setattr(studies, "LIST_S", interval_s)

    async def pages() -> int:
        client, changes = Listing(), count()
        board = StudyBoard(
            client, source="", mark=lambda: (next(changes),), verbs=frozenset, visitor="me"
        )
        for _ in range(3):
            assert (await anext(board.follow_list()))[0] == "list"
        await board.close()
        return client.reads

    assert asyncio.run(pages()) == reads
