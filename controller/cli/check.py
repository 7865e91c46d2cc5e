"""`tuner validate`, `init`, `schema`: about files. Starts nothing and stores nothing."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli.exits import ExitCode
from controller.phrases import command, quantity
from suggest.errors import FailedPrecondition, InvalidArgument
from suggest.study import StudySpec

if TYPE_CHECKING:
    from controller.spec import Document


def checked(arguments: argparse.Namespace) -> Document:
    """The file, by the service's rules too. Raises SpecErrors with all of its problems."""
    from controller.cli.file import read_document
    from controller.cli.preflight import check_file
    from controller.search import study_spec
    from suggest.server.admin import check

    document = read_document(arguments.file, arguments)
    check_file(document)
    try:
        if arguments.server:
            _ask(arguments.server, arguments, study_spec(document.spec))
        else:
            check(study_spec(document.spec))
    except InvalidArgument as error:
        raise document.locate(error.problems) from error
    return document


def validate(arguments: argparse.Namespace) -> ExitCode:
    document = checked(arguments)
    from controller.cli.preflight import warnings

    for warning in warnings(document):
        print(f"warning: {warning}", file=sys.stderr)
    if not arguments.quiet:
        spec = document.spec
        budget = "until the space is exhausted" if spec.budget.trials is None else quantity(spec.budget.trials, "trial")
        print(
            f"{document.source} is valid: experiment {spec.name}, {quantity(len(spec.space.parameters), 'parameter')}, "
            f"{spec.algorithm.name}, {budget}, {spec.parallelism} at a time"
        )
    return ExitCode.OK


def _ask(address: str, arguments: argparse.Namespace, spec: StudySpec) -> None:
    from controller.cli.embedded import Access
    from controller.cli.facts import with_client
    from controller.cli.home import Home

    with_client(
        address, Home.find(arguments.state_dir), lambda client: client.validate(spec), access=Access.of(arguments)
    )


def init(arguments: argparse.Namespace) -> ExitCode:
    from controller.spec import starter

    if arguments.file == "-":
        sys.stdout.write(starter())
        return ExitCode.OK
    path = Path(arguments.file)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        raise FailedPrecondition(f"{path} is there already; name another file, or - for standard output") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(starter())
    if not arguments.quiet:
        from controller.cli.invocation import rendered

        print(rendered(f"wrote {path}; edit it, then: {command('run', str(path))}", arguments), file=sys.stderr)
    return ExitCode.OK


def schema(_arguments: argparse.Namespace) -> ExitCode:
    from controller.spec import schema as make

    print(json.dumps(make(), indent=2, ensure_ascii=False))
    return ExitCode.OK
