"""The composition root of a run: service, client, runtime, loop and view put together, and the signals of a terminal.

Decides nothing about trials (`controller.core.decide`) nor about which experiment may run (`controller.cli.admission`).
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from controller.cli.admission import Admitted
from controller.cli.embedded import SessionClient
from controller.cli.exits import ExitCode
from controller.cli.home import Home
from controller.cli.provenance import Launcher
from controller.cli.runtimes import PATIENCE_S
from controller.clock import SystemClock
from controller.core import budget
from controller.core.model import Experiment, ExperimentState
from controller.core.progress import Progress
from controller.core.snapshot import Wish
from controller.loop import Loop
from controller.report.lines import View
from controller.runtime.protocol import Runtime
from controller.store import SqlStore
from suggest.trial import TrialState

logger = logging.getLogger(__name__)

REFRESH_S = 0.2


@dataclass(slots=True)
class Controls:
    """The signals that this process got, and whom to tell. Works before there is a loop: it is told when it comes."""

    say: Callable[[str], None]
    received: signal.Signals | None = None
    times: int = 0
    detaches: bool = False  # the first signal leaves what runs alone: it runs elsewhere
    _loop: Loop | None = field(default=None)

    def install(self) -> None:
        running = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            running.add_signal_handler(number, self._hear, number)

    def attach(self, loop: Loop) -> None:
        self._loop = loop
        self._tell(loop)

    def _hear(self, number: signal.Signals) -> None:
        self.received = self.received or number
        self.times += 1
        progress = None if self._loop is None else self._loop.progress()
        if self._loop is not None:
            self._tell(self._loop)
        running = 0 if progress is None else len(progress.running)
        if self.times == 1 and progress is not None and progress.stopping:
            self.say(f"{_NAMES[number]}: it is stopping already, for good (again: kill what still runs)")
        elif self.times == 1 and self.detaches:
            self.say(f"{_NAMES[number]}: detaching; what runs goes on (again: kill it)")
        elif self.times == 1:
            final = progress is not None and progress.final_runs
            what = "its final stage" if final else f"{running} running trial{'s' if running > 1 else ''}"
            again = "it runs again on resume" if final or running == 1 else "they run again on resume"
            again = again if final else f"{again} and cost{'s' if running == 1 else ''} nothing"
            self.say(f"{_NAMES[number]}: stopping{f'; ending {what}' if running else ''} ({again}; again: kill)")
        elif running:
            self.say(f"{_NAMES[number]} again: killing what still runs")

    def _tell(self, loop: Loop) -> None:
        if self.times == 1 and self.detaches:
            loop.detach()
        elif self.times:
            loop.wish(Wish.INTERRUPT)
        if self.times > 1:
            loop.kill()

    @property
    def exit_code(self) -> ExitCode:
        """Of an experiment that was stopped: by a signal to us, or by `tuner stop`."""
        return ExitCode.INTERRUPTED if self.received is signal.SIGINT else ExitCode.TERMINATED


_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "hang-up"}


async def control(
    admitted: Admitted, *, home: Home, store: SqlStore, client: SessionClient, controls: Controls, view: View,
    runtime: Runtime, git: asyncio.Task[dict[str, object]] | None = None,
) -> tuple[Experiment, Progress]:  # fmt: skip
    """Run the experiment until it ends, pauses or is stopped. Raises what `Loop.run` does. Closes nothing."""
    experiment = admitted.experiment
    folders = home.folders(experiment.uid)
    launcher = Launcher(folders, admitted.source, admitted.text, seed=lambda: client.seed)
    loop = Loop(
        experiment,
        store=store,
        studies=client,
        runtime=runtime,
        launcher=launcher,
        clock=SystemClock(),
        on_event=view.event,
        patience_s=PATIENCE_S[experiment.spec.runtime],
    )
    controls.detaches = experiment.spec.runtime != "local"
    controls.attach(loop)
    drawing = asyncio.create_task(draw(view, loop.progress))
    try:
        if git is not None:
            launcher.git = await git
        ended = await loop.run()
        return ended, loop.progress()
    finally:
        broken = drawing.done()
        drawing.cancel()
        with suppress(asyncio.CancelledError):
            await drawing
        _close(view, None if broken else loop.progress())


async def draw(view: View, progress: Callable[[], Progress]) -> None:
    """Until cancelled, or the view is broken: that is said once, and is no reason to end a run. At once, if nothing is
    drawn: to count what there is, only to show it to nobody, has its price."""
    try:
        while view.draws:
            view.refresh(progress())
            await asyncio.sleep(REFRESH_S)
    except Exception:
        logger.exception("progress cannot be shown any more; the run goes on")


def _close(view: View, progress: Progress | None) -> None:
    try:
        view.close(progress)
    except Exception:
        logger.exception("the last state cannot be shown; the run is not touched by that")


def exit_code(
    experiment: Experiment,
    counts: Mapping[TrialState, int],
    *,
    succeeded: bool,
    final_failed: bool = False,
    stopped: ExitCode = ExitCode.TERMINATED,
) -> ExitCode:
    """What the shell is told. `counts`: its trials by outcome. `succeeded`: some trial did. `stopped`: what a stopped
    experiment means here."""
    match experiment.state:
        case ExperimentState.SUCCEEDED if final_failed:
            return ExitCode.FAILED
        case ExperimentState.SUCCEEDED:
            return ExitCode.OK if succeeded else ExitCode.NO_RESULT
        case ExperimentState.FAILED:
            return ExitCode.FAILED if budget.too_many_failed(experiment.spec, counts) else ExitCode.NO_RESULT
        case ExperimentState.PAUSED:
            return ExitCode.PAUSED
        case _:
            return stopped


def some_succeeded(progress: Progress) -> bool:
    return progress.counts.get(TrialState.SUCCEEDED, 0) > 0
