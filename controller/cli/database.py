"""`tuner db`: the study store's schema, for whoever looks after a database."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from controller.cli.embedded import asked_for
from controller.cli.exits import ExitCode
from controller.cli.home import Home
from controller.cli.invocation import rendered
from controller.phrases import command


def check(arguments: argparse.Namespace) -> ExitCode:
    from suggest.admin import schema_versions

    there, newest = schema_versions(_storage(arguments))
    if there == newest:
        print(f"schema {there}, the newest")
        return ExitCode.OK
    print(f"schema {there}; the newest is {newest}")
    cure = rendered(command("db", "upgrade"), arguments)
    print(f"tuner: the store has an older schema; upgrade it with: {cure}", file=sys.stderr)
    return ExitCode.UNAVAILABLE


def upgrade(arguments: argparse.Namespace) -> ExitCode:
    from suggest.admin import open_store, schema_versions

    storage = _storage(arguments)
    before, newest = schema_versions(storage)
    if before == newest:
        print(f"schema {before}, the newest: nothing to do")
        return ExitCode.OK
    with closing(open_store(storage)):
        print(f"schema {before} -> {newest}")
    return ExitCode.OK


def _storage(arguments: argparse.Namespace) -> str:
    arguments.server = None
    return asked_for(arguments) or Home.find(arguments.state_dir).storage_url
