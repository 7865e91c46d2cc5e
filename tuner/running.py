"""Run an experiment from Python: `run`, and what `minimize` and `Study.resume` have in common.

In the main thread, Ctrl-C is handled as on the command line. Elsewhere, and where an event loop runs (a notebook), the
run has a thread of its own, and KeyboardInterrupt in the waiting thread interrupts it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from suggest.errors import TunerError
from tuner.arguments import problems_by_argument
from tuner.experiment import Experiment
from tuner.importing import import_into
from tuner.study import Study, TrialResult, in_event_loop, listed, workspace_of

if TYPE_CHECKING:
    from controller.app.experiment_file import ExperimentFile
    from controller.app.run import RunResult, Session
    from controller.app.signals import Interruptions
    from controller.app.workspace import Workspace
    from controller.core.model import Experiment as StoredExperiment
    from controller.core.snapshot import DesiredState
    from controller.report.lines import View
    from suggest.trial import Trial as StoredTrial

Callback = Callable[[Study, TrialResult], object]


class SearchFailed(TunerError, RuntimeError):
    """The search failed or is paused until a person acts. `study` has its results so far.

    The message has the reason and, where trials failed, what the last one printed.
    """

    reason = "SEARCH_FAILED"

    def __init__(self, message: str, study: Study) -> None:
        super().__init__(message)
        self.study = study


class Callbacks:
    """Functions that are called in this process, between two turns of the controller, when a trial has ended.

    An exception in one ends the search as Ctrl-C does; `error` keeps it to be raised when running trials have ended.
    """

    def __init__(self, functions: Sequence[Callback], workspace: Workspace, name: str, namespace: str | None) -> None:
        from controller.core.snapshot import DesiredState

        self._functions = functions
        self._study = Study(workspace, name, namespace, stop=self._stop)
        self._desired = DesiredState.RUN
        self.error: BaseException | None = None

    def __call__(self, trial: StoredTrial) -> DesiredState:
        from controller.core.snapshot import DesiredState

        if self.error is not None:
            return self._desired
        try:
            result = self._study.result(trial.number)
            for function in self._functions:
                function(self._study, result)
        except BaseException as error:  # of any kind: what it says belongs to the caller of minimize
            self.error = error
            self._desired = max(self._desired, DesiredState.INTERRUPT, key=list(DesiredState).index)
        return self._desired

    def _stop(self) -> None:
        from controller.core.snapshot import DesiredState

        self._desired = DesiredState.STOP


def run(
    experiment: str | Path | Experiment,
    *,
    overrides: Sequence[str] = (),
    runtime: str | None = None,
    namespace: str | None = None,
    context: str | None = None,
    import_from: str | Path | Mapping[str, object] | None = None,
    state_dir: str | Path | None = None,
    progress: bool = True,
) -> Study:
    """Run an experiment, from a file or built in Python, to its end. A stored one of its name is continued.

    A pause is lifted.

    Args:
        overrides: As `--set`: `spec.budget.trials=10`.
        runtime, namespace, context: Where trials run, as `--runtime`, `--namespace` and `--context`.
        import_from: Finished trials to learn from, as `import_from` of `tuner.minimize`.
        state_dir: As `--state-dir`.
        progress: Show progress on stderr.

    Raises:
        TunerError: The file has problems, or the search cannot be run here; the message says what to do.
        SearchFailed: It failed, or it is paused until a person acts.
        KeyboardInterrupt: Ctrl-C, after running trials were ended; running it again continues.
    """
    from controller.app.experiment_file import ExperimentFile, FileOptions

    listed("run", "overrides", overrides)
    workspace = workspace_of(state_dir)
    options = FileOptions(overrides=tuple(overrides), runtime=runtime, namespace=namespace, context=context)
    with problems_by_argument(experiment.arguments if isinstance(experiment, Experiment) else {}):
        if isinstance(experiment, Experiment):
            file = experiment.file(options, workspace.state)
        else:
            file = ExperimentFile.read(str(experiment), options, workspace.state)
        if import_from is not None:
            import_into(file, workspace, import_from, caller="run", context=context)
        return control(workspace, file, context=context, progress=progress)


def control(
    workspace: Workspace,
    file: ExperimentFile,
    *,
    progress: bool,
    context: str | None = None,
    on_admitted: Callable[[StoredExperiment], None] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Study:
    """Create the file's experiment or continue it, until it ends. Raises as `run`."""
    from controller.app.experiments import Revisable
    from controller.app.validate import check_runnable
    from controller.core.model import ExperimentState

    check_runnable(file)

    async def act(session: Session) -> RunResult:
        spec = file.document.spec
        stored = session.experiments.experiment(spec.namespace, spec.name)
        if stored is not None and stored.state is ExperimentState.PAUSED:
            return await session.resume(file, None)  # a person has corrected something, and calls again
        try:
            return await session.run(file)
        except Revisable:  # more trials, or more at a time: the call says so, as `tuner resume FILE` does
            return await session.resume(file, None)

    spec = file.document.spec
    called = Callbacks(callbacks, workspace, spec.name, spec.namespace) if callbacks else None
    return controlled(workspace, act, progress=progress, context=context, on_admitted=on_admitted, callbacks=called)


def controlled(
    workspace: Workspace,
    act: Callable[[Session], Awaitable[RunResult]],
    *,
    progress: bool,
    context: str | None = None,
    on_admitted: Callable[[StoredExperiment], None] | None = None,
    callbacks: Callbacks | None = None,
) -> Study:
    """Run `act` with a session. Return the study, or raise if it did not end well."""
    from controller.app.run import Session

    view = _view(progress)
    with workspace.opened(make=True) as experiments:

        async def done(controls: Interruptions) -> RunResult:
            session = Session(
                workspace, experiments, view=view, controls=controls, context=context, on_admitted=on_admitted,
                on_trial=callbacks,
            )  # fmt: skip
            return await act(session)

        result, interrupted = _interruptible(done, view.print_line)
    if callbacks is not None and callbacks.error is not None:
        raise callbacks.error
    study = Study(workspace, result.experiment.name, result.experiment.namespace)
    _raise_if_unfinished(result, study, interrupted)
    return study


def _raise_if_unfinished(result: RunResult, study: Study, interrupted: signal.Signals | None) -> None:
    from controller.core.model import ExperimentState

    if interrupted is signal.SIGINT:
        raise KeyboardInterrupt
    if interrupted is not None:
        raise SystemExit(128 + interrupted)
    experiment = result.experiment
    if experiment.state in (ExperimentState.FAILED, ExperimentState.PAUSED):
        end = "failed" if experiment.state is ExperimentState.FAILED else "is paused"
        message = f"{experiment.name} {end}: {experiment.reason}"
        printed = study.last_failure()
        parts = [message, "" if printed in message else printed, _cure(experiment)]
        raise SearchFailed("\n".join(filter(None, parts)), study)


def _cure(experiment: StoredExperiment) -> str:
    from controller.core.model import ExperimentState, ReasonCode
    from controller.report.description import continuation, cure

    if experiment.state is ExperimentState.PAUSED:
        return cure(experiment) if experiment.spec.trial.calls_function else "correct it, and run it again"
    return continuation(experiment) if experiment.reason_code is ReasonCode.TOO_MANY_FAILURES else ""


def _interruptible(
    done: Callable[[Interruptions], Awaitable[RunResult]], print_line: Callable[[str], None]
) -> tuple[RunResult, signal.Signals | None]:
    """Return the result, and the signal that interrupted the run."""
    from controller.app.signals import Interruptions, SignalControls

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
    from controller.report.lines import Lines, QuietView
    from tuner.notebook import NotebookView, in_notebook

    if not progress:
        return QuietView()
    if in_notebook():
        return NotebookView()
    if sys.stderr.isatty():
        from controller.report.live import Live

        return Live(color=True)
    return Lines()
