"""After a change, a thread prepares the next proposal, unless the server is busy."""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import closing

import pytest

from suggest.errors import Unavailable
from suggest.studies.prefetch import FAST_ONES, LATE_S, WORTH_S, Prefetcher, ProposalCost

WITHIN_S = 10


def prepared(prefetcher: Prefetcher[str], what: str, done: threading.Event) -> None:
    """Change the key until it is prepared, because a busy machine may skip a change."""
    deadline = time.monotonic() + WITHIN_S
    done.clear()
    while not done.is_set():
        assert time.monotonic() < deadline
        prefetcher.later(what)
        done.wait(0.05)


def test_a_proposal_is_prefetched_after_each_change() -> None:
    order, done = list[str](), threading.Event()

    def prepare(what: str) -> None:
        order.append(what)
        done.set()

    with closing(Prefetcher(prepare)) as prefetcher:
        for what in ("a", "b", "a"):
            prepared(prefetcher, what, done)
            assert order[-1] == what


def test_a_prefetch_that_waited_too_long_is_left_to_the_caller() -> None:
    done, busy, go_on = [], threading.Event(), threading.Event()

    def prepare(what: str) -> None:
        done.append(what)
        busy.set()
        go_on.wait(WITHIN_S)

    with closing(Prefetcher(prepare)) as prefetcher:
        prepared(prefetcher, "slow", busy)
        prefetcher.later("waits")
        time.sleep(2 * LATE_S)  # real time must pass: what waits expires by the clock
        go_on.set()
        prepared(prefetcher, "next", busy)
    assert "waits" not in done


@pytest.mark.parametrize(
    ("error", "is_bug"), [(ValueError("wrong"), True), (Unavailable("busy"), False)]
)
def test_a_failed_prefetch_is_logged_and_blocks_nothing(
    caplog: pytest.LogCaptureFixture, error: Exception, is_bug: bool
) -> None:
    caplog.set_level(logging.INFO)
    done = threading.Event()

    def prepare(what: str) -> None:
        if what == "broken":
            raise error
        done.set()

    with closing(Prefetcher(prepare)) as prefetcher:
        while "what=broken could not be prepared" not in caplog.text:
            prepared(prefetcher, "whole", done)
            prefetcher.later("broken")
            time.sleep(0.01)
        prepared(prefetcher, "whole", done)
    assert "what=broken could not be prepared" in caplog.text
    assert ("Traceback" in caplog.text) == is_bug


def test_it_prepares_however_late_if_told_to() -> None:
    done = threading.Event()

    def prepare(what: str) -> None:
        if what == "late":
            done.set()
        else:
            time.sleep(2 * LATE_S)  # meanwhile the time of the other passes

    with closing(Prefetcher(prepare, late_s=math.inf)) as prefetcher:
        prefetcher.later("slow")
        prefetcher.later("late")
        assert done.wait(WITHIN_S)


def test_it_leaves_no_thread_and_begins_none_for_nothing() -> None:
    before = threading.active_count()
    prefetcher: Prefetcher[str] = Prefetcher(lambda what: None)
    assert threading.active_count() == before
    prefetcher.later("a")
    prefetcher.close()
    prefetcher.later("b")
    assert threading.active_count() == before


def test_proposals_are_cheap_again_after_some_fast_ones() -> None:
    cost, seen = ProposalCost(), []
    for cpu_s in (0.001, 1.0, *[0.001] * (FAST_ONES - 1), WORTH_S, *[0.001] * FAST_ONES):
        cost.add(cpu_s)
        seen.append(cost.is_low)
    assert seen == [
        True,
        False,
        *[False] * (FAST_ONES - 1),
        False,
        *[False] * (FAST_ONES - 1),
        True,
    ]
