"""`tuner run`, `resume`, `extend`, `retry`, `import`, `stop`, `delete`:
the verbs that change an experiment.

Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from controller import app, cli, core, report
from controller.cli import exits, terminal
from controller.cli.exits import ExitCode
from controller.cli.options import (
    extension_of,
    file_options_of,
    file_or_name,
    is_name,
    read_file,
    workspace_of,
)
from controller.cli.terminal import is_sure, say
from controller.core.model import ExperimentSpec, ExperimentState
from controller.phrases import command, quantity
from controller.report.lines import Lines, LoggedView, View
from controller.spec.reading import is_script
from suggest import server
from suggest.errors import InvalidArgument, TunerError, Unavailable

if TYPE_CHECKING:
    from controller.app.delete import Deleted
    from controller.app.experiment_file import ExperimentFile
    from controller.app.import_trials import Imported
    from controller.app.local_experiments import LocalExperiments
    from controller.app.run import RunResult, Session
    from controller.app.workspace import ReadableWorkspace
    from controller.spec import Document

_NEED_A_PERSON = frozenset({ExperimentState.PAUSED, ExperimentState.FAILED})
MOST_PROBLEMS = 20  # printed for trials that could not be imported

WITH_RECOVERY = "kubernetes"  # the runtime that --from-cluster asks, unless --runtime names another

# Verbs that control an experiment


def run(arguments: argparse.Namespace) -> int:
    if is_script(arguments.file):
        return _run_script(arguments)
    if arguments.dry_run:
        return cli.check.dry_run(arguments)
    return _start(
        arguments, read_file(arguments.file, arguments), lambda session, file: session.run(file)
    )


def _run_script(arguments: argparse.Namespace) -> int:
    """Run a script that was written for Optuna, and its searches as those of a file."""
    if arguments.dry_run:
        raise InvalidArgument.at(
            "--dry-run", "the searches of a script are known when it runs; omit it"
        )
    # Here, because few commands need the Python API.
    from tuner import optuna_script
    from tuner.session import Shell

    workspace = workspace_of(arguments)

    def end(view: View, result: RunResult, received: signal.Signals | None) -> None:
        experiment = result.experiment
        # The output is the script's.
        with redirect_stdout(sys.stderr):
            _print_result(arguments, view, result)
            if experiment.spec.confirm is not None:
                named = experiment.name, experiment.namespace
                asyncio.run(print_confirmation(arguments, workspace, *named))
        # What a callback or another command has stopped is a result; a signal raises by itself.
        code = exits.of_run(result, stopped=ExitCode.OK)
        # Without a result, the script says what that means.
        if received is None and code not in (ExitCode.OK, ExitCode.NO_RESULT):
            raise SystemExit(code)

    terminal.leave_root_logger()
    shell = Shell(
        str(Path(arguments.file).absolute()),
        workspace,
        file_options_of(arguments),
        view=partial(view_of, arguments),
        begin=lambda view, document: _show_notices(document, view),
        end=end,
    )
    try:
        return optuna_script.run(arguments.file, arguments.of_script, shell)
    except TunerError as error:
        if error.reason != "SEARCH_FAILED":
            raise
        # `end` has shown why.
        return ExitCode.NO_RESULT


def resume(arguments: argparse.Namespace) -> int:
    # A runtime says that trials are continued from here, and the context where they run.
    if arguments.cluster is not None and not (arguments.runtime or arguments.from_cluster):
        return cli.cluster.resume(arguments)
    arguments.context = arguments.cluster
    by_name = is_name(arguments.target)
    if arguments.from_cluster and not by_name:
        raise InvalidArgument.at(
            "--from-cluster", "requires the experiment's name: the file is on the cluster"
        )
    if by_name and arguments.set:
        raise InvalidArgument.at("--set", "changes a file: name the file, not the experiment")
    namespace = arguments.namespace
    if not by_name:
        file = read_file(arguments.target, arguments)
        return _start(arguments, file, lambda session, file: session.resume(file, namespace))
    if arguments.from_cluster:
        searched = arguments.runtime or WITH_RECOVERY

        async def recovered(session: Session) -> RunResult:
            return await session.recover(arguments.target, namespace, runtime=searched)

        return control(arguments, recovered, make=True)
    return control(
        arguments, lambda session: session.resume(arguments.target, namespace), make=True
    )


def extend(arguments: argparse.Namespace) -> int:
    if arguments.cluster is not None:
        return cli.cluster.extend(arguments)

    async def extended(session: Session) -> RunResult:
        changes = extension_of(arguments)
        target = file_or_name(arguments.name, arguments)
        if not isinstance(target, str):
            _name_namespace(arguments, target.document.spec, session.experiments)
        admitted = await app.extend.extend(
            session.workspace,
            session.experiments,
            target,
            changes,
            namespace=arguments.namespace,
            print_line=session.view.print_line,
        )
        return await session.go_on(admitted)

    return control(arguments, extended)


def retry(arguments: argparse.Namespace) -> int:
    if arguments.cluster is not None:
        return cli.cluster.retry(arguments)
    selection = app.retry.RetrySelection.parse(
        arguments.numbers, failed=arguments.failed, reason=arguments.reason
    )

    async def retried(session: Session) -> RunResult:
        target = file_or_name(arguments.name, arguments)
        if isinstance(target, str) and arguments.set:
            raise InvalidArgument.at("--set", "changes a file: name the file, not the experiment")
        if not isinstance(target, str):
            _name_namespace(arguments, target.document.spec, session.experiments)
            _show_notices(target.document, session.view)
        admitted = await app.retry.retry(
            session.workspace,
            session.experiments,
            target,
            selection,
            namespace=arguments.namespace,
            print_line=session.view.print_line,
        )
        return await session.go_on(admitted)

    return control(arguments, retried)


def _start(
    arguments: argparse.Namespace,
    file: ExperimentFile,
    begin: Callable[[Session, ExperimentFile], Awaitable[RunResult]],
) -> int:
    """Check and announce the file, then control its experiment."""
    file.check_runnable()
    return control(
        arguments, lambda session: begin(session, file), make=True, document=file.document
    )


def control(
    arguments: argparse.Namespace,
    act: Callable[[Session], Awaitable[RunResult]],
    *,
    make: bool = False,
    document: Document | None = None,
) -> int:
    """Call `act` with a session, and print the result. make: allow a new state directory."""
    view = view_of(arguments)
    if document is not None:
        _show_notices(document, view)
    workspace = workspace_of(arguments)

    async def controlled(experiments: LocalExperiments) -> int:
        with app.signals.SignalControls(view.print_line, os._exit) as controls:
            session = app.run.Session(
                workspace, experiments, view=view, controls=controls, context=arguments.context
            )
            try:
                result = await act(session)
                _print_result(arguments, view, result)
                reruns = await session.confirm(result, partial(view_of, arguments))
            except (Unavailable, core.attempt.RuntimeLost) as error:
                if controls.times < 2:
                    raise
                raise exits.KilledRun(error, controls.received) from error
            stopped = exits.of_interruption(controls.received)
            code = exits.of_run(result, stopped=stopped)
            if reruns is None:
                return code
            search = result.experiment
            await print_confirmation(arguments, workspace, search.name, search.namespace)
            return code or exits.of_run(reruns, stopped=stopped)

    with workspace.opened(make=make) as experiments:
        if document is not None:
            _name_namespace(arguments, document.spec, experiments)
        return asyncio.run(controlled(experiments))


def _name_namespace(
    arguments: argparse.Namespace, spec: ExperimentSpec, experiments: LocalExperiments
) -> None:
    """Let commands in messages name the namespace of the experiment's file.

    They do if an experiment in another namespace has the same name.
    """
    if any(other.namespace != spec.namespace for other in experiments.named(spec.name)):
        arguments.namespace = spec.namespace


def _print_result(arguments: argparse.Namespace, view: View, result: RunResult) -> None:
    experiment, best = result.experiment, result.best
    # Reruns are compared instead, by `print_confirmation`.
    if best is not None and experiment.spec.rerun is None:
        print(report.ending.result(experiment, best), flush=True)
    # -q hides progress, but not what a person has to act on.
    is_failure = best is None or result.final_failed
    if not arguments.quiet or is_failure or experiment.state in _NEED_A_PERSON:
        words = report.ending.next_step(
            experiment,
            result.counts,
            best,
            final_failed=result.final_failed,
            printed=result.opened_breaker,
        )
        (Lines() if arguments.quiet else view).print_line(cli.invocation.rendered(words, arguments))


async def print_confirmation(
    arguments: argparse.Namespace, workspace: ReadableWorkspace, name: str, namespace: str | None
) -> None:
    """Print how the trials that ran again compare, unless none has succeeded."""
    found = await app.rerun.confirmed(workspace, name, namespace)
    if found is not None and found.winner is not None:
        sys.stdout.write(cli.invocation.rendered(report.confirmation.text(found), arguments))


def view_of(arguments: argparse.Namespace) -> View:
    if arguments.quiet:
        return View()
    if arguments.verbose or arguments.log_format == "json":
        return LoggedView()
    if terminal.live(arguments):
        return report.live.Live(color=terminal.uses_color(arguments))
    return Lines()


def _show_notices(document: Document, view: View) -> None:
    for notice in app.validate.notices(document):
        view.print_line(notice)


# Other verbs


def import_trials(arguments: argparse.Namespace) -> ExitCode:
    workspace = workspace_of(arguments)
    chosen = app.import_sources.SourceChoice(
        arguments.source, arguments.study, arguments.value, tuple(arguments.fill)
    )
    imported = asyncio.run(
        app.import_trials.import_trials(
            workspace,
            file_or_name(arguments.name, arguments),
            chosen,
            namespace=arguments.namespace,
            context=arguments.context,
        )
    )
    with workspace.opened() as experiments:
        _name_namespace(arguments, imported.experiment.spec, experiments)
    _print_imported(arguments, imported)
    return ExitCode.OK if imported.tally.new or imported.tally.known else ExitCode.USAGE


def _print_imported(arguments: argparse.Namespace, imported: Imported) -> None:
    print_line = partial(say, arguments)
    experiment, tally, name = imported.experiment, imported.tally, imported.experiment.name
    before = ""
    if tally.known:
        were = "was" if tally.known == 1 else "were"
        before = f", {tally.known} {were} there already"
    new = quantity(tally.new, "trial")
    left_out = app.import_trials.left_out(imported.source)
    print(f"{name}: {new} imported from {imported.source.title}{before}{left_out}", flush=True)
    if imported.source.remark:
        print_line(imported.source.remark)
    unknown: list[str] = []
    outside: list[str] = []
    for parameter, n in tally.remarks.items():
        remarks = outside if parameter in experiment.spec.space.by_name else unknown
        remarks.append(f"{parameter} ({n})")
    if unknown:
        listed = ", ".join(unknown[:8])
        print_line(f"ignored, not parameters of {name} (number of trials): {listed}")
    if outside:
        print_line(
            f"outside the search space (number of trials): {', '.join(outside[:8])}; these values "
            "are kept and used once the space includes them "
            f"({command('extend', name, '--set', 'PATH=VALUE')})"
        )
    if tally.refused:
        unlisted = len(tally.refused) - MOST_PROBLEMS
        more = f"\n  and {unlisted} more" if unlisted > 0 else ""
        shown = "\n  ".join(tally.refused[:MOST_PROBLEMS])
        cure = ""
        if any(": no value; " in refusal for refusal in tally.refused):
            cure = "\nTo set a parameter that the source lacks: --fill NAME=VALUE"
        print_line(f"{quantity(len(tally.refused), 'trial')} not imported:\n  {shown}{more}{cure}")
    if experiment.state.finished:
        growth = ("--trials", "+20")
        if experiment.spec.budget.trials is None:
            growth = ("--set", "PATH=VALUE")
        print_line(f"Continue with them: {command('extend', name, *growth)}")
    elif not imported.begun:
        run = command("run", arguments.name)
        if is_name(arguments.name):
            run = command("resume", name)
        print_line(f"Run it: {run}")


def set_values(arguments: argparse.Namespace) -> ExitCode:
    """Change an experiment while it runs."""
    if arguments.cluster is not None:
        return cli.cluster.set_values(arguments)
    asyncio.run(
        app.revise.set_values(
            workspace_of(arguments),
            arguments.name,
            arguments.namespace,
            arguments.values,
            print_line=partial(say, arguments),
        )
    )
    return ExitCode.OK


def stop(arguments: argparse.Namespace) -> ExitCode:
    """Stop an experiment and wait until it has stopped."""
    if arguments.cluster is not None:
        return cli.cluster.stop(arguments)
    print_line = partial(say, arguments)
    after = asyncio.run(
        app.stop.stop(
            workspace_of(arguments),
            arguments.name,
            arguments.namespace,
            controls=lambda: app.signals.SignalControls(
                lambda text: print(text, file=sys.stderr), os._exit
            ),
            print_line=print_line,
        )
    )
    if after.state.finished:
        print_line(f"{after.name} has {after.state.value} already: {after.reason}")
    else:
        print_line(
            f"{after.name}: {after.state.value}, {after.reason}. Resume: "
            f"{command('resume', after.name)}"
        )
    return ExitCode.OK


def delete(arguments: argparse.Namespace) -> ExitCode:
    if arguments.cluster is not None:
        return cli.cluster.delete(arguments)
    if arguments.keep_study:
        raise InvalidArgument.at("--keep-study", "is for experiments of a cluster; add --context")
    # each experiment's lock takes a descriptor until all are deleted
    server.raise_descriptor_limit()
    done = asyncio.run(
        app.delete.delete(
            workspace_of(arguments),
            arguments.names,
            arguments.namespace,
            confirm=lambda target: arguments.yes or is_sure(target),
            on_deleted=lambda deleted: say(arguments, _deletion_message(deleted)),
            force=arguments.force,
            local_only=arguments.local_only,
        )
    )
    if not done:
        say(arguments, "nothing was deleted")
    return ExitCode.OK if done else ExitCode.USAGE


def _deletion_message(deleted: Deleted) -> str:
    left_behind = f"; left behind: {deleted.left_behind}" if deleted.left_behind else ""
    return f"{deleted.name} is deleted{left_behind}"
