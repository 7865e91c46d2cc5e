"""The signals of a process that controls an experiment,
which may belong to a caller of `import tuner`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from controller.app.signals import SignalControls

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers_of_the_tests() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def received(*sent: signal.Signals) -> list[signal.Signals]:
    """Return which of the signals a run receives."""
    heard: list[signal.Signals] = []

    async def run() -> None:
        for number in sent:
            with SignalControls(lambda _line: None) as controls:
                signal.raise_signal(number)
                # the turns in which the event loop reads its pipe and calls the handler
                for _ in range(3):
                    await asyncio.sleep(0)
                if controls.received is not None:
                    heard.append(controls.received)

    asyncio.run(run())
    return heard


def test_a_run_restores_the_handlers_of_its_caller() -> None:
    def of_the_caller(*_: object) -> None: ...

    for number in SIGNALS:
        signal.signal(number, of_the_caller)
    assert received(*SIGNALS) == list(SIGNALS)
    assert [signal.getsignal(number) for number in SIGNALS] == [of_the_caller] * 3


def test_a_run_restores_the_default_handlers() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert received(signal.SIGINT, signal.SIGTERM) == [signal.SIGINT, signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_run_under_nohup_ignores_the_end_of_the_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert received(signal.SIGHUP, signal.SIGTERM) == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_run_in_the_background_of_a_script_hears_an_interruption() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert received(signal.SIGINT) == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
