"""The deadline of an attempt that a later supervisor takes over."""

from __future__ import annotations

import time

import pytest

from controller.boot_time import since_boot_s
from controller.runtime.local.supervised import SupervisedAttempt

HOUR_S = 3600.0


@pytest.mark.parametrize("set_by_s", [-24 * HOUR_S, -HOUR_S, 0.0, HOUR_S, 24 * HOUR_S])
def test_a_wall_clock_that_was_set_meanwhile_does_not_move_the_timeout(set_by_s: float) -> None:
    before_s = since_boot_s()
    started = {"time": time.time() - set_by_s, "since_boot_s": before_s - 100.0}
    attempt = SupervisedAttempt(
        {"timeout_s": 600.0, "workers": 1, "log_limit": 0, **started}, "/nowhere"
    )
    assert attempt.timeout_at is not None
    left_s = attempt.timeout_at - time.monotonic()
    assert 500.0 - (since_boot_s() - before_s) <= left_s + 0.001
    assert left_s <= 500.0
