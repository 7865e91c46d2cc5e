"""Interruptions of a run: the first stops it cleanly or detaches from it,
the second kills its trials.

A later one ends the process, because a database or an API server
that is frozen can keep it from ending by itself.

The owner of `Interruptions` reports them; `SignalControls` gets them
from the signals of this process.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from controller.core.snapshot import DesiredState

if TYPE_CHECKING:
    from controller.loop import Loop

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "hang-up"}
KILLED_S = 5.0  # after the second interruption, when what was to be killed is dead


@dataclass(slots=True)
class Interruptions:
    """Implements `controller.app.run.Controls`. Interruptions that arrived before are passed on.

    All methods are called on the event loop's thread. `received` is the first signal.
    `end_process` gets the exit code. It is called by an interruption that comes
    `killed_s` after the second one, or later.
    """

    print_line: Callable[[str], None]
    end_process: Callable[[int], None] | None = None
    killed_s: float = KILLED_S
    received: signal.Signals | None = None
    times: int = 0
    _detaches: bool = False
    _loop: Loop | None = field(default=None)
    _hurry: Callable[[], None] = lambda: None
    _killing_s: float = 0.0  # when it was interrupted the second time

    @property
    def are_all(self) -> bool:
        return False  # `tuner stop` and `tuner run` in other terminals

    def connected(self, hurry: Callable[[], None]) -> None:
        self._hurry = hurry
        if self.times > 1:
            hurry()

    def attach(self, loop: Loop, *, detaches: bool) -> None:
        self._loop = loop
        self._detaches = detaches
        self._interrupt(loop)

    def acted(self) -> None:
        pass

    def receive(self, number: signal.Signals) -> None:
        self.received = self.received or number
        self.times += 1
        if self.times > 1:
            self._hurry()
        if self.times == 2:
            self._killing_s = time.monotonic()
        elif (
            self.times > 2
            and self.end_process is not None
            and time.monotonic() - self._killing_s >= self.killed_s
        ):
            self.print_line(
                f"{_NAMES[number]} again: ending at once; nothing that was recorded is lost"
            )
            self.end_process(128 + self.received)
        progress = None if self._loop is None else self._loop.progress()
        if self._loop is not None:
            self._interrupt(self._loop)
        running = 0 if progress is None else len(progress.running)
        if self.times == 1 and progress is not None and progress.stopping:
            self.print_line(f"{_NAMES[number]}: already stopping (once more: kill what still runs)")
        elif self.times == 1 and self._detaches:
            self.print_line(
                f"{_NAMES[number]}: detaching; running trials continue (once more: kill them)"
            )
        elif self.times == 1:
            final = progress is not None and progress.final_runs
            if final:
                interrupted, again = "its final stage", "it runs again on resume"
            elif running == 1:
                interrupted = "1 running trial"
                again = "it runs again on resume and costs nothing"
            else:
                interrupted = f"{running} running trials"
                again = "they run again on resume and cost nothing"
            ending = f"; ending {interrupted}" if running else ""
            self.print_line(f"{_NAMES[number]}: stopping{ending} ({again}; once more: kill)")
        elif running:
            later = ""
            if self.end_process is not None:
                later = f" (once more after {self.killed_s:g} s: end at once)"
            self.print_line(f"{_NAMES[number]} again: killing the running trials{later}")

    def _interrupt(self, loop: Loop) -> None:
        if self.times == 1 and self._detaches:
            loop.detach()
        elif self.times:
            loop.request(DesiredState.INTERRUPT)
        if self.times > 1:
            loop.kill()


class SignalControls(Interruptions):
    """A context manager that handles signals, in the main thread's running event loop.

    SIGHUP stays ignored under `nohup`. SIGINT does not, because shells ignore it for `tuner run &`
    in a script, which may send it on purpose. The handlers of a caller of `import tuner` are
    restored at the end.
    """

    def __enter__(self) -> SignalControls:
        running = asyncio.get_running_loop()
        self._replaced = {number: signal.getsignal(number) for number in _NAMES}
        if self._replaced[signal.SIGHUP] is signal.SIG_IGN:
            del self._replaced[signal.SIGHUP]
        for number in self._replaced:
            running.add_signal_handler(number, self.receive, number)
        return self

    def __exit__(self, *_error: object) -> None:
        running = asyncio.get_running_loop()
        for number, handler in self._replaced.items():
            running.remove_signal_handler(number)
            if handler is not None:  # None: not installed by Python, which cannot restore it
                signal.signal(number, handler)
