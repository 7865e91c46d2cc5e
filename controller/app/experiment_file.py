"""Read an experiment's file with the options that change it: `--set`, a namespace, a runtime.
Stores nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from controller import app
from controller.app.state_directory import StateDirectory
from controller.runtime.registry import provider_of, traits_of
from controller.spec import Document, NoConfigMap, ReadOptions, read, read_path
from suggest import server
from suggest.domain import encodable
from suggest.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from suggest.study import StudySpec


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options that change a file's meaning; None leaves it to the file.

    context: a context of the Kubernetes configuration.
    checked_by_server: a running service will check the file, so this process does not.
    handed_over: the controller in the cluster will run it, so what this machine has stored under
        its name is another experiment.
    """

    overrides: tuple[str, ...] = ()
    namespace: str | None = None
    runtime: str | None = None
    context: str | None = None
    checked_by_server: bool = False
    handed_over: bool = False


@dataclass(frozen=True, slots=True)
class ExperimentFile:
    """A file as read, and the folder at which its relative paths begin."""

    document: Document
    directory: Path

    @classmethod
    def read(cls, path: str, options: FileOptions, state: StateDirectory) -> ExperimentFile:
        """Read a file; the path `-` is standard input.

        Raises SpecErrors, and InvalidArgument for a context without a cluster.
        """
        return cls._checked(read_document(path, options, state), directory_of(path), options)

    @classmethod
    def of_text(
        cls, text: str, source: str, options: FileOptions, state: StateDirectory
    ) -> ExperimentFile:
        """Read an experiment built in Python; its relative paths begin at the current folder.

        source: what messages call it. Raises as `read`.
        """
        checked_here = replace(options, checked_by_server=False)
        document = read(text, source=source, is_file=False, **_reading(checked_here, state))
        return cls._checked(document, working_directory(), options)

    @classmethod
    def _checked(cls, document: Document, directory: Path, options: FileOptions) -> ExperimentFile:
        if options.context and not traits_of(document.spec.runtime).has_contexts:
            raise InvalidArgument.at(
                "--context",
                "applies to a cluster, and trials run on this machine; add --runtime kubernetes",
            )
        if not encodable(str(directory)):
            raise InvalidArgument.at(
                "", f"the folder {str(directory)!a} has a name that is not UTF-8; rename it"
            )
        return cls(document, directory)

    def check_runnable(self) -> None:
        """Raise SpecErrors if the trials could never run where the file says."""
        document = self.document
        check_rules(document, self.directory)
        if obstacles := list(
            provider_of(document.spec.runtime).obstacles(document.spec, self.directory)
        ):
            raise document.locate(obstacles)


def check_rules(document: Document, directory: Path) -> None:
    """Raise SpecErrors for what the file may not say on its runtime."""
    if problems := list(provider_of(document.spec.runtime).problems(document.spec, directory)):
        raise document.locate(problems)


def working_directory() -> Path:
    """Return the working directory. Raises NotFound if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise NotFound(
            "the working directory was deleted; change to one that exists, and repeat this"
        ) from error


def directory_of(path: str) -> Path:
    return working_directory() if path == "-" else Path(path).absolute().parent


def read_document(path: str, options: FileOptions, state: StateDirectory) -> Document:
    """Return the file with the options applied. Raises SpecErrors."""
    return read_path(path, **_reading(options, state))


def _reading(options: FileOptions, state: StateDirectory) -> ReadOptions:
    """Return the options as the reader takes them: some are further arguments of `--set`."""
    overrides = list(options.overrides)
    if options.namespace:
        overrides.append(f"metadata.namespace={options.namespace}")
    if options.runtime:
        overrides.append(f"spec.runtime={options.runtime}")
    return {
        "overrides": overrides,
        "service": None if options.checked_by_server else _check,
        "namespace_of": lambda runtime, name: _namespace_of(runtime, name, options, state),
        "config_map_of": lambda namespace, name: config_map_data(namespace, name, options.context),
        "handed_over": options.handed_over,
    }


def config_map_data(namespace: str, name: str, context: str | None) -> Mapping[str, str]:
    """Return the data of a ConfigMap of the cluster. Raises NoConfigMap."""
    from controller.kube.client import CONFIG_MAPS, KubernetesClient
    from controller.kube.errors import AccessDenied, ApiError, BadKubeconfig, Unreachable

    async def get() -> Mapping[str, str]:
        async with await KubernetesClient.connect(context) as client:
            config_map = await client.get(CONFIG_MAPS, namespace, name)
        return config_map.get("data") or {}

    try:
        # In a thread, because the caller may run in an event loop.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, get()).result()
    except (AccessDenied, ApiError, BadKubeconfig, Unreachable) as error:
        raise NoConfigMap(
            f"the ConfigMap {namespace}/{name} of the cluster cannot be read: {error}"
        ) from error


def _namespace_of(runtime: str, name: str, options: FileOptions, state: StateDirectory) -> str:
    """Return the namespace of an experiment whose file names none.

    A known experiment keeps its namespace. For a new one it is that of the context, as in kubectl.
    """
    of_context = provider_of(runtime).namespace_of(options.context)
    if options.handed_over or of_context == "default" or not state.has_experiments:
        return of_context
    with app.local_experiments.opened(state) as experiments:
        having = [experiment.namespace for experiment in experiments.named(name)]
    return having[0] if len(having) == 1 else of_context


def _check(spec: StudySpec) -> None:
    """Check a study by the service's rules in this process, to report all problems at once."""
    server.admin.check(spec, runs_here=False)
