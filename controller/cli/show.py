"""`tuner get`, `describe`, `best`, `export`: what is known, on stdout. Changes nothing."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime

from controller.cli import studies
from controller.cli.embedded import Access, SessionClient, asked_for
from controller.cli.exits import ExitCode
from controller.cli.facts import gather, keep_looking, look_up, opened, split_name, with_client
from controller.cli.final import with_outputs
from controller.cli.home import Home
from controller.cli.invocation import rendered
from controller.cli.listing import Printer
from controller.core.model import FINAL, Experiment, ExperimentState
from controller.phrases import command
from controller.report import documents, figures, story, tables
from controller.report.record import ExperimentRecord, StudyTrials, TrialRecord
from controller.spec import redacted_document
from controller.store import SqlStore
from suggest.errors import NotFound, PermissionDenied, StoreBroken, Unauthenticated, Unavailable

WATCH_S = 1.0


def experiments(arguments: argparse.Namespace) -> ExitCode:
    records = _all_experiments(arguments)
    if not records and not arguments.quiet:
        of = f" of namespace {arguments.namespace}" if arguments.namespace else ""
        print(f"no experiments{of} in {Home.find(arguments.state_dir).root}", file=sys.stderr)
    printer = Printer(arguments)
    printer.experiments(records)
    while arguments.watch:
        time.sleep(WATCH_S)
        printer.experiments(_all_experiments(arguments))
    return ExitCode.OK


def trials(arguments: argparse.Namespace) -> ExitCode:
    """Watched: until the experiment has ended."""
    printer = Printer(arguments)

    async def see(record: ExperimentRecord) -> bool:
        printer.trials(record)
        return not arguments.watch or over(record)

    async def see_study(record: StudyTrials) -> bool:
        printer.trials(record)
        return not arguments.watch

    if studies.is_study(arguments):
        studies.keep_looking(arguments, see_study)
    else:
        keep_looking(arguments, see, every_s=WATCH_S)
    return ExitCode.OK


def over(record: ExperimentRecord) -> bool:
    """Nothing will change any more, unless somebody resumes it."""
    state = record.experiment.state
    return state.finished or (state is ExperimentState.STOPPED and not record.controlled_by)


def describe(arguments: argparse.Namespace) -> ExitCode:
    name, number = split_name(arguments.name)
    record = look_up(arguments, name=name, trial=number, measurements=number not in (None, FINAL), latest=True)
    record = with_outputs(record) if number == FINAL else record
    folders = Home.find(arguments.state_dir).folders(record.experiment.uid)
    now = datetime.now(UTC)

    def write(text: str) -> None:
        sys.stdout.write(rendered(text, arguments))

    if number is None:
        write(story.describe_experiment(record, folder=folders.root, now=now))
        return ExitCode.OK
    if number == FINAL:
        if record.final is None:
            raise NotFound(f"{name} has no final stage that was begun; see {command('describe', name)}")
        final_log = folders.attempt(FINAL, record.final.newest.number).log
        write(story.describe_final(record, record.final, log=final_log if final_log.exists() else None, now=now))
        return ExitCode.OK
    one = find_trial(record, number)
    log = None if one.newest is None else folders.attempt(number, one.newest.number).log
    shown = log if log is not None and log.exists() else None  # it may have failed before it printed anything
    write(story.describe_trial(record, one, log=shown, now=now))
    return ExitCode.OK


def best(arguments: argparse.Namespace) -> ExitCode:
    """Exit code 3, as a run's: there is no succeeded trial."""
    from controller.report.ending import final_stage, result

    record = with_outputs(look_up(arguments))
    found = record.best
    if found is None:
        name = record.experiment.name
        see = rendered(command("get", "trials", name), arguments)
        print(f"tuner: no trial of {name} has succeeded; see {see}", file=sys.stderr)
        return ExitCode.NO_RESULT
    match arguments.output:
        case "json":
            print(figures.json_text(documents.best(record, find_trial(record, found.number))))
        case "yaml":
            sys.stdout.write(figures.yaml_text(documents.best(record, find_trial(record, found.number))))
        case _:
            print(result(record.experiment, found))
            if said := final_stage(record):
                print(said)
    return ExitCode.OK


def export(arguments: argparse.Namespace) -> ExitCode:
    if studies.is_study(arguments):
        return _export_study(arguments)
    record = look_up(arguments, measurements=arguments.format == "json", latest=True)
    if arguments.format == "json":
        print(figures.json_text(documents.whole(record, redacted_document(record.experiment.spec.document))))
    else:
        sys.stdout.write(tables.csv_text(tables.trial_csv_columns(record), tables.trial_csv_rows(record)))
    return ExitCode.OK


def _export_study(arguments: argparse.Namespace) -> ExitCode:
    as_json = arguments.format == "json"
    record = with_client(
        asked_for(arguments),
        Home.find(arguments.state_dir),
        lambda client: studies.gather(arguments, client, measurements=as_json),
        access=Access.of(arguments),
    )
    if as_json:
        print(figures.json_text(documents.whole_study(record)))
    else:
        sys.stdout.write(tables.csv_text(tables.trial_csv_columns(record), tables.trial_csv_rows(record)))
    return ExitCode.OK


def find_trial(record: ExperimentRecord, number: int) -> TrialRecord:
    for one in record.trials:
        if one.trial.number == number:
            return one
    first, last = (record.trials[0].trial.number, record.trials[-1].trial.number) if record.trials else (0, None)
    there = "it has none yet" if last is None else f"its trials are {first} to {last}"
    if first == last:
        there = f"its only trial is {first}"
    raise NotFound(f"{record.experiment.name} has no trial {number}; {there}")


async def _gathered(home: Home, store: SqlStore, experiment: Experiment, client: SessionClient) -> ExperimentRecord:
    """One whose study is lost is listed without its trials, and does not hide the others."""
    try:
        return await gather(home, store, experiment, client)
    except StoreBroken as error:
        print(f"tuner: {error}", file=sys.stderr)
        return ExperimentRecord(experiment)


def _all_experiments(arguments: argparse.Namespace) -> list[ExperimentRecord]:
    """One service after the other; one that does not answer hides its trials, not the experiments."""
    home = Home.find(arguments.state_dir)
    try:
        with opened(home) as store:
            known = [e for e in store.experiments() if arguments.namespace in (None, e.namespace)]
            records: dict[str, ExperimentRecord] = {}
            for service in dict.fromkeys(experiment.server for experiment in known):
                mine = [experiment for experiment in known if experiment.server == service]

                async def collect(client: SessionClient, mine: list[Experiment] = mine) -> list[ExperimentRecord]:
                    return [await _gathered(home, store, experiment, client) for experiment in mine]

                try:
                    found = with_client(service, home, collect, access=Access.of(arguments))
                except (Unavailable, Unauthenticated, PermissionDenied) as error:
                    print(f"tuner: {error}", file=sys.stderr)
                    found = [ExperimentRecord(experiment) for experiment in mine]
                records.update((record.experiment.uid, record) for record in found)
            return [records[experiment.uid] for experiment in known]
    except NotFound:
        return []
