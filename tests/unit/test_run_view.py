"""A failing view does not stop the run."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from controller.app.run import draw
from controller.core.progress import Progress
from controller.report.lines import View


class Broken(View):
    draws = True

    def __init__(self) -> None:
        self.drawn = 0

    def refresh(self, progress: Progress) -> None:
        self.drawn += 1
        raise ValueError("no such color")


def test_a_failing_view_is_reported_once_and_does_not_end_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    view = Broken()
    asyncio.run(draw(view, lambda: cast(Progress, None)))
    assert view.drawn == 1
    [told] = caplog.records
    assert told.message == "progress can no longer be displayed; the run continues"
    assert "no such color" in caplog.text


def test_nothing_is_counted_for_a_view_that_shows_nothing() -> None:
    def counted() -> Progress:
        raise AssertionError("nobody asked")

    asyncio.run(asyncio.wait_for(draw(View(), counted), 10))
