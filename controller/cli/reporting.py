"""`tuner report`: the trials of an experiment, best first, and what each parameter does. Changes nothing."""

from __future__ import annotations

import argparse
import sys

from controller.cli.exits import ExitCode
from controller.cli.facts import look_up
from controller.report import figures, ranking, tables
from controller.report.record import ExperimentRecord
from suggest.server import admin
from suggest.study import Importance


def report(arguments: argparse.Namespace) -> ExitCode:
    record = ranking.ranked(look_up(arguments, latest=True))
    match arguments.output:
        case "json":
            print(figures.json_text(ranking.document(record, _importances(record))))
        case "yaml":
            sys.stdout.write(figures.yaml_text(ranking.document(record, _importances(record))))
        case "csv":
            sys.stdout.write(tables.csv_text(tables.trial_csv_columns(record), tables.trial_csv_rows(record)))
        case _:
            sys.stdout.write(ranking.text(record, _importances(record), most=None if arguments.all else ranking.SHOWN))
    return ExitCode.OK


def _importances(record: ExperimentRecord) -> list[Importance]:
    spec = record.experiment.spec
    return admin.importances(spec.space, ranking.trials_that_ran(record), maximize=spec.objective.maximize)
