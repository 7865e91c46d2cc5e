"""`tuner extend`: more trials, wider ranges and new choices for an experiment that is there, and then on with it.

Made for a kill between any two steps. The service only says whether it would grow the study; the revision is
recorded; the study grows when the experiment is next controlled, by this command or another. The same words again,
before anything of the revision has run, are the same extension.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime

from controller.cli import terminal
from controller.cli.admission import EXTENDED, Admitted, Changed, Desk, find, listed, named
from controller.cli.embedded import Access, SessionClient, asked_for, connected, same_service
from controller.cli.facts import opened
from controller.cli.file import File
from controller.cli.home import Held, Home
from controller.cli.run import Session, say_warnings, view_of
from controller.cli.session import Controls
from controller.core import budget
from controller.core.decide import better
from controller.core.model import Experiment, ExperimentSpec
from controller.phrases import command
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
from controller.store import SqlStore
from suggest.errors import FailedPrecondition, InvalidArgument, NotFound, Problem
from suggest.space import Choice, Space, Value
from suggest.trial import TrialState

MOST_TRIED_FIRST = 16  # new choices; of more there is no telling which are meant to be tried at once
UNGUIDED = ("random", "grid")  # they come to a new choice by themselves


def extend(arguments: argparse.Namespace) -> int:
    terminal.set_up_logging(arguments)
    home = Home.find(arguments.state_dir)
    with opened(home) as store:
        return asyncio.run(_Extension(arguments, home, store).run())


class _Extension:
    def __init__(self, arguments: argparse.Namespace, home: Home, store: SqlStore) -> None:
        self._arguments = arguments
        self._home = home
        self._store = store
        self._view = view_of(arguments)

    async def run(self) -> int:
        arguments = self._arguments
        file = None if named(arguments.name) else File.read(arguments.name, arguments)
        if file is not None and arguments.trials:
            raise InvalidArgument([Problem("--trials", "goes with the experiment's name; in a file write spec.budget")])
        if file is None:
            known = find(self._store, arguments.name, arguments.namespace)
        else:
            known = find(self._store, file.document.spec.name, file.document.spec.namespace)
        service = same_service(known.server, asked_for(arguments), known.name)
        controls = Controls(self._view.say)
        controls.install()
        desk = Desk(self._home, self._store)
        with ExitStack() as undo:
            try:
                lock, known = desk.locked(known, undo)
            except Held as error:
                raise FailedPrecondition(f"{known.name} cannot be extended while it runs: {error}") from error
            document, again = (file.document, False) if file is not None else self._named_changes(known)
            changes = _allowed(known, document)
            if changes:
                async with connected(service, self._home, Access.of(arguments)) as client:
                    await _ask(known, document, client)
            elif known.state.finished and not again:
                raise FailedPrecondition(
                    f"that changes nothing of {known.name}, which {known.state.value}: {known.reason}; "
                    "say what shall be more, such as --trials +20"
                )
            admitted = desk.extend(known, lock, document, changes, directory=None if file is None else file.directory)
            undo.pop_all()
        self._say(admitted, document, changes, by_name=file is None)
        return await Session(arguments, self._home, self._store, self._view).go_on(admitted, controls)

    def _named_changes(self, known: Experiment) -> tuple[Document, bool]:
        """What the flags make of the file in force; or (True) of the one before, which is how this one came about."""
        trials, sets = self._arguments.trials, self._arguments.set
        if not trials and not sets:
            raise InvalidArgument([Problem("", "say what shall be more: --trials +20, or --set PATH=VALUE")])
        revisions = self._store.revisions(known.uid)
        if len(revisions) > 1 and not self._ran_since(known, revisions[-1].time):
            try:
                again = _edited(known, revisions[-2].spec, trials, sets)
            except InvalidArgument:
                pass
            else:
                if not diff(known.spec.document, again.spec.document):
                    return again, True
        return _edited(known, known.spec, trials, sets), False

    def _ran_since(self, known: Experiment, time: datetime) -> bool:
        return any(event.kind == "created" and event.time >= time for event in self._store.events(known.uid))

    def _say(self, admitted: Admitted, document: Document, changes: Sequence[Change], *, by_name: bool) -> None:
        say_warnings(document, self._view)
        experiment = admitted.experiment
        if not changes:
            self._view.say(f"revision {experiment.revision} says so already, and nothing of it has run yet")
        elif by_name:
            path = self._home.folders(experiment.uid).revision(experiment.revision)
            self._view.say(f"in force from now on: {path}; your own file works as before, and goes on with this one")


def _edited(known: Experiment, spec: ExperimentSpec, trials: str, sets: Sequence[str]) -> Document:
    """Raises InvalidArgument (SpecErrors)."""
    overrides = [*_more_trials(known.name, spec, trials), *sets]
    made = read(file_text(spec.document), source=known.name, overrides=overrides)
    whole = dict(made.spec.document)
    if made.spec.algorithm.name not in UNGUIDED:
        first = list(_tried_first(spec.space, made.spec.space))[:MOST_TRIED_FIRST]
        inner = whole["spec"]
        assert isinstance(inner, dict)
        there = inner["initial"]
        whole["spec"] = {**inner, "initial": [*there, *(point for point in first if point not in there)]}
    text = f"# {known.name}{EXTENDED}\n{file_text(whole)}"
    return replace(made, text=text, spec=from_document(whole))


def _more_trials(name: str, spec: ExperimentSpec, trials: str) -> Iterator[str]:
    if not trials:
        return
    if not re.fullmatch(r"\+?[0-9]{1,9}", trials):
        raise InvalidArgument(
            [Problem("--trials", f"{trials} is no number of trials; write +20, or 120 for the total")]
        )
    if not trials.startswith("+"):
        yield f"spec.budget.trials={trials}"
    elif spec.budget.trials is None:
        raise InvalidArgument(
            [Problem("--trials", f"{name} has no limit of trials to raise; widen its parameters with --set")]
        )
    else:
        yield f"spec.budget.trials={spec.budget.trials + int(trials)}"


def _tried_first(old: Space, new: Space) -> Iterator[dict[str, Value]]:
    """A partial point for each new choice: a model that has never seen one may leave it alone for long."""
    for parameter in new.parameters:
        was = old.by_name.get(parameter.name)
        if was is None or not isinstance(parameter.domain, Choice):
            continue
        for value in parameter.domain.values:
            point = {**_leading_to(new, parameter.name), parameter.name: value}
            if not was.domain.contains(value) and not new.point_problems(point, partial=True):
                yield point


def _leading_to(space: Space, name: str) -> dict[str, Value]:
    """Values that make the parameter active."""
    point: dict[str, Value] = {}
    for condition in space.by_name[name].when:
        point |= {**_leading_to(space, condition.parameter), condition.parameter: condition.values[0]}
    return point


def _allowed(known: Experiment, document: Document) -> list[Change]:
    """Raises Changed: some of it is another search."""
    changes = diff(known.spec.document, document.spec.document)
    refused = [change for change in changes if not allowed_in_extension(change)]
    if refused:
        raise Changed(
            f"this would make another search of {known.name}:\n{listed(refused)}\n"
            "tuner extend accepts more under spec.parameters and at the end of spec.initial, changes of "
            "spec.objective.target, and what tuner resume accepts. For anything else write a file with another "
            f"metadata.name, and take these trials along: {command('import', 'FILE', '--from', known.name)}"
        )
    return changes


async def _ask(known: Experiment, document: Document, client: SessionClient) -> None:
    """Would the study grow so, and would anything run then? Raises SpecErrors, FailedPrecondition."""
    spec, name = document.spec, study_name(known)
    wanted = study_spec(spec)
    try:
        try:
            space = space_to_have(await client.get_study(name), wanted.space)
            await client.update_study(name, space=space, pruning=wanted.pruning, validate_only=True)
        except NotFound:  # killed before it made its study
            await client.validate(wanted)
            return
    except InvalidArgument as error:
        raise document.locate(error.problems) from error
    counts: dict[TrialState, int] = {}
    best: float | None = None
    for trial in await client.list_trials(name, client_id=known.uid):
        counts[trial.state] = counts.get(trial.state, 0) + 1
        if trial.state is TrialState.SUCCEEDED:
            best = better(best, trial.value, maximize=spec.objective.maximize)
    _refuse_an_end(known, spec, counts, best)


def _refuse_an_end(
    known: Experiment, spec: ExperimentSpec, counts: Mapping[TrialState, int], best: float | None
) -> None:
    ending = budget.ending(spec, counts, best=best, exhausted=False, running_s=known.running_s)
    if ending is not None:
        raise FailedPrecondition(
            f"{known.name} would end again at once: {ending.reason}; raise that too, with --trials or --set"
        )
