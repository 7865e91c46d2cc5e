"""A run in this process, for `tuner.run` and for the methods of a study.

In the main thread, Ctrl-C is handled as on the command line. Elsewhere,
and where an event loop runs (a notebook), the run has a thread of its own,
and KeyboardInterrupt in the waiting thread interrupts it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from controller import app
from controller.app.signals import Interruptions, SignalControls
from controller.report.lines import Lines, View
from tuner.notebook import NotebookView, in_notebook
from tuner.waiting import in_event_loop

if TYPE_CHECKING:
    from controller.app.experiment_file import FileOptions
    from controller.app.run import RunResult, Session
    from controller.app.workspace import Workspace
    from controller.core.model import Experiment as StoredExperiment
    from controller.core.snapshot import DesiredState
    from controller.spec import Document
    from suggest.trial import Trial as StoredTrial

# In place of the name of a runtime: the controller that is installed in the cluster.
CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Shell:
    """A program that runs the searches of a script: where they are stored, what its flags say of
    them, and what shows them.

    script: the script's absolute path.
    begin, end: called before and after a run, with its view and what was read, or its result and
        the signal that interrupted it. `end` may raise SystemExit.
    """

    script: str
    workspace: Workspace
    options: FileOptions
    view: Callable[[], View]
    begin: Callable[[View, Document], None]
    end: Callable[[View, RunResult, signal.Signals | None], None]


def run_session(
    workspace: Workspace,
    act: Callable[[Session], Awaitable[RunResult]],
    *,
    progress: bool,
    context: str | None = None,
    on_admitted: Callable[[StoredExperiment], None] | None = None,
    on_trial: Callable[[StoredTrial], DesiredState] | None = None,
    shell: Shell | None = None,
    document: Document | None = None,
) -> StoredExperiment:
    """Run `act` with a session, and return its experiment.

    Raises KeyboardInterrupt or SystemExit after a signal that interrupted it.
    """
    view_of = partial(_view, progress) if shell is None else shell.view
    view = view_of()
    if shell is not None and document is not None:
        shell.begin(view, document)
    with workspace.opened(make=True) as experiments:

        async def done(controls: Interruptions) -> RunResult:
            session = app.run.Session(
                workspace,
                experiments,
                view=view,
                controls=controls,
                context=context,
                on_admitted=on_admitted,
                on_trial=on_trial,
            )
            result = await act(session)
            await session.confirm(result, view_of)
            return result

        result, interrupted = _interruptible(done, view.print_line)
    if shell is not None:
        shell.end(view, result, interrupted)
    if interrupted is signal.SIGINT:
        raise KeyboardInterrupt
    if interrupted is not None:
        raise SystemExit(128 + interrupted)
    return result.experiment


def _interruptible(
    done: Callable[[Interruptions], Awaitable[RunResult]], print_line: Callable[[str], None]
) -> tuple[RunResult, signal.Signals | None]:
    """Return the result, and the signal that interrupted the run."""

    async def with_signals() -> tuple[RunResult, signal.Signals | None]:
        with SignalControls(print_line) as controls:
            return await done(controls), controls.received

    if threading.current_thread() is threading.main_thread() and not in_event_loop():
        return asyncio.run(with_signals())

    controls = Interruptions(print_line)
    begun: Future[asyncio.AbstractEventLoop] = Future()
    ended: Future[RunResult] = Future()

    async def without_signals() -> RunResult:
        begun.set_result(asyncio.get_running_loop())
        return await done(controls)

    def work() -> None:
        try:
            ended.set_result(asyncio.run(without_signals()))
        except BaseException as error:  # for the thread that waits
            ended.set_exception(error)

    threading.Thread(target=work, name="tuner-run", daemon=True).start()
    while True:
        try:
            return ended.result(), controls.received
        except KeyboardInterrupt:
            if ended.done():
                raise
            begun.result().call_soon_threadsafe(controls.receive, signal.SIGINT)


def _view(progress: bool) -> View:
    if not progress:
        return View()
    if in_notebook():
        return NotebookView()
    if sys.stderr.isatty():
        # Here, because it loads rich.
        from controller.report.live import Live

        return Live(color=True)
    return Lines()
