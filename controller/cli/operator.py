"""`tuner controller`: run the experiments of a cluster's custom resources."""

from __future__ import annotations

import argparse
import asyncio

from controller.cli import terminal
from controller.cli.exits import ExitCode
from controller.cli.options import state_of
from controller.operator.policy import Policy
from controller.operator.process import ControllerOptions, run_controller
from suggest.errors import InvalidArgument


def controller(arguments: argparse.Namespace) -> ExitCode:
    for flag in ("--health-port", "--metrics-port"):
        port = getattr(arguments, flag.strip("-").replace("-", "_"))
        if port is not None and not 0 < port < 65536:
            raise InvalidArgument.at(flag, f"{port} is not a port; write 1 to 65535")
    terminal.set_up_logging(arguments)
    options = ControllerOptions(
        state_of(arguments),
        context=arguments.context,
        namespaces=tuple(dict.fromkeys(arguments.watch_namespace)),
        health_port=arguments.health_port,
        metrics_port=arguments.metrics_port,
        policy=Policy(
            service_accounts=frozenset(arguments.allow_service_account),
            kinds=frozenset(arguments.allow_kind),
        ),
    )
    asyncio.run(run_controller(options))
    return ExitCode.OK
