"""A stored search and its results.

Each call reads the stores; nothing is kept.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from controller import app
from controller.app.signals import Interruptions
from controller.app.state_directory import StateDirectory
from controller.app.workspace import ReadableWorkspace, Workspace
from controller.core.model import ExperimentState, ReasonCode, short_name
from controller.report.description import continuation, cure
from suggest.client import Client
from suggest.errors import InvalidArgument, NotFound, TunerError
from tuner.arguments import KEYS, in_file
from tuner.plots import Plots
from tuner.session import run_session
from tuner.waiting import waited_for

if TYPE_CHECKING:
    from controller.app.extend import Extension
    from controller.app.run import RunResult, Session
    from controller.core.model import Experiment as StoredExperiment
    from controller.report.record import ExperimentRecord, TrialRecord
    from suggest.estimate import Estimate

Result = TypeVar("Result")


# Names that Optuna's studies and trials have, and what these have instead.
_INSTEAD_OF_STUDY = {
    "best_params": "use study.best.parameters",
    "best_value": "use study.best.value",
    "best_trial": "use study.best",
    "best_trials": "use study.front",
    "get_trials": "use study.results()",
    "trials_dataframe": "use study.trials(), which is a data frame if pandas is installed",
    "optimize": "use tuner.minimize, tuner.maximize or tuner.optimize, or study.extend for more "
    "trials",
    "ask": "use tuner.connect, for points of a running service",
    "tell": "use tuner.connect, for points of a running service",
    "enqueue_trial": "pass initial=[{'x': 1}] to the search",
}
_INSTEAD_OF_RESULT = {"params": "use result.parameters", "user_attrs": "use result.metrics"}


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One trial. state: queued, running, succeeded, pruned, infeasible, failed or cancelled.

    value: of a pruned trial, the last it reported; None where there is none. metrics: the value of
    each objective, and the last value of each other metric. Times are in UTC.
    """

    number: int
    state: str
    parameters: dict[str, Any]
    value: float | None = None
    reason: str = ""
    attempts: int = 0
    start_time: datetime | None = None
    end_time: datetime | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    # Type checkers refuse unknown names by themselves.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Name what replaces an attribute of Optuna's. Raises AttributeError."""
            return _refuse_attribute(self, name, _INSTEAD_OF_RESULT)


class Study:
    """A stored search.

    Each property reads what is known now, also while another process runs it.
    """

    def __init__(
        self,
        workspace: ReadableWorkspace,
        name: str,
        namespace: str | None = None,
        *,
        stop: Callable[[], None] | None = None,
    ) -> None:
        """stop: stops the search from within a callback, which must not wait for the run."""
        self._workspace = workspace
        self._stop = stop
        self.name = name
        self._namespace = namespace

    def __repr__(self) -> str:
        return f"<tuner.Study {self.name!r}>"

    # Type checkers refuse unknown names by themselves.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Name what replaces an attribute of Optuna's. Raises AttributeError."""
            return _refuse_attribute(self, name, _INSTEAD_OF_STUDY)

    @property
    def unique_name(self) -> str:
        """The name with a part of the random id.

        The id changes if a search is deleted and created again.
        """
        experiment = self._record().experiment
        return short_name(experiment.name, experiment.uid)

    @property
    def state(self) -> str:
        """running, paused, stopping, succeeded, failed or stopped."""
        return self._record().experiment.state.value

    @property
    def reason(self) -> str:
        """Why it ended or is paused, as a sentence."""
        return self._record().experiment.reason

    @property
    def reason_code(self) -> str | None:
        """The reason as a stable word, such as `TrialsDone` (docs/cli.md).

        None while the search runs.
        """
        code = self._record().experiment.reason_code
        return None if code is None else code.value

    @property
    def best(self) -> TrialResult | None:
        """The best succeeded trial; None before there is one."""
        record = self._record()
        best = record.best
        if best is None:
            return None
        return next(
            _result(record, entry) for entry in record.trials if entry.trial.number == best.number
        )

    @property
    def front(self) -> list[TrialResult]:
        """The Pareto front of several objectives, in the order of the first one.

        With one, the best trial alone.
        """
        record = self._record()
        by_number = {entry.trial.number: entry for entry in record.trials}
        return [_result(record, by_number[trial.number]) for trial in record.front]

    def trials(self) -> Any:
        """Return all trials by number.

        Returns a pandas DataFrame if pandas is installed, else a list of `TrialResult`.
        """
        results = self.results()
        try:
            import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError:
            return results
        return pandas.DataFrame([_row(result) for result in results])

    def results(self) -> list[TrialResult]:
        """Return all trials by number."""
        record = self._record()
        return [_result(record, entry) for entry in record.trials]

    def result(self, trial: int) -> TrialResult:
        """Return one trial. Raises NotFound (a TunerError) if there is none of this number."""
        return _result(*self._trial(trial))

    def measurements(self, trial: int) -> list[tuple[int, str, float]]:
        """Return what a trial reported: step, metric and value, by step.

        Raises NotFound (a TunerError).
        """
        record, _ = self._trial(trial, measurements=True)
        newest = max(
            (measurement.attempt for measurement in record.measurements.get(trial, ())), default=0
        )
        return [
            (m.step, m.metric, m.value)
            for m in record.measurements.get(trial, ())
            if m.attempt == newest
        ]

    def estimate(self) -> Estimate | None:
        """Return what a model says of the best value, and of what is left to gain.

        The best value is without the noise of single trials. Returns None with fewer than 10
        values, with several objectives and with constraints.
        """
        return waited_for(app.query.with_estimate(self._workspace, self.name, self._namespace))[1]

    @property
    def plot(self) -> Plots:
        """Figures, such as `study.plot.history()` in a notebook.

        In a script: `study.plot.history().save("history.svg")`.
        """
        return Plots(lambda: self._record(measurements=True))

    def log(self, trial: int) -> str:
        """Return what a trial's newest attempt printed; "" if that is not where the search is.

        Raises NotFound.
        """
        _, entry = self._trial(trial)
        if entry.newest is None:
            return ""
        parts: list[bytes] = []
        with self._workspace.opened() as experiments, suppress(NotFound):
            experiment = app.experiments.find(experiments, self.name, self._namespace)
            log = experiments.log(experiment.uid, entry.newest)
            begin, data = log.read(0)
            while data:
                parts.append(data)
                begin, data = log.read(begin + len(data))
        return b"".join(parts).decode("utf-8", errors="replace")

    def resume(self, *, progress: bool = True) -> Study:
        """Continue after an interruption, a stop or a pause. Raises as `tuner.run`."""
        return self._control(lambda session: session.resume(self.name, self._namespace), progress)

    def extend(
        self, trials: int = 0, *, overrides: Sequence[str] = (), progress: bool = True
    ) -> Study:
        """Add `trials` to the budget, or widen the search (`overrides`: as --set), and continue.

        Raises as `run`.
        """
        changes = extension(trials, overrides)

        async def extended(session: Session) -> RunResult:
            admitted = await app.extend.extend(
                session.workspace,
                session.experiments,
                self.name,
                changes,
                namespace=self._namespace,
                print_line=session.view.print_line,
            )
            return await session.go_on(admitted)

        return self._control(extended, progress)

    def _control(self, act: Callable[[Session], Awaitable[RunResult]], progress: bool) -> Study:
        experiment = run_session(self._here, act, progress=progress)
        raise_if_unfinished(experiment, self)
        return self

    def set(self, **values: object) -> None:
        """Change the search while it runs, without stopping a trial.

        For example: `study.set(parallelism=8, trials=200)`. A search that does not run has the
        values when it continues.

        Args:
            values: `parallelism`, `trials`, `timeout`, `trial_timeout` and `pruning`, as in
                `tuner.minimize`.

        Raises:
            TypeError: An unknown argument.
            TunerError: A value is not possible, or the search has ended: use `extend`.
        """
        overrides = settings(values)
        waited_for(
            app.revise.set_values(
                self._here, self.name, self._namespace, overrides, print_line=_nothing
            )
        )

    def stop(self) -> None:
        """Cancel running trials and end the search; `resume` continues it with new ones.

        In a callback it returns at once, and the search ends when the callbacks have returned.
        """
        if self._stop is not None:
            self._stop()
            return
        waited_for(
            app.stop.stop(
                self._here,
                self.name,
                self._namespace,
                controls=lambda: nullcontext(Interruptions(_nothing)),
                print_line=_nothing,
            )
        )

    def delete(self) -> None:
        """Delete the search, its trials and their files.

        Raises FailedPrecondition (a TunerError): it is running.
        """
        waited_for(
            app.delete.delete(
                self._here, [self.name], self._namespace, confirm=lambda _target: True
            )
        )

    def last_failure(self) -> str:
        """Return the last failed trial's traceback, else its last printed lines, else the reason.

        Returns "" if none failed.
        """
        record = self._record()
        ended = {
            (newest.end_time, entry.trial.number): entry
            for entry in record.trials
            if (newest := entry.newest) is not None
            and newest.failure_class is not None
            and newest.end_time is not None
        }
        if not ended:
            return ""
        last = ended[max(ended)]
        log = self.log(last.trial.number).rstrip()
        _, marker, trace = log.rpartition("Traceback (most recent call last):")
        if marker:
            return marker + trace
        printed = [line for line in log.splitlines() if line and not line.startswith("tuner.")]
        return "\n".join(printed[-10:]) or f"trial {last.trial.number}: {record.reason_of(last)}"

    @property
    def _here(self) -> Workspace:
        """Return this machine's workspace, in which the search is changed."""
        assert isinstance(self._workspace, Workspace), "a search elsewhere is changed otherwise"
        return self._workspace

    def _trial(
        self, number: int, *, measurements: bool = False
    ) -> tuple[ExperimentRecord, TrialRecord]:
        """Return the record of the search, and one of its trials. Raises NotFound."""
        record = self._record(trial=number, measurements=measurements)
        for entry in record.trials:
            if entry.trial.number == number:
                return record, entry
        raise NotFound(f"{self.name} has no trial {number}")

    def _record(self, *, trial: int | None = None, measurements: bool = False) -> ExperimentRecord:
        return waited_for(
            app.query.look_up(
                self._workspace,
                self.name,
                self._namespace,
                latest=trial is None,
                measurements=measurements,
                trial=trial,
            )
        )


class SearchFailed(TunerError, RuntimeError):
    """The search failed or is paused until a person acts. `study` has its results so far.

    The message has the reason and, where trials failed, what the last one printed.
    """

    reason = "SEARCH_FAILED"

    def __init__(self, message: str, study: Study) -> None:
        super().__init__(message)
        self.study = study


def raise_if_unfinished(
    experiment: StoredExperiment,
    study: Study,
    *,
    in_place: Callable[[str], str] = lambda text: text,
) -> None:
    """Raise SearchFailed, unless the search ended well.

    in_place: makes commands of the message name the place of the search.
    """
    if experiment.state in (ExperimentState.FAILED, ExperimentState.PAUSED):
        end = "failed" if experiment.state is ExperimentState.FAILED else "is paused"
        message = f"{experiment.name} {end}: {experiment.reason}"
        printed = study.last_failure()
        parts = [message, "" if printed in message else printed, in_place(_cure(experiment))]
        raise SearchFailed("\n".join(filter(None, parts)), study)


def _cure(experiment: StoredExperiment) -> str:
    if experiment.state is ExperimentState.PAUSED:
        if experiment.spec.trial.calls_function:
            return cure(experiment)
        return "correct it, and run it again"
    if experiment.reason_code is ReasonCode.TOO_MANY_FAILURES:
        return continuation(experiment)
    return ""


def connect(address: str, **options: Any) -> Client:
    """Return a client of a running suggestion service, to request points and report outcomes.

    See `suggest.Client`.
    """
    return Client(address, **options)


def workspace_of(state_dir: str | Path | None) -> Workspace:
    return Workspace(StateDirectory.find(None if state_dir is None else str(state_dir)))


def check_overrides(caller: str, overrides: object) -> None:
    """Raise TypeError for a text instead of a list: it would be read letter by letter."""
    if isinstance(overrides, str):
        raise TypeError(
            f"{caller}: overrides: expected a list, such as ['spec.budget.trials=10'], got "
            f"{overrides!r}"
        )


def _refuse_attribute(owner: object, name: str, instead: Mapping[str, str]) -> object:
    """Raise AttributeError, with what replaces the attribute."""
    if name in instead:
        raise AttributeError(
            f"a tuner.{type(owner).__name__} has no attribute {name!r}; {instead[name]}"
        )
    # Raises again what a property raised.
    return object.__getattribute__(owner, name)


def _result(record: ExperimentRecord, entry: TrialRecord) -> TrialResult:
    trial = entry.trial
    first = record.experiment.spec.objective.metric
    of_objective = {} if trial.value is None else {first: trial.value}
    return TrialResult(
        number=trial.number,
        state=entry.state.value,
        parameters={
            name: trial.parameters[name]
            for name in record.parameter_names
            if name in trial.parameters
        },
        value=trial.value,
        reason=record.reason_of(entry),
        attempts=len(entry.attempts),
        start_time=entry.start_time,
        end_time=entry.end_time,
        metrics=of_objective | dict(record.metrics.get(trial.number, {})),
    )


def _row(result: TrialResult) -> dict[str, object]:
    """Return a flat row: parameters under their names, metrics as metrics.NAME."""
    row = asdict(result)
    metrics, parameters = row.pop("metrics"), row.pop("parameters")
    return {
        "number": row.pop("number"),
        "state": row.pop("state"),
        "value": row.pop("value"),
        **parameters,
        **{f"metrics.{name}": value for name, value in metrics.items()},
        **row,
    }


def extension(trials: int, overrides: Sequence[str]) -> Extension:
    """Return the arguments of `Study.extend`. Raises InvalidArgument."""
    check_overrides("extend", overrides)
    if not isinstance(trials, Integral) or trials < 0 or not (trials or overrides):
        message = (
            "expected trials above 0, or overrides such as ['spec.budget.wallClock=2h'], got "
            f"{trials!r}"
        )
        raise InvalidArgument.at("extend", message)
    return app.extend.Extension(f"+{trials}" if trials else "", tuple(overrides))


def settings(values: Mapping[str, object]) -> list[str]:
    """Return the arguments of `Study.set`, as `--set` has them. Raises TypeError."""
    if unknown := [name for name in values if name not in _SETTABLE]:
        raise TypeError(f"set: unknown argument {unknown[0]!r}; there are {', '.join(_SETTABLE)}")
    return [f"{KEYS[name]}={json.dumps(in_file(name, value))}" for name, value in values.items()]


def _nothing(_: str) -> None: ...


# The arguments of `Study.set`.
_SETTABLE = ("parallelism", "trials", "timeout", "trial_timeout", "pruning")
