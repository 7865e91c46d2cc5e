"""Runs `tuner` in a folder of the test: what is started is a real process,
and no process outlives the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import called, forked

PROGRAM = """
import os, sys, time
with open("starts.txt", "a") as file:
    file.write(f"{os.environ['TUNER_TRIAL_NUMBER']} {os.environ['TUNER_ATTEMPT']}\\n")
print("step=1 score=%s" % sys.argv[1], flush=True)
deadline = time.monotonic() + float(sys.argv[2])
while time.monotonic() < deadline and not os.path.exists("go"):
    time.sleep(0.01)
"""
ENDS_AT_ONCE = """
echo "$TUNER_TRIAL_NUMBER $TUNER_ATTEMPT" >> starts.txt
echo "step=1 score=$1"
"""
WAITS_FOR_GO = 'echo "$TUNER_TRIAL_NUMBER $TUNER_ATTEMPT $1" >> starts.txt; echo score=$1; {then}'
UNTIL_GO = "while ! test -e go; do sleep 0.02; done"


class Cli:
    """The command line in a folder with one experiment and its own state directory."""

    def __init__(self, folder: Path, *, only_processes: bool = False) -> None:
        self.folder = folder
        self.only_processes = only_processes
        self.file = folder / "experiment.yaml"
        (folder / "trial.py").write_text(PROGRAM)
        (folder / "trial.sh").write_text(ENDS_AT_ONCE)
        self.env = {
            **{
                key: value
                for key, value in os.environ.items()
                if not key.startswith(("TUNER_", "NO_COLOR"))
            },
            "TUNER_STATE_DIR": str(folder / "state"),
            # so that hints say `tuner`
            "PATH": f"{forked.TUNER.parent}{os.pathsep}{os.environ['PATH']}",
            # prints the stacks of a process that does not end when it is aborted
            "PYTHONFAULTHANDLER": "1",
        }
        self.started: list[subprocess.Popen[str]] = []

    def write(
        self,
        *,
        name: str = "tiny",
        trials: int = 3,
        parallelism: int = 1,
        seconds: float = 0,
        more: str = "",
        command: str = "",
    ) -> Path:
        waits = f'[python, trial.py, "${{x}}", "{seconds}"]'
        command = command or (waits if seconds else '[sh, trial.sh, "${x}"]')
        self.file.write_text(
            f"""
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {{name: {name}}}
spec:
  objective: {{metric: score, direction: maximize}}
  parameters: {{x: {{type: float, min: 0, max: 1}}}}
  algorithm: {{name: random, seed: 1}}
  budget: {{trials: {trials}, failedTrials: 2}}
  parallelism: {parallelism}
  canary: 0s
  trial: {{command: {command}, gracePeriod: 60s}}
{more}"""
        )
        return self.file

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        process = forked.tuner(arguments, folder=self.folder, env=self.env)
        self.started.append(process)
        return process

    def tuner(self, *arguments: str | Path) -> tuple[int, str, str]:
        """Run a command to its end, in the process of the tests
        if nothing speaks against it: see `tests.called`.
        """
        if not self.only_processes and called.ends_here(arguments, env=self.env):
            done = called.tuner(arguments, folder=self.folder, env=self.env)
            return done.returncode, done.stdout, done.stderr
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def json(self, *arguments: str) -> Any:
        code, out, err = self.tuner(*arguments)
        assert code == 0, err
        return json.loads(out)

    def trials(self) -> list[Any]:
        found: list[Any] = self.json("get", "trials", "tiny", "-o", "json")
        return found

    def starts(self) -> list[str]:
        path = self.folder / "starts.txt"
        return path.read_text().splitlines() if path.exists() else []

    def let_go(self) -> None:
        """Let waiting trials end."""
        (self.folder / "go").touch()


@contextmanager
def cli_in(folder: Path, *, make: Callable[[Path], Cli] = Cli) -> Iterator[Cli]:
    """Yield a command line; afterwards end every process that it started,
    and check that none is left.
    """
    cli = make(folder)
    try:
        yield cli
    finally:
        cli.let_go()
        for process in cli.started:
            if process.poll() is None:
                process.send_signal(signal.SIGABRT)  # so that it prints the stack of each thread
                process.send_signal(signal.SIGCONT)  # a frozen process would not handle the signal
            _, err = process.communicate(timeout=30)
            print(err, file=sys.stderr)  # shown if the test failed
        try:
            eventually(lambda: not processes_of(folder), within_s=15)
        finally:
            for pid in processes_of(folder):
                os.kill(int(pid), signal.SIGKILL)


def experiment(
    command: Sequence[str] = (),
    *,
    name: str = "tiny",
    trials: int = 2,
    parameters: str = "x: {type: float, min: 0, max: 1}",
    algorithm: str = "random, seed: 1",
    parallelism: int = 1,
    trial: str = "gracePeriod: 60s",
    waits: bool = False,
) -> str:
    """Return the text of a file.

    By default each trial records its start, prints x and ends (`waits`: after `go`).
    """
    words = list(command) or [
        "sh",
        "-c",
        WAITS_FOR_GO.format(then=UNTIL_GO if waits else ":"),
        "sh",
        "${x}",
    ]
    lines = "".join(f"\n      - {_quoted(word)}" for word in words)
    return f"""
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {{name: {name}}}
spec:
  objective: {{metric: score, direction: maximize}}
  parameters: {{{parameters}}}
  algorithm: {{name: {algorithm}}}
  budget: {{trials: {trials}, failedTrials: 99}}
  parallelism: {parallelism}
  canary: 0s
  trial:
    {trial}
    command:{lines}
"""


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"


def why(cli: Cli, name: str) -> str:
    """Return the last line of `describe`."""
    code, out, err = cli.tuner("describe", name)
    assert code == 0, err
    return out.splitlines()[-1]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code and the remaining output."""
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def eventually(condition: Callable[[], bool], *, within_s: float = 20) -> None:
    """Wait for a condition.

    One that runs a command is asked less often, so that it does not take what it waits for.
    """
    deadline = time.monotonic() + within_s
    asked = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < deadline, "it never happened"
        time.sleep(max(0.02, 3 * (now - asked)))
        asked = time.monotonic()


def processes_of(folder: Path) -> list[str]:
    """Return all living processes that were started on this state directory;
    none on systems without /proc.
    """
    mark = f"TUNER_STATE_DIR={folder}/"
    found = [str(pid) for pid in forked.running_with(mark)]
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in environ.read_bytes():
                found.append(environ.parent.name)
    return found
