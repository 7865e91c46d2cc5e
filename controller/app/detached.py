"""Start a verb that controls an experiment in a separate process, which outlives the calling one.

Its output goes to `controller.log` in the experiment's folder. The verb works as in a terminal.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from controller.app.experiments import find
from controller.app.workspace import Workspace
from controller.core.model import Experiment
from suggest.errors import FailedPrecondition

POLL_S = 0.1
# until the controller takes its experiment; imports take a second on a busy machine
PATIENCE_S = 20.0
LAST_BYTES = 4096


async def control_detached(
    workspace: Workspace, experiment: Experiment, verb: Sequence[str]
) -> None:
    """Run `verb` with the experiment's name.

    Returns when it controls the experiment or has exited with 0.

    Args:
        verb: The words of the verb, such as `("extend", "--trials", "+20")`.

    Raises:
        FailedPrecondition: The verb exited with another code first. The message is what it printed.
    """
    with workspace.opened() as experiments:
        folder = experiments.folders(experiment.uid).root
        log = folder / "controller.log"
        begin = log.stat().st_size if log.exists() else 0
        process = await asyncio.to_thread(_start, workspace, experiment, verb, log)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            code = process.poll()
            if code is not None:
                if code != 0:
                    raise FailedPrecondition(
                        _last_output(log, begin) or f"{verb[0]} ended with exit code {code}"
                    )
                return
            holder = experiments.holder(experiment.uid)
            now = find(experiments, experiment.name, experiment.namespace)
            if holder is not None and holder.pid == process.pid and now.state.value == "running":
                return
            await asyncio.sleep(POLL_S)


def _start(
    workspace: Workspace, experiment: Experiment, verb: Sequence[str], log: Path
) -> subprocess.Popen[bytes]:
    # -P, because the folder in which it starts must not be searched for modules.
    command = [sys.executable, "-P", "-m", "controller", verb[0], experiment.name, *verb[1:]]
    command += [
        "-n",
        experiment.namespace,
        "--state-dir",
        str(workspace.state.root),
        "--color",
        "never",
    ]
    credentials = workspace.credentials
    given = {
        "--token-file": credentials.token_file,
        "--tls-ca": credentials.tls_ca,
        "--tls-cert": credentials.tls_cert,
        "--tls-key": credentials.tls_key,
    }
    for flag, value in given.items():
        if value:
            command += [flag, str(Path(value).absolute())]
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            cwd="/",
        )
    finally:
        os.close(descriptor)


def _last_output(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(max(begin, log.stat().st_size - LAST_BYTES))
        return file.read().decode(errors="replace").strip().removeprefix("tuner: ")
