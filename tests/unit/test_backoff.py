"""The retry policy doubles its pause up to a limit, with jitter where many clients wait."""

from __future__ import annotations

from suggest.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(first_s=0.1, longest_s=1.0)
    assert [backoff.pause_s(failures) for failures in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_shorter_limit_counts_for_one_pause() -> None:
    backoff = Backoff(first_s=0.1, longest_s=1.0)
    assert [backoff.pause_s(5, longest_s=0.3), backoff.pause_s(5)] == [0.3, 1.0]


def test_jitter_takes_at_most_its_share_of_the_pause() -> None:
    pauses = [Backoff(first_s=1.0, longest_s=1.0, jitter=0.5).pause_s(0) for _ in range(200)]
    assert 0.5 <= min(pauses) < max(pauses) <= 1.0


def test_a_million_failures_do_not_overflow() -> None:
    assert Backoff(first_s=0.05, longest_s=30.0).pause_s(1_000_000) == 30.0
