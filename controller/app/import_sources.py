"""The sources of imported trials: an experiment, a study in a store, an Optuna database or journal,
a CSV or JSON file.

Everything is read before anything is written: a source's store is closed
before the target's store is opened.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any

from controller.app.csv_source import read_csv, read_value
from controller.app.experiments import find
from controller.app.service_names import service_name
from controller.app.workspace import StudyReads, Workspace
from controller.core.model import ExperimentSpec, by_trial
from controller.named_files import open_without_waiting
from controller.phrases import command
from controller.search import study_name
from suggest.client import FinishedTrial, Measurement, Outcome, StudyName, TrialState
from suggest.errors import FailedPrecondition, InvalidArgument, did_you_mean
from suggest.imports import MAX_ROWS, Source, study_of
from suggest.server import admin
from suggest.space import Assignment
from suggest.study import Direction, Objective, Study
from suggest.url_redaction import redacted_url

Json = dict[str, Any]

MOST_MEASURED = 10_000  # measurements of one trial, the limit of one request


@dataclass(frozen=True, slots=True)
class SourceChoice:
    """A source as a person names it.

    source: the name of an experiment, the URL of a store, a CSV file, an export in JSON or a
    journal file of Optuna.
    study: the study, for a store with several.
    value: the source of the value: a column, a metric or an objective.
    fill: NAME=VALUE for parameters that the source lacks.
    """

    source: str
    study: str = ""
    value: str = ""
    fill: tuple[str, ...] = ()


async def read_source(chosen: SourceChoice, workspace: Workspace, spec: ExperimentSpec) -> Source:
    """Read the trials and fit them to the experiment.

    Raises InvalidArgument, NotFound, FailedPrecondition.
    """
    text, value = chosen.source, chosen.value
    fill = _fill(chosen.fill, spec)
    if "://" in text:
        url = service_name(server=None, storage=text)
        from suggest.optuna_storage import optuna_studies  # Optuna, which only imports need

        if optuna_studies.is_optunas(url):
            return _of_optuna(url, chosen, spec, fill)
        current, newest = admin.schema_versions(url)
        place = redacted_url(text)
        if current != newest:
            raise FailedPrecondition(
                f"{place} has schema {current}, not {newest}; upgrade it with: "
                f"{command('db', 'upgrade', '--storage', place)}"
            )
        async with workspace.reading(url) as studies:
            found = {str(study.name): study for study in await studies.list_studies()}
            name = chosen.study
            if name and name not in found:
                name = str(StudyName("default", name))
            study = study_of(found, name, place)
            return _fitting(
                await _of_study(studies, study, f"{study.name} in {place}"), spec, value, fill
            )
    if text == "-" or text.endswith(".csv") or "/" in text or Path(text).exists():
        beginning = _beginning(text)
        if beginning.startswith(b"SQLite format 3\0"):
            raise InvalidArgument.at(
                "--from", f"{text} is an SQLite database; write its URL: sqlite:///{text}"
            )
        if re.match(rb'\{[^\n]*"op_code": ?\d', beginning):
            return _of_optuna(text, chosen, spec, fill)
        if beginning.lstrip().startswith(b"{"):
            return _fitting(_of_export(Path(text)), spec, value, fill)
        if spec.define_by_run:
            raise InvalidArgument.at(
                "--from",
                f"{text}: the kinds of parameters tell how to read a CSV file, and the trials of "
                f"{spec.name} name theirs only while they run; import a search or a study, or "
                "write the parameters into the experiment",
            )
        return read_csv(text, spec, value=value, fill=fill)
    with workspace.opened() as experiments:
        experiment = find(experiments, text, None)
    if (experiment.name, experiment.namespace) == (spec.name, spec.namespace):
        raise InvalidArgument.at(
            "--from", f"{text} is the experiment itself, which already has its trials"
        )
    async with workspace.reading(experiment.server) as studies:
        source = await _of_study(
            studies, await studies.get_study(study_name(experiment)), experiment.name
        )
    return _fitting(source, spec, value, fill)


def _beginning(path: str) -> bytes:
    """Return the first bytes of a file; none of a pipe or a device, which can be read only once."""
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            return file.read(4096) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except (OSError, ValueError):
        return b""


def _of_optuna(
    place: str, chosen: SourceChoice, spec: ExperimentSpec, fill: dict[str, str]
) -> Source:
    objectives = [objective.metric for objective in spec.criteria.objectives]
    constraints = [constraint.metric for constraint in spec.constraints]
    from suggest.optuna_storage.optuna_studies import read  # see `read_source`

    source = read(place, chosen.study, chosen.value, objectives, constraints)
    return _fitting(source, spec, chosen.value, fill)


def _of_export(path: Path) -> Source:
    """Read a file of `tuner export --format json`. Raises InvalidArgument."""
    try:
        document = json.loads(path.read_bytes())
        uid, objectives = _exported_search(document)
        trials = [_exported_trial(trial) for trial in document["trials"]]
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        problem = f"is not what tuner export --format json writes ({type(error).__name__}: {error})"
        raise InvalidArgument.at("--from", f"{path}: {problem}") from None
    return _copied(str(path)[-256:], f"export-{uid}", trials, objectives)


def _exported_search(document: Json) -> tuple[str, list[Objective]]:
    """Return the uid and the objectives of the experiment, or of the study without one."""
    if "study" in document:
        of_search = declared = document["study"]
    else:
        of_search = document["experiment"]
        spec = of_search["file"]["spec"]
        declared = spec.get("objective", spec)
    found = [
        Objective(one["metric"], Direction(one["direction"]))
        for one in declared.get("objectives", [declared])
    ]
    return of_search["uid"], found


def _exported_trial(trial: Json) -> FinishedTrial:
    state, value = TrialState(trial["state"]), trial.get("value")
    value = None if value is None else float(value)
    return FinishedTrial(
        dict(trial["parameters"]),
        Outcome(state, value, trial.get("reason", ""), trial.get("failureClass", "")),
        [
            Measurement(index(m["attempt"]), m["metric"], index(m["step"]), float(m["value"]))
            for m in trial["measurements"]
        ],
        source_id=str(trial["number"]),
    )


def _fill(words: Sequence[str], spec: ExperimentSpec) -> dict[str, str]:
    """Parse the words NAME=VALUE. Raises InvalidArgument."""
    filled: dict[str, str] = {}
    parameters = spec.space.by_name
    for word in words:
        # A name may contain =, too.
        name = max(
            (n for n in parameters if word.startswith(f"{n}=")),
            key=len,
            default=word.partition("=")[0],
        )
        text = word[len(name) + 1 :]
        if not text:
            raise InvalidArgument.at("--fill", f"{word}: write NAME=VALUE")
        if name not in parameters:
            raise InvalidArgument.at(
                "--fill", f"unknown parameter {name}{did_you_mean(name, parameters)}"
            )
        try:
            read_value(parameters[name], text)
        except ValueError as error:
            raise InvalidArgument.at("--fill", str(error)) from None
        filled[name] = text
    return filled


async def _of_study(studies: StudyReads, study: Study, title: str) -> Source:
    measured = by_trial(await studies.list_measurements(study.name))
    trials = [
        FinishedTrial(
            trial.parameters,
            Outcome(trial.state, trial.value, trial.reason, trial.failure_class),
            measured.get(trial.number, []),
            source_id=str(trial.number),
        )
        for trial in await studies.list_trials(study.name)
    ]
    return _copied(title[:256], f"study-{study.uid}", trials, study.spec.objectives)


def _copied(
    title: str, identity: str, trials: Sequence[FinishedTrial], objectives: Sequence[Objective]
) -> Source:
    """Return the finished trials of one of this program's studies. Raises InvalidArgument."""
    if len(trials) > MAX_ROWS:
        raise InvalidArgument.at(
            "--from", f"{title} has more than {MAX_ROWS:,} trials; export the best to a CSV"
        )
    left_out: Counter[str] = Counter()
    finished: list[tuple[str, FinishedTrial]] = []
    for trial in trials:
        state = trial.outcome.state
        if not state.finished:
            left_out["not finished"] += 1
        elif state is TrialState.CANCELLED:
            left_out["cancelled"] += 1
        else:
            measured = _most(trial.measurements, objectives[0].metric)
            copy = replace(trial, measurements=measured)
            finished.append((f"trial {trial.source_id}", copy))
    return Source(title, identity, finished, objectives, left_out=left_out)


def _most(measured: Sequence[Measurement], metric: str) -> Sequence[Measurement]:
    if len(measured) > MOST_MEASURED:
        measured = [measurement for measurement in measured if measurement.metric == metric]
    return measured[-MOST_MEASURED:]


def _fitting(source: Source, spec: ExperimentSpec, value: str, fill: dict[str, str]) -> Source:
    """Return the trials with this experiment's metric name and missing parameters filled in.

    Raises FailedPrecondition.
    """
    objective = spec.objective
    theirs = source.objectives[0] if source.objectives else replace(objective, metric="")
    others = {other.metric: other for other in source.objectives[1:]}
    for ours, same in [
        (objective, theirs),
        *((further, others.get(further.metric)) for further in spec.further),
    ]:
        if same is not None and same.direction is not ours.direction:
            raise FailedPrecondition(
                f"{source.title} {same.direction.value}s {same.metric or 'its objective'}, but "
                f"{spec.name} "
                f"{ours.direction.value}s {ours.metric}: good trials would count as bad ones"
            )
    if theirs.metric and theirs.metric != objective.metric and value != theirs.metric:
        raise FailedPrecondition(
            f"the objective of {source.title} is {theirs.metric}, and that of {spec.name} is "
            f"{objective.metric}; if both are the same metric, add --value {theirs.metric}"
        )
    filled: Assignment = {
        name: read_value(spec.space.by_name[name], text) for name, text in fill.items()
    }
    fitting = []
    for place, trial in source.trials:
        measured = [_renamed(each, theirs.metric, objective.metric) for each in trial.measurements]
        parameters = {**filled, **trial.parameters}
        fitting.append((place, replace(trial, parameters=parameters, measurements=measured)))
    return replace(source, trials=fitting)


def _renamed(measurement: Measurement, old: str, new: str) -> Measurement:
    return measurement._replace(metric=new) if measurement.metric == old != new else measurement
