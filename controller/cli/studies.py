"""`tuner get studies`, and the trials of a study without an experiment: clients of the service made it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable

from controller.cli.embedded import Access, SessionClient, asked_for, described
from controller.cli.exits import ExitCode
from controller.cli.facts import opened, with_client
from controller.cli.home import Home
from controller.cli.listing import Printer
from controller.phrases import command
from controller.report import documents
from controller.report.record import StudyTrials, TrialRecord, last_values
from suggest.client import StudyName
from suggest.errors import NotFound
from suggest.trial import Measurement

WATCH_S = 1.0


def studies(arguments: argparse.Namespace) -> ExitCode:
    printer = Printer(arguments)

    async def show(client: SessionClient) -> None:
        while True:
            found = await client.study_summaries(arguments.namespace or "-")
            told = [
                documents.study(study, None if it is None else it.trials, None if it is None else it.best)
                for study, it in found
            ]
            if not told and not arguments.quiet:
                of = f" of namespace {arguments.namespace}" if arguments.namespace else ""
                print(f"no studies{of} in the {described(asked_for(arguments))}", file=sys.stderr)
            printer.studies(told)
            if not arguments.watch:
                return
            await asyncio.sleep(WATCH_S)

    home = Home.find(arguments.state_dir)
    if not asked_for(arguments) and not home.studies_db.exists():
        with opened(home):  # raises NotFound: nothing was ever run here
            pass
    with_client(asked_for(arguments), home, show, access=Access.of(arguments))
    return ExitCode.OK


def is_study(arguments: argparse.Namespace) -> bool:
    """Whether the name can only be that of a study: there is no such experiment, and there is a service to ask."""
    home = Home.find(arguments.state_dir)
    try:
        with opened(home) as store:
            known = {one.name for one in store.experiments() if arguments.namespace in (None, one.namespace)}
    except NotFound:
        known = set()
    return arguments.name not in known and bool(asked_for(arguments) or home.studies_db.exists())


def keep_looking(arguments: argparse.Namespace, see: Callable[[StudyTrials], Awaitable[bool]]) -> None:
    """The study that is named, shown to `see` until it has seen enough. Raises NotFound."""

    async def look(client: SessionClient) -> None:
        while True:
            if await see(await gather(arguments, client)):
                return
            await asyncio.sleep(WATCH_S)

    with_client(asked_for(arguments), Home.find(arguments.state_dir), look, access=Access.of(arguments))


async def gather(arguments: argparse.Namespace, client: SessionClient, *, measurements: bool = False) -> StudyTrials:
    """Raises NotFound."""
    name = _name(arguments)
    try:
        study = await client.get_study(name)
    except NotFound:
        experiment = "" if "/" in arguments.name else f"no experiment {name.study} here, and "
        raise NotFound(
            f"there is {experiment}no study {name} in the {described(asked_for(arguments))}; "
            f"see {command('get', 'experiments')} and {command('get', 'studies')}"
        ) from None
    trials = [TrialRecord(each, by_client=True) for each in await client.list_trials(name)]
    last = await client.list_measurements(name, latest=True)
    measured: dict[int, list[Measurement]] = {}
    for number, one in await client.list_measurements(name) if measurements else ():
        measured.setdefault(number, []).append(one)
    return StudyTrials(study, trials, last_values(last, without=study.spec.objective.metric), measured)


def _name(arguments: argparse.Namespace) -> StudyName:
    """`counter`, or `namespaces/default/studies/counter` as the service calls it."""
    match arguments.name.split("/"):
        case ["namespaces", namespace, "studies", study]:
            return StudyName(namespace, study)
    return StudyName(arguments.namespace or "default", arguments.name)
