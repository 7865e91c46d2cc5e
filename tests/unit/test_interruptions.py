"""Which interruption of a run ends its process, and with which code."""

from __future__ import annotations

import signal

from controller.app.signals import Interruptions


def ends_after(interruptions: int, *, killed_s: float, ends: bool = True) -> list[int]:
    codes = list[int]()
    controls = Interruptions(lambda _: None, codes.append if ends else None, killed_s)
    for number in [signal.SIGTERM, *[signal.SIGINT] * (interruptions - 1)]:
        controls.receive(number)
    return codes


def test_an_interruption_after_the_trials_were_killed_ends_the_process() -> None:
    assert [ends_after(times, killed_s=0.0) for times in (2, 3)] == [[], [143]]
    assert ends_after(3, killed_s=0.0, ends=False) == []


def test_an_impatient_interruption_lets_the_trials_be_killed_first() -> None:
    assert ends_after(10, killed_s=3600.0) == []
