"""Read experiments, studies and trials from controller.db
and the suggestion service. Changes nothing.

It takes no lease and owns no study, so it works whether or not a controller is running.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from controller.app.experiments import (
    Overview,
    ReadableExperiments,
    cure_for_trial,
    final_attempts,
    find,
)
from controller.app.stored_studies import StoredStudies
from controller.app.workspace import ReadableWorkspace, StudyReads
from controller.boot_time import since_boot_s
from controller.core.model import (
    FINAL,
    Attempt,
    Experiment,
    ExperimentState,
    TrialOrFinal,
    Uid,
    by_trial,
    trial_name,
)
from controller.core.quota_use import QuotaReport
from controller.folders import ExperimentFolders
from controller.phrases import command
from controller.report.final import FinalRecord, OutputFile
from controller.report.ranking import trials_that_ran
from controller.report.record import (
    ExperimentRecord,
    StudyTrials,
    Totals,
    TrialList,
    TrialRecord,
    in_order,
    last_values,
    note_latest,
)
from controller.runtime.registry import provider_of, traits_of
from controller.search import CHOOSES, lost, study_name
from suggest.errors import (
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    StoreBroken,
    TunerError,
    Unauthenticated,
    Unavailable,
    did_you_mean,
)
from suggest.estimate import LEAST_TRIALS, Estimate
from suggest.names import parse_study
from suggest.space import Value
from suggest.studies.importances import importances as importances_of
from suggest.study import SIMILAR, StudyName
from suggest.trial import Measurement, Trial, TrialState

if TYPE_CHECKING:
    from suggest.replies import StudySummary
    from suggest.study import Study

Trials = TypeVar("Trials", bound=TrialList)

OnError: TypeAlias = Callable[[TunerError], None]

# Experiments


async def gather(
    experiments: ReadableExperiments,
    experiment: Experiment,
    studies: StudyReads,
    *,
    measurements: bool = False,
    latest: bool = False,
    trial: TrialOrFinal | None = None,
) -> ExperimentRecord:
    """Return everything that is known about the experiment.

    Args:
        measurements: Read the measurements as well, of one trial or of all.
        latest: Read the last value of each metric. Running trials show that of the objective as
            their value.
        trial: The only trial whose events and measurements are read. A number: also the only
            trial, if there is one of that number.
    """
    # The holder is read first, because a controller stores the end before it releases its lease.
    holder = experiments.holder(experiment.uid)
    if holder is None:
        now = experiments.experiment(experiment.namespace, experiment.name)
        experiment = now if now is not None and now.uid == experiment.uid else experiment
    name = study_name(experiment)
    one = None if trial is FINAL else trial
    folders = experiments.folders(experiment.uid)
    stored = experiments.attempts(experiment.uid, one)
    attempts = by_trial((each.trial, by_present_clock(each, folders)) for each in stored)
    trials: Sequence[Trial] = ()
    totals: Totals | None = None
    measured: dict[int, list[Measurement]] = {}
    last: list[tuple[int, Measurement]] = []
    settings: Mapping[str, Value] = {}
    try:
        experiment, settings = await as_searched(experiment, studies, with_settings=latest)
        trials = await _trials(studies, experiment, one)
        if one is not None and [each.state for each in trials] == [TrialState.SUCCEEDED]:
            best = await studies.optimal_trials(name)
            totals = Totals({}, in_order(best, experiment.spec.criteria))
        numbers = {each.number for each in trials}
        if trial is not FINAL and (trial is None or trial in numbers):
            if measurements:
                measured = by_trial(await studies.list_measurements(name, trial))
            if latest:
                last = await studies.list_measurements(name, trial, latest=True)
    except NotFound as error:
        if attempts or (one is not None and experiments.attempts(experiment.uid)):
            raise lost(name, experiment.name) from error
        # otherwise the controller was killed before it created the study
    objective = experiment.spec.objective.metric
    latest_of: dict[int, dict[str, Measurement]] = {}
    note_latest(latest_of, last)
    reached = {number: by_metric.get(objective) for number, by_metric in latest_of.items()}
    return ExperimentRecord(
        experiment=experiment,
        trials=[
            TrialRecord(t, attempts.get(t.number, ())).so_far(reached.get(t.number)) for t in trials
        ],
        events=experiments.events(experiment.uid, trial),
        controlled_by="" if holder is None else str(holder),
        trouble=experiments.trouble(experiment.uid).read(controlled=holder is not None),
        tenant_budget=experiments.tenant_budget(experiment.namespace),
        measurements=measured,
        settings=settings,
        final=final_record(experiments, experiment),
        metrics=last_values(last, without=objective),
        totals=totals,
    )


def by_present_clock(attempt: Attempt, folders: ExperimentFolders | None) -> Attempt:
    """Return an attempt that runs on this machine with its start by the present wall clock.

    The clock may have been set since.
    """
    if folders is None or attempt.ended or attempt.start_time is None:
        return attempt
    try:
        file = folders.attempt(attempt.trial, attempt.number).root / "process.json"
        record = json.loads(file.read_bytes())
        age_s = since_boot_s() - record["since_boot_s"]
        set_by_s = time.time() - (record["time"] + age_s)
    except (OSError, ValueError, LookupError, TypeError):
        return attempt
    # Less is that of a clock that is kept right.
    if abs(set_by_s) < 1:
        return attempt
    return replace(attempt, start_time=attempt.start_time + timedelta(seconds=set_by_s))


async def _trials(studies: StudyReads, experiment: Experiment, one: int | None) -> list[Trial]:
    """Return one trial of the experiment; all if there is no such trial, as its error names them.

    Raises NotFound if there is no study.
    """
    name = study_name(experiment)
    if one is not None:
        with suppress(NotFound):
            trial = await studies.get_trial(name, one)
            if belongs(trial, experiment):
                return [trial]
    return [each for each in await studies.list_trials(name) if belongs(each, experiment)]


async def as_searched(
    experiment: Experiment, studies: StudyReads, *, with_settings: bool = False
) -> tuple[Experiment, Mapping[str, Value]]:
    """Return the experiment with what only its study knows, and its settings. Raises NotFound."""
    spec = experiment.spec
    chooses = with_settings and spec.algorithm.name == CHOOSES
    finds_similar = SIMILAR in (each.study for each in spec.learn_from)
    if not (chooses or finds_similar or spec.define_by_run):
        return experiment, {}
    study = (await studies.get_study(study_name(experiment))).spec
    if finds_similar:
        spec = replace(spec, learn_from=study.learn_from)
    if spec.define_by_run:
        spec = replace(spec, space=study.space)
    return replace(experiment, spec=spec), study.algorithm.settings if chooses else {}


def belongs(trial: Trial, experiment: Experiment) -> bool:
    """Return whether a trial of the study is the experiment's own, or counts as one."""
    record = TrialRecord(trial)
    return bool(trial.client_id == experiment.uid or record.imported_from or record.value_of)


@asynccontextmanager
async def _found(
    workspace: ReadableWorkspace, name: str, namespace: str | None
) -> AsyncIterator[tuple[ReadableExperiments, Experiment, StudyReads]]:
    """Yield the experiment of that name, with what it is read from. Raises NotFound."""
    with workspace.opened() as experiments:
        experiment = find(experiments, name, namespace)
        async with workspace.reading(workspace.service_of(experiment)) as studies:
            yield experiments, experiment, studies


async def look_up(
    workspace: ReadableWorkspace,
    name: str,
    namespace: str | None,
    *,
    measurements: bool = False,
    latest: bool = False,
    trial: TrialOrFinal | None = None,
) -> ExperimentRecord:
    """Return the experiment of that name, as `gather` reads it. Raises NotFound."""
    async with _found(workspace, name, namespace) as (experiments, experiment, studies):
        return await gather(
            experiments, experiment, studies, measurements=measurements, latest=latest, trial=trial
        )


async def with_estimate(
    workspace: ReadableWorkspace, name: str, namespace: str | None
) -> tuple[ExperimentRecord, Estimate | None]:
    """Return the experiment with the metrics of its best trial, and a model's estimate.

    The estimate is missing if the service can compute none. Raises NotFound.
    """
    async with _found(workspace, name, namespace) as (experiments, experiment, studies):
        record = await gather(experiments, experiment, studies)
        study, objective = study_name(experiment), experiment.spec.objective.metric
        if record.best is not None:
            last = await studies.list_measurements(study, record.best.number, latest=True)
            record = replace(record, metrics=last_values(last, without=objective))
        is_plain = experiment.spec.criteria.is_plain
        if not is_plain or record.counts.get(TrialState.SUCCEEDED, 0) < LEAST_TRIALS:
            return record, None
        try:
            return record, await studies.estimate(study)
        except (FailedPrecondition, Unavailable):
            return record, None


async def watch(
    workspace: ReadableWorkspace,
    name: str,
    namespace: str | None,
    see: Callable[[ExperimentRecord], Awaitable[bool]],
    *,
    every_s: float,
    on_error: OnError,
) -> None:
    """Call `see` with the result of `look_up` at intervals, until it returns True: see `_again`."""
    async with _found(workspace, name, namespace) as (experiments, found, studies):
        known: Experiment | None = found

        async def look() -> bool:
            nonlocal known
            experiment = known or find(experiments, found.name, found.namespace)
            known = None
            return await see(await gather(experiments, experiment, studies, latest=True))

        await _again(look, every_s, on_error)


async def _again(look: Callable[[], Awaitable[bool]], every_s: float, on_error: OnError) -> None:
    """Look at intervals until that returns True.

    After the first look, what answers late is reported to `on_error` once, and asked again.
    """
    has_seen, told = False, ""
    while True:
        try:
            if await look():
                return
            has_seen, told = True, ""
        except Unavailable as error:
            if not has_seen:
                raise
            if str(error) != told:
                on_error(error)
            told = str(error)
        await asyncio.sleep(every_s)


async def watch_all(
    workspace: ReadableWorkspace,
    namespace: str | None,
    see: Callable[[Sequence[ExperimentRecord], Sequence[TunerError]], Awaitable[bool]],
    *,
    every_s: float,
    on_error: OnError,
    at_work: bool = False,
) -> None:
    """Call `see` with the result of `all_experiments` and its errors: see `_again`.

    Experiments that could be read before, but not now, are as they were.
    """
    known: dict[Uid, ExperimentRecord] = {}

    async def look() -> bool:
        errors: list[TunerError] = []
        found = await all_experiments(workspace, namespace, on_error=errors.append, at_work=at_work)
        known.update((each.experiment.uid, each) for each in found if not each.unread)
        return await see([known.get(each.experiment.uid, each) for each in found], errors)

    await _again(look, every_s, on_error)


async def all_experiments(
    workspace: ReadableWorkspace,
    namespace: str | None,
    *,
    on_error: OnError,
    at_work: bool = False,
) -> list[ExperimentRecord]:
    """Return all experiments of one namespace or of all.

    Reports to `on_error` why the trials of some could not be read.

    at_work: Return those that have not ended, with what `gather` reads as `latest`.
    """
    try:
        with workspace.opened() as experiments:
            stored = experiments.in_namespace(namespace)
            if at_work:
                stored = [each for each in stored if not each.state.finished]
            for each in experiments.never_ran():
                on_error(FailedPrecondition(str(each)))
            records: dict[str, ExperimentRecord] = {}
            for service in dict.fromkeys(each.server for each in stored):
                reachable = [each for each in stored if each.server == service]
                try:
                    async with workspace.reading(service) as studies:
                        told = await overviews(experiments, reachable, studies)
                        read = partial(
                            _without_lost_trials, experiments, studies, on_error, at_work=at_work
                        )
                        answers = [await read(each, told=told.get(each.uid)) for each in reachable]
                except (Unavailable, Unauthenticated, PermissionDenied) as error:
                    on_error(error)
                    answers = [_unread(experiments, experiment) for experiment in reachable]
                records.update((record.experiment.uid, record) for record in answers)
            return [records[experiment.uid] for experiment in stored]
    except NotFound:
        return []


async def _without_lost_trials(
    experiments: ReadableExperiments,
    studies: StudyReads,
    on_error: OnError,
    experiment: Experiment,
    *,
    told: Overview | None,
    at_work: bool,
) -> ExperimentRecord:
    if told is not None and (not at_work or _rests(experiment, told.holder)):
        return without_trials(experiments, experiment, told)
    try:
        return await gather(experiments, experiment, studies, latest=at_work)
    except StoreBroken as error:
        on_error(error)
        return _unread(experiments, experiment)


def _unread(experiments: ReadableExperiments, experiment: Experiment) -> ExperimentRecord:
    holder = experiments.holder(experiment.uid)
    return ExperimentRecord(
        experiment, controlled_by="" if holder is None else str(holder), unread=True
    )


async def overviews(
    experiments: ReadableExperiments, listed: Sequence[Experiment], studies: StudyReads
) -> Mapping[Uid, Overview]:
    """Return the overviews of experiments of one service: see `ReadableExperiments.overviews`."""
    summarize = studies.summaries_of_clients if isinstance(studies, StoredStudies) else None
    return await experiments.overviews(listed, summarize)


def without_trials(
    experiments: ReadableExperiments, experiment: Experiment, told: Overview
) -> ExperimentRecord:
    """Return what a list shows of an experiment."""
    best = [] if told.summary.best is None else [told.summary.best]
    return ExperimentRecord(
        experiment,
        controlled_by="" if told.holder is None else str(told.holder),
        trouble=told.trouble,
        tenant_budget=experiments.tenant_budget(experiment.namespace),
        totals=Totals(told.summary.trials, best),
        final=final_record(experiments, experiment, told.final),
    )


def over(record: ExperimentRecord) -> bool:
    """Return whether nothing changes any more unless the experiment is resumed."""
    return _rests(record.experiment, record.controlled_by or None)


def _rests(experiment: Experiment, holder: object) -> bool:
    state = experiment.state
    return state.finished or (state is ExperimentState.STOPPED and holder is None)


def find_trial(record: ExperimentRecord, number: int) -> TrialRecord:
    """Return the trial of that number. Raises NotFound."""
    for trial in record.trials:
        if trial.trial.number == number:
            return trial
    numbers = [trial.trial.number for trial in record.trials]
    if not numbers:
        existing = "it has none yet"
    elif len(numbers) == 1:
        existing = f"its only trial is {numbers[0]}"
    else:
        existing = f"its trials are {numbers[0]} to {numbers[-1]}"
    raise NotFound(f"{record.experiment.name} has no trial {number}; {existing}")


def with_importances(record: Trials) -> Trials:
    """Return the record with the importance of each parameter. Takes at most two seconds."""
    direction = record.criteria.objectives[0].direction
    found = importances_of(record.space, trials_that_ran(record), direction=direction)
    return replace(record, importances=found)


# The final stage


def final_record(
    experiments: ReadableExperiments,
    experiment: Experiment,
    known: Sequence[Attempt] | None = None,
) -> FinalRecord | None:
    """Return the final stage; None unless it has begun since the search last continued.

    known: as for `final_attempts`.
    """
    attempts = final_attempts(experiments, experiment, known)
    if experiment.final is None or not attempts:
        return None
    folders = experiments.folders(experiment.uid)
    directory = ""
    if folders is not None and not traits_of(experiment.spec.runtime).in_containers:
        directory = str(folders.attempt(FINAL, attempts[-1].number).output)
    return FinalRecord(
        run=experiment.final,
        attempts=[by_present_clock(each, folders) for each in attempts],
        name=trial_name(experiment.name, experiment.uid, FINAL),
        over=experiment.state.finished,
        directory=directory,
    )


def with_outputs(record: ExperimentRecord) -> ExperimentRecord:
    """Return the record with the output files of the final stage.

    There may be many, so only lists of them need it.
    """
    final = record.final
    if final is None or not final.directory:
        return record
    outputs = files(Path(final.directory))
    return replace(record, final=replace(final, outputs=outputs))


def files(directory: Path) -> list[OutputFile]:
    """Return the files of a folder, also of those in it, by path."""
    return sorted(_files(directory), key=lambda file: file.path)


def _files(directory: Path) -> Iterator[OutputFile]:
    """Yield the files of a folder.

    Follows links to files but not to folders, and skips files that vanish meanwhile.
    """
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if path.is_file():
                yield OutputFile(path.relative_to(directory).as_posix(), path.stat().st_size)


# Studies without an experiment


def is_study(workspace: ReadableWorkspace, name: str, namespace: str | None) -> bool:
    """Return whether the name must be a study's.

    It must if no experiment has it, and there is a service to ask.
    """
    try:
        with workspace.opened() as experiments:
            if namespace is None:
                is_known = bool(experiments.named(name))
            else:
                is_known = experiments.experiment(namespace, name) is not None
    except NotFound:
        is_known = False
    return not is_known and workspace.has_studies


async def watch_studies(
    workspace: ReadableWorkspace,
    namespace: str | None,
    see: Callable[[Sequence[tuple[Study, StudySummary]]], bool],
    *,
    every_s: float,
    on_error: OnError,
) -> None:
    """Call `see` with the studies of the workspace's service at intervals, until it returns True.

    `on_error` is as for `_again`. Raises NotFound if nothing was ever run there.
    """
    if not workspace.has_studies:
        with workspace.opened():
            pass
    async with workspace.reading(workspace.service) as studies:

        async def look() -> bool:
            return see(await studies.study_summaries(namespace or "-"))

        await _again(look, every_s, on_error)


async def watch_study(
    workspace: ReadableWorkspace,
    name: str,
    namespace: str | None,
    see: Callable[[StudyTrials], bool],
    *,
    every_s: float,
    on_error: OnError,
) -> None:
    """Call `see` with the study's trials until it returns True: see `_again`. Raises NotFound."""
    async with workspace.reading(workspace.service) as studies:

        async def look() -> bool:
            return see(await _study_trials(workspace, studies, name, namespace))

        await _again(look, every_s, on_error)


async def look_up_study(
    workspace: ReadableWorkspace, name: str, namespace: str | None, *, measurements: bool
) -> StudyTrials:
    """Return the study's trials. Raises NotFound."""
    async with workspace.reading(workspace.service) as studies:
        return await _study_trials(workspace, studies, name, namespace, measurements=measurements)


async def _study_trials(
    workspace: ReadableWorkspace,
    studies: StudyReads,
    text: str,
    namespace: str | None,
    *,
    measurements: bool = False,
) -> StudyTrials:
    name = _study_named(text, namespace)
    try:
        study = await studies.get_study(name)
    except NotFound:
        experiment = "" if "/" in text else f"no experiment {name.study} here, and "
        known = await _names(workspace, studies, name.namespace)
        see = f"; see {command('get', 'experiments')} and {command('get', 'studies')}"
        hint = did_you_mean(name.study, known) or see
        raise NotFound(
            f"there is {experiment}no study {name} in the {workspace.place_of_studies}{hint}"
        ) from None
    trials = [TrialRecord(trial, by_client=True) for trial in await studies.list_trials(name)]
    last = await studies.list_measurements(name, latest=True)
    measured = by_trial(await studies.list_measurements(name) if measurements else ())
    return StudyTrials(
        study,
        trials=trials,
        metrics=last_values(last, without=study.spec.objective.metric),
        measurements=measured,
    )


async def _names(workspace: ReadableWorkspace, studies: StudyReads, namespace: str) -> list[str]:
    """Return the names of the experiments and of the studies without one, in a namespace."""
    names = [study.name.study for study in await studies.list_studies(namespace)]
    with suppress(NotFound), workspace.opened() as experiments:
        names = [*experiments.names(namespace), *names]
    return names


def _study_named(text: str, namespace: str | None) -> StudyName:
    """Parse `counter` or `namespaces/default/studies/counter`. Raises InvalidArgument, NotFound."""
    is_whole = text.startswith("namespaces/")
    if cure := cure_for_trial(text):
        raise NotFound(f"there is no experiment {text}{cure}")
    return parse_study(text if is_whole else str(StudyName(namespace or "default", text)), "name")


async def quotas_of(experiment: Experiment) -> QuotaReport | None:
    """Return the quotas of the experiment's namespace; None if its runtime has no quotas."""
    return await provider_of(experiment.spec.runtime).quotas(experiment)
