"""`tuner get`, `describe`, `best`, `export`: what is known, on stdout. Changes nothing."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from controller.cli.embedded import SessionClient
from controller.cli.exits import ExitCode
from controller.cli.facts import gather, look_up, opened, split_name, with_client
from controller.cli.home import Home
from controller.model import Experiment
from controller.report import documents, figures, story, tables
from controller.report.record import ExperimentRecord, TrialRecord
from controller.spec import redacted_document
from controller.store import SqlStore
from suggest.errors import NotFound, StoreBroken, Unavailable

WATCH_S = 1.0


def experiments(arguments: argparse.Namespace) -> ExitCode:
    told = False

    def text() -> str:
        nonlocal told
        records = _all_experiments(arguments)
        if not records and not told and not arguments.quiet:
            told = True
            of = f" of namespace {arguments.namespace}" if arguments.namespace else ""
            print(f"no experiments{of} in {Home.find(arguments.state_dir).root}", file=sys.stderr)
        headers = not arguments.no_headers and (bool(records) or arguments.output == "csv")
        match arguments.output:
            case "json":
                return figures.json_text([documents.experiment(record) for record in records]) + "\n"
            case "yaml":
                return figures.yaml_text([documents.experiment(record) for record in records])
            case "csv":
                return tables.csv_text(tables.EXPERIMENT_CSV, tables.experiment_csv_rows(records), headers=headers)
            case "name":
                return "".join(f"{record.experiment.name}\n" for record in records)
            case _:
                rows = tables.experiment_rows(records, now=datetime.now(UTC))
                return tables.aligned(tables.EXPERIMENT_COLUMNS, rows, headers=headers)

    return _print(text, watch=arguments.watch)


def trials(arguments: argparse.Namespace) -> ExitCode:
    def text() -> str:
        record = look_up(arguments, latest=True)
        headers = not arguments.no_headers
        match arguments.output:
            case "json":
                return figures.json_text([documents.trial(record, one) for one in record.trials]) + "\n"
            case "yaml":
                return figures.yaml_text([documents.trial(record, one) for one in record.trials])
            case "csv":
                return tables.csv_text(tables.trial_csv_columns(record), tables.trial_csv_rows(record), headers=headers)
            case "name":
                return "".join(f"{record.experiment.name}/{one.trial.number}\n" for one in record.trials)
            case _:
                rows = tables.trial_rows(record, now=datetime.now(UTC))
                return tables.aligned(tables.trial_columns(record), rows, headers=headers)

    return _print(text, watch=arguments.watch)


def describe(arguments: argparse.Namespace) -> ExitCode:
    name, number = split_name(arguments.name)
    record = look_up(arguments, name=name, trial=number, measurements=number is not None, latest=True)
    folders = Home.find(arguments.state_dir).folders(record.experiment.uid)
    now = datetime.now(UTC)
    if number is None:
        sys.stdout.write(story.describe_experiment(record, folder=folders.root, now=now))
        return ExitCode.OK
    one = find_trial(record, number)
    log = None if one.newest is None else folders.attempt(number, one.newest.number).log
    shown = log if log is not None and log.exists() else None  # it may have failed before it printed anything
    sys.stdout.write(story.describe_trial(record, one, log=shown, now=now))
    return ExitCode.OK


def best(arguments: argparse.Namespace) -> ExitCode:
    """Exit code 3, as a run's: there is no succeeded trial."""
    from controller.report.ending import result

    record = look_up(arguments)
    found = record.best
    if found is None:
        name = record.experiment.name
        print(f"tuner: no trial of {name} has succeeded; see tuner get trials {name}", file=sys.stderr)
        return ExitCode.NO_RESULT
    match arguments.output:
        case "json":
            print(figures.json_text(documents.trial(record, find_trial(record, found.number))))
        case "yaml":
            sys.stdout.write(figures.yaml_text(documents.trial(record, find_trial(record, found.number))))
        case _:
            print(result(record.experiment, found))
    return ExitCode.OK


def export(arguments: argparse.Namespace) -> ExitCode:
    record = look_up(arguments, measurements=arguments.format == "json", latest=True)
    if arguments.format == "json":
        print(figures.json_text(documents.whole(record, redacted_document(record.experiment.spec.document))))
    else:
        sys.stdout.write(tables.csv_text(tables.trial_csv_columns(record), tables.trial_csv_rows(record)))
    return ExitCode.OK


def find_trial(record: ExperimentRecord, number: int) -> TrialRecord:
    for one in record.trials:
        if one.trial.number == number:
            return one
    last = f"0 to {record.trials[-1].trial.number}" if record.trials else "none yet"
    raise NotFound(f"{record.experiment.name} has no trial {number}; its trials are {last}")


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
                    found = with_client(service, home, collect)
                except Unavailable as error:
                    print(f"tuner: {error}", file=sys.stderr)
                    found = [ExperimentRecord(experiment) for experiment in mine]
                records.update((record.experiment.uid, record) for record in found)
            return [records[experiment.uid] for experiment in known]
    except NotFound:
        return []


def _print(text: Callable[[], str], *, watch: bool) -> ExitCode:
    """`watch`: again whenever it has changed, until Ctrl-C; on a terminal in place of what was there."""
    shown = text()
    sys.stdout.write(shown)
    sys.stdout.flush()
    while watch:
        time.sleep(WATCH_S)
        fresh = text()
        if fresh != shown:
            shown = fresh
            sys.stdout.write(f"\x1b[2J\x1b[H{shown}" if sys.stdout.isatty() else f"\n{shown}")
            sys.stdout.flush()
    return ExitCode.OK
