"""`tuner import`: finished trials from elsewhere become an experiment's, to be learnt from. Runs nothing.

May be repeated, and while the experiment runs: each trial is taken once. An experiment that is not there yet is made,
and waits for `tuner run`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from controller.cli import terminal
from controller.cli.admission import Desk, find, named
from controller.cli.embedded import Access, SessionClient, asked_for, connected, same_service
from controller.cli.exits import ExitCode
from controller.cli.facts import controlled_by, opened
from controller.cli.file import File
from controller.cli.home import Home
from controller.cli.invocation import rendered
from controller.cli.sources import read_source
from controller.core.model import Experiment, ExperimentState
from controller.phrases import command, quantity
from controller.search import Search, study_name, study_spec
from controller.spec import from_document
from controller.store import Changes, SqlStore
from suggest.client import FinishedTrial, ImportResult
from suggest.errors import InvalidArgument, NotFound
from suggest.server.admin import Source

AT_ONCE = 500  # trials
MEASURED_AT_ONCE = 10_000
SHOWN = 20  # problems: more say no more
NOT_RUN = "trials were imported; it has not run yet"


def import_trials(arguments: argparse.Namespace) -> ExitCode:
    terminal.set_up_logging(arguments)
    home = Home.find(arguments.state_dir)
    if named(arguments.name):
        with opened(home) as store:
            known = find(store, arguments.name, arguments.namespace)
            return asyncio.run(_Import(arguments, home, store).into(known))
    file = File.read(arguments.name, arguments)
    home.make()
    with closing(SqlStore(home.controller_db, from_document)) as store:
        return asyncio.run(_Import(arguments, home, store).into(file))


@dataclass(slots=True)
class _Tally:
    """What became of the trials."""

    new: int = 0
    known: int = 0
    remarks: Counter[str] = field(default_factory=Counter)  # on how many values, by parameter
    refused: list[str] = field(default_factory=list)

    def count(self, place: str, result: ImportResult) -> None:
        if result.number is None:
            self.refused.append(f"{place}: " + "; ".join(f"{p.path}: {p.message}" for p in result.problems))
            return
        self.known += result.known
        self.new += not result.known
        self.remarks.update(p.path for p in result.problems)


class _Import:
    def __init__(self, arguments: argparse.Namespace, home: Home, store: SqlStore) -> None:
        self._arguments = arguments
        self._home = home
        self._store = store

    async def into(self, target: Experiment | File) -> ExitCode:
        desk = Desk(self._home, self._store)
        if isinstance(target, File):
            spec = target.document.spec
            known = desk.known(target.document)
        else:
            known, spec = target, target.spec
        source = await read_source(self._arguments, self._home, spec)
        if not source.trials and not source.refused:
            raise NotFound(f"{source.title} has no finished trial{_left_out(source)}")
        asked = asked_for(self._arguments)
        service = asked if known is None else same_service(known.server, asked, known.name)
        async with connected(service, self._home, Access.of(self._arguments)) as client:
            if known is None:
                assert isinstance(target, File)
                known = await self._create(target, desk, client, service)
            await Search(known, client).make(begun=bool(self._store.attempts(known.uid)))
            tally = _Tally(refused=[f"{p.path}: {p.message}" for p in source.refused])
            for batch in _batches(source.trials):
                results = await client.import_trials(
                    study_name(known),
                    [trial for _, trial in batch],
                    source=source.title,
                    request_id=source.identity,
                )
                for (place, _), result in zip(batch, results, strict=True):
                    tally.count(place, result)
        now = self._store.experiment(known.namespace, known.name) or known
        self._let_wait(now)
        return self._tell(now, source, tally)

    async def _create(self, file: File, desk: Desk, client: SessionClient, service: str) -> Experiment:
        """As a run would, but for running it."""
        from controller.cli import runtimes

        spec = file.document.spec
        try:
            await client.validate(study_spec(spec))
        except InvalidArgument as error:
            raise file.document.locate(error.problems) from error
        cluster = await runtimes.connect(spec, self._arguments.context)
        context = "" if cluster is None else cluster.context
        if cluster is not None:
            await cluster.close()
        place = desk.reserve(spec.name)
        try:
            admitted = desk.create(file.document, file.directory, place, service=service, context=context)
        except BaseException:
            place.give_back()
            raise
        admitted.lock.release()
        return admitted.experiment

    def _let_wait(self, experiment: Experiment) -> None:
        """One that was made for an import, by this command or by one that was killed, is not about to run."""
        begun = experiment.state is not ExperimentState.RUNNING or self._store.attempts(experiment.uid)
        if not begun and not controlled_by(self._home, experiment):
            waits = replace(experiment, state=ExperimentState.STOPPED, reason=NOT_RUN)
            self._store.save(experiment.uid, Changes(experiment=waits))

    def _tell(self, experiment: Experiment, source: Source, tally: _Tally) -> ExitCode:
        name = experiment.name
        before = f", {tally.known} {'was' if tally.known == 1 else 'were'} there already" if tally.known else ""
        new = quantity(tally.new, "trial")
        print(f"{name}: {new} imported from {source.title}{before}{_left_out(source)}", flush=True)
        known = experiment.spec.space.by_name
        if unknown := [f"{parameter} ({n})" for parameter, n in tally.remarks.items() if parameter not in known]:
            self._say(f"left out, no parameters of {name}: {', '.join(unknown[:8])}")
        if outside := [f"{parameter} ({n})" for parameter, n in tally.remarks.items() if parameter in known]:
            self._say(
                f"outside of the search space, in so many trials: {', '.join(outside[:8])}; these values are kept, and "
                f"count when the space has grown to them ({command('extend', name, '--set', 'PATH=VALUE')})"
            )
        if tally.refused:
            more = f"\n  and {len(tally.refused) - SHOWN} more" if len(tally.refused) > SHOWN else ""
            shown = "\n  ".join(tally.refused[:SHOWN])
            missing = any(": no value; " in one for one in tally.refused)
            cure = "\nWhat a parameter was there that is missing: --fill NAME=VALUE" if missing else ""
            self._say(f"{quantity(len(tally.refused), 'trial')} not imported:\n  {shown}{more}{cure}")
        if experiment.state.finished:
            growth = ("--set", "PATH=VALUE") if experiment.spec.budget.trials is None else ("--trials", "+20")
            self._say(f"Go on with them: {command('extend', name, *growth)}")
        elif not self._store.attempts(experiment.uid):
            by_name = named(self._arguments.name)
            self._say(f"Run it: {command('resume', name) if by_name else command('run', self._arguments.name)}")
        return ExitCode.OK if tally.new or tally.known else ExitCode.USAGE

    def _say(self, text: str) -> None:
        if not self._arguments.quiet:
            print(rendered(text, self._arguments), file=sys.stderr, flush=True)


def _batches(trials: Sequence[tuple[str, FinishedTrial]]) -> Iterator[list[tuple[str, FinishedTrial]]]:
    batch: list[tuple[str, FinishedTrial]] = []
    measured = 0
    for place, trial in trials:
        if batch and (len(batch) == AT_ONCE or measured + len(trial.measurements) > MEASURED_AT_ONCE):
            yield batch
            batch, measured = [], 0
        batch.append((place, trial))
        measured += len(trial.measurements)
    if batch:
        yield batch


def _left_out(source: Source) -> str:
    return "".join(f"; {n} left out, {what}" for what, n in source.left_out.items())
