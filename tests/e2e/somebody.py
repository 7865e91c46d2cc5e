"""`tuner` in a folder where something is going to be bad: what the tests of bad trials, stores and files share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.test_cli import TUNER, Person, eventually, processes_of

__all__ = ["TUNER", "Person", "ended", "eventually", "experiment", "processes_of", "somebody", "why"]

WAITS_FOR_GO = 'echo "$TUNER_TRIAL_NUMBER $TUNER_ATTEMPT $1" >> starts.txt; echo score=$1; {then}'
UNTIL_GO = "while ! test -e go; do sleep 0.02; done"


@contextmanager
def somebody(folder: Path, *, make: Callable[[Path], Person] = Person) -> Iterator[Person]:
    """A person; afterwards whatever they started is ended, and nothing of it is left."""
    person = make(folder)
    try:
        yield person
    finally:
        person.let_go()
        for process in person.started:
            if process.poll() is None:
                process.send_signal(signal.SIGABRT)  # so that it says where each of its threads stands
                process.send_signal(signal.SIGCONT)  # a frozen one would not hear of it
            _, err = process.communicate(timeout=30)
            print(err, file=sys.stderr)  # shown if the test failed
        try:
            eventually(lambda: not processes_of(folder), within_s=15)
        finally:
            for pid in processes_of(folder):
                os.kill(int(pid), signal.SIGKILL)


def experiment(
    command: Sequence[str] = (), *, name: str = "tiny", trials: int = 2,
    parameters: str = "x: {type: float, min: 0, max: 1}", algorithm: str = "random, seed: 1",
    parallelism: int = 1, trial: str = "gracePeriod: 60s", waits: bool = False,
) -> str:  # fmt: skip
    """A file's text. Without a command: each trial says that it started, prints its x and ends; `waits`: for `go`."""
    words = list(command) or ["sh", "-c", WAITS_FOR_GO.format(then=UNTIL_GO if waits else ":"), "sh", "${x}"]
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


def why(person: Person, name: str) -> str:
    """The last line of `describe`."""
    code, out, err = person.tuner("describe", name)
    assert code == 0, err
    return out.splitlines()[-1]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code, and what it had left to say."""
    _, err = process.communicate(timeout=60)
    return process.returncode, err
