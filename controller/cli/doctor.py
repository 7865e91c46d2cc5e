"""`tuner doctor`: what stands in the way of trials, here or on a cluster, each with its cure. Changes nothing.

A line each, as soon as it is known. The cluster's part is `controller.runtime.kubernetes.checkup`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli import machine
from controller.cli.check import checked
from controller.cli.exits import ExitCode
from controller.cli.home import Home
from controller.cli.preflight import manifests_of, warnings
from controller.cli.specimen import UID
from controller.core.model import FINAL, ExperimentSpec
from controller.runtime import gpu_claims, gpus
from controller.runtime.kubernetes.errors import ApiError, BadKubeconfig, NotAllowed, Unreachable
from controller.runtime.kubernetes.findings import Finding, Level, fail, ok, warn
from suggest.errors import TunerError

if TYPE_CHECKING:
    from controller.runtime.kubernetes.client import Client

ROOM_BYTES = 1 << 30
NO_ROOM_BYTES = 50 << 20
_IN_A_POD = "KUBERNETES_SERVICE_HOST"


def doctor(arguments: argparse.Namespace) -> ExitCode:
    report = _Report()
    spec = _file(arguments, report) if arguments.file else None
    report.tell(_here(Home.find(arguments.state_dir)))
    if spec is not None and spec.runtime == "local":
        report.tell(_program(spec))
        directory = Path.cwd() if arguments.file == "-" else Path(arguments.file).absolute().parent
        report.tell(fail("trials", said) for said in machine.obstacles(spec, directory))
    elif spec is not None or arguments.context or arguments.runtime == "kubernetes" or _configured():
        asyncio.run(_cluster(arguments, spec, report))
    return report.code


class _Report:
    """What was found so far, and what it amounts to."""

    def __init__(self) -> None:
        self.code = ExitCode.OK

    def tell(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            detail = finding.detail.replace("\n", "\n      ")
            print(f"{finding.level.value:<4}  {finding.what:<20}  {detail}", flush=True)
            if finding.level is Level.FAIL and self.code is not ExitCode.NOT_ALLOWED:
                self.code = ExitCode.NOT_ALLOWED if finding.rights else ExitCode.UNAVAILABLE


def _file(arguments: argparse.Namespace, report: _Report) -> ExperimentSpec | None:
    """None: it has problems, and what is left to check is the rest."""
    try:
        document = checked(arguments)
    except TunerError as error:
        report.tell([fail("file", str(error))])
        return None
    report.tell([ok("file", f"{document.source}: experiment {document.spec.name}, trials {_where(document.spec)}")])
    report.tell(warn("file", warning) for warning in warnings(document))
    return document.spec


def _where(spec: ExperimentSpec) -> str:
    return "on this machine" if spec.runtime == "local" else f"in namespace {spec.namespace} of a cluster"


def _configured() -> bool:
    default = Path("~/.kube/config").expanduser()
    return bool(os.environ.get("KUBECONFIG") or os.environ.get(_IN_A_POD)) or default.exists()


def _here(home: Home) -> Iterator[Finding]:
    yield ok("python", f"{sys.version.split()[0]}, {sys.executable}")
    yield from _state(home)
    lent = gpus.pool(os.environ)
    yield ok("gpus here", f"{len(lent)}, as {gpus.source(os.environ)} them" if lent else "none")
    held = gpu_claims.holders(gpu_claims.folder_for(os.environ))
    if held:
        ids = {device.key: device.id for device in lent}
        shown = (f"{', '.join(ids.get(key, key) for key in keys)} by {name}" for name, _, keys in held)
        yield ok("gpus in use", "; ".join(shown))


def _state(home: Home) -> Iterator[Finding]:
    place = home.root
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        yield fail("state directory", f"{home.root} cannot be written to; name another one with --state-dir")
        return
    yield ok("state directory", f"{home.root}" + ("" if place == home.root else ", which the first run makes"))
    free = shutil.disk_usage(place).free
    shown = f"{free / (1 << 30):.1f} GiB free at {place}"
    if free < NO_ROOM_BYTES:
        yield fail("disk", f"{shown}: too little for databases and logs; make room, or use another --state-dir")
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
        return  # beside the file, or a parameter's
    found = shutil.which(program, path=path)
    yield ok("program", found) if found else fail("program", f"{program} is not on PATH; install it, or give its path")


async def _cluster(arguments: argparse.Namespace, spec: ExperimentSpec | None, report: _Report) -> None:
    from controller.runtime.kubernetes.checkup import check_up
    from controller.runtime.kubernetes.client import Client

    try:
        client = await Client.connect(arguments.context or None)
    except BadKubeconfig as error:
        report.tell([fail("kubeconfig", str(error))])
        return
    except NotAllowed as error:
        report.tell([fail("credentials", str(error), rights=True)])
        return
    try:
        report.tell([ok("kubeconfig", f"context {client.context}")])
        namespace = spec.namespace if spec is not None else arguments.namespace or client.default_namespace
        reached = True
        async for finding in check_up(client, namespace):
            report.tell([finding])
            reached &= finding.level is not Level.FAIL or finding.rights
        if spec is not None and reached:
            await _needs(client, spec, report)
    finally:
        await client.close()


async def _needs(client: Client, spec: ExperimentSpec, report: _Report) -> None:
    from controller.cli.runtimes import anchor
    from controller.runtime.kubernetes.prerequisites import check_needs

    try:
        objects = manifests_of(spec)
        async for finding in check_needs(client, spec.namespace, objects, anchor=anchor(spec, UID)):
            report.tell([finding])
    except TunerError as error:
        report.tell([fail("file", str(error))])
    except (ApiError, NotAllowed, Unreachable) as error:
        report.tell([fail("server", str(error))])
