"""`tuner apply`, and with `--context` `stop`, `resume`, `set`, `extend`, `retry`, `delete`,
`confirm` and `reproduce`: changes of the experiments of a cluster's controller.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from controller.app import cluster_changes
from controller.app.cluster_workspace import ClusterWorkspace
from controller.app.experiment_file import directory_of
from controller.app.experiment_service import listed
from controller.app.extend import Extension
from controller.app.retry import RetrySelection
from controller.app.validate import validate, warnings
from controller.app.workspace import Workspace
from controller.cli.exits import ExitCode
from controller.cli.options import (
    RUNTIME,
    api_of,
    cluster_of,
    extension_of,
    file_options_of,
    is_name,
    state_of,
)
from controller.cli.terminal import is_sure, say
from controller.phrases import command
from controller.report.formatting import ranges
from controller.runtime import trial_files
from suggest.errors import InvalidArgument

if TYPE_CHECKING:
    from controller.app.cluster_changes import Resource
    from controller.app.controller_api import ControllerApi
    from controller.core.model import Experiment
    from controller.spec import Document


def apply(arguments: argparse.Namespace) -> ExitCode:
    """Validate a file, apply it, and wait until the controller has accepted it."""
    _apply(arguments, api_of(arguments), arguments.file, dry_run=arguments.dry_run)
    return ExitCode.OK


def _apply(
    arguments: argparse.Namespace, api: ControllerApi, path: str, *, dry_run: bool = False
) -> str:
    """Apply a file, and return the experiment's name; its namespace is in the arguments then."""
    # For the commands in messages, which need it: without it they read this machine.
    arguments.cluster = arguments.context = api.context
    arguments.runtime = RUNTIME
    options = replace(file_options_of(arguments), handed_over=True)
    document = asyncio.run(validate(path, options, Workspace(state_of(arguments))))
    for warning in warnings(document):
        say(arguments, f"warning: {warning}")
    spec = document.spec
    arguments.namespace = spec.namespace
    files = trial_files.read(directory_of(path), spec.trial.files)
    applied = api.call(cluster_changes.apply, document, options.overrides, files, dry_run=dry_run)
    tried = " (dry run)" if dry_run else ""
    print(f"experiment {spec.namespace}/{spec.name} {applied.what}{tried}", flush=True)
    if not dry_run:
        accepted = api.call(cluster_changes.accepted, applied.resource)
        say(
            arguments,
            f"revision {accepted['status']['revision']} is in force. Watch it: "
            f"{command('get', 'trials', spec.name, '-w')}",
        )
    return spec.name


def run_reruns(arguments: argparse.Namespace, search: Experiment, document: Document) -> ExitCode:
    """Let the controller run trials of a search again, and wait until they have ended."""
    api, spec = cluster_of(arguments), document.spec
    arguments.namespace = spec.namespace
    files = api.call(cluster_changes.files_of, search)
    applied = api.call(cluster_changes.apply, document, (), files, dry_run=False)
    accepted = api.call(cluster_changes.accepted, applied.resource)
    if not cluster_changes.is_over(accepted):
        say(
            arguments,
            f"{spec.name} runs in the cluster, also without this command. Watch it: "
            f"{command('get', 'trials', spec.name, '-w')}",
        )
    ended = api.call(cluster_changes.ended, accepted)
    state = (ended.get("status") or {}).get("state", "")
    if state == "succeeded":
        return ExitCode.OK
    _say_state(arguments, ended)
    return ExitCode.FAILED if state == "failed" else ExitCode.PAUSED


def resume(arguments: argparse.Namespace) -> ExitCode:
    """Let an experiment go on, as it is or as its changed file says."""
    name = arguments.target
    if not is_name(name):
        api = api_of(arguments)
        name = _apply(arguments, api, name)
    else:
        if arguments.set:
            raise InvalidArgument.at("--set", "changes a file: name the file, not the experiment")
        api = cluster_of(arguments)
    _say_state(arguments, api.call(cluster_changes.resume, arguments.namespace, name))
    return ExitCode.OK


def stop(arguments: argparse.Namespace) -> ExitCode:
    api = cluster_of(arguments)
    _say_state(arguments, api.call(cluster_changes.stop, arguments.namespace, arguments.name))
    return ExitCode.OK


def set_values(arguments: argparse.Namespace) -> ExitCode:
    return _revise(arguments, Extension("", tuple(arguments.values)))


def extend(arguments: argparse.Namespace) -> ExitCode:
    extension = extension_of(arguments)
    if not is_name(arguments.name):
        apply_file = command("apply", "-f", "FILE")
        raise InvalidArgument.at("", f"name the experiment, or use: {apply_file}")
    if not extension:
        raise InvalidArgument.at("", "specify what to extend: --trials +20, or --set PATH=VALUE")
    return _revise(arguments, extension)


def _revise(arguments: argparse.Namespace, extension: Extension) -> ExitCode:
    api, name = cluster_of(arguments), arguments.name
    revised, changes = api.call(cluster_changes.revise, arguments.namespace, name, extension)
    if not changes:
        say(arguments, f"{name} has these values already")
        return ExitCode.OK
    revision = revised["status"]["revision"]
    say(arguments, f"revision {revision} of {name} takes effect now:\n{listed(changes)}")
    return ExitCode.OK


def retry(arguments: argparse.Namespace) -> ExitCode:
    selection = RetrySelection.parse(
        arguments.numbers, failed=arguments.failed, reason=arguments.reason
    )
    if not is_name(arguments.name) or arguments.set:
        apply_file = command("apply", "-f", "FILE")
        raise InvalidArgument.at("", f"name the experiment; to change it first: {apply_file}")
    api, name = cluster_of(arguments), arguments.name
    namespace = arguments.namespace
    numbers = asyncio.run(
        cluster_changes.chosen_to_retry(ClusterWorkspace(api), namespace, name, selection)
    )
    is_all = not selection.numbers and not selection.reason
    api.call(cluster_changes.retry, namespace, name, [] if is_all else numbers)
    run = "trial {} runs" if len(numbers) == 1 else "trials {} run"
    say(arguments, f"{name}: {run.format(ranges(list(numbers)))} again as new attempts")
    return ExitCode.OK


def delete(arguments: argparse.Namespace) -> ExitCode:
    for flag, is_set in (("--force", arguments.force), ("--local-only", arguments.local_only)):
        if is_set:
            raise InvalidArgument.at(flag, "is for experiments of this machine; omit --context")
    api = cluster_of(arguments)
    names = list(dict.fromkeys(arguments.names))
    namespace, context = arguments.namespace, api.context
    what = f"{', '.join(names)} in {namespace} of the cluster {context}, with all trials"
    if not arguments.keep_study:
        what += " and results"
    # All must be there, before any is deleted.
    for name in names:
        api.call(cluster_changes.get, namespace, name)
    if not (arguments.yes or is_sure(what)):
        say(arguments, "nothing was deleted")
        return ExitCode.USAGE
    for name in names:
        api.call(cluster_changes.delete, namespace, name, keep_study=arguments.keep_study)
        say(arguments, f"{name} is deleted")
    return ExitCode.OK


def _say_state(arguments: argparse.Namespace, resource: Resource) -> None:
    name, status = resource["metadata"]["name"], resource.get("status") or {}
    state, reason = status.get("state", "pending"), status.get("reason", "")
    text = f"{name}: {state}" + (f", {reason}" if reason else "")
    match state:
        case "running":
            text += f". Watch it: {command('get', 'trials', name, '-w')}"
        case "suspended" | "paused" | "stopped":
            text += f". Resume: {command('resume', name)}"
        case "succeeded" | "failed":
            text = f"{name} has {state} already" + (f": {reason}" if reason else "")
    say(arguments, text)
