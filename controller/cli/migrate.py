"""`tuner migrate katib`: experiments that a real Katib runs go on as Tuner's, and back."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from controller.app import katib_migration
from controller.cli.exits import ExitCode, of_error
from controller.cli.options import cluster_of
from controller.cli.terminal import say
from controller.kube.errors import ApiError
from controller.phrases import command, quantity
from controller.report import text_tables
from suggest.errors import InvalidArgument, TunerError

if TYPE_CHECKING:
    from controller.app.controller_api import ControllerApi
    from controller.app.katib_migration import Found

_COLUMNS = ("NAMESPACE", "NAME", "STATE", "ENDED", "RUNNING", "LEFT")


def katib(arguments: argparse.Namespace) -> ExitCode:
    """Show what would be done, or do it."""
    api = cluster_of(arguments)
    namespace = None if arguments.all_namespaces else arguments.namespace
    if arguments.names and namespace is None:
        raise InvalidArgument.at("--all-namespaces", "names are of one namespace: name it with -n")
    if arguments.undo and not arguments.names:
        raise InvalidArgument.at("--undo", "name the experiments that Katib gets back")
    names, ended = arguments.names, arguments.ended
    found = api.call(katib_migration.look, namespace=namespace, names=names, ended=ended)
    if arguments.undo:
        return _undo(arguments, api, found)
    return _take_over(arguments, api, found)


def _take_over(arguments: argparse.Namespace, api: ControllerApi, found: list[Found]) -> ExitCode:
    found = [_checked(api, each) for each in found]
    rows = [_row(each) for each in found]
    print(text_tables.aligned(_COLUMNS, rows, headers=bool(rows)), end="", flush=True)
    blocked = [each for each in found if each.blocked]
    for each in blocked:
        say(arguments, f"{each.namespace}/{each.name} stays with Katib: {each.blocked}")
    ready = [each for each in found if each.is_ready]
    code = ExitCode.USAGE if blocked else ExitCode.OK
    if not ready:
        say(arguments, "there is nothing to take over")
        return code
    if not arguments.yes:
        say(
            arguments,
            f"{quantity(len(ready), 'experiment')} would be taken over (dry run); add --yes to do "
            "it",
        )
        return code
    for each in ready:
        code = max(code, _do(arguments, api, each))
    return code


def _checked(api: ControllerApi, found: Found) -> Found:
    return api.call(katib_migration.checked, found) if found.is_ready else found


def _do(arguments: argparse.Namespace, api: ControllerApi, found: Found) -> ExitCode:
    """Take one over. A refusal of one does not keep the others from it."""
    name = f"{found.namespace}/{found.name}"
    try:
        taken = api.call(katib_migration.take_over, found)
    except (TunerError, ApiError) as error:
        code, _ = of_error(error)
        say(arguments, f"{name} stays with Katib: {error}")
        return code
    arguments.namespace = found.namespace
    running = len(taken.trials.running)
    say(
        arguments,
        f"{name} is taken over: {quantity(len(taken.trials.ended), 'ended trial')} of Katib's, "
        f"{running} that run under Katib and count, {_left(taken)} left. Watch it: "
        f"{command('get', 'trials', found.name, '-w')}",
    )
    return ExitCode.OK


def _undo(arguments: argparse.Namespace, api: ControllerApi, found: list[Found]) -> ExitCode:
    for each in found:
        name = f"{each.namespace}/{each.name}"
        if not each.is_stopped and each.ours is None:
            say(arguments, f"{name} is not taken over")
        elif not arguments.yes:
            say(
                arguments,
                f"{name} would be Katib's again (dry run): what Tuner has run since is unknown to "
                "Katib, and stays in the controller's store; add --yes to do it",
            )
        else:
            api.call(katib_migration.give_back, each)
            say(arguments, f"{name} is Katib's again")
    return ExitCode.OK


def _row(found: Found) -> list[str]:
    trials = found.trials
    counts = [str(len(trials.ended)), str(len(trials.running)), _left(found)]
    return [found.namespace, found.name, found.state, *counts]


def _left(found: Found) -> str:
    if found.has_ended:
        return ""
    return "no limit" if found.left is None else str(found.left)
