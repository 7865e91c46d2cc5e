"""Which failures the circuit breaker considers to have the same cause,
and how many of them open it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.core.breaker import Cause, Streak, half_open, max_same_failures, reviewed, trip
from controller.core.model import FINAL, FailureClass
from suggest.trial import Outcome, TrialState
from tests.unit.builders import FAILED, SUCCEEDED, a_spec, attempt

CRASHED = FailureClass.USER_ERROR


def failed(reason: str, failure_class: str = "userError") -> Outcome:
    return Outcome(TrialState.FAILED, None, reason, failure_class)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("exit code 1: KeyError: 'lr_0.0123'", "exit code 1: KeyError: 'lr_0.7'"),
        ("exit code 1: KeyError: 17", "exit code 1: KeyError: 3"),
        ("exit code 1: KeyError: 'warmup'", 'exit code 1: KeyError: "decay"'),
        (
            "exit code 1: FileNotFoundError: [Errno 2] No such file or directory: "
            "'/s/trials/3/1/output/x.npz'",
            "exit code 1: FileNotFoundError: [Errno 2] No such file or directory: "
            "'/s/trials/12/1/output/x.npz'",
        ),
        (
            "exit code 2: cannot open /tmp/tmpabcdefgh/model",
            "exit code 2: cannot open /tmp/tmpijklmnop/model",
        ),
        (
            "exit code 1: 2026-01-02 03:04:05,123 ERROR no data",
            "exit code 1: 2026-01-02 04:00:00,001 ERROR no data",
        ),
        (
            "exit code 1: ValueError: lr=0.1 is too large",
            "exit code 1: ValueError: lr=1e-05 is too large",
        ),
        ("exit code 1: digits-x7k2q-3 gave up", "exit code 1: digits-x7k2q-14 gave up"),
        (
            "exit code 1: RuntimeError: shape [8, 3] at 0x7f31",
            "exit code 1: RuntimeError: shape [16, 3] at 0x7a99",
        ),
        ("exit code 1:  34%|███▍      | 34/100", "exit code 1:  80%|████████  | 80/100"),
    ],
)
def test_failure_reasons_are_compared_without_the_parts_that_depend_on_the_trial(
    one: str, other: str
) -> None:
    assert Cause.of(failed(one)) == Cause.of(failed(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (failed("exit code 1: no data"), failed("exit code 2: no data")),
        (failed("exit code 1: no data"), failed("exit code 1: no model")),
        (failed("exit code 1: KeyError: 'lr'"), failed("exit code 1: ValueError: 'lr'")),
        (failed("it was too long", "timeout"), failed("it was too long", "outOfMemory")),
    ],
)
def test_other_reasons_differ(one: Outcome, other: Outcome) -> None:
    assert Cause.of(one) != Cause.of(other)


def test_a_trial_that_did_not_fail_ends_the_streak_and_a_cancelled_one_does_not_count() -> None:
    streak = (
        Streak().after(0, failed("a")).after(1, Outcome(TrialState.CANCELLED)).after(2, failed("a"))
    )
    assert (streak.first, streak.alike) == ((0, 2), (0, 2))
    for state in (TrialState.SUCCEEDED, TrialState.PRUNED, TrialState.INFEASIBLE):
        assert streak.after(3, Outcome(state)) == Streak(first=None)


def test_the_first_failures_may_have_different_reasons_but_must_be_the_programs_own() -> None:
    two = Streak().after(0, failed("a")).after(1, failed("b", "metricsMissing"))
    assert trip(a_spec(), two, alone=True) is not None
    assert trip(a_spec(), two, alone=False) is None
    assert trip(a_spec(canary_s=0), two, alone=True) is None
    lost = Streak().after(0, failed("a")).after(1, failed("node lost", "infrastructure"))
    assert trip(a_spec(), lost, alone=True) is None
    assert not half_open(a_spec(), lost, exhausted=False)


def test_a_machine_that_fails_every_trial_opens_the_breaker_too() -> None:
    streak = Streak(first=None)
    for number in range(3):
        streak = streak.after(
            number, failed("killed by SIGKILL, which tuner did not send", "infrastructure")
        )
    assert trip(a_spec(), streak, alone=False) is not None


@pytest.mark.parametrize(
    ("parallelism", "limit", "most"),
    [(1, None, 3), (3, None, 3), (8, None, 8), (8, 5, 5), (1, 2, 2), (1, 1, 3), (16, 100, 16)],
)
def test_a_streak_of_like_failures_opens_the_breaker(
    parallelism: int, limit: int | None, most: int
) -> None:
    assert max_same_failures(a_spec(parallelism=parallelism, failed_trials=limit)) == most


def test_set_aside_and_reviewed_failures_are_not_continued() -> None:
    three = Streak().after(0, failed("a")).after(1, failed("a")).after(2, failed("a"))
    assert three.without((0, 1, 2)) == Streak()
    assert three.without((0, 1, 2)).after(3, failed("a")).alike == (3,)


def test_continuing_marks_the_newest_failures_that_do_not_run_again_as_reviewed() -> None:
    first, again = attempt(1, FAILED, failed=CRASHED), attempt(2, FAILED, failed=CRASHED)
    aside = replace(attempt(1, FAILED, trial=1, failed=CRASHED), set_aside=True)
    seen = replace(attempt(1, FAILED, trial=2, failed=CRASHED), reviewed=True)
    rest = [attempt(1, SUCCEEDED, trial=3), attempt(1, FAILED, trial=FINAL)]
    assert reviewed([first, again, aside, seen, *rest]) == [replace(again, reviewed=True)]
