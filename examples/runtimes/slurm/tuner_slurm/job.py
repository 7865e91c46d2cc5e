"""The program of a Slurm job: runs an attempt's command on the node,
and records its start and its end in files.

Slurm forgets a job minutes after its end, and knows no grace period of a single job.
So this program, like the supervisor of local trials, enforces the timeout and the
grace period itself, with or without a controller. It uses the standard library only.
The argument is the folder of the attempt's records.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LAUNCH, STARTED, STOP, EXIT = "launch.json", "started.json", "stop.json", "exit.json"
_POLL_S = 0.05


def write(path: Path, document: object) -> None:
    """Write a file that readers see whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(document), encoding="utf-8")
    partial.replace(path)


def main(folder: Path) -> None:
    launch = json.loads((folder / LAUNCH).read_bytes())
    # A signal to this program is one to the process, also before there is one.
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: received.append(number))
    try:
        started = os.open(folder / STARTED, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        # Another job of the same attempt has begun: its submission was repeated after a crash.
        return
    except FileNotFoundError:
        # The attempt was withdrawn before it began.
        return
    job = {
        "time": time.time(),
        "node": socket.gethostname(),
        "job": os.environ.get("SLURM_JOB_ID", ""),
    }
    os.write(started, json.dumps(job).encode())
    os.close(started)
    try:
        process = _begin(launch)
    except OSError as error:
        write(
            folder / EXIT, {"time": time.time(), "refused": f"{error.filename}: {error.strerror}"}
        )
        return
    stopped, timed_out = _watch(process, launch, folder, received)
    # What the program has left behind.
    _signal(process, signal.SIGKILL)
    how = (
        {"code": process.returncode} if process.returncode >= 0 else {"signal": -process.returncode}
    )
    write(folder / EXIT, {"time": time.time(), "stopped": stopped, "timed_out": timed_out, **how})


def _begin(launch: dict[str, Any]) -> subprocess.Popen[bytes]:
    with Path(launch["log"]).open("ab", buffering=0) as log:
        return subprocess.Popen(
            launch["command"],
            cwd=launch["working_directory"],
            env=os.environ | launch["env"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _watch(
    process: subprocess.Popen[bytes], launch: dict[str, Any], folder: Path, received: list[int]
) -> tuple[bool, bool]:
    """Wait for the end of the process.

    Return whether it was stopped, and whether it took too long.
    """
    stopped = timed_out = False
    timeout_s, grace_s = launch["timeout_s"], launch["grace_s"]
    overdue_at = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    kill_at = float("inf")
    while process.poll() is None:
        now = time.monotonic()
        if now >= kill_at:
            _signal(process, signal.SIGKILL)
            kill_at = float("inf")
        if now >= overdue_at and not stopped:
            timed_out, overdue_at, kill_at = True, float("inf"), now + grace_s
            _signal(process, signal.SIGTERM)
        if received:
            received.clear()
            # Without the file, Slurm or an administrator ends the job:
            # it was not stopped by the experiment.
            requested_s = _requested_grace_s(folder)
            stopped |= requested_s is not None and not timed_out
            kill_at = min(kill_at, now + (grace_s if requested_s is None else requested_s))
            _signal(process, signal.SIGTERM)
        time.sleep(_POLL_S)
    return stopped, timed_out


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to all processes of the attempt."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _requested_grace_s(folder: Path) -> float | None:
    try:
        return float(json.loads((folder / STOP).read_bytes())["grace_s"])
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
