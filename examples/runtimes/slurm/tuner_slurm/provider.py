"""What Tuner asks of Slurm as a runtime."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from controller.core.model import Attempt, Experiment, ExperimentSpec, TrialTemplate
from controller.core.runtime_traits import RuntimeTraits
from controller.folders import AttemptFolders, ExperimentFolders
from controller.runtime import trial_files
from controller.runtime.launch import host_launch, parameters_place
from controller.runtime.protocol import Launch
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
from suggest.trial import Trial
from tuner_slurm.runtime import ANSWERS, PROGRAMS, SlurmLaunch, SlurmRuntime


class SlurmProvider(RuntimeProvider):
    traits = RuntimeTraits(
        survives_controller=True,
        answers_parameters=True,
        ignores=("image",),
        patience_s=900.0,
        brisk_s=15.0,
    )

    async def connect(
        self, experiment: Experiment, folders: ExperimentFolders, records: ObjectRecords
    ) -> RuntimeConnection:
        return RuntimeConnection(SlurmRuntime(folders.root / "slurm"))

    def launch_builder(self, experiment: Experiment, folders: ExperimentFolders) -> LaunchBuilder:
        return _launch

    def problems(self, spec: ExperimentSpec, directory: Path) -> Iterable[Problem]:
        yield from trial_files.problems_of(directory, spec.trial.files, are_sent=False)
        if spec.collection is not None:
            yield Problem(
                "spec.metrics", "with runtime slurm, metrics are read from the log only; print them"
            )
        if spec.trial.workers > 1:
            yield Problem(
                "spec.trial.distributed", "with runtime slurm, an attempt is one process; remove it"
            )

    def obstacles(self, spec: ExperimentSpec, directory: Path) -> Iterable[Problem]:
        for program in PROGRAMS:
            if shutil.which(program) is None:
                yield Problem("spec.runtime", _missing(program))

    async def findings(self, request: CheckupRequest) -> AsyncIterator[Finding]:
        for program in PROGRAMS:
            path = shutil.which(program)
            if path is not None:
                yield ok("slurm", path)
            elif request.is_named:
                yield fail("slurm", _missing(program))


PROVIDER = SlurmProvider()


def _missing(program: str) -> str:
    return f"{program} is not on PATH; run this on a login node of the Slurm cluster"


def _launch(
    experiment: Experiment, trial: Trial, attempts: Sequence[Attempt], folders: AttemptFolders
) -> Launch:
    launch = host_launch(
        experiment,
        trial,
        attempts,
        folders,
        environ=os.environ,
        interpreter_directory=Path(sys.executable).parent,
    )
    common = {field.name: getattr(launch, field.name) for field in fields(launch)}
    # A node cannot reach the socket of the controller.
    answers = parameters_place(experiment, trial, str(folders.root / ANSWERS))
    common["env"] = {**launch.env, **answers}
    return SlurmLaunch(
        **common, requests=_requests(experiment.spec.template_of(attempts[-1].trial))
    )


def _requests(template: TrialTemplate) -> tuple[str, ...]:
    """Return the flags of sbatch for what a trial requests.

    Partition and account come from SBATCH_PARTITION etc.
    """
    resources = template.resources
    requests = []
    if resources.cpu:
        requests.append(f"--cpus-per-task={math.ceil(resources.cpu)}")
    if resources.memory_bytes:
        requests.append(f"--mem={math.ceil(resources.memory_bytes / (1 << 10))}K")
    if resources.gpu:
        requests.append(f"--gres=gpu:{math.ceil(resources.gpu)}")
    return tuple(requests)
