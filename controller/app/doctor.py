"""Find what prevents trials from running, on this machine or elsewhere,
each with its cure. Changes nothing.

What a runtime needs is checked by its provider.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator

from controller.app.experiment_file import FileOptions, directory_of
from controller.app.state_directory import STATE_OPTION, StateDirectory
from controller.app.validate import validate, warnings
from controller.app.workspace import Workspace
from controller.core.model import ExperimentSpec
from controller.core.runtime_traits import DEFAULT_RUNTIME
from controller.runtime import registry
from controller.runtime.provider import CheckupRequest, Finding, fail, ok, warn
from controller.spec import Document
from suggest.errors import TunerError

ROOM_BYTES = 1 << 30
NO_ROOM_BYTES = 50 << 20


async def check_up(
    workspace: Workspace, path: str | None, options: FileOptions
) -> AsyncIterator[Finding]:
    """Yield findings as soon as they are known.

    `path` is an experiment's file whose needs are checked as well.
    """
    spec: ExperimentSpec | None = None
    if path is not None:
        try:
            document = await validate(path, options, workspace)
        # The other checks do not need the file.
        except TunerError as error:
            yield fail("file", str(error))
        else:
            spec = document.spec
            for finding in _file(document):
                yield finding
    for finding in _here(workspace.state):
        yield finding
    named = options.runtime if spec is None else spec.runtime
    request = CheckupRequest(
        spec=spec,
        directory=directory_of("-" if path is None else path),
        context=options.context,
        namespace=options.namespace,
        is_named=named is not None,
    )
    for name in registry.names() if named is None else [named]:
        async for finding in registry.provider_of(name).findings(request):
            yield finding


def _file(document: Document) -> Iterator[Finding]:
    yield ok(
        "file",
        f"{document.source}: experiment {document.spec.name}, trials {_where(document.spec)}",
    )
    for warning in warnings(document):
        yield warn("file", warning)


def _where(spec: ExperimentSpec) -> str:
    if registry.traits_of(spec.runtime).has_contexts:
        return f"in namespace {spec.namespace} of a cluster"
    return "on this machine" if spec.runtime == DEFAULT_RUNTIME else f"with runtime {spec.runtime}"


def _here(state: StateDirectory) -> Iterator[Finding]:
    yield ok("python", f"{sys.version.split()[0]}, {sys.executable}")
    yield from _state(state)


def _state(state: StateDirectory) -> Iterator[Finding]:
    folder = state.root
    while not os.access(folder, os.F_OK) and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        yield fail(
            "state directory",
            f"{state.root} cannot be written to; name another one with {STATE_OPTION}",
        )
        return
    yield ok(
        "state directory",
        f"{state.root}" + ("" if folder == state.root else ", which the first run creates"),
    )
    free = shutil.disk_usage(folder).free
    shown = f"{free / (1 << 30):.1f} GiB free at {folder}"
    if free < NO_ROOM_BYTES:
        yield fail(
            "disk",
            f"{shown}: too little for databases and logs; free some space, or name "
            f"another state directory with {STATE_OPTION}",
        )
    elif free < ROOM_BYTES:
        yield warn("disk", f"{shown}: logs and outputs of trials may fill it")
    else:
        yield ok("disk", shown)
