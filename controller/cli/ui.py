"""`tuner ui`: serve the page on a free port until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys

from controller.cli.exits import ExitCode
from controller.cli.options import workspace_of
from suggest.distribution import install_command
from suggest.errors import FailedPrecondition, InvalidArgument


def ui(arguments: argparse.Namespace) -> ExitCode:
    if arguments.port is not None and not 0 < arguments.port < 65536:
        raise InvalidArgument.at("--port", f"{arguments.port} is not a port; write 1 to 65535")
    if arguments.optuna and importlib.util.find_spec("optuna_dashboard") is None:
        raise FailedPrecondition(
            f"--optuna needs optuna-dashboard; install with: {install_command('dashboard')}"
        )
    from controller.ui.server import serve  # an extra: Starlette and uvicorn

    def print_link(link: str) -> None:
        print(link, flush=True)
        if not arguments.quiet:
            print(
                "Open this link in a browser; it is valid once. Ctrl-C ends the page, not the "
                "searches",
                file=sys.stderr,
            )

    asyncio.run(
        serve(
            workspace_of(arguments),
            port=arguments.port,
            optuna=arguments.optuna,
            print_link=print_link,
        )
    )
    return ExitCode.OK
