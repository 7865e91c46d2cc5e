"""`tuner stop` and `tuner delete`: what ends an experiment, and what removes it."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from contextlib import suppress
from functools import partial

from controller.cli import runtimes, terminal
from controller.cli.admission import Admitted, Desk, find
from controller.cli.embedded import Access, SessionClient, asked_for, same_service
from controller.cli.exits import ExitCode
from controller.cli.facts import opened, study_of, with_client
from controller.cli.home import ControllerLock, Held, Home
from controller.cli.invocation import rendered
from controller.hints import command
from controller.model import Experiment, ExperimentState, attempt_name
from controller.store import SqlStore
from suggest.errors import FailedPrecondition, InvalidArgument, NotFound, Problem

POLL_S = 0.05


def stop(arguments: argparse.Namespace) -> ExitCode:
    """Through its controller, if one is alive; else by being that controller for a moment. 0 when it has stopped."""
    terminal.set_up_logging(arguments)
    home = Home.find(arguments.state_dir)
    with opened(home) as store:
        experiment = find(store, arguments.name, arguments.namespace)
        if experiment.state.finished:
            _say(arguments, f"{experiment.name} has {experiment.state.value} already: {experiment.reason}")
            return ExitCode.OK
        service = same_service(experiment.server, asked_for(arguments), experiment.name)
        store.request_stop(experiment.uid)
        while True:
            _wait(arguments, home, experiment)
            experiment = find(store, arguments.name, experiment.namespace)
            if experiment.state.finished or _idle(store, experiment):
                break
            try:
                admitted = Desk(home, store).to_stop(experiment)
            except Held:
                continue  # somebody resumed it, or another stop was faster
            if admitted.experiment.state.finished:
                admitted.lock.release()
                break
            with_client(service, home, partial(_end, home, store, admitted), access=Access.of(arguments))
        after = find(store, arguments.name, experiment.namespace)
        _say(arguments, f"{after.name}: {after.state.value}, {after.reason}. Go on: {command('resume', after.name)}")
    return ExitCode.OK


def _idle(store: SqlStore, experiment: Experiment) -> bool:
    """Stopped by a `tuner stop`, not by Ctrl-C: no trial of it waits to run again."""
    if experiment.state is not ExperimentState.STOPPED or "tuner stop" not in experiment.reason:
        return False
    return all(attempt.ended for attempt in store.attempts(experiment.uid))


def _wait(arguments: argparse.Namespace, home: Home, experiment: Experiment) -> None:
    """Until no controller is alive; it saw the request and ends its trials."""
    lock = ControllerLock(home.folders(experiment.uid).root)
    holder = lock.holder()
    if holder is not None:
        _say(arguments, f"{experiment.name} is stopping; its controller is {holder}")
    while lock.holder() is not None:
        time.sleep(POLL_S)


async def _end(home: Home, store: SqlStore, admitted: Admitted, client: SessionClient) -> None:
    """Be its controller until it has stopped: it finds the wish in the store."""
    from controller.cli.session import Controls, control
    from controller.report.lines import Silence

    runtime = await runtimes.of(home, admitted.experiment)
    try:
        controls = Controls(lambda text: print(text, file=sys.stderr))
        controls.install()
        await control(
            admitted, home=home, store=store, client=client, controls=controls, view=Silence(), runtime=runtime
        )
    finally:
        await runtime.close()
        admitted.lock.release()


def delete(arguments: argparse.Namespace) -> ExitCode:
    """Study, trials' folders, rows; the rows last, so that one that was killed halfway can be repeated."""
    terminal.set_up_logging(arguments)
    home = Home.find(arguments.state_dir)
    with opened(home) as store:
        experiment = find(store, arguments.name, arguments.namespace)
        service = same_service(experiment.server, asked_for(arguments), experiment.name)
        if not arguments.yes and not _sure(store, home, experiment):
            _say(arguments, "nothing was deleted")
            return ExitCode.USAGE
        try:
            admitted = Desk(home, store).to_stop(experiment)
        except Held as error:
            raise FailedPrecondition(f"{experiment.name} cannot be deleted now: {error}") from error
        try:
            with_client(
                service,
                home,
                lambda client: _remove(home, store, admitted.experiment, client),
                access=Access.of(arguments),
            )
        finally:
            admitted.lock.release()
    _say(arguments, f"{experiment.name} is deleted")
    return ExitCode.OK


def _sure(store: SqlStore, home: Home, experiment: Experiment) -> bool:
    """Asks on a terminal; elsewhere nobody can answer."""
    number = len(store.attempts(experiment.uid))
    attempts = f"{number} attempt{'' if number == 1 else 's'}"
    what = f"{experiment.name}, the logs and outputs of its {attempts} in {home.folders(experiment.uid).root}"
    if not sys.stdin.isatty():
        raise InvalidArgument([Problem("", f"this would delete {what}; say --yes to do it")])
    print(f"Delete {what}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


async def _remove(home: Home, store: SqlStore, experiment: Experiment, client: SessionClient) -> None:
    await _end_leftovers(home, store, experiment)
    await runtimes.discard(experiment)
    with suppress(NotFound):  # killed before it made its study, or deleting it a second time
        await client.delete_study(study_of(experiment))
    await asyncio.to_thread(shutil.rmtree, home.folders(experiment.uid).root, ignore_errors=True)
    store.delete_experiment(experiment.uid)


async def _end_leftovers(home: Home, store: SqlStore, experiment: Experiment) -> None:
    """Kill what a killed controller left running: it has no outcome to report any more."""
    left = [attempt for attempt in store.attempts(experiment.uid) if not attempt.ended]
    if not left:
        return
    runtime = await runtimes.of(home, experiment)
    try:
        for attempt in left:
            await runtime.remove(attempt_name(experiment.name, experiment.uid, attempt.trial, attempt.number))
    finally:
        await runtime.close()


def _say(arguments: argparse.Namespace, text: str) -> None:
    if not arguments.quiet:
        print(rendered(text, arguments), file=sys.stderr, flush=True)
