"""The comparison of trials by their reruns."""

from __future__ import annotations

import math

import pytest

from controller.core.model import Rerun
from controller.report.confirmation import (
    Candidate,
    Confirmation,
    comparison,
    confirmation_name,
    paired,
    text,
    verdict,
)
from suggest.study import Direction


def found(*candidates: Candidate, rival: int | None = 1, sure: float | None = None) -> Confirmation:
    return Confirmation("digits", Direction.MAXIMIZE, 3, candidates, rival, sure)


def test_pairs_are_the_seeds_that_both_have() -> None:
    first, second = {1: 0.9, 2: 0.8, 3: 0.7}, {2: 0.7, 3: 0.5, 4: 0.1}
    # Differences of 0.1 and 0.2: t = 3 with one degree of freedom.
    assert paired(first, second) == pytest.approx(2 / math.pi * math.atan(3))
    assert paired({1: 0.9}, {1: 0.8}) is None
    assert paired({1: 0.9, 2: 0.9}, {1: 0.8, 2: 0.8}) is None
    assert paired({1: 3.0, 2: 4.0}, {1: 1.0, 2: 2.0}) == 1.0
    assert paired({1: 0.9, 2: 0.8}, {3: 0.7}) is None


def test_a_rerun_knows_its_trial_and_its_seed() -> None:
    rerun = Rerun("digits", (7, 2), (11, 12, 13))
    assert [rerun.of(number) for number in range(7)] == [
        (7, 11),
        (2, 11),
        (7, 12),
        (2, 12),
        (7, 13),
        (2, 13),
        None,
    ]


def test_the_verdict_says_whether_the_difference_may_be_chance() -> None:
    first, second = Candidate(3, 0.9, {1: 0.8, 2: 0.9}), Candidate(1, 0.8, {1: 0.7, 2: 0.7})
    assert "trial 3 is better than trial 1: 97 % sure" in verdict(found(first, second, sure=0.978))
    third = Candidate(2, 0.8, {1: 0.6, 2: 0.5})
    assert "trial 3 is better than trial 1 and the others: 97 % sure" in verdict(
        found(first, second, third, sure=0.978)
    )
    assert "more than 99 % sure" in verdict(found(first, second, sure=1.0))
    assert "may be chance: 71 % sure" in verdict(found(first, second, sure=0.71))


def test_a_trial_whose_reruns_failed_is_not_among_those_that_lost() -> None:
    first, second = Candidate(3, 0.9, {1: 0.8, 2: 0.9}), Candidate(1, 0.8, {1: 0.7, 2: 0.7})
    for other in (Candidate(2, 0.8, {3: 0.75}), Candidate(2, 0.8, {})):
        said = verdict(found(first, second, other, sure=0.978))
        assert said.startswith("trial 3 is better than trial 1: 97 % sure")
        assert said.endswith("; not compared, with fewer than two seeds in common: 2")


def test_a_program_that_ignores_its_seed_is_told() -> None:
    first, second = Candidate(3, 0.9, {1: 0.9, 2: 0.9}), Candidate(1, 0.8, {1: 0.8, 2: 0.8})
    assert "does not read TUNER_SEED" in verdict(found(first, second))
    assert "-0" not in text(found(first, second))


def test_nothing_is_said_of_reruns_that_have_not_succeeded() -> None:
    assert verdict(found(Candidate(3, 0.9, {}))) == "no rerun has succeeded yet"


def test_a_long_name_is_shortened() -> None:
    assert confirmation_name("digits") == "digits-confirm"
    assert confirmation_name("digits.kubeflow.org") == "digits-confirm"
    assert len(confirmation_name("a" * 40)) == 40
    assert confirmation_name("a" * 31 + "-" + "b" * 8) == "a" * 31 + "-confirm"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.9, 0.9], "reproduced exactly"),
        ([0.8, 1.0], "within the spread"),
        ([0.7, 0.8], "differs by 0.1 or more"),
        ([], "none has succeeded yet"),
    ],
)
def test_reruns_are_shown_beside_the_recorded_value(values: list[float], said: str) -> None:
    assert said in comparison("trial 3", 0.9, values)
