"""Extend a known experiment with more trials, wider ranges and new choices.

An extension survives a kill between any two steps. The service only checks whether it would grow
the study; then the revision is recorded; the study grows when a controller, in this process or
another, next runs the experiment. The same request, repeated before anything of the revision has
run, is the same extension.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from controller.app.experiment_file import ExperimentFile
from controller.app.experiment_service import (
    EXTENDED,
    Admitted,
    ExperimentService,
    ending_now,
    listed,
)
from controller.app.experiments import Changed
from controller.app.local_experiments import LocalExperiments
from controller.app.suggestion_service import SessionClient
from controller.app.validate import notices
from controller.app.workspace import Workspace
from controller.core.model import Attempt, Budget, Experiment, ExperimentSpec
from controller.phrases import command
from controller.report.spending import raise_limit
from controller.search import space_to_have, study_name, study_spec
from controller.spec import (
    Change,
    Document,
    allowed_in_extension,
    diff,
    file_text,
    from_document,
    read,
)
from suggest.errors import FailedPrecondition, InvalidArgument, NotFound
from suggest.space import Choice, Space, Value
from suggest.trial import Trial

MOST_TRIED_FIRST = 16  # new choices; with more of them, it is unknown which should be tried first
# Algorithms that try new choices without queued points.
UNGUIDED = (
    "random",
    "grid",
    "sobol",
    "halton",
    "hyperband",
    *(f"optuna:{name}" for name in ("random", "grid", "bruteforce", "qmc")),
)


@dataclass(frozen=True, slots=True)
class Extension:
    """The changes to an experiment that is given by name.

    trials: `+20`, or `120` for the total.
    overrides: arguments of --set, PATH=VALUE.
    """

    trials: str = ""
    overrides: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.trials or self.overrides)

    def overriding(self, name: str, budget: Budget) -> list[str]:
        """Return all arguments of --set that it means. Raises InvalidArgument.

        budget: of the experiment now.
        """
        if not self.trials:
            return list(self.overrides)
        total = total_of(self.trials, name, budget.trials)
        return [f"spec.budget.trials={total}", *self.overrides]


async def extend(
    workspace: Workspace,
    experiments: LocalExperiments,
    target: ExperimentFile | str,
    extension: Extension,
    *,
    namespace: str | None,
    print_line: Callable[[str], None],
) -> Admitted:
    """Record the extension of an experiment that no controller runs.

    `target` is a changed file or the name. Raises NotFound, FailedPrecondition,
    Changed, InvalidArgument (SpecErrors).
    """
    file = target if isinstance(target, ExperimentFile) else None
    if file is not None and extension.trials:
        raise InvalidArgument.at(
            "--trials", "requires the experiment's name; in a file write spec.budget"
        )
    service = ExperimentService(experiments)
    named = target.document if isinstance(target, ExperimentFile) else target
    refused = "{name} cannot be extended while it runs"
    with service.known_and_leased(named, namespace, refused=refused) as (experiment, lease):
        server = workspace.service_of(experiment)
        if file is not None:
            document, again = service.completed(experiment, file.document), False
        else:
            document, again = _from_request(experiments, experiment, extension)
        changes = allowed_extension(experiment, document)
        service.check_renamings(experiment, document, changes)
        if changes:
            async with workspace.connected(server) as client:
                attempts = experiments.attempts(experiment.uid)
                await _check(experiment, document, client, attempts)
        elif experiment.state.finished and not again:
            cure = (
                "specify what to extend, such as --trials +20 for 20 more (a number without + is "
            )
            cure += "the total)"
            raise FailedPrecondition(
                f"{experiment.name} would not change; it {experiment.state.value}: "
                f"{experiment.reason}; {raise_limit(experiment) or cure}"
            )
        directory = None if file is None else file.directory
        admitted = service.extend_or_retry(
            experiment, lease, document, changes, directory=directory
        )
    for sentence in notices(document):
        print_line(sentence)
    revised = admitted.experiment
    if not changes:
        print_line(
            f"revision {revised.revision} already contains these changes; none of its trials has "
            f"started"
        )
    elif file is None:
        source = experiments.revision_source(revised.uid, revised.revision)
        print_line(
            f"in effect from now on: {source}; your own file still works and continues with this "
            f"revision"
        )
    return admitted


def _from_request(
    experiments: LocalExperiments, experiment: Experiment, extension: Extension
) -> tuple[Document, bool]:
    """Return the file in force with the extension.

    If it has this extension already, return the file in force and True.
    """
    if not extension:
        raise InvalidArgument.at("", "specify what to extend: --trials +20, or --set PATH=VALUE")
    revisions = experiments.revisions(experiment.uid)
    if len(revisions) > 1 and not _ran_since(experiments, experiment, revisions[-1].time):
        try:
            again = edited(revisions[-2].spec, extension)
        except InvalidArgument:
            pass
        else:
            if not diff(experiment.spec.document, again.spec.document):
                return again, True
    return edited(experiment.spec, extension), False


def _ran_since(experiments: LocalExperiments, experiment: Experiment, time: datetime) -> bool:
    created = (each for each in experiments.events(experiment.uid) if each.kind == "created")
    return any(event.time >= time for event in created)


def edited(spec: ExperimentSpec, extension: Extension) -> Document:
    """Return `spec` with the extension, as a file. Raises InvalidArgument (SpecErrors)."""
    overrides = extension.overriding(spec.name, spec.budget)
    document = read(file_text(spec.document), source=spec.name, overrides=overrides)
    whole = dict(document.spec.document)
    if document.spec.algorithm.name not in UNGUIDED:
        first = list(_tried_first(spec.space, document.spec.space))[:MOST_TRIED_FIRST]
        inner = whole["spec"]
        assert isinstance(inner, dict)
        initial = inner["initial"]
        whole["spec"] = {
            **inner,
            "initial": [*initial, *(point for point in first if point not in initial)],
        }
    text = f"# {spec.name}{EXTENDED}\n{file_text(whole)}"
    return replace(document, text=text, spec=from_document(whole))


def total_of(trials: str, name: str, present: int | None) -> int:
    """Return the number of trials that `--trials` means in total. Raises InvalidArgument.

    present: of the experiment; None: it has no limit.
    """
    if not re.fullmatch(r"\+?[0-9]{1,9}", trials):
        raise InvalidArgument.at(
            "--trials", f"{trials} is not a number of trials; write +20, or 120 for the total"
        )
    if not trials.startswith("+"):
        return int(trials)
    if present is None:
        raise InvalidArgument.at(
            "--trials",
            f"{name} has no limit of trials to raise; write a total to set one, or widen its "
            "parameters with --set",
        )
    return present + int(trials)


def _tried_first(old: Space, new: Space) -> Iterator[dict[str, Value]]:
    """Yield a partial point for each new choice.

    A model without a trial of the choice may not try it for long.
    """
    for parameter in new.parameters:
        was = old.by_name.get(parameter.name)
        if was is None or not isinstance(parameter.domain, Choice):
            continue
        for value in parameter.domain.values:
            point = {**_leading_to(new, parameter.name), parameter.name: value}
            if not was.domain.contains(value) and not new.point_problems(point, partial=True):
                yield point


def _leading_to(space: Space, name: str) -> dict[str, Value]:
    """Return values that make the parameter active."""
    point: dict[str, Value] = {}
    for condition in space.by_name[name].when:
        point |= {
            **_leading_to(space, condition.parameter),
            condition.parameter: condition.values[0],
        }
    return point


def allowed_extension(experiment: Experiment, document: Document) -> list[Change]:
    """Return the changes of the document. Raises Changed if they would make another search."""
    changes = diff(experiment.spec.document, document.spec.document)
    refused = [change for change in changes if not allowed_in_extension(change)]
    if refused:
        message = (
            f"these changes would make {experiment.name} another search:\n{listed(refused)}\n"
            "tuner extend accepts additions under spec.parameters and at the end of spec.initial, "
            "changes of spec.objective.target, and what tuner resume accepts. For anything else "
            "write a file with another metadata.name, and import these trials: "
            f"{command('import', 'FILE', '--from', experiment.name)}"
        )
        raise Changed(document.spec.words(message))
    return changes


async def _check(
    experiment: Experiment,
    document: Document,
    client: SessionClient,
    attempts: Sequence[Attempt],
) -> None:
    """Check that the study can grow like this and that anything would run then.

    Raises SpecErrors, FailedPrecondition.
    """
    name = study_name(experiment)
    extended = study_spec(document.spec)
    try:
        try:
            space = space_to_have(await client.get_study(name), extended.space)
            await client.update_study(
                name, space=space, pruning=extended.pruning, validate_only=True
            )
        except NotFound:  # its controller was killed before it created the study
            await client.validate(extended)
            return
    except InvalidArgument as error:
        raise document.locate(error.problems) from error
    trials = await client.list_trials(name, client_id=experiment.uid)
    refuse_an_end(experiment, document.spec, trials, attempts)


def refuse_an_end(
    experiment: Experiment,
    spec: ExperimentSpec,
    trials: Sequence[Trial],
    attempts: Iterable[Attempt],
) -> None:
    """Raise FailedPrecondition if the experiment would immediately end with these trials.

    attempts: all of the experiment.
    """
    outcomes = ((trial.state, trial.value) for trial in trials)
    ending = ending_now(experiment, spec, outcomes, attempts)
    if ending is not None:
        raise FailedPrecondition(
            f"{experiment.name}: its budget is already used up: {ending.reason}; raise that as "
            "well, with --trials +20 for 20 more (a number without + is the total), or with --set"
        )
