"""`tuner get`, `describe`, `top`, `report`, `best`, `export`, `logs`:
the verbs that print and change nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from controller import report as reports
from controller import ui
from controller.app import query, rerun
from controller.app.attempt_logs import LogPart, print_logs
from controller.cli import terminal
from controller.cli.exits import ExitCode
from controller.cli.invocation import rendered
from controller.cli.listing import Printer
from controller.cli.options import readable_of, split_name
from controller.core.model import FINAL, TrialOrFinal
from controller.phrases import command
from controller.report import (
    confirmation,
    description,
    documents,
    plain_data,
    ranking,
    text_tables,
)
from controller.report.confirmation import Confirmation
from controller.report.ending import doubt, estimated, final_stage, front, outcome_text, result
from controller.report.record import ExperimentRecord, StudyTrials
from controller.report.top import overview
from controller.report.top import top as top_text
from controller.spec import redacted_document
from suggest.errors import InvalidArgument, NotFound, TunerError, did_you_mean
from suggest.trial import TrialState

if TYPE_CHECKING:
    from controller.core.model import Attempt
    from controller.folders import ExperimentFolders
    from suggest.client import StudySummary
    from suggest.study import Study

WATCH_S = 1.0
TOP_S = 2.0
CLEAR_SCREEN = "\x1b[2J\x1b[H"

# Lists


def experiments(arguments: argparse.Namespace) -> ExitCode:
    workspace = readable_of(arguments)
    printer = Printer(arguments)
    notices = _Notices()

    async def see(records: Sequence[ExperimentRecord], errors: Sequence[TunerError]) -> bool:
        if records or errors or arguments.quiet:
            notices.show(_sentences(errors))
        else:
            notices.show([f"no experiments{_of_namespace(arguments)} in {workspace.place}"])
        printer.experiments(records)
        return not arguments.watch

    asyncio.run(
        query.watch_all(workspace, arguments.namespace, see, every_s=WATCH_S, on_error=_print_error)
    )
    return ExitCode.OK


def studies(arguments: argparse.Namespace) -> ExitCode:
    workspace = readable_of(arguments)
    printer = Printer(arguments)
    notices = _Notices()

    def see(studies: Sequence[tuple[Study, StudySummary]]) -> bool:
        elements = [documents.study(study, summary) for study, summary in studies]
        if not elements and not arguments.quiet:
            place = workspace.place_of_studies
            notices.show([f"no studies{_of_namespace(arguments)} in the {place}"])
        printer.studies(elements)
        return not arguments.watch

    asyncio.run(
        query.watch_studies(
            workspace, arguments.namespace, see, every_s=WATCH_S, on_error=_print_error
        )
    )
    return ExitCode.OK


def trials(arguments: argparse.Namespace) -> ExitCode:
    """List trials; with --watch, until the experiment has ended."""
    workspace, name = readable_of(arguments), arguments.name
    namespace = arguments.namespace
    printer = Printer(arguments)

    async def see(record: ExperimentRecord) -> bool:
        printer.trials(record)
        return not arguments.watch or query.over(record)

    def see_study(record: StudyTrials) -> bool:
        printer.trials(record)
        return not arguments.watch

    if query.is_study(workspace, name, namespace):
        asyncio.run(
            query.watch_study(
                workspace, name, namespace, see_study, every_s=WATCH_S, on_error=_print_error
            )
        )
    else:
        asyncio.run(
            query.watch(workspace, name, namespace, see, every_s=WATCH_S, on_error=_print_error)
        )
    return ExitCode.OK


def _print_error(error: TunerError) -> None:
    print(f"tuner: {error}", file=sys.stderr)


def _sentences(errors: Sequence[TunerError]) -> list[str]:
    return [f"tuner: {error}" for error in errors]


class _Notices:
    """Prints sentences on stderr, each once while it holds."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def show(self, sentences: Sequence[str]) -> None:
        for sentence in dict.fromkeys(sentences):
            if sentence not in self._shown:
                print(sentence, file=sys.stderr)
        self._shown = set(sentences)


def _of_namespace(arguments: argparse.Namespace) -> str:
    return f" of namespace {arguments.namespace}" if arguments.namespace else ""


# One experiment


def describe(arguments: argparse.Namespace) -> ExitCode:
    name, number = split_name(arguments.name)
    workspace = readable_of(arguments)
    record = asyncio.run(
        query.look_up(
            workspace,
            name,
            arguments.namespace,
            trial=number,
            measurements=number not in (None, FINAL),
            latest=True,
        )
    )
    with workspace.opened() as experiments:
        folders = experiments.folders(record.experiment.uid)
    now = datetime.now(UTC)
    if number is FINAL:
        record = query.with_outputs(record)
        if record.final is None:
            raise NotFound(
                f"the final stage of {name} has not begun; see {command('describe', name)}"
            )
    if arguments.output != "table":
        _write(_document(record, number, now), arguments.output)
        return ExitCode.OK
    if number is None:
        root = None if folders is None else folders.root
        text = description.describe_experiment(record, folder=root, now=now)
    elif number is FINAL:
        assert record.final is not None
        log = _log_of(folders, FINAL, record.final.newest)
        text = description.describe_final(record, record.final, log=log, now=now)
    else:
        trial = query.find_trial(record, number)
        trial_log = _log_of(folders, number, trial.newest)
        text = description.describe_trial(record, trial, log=trial_log, now=now)
    sys.stdout.write(rendered(text, arguments))
    return ExitCode.OK


def _log_of(
    folders: ExperimentFolders | None, trial: TrialOrFinal, newest: Attempt | None
) -> Path | None:
    """Return the file of an attempt's log, if it is on this machine."""
    if folders is None or newest is None:
        return None
    log = folders.attempt(trial, newest.number).log
    return log if log.exists() else None


def _document(
    record: ExperimentRecord, number: TrialOrFinal | None, now: datetime
) -> documents.Json:
    """Return what `describe` prints as JSON and YAML."""
    if number is None:
        return documents.described(record, redacted_document(record.experiment.spec.document), now)
    if number is FINAL:
        assert record.final is not None
        return documents.final(record.final)
    return documents.with_measurements(record, query.find_trial(record, number))


def top(arguments: argparse.Namespace) -> ExitCode:
    """Show one experiment, or all that are not over; with --watch, until they are."""
    workspace = readable_of(arguments)
    screen = _Screen(redraw=arguments.watch and sys.stdout.isatty())

    async def see(record: ExperimentRecord) -> bool:
        screen.show(await _top_page(record))
        return not arguments.watch or query.over(record)

    async def see_all(records: Sequence[ExperimentRecord], errors: Sequence[TunerError]) -> bool:
        active = [record for record in records if not query.over(record)]
        pages = [await _top_page(record) for record in active]
        if len(active) > 1:
            pages.insert(0, overview(active))
        none = f"no experiment{_of_namespace(arguments)} is running or paused\n"
        screen.show("\n".join(pages) or none, _sentences(errors))
        return not (arguments.watch and pages)

    name, namespace = arguments.name, arguments.namespace
    if name is None:
        watched = query.watch_all(
            workspace, namespace, see_all, every_s=TOP_S, on_error=_print_error, at_work=True
        )
    else:
        watched = query.watch(workspace, name, namespace, see, every_s=TOP_S, on_error=_print_error)
    asyncio.run(watched)
    return ExitCode.OK


async def _top_page(record: ExperimentRecord) -> str:
    return top_text(record, report=await query.quotas_of(record.experiment), now=datetime.now(UTC))


class _Screen:
    """Shows a text again and again: in place or, after an empty line, below the one before."""

    def __init__(self, *, redraw: bool) -> None:
        self._redraw = redraw
        self._separator = ""
        self._notices = _Notices()

    def show(self, text: str, notices: Sequence[str] = ()) -> None:
        sys.stdout.write(CLEAR_SCREEN if self._redraw else self._separator)
        sys.stdout.write(text)
        sys.stdout.flush()
        if self._redraw:
            self._notices = _Notices()
        self._notices.show(notices)
        self._separator = "\n"


def report(arguments: argparse.Namespace) -> ExitCode:
    if arguments.html or arguments.figure or arguments.to:
        return _write_page(arguments)
    record, found = _ranked(arguments)
    match arguments.output:
        case "json" | "yaml" as form:
            whole = ranking.document(query.with_importances(record))
            if found is not None:
                whole |= {"confirmed": confirmation.document(found)}
            _write(whole, form)
        case "csv":
            terminal.write_data(text_tables.trials_csv(record))
        case _:
            limit = None if arguments.all else ranking.SHOWN
            record = query.with_importances(record)
            sys.stdout.write(ranking.text(record, limit=limit, crop=terminal.cropped))
            if found is not None:
                sys.stdout.write("\n" + rendered(confirmation.text(found), arguments))
    return ExitCode.OK


def _ranked(
    arguments: argparse.Namespace, *, measurements: bool = False
) -> tuple[ExperimentRecord, Confirmation | None]:
    """Return the experiment with its trials best first, and how its reruns compare."""
    workspace = readable_of(arguments)

    async def read() -> tuple[ExperimentRecord, Confirmation | None]:
        record = await query.look_up(
            workspace,
            arguments.name,
            arguments.namespace,
            measurements=measurements,
            latest=True,
        )
        return ranking.ranked(record), await rerun.confirmation_of(workspace, record)

    return asyncio.run(read())


def _write(data: object, form: str) -> None:
    """Write JSON or YAML."""
    terminal.write_data(plain_data.data_text(data, form))


def _write_page(arguments: argparse.Namespace) -> ExitCode:
    """Write the report as a page, or one of its figures."""
    if bool(arguments.figure) != bool(arguments.to):
        raise InvalidArgument.at(
            "--figure", "requires --to: write both, as --figure history --to history.svg"
        )
    record, found = _ranked(arguments, measurements=True)
    if arguments.figure:
        _write_figure(record, arguments.figure, arguments.to)
    if arguments.html:
        # Another process makes the JavaScript meanwhile, the first time:
        # both take seconds of processor time.
        with ThreadPoolExecutor(1) as executor:
            making = executor.submit(asyncio.run, ui.vega.VegaBundle().text())
            record = query.with_importances(record)
            javascript = making.result().decode()
        compared = "" if found is None else rendered(confirmation.text(found), arguments)
        page = reports.html_page.page(
            record, javascript=javascript, now=datetime.now(UTC), confirmed=compared
        )
        reports.output_file.write(Path(arguments.html), page)
        print(arguments.html)
    return ExitCode.OK


def _write_figure(record: ExperimentRecord, name: str, to: str) -> None:
    available = reports.figures.available(record)
    if name not in available:
        hint = did_you_mean(name, available) or f"; the figures are {', '.join(available)}"
        raise InvalidArgument.at("--figure", f"no figure {name!r}{hint}")
    reports.drawing.check_format(Path(to))
    figure = reports.figures.FIGURES[name].draw(query.with_importances(record))
    reports.drawing.write(figure, Path(to))
    print(to)


def best(arguments: argparse.Namespace) -> ExitCode:
    """Print the best trial. Like a run, this returns NO_RESULT without a succeeded trial."""
    record, estimate = asyncio.run(
        query.with_estimate(readable_of(arguments), arguments.name, arguments.namespace)
    )
    record = query.with_outputs(record)
    if arguments.confirmed:
        return _confirmed_best(arguments, record)
    trial = record.best
    if trial is None:
        name = record.experiment.name
        see = rendered(command("get", "trials", name), arguments)
        missing = "succeeded"
        if record.counts.get(TrialState.SUCCEEDED):
            missing += " and satisfied the constraints"
        print(f"tuner: no trial of {name} has {missing}; see {see}", file=sys.stderr)
        return ExitCode.NO_RESULT
    match arguments.output:
        case "json" | "yaml" as form:
            document = documents.best(record, query.find_trial(record, trial.number), estimate)
            _write(document, form)
        case _:
            has_front = record.experiment.spec.further
            print(front(record) if has_front else result(record.experiment, trial))
            if summary := outcome_text(record):
                print(summary)
            if summary := doubt(record):
                print(summary)
            if estimate is not None and (summary := estimated(record.experiment, estimate)):
                print(summary)
            if summary := final_stage(record):
                print(summary)
    return ExitCode.OK


def _confirmed_best(arguments: argparse.Namespace, record: ExperimentRecord) -> ExitCode:
    """Print the best trial by its reruns. Raises NotFound if none has succeeded."""
    found = asyncio.run(rerun.confirmation_of(readable_of(arguments), record))
    name = record.experiment.name
    if found is None or found.winner is None:
        again = command("confirm", name)
        raise NotFound(f"no rerun of trials of {name} has succeeded; run them: {again}")
    winner = query.find_trial(record, found.winner.trial)
    if arguments.output == "table":
        print(result(record.experiment, winner.trial))
        sys.stdout.write(rendered(confirmation.text(found), arguments))
        return ExitCode.OK
    whole = documents.best(record, winner) | {"confirmed": confirmation.document(found)}
    _write(whole, arguments.output)
    return ExitCode.OK


def export(arguments: argparse.Namespace) -> ExitCode:
    workspace, name = readable_of(arguments), arguments.name
    namespace = arguments.namespace
    as_json = arguments.format == "json"
    record: ExperimentRecord | StudyTrials
    if query.is_study(workspace, name, namespace):
        record = asyncio.run(query.look_up_study(workspace, name, namespace, measurements=as_json))
    else:
        record = asyncio.run(
            query.look_up(workspace, name, namespace, measurements=as_json, latest=True)
        )
    if not as_json:
        terminal.write_data(text_tables.trials_csv(record))
    elif isinstance(record, StudyTrials):
        _write(documents.whole_study(record), "json")
    else:
        whole = documents.whole(record, redacted_document(record.experiment.spec.document))
        _write(whole, "json")
    return ExitCode.OK


def logs(arguments: argparse.Namespace) -> ExitCode:
    name, number = split_name(arguments.name)
    part = LogPart.parse(name, number, tail=arguments.tail, attempt=arguments.attempt)

    # A program may print sequences that retitle a terminal, write into its clipboard or hide lines.
    stripped = terminal.ControlSequences().strip if sys.stdout.isatty() else bytes

    def write(data: bytes) -> None:
        sys.stdout.buffer.write(stripped(data))
        sys.stdout.buffer.flush()

    asyncio.run(
        print_logs(
            readable_of(arguments),
            name,
            arguments.namespace,
            number,
            part,
            follow=arguments.follow,
            write=write,
        )
    )
    return ExitCode.OK
