"""The processes of a test cluster: each has its log file,
and none is left behind, even after SIGKILL.

A guard process in its own session waits for the end of a pipe that only the tests hold.
When they are gone, it kills the processes recorded in the cluster's folder, by process
id and start time, and removes the folder. The guard runs this file with a bare Python:
only the standard library may be imported here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

RECORD = "processes.json"
# commands that undo what outlives processes (mounts, interfaces), written by their creators
UNDO = "undo.json"
TAIL = 25


class PartFailed(Exception):
    """A component of the cluster does not work.

    The message names it and shows the end of its log.
    """


class Processes:
    """The processes of one cluster, in one folder;
    `close` ends all of them and removes the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._undo: list[list[str]] = []
        self._guard = subprocess.Popen(
            [sys.executable, "-I", __file__, str(folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=self.folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running[name] = process
        self._write_record()

    def stop(self, name: str) -> None:
        """Kill it: a graceful stop of an API server takes half a minute,
        and nothing here needs to be saved.
        """
        process = self._running.pop(name, None)
        if process is not None:
            process.kill()
            process.wait(10)
            self._write_record()

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def names(self) -> list[str]:
        return list(self._running)

    def undo_with(self, *command: str) -> None:
        """Add a command to run after all processes have ended,
        in reverse order of the additions.
        """
        self._undo.insert(0, list(command))
        _write(self.folder / UNDO, self._undo)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def tail(self, name: str) -> str:
        """Return the end of its log, for error messages."""
        lines = self.log(name).read_text(errors="replace").splitlines()[-TAIL:]
        return "\n".join([f"the last lines of {name}:", *(f"  {line[:400]}" for line in lines)])

    def check(self) -> None:
        """Raise PartFailed if a process ended by itself."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise PartFailed(f"{name} ended with {process.returncode}; {self.tail(name)}")

    def close(self) -> None:
        for name in reversed(self.names()):
            self.stop(name)
        _undo(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(30)

    def _write_record(self) -> None:
        running = {str(process.pid): _start_of(process.pid) for process in self._running.values()}
        _write(self.folder / RECORD, running)


def _write(path: Path, content: object) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(content))
    beside.replace(path)


def _start_of(pid: int) -> str:
    """Return its start in ticks since boot, which identifies a process together
    with its id; empty if it is gone.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _undo(folder: Path) -> None:
    if (folder / UNDO).exists():
        for command in json.loads((folder / UNDO).read_text()):
            subprocess.run(command, timeout=30, check=False, capture_output=True)
        (folder / UNDO).unlink()


def _sweep(folder: Path) -> None:
    """Finish what `close` did not."""
    record = folder / RECORD
    recorded = json.loads(record.read_text()) if record.exists() else {}

    def left() -> list[int]:
        return [
            int(pid) for pid, start in recorded.items() if start and _start_of(int(pid)) == start
        ]

    for pid in left():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while left() and time.monotonic() < end:
        time.sleep(0.05)
    _undo(folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.buffer.read()
    _sweep(Path(sys.argv[1]))
