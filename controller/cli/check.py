"""The verbs that check or show without running: `validate`, `init`, `convert`,
`schema`, `doctor`, `run --dry-run`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from controller import app, cli, report
from controller.cli import exits
from controller.cli.exits import ExitCode
from controller.cli.options import file_options_of, workspace_of
from controller.cli.terminal import write_data
from controller.core.model import END_BY_THEMSELVES
from controller.phrases import command, quantity
from controller.runtime import registry
from controller.spec import Document, file_text, starter
from controller.spec import schema as file_schema
from suggest.errors import FailedPrecondition

if TYPE_CHECKING:
    from controller.core.model import ExperimentSpec
    from controller.runtime.provider import DryRun, Finding


def validate(arguments: argparse.Namespace) -> ExitCode:
    document = _validated(arguments)
    for warning in (*app.validate.warnings(document), *app.validate.not_installed(document)):
        print(f"warning: {warning}", file=sys.stderr)
    if not arguments.quiet:
        spec = document.spec
        if spec.budget.trials is not None:
            budget = quantity(spec.budget.trials, "trial")
        elif spec.algorithm.name in END_BY_THEMSELVES:
            budget = "until the space is exhausted"
        else:
            budget = "no limit of trials"
        parameters = quantity(len(spec.space.parameters), "parameter")
        if spec.define_by_run:
            parameters = "parameters that its trials name"
        print(
            f"{document.source} is valid: experiment {spec.name}, {parameters}, "
            f"{spec.algorithm.name}, {budget}, parallelism {spec.parallelism}"
        )
        for sentence in app.validate.guess(spec):
            print(sentence)
    return ExitCode.OK


def _validated(arguments: argparse.Namespace) -> Document:
    return asyncio.run(
        app.validate.validate(arguments.file, file_options_of(arguments), workspace_of(arguments))
    )


def init(arguments: argparse.Namespace) -> ExitCode:
    if arguments.file == "-":
        write_data(starter())
        return ExitCode.OK
    path = Path(arguments.file)
    if path.exists() or path.is_symlink():
        raise FailedPrecondition(
            f"{path} already exists; name another file, or - for standard output"
        )
    report.output_file.write(path, starter())
    if not arguments.quiet:
        done = f"wrote {path}; edit it, then: {command('run', str(path))}"
        print(cli.invocation.rendered(done, arguments), file=sys.stderr)
    return ExitCode.OK


def convert(arguments: argparse.Namespace) -> ExitCode:
    document = asyncio.run(
        app.validate.validate(arguments.file, file_options_of(arguments), workspace_of(arguments))
    )
    if document.is_native:
        raise FailedPrecondition(f"{document.source} is a native file already")
    for warning in document.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    write_data(file_text(document.spec.document))
    return ExitCode.OK


def schema(_arguments: argparse.Namespace) -> ExitCode:
    write_data(json.dumps(file_schema(), indent=2, ensure_ascii=False) + "\n")
    return ExitCode.OK


def doctor(arguments: argparse.Namespace) -> ExitCode:
    """Print a line for each finding, as soon as it is known."""

    async def print_findings() -> list[Finding]:
        findings = []
        async for finding in app.doctor.check_up(
            workspace_of(arguments), arguments.file, file_options_of(arguments)
        ):
            text = cli.invocation.rendered(finding.detail, arguments)
            detail = text.replace("\n", "\n      ")
            print(f"{finding.level.value:<4}  {finding.subject:<20}  {detail}", flush=True)
            findings.append(finding)
        return findings

    return exits.of_findings(asyncio.run(print_findings()))


def dry_run(arguments: argparse.Namespace) -> ExitCode:
    """Print the objects that would be sent to a cluster, or have its server check them."""
    spec, directory = _validated(arguments).spec, app.experiment_file.directory_of(arguments.file)
    provider = registry.provider_of(spec.runtime)
    if arguments.dry_run == "client":
        run = provider.dry_run(spec, directory)
        write_data(_heading(spec, run) + report.plain_data.yaml_documents(run.trial))
        if run.final:
            write_data(_FINAL_HEADING + report.plain_data.yaml_documents(run.final))
        return ExitCode.OK
    answer = asyncio.run(provider.dry_run_on_server(spec, directory, arguments.context))
    for line in answer.lines:
        print(line)
    return exits.of_verdicts(answer)


_FINAL_HEADING = (
    "# Its final stage, after the last trial; it will have the parameters of the best one.\n"
)


def _heading(spec: ExperimentSpec, run: DryRun) -> str:
    point = report.formatting.parameters(run.parameters)
    whence = "the first of spec.initial" if spec.initial else "in the middle of their ranges"
    return (
        f"# Trial 0 of {spec.name} as namespace {spec.namespace} would get it, with the resulting "
        f"pod.\n"
        f"# Its parameters are {whence}; the search may begin elsewhere: {point}\n"
    )
