"""The status of an unchanged attempt is cached; it is derived again after a change,
or once time may change it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from controller.core.attempt import AttemptStatus, Exit
from controller.runtime.kubernetes import attempt_status as module
from controller.runtime.kubernetes.attempt_status import StatusCache

NOW = datetime(2026, 11, 21, 9, 40, 0, tzinfo=UTC)
RUNS = AttemptStatus("a", NOW, node="node1")
WAITS = AttemptStatus("a", None, waiting="no node")
JOB: dict[str, Any] = {"status": {"active": 1}}
DOUBTED: dict[str, Any] = {"status": {"conditions": [{"type": "FailureTarget", "status": "True"}]}}
POD: dict[str, Any] = {"status": {"phase": "Running"}}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def noted(
    status: AttemptStatus = RUNS, *, job: dict[str, Any] = JOB, left_s: float | None = None
) -> StatusCache:
    cache = StatusCache()
    cache.put(job, [POD], status, left_s=left_s)
    return cache


def test_a_new_attempt_has_to_be_derived(clock: Clock) -> None:
    assert StatusCache().get(JOB, [POD], quiet=True) is None


def test_an_unchanged_attempt_keeps_its_status(clock: Clock) -> None:
    cache = noted()
    assert cache.get(JOB, [POD], quiet=True) is RUNS
    assert cache.get(JOB, [POD], quiet=True) is RUNS


@pytest.mark.parametrize(
    ("what", "job", "pods"),
    [
        ("its object, though it looks the same", dict(JOB), [POD]),
        ("a pod, though it looks the same", JOB, [dict(POD)]),
        ("one pod more", JOB, [POD, POD]),
        ("its pod is gone", JOB, []),
    ],
)
def test_a_changed_attempt_is_derived_again(
    clock: Clock, what: str, job: dict[str, Any], pods: list[Any]
) -> None:
    assert noted().get(job, pods, quiet=True) is None, what


@pytest.mark.parametrize(("job", "believed_s"), [(JOB, 5.0), (DOUBTED, 1.0)])
def test_no_status_is_cached_beyond_its_expiry(
    clock: Clock, job: dict[str, Any], believed_s: float
) -> None:
    cache = noted(job=job)
    clock.now_s += believed_s - 0.01
    assert cache.get(job, [POD], quiet=True) is RUNS
    clock.now_s += 0.01
    assert cache.get(job, [POD], quiet=True) is None


@pytest.mark.parametrize("left_s", [0.5, 4.0])
def test_an_expiry_is_not_missed(clock: Clock, left_s: float) -> None:
    cache = noted(left_s=left_s)
    clock.now_s += left_s - 0.01
    assert cache.get(JOB, [POD], quiet=True) is RUNS
    clock.now_s += 0.01
    assert cache.get(JOB, [POD], quiet=True) is None


def test_a_later_expiry_does_not_extend_an_earlier_one(clock: Clock) -> None:
    cache = noted(left_s=3600.0)
    clock.now_s += 5.0
    assert cache.get(JOB, [POD], quiet=True) is None


def test_a_past_expiry_is_judged_every_turn(clock: Clock) -> None:
    assert noted(left_s=-0.2).get(JOB, [POD], quiet=True) is None


def test_an_ended_attempt_leaves_the_cache(clock: Clock) -> None:
    cache = noted()
    cache.put(JOB, [POD], replace(RUNS, exit=Exit(NOW, code=0)), left_s=None)
    assert cache.get(JOB, [POD], quiet=True) is None


def test_the_status_of_a_waiting_attempt_is_cached_for_a_second(clock: Clock) -> None:
    cache = noted(WAITS)
    clock.now_s += 0.99
    assert cache.get(JOB, [POD], quiet=True) is WAITS
    clock.now_s += 0.01
    assert cache.get(JOB, [POD], quiet=True) is None


def test_a_waiting_attempt_is_derived_every_turn_while_there_are_errors(clock: Clock) -> None:
    assert noted(WAITS).get(JOB, [POD], quiet=False) is None
    assert noted(RUNS).get(JOB, [POD], quiet=False) is RUNS


def test_a_forgotten_attempt_is_derived_again(clock: Clock) -> None:
    cache = noted()
    cache.forget()
    cache.forget()
    assert cache.get(JOB, [POD], quiet=True) is None
