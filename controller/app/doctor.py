"""Find what prevents trials from running, on this machine or on a cluster, each with its cure.
Changes nothing.

The checks of the cluster are in `controller.runtime.kubernetes.preflight`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from controller import app
from controller.app import machine
from controller.app.experiment_file import FileOptions, directory_of
from controller.app.sample_manifests import UID, served_manifests_of
from controller.app.state_directory import StateDirectory
from controller.app.validate import validate, warnings
from controller.app.workspace import Workspace
from controller.core.model import FINAL, ExperimentSpec
from controller.core.runtime_traits import is_on_cluster
from controller.kube.errors import AccessDenied, ApiError, BadKubeconfig, Unreachable
from controller.runtime.kubernetes.preflight import (
    Finding,
    Level,
    check_cluster,
    check_needs,
    fail,
    ok,
    warn,
)
from controller.runtime.local import gpu_claims, gpus
from controller.spec import Document
from suggest.errors import TunerError

if TYPE_CHECKING:
    from controller.kube.client import KubernetesClient

ROOM_BYTES = 1 << 30
NO_ROOM_BYTES = 50 << 20
_IN_A_POD = "KUBERNETES_SERVICE_HOST"


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
        except TunerError as error:  # the other checks do not need the file
            yield fail("file", str(error))
        else:
            spec = document.spec
            for finding in _file(document):
                yield finding
    for finding in _here(workspace.state):
        yield finding
    if spec is not None and not spec.traits.on_cluster:
        assert path is not None
        for finding in _program(spec):
            yield finding
        for obstacle in machine.obstacles(spec, directory_of(path)):
            yield fail("trials", obstacle)
    elif spec is not None or options.context or is_on_cluster(options.runtime) or _configured():
        async for finding in _cluster(spec, options):
            yield finding


def _file(document: Document) -> Iterator[Finding]:
    yield ok(
        "file",
        f"{document.source}: experiment {document.spec.name}, trials {_where(document.spec)}",
    )
    for warning in warnings(document):
        yield warn("file", warning)


def _where(spec: ExperimentSpec) -> str:
    return (
        f"in namespace {spec.namespace} of a cluster"
        if spec.traits.on_cluster
        else "on this machine"
    )


def _configured() -> bool:
    default = Path("~/.kube/config").expanduser()
    return bool(os.environ.get("KUBECONFIG") or os.environ.get(_IN_A_POD)) or default.exists()


def _here(state: StateDirectory) -> Iterator[Finding]:
    yield ok("python", f"{sys.version.split()[0]}, {sys.executable}")
    yield from _state(state)
    available = gpus.pool(os.environ)
    yield ok(
        "gpus here",
        f"{len(available)}, offered by {gpus.source(os.environ)}" if available else "none",
    )
    holders = gpu_claims.holders(gpu_claims.folder_for(os.environ))
    if holders:
        ids = {device.key: device.id for device in available}
        shown = (
            f"{', '.join(ids.get(key, key) for key in keys)} by {name}" for name, _, keys in holders
        )
        yield ok("gpus in use", "; ".join(shown))


def _state(state: StateDirectory) -> Iterator[Finding]:
    place = state.root
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        yield fail(
            "state directory",
            f"{state.root} cannot be written to; name another one with --state-dir",
        )
        return
    yield ok(
        "state directory",
        f"{state.root}" + ("" if place == state.root else ", which the first run creates"),
    )
    free = shutil.disk_usage(place).free
    shown = f"{free / (1 << 30):.1f} GiB free at {place}"
    if free < NO_ROOM_BYTES:
        yield fail(
            "disk",
            f"{shown}: too little for databases and logs; free some space, or use another "
            f"--state-dir",
        )
    elif free < ROOM_BYTES:
        yield warn("disk", f"{shown}: logs and outputs of trials may fill it")
    else:
        yield ok("disk", shown)


def _program(spec: ExperimentSpec) -> Iterator[Finding]:
    for program in dict.fromkeys((spec.trial.command[0], spec.template_of(FINAL).command[0])):
        yield from _found(program)


def _found(program: str) -> Iterator[Finding]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if "/" in program or "${" in program:
        return  # a path relative to the file, or a parameter
    found = shutil.which(program, path=path)
    yield (
        ok("program", found)
        if found
        else fail("program", f"{program} is not on PATH; install it, or give its path")
    )


async def _cluster(spec: ExperimentSpec | None, options: FileOptions) -> AsyncIterator[Finding]:
    from controller.kube.client import KubernetesClient

    try:
        client = await KubernetesClient.connect(options.context or None)
    except BadKubeconfig as error:
        yield fail("kubeconfig", str(error))
        return
    except AccessDenied as error:
        yield fail("credentials", str(error), rights=True)
        return
    async with client:
        yield ok("kubeconfig", f"context {client.context}")
        namespace = (
            spec.namespace if spec is not None else options.namespace or client.default_namespace
        )
        reached = True
        async for finding in check_cluster(client, namespace):
            yield finding
            reached &= finding.level is not Level.FAIL or finding.rights
        if spec is not None and reached:
            async for finding in _needs(client, spec):
                yield finding


async def _needs(client: KubernetesClient, spec: ExperimentSpec) -> AsyncIterator[Finding]:
    try:
        objects = await served_manifests_of(client, spec)
        async for finding in check_needs(
            client, spec.namespace, objects, anchor=app.runtimes.anchor(spec, UID)
        ):
            yield finding
    except TunerError as error:
        yield fail("file", str(error))
    except (ApiError, AccessDenied, Unreachable) as error:
        yield fail("server", str(error))
