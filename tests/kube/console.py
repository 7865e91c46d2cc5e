"""Runs `tuner` with a FakeApi, whose server runs in the test's loop: in a thread of the test
process, or as a process that can be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

from controller.cli.main import main
from tests import forked
from tests.called import Captured
from tests.kube.fake_api import FakeApi, Raw, kubeconfig_of


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


async def tuner(
    api: FakeApi, folder: Path, *words: str, config: Raw | None = None
) -> CommandResult:
    """Run `tuner` with a state directory in the folder, and a kubeconfig of the server unless
    another one is given.
    """
    out, err = Captured(), Captured()
    with (
        kubeconfig_of(config or api.kubeconfig()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = await asyncio.to_thread(main, [*words, "--state-dir", str(folder / "state")])
    return CommandResult(code, out.text, err.text)


def start(
    folder: Path, config: Raw, *words: str, state: str = "state", failpoint: str = ""
) -> subprocess.Popen[str]:
    """Start `tuner` as a process in the folder, with a state directory and the kubeconfig there."""
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    env = {key: value for key, value in os.environ.items() if not key.startswith("TUNER_")}
    env |= {"KUBECONFIG": str(folder / "kubeconfig"), "TUNER_STATE_DIR": str(folder / state)}
    env |= {"TUNER_FAILPOINT": failpoint} if failpoint else {}
    return forked.tuner(words, folder=folder, env=env)


async def ended(process: subprocess.Popen[str]) -> CommandResult:
    """Wait for the end of a process while the server answers it."""
    out, err = await asyncio.to_thread(process.communicate, timeout=60)
    return CommandResult(process.returncode, out, err)


def experiment(*, trial: str = "", more: str = "", name: str = "tiny") -> str:
    """Return a file for a cluster. `trial` is inserted below spec.trial, `more` below spec."""
    return f"""
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {{name: {name}, namespace: user1}}
spec:
  objective: {{metric: score, direction: maximize}}
  parameters: {{x: {{type: float, min: 0, max: 1}}, act: [relu, tanh]}}
  algorithm: {{name: random, seed: 1}}
  budget: {{trials: 3}}
  runtime: kubernetes
  {more}
  trial:
    image: example/tiny:1
    command: [python, train.py, "--x=${{x}}", "--act=${{act}}"]
    {trial}
"""
