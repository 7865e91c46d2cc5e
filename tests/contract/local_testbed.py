"""A testbed for local attempts, which inspects them and leaves no process behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from controller.runtime import processes
from controller.runtime.local.runtime import LocalRuntime
from controller.runtime.local.supervisor_connection import ANSWER_S
from controller.runtime.protocol import Launch, Runtime
from controller.runtime.testing import Script

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


async def eventually(condition: Callable[[], bool], *, within_s: float = 10) -> None:
    give_up_at = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.01)


class LocalTestbed:
    def __init__(self, folder: Path, mark: str) -> None:
        self.folder = folder
        self._mark = mark  # a variable in the environment of every process of this test

    def another(self) -> LocalTestbed:
        """Return a testbed for another experiment on this machine."""
        folder = self.folder / "another"
        folder.mkdir()
        return LocalTestbed(folder, self._mark)

    async def open(
        self, *, devices: Sequence[str] = (), answer_s: float = ANSWER_S
    ) -> LocalRuntime:
        return LocalRuntime(self.folder, devices=devices, answer_s=answer_s)

    async def crash(self, runtime: Runtime) -> None:
        assert isinstance(runtime, LocalRuntime)
        assert runtime._connection is not None
        runtime._connection.abandon()

    async def leave(self) -> None:
        pass

    async def vanish(self, name: str) -> None:
        await eventually(lambda: not self.alive())
        shutil.rmtree(self.directory(name))

    def launch(self, name: str, script: Script) -> Launch:
        lines = [
            f"echo >> {shlex.quote(str(self.directory(name) / 'ran'))}",
            *(["trap '' TERM"] if script.ignores_sigterm else []),
            *(f"echo {shlex.quote(line)}" for line in script.lines),
            *(["exec sleep 600"] if script.lasts_s is None else []),
            *([f"sleep {script.lasts_s}"] if script.lasts_s else []),
            f"exit {script.code}",
        ]
        return self.shell(
            name, "\n".join(lines), program="/bin/sh" if script.command_exists else "pyton3"
        )

    def shell(self, name: str, text: str, *, program: str = "/bin/sh") -> Launch:
        directory = self.directory(name)
        directory.mkdir(parents=True, exist_ok=True)
        return Launch(
            name=name,
            command=(program, "-c", text),
            env={"TUNER_TRIAL_NAME": name},
            working_directory=self.folder,
            directory=directory,
        )

    def directory(self, name: str) -> Path:
        return self.folder / "trials" / name / "1"

    def runs(self, name: str) -> int:
        try:
            return len((self.directory(name) / "ran").read_text().splitlines())
        except FileNotFoundError:
            return 0

    def supervisor(self) -> int:
        return int(json.loads((self.folder / "supervisor.lock").read_bytes())["pid"])

    def pid(self, name: str) -> int:
        return int(json.loads((self.directory(name) / "process.json").read_bytes())["pid"])

    def alive(self) -> list[int]:
        """Return all processes that this test has started, directly or indirectly."""
        if sys.platform == "linux":
            return [
                pid
                for pid in processes.all_pids()
                if pid != os.getpid() and processes.carries(pid, self._mark)
            ]
        written = [self.folder / "supervisor.lock", *self.folder.glob("trials/*/1/process.json")]
        pids = [json.loads(path.read_bytes())["pid"] for path in written if path.exists()]
        return [pid for pid in pids if processes.birth(pid) is not None]


@contextlib.contextmanager
def local_testbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalTestbed]:
    run = uuid.uuid4().hex
    monkeypatch.setenv("TUNER_TEST_RUN", run)
    monkeypatch.setenv("TUNER_LOCK_DIR", str(tmp_path / "locks"))  # not the GPUs of this machine
    testbed = LocalTestbed(tmp_path, f"TUNER_TEST_RUN={run}")
    yield testbed
    for _ in range(5):  # the supervisor's death sets others free
        for pid in testbed.alive():
            processes.kill(pid)
    for lock in tmp_path.rglob("supervisor.lock"):
        with contextlib.suppress(ValueError):  # empty: killed on its way up
            Path(json.loads(lock.read_bytes())["socket"]).unlink(missing_ok=True)
    assert [log.read_text() for log in tmp_path.rglob("supervisor.log") if log.stat().st_size] == []
