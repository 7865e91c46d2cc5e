"""`tuner stop` and `tuner delete`: what ends an experiment, and what removes it."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from controller.cli import runtimes, terminal
from controller.cli.admission import Admitted, Desk, find
from controller.cli.embedded import Access, SessionClient, asked_for, described, same_service
from controller.cli.exits import ExitCode
from controller.cli.facts import opened, study_of, with_client
from controller.cli.home import ControllerLock, Held, Home
from controller.cli.invocation import rendered
from controller.core.model import Attempt, Experiment, ExperimentState, attempt_name, short_name
from controller.phrases import command, quantity
from controller.store import SqlStore
from suggest.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Problem,
    StoreBroken,
    Unauthenticated,
    Unavailable,
)

POLL_S = 0.05
FORCED_PATIENCE_S = 5.0  # with a server that is probably gone


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
    """What runs, the study, the trials' folders, the rows. Halfway killed it can be repeated."""
    terminal.set_up_logging(arguments)
    home = Home.find(arguments.state_dir)
    with opened(home) as store:
        experiment = find(store, arguments.name, arguments.namespace)
        service = same_service(experiment.server, asked_for(arguments), experiment.name)
        if arguments.local_only and experiment.spec.runtime == "local":
            raise InvalidArgument([Problem("--local-only", f"{experiment.name} ran on this machine, not on a cluster")])
        if not arguments.yes and not _sure(store, home, experiment):
            _say(arguments, "nothing was deleted")
            return ExitCode.USAGE
        try:
            admitted = Desk(home, store).to_stop(experiment)
        except Held as error:
            raise FailedPrecondition(f"{experiment.name} cannot be deleted now: {error}") from error
        access = Access.of(arguments)
        try:
            if not arguments.local_only:
                _end_leftovers(home, store, experiment)
            left = _delete_study(experiment, service, home, access, force=arguments.force)
            if arguments.local_only:
                left = "; ".join(filter(None, (_left_on_cluster(experiment), left)))
            _remove(home, store, experiment)
        finally:
            admitted.lock.release()
    _say(arguments, f"{experiment.name} is deleted" + (f"; left behind: {left}" if left else ""))
    return ExitCode.OK


def _delete_study(experiment: Experiment, service: str, home: Home, access: Access, *, force: bool) -> str:
    """What is left of it. Raises Unavailable and the like: without `force` nothing else may be removed then."""
    name = study_of(experiment)

    async def ask(client: SessionClient) -> None:
        with suppress(NotFound):  # killed before it made its study, or deleting it a second time
            async with asyncio.timeout(FORCED_PATIENCE_S if force else None):
                await client.delete_study(name)

    try:
        with_client(service, home, ask, access=access)
    except (Unavailable, Unauthenticated, PermissionDenied, StoreBroken, TimeoutError) as error:
        if not force:
            cure = f"its records are kept; {command('delete', experiment.name, '--force')} removes what is here"
            kind = Unavailable if isinstance(error, Unavailable | TimeoutError) else type(error)
            raise kind(f"{error}\n{cure}") from error
        why = f"no answer within {FORCED_PATIENCE_S:g} s" if isinstance(error, TimeoutError) else str(error)
        return f"the study {name} with its trials, in the {described(service)} ({why})"
    return ""


def _sure(store: SqlStore, home: Home, experiment: Experiment) -> bool:
    """Asks on a terminal; elsewhere nobody can answer."""
    number = len(store.attempts(experiment.uid))
    attempts = quantity(number, "attempt")
    what = f"{experiment.name}, the logs and outputs of its {attempts} in {home.folders(experiment.uid).root}"
    if not sys.stdin.isatty():
        raise InvalidArgument([Problem("", f"this would delete {what}; say --yes to do it")])
    print(f"Delete {what}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _remove(home: Home, store: SqlStore, experiment: Experiment) -> None:
    """What is in the state directory; the rows last, so that one that was killed halfway can be repeated."""
    shutil.rmtree(home.folders(experiment.uid).root, ignore_errors=True)
    store.delete_experiment(experiment.uid)


def _end_leftovers(home: Home, store: SqlStore, experiment: Experiment) -> None:
    """Kill what a killed controller left running: it has no outcome to report any more."""
    from controller.runtime.kubernetes.errors import BadKubeconfig, Unreachable

    left = [attempt for attempt in store.attempts(experiment.uid) if not attempt.ended]
    try:
        asyncio.run(_remove_all(home, experiment, left))
    except (BadKubeconfig, Unreachable) as error:
        cure = f"nothing was deleted; if the cluster is gone: {command('delete', experiment.name, '--local-only')}"
        raise Unavailable(f"{error}\n{cure}") from error


async def _remove_all(home: Home, experiment: Experiment, left: Sequence[Attempt]) -> None:
    if left:
        await _remove_attempts(home, experiment, left)
    await runtimes.discard(experiment)


def _left_on_cluster(experiment: Experiment) -> str:
    """All of it belongs to one object."""
    owner = short_name(experiment.name, experiment.uid)
    context = f"--context {experiment.context} " if experiment.context else ""
    cure = f"kubectl {context}-n {experiment.namespace} delete configmap {owner}"
    return f"what runs on the cluster, if it is there ({cure})"


async def _remove_attempts(home: Home, experiment: Experiment, left: Sequence[Attempt]) -> None:
    runtime = await runtimes.of(home, experiment)
    try:
        for attempt in left:
            await runtime.remove(attempt_name(experiment.name, experiment.uid, attempt.trial, attempt.number))
    finally:
        await runtime.close()


def _say(arguments: argparse.Namespace, text: str) -> None:
    if not arguments.quiet:
        print(rendered(text, arguments), file=sys.stderr, flush=True)
