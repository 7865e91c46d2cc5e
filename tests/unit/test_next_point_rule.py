"""Which point a call gets, and when the next one is computed: the rule of
`suggest.studies.next_point`, as tables.
"""

from __future__ import annotations

import math

import pytest

from suggest.studies.next_point import FRESH_S, NextStep, Situation, choose, should_prefetch

GIVE, WAIT, CHEAPER = NextStep.GIVE, NextStep.WAIT, NextStep.CHEAPER


def situation(
    missed: int | None = None,
    *,
    running: int = 0,
    slow: bool = False,
    seeded: bool = False,
    cheaper: bool = True,
    waited_s: float = 0.0,
) -> Situation:
    return Situation(missed, running, slow, seeded, cheaper, waited_s)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        # A point that knows every result is given at once.
        (situation(0), GIVE),
        (situation(0, seeded=True), GIVE),
        # Where others run, it need not know the last result.
        (situation(1, running=1), GIVE),
        (situation(1, running=1, seeded=True), GIVE),
        (situation(2, running=1), WAIT),
        (situation(2, running=1, waited_s=FRESH_S), GIVE),
        # Nor where a fresh one takes longer than anybody waits for it.
        (situation(1, slow=True), GIVE),
        (situation(2, slow=True), WAIT),
        # One trial after the other waits for a fresh point, but not for long.
        (situation(1), WAIT),
        (situation(1, waited_s=FRESH_S), GIVE),
        (situation(None), WAIT),
        (situation(None, waited_s=FRESH_S), CHEAPER),
        (situation(None, running=3, waited_s=FRESH_S), CHEAPER),
        # With a seed it waits as long as it takes.
        (situation(None, seeded=True, waited_s=1e3), WAIT),
        (situation(1, seeded=True, slow=True, waited_s=1e3), WAIT),
        (situation(None, seeded=True, running=1, waited_s=FRESH_S), CHEAPER),
        # So does an algorithm without a cheaper one.
        (situation(None, cheaper=False, waited_s=1e3), WAIT),
    ],
)
def test_a_call_gets_the_expected_point(now: Situation, expected: NextStep) -> None:
    assert choose(now) is expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (situation(), FRESH_S),
        (situation(waited_s=FRESH_S / 2), FRESH_S / 2),
        (situation(seeded=True), math.inf),
        (situation(cheaper=False), math.inf),
        (situation(2, running=1, cheaper=False), FRESH_S),
    ],
)
def test_a_call_waits_for_the_expected_results(now: Situation, expected: float) -> None:
    assert now.patience_s == pytest.approx(expected)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (situation(running=1), False),
        (situation(running=2), True),
        (situation(running=2, seeded=True), True),
        (situation(running=1, slow=True), True),
        (situation(running=1, slow=True, seeded=True), False),
    ],
)
def test_after_a_trial_was_handed_out_the_next_point_is_computed_at_once(
    now: Situation, expected: bool
) -> None:
    assert should_prefetch(now) is expected
