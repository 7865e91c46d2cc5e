"""`tuner confirm` and `tuner reproduce`: the verbs that run trials again, outside of the search."""

from __future__ import annotations

import argparse
import asyncio
import sys

from controller import app, report
from controller.app.rerun import Reruns
from controller.app.workspace import is_address
from controller.cli import lifecycle
from controller.cli.invocation import rendered
from controller.cli.options import workspace_of


def confirm(arguments: argparse.Namespace) -> int:
    workspace, name = workspace_of(arguments), arguments.name
    reruns = asyncio.run(
        app.rerun.confirming(
            workspace, name, arguments.namespace, top=arguments.top, seeds=arguments.seeds
        )
    )
    code = _run(arguments, reruns)
    found = asyncio.run(app.rerun.confirmed(workspace, name, arguments.namespace))
    if found is not None and found.winner is not None:
        sys.stdout.write(rendered(report.confirmation.text(found), arguments))
    return code


def _run(arguments: argparse.Namespace, reruns: Reruns) -> int:
    """Run the experiment of the reruns where the search ran, to its end."""
    search = reruns.search
    arguments.context = search.context or None
    if is_address(search.server):
        arguments.server = search.server
    else:
        arguments.storage = search.server or None
    reruns.file.check_runnable()
    return lifecycle.control(
        arguments, lambda session: session.run(reruns.file), document=reruns.file.document
    )
