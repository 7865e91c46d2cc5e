"""What has changed is prepared a moment later, by a thread that gives way when there is too much to do."""

from __future__ import annotations

import queue
import threading
import time
from contextlib import closing

import pytest

from suggest.ahead import LATE_S, Ahead

WITHIN_S = 10


def test_what_changes_is_prepared_and_again_when_it_changes_again() -> None:
    done: queue.Queue[str] = queue.Queue()
    with closing(Ahead(done.put)) as ahead:
        for what in ("a", "b", "a"):
            ahead.later(what)
            assert done.get(timeout=WITHIN_S) == what
    assert done.empty()


def test_what_has_waited_too_long_is_left_to_who_asks_for_it() -> None:
    done, busy, go_on = [], threading.Event(), threading.Event()

    def prepare(what: str) -> None:
        done.append(what)
        busy.set()
        go_on.wait(WITHIN_S)

    with closing(Ahead(prepare)) as ahead:
        ahead.later("slow")
        assert busy.wait(WITHIN_S)
        ahead.later("waits")
        time.sleep(2 * LATE_S)
        busy.clear()
        go_on.set()
        while not busy.is_set():
            ahead.later("next")
            busy.wait(0.01)
    assert done[:2] == ["slow", "next"]


def test_what_cannot_be_prepared_is_logged_and_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()

    def prepare(what: str) -> None:
        if what == "broken":
            raise ValueError(what)
        done.set()

    with closing(Ahead(prepare)) as ahead:
        ahead.later("broken")
        ahead.later("whole")
        assert done.wait(WITHIN_S)
    assert "what=broken could not be prepared" in caplog.text


def test_it_leaves_no_thread_and_begins_none_for_nothing() -> None:
    before = threading.active_count()
    ahead: Ahead[str] = Ahead(lambda what: None)
    assert threading.active_count() == before
    ahead.later("a")
    ahead.close()
    ahead.later("b")
    assert threading.active_count() == before
