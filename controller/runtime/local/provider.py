"""This machine as a runtime: every attempt is a process group."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from pathlib import Path

from controller.core.model import FINAL, FUNCTION_WORKER, Experiment, ExperimentSpec
from controller.core.runtime_traits import BUILT_IN
from controller.folders import ExperimentFolders
from controller.runtime import trial_files
from controller.runtime.launch import host_launch
from controller.runtime.local import gpu_claims, gpus, machine
from controller.runtime.local.runtime import LocalRuntime
from controller.runtime.provider import (
    CheckupRequest,
    Finding,
    LaunchBuilder,
    ObjectRecords,
    RuntimeConnection,
    RuntimeProvider,
    fail,
    ok,
)
from suggest.errors import Problem


class LocalProvider(RuntimeProvider):
    traits = BUILT_IN["local"]

    async def connect(
        self, experiment: Experiment, folders: ExperimentFolders, records: ObjectRecords
    ) -> RuntimeConnection:
        trial = experiment.spec.trial
        runtime = LocalRuntime(
            folders.root,
            devices=trial.devices,
            collection=experiment.spec.collection,
            module=FUNCTION_WORKER if trial.calls_function else "",
        )
        return RuntimeConnection(runtime)

    def launch_builder(self, experiment: Experiment, folders: ExperimentFolders) -> LaunchBuilder:
        return partial(
            host_launch, environ=os.environ, interpreter_directory=Path(sys.executable).parent
        )

    def problems(self, spec: ExperimentSpec, directory: Path) -> Iterable[Problem]:
        return trial_files.problems_of(directory, spec.trial.files, are_sent=False)

    def obstacles(self, spec: ExperimentSpec, directory: Path) -> Iterable[Problem]:
        return machine.refused(spec, directory)

    def warnings(self, spec: ExperimentSpec) -> Iterable[Problem]:
        return machine.warnings(spec)

    async def findings(self, request: CheckupRequest) -> AsyncIterator[Finding]:
        for finding in _gpus_here():
            yield finding
        if request.spec is None:
            return
        for finding in _programs(request.spec):
            yield finding
        for obstacle in machine.obstacles(request.spec, request.directory):
            yield fail("trials", f"{obstacle.path}: {obstacle.message}")


PROVIDER = LocalProvider()


def _gpus_here() -> Iterator[Finding]:
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


def _programs(spec: ExperimentSpec) -> Iterator[Finding]:
    for program in dict.fromkeys((spec.trial.command[0], spec.template_of(FINAL).command[0])):
        yield from _found(program)


def _found(program: str) -> Iterator[Finding]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if "/" in program or "${" in program:
        return  # a path relative to the file, or a parameter
    found = shutil.which(program, path=path)
    if found:
        yield ok("program", found)
    else:
        yield fail("program", f"{program} is not on PATH; install it, or give its path")
