"""Import finished trials from elsewhere into an experiment, so that its search learns from them.
Runs nothing.

An import may be repeated, also while the experiment runs, because each trial is imported only once.
A new experiment is created but not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from controller.app.experiment_file import ExperimentFile
from controller.app.experiment_service import ExperimentService
from controller.app.experiments import ControlledElsewhere, Revisable, find
from controller.app.import_sources import SourceChoice, read_source
from controller.app.local_experiments import LocalExperiments
from controller.app.suggestion_service import SessionClient
from controller.app.workspace import Workspace
from controller.core.model import Experiment, ExperimentState
from controller.search import ExperimentStudy, study_name, study_spec
from suggest.client import FinishedTrial, ImportResult
from suggest.errors import InvalidArgument, NotFound
from suggest.imports import Source

AT_ONCE = 500  # trials per request
MEASURED_AT_ONCE = 10_000


@dataclass(slots=True)
class ImportTally:
    """The results of an import.

    known: the number of trials that were imported before.
    remarks: the number of values that each remark concerns, by parameter.
    """

    new: int = 0
    known: int = 0
    remarks: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)

    def count(self, place: str, result: ImportResult) -> None:
        if result.number is None:
            self.refused.append(
                f"{place}: " + "; ".join(f"{p.path}: {p.message}" for p in result.problems)
            )
            return
        self.known += result.known
        self.new += not result.known
        self.remarks.update(p.path for p in result.problems)


@dataclass(frozen=True, slots=True)
class Imported:
    """A finished import. `begun` says that the experiment has attempts of its own."""

    experiment: Experiment
    source: Source
    tally: ImportTally
    begun: bool


async def import_trials(
    workspace: Workspace,
    target: ExperimentFile | str,
    chosen: SourceChoice | Source,
    *,
    namespace: str | None,
    context: str | None,
) -> Imported:
    """Import trials into the experiment `target`, given by its file or its name.

    chosen: a source to read, or one that was read.

    Raises NotFound, InvalidArgument, FailedPrecondition, Changed.
    """
    with workspace.opened(make=isinstance(target, ExperimentFile)) as experiments:
        experiment: Experiment | None
        if isinstance(target, ExperimentFile):
            spec = target.document.spec
            # What a person may revise, such as the budget, changes nothing of an import.
            with suppress(Revisable):
                ExperimentService(experiments).known(target.document)
            experiment = experiments.experiment(spec.namespace, spec.name)
        else:
            experiment = find(experiments, target, namespace)
            spec = experiment.spec
        if isinstance(chosen, SourceChoice):
            source = await read_source(chosen, workspace, spec)
        else:
            source = chosen
        if not source.trials and not source.refused:
            raise NotFound(f"{source.title} has no finished trial{left_out(source)}")
        service = workspace.service if experiment is None else workspace.service_of(experiment)
        async with workspace.connected(service) as client:
            if experiment is None:
                assert isinstance(target, ExperimentFile)
                experiment = await _create(workspace, experiments, target, client, service, context)
            await ExperimentStudy(experiment, client).make(
                begun=bool(experiments.attempts(experiment.uid))
            )
            tally = await import_source(client, experiment, source)
        now = experiments.experiment(experiment.namespace, experiment.name) or experiment
        begun = bool(experiments.attempts(now.uid))
        if now.state is ExperimentState.RUNNING and not begun:
            # It was created for an import, by this process or by a killed one, unless a controller
            # has just taken it.
            with suppress(ControlledElsewhere):
                now = ExperimentService(experiments).not_run(now)
        return Imported(now, source, tally, begun)


async def import_source(
    client: SessionClient, experiment: Experiment, source: Source
) -> ImportTally:
    """Import the trials of a source into the study of an experiment, which exists."""
    tally = ImportTally(refused=[f"{p.path}: {p.message}" for p in source.refused])
    for batch in _batches(source.trials):
        results = await client.import_trials(
            study_name(experiment),
            [trial for _, trial in batch],
            source=source.title,
            request_id=source.identity,
        )
        for (place, _), result in zip(batch, results, strict=True):
            tally.count(place, result)
    return tally


async def _create(
    workspace: Workspace,
    experiments: LocalExperiments,
    file: ExperimentFile,
    client: SessionClient,
    service: str,
    context: str | None,
) -> Experiment:
    """Create the experiment like a run, without running it."""
    spec = file.document.spec
    try:
        await client.validate(study_spec(spec))
    except InvalidArgument as error:
        raise file.document.locate(error.problems) from error
    of = ExperimentService(experiments)
    reserved = of.reserve(spec.name)
    try:
        draft = of.draft(
            file.document, file.directory, reserved, service=service, context=context or ""
        )
        connection = await workspace.runtime_of(draft, experiments)
        await connection.close()
        admitted = of.create(
            file.document, file.directory, reserved, service=service, context=connection.context
        )
    except BaseException:
        reserved.lease.discard()
        raise
    admitted.lease.release()
    return admitted.experiment


def _batches(
    trials: Sequence[tuple[str, FinishedTrial]],
) -> Iterator[list[tuple[str, FinishedTrial]]]:
    batch: list[tuple[str, FinishedTrial]] = []
    measured = 0
    for place, trial in trials:
        is_full = measured + len(trial.measurements) > MEASURED_AT_ONCE
        if batch and (is_full or len(batch) == AT_ONCE):
            yield batch
            batch, measured = [], 0
        batch.append((place, trial))
        measured += len(trial.measurements)
    if batch:
        yield batch


def left_out(source: Source) -> str:
    return "".join(f"; {n} left out, {cause}" for cause, n in source.left_out.items())
