"""Run an experiment: admit a file or a name, control its trials
until they end, and return the result.

The order saves time: the work of other processes (git, the supervisor, the cluster) begins before
this process imports what it needs. Decisions about trials are made in `core.decide`, and about
admission in `experiment_service`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from controller import app
from controller.app.experiment_file import ExperimentFile, working_directory
from controller.app.experiment_service import Admitted, ExperimentService, NothingToRun
from controller.app.experiments import final_has_failed
from controller.app.local_experiments import LocalExperiments
from controller.app.provenance import AttemptLauncher
from controller.app.suggestion_service import SessionClient
from controller.app.surroundings import GitState
from controller.app.validate import check_revision, guess
from controller.app.workspace import Workspace
from controller.clock import SystemClock
from controller.core.attempt import RuntimeLost
from controller.core.metrics import ESCAPES
from controller.core.model import FINAL, Experiment, ExperimentState, Uid, attempt_name
from controller.core.progress import Progress
from controller.core.snapshot import DesiredState
from controller.loop import Loop, OnTrial
from controller.parameter_requests import answering
from controller.report.formatting import ranges
from controller.report.lines import View
from controller.runtime.protocol import Runtime
from controller.runtime.provider import LaunchBuilder, RecoveredExperiment, RuntimeConnection
from controller.runtime.registry import provider_of, traits_of
from controller.runtime.trial_variables import PARAMETER_REQUESTS
from controller.search import create_study, study_name, study_spec
from controller.spec import Document
from suggest.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    TunerError,
)
from suggest.trial import Trial, TrialState
from suggest.whole_file import replace_file

if TYPE_CHECKING:
    from controller.app.rerun import Reruns

logger = logging.getLogger(__name__)

REFRESH_S = 0.2
LAST_LINES, LAST_BYTES = 10, 8192


class Controls(Protocol):
    """The means to interrupt a run from outside, such as the signals of a terminal.

    are_all: no other process may ask the run for anything by the store.
    """

    @property
    def are_all(self) -> bool: ...

    def connected(self, hurry: Callable[[], None]) -> None:
        """Call `hurry` at the second interruption.

        The client and the runtime then wait only briefly.
        """

    def attach(self, loop: Loop, *, detaches: bool) -> None:
        """Set the loop to interrupt.

        With `detaches`, the first interruption leaves trials on a cluster running.
        """

    def acted(self) -> None:
        """Note that a turn of the loop has started what is due."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run, or of an experiment that was finished already.

    counts: its own finished trials by outcome.
    best: the best trial of its study, which may be an imported one.
    final_failed: its final stage has failed for good.
    opened_breaker: the trial that caused the pause, and the last lines of its log.
    """

    experiment: Experiment
    counts: Mapping[TrialState, int]
    best: Trial | None = None
    final_failed: bool = False
    opened_breaker: tuple[int, list[str]] | None = None

    @property
    def some_succeeded(self) -> bool:
        """Return whether there is a result: a succeeded trial that meets the constraints."""
        some = self.counts.get(TrialState.SUCCEEDED, 0) > 0 and not self.experiment.spec.constraints
        return some or self.best is not None


@dataclass(slots=True)
class _StartupTasks:
    """The work that begins before this process has a service: of the runtime, and of git.

    checked: whether the runtime would run the trials of a new experiment.
    """

    connection: RuntimeConnection
    checked: asyncio.Task[None] | None
    _git: asyncio.Task[GitState]
    _git_again: Callable[[], Awaitable[GitState]]
    _reached: asyncio.Task[object]
    _is_git_taken: bool = False

    @classmethod
    def begin(
        cls, workspace: Workspace, connection: RuntimeConnection, directory: Path, *, is_new: bool
    ) -> _StartupTasks:
        return cls(
            connection,
            checked=asyncio.create_task(connection.check()) if is_new else None,
            _git=asyncio.create_task(workspace.git_state(directory)),
            _git_again=partial(workspace.git_state, directory),
            _reached=asyncio.create_task(connection.runtime.observe()),
        )

    async def git(self) -> GitState:
        """Return the state of the checkout: as of the start-up at first, later as of now."""
        if self._is_git_taken:
            return await self._git_again()
        self._is_git_taken = True
        return await self._git

    async def end(self) -> None:
        """End the work. Idempotent.

        Errors are not raised, because the loop got the same ones and reported them, or because
        there was no loop.
        """
        self._git.cancel()
        tasks = [task for task in (self._git, self._reached, self.checked) if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.connection.close()


@asynccontextmanager
async def _startup(
    workspace: Workspace, connection: RuntimeConnection, directory: Path, *, is_new: bool = False
) -> AsyncIterator[_StartupTasks]:
    tasks = _StartupTasks.begin(workspace, connection, directory, is_new=is_new)
    try:
        yield tasks
    finally:
        await tasks.end()


class Session:
    """One request, from a file or a name to a result."""

    def __init__(
        self,
        workspace: Workspace,
        experiments: LocalExperiments,
        *,
        view: View,
        controls: Controls,
        context: str | None = None,
        on_admitted: Callable[[Experiment], None] | None = None,
        on_trial: OnTrial | None = None,
    ) -> None:
        """Create a session.

        Args:
            context: The context of the Kubernetes configuration, if one was requested.
            on_admitted: Called when this process controls the experiment, before any of its trials
                starts.
            on_trial: See `controller.loop.OnTrial`.
        """
        self.workspace = workspace
        self.experiments = experiments
        self.view = view
        self._controls = controls
        self._context = context
        self._on_admitted = on_admitted
        self._on_trial = on_trial

    async def run(self, file: ExperimentFile, *, uid: Uid = "") -> RunResult:
        """Create the experiment of the file, or continue it.

        uid: that of a new one; "" is a random one.
        """
        service = ExperimentService(self.experiments)
        admitted = service.run(file.document, file.directory)
        if admitted is None:
            created = await self._create(file, service, uid)
            if created is not None:
                return created
            # Another process that started at the same time was faster,
            # so the experiment exists now.
            admitted = service.run(file.document, file.directory)
            assert admitted is not None
        return await self.go_on(admitted)

    async def resume(self, target: ExperimentFile | str, namespace: str | None) -> RunResult:
        """Continue an experiment with a changed file, or by name with the file as last accepted.

        This lifts a pause.
        """
        service = ExperimentService(self.experiments)
        if isinstance(target, str):
            return await self.go_on(service.resume_name(target, namespace))
        spec = target.document.spec
        known = self.experiments.experiment(spec.namespace, spec.name)
        await check_revision(self.workspace, known, target.document)
        return await self.go_on(service.resume_file(target.document, target.directory))

    async def recover(self, name: str, namespace: str | None, *, runtime: str) -> RunResult:
        """Rebuild an experiment whose database is lost, and continue it.

        It is rebuilt from what its runtime still has.
        """
        recovered = await provider_of(runtime).recover(
            name, context=self._context, namespace=namespace, print_line=self.view.print_line
        )
        return await self.rebuild(name, recovered)

    async def rebuild(self, name: str, recovered: RecoveredExperiment) -> RunResult:
        """Rebuild the experiment from what its runtime still has, and continue it."""
        service = self.workspace.service
        async with self.workspace.connected(service) as client:
            admitted = await app.recovery.rebuild(
                recovered,
                experiments=self.experiments,
                client=client,
                service=service,
                directory=working_directory(),
            )
            self.view.print_line(
                f"{name}: found trials {ranges(recovered.trials) or 'none'} on {recovered.context}"
            )
            if recovered.lost:
                self.view.print_line(
                    f"{name}: trials {ranges(recovered.lost)} were lost with the database; they "
                    f"count as cancelled"
                )
            connection = await self.workspace.runtime_of(admitted.experiment, self.experiments)
            async with _startup(self.workspace, connection, working_directory()) as startup:
                return await self._control(admitted, client, startup)

    async def go_on(self, admitted: Admitted | NothingToRun) -> RunResult:
        """Control an admitted experiment, or return the result of a finished one."""
        experiment = admitted.experiment
        service = self.workspace.service_of(experiment)
        if isinstance(admitted, NothingToRun):
            self._begin(admitted)
            async with self.workspace.connected(service) as client:
                return await self._final_result(experiment, client)
        try:
            self._begin(admitted)
            connection = await self.workspace.runtime_of(experiment, self.experiments)
            async with (
                _startup(self.workspace, connection, Path(experiment.directory)) as startup,
                self.workspace.connected(service) as client,
            ):
                return await self._control(admitted, client, startup)
        except Exception as error:
            _note_exit(self.experiments, experiment, error)
            raise
        finally:
            admitted.lease.release()

    async def confirm(self, result: RunResult, make_view: Callable[[], View]) -> RunResult | None:
        """Run the reruns that `spec.confirm` asks for after a search, or continue them.

        make_view: for the reruns. Returns their result; None if the file asks for none, or they
        cannot run, which the view says.
        """
        search = result.experiment
        # First, because nothing of reruns is loaded for other searches.
        if search.spec.confirm is None:
            return None
        view = make_view()
        try:
            reruns = await app.rerun.asked_by_file(self.workspace, search)
        except (AlreadyExists, FailedPrecondition) as error:
            view.print_line(f"{search.name} is not confirmed: {error}")
            return None
        if reruns is None:
            return None
        return await self.run_again(reruns, view)

    async def run_again(self, reruns: Reruns, view: View, *, uid: Uid = "") -> RunResult:
        """Run the experiment with the reruns where the search ran, or continue it.

        uid: that of a new one; "" is a random one.
        """
        reruns.file.check_runnable()
        search = reruns.search
        function = self._function_of(search)

        def bring_function(made: Experiment) -> None:
            if function is None:
                return
            target = self.experiments.folders(made.uid).root / function.name
            replace_file(target, function.read_bytes())

        session = Session(
            replace(self.workspace, service=self.workspace.service_of(search)),
            self.experiments,
            view=view,
            controls=self._controls,
            context=search.context or None,
            on_admitted=bring_function,
        )
        return await session.run(reruns.file, uid=uid)

    def _function_of(self, search: Experiment) -> Path | None:
        """Return the stored function that the trials of a search call; None: they call none."""
        if not search.spec.trial.calls_function:
            return None
        folders = self.experiments.folders(search.uid)
        if folders.stored_function is None:
            raise FailedPrecondition(
                f"{folders.root}: the function of {search.name} is gone; make the call of the "
                f"search again with name={search.name!r}, which stores it"
            )
        return folders.stored_function

    def _begin(self, admitted: Admitted | NothingToRun) -> None:
        """Print the notes. Raises FailedPrecondition if another context has the trials."""
        experiment, requested = admitted.experiment, self._context
        has_contexts = traits_of(experiment.spec.runtime).has_contexts
        if requested and has_contexts and requested != experiment.context:
            raise FailedPrecondition(
                f"the trials of {experiment.name} are on the cluster of context "
                f"{experiment.context}, not of "
                f"{requested}; omit --context, or choose another metadata.name for a new experiment"
            )
        for note in admitted.notes:
            self.view.print_line(note)

    async def _create(
        self, file: ExperimentFile, service: ExperimentService, uid: Uid
    ) -> RunResult | None:
        """Create the experiment and control it.

        Returns None if another process has created it meanwhile.
        """
        document, workspace = file.document, self.workspace
        reserved = service.reserve(document.spec.name, uid=uid)
        with ExitStack() as undo:
            undo.callback(reserved.lease.discard)
            draft = service.draft(
                document,
                file.directory,
                reserved,
                service=workspace.service,
                context=self._context or "",
            )
            connection = await workspace.runtime_of(draft, self.experiments)
            async with (
                _startup(workspace, connection, file.directory, is_new=True) as startup,
                workspace.connected(workspace.service) as client,
            ):
                self._controls.connected(client.hurry)
                await _check(document, draft, client, startup)
                try:
                    admitted = service.create(
                        document,
                        file.directory,
                        reserved,
                        service=workspace.service,
                        context=connection.context,
                    )
                except AlreadyExists:
                    return None
                # The lease is the experiment's from here on, and `_control` releases it.
                undo.pop_all()
                for sentence in guess(document.spec):
                    self.view.print_line(sentence)
                return await self._control(admitted, client, startup)

    async def _control(
        self, admitted: Admitted, client: SessionClient, startup: _StartupTasks
    ) -> RunResult:
        try:
            if self._on_admitted is not None:
                self._on_admitted(admitted.experiment)
            experiment, progress = await control(
                admitted,
                experiments=self.experiments,
                client=client,
                controls=self._controls,
                view=self.view,
                runtime=startup.connection.runtime,
                build=self.workspace.launch_builder(admitted.experiment),
                git=startup.git,
                on_trial=self._on_trial,
            )
            survives = traits_of(experiment.spec.runtime).survives_controller
            waits = experiment.state in (ExperimentState.PAUSED, ExperimentState.STOPPED)
            if waits and survives:
                await self._free_quota(experiment, startup.connection.runtime)
        finally:
            await startup.end()
            admitted.lease.release()
        best = await _best(experiment, progress.best, client)
        with suppress(TunerError):
            experiment, _ = await app.query.as_searched(experiment, client)
        return self._result(experiment, progress.counts, best)

    async def _free_quota(self, experiment: Experiment, runtime: Runtime) -> None:
        """Remove ended attempts.

        A pod that waits for a missing image still counts against the quota.
        """
        ended = [attempt for attempt in self.experiments.attempts(experiment.uid) if attempt.ended]
        # The next controller removes what is left.
        with suppress(RuntimeLost, PermissionDenied):
            for attempt in ended:
                await runtime.remove(
                    attempt_name(experiment.name, experiment.uid, attempt.trial, attempt.number)
                )

    async def _final_result(self, experiment: Experiment, client: SessionClient) -> RunResult:
        record = await app.query.gather(self.experiments, experiment, client)
        self.view.close(None)
        return self._result(record.experiment, record.counts, record.best)

    def _result(
        self, experiment: Experiment, counts: Mapping[TrialState, int], best: Trial | None
    ) -> RunResult:
        return RunResult(
            experiment,
            counts,
            best,
            final_failed=final_has_failed(self.experiments, experiment),
            opened_breaker=self._opened_breaker(experiment),
        )

    def _opened_breaker(self, experiment: Experiment) -> tuple[int, list[str]] | None:
        if experiment.state is not ExperimentState.PAUSED:
            return None
        attempts = self.experiments.attempts(experiment.uid)
        newest = {attempt.trial: attempt for attempt in attempts if attempt.trial is not FINAL}
        marked = ((each.end_time, trial) for trial, each in newest.items() if each.set_aside)
        failed = [(end_time, trial) for end_time, trial in marked if end_time is not None]
        if not failed:
            return None
        _, trial = max(failed)
        log = self.experiments.folders(experiment.uid).attempt(trial, newest[trial].number).log
        return trial, last_lines(log)


async def _check(
    document: Document, draft: Experiment, client: SessionClient, startup: _StartupTasks
) -> None:
    """Raise SpecErrors if the service or the runtime would not accept a new experiment."""
    assert startup.checked is not None
    try:
        spec = study_spec(document.spec)
        await client.validate(spec)
        if spec.learn_from:
            await create_study(
                client, study_name(draft), spec, request_id=draft.uid, validate_only=True
            )
        await startup.checked
    except InvalidArgument as error:
        raise document.locate(error.problems) from error


async def _best(
    experiment: Experiment, own_best: Trial | None, client: SessionClient
) -> Trial | None:
    """Return the best trial of the study, which may be an imported one.

    Returns `own_best` if the service no longer answers.
    """
    with suppress(TunerError):
        best = experiment.spec.criteria.first_best(
            await client.optimal_trials(study_name(experiment))
        )
        return own_best if best is None else best
    return own_best


async def control(
    admitted: Admitted,
    *,
    experiments: LocalExperiments,
    client: SessionClient,
    controls: Controls,
    view: View,
    runtime: Runtime,
    build: LaunchBuilder,
    git: Callable[[], Awaitable[GitState]] | None = None,
    on_trial: OnTrial | None = None,
) -> tuple[Experiment, Progress]:
    """Run the experiment until it ends, pauses or is stopped. Raises what `Loop.run` raises."""
    experiment = admitted.experiment
    traits = traits_of(experiment.spec.runtime)
    folders, trouble = experiments.folders(experiment.uid), experiments.trouble(experiment.uid)
    launcher = AttemptLauncher(
        folders,
        admitted.source,
        admitted.text,
        seed=lambda: client.seed,
        build=build,
        git=git,
    )
    loop = Loop(
        experiment,
        store=experiments,
        studies=client,
        runtime=runtime,
        launcher=launcher,
        clock=SystemClock(),
        on_event=view.event,
        patience_s=traits.patience_s,
        on_trial=on_trial or (lambda _trial: DesiredState.RUN),
        on_acted=controls.acted,
        on_trouble=lambda message: trouble.write(message, now=datetime.now(UTC)),
        polls_requests=not controls.are_all,
    )

    def hurry() -> None:
        client.hurry()
        runtime.hurry()

    controls.connected(hurry)
    controls.attach(loop, detaches=traits.survives_controller)
    drawing = asyncio.create_task(draw(view, loop.progress))
    try:
        if traits.in_containers or not experiment.spec.define_by_run:
            ended = await loop.run()
        else:
            ended = await _run_answering(loop, launcher, folders.root)
        return ended, loop.progress()
    except Exception as error:
        _note_exit(experiments, experiment, error)
        raise
    finally:
        broken = drawing.done()
        drawing.cancel()
        with suppress(asyncio.CancelledError):
            await drawing
        _close(view, None if broken else loop.progress())


async def _run_answering(loop: Loop, launcher: AttemptLauncher, root: Path) -> Experiment:
    """Run the loop, and answer trials on this machine that ask for parameters or a judgment."""
    async with answering(root, loop.decide, loop.judge) as requests:
        launcher.variables = {PARAMETER_REQUESTS: str(requests)}
        return await loop.run()


def _note_exit(experiments: LocalExperiments, experiment: Experiment, error: Exception) -> None:
    """Leave the reason of this exit for those who look at the experiment later."""
    message = str(error) or type(error).__name__
    experiments.trouble(experiment.uid).write(message, now=datetime.now(UTC), ended=True)


async def draw(view: View, progress: Callable[[], Progress]) -> None:
    """Refresh the view until cancelled, or until the view fails.

    A failure is logged once and does not end the run. Returns at once for a view that draws
    nothing, because computing the progress takes time.
    """
    try:
        while view.draws:
            view.refresh(progress())
            await asyncio.sleep(REFRESH_S)
    except Exception:
        logger.exception("progress can no longer be displayed; the run continues")


def _close(view: View, progress: Progress | None) -> None:
    try:
        view.close(progress)
    except Exception:
        logger.exception("the final state cannot be displayed; the run is not affected")


def last_lines(log: Path) -> list[str]:
    """Return the last printable lines of a log; none if it is not on this machine."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LAST_BYTES))
            text = ESCAPES.sub(b"", file.read()).decode(errors="replace")
    except OSError:
        return []
    if not text.strip():
        return []
    lines = [line.rpartition("\r")[2].expandtabs() for line in text.rstrip().split("\n")]
    return ["".join(c for c in line.rstrip() if c.isprintable()) for line in lines[-LAST_LINES:]]
