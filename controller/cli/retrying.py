"""`tuner retry`: failed trials run again as new attempts of the same trials, and then the search goes on.

Made for a kill between any two steps. One write marks the attempts and sets the experiment running; the study's trials
are reopened when the experiment is next controlled, by this command or another. The same words again are the same
retry: a trial that runs again already is no error.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from controller.cli import terminal
from controller.cli.admission import Admitted, Desk, allowed_changes, find, named
from controller.cli.embedded import Access, asked_for, connected, same_service
from controller.cli.facts import opened
from controller.cli.file import File
from controller.cli.home import Held, Home
from controller.cli.run import Session, say_warnings, view_of
from controller.cli.session import Controls
from controller.core import budget
from controller.core.decide import better
from controller.core.model import Attempt, AttemptState, Experiment, ExperimentSpec, FailureClass
from controller.phrases import command
from controller.report.figures import ranges
from controller.search import study_name
from controller.store import SqlStore
from suggest.errors import FailedPrecondition, InvalidArgument, NotFound, Problem
from suggest.trial import Trial, TrialState


def retry(arguments: argparse.Namespace) -> int:
    terminal.set_up_logging(arguments)
    wanted = Wanted.of(arguments)
    home = Home.find(arguments.state_dir)
    with opened(home) as store:
        return asyncio.run(_Retry(arguments, home, store, wanted).run())


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which trials run again: those of `numbers`, or, if there are none, all failed ones that `reason` fits."""

    numbers: tuple[int, ...] = ()
    reason: str = ""

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Wanted:
        """Raises InvalidArgument."""
        numbers, reason = arguments.numbers, arguments.reason
        if numbers and (arguments.failed or reason):
            raise InvalidArgument([Problem("", "name trials by their numbers or with --failed, not both")])
        if not (numbers or arguments.failed or reason):
            raise InvalidArgument([Problem("", "say which trials run again: their numbers, or --failed for all")])
        bad = [text for text in numbers if not (text.isascii() and text.isdigit())]
        if bad:
            raise InvalidArgument([Problem("", f"{text} is not the number of a trial") for text in bad])
        return cls(tuple(dict.fromkeys(map(int, numbers))), reason)

    def fits(self, trial: Trial) -> bool:
        return not self.reason or self.reason == trial.failure_class or self.reason in trial.reason


@dataclass(frozen=True, slots=True)
class Chosen:
    """failures: the newest attempts of the trials to mark. already: trials that were marked before."""

    failures: tuple[Attempt, ...]
    already: tuple[int, ...]


def choose(name: str, wanted: Wanted, trials: Sequence[Trial], attempts: Mapping[int, Sequence[Attempt]]) -> Chosen:
    """Raises NotFound: there is no such trial; FailedPrecondition: one has not failed, or none fits."""
    by_number = {trial.number: trial for trial in trials}
    missing = [number for number in wanted.numbers if number not in by_number]
    if missing:
        there = f"its trials are {ranges(sorted(by_number))}" if by_number else "it has none yet"
        raise NotFound(f"{name} has no trial {ranges(missing)}; {there}")
    again = {trial.number for trial in trials if _runs_again(trial, attempts.get(trial.number, ()))}
    failed = [t for t in trials if t.state is TrialState.FAILED and t.number not in again]
    if wanted.numbers:
        named_ones = set(wanted.numbers)
        others = sorted(named_ones - again - {trial.number for trial in failed})
        if others:
            states = ", ".join(f"trial {n} is {by_number[n].state.value}" for n in others[:10])
            raise FailedPrecondition(f"{name}: only failed trials can run again; {states}")
        failed = [trial for trial in failed if trial.number in named_ones]
        again &= named_ones
    elif wanted.reason:
        fitting = [trial for trial in failed if wanted.fits(trial)]
        if failed and not fitting and not again:
            there = ", ".join(f"{word} ({n})" for word, n in Counter(t.failure_class for t in failed).most_common())
            raise FailedPrecondition(f"no trial of {name} failed with the reason {wanted.reason!r}; there are {there}")
        failed = fitting
    if not failed and not again:
        raise FailedPrecondition(f"{name} has no failed trial; see {command('get', 'trials', name)}")
    untold = [t.number for t in failed if not _failed_here(attempts.get(t.number, ()))]
    if untold:
        raise FailedPrecondition(
            f"{name}: trial {ranges(untold)} was completed as failed by another client, and has no attempt to repeat; "
            "name the others by their numbers"
        )
    return Chosen(tuple(attempts[trial.number][-1] for trial in failed), tuple(sorted(again)))


def _failed_here(attempts: Sequence[Attempt]) -> bool:
    return bool(attempts) and attempts[-1].state is AttemptState.FAILED


def _runs_again(trial: Trial, attempts: Sequence[Attempt]) -> bool:
    """It was marked, by an earlier retry or by the circuit breaker, and has not ended since. A configuration failure,
    which leaves its trial open, runs again by itself."""
    if trial.state is TrialState.FAILED:
        return bool(attempts) and attempts[-1].rerun
    configuration = bool(attempts) and attempts[-1].failure_class is FailureClass.CONFIGURATION
    return not trial.finished and (configuration or any(attempt.rerun for attempt in attempts))


class _Retry:
    def __init__(self, arguments: argparse.Namespace, home: Home, store: SqlStore, wanted: Wanted) -> None:
        self._arguments = arguments
        self._home = home
        self._store = store
        self._wanted = wanted
        self._view = view_of(arguments)

    async def run(self) -> int:
        arguments = self._arguments
        file = None if named(arguments.name) else File.read(arguments.name, arguments)
        if file is None and arguments.set:
            raise InvalidArgument([Problem("--set", "changes a file: name the file, not the experiment")])
        if file is None:
            known = find(self._store, arguments.name, arguments.namespace)
        else:
            spec = file.document.spec
            known = find(self._store, spec.name, spec.namespace)
            say_warnings(file.document, self._view)
        service = same_service(known.server, asked_for(arguments), known.name)
        controls = Controls(self._view.say)
        controls.install()
        desk = Desk(self._home, self._store)
        with ExitStack() as undo:
            try:
                lock, known = desk.locked(known, undo)
            except Held as error:
                raise FailedPrecondition(f"trials of {known.name} cannot be retried while it runs: {error}") from error
            changes = [] if file is None else allowed_changes(known, file.document)
            spec = known.spec if file is None else file.document.spec
            async with connected(service, self._home, Access.of(arguments)) as client:
                try:
                    trials = await client.list_trials(study_name(known), client_id=known.uid)
                except NotFound:  # killed before it made its study
                    trials = []
            chosen = self._chosen(known, spec, trials)
            admitted = desk.retry(
                known,
                lock,
                chosen.failures,
                document=None if file is None else file.document,
                changes=changes,
                directory=None if file is None else file.directory,
            )
            undo.pop_all()
        self._say(admitted, chosen)
        return await Session(arguments, self._home, self._store, self._view).go_on(admitted, controls)

    def _chosen(self, known: Experiment, spec: ExperimentSpec, trials: Sequence[Trial]) -> Chosen:
        attempts: dict[int, list[Attempt]] = {}
        for attempt in self._store.attempts(known.uid):
            attempts.setdefault(attempt.trial, []).append(attempt)
        chosen = choose(known.name, self._wanted, trials, attempts)
        again = {attempt.trial for attempt in chosen.failures}
        again |= {trial.number for trial in trials if _runs_again(trial, attempts.get(trial.number, ()))}
        _refuse_an_end(known, spec, [trial for trial in trials if trial.number not in again])
        return chosen

    def _say(self, admitted: Admitted, chosen: Chosen) -> None:
        name = admitted.experiment.name
        if numbers := [attempt.trial for attempt in chosen.failures]:
            self._view.say(f"{name}: {_trials(numbers)} again as new attempts, and cost no budget of failures")
        if chosen.already:
            self._view.say(f"{name}: {_trials(chosen.already)} again already")


def _trials(numbers: Sequence[int]) -> str:
    return f"trial {numbers[0]} runs" if len(numbers) == 1 else f"trials {ranges(sorted(numbers))} run"


def _refuse_an_end(known: Experiment, spec: ExperimentSpec, others: Sequence[Trial]) -> None:
    """Raises FailedPrecondition: what is to run again would be cancelled at once. `others`: all other trials."""
    counts: dict[TrialState, int] = {}
    best: float | None = None
    for trial in others:
        counts[trial.state] = counts.get(trial.state, 0) + 1
        if trial.state is TrialState.SUCCEEDED:
            best = better(best, trial.value, maximize=spec.objective.maximize)
    ending = budget.ending(spec, counts, best=best, exhausted=False, running_s=known.running_s)
    if ending is not None and not ending.drain:
        raise FailedPrecondition(
            f"{known.name} would end again at once: {ending.reason}; retry more of its trials, or raise that limit "
            "in the file and name the file"
        )
