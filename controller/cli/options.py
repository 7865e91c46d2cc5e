"""Convert the parsed command line to the typed values of `controller.app`.

Reads a file only if one is named.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from controller import app, core
from controller.app.service_names import ServiceCredentials, service_name
from controller.app.state_directory import StateDirectory
from controller.app.workspace import ReadableWorkspace, Workspace
from controller.runtime.registry import provider_of
from suggest.errors import InvalidArgument

if TYPE_CHECKING:
    from controller.app.controller_api import ControllerApi
    from controller.app.experiment_file import ExperimentFile
    from controller.core.model import TrialOrFinal


RUNTIME = "kubernetes"  # whose contexts --context names


def state_of(arguments: argparse.Namespace) -> StateDirectory:
    return StateDirectory.find(arguments.state_dir)


def workspace_of(arguments: argparse.Namespace) -> Workspace:
    return Workspace(
        state_of(arguments),
        service_name(server=arguments.server, storage=arguments.storage),
        ServiceCredentials(
            arguments.token_file, arguments.tls_ca, arguments.tls_cert, arguments.tls_key
        ),
    )


def readable_of(arguments: argparse.Namespace) -> ReadableWorkspace:
    """Return where a verb reads: the controller of the cluster of --context, else this machine."""
    if arguments.cluster is None:
        return workspace_of(arguments)
    return app.cluster_workspace.ClusterWorkspace(cluster_of(arguments))


def cluster_of(arguments: argparse.Namespace) -> ControllerApi:
    """Return the controller of --context, and choose the namespace as kubectl does.

    Raises as `api_of`.
    """
    api = api_of(arguments)
    everywhere = getattr(arguments, "all_namespaces", False)
    if arguments.namespace is None and not everywhere:
        arguments.namespace = provider_of(RUNTIME).namespace_of(arguments.cluster)
    return api


def api_of(arguments: argparse.Namespace) -> ControllerApi:
    """Return the controller of --context.

    Raises InvalidArgument for flags that name another place, and BadKubeconfig.
    """
    for flag, value in (("--server", arguments.server), ("--storage", arguments.storage)):
        if value:
            raise InvalidArgument.at(
                flag, "with --context, the cluster's controller has the study; omit one of them"
            )
    return app.controller_api.ControllerApi(arguments.cluster)


def storage_of(arguments: argparse.Namespace) -> str:
    """Return the URL of the study store, for verbs that take no server."""
    return service_name(server=None, storage=arguments.storage) or state_of(arguments).storage_url


def file_options_of(arguments: argparse.Namespace) -> app.experiment_file.FileOptions:
    return app.experiment_file.FileOptions(
        overrides=tuple(arguments.set),
        namespace=arguments.namespace,
        runtime=arguments.runtime,
        context=arguments.context,
        checked_by_server=bool(arguments.server),
    )


def extension_of(arguments: argparse.Namespace) -> app.extend.Extension:
    return app.extend.Extension(arguments.trials, tuple(arguments.set))


def read_file(path: str, arguments: argparse.Namespace) -> app.experiment_file.ExperimentFile:
    """Read an experiment's file with the flags that change it. Raises SpecErrors."""
    return app.experiment_file.ExperimentFile.read(
        path, file_options_of(arguments), state_of(arguments)
    )


# NAME/N
_OF_TRIAL = re.compile(r"[a-z0-9][a-z0-9.-]*/([0-9]{1,18}|final)")


def file_or_name(word: str, arguments: argparse.Namespace) -> ExperimentFile | str:
    """Return what FILE|NAME means: the file as read, or the name."""
    return word if is_name(word) else read_file(word, arguments)


def is_name(word: str) -> bool:
    """Return whether FILE|NAME is a name."""
    is_file = word == "-" or word.endswith((".yaml", ".yml")) or Path(word).is_file()
    # The look-up of a name says what is wrong with that of a trial, such as digits/3.
    return not is_file and ("/" not in word or _OF_TRIAL.fullmatch(word) is not None)


def split_name(text: str) -> tuple[str, TrialOrFinal | None]:
    """Split `digits/12` into (digits, 12) and `digits/final` into (digits, FINAL).

    Raises InvalidArgument.
    """
    name, slash, number = text.partition("/")
    if not slash:
        return name, None
    if number == core.model.trial_label(core.model.FINAL):
        return name, core.model.FINAL
    if not re.fullmatch(r"[0-9]{1,18}", number):
        raise InvalidArgument.at(
            "", f"{text}: write NAME/N, N being the number of a trial, such as {name}/0, or final"
        )
    return name, int(number)
