"""Which interruption of a run ends its process, and with which code."""

from __future__ import annotations

import signal

import pytest

from controller.app import signals
from controller.app.signals import Interruptions


def ends_after(interruptions: int, *, ends: bool = True) -> list[int]:
    codes = list[int]()
    controls = Interruptions(lambda _: None, codes.append if ends else None)
    for number in [signal.SIGTERM, *[signal.SIGINT] * (interruptions - 1)]:
        controls.receive(number)
    return codes


def test_an_interruption_after_the_trials_were_killed_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "KILLED_S", 0.0)
    assert (ends_after(2), ends_after(3), ends_after(3, ends=False)) == ([], [143], [])


def test_an_impatient_interruption_lets_the_trials_be_killed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "KILLED_S", 3600.0)
    assert ends_after(10) == []
