"""`tuner version` and `tuner debug failpoints`."""

from __future__ import annotations

import argparse
import importlib
import platform

from controller.cli.exits import ExitCode
from suggest import failpoints as points
from suggest.distribution import described

# Every module that declares a failpoint. tests/unit/test_cli_about.py finds modules that are
# missing from this list.
FAILPOINT_MODULES = (
    "controller.backup",
    "controller.app.pack",
    "controller.experiment_store",
    "controller.search",
    "controller.loop",
    "controller.runtime.kubernetes.runtime",
    "suggest.storage.schema",
    "suggest.storage.sql_store",
)


def print_version(_arguments: argparse.Namespace) -> ExitCode:
    print(
        f"tuner {described()}, Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}"
    )
    return ExitCode.OK


def failpoints(_arguments: argparse.Namespace) -> ExitCode:
    for module in FAILPOINT_MODULES:
        importlib.import_module(module)
    print("\n".join(points.names()))
    return ExitCode.OK
