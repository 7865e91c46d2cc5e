"""`tuner confirm` and `tuner reproduce`: the verbs that run trials again, outside of the search."""

from __future__ import annotations

import argparse
import asyncio

from controller import app, cli, report
from controller.app.rerun import Reruns
from controller.cli import lifecycle, terminal
from controller.cli.options import readable_of, split_name
from controller.core.model import Uid
from suggest.errors import InvalidArgument


def confirm(arguments: argparse.Namespace) -> int:
    workspace, name = readable_of(arguments), arguments.name
    reruns = asyncio.run(
        app.rerun.confirming(
            workspace, name, arguments.namespace, top=arguments.top, seeds=arguments.seeds
        )
    )
    for note in asyncio.run(app.reproduce.differences(workspace, reruns)):
        terminal.say(arguments, note)
    code = _run(arguments, reruns)
    asyncio.run(lifecycle.print_confirmation(arguments, workspace, name, arguments.namespace))
    return code


def reproduce(arguments: argparse.Namespace) -> int:
    workspace = readable_of(arguments)
    name, number = split_name(arguments.name)
    if not isinstance(number, int):
        raise InvalidArgument.at("", f"{arguments.name}: write NAME/N, such as {name}/0")
    found = asyncio.run(
        app.reproduce.reproducing(
            workspace, name, arguments.namespace, number, times=arguments.times
        )
    )
    for note in found.notes:
        terminal.say(arguments, note)
    code = _run(arguments, found.reruns, uid=found.uid)
    made = found.reruns.file.document.spec
    record = asyncio.run(app.query.look_up(workspace, made.name, made.namespace))
    again = [app.reproduce.values_of(entry, record.experiment) for entry in record.trials]
    for metric, recorded in found.recorded.items():
        values = [each[metric] for each in again if metric in each]
        about = f"trial {number}, {metric}" if len(found.recorded) > 1 else f"trial {number}"
        print(report.confirmation.comparison(about, recorded, values))
    return code


def _run(arguments: argparse.Namespace, reruns: Reruns, *, uid: Uid = "") -> int:
    """Run the experiment of the reruns where the search ran, to its end."""
    document = reruns.file.document
    if arguments.cluster is not None:
        return cli.cluster.run_reruns(arguments, reruns.search, document)
    arguments.context = None  # that of the search
    return lifecycle.control(
        arguments,
        lambda session: session.run_again(reruns, session.view, uid=uid),
        document=document,
    )
