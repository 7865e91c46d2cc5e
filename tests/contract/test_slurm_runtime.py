"""The runtime contract on Slurm, as a package outside of this project fulfills it:
`examples/runtimes/slurm`.

Slurm's programs are small stand-ins, which run jobs as processes of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controller.core.attempt import RuntimeLost
from controller.core.model import FailureClass
from controller.runtime import processes
from controller.runtime.protocol import CannotStart, Launch, Runtime
from controller.runtime.testing import (
    FOREVER,
    RuntimeContract,
    Script,
    alike,
    ended,
    killed,
    look,
    on_a_loop,
    seen,
    started,
)
from tests.contract.local_testbed import LocalTestbed, local_testbed

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "examples/runtimes/slurm"))

# type: ignore[import-not-found]
from tuner_slurm.runtime import SlurmLaunch, SlurmRuntime  # noqa: E402

PROGRAMS = ROOT / "tests/slurm/fake_slurm.py"


def install_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put stand-ins of Slurm's programs on PATH, and return the folder of their jobs."""
    jobs, programs = folder / "cluster", folder / "bin"
    jobs.mkdir()
    programs.mkdir()
    for name in ("sbatch", "squeue", "scancel"):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {PROGRAMS} {name} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("TUNER_FAKE_SLURM", str(jobs))
    return jobs


class SlurmTestbed(LocalTestbed):
    """Jobs outlive controllers; `jobs` has a folder for each."""

    def __init__(self, testbed: LocalTestbed, jobs: Path) -> None:
        super().__init__(testbed.folder, testbed._mark)
        self.jobs = jobs

    async def open(self, **_: object) -> SlurmRuntime:  # type: ignore[override]
        return SlurmRuntime(self.folder / "slurm", squeue_s=0.2)

    async def crash(self, runtime: Runtime) -> None:
        pass  # it holds nothing

    async def vanish(self, name: str) -> None:
        shutil.rmtree(self.folder / "slurm/jobs" / name)

    def options(self, job: int) -> list[str]:
        return (self.jobs / str(job) / "options").read_text().splitlines()


@pytest.fixture
def testbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmTestbed]:
    with local_testbed(tmp_path, monkeypatch) as local:
        yield SlurmTestbed(local, install_programs(tmp_path, monkeypatch))


class TestSlurmRuntime(RuntimeContract):
    @pytest.fixture
    def testbed(self, testbed: SlurmTestbed) -> SlurmTestbed:
        return testbed


@on_a_loop
async def test_a_job_requests_what_its_launch_says(testbed: SlurmTestbed) -> None:
    runtime = await testbed.open()
    launch = testbed.launch("a", Script())
    await runtime.start(_requesting(launch, "--gres=gpu:2"))
    await ended(runtime, "a")
    assert {"--parsable", "--job-name=a", "--gres=gpu:2"} <= set(testbed.options(1))


@on_a_loop
async def test_what_sbatch_refuses_is_a_wrong_configuration_and_leaves_nothing(
    testbed: SlurmTestbed,
) -> None:
    runtime = await testbed.open()
    with pytest.raises(
        CannotStart, match="Requested node configuration is not available"
    ) as caught:
        await runtime.start(_requesting(testbed.launch("a", Script()), "--gres=gpu:99"))
    assert caught.value.failure_class is FailureClass.CONFIGURATION
    assert await look(runtime) == {}


@on_a_loop
async def test_a_cluster_that_cannot_be_reached_is_tried_again(testbed: SlurmTestbed) -> None:
    runtime = await testbed.open()
    (testbed.jobs / "down").touch()
    with pytest.raises(RuntimeLost, match="Unable to contact slurm controller"):
        await runtime.start(testbed.launch("a", Script()))
    (testbed.jobs / "down").unlink()
    await runtime.start(testbed.launch("a", Script()))
    assert alike(await ended(runtime, "a"), code=0)


@on_a_loop
async def test_a_pending_job_says_why_it_waits_and_can_be_withdrawn(testbed: SlurmTestbed) -> None:
    (testbed.jobs / "held").touch()
    runtime = await testbed.open()
    await runtime.start(testbed.launch("a", Script()))
    await seen(runtime, "a", lambda status: status.waiting == "Slurm: Resources")
    await runtime.stop("a", grace_s=60)
    assert await look(runtime) == {}
    assert (testbed.jobs / "1/cancelled").exists()


@on_a_loop
async def test_a_submission_that_a_crash_repeats_runs_once(testbed: SlurmTestbed) -> None:
    runtime = await testbed.open()
    launch = testbed.launch("a", Script(code=3))
    await runtime.start(launch)
    await ended(runtime, "a")
    (testbed.folder / "slurm/jobs/a/job.json").unlink()  # as before the crash
    await runtime.start(launch)
    assert alike(await ended(runtime, "a"), code=3)
    assert (testbed.runs("a"), sum(each.is_dir() for each in testbed.jobs.iterdir())) == (1, 2)


@on_a_loop
async def test_a_job_that_an_administrator_cancels_was_not_stopped(testbed: SlurmTestbed) -> None:
    runtime = await testbed.open()
    await runtime.start(testbed.launch("a", FOREVER))
    await started(runtime, "a")
    process = await asyncio.create_subprocess_exec("scancel", "1")
    await process.wait()
    assert killed(await ended(runtime, "a"), 15)


@on_a_loop
async def test_a_job_that_is_gone_without_a_record_is_lost(
    testbed: SlurmTestbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner_slurm.runtime.SETTLE_S", 0.1)
    runtime = await testbed.open()
    await runtime.start(testbed.launch("a", FOREVER))
    await started(runtime, "a")
    for pid in testbed.alive():
        with contextlib.suppress(ProcessLookupError):
            processes.kill(pid)
    assert alike(await ended(runtime, "a"), unknown=True)


def _requesting(launch: Launch, *requests: str) -> SlurmLaunch:
    fields = {name: getattr(launch, name) for name in Launch.__slots__}
    return replace(SlurmLaunch(**fields), requests=requests)


EXPERIMENT = """\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: tiny}
spec:
  objective: {metric: score, direction: maximize}
  parameters: {x: {type: float, min: 0, max: 1}}
  budget: {trials: 2}
  trial: {command: [python, -c, "print('score=${x}')"]}
"""


def test_the_commands_of_the_page_run_an_experiment_on_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/runtimes.md").read_text()
    _, *commands = page.partition("```bash\n")[2].partition("```")[0].splitlines()
    assert all(command.startswith("tuner ") for command in commands)
    done = ran(tmp_path, monkeypatch, *commands)
    assert "tiny succeeded: all 2 trials are done" in done.stderr


ASKING = """\
import tuner
trial = tuner.current_trial()
units = trial.int("units", 4, 8)
trial.report(score=units + (trial.float("rate", 0, 1) if units > 5 else 0))
"""


def test_jobs_name_their_parameters_while_they_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(ASKING)
    space = "parameters: {x: {type: float, min: 0, max: 1}}"
    command = """[python, -c, "print('score=${x}')"]"""
    file = EXPERIMENT.replace(space, "defineByRun: true").replace(command, "[python, train.py]")
    commands = ("tuner run experiment.yaml --runtime slurm", "tuner get trials tiny -o json")
    trials = json.loads(ran(tmp_path, monkeypatch, *commands, file=file).stdout)
    for trial in trials:
        point = trial["parameters"]
        assert set(point) == ({"units", "rate"} if point["units"] > 5 else {"units"})
        assert trial["value"] == point["units"] + point.get("rate", 0)


def ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *commands: str, file: str = EXPERIMENT
) -> subprocess.CompletedProcess[str]:
    """Run commands that must succeed with the package installed, and return the last one."""
    site = tmp_path / "site"
    flags = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site))
    package = shutil.copytree(ROOT / "examples/runtimes/slurm", tmp_path / "package")
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, package], check=True)
    install_programs(tmp_path, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("TUNER_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "experiment.yaml").write_text(file)
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "controller", *command.split()[1:]],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": f"{site}:{ROOT}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return done
