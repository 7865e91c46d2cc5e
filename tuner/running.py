"""Run an experiment from Python: `run`, and what `minimize` and the others share with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller import app
from controller.app.experiment_file import ExperimentFile, FileOptions
from controller.app.experiments import Extensible, Revisable
from controller.core.model import ExperimentState
from controller.core.snapshot import DesiredState
from controller.runtime import trial_files
from tuner.arguments import problems_by_argument
from tuner.experiment import Experiment
from tuner.importing import import_into
from tuner.session import CLUSTER, Shell, run_session
from tuner.study import Study, check_overrides, raise_if_unfinished, workspace_of

if TYPE_CHECKING:
    from controller.app.run import RunResult, Session
    from controller.app.workspace import Workspace
    from controller.core.model import Experiment as StoredExperiment
    from suggest.trial import Trial as StoredTrial

# Any: a Study and a TrialResult; in `tuner.optimize_optuna` a study of Optuna and its trial
Callback = Callable[[Any, Any], object]


class Callbacks:
    """Functions that are called in this process when a trial has ended.

    They are called between two turns of the controller. An exception in one ends the search as
    Ctrl-C does; `error` keeps it to be raised when running trials have ended.
    """

    def __init__(
        self,
        functions: Sequence[Callback],
        workspace: Workspace,
        name: str,
        namespace: str | None,
        *,
        on_stop: DesiredState,
    ) -> None:
        self._functions = functions
        self._study = Study(workspace, name, namespace, stop=self._stop)
        self._on_stop = on_stop
        self._desired = DesiredState.RUN
        self.error: BaseException | None = None

    def __call__(self, trial: StoredTrial) -> DesiredState:
        if self.error is not None:
            return self._desired
        try:
            result = self._study.result(trial.number)
            for function in self._functions:
                function(self._study, result)
        except BaseException as error:
            # An error of any kind is for the caller of minimize.
            self.error = error
            self._desired = max(self._desired, DesiredState.INTERRUPT, key=list(DesiredState).index)
        return self._desired

    def _stop(self) -> None:
        self._desired = self._on_stop


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
    """Run an experiment, from a file or built in Python, to its end.

    A stored one of its name is continued.

    A pause is lifted.

    Args:
        overrides: As `--set`: `spec.budget.trials=10`.
        runtime, namespace, context: Where trials run, as `--runtime`, `--namespace` and
            `--context`. With runtime="cluster", the controller that is installed in the cluster
            runs the search, as after `tuner apply`, and it goes on without this process.
        import_from: Finished trials to learn from, as `import_from` of `tuner.minimize`.
        state_dir: As `--state-dir`.
        progress: Show progress on stderr.

    Raises:
        TunerError: The file has problems, or the search cannot be run here; the message says what
        to do. SearchFailed: It failed, or it is paused until a person acts.
        KeyboardInterrupt: Ctrl-C, after running trials were ended; running it again continues.
    """
    check_overrides("run", overrides)
    workspace = workspace_of(state_dir)
    handed_over = runtime == CLUSTER
    if handed_over:
        # Here, because it loads the client of Kubernetes.
        from tuner import cluster

        cluster.refuse("tuner.run", {"import_from": import_from, "state_dir": state_dir})
    options = FileOptions(
        overrides=tuple(overrides),
        runtime="kubernetes" if handed_over else runtime,
        namespace=namespace,
        context=context,
        handed_over=handed_over,
    )
    with problems_by_argument(experiment.arguments if isinstance(experiment, Experiment) else {}):
        if isinstance(experiment, Experiment):
            file = experiment.file(options, workspace.state)
        else:
            file = ExperimentFile.read(str(experiment), options, workspace.state)
        if handed_over:
            file.check_runnable()
            files = trial_files.read(file.directory, file.document.spec.trial.files)
            return cluster.hand_over(
                file,
                files,
                caller="tuner.run",
                context=context,
                progress=progress,
                overrides=overrides,
            )
        if import_from is not None:
            import_into(file, workspace, import_from, caller="tuner.run", context=context)
        return control(workspace, file, context=context, progress=progress)


def control(
    workspace: Workspace,
    file: ExperimentFile,
    *,
    progress: bool,
    context: str | None,
    on_admitted: Callable[[StoredExperiment], None] | None = None,
    callbacks: Sequence[Callback] = (),
    on_stop: DesiredState = DesiredState.STOP,
    shell: Shell | None = None,
) -> Study:
    """Create the file's experiment or continue it, until it ends. Raises as `run`.

    on_stop: what `study.stop()` in a callback means.
    """
    file.check_runnable()

    async def act(session: Session) -> RunResult:
        spec = file.document.spec
        stored = session.experiments.experiment(spec.namespace, spec.name)
        if stored is not None and stored.state is ExperimentState.PAUSED:
            # A person has corrected something, and calls again.
            return await session.resume(file, None)
        try:
            return await session.run(file)
        except Revisable:
            # More trials, or more at a time: the call says so, as `tuner resume FILE` does.
            return await session.resume(file, None)
        except Extensible:
            # Likewise, as `tuner extend FILE` does.
            admitted = await app.extend.extend(
                session.workspace,
                session.experiments,
                file,
                app.extend.Extension(),
                namespace=None,
                print_line=session.view.print_line,
            )
            return await session.go_on(admitted)

    spec = file.document.spec
    called = None
    if callbacks:
        called = Callbacks(callbacks, workspace, spec.name, spec.namespace, on_stop=on_stop)
    experiment = run_session(
        workspace,
        act,
        progress=progress,
        context=context,
        on_admitted=on_admitted,
        on_trial=called,
        shell=shell,
        document=file.document,
    )
    if called is not None and called.error is not None:
        raise called.error
    study = Study(workspace, experiment.name, experiment.namespace)
    raise_if_unfinished(experiment, study)
    return study
