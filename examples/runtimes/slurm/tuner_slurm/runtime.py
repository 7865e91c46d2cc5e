"""Run attempts as Slurm jobs, by `sbatch`, `squeue` and `scancel`, on nodes that share this
machine's file system.

Each attempt has a folder of records, named after it, in the experiment's folder. Its job writes its
start and its end there (`tuner_slurm.job`), so that they outlive Slurm's memory of jobs and this
process. `squeue` only tells why a job waits, and whether it is gone without a record.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controller.core.attempt import AttemptStatus, Exit, RuntimeLost
from controller.core.model import FailureClass
from controller.runtime import log_file
from controller.runtime.launch import CREDENTIALS
from controller.runtime.protocol import CannotStart, Conclusion, Launch
from controller.runtime.trial_variables import PARAMETER_ANSWERS
from tuner_slurm import job
from tuner_slurm.job import EXIT, LAUNCH, STARTED, STOP, write

PROGRAMS = ("sbatch", "squeue", "scancel")
JOB = "job.json"
# In the folder of an attempt: the parameters that it has asked for.
ANSWERS = "answers.json"
POLL_S = 0.2
# Every question costs the cluster's controller, which all users share.
SQUEUE_S = 5.0
# A job's last file may become visible after the job has left the queue.
SETTLE_S = 30.0
# What sbatch and squeue say if the fault is not the request's.
_UNREACHABLE = (
    "unable to contact",
    "connection refused",
    "timed out",
    "temporarily unable",
    "zero bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmLaunch(Launch):
    """The launch of a Slurm job. requests: the flags of sbatch for its cores, memory and GPUs."""

    requests: tuple[str, ...] = ()


class SlurmRuntime:
    """Implements `controller.runtime.protocol.Runtime`.

    Args:
        folder: The folder of all records of the experiment.
        squeue_s: The time between two questions to `squeue`.
    """

    shows_at_once = False

    def __init__(self, folder: Path, *, squeue_s: float = SQUEUE_S) -> None:
        self._jobs = folder / "jobs"
        self._removed = folder / "removed"
        self._squeue_s = squeue_s
        self._waiting: dict[str, Launch] = {}  # for a slot, in order
        self._reasons: dict[str, str] = {}  # by job: why it waits, as squeue says
        self._asked_at = float("-inf")
        # by attempt: when its job was first not in the queue
        self._missing_since: dict[str, float] = {}
        self._starting = asyncio.Lock()
        self._seen: Mapping[str, object] = {}
        self._logs: dict[str, Path] = {}
        self._read: dict[str, int] = {}  # by attempt: how far its log was read

    async def start(self, launch: Launch) -> None:
        async with self._starting:
            is_known = _exists(self._jobs / launch.name, JOB) or _exists(self._removed, launch.name)
            if is_known or launch.name in self._waiting:
                return
            if launch.slots is not None and len(self._unended()) >= launch.slots:
                self._waiting[launch.name] = launch
                return
            await self._submit(launch)

    async def _submit(self, launch: Launch) -> None:
        if not _has_command(launch):
            raise CannotStart(f"{launch.command[0]}: command not found")
        record = self._jobs / launch.name
        record.mkdir(parents=True, exist_ok=True)
        document = {
            "command": launch.command,
            "env": dict(launch.env),
            "working_directory": str(launch.working_directory),
            "log": str(launch.directory / "log.txt"),
            "timeout_s": launch.timeout_s,
            "grace_s": launch.grace_s,
        }
        write(record / LAUNCH, document)
        # A crash before the next line repeats the submission. Of two jobs,
        # the second to begin ends at once.
        write(record / JOB, await self._sbatch(launch, record))

    async def _sbatch(self, launch: Launch, record: Path) -> Mapping[str, str]:
        requests = launch.requests if isinstance(launch, SlurmLaunch) else ()
        arguments = (
            "--parsable",
            f"--job-name={launch.name}",
            f"--output={record / 'slurm.txt'}",
            "--no-requeue",
        )
        program = f"exec {_quoted(sys.executable)} {_quoted(job.__file__)} {_quoted(str(record))}"
        try:
            output = await _run("sbatch", *arguments, *requests, script=f"#!/bin/sh\n{program}\n")
        except _Refused as refused:
            shutil.rmtree(record)
            raise CannotStart(str(refused)) from refused
        return {"job": output.strip().partition(";")[0]}

    async def stop(self, name: str, *, grace_s: float) -> None:
        self._waiting.pop(name, None)
        record = self._jobs / name
        if not _exists(record, JOB) or _exists(record, EXIT):
            return
        # A later stop may only shorten the grace period, also if the job reads of both at once.
        requested_s = _document(record / STOP).get("grace_s", grace_s)
        write(record / STOP, {"grace_s": min(grace_s, requested_s)})
        number = _number(record)
        if _exists(record, STARTED):
            # To the program of the job only, which tells its processes.
            await _scancel("--batch", "--signal=TERM", number)
            return
        await _scancel(number)
        if not _exists(record, STARTED):
            shutil.rmtree(record)

    async def remove(self, name: str) -> None:
        if _exists(self._jobs / name, JOB):
            self._removed.mkdir(exist_ok=True)
            (self._removed / name).touch()
        await self.stop(name, grace_s=0)
        self._forget_removed()

    def _forget_removed(self) -> None:
        """Delete the records of removed attempts whose jobs have ended."""
        for record in self._records():
            if _exists(self._removed, record.name) and self._exit(record) is not None:
                shutil.rmtree(record)

    async def reconcile(self) -> None:
        async with self._starting:
            for name, launch in list(self._waiting.items()):
                if launch.slots is not None and len(self._unended()) >= launch.slots:
                    break
                del self._waiting[name]
                await self._submit(launch)
        self._forget_removed()
        await self._look_into_the_queue()

    async def _look_into_the_queue(self) -> None:
        """Learn why jobs wait, and which are gone without having recorded their end."""
        unended = self._unended()
        if not unended or time.monotonic() < self._asked_at + self._squeue_s:
            return
        try:
            output = await _run("squeue", "--me", "--noheader", "--format=%A|%r")
        except _Refused as refused:
            raise RuntimeLost(str(refused)) from refused
        self._asked_at = now = time.monotonic()
        self._reasons = dict(map(_job_and_reason, output.splitlines()))
        missing = [name for name, number in unended.items() if number not in self._reasons]
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}

    async def observe(self) -> Mapping[str, AttemptStatus]:
        shown = [record for record in self._records() if not _exists(self._removed, record.name)]
        statuses = {record.name: self._status(record) for record in shown}
        statuses |= {name: AttemptStatus(name, None) for name in self._waiting}
        self._seen = self._progress()
        return statuses

    def _status(self, record: Path) -> AttemptStatus:
        started = _document(record / STARTED)
        return AttemptStatus(
            name=record.name,
            start_time=_time(started),
            exit=self._exit(record),
            node=started.get("node", ""),
            waiting="" if started else self._reasons.get(_number(record), ""),
        )

    def _exit(self, record: Path) -> Exit | None:
        end = _document(record / EXIT)
        at = _time(end)
        if at is None:
            missing_since = self._missing_since.get(record.name)
            if missing_since is None or time.monotonic() < missing_since + SETTLE_S:
                return None
            return Exit(datetime.now(UTC), unknown=True)
        if "refused" in end:
            return Exit(at, failure_class=FailureClass.CONFIGURATION, reason=end["refused"])
        stopped, timed_out = end["stopped"], end["timed_out"]
        return Exit(
            at, code=end.get("code"), signal=end.get("signal"), stopped=stopped, timed_out=timed_out
        )

    async def read_log(self, name: str, offset: int, *, limit: int = 1 << 20) -> bytes:
        log = self._log(name)
        data = b"" if log is None else await log_file.read(log, offset, limit)
        self._read[name] = offset + len(data)
        return data

    async def read_metrics(self, name: str, offset: int, *, limit: int = 1 << 20) -> bytes:
        return b""

    async def wait(self, within_s: float, *, log_growth: bool) -> None:
        until = time.monotonic() + min(within_s, self._squeue_s)
        while time.monotonic() < until and self._progress() == self._seen:
            if log_growth and any(map(self._has_grown, self._unended())):
                return
            await asyncio.sleep(POLL_S)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def wake(self) -> None:
        pass

    def _log(self, name: str) -> Path | None:
        if name not in self._logs and (log := _document(self._jobs / name / LAUNCH).get("log")):
            self._logs[name] = Path(log)
        return self._logs.get(name)

    def _progress(self) -> Mapping[str, object]:
        """Return how far each attempt has come; it changes when one starts or ends."""
        return {
            record.name: (_exists(record, STARTED), _exists(record, EXIT))
            for record in self._records()
        }

    def _has_grown(self, name: str) -> bool:
        log = self._log(name)
        return log is not None and log_file.size(log) > self._read.get(name, 0)

    def slots(self, gpu: float, workers: int) -> int | None:
        return None

    async def answer(self, name: str, answers: str) -> None:
        env = _document(self._jobs / name / LAUNCH).get("env", {})
        if place := env.get(PARAMETER_ANSWERS):
            write(Path(place), json.loads(answers))

    async def conclude(self, conclusion: Conclusion) -> None:
        pass

    def hurry(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def _records(self) -> list[Path]:
        """Return the folders of the attempts that were submitted, in the order of their names."""
        return sorted(record for record in self._jobs.glob("*") if _exists(record, JOB))

    def _unended(self) -> dict[str, str]:
        """Return the jobs that wait or run, by attempt."""
        return {
            record.name: _number(record) for record in self._records() if self._exit(record) is None
        }


class _Refused(Exception):
    """A program of Slurm has refused a request, and says why."""


async def _run(*command: str, script: str = "") -> str:
    """Return the output of a program of Slurm.

    Raises _Refused, and RuntimeLost if it cannot reach the cluster.
    """
    env = {name: value for name, value in os.environ.items() if name not in CREDENTIALS}
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=env
        )
    except OSError as error:
        raise RuntimeLost(f"{command[0]} cannot be run: {error.strerror}") from error
    output, errors = await process.communicate(script.encode())
    if process.returncode == 0:
        return output.decode()
    message = (
        " ".join(errors.decode(errors="replace").split())
        or f"{command[0]} exits with {process.returncode}"
    )
    if any(phrase in message.lower() for phrase in _UNREACHABLE):
        raise RuntimeLost(message)
    raise _Refused(message)


async def _scancel(*arguments: str) -> None:
    # A job that has ended meanwhile is refused.
    with contextlib.suppress(_Refused):
        await _run("scancel", *arguments)


def _job_and_reason(line: str) -> tuple[str, str]:
    number, _, reason = line.strip().partition("|")
    return number, f"Slurm: {reason}"


def _exists(record: Path, name: str) -> bool:
    return (record / name).exists()


def _document(path: Path) -> dict[str, Any]:
    """Return the content of a record; empty if it is missing, or still being written."""
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document


def _time(document: Mapping[str, Any]) -> datetime | None:
    return datetime.fromtimestamp(document["time"], UTC) if "time" in document else None


def _number(record: Path) -> str:
    """Return the job of an attempt: the one that has begun, or the last that was submitted."""
    return str(_document(record / STARTED).get("job") or _document(record / JOB)["job"])


def _has_command(launch: Launch) -> bool:
    program = launch.command[0]
    if "/" in program:
        return os.access(launch.working_directory / program, os.X_OK)
    return shutil.which(program, path=launch.env.get("PATH", os.environ.get("PATH"))) is not None


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"
