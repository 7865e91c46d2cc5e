"""Experiments that share a namespace start trials in turn; one without a controller blocks no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.runtime.kubernetes.admission import STALE_S, FairShares, Share, may_start


@pytest.mark.parametrize(
    ("others", "may"),
    [
        ([], True),
        ([Share("b", 0, 0)], True),
        ([Share("b", 1, 3)], False),
        ([Share("b", 2, 3)], True),
        ([Share("B", 2, 3)], False),
        ([Share("b", 3, 3), Share("c", 1, 0)], True),
        ([Share("b", 3, 3), Share("c", 1, 1)], False),
    ],
    ids=["alone", "poorer but content", "poorer", "equal, after us", "equal, before us", "richer", "one is poorer"],
)
def test_the_waiting_experiment_with_the_fewest_trials_is_first(others: list[Share], may: bool) -> None:
    assert may_start(Share("a", 2, 1), others) is may


@given(
    wanted=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    room=st.integers(1, 12),
    turns=st.lists(st.integers(0, 10_000), max_size=200),
)
def test_shares_are_equal_to_within_one_trial_and_no_room_stays_empty(
    wanted: list[int], room: int, turns: list[int]
) -> None:
    running = [0] * len(wanted)

    def share(index: int) -> Share:
        return Share(str(index), running[index], wanted[index] - running[index])

    def others(index: int) -> list[Share]:
        return [share(other) for other in range(len(wanted)) if other != index]

    def settle() -> None:
        """Start trials until no experiment may start another one."""
        while sum(running) < room and any(each.waiting for each in map(share, range(len(wanted)))):
            ready = [i for i in range(len(wanted)) if share(i).waiting and may_start(share(i), others(i))]
            assert len(ready) == 1
            running[ready[0]] += 1

    settle()
    for index, turn in enumerate([0, *turns]):
        if index and running[turn % len(wanted)]:
            running[turn % len(wanted)] -= 1
            settle()
        assert sum(running) == min(room, sum(wanted))
        held_up = [running[i] for i in range(len(wanted)) if running[i] < wanted[i]]
        if index == 0 and held_up:
            assert max(running) - min(held_up) <= 1


def shares(folder: Path, uid: str, namespace: str = "team-a") -> FairShares:
    return FairShares(folder, server="https://cluster:6443", namespace=namespace, uid=uid)


def test_shares_are_visible_to_other_experiments_of_the_namespace(tmp_path: Path) -> None:
    first, second, elsewhere = shares(tmp_path, "a"), shares(tmp_path, "b"), shares(tmp_path, "c", "team-b")
    assert first.others(now_s=100.0) == []
    assert first.publish(12345, 2, now_s=100.0) == Share("a", 12345, 2)
    elsewhere.publish(1, 1, now_s=100.0)
    assert second.others(now_s=100.1) == [Share("a", 12345, 2)]
    first.publish(1, 0, now_s=100.1)
    assert second.others(now_s=100.1) == [Share("a", 1, 0)]
    assert first.others(now_s=100.1) == []
    first.close()
    assert second.others(now_s=100.1) == []
    elsewhere.close()
    second.close()


def test_a_hanging_experiment_is_not_counted_until_it_writes_again(tmp_path: Path) -> None:
    first, second = shares(tmp_path, "a"), shares(tmp_path, "b")
    first.publish(1, 1, now_s=100.0)
    assert second.others(now_s=100.0 + STALE_S) == []
    first.publish(1, 1, now_s=100.0 + STALE_S)
    assert second.others(now_s=100.0 + STALE_S) == [Share("a", 1, 1)]
    first.close()


def test_the_share_file_of_a_killed_experiment_is_removed(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from controller.runtime.kubernetes.admission import FairShares\n"
        "FairShares(Path(sys.argv[1]), server='https://cluster:6443', namespace='team-a', uid='a')"
        ".publish(3, 3, now_s=100.0); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=60)
    (left,) = tmp_path.rglob("a.json")
    assert shares(tmp_path, "b").others(now_s=100.1) == []
    assert not left.exists()
    again = shares(tmp_path, "a")
    again.publish(1, 1, now_s=100.2)
    assert shares(tmp_path, "b").others(now_s=100.2) == [Share("a", 1, 1)]
    again.close()
    again.close()


def test_an_unreadable_share_file_is_ignored(tmp_path: Path) -> None:
    first = shares(tmp_path, "a")
    first.publish(1, 1, now_s=100.0)
    (written,) = tmp_path.rglob("a.json")
    written.write_text("not yet")
    assert shares(tmp_path, "b").others(now_s=100.0) == []
    first.close()
