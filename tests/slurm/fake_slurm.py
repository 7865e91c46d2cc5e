"""Small stand-ins of sbatch, squeue and scancel: jobs are processes
of this machine, with a folder for each.

`TUNER_FAKE_SLURM` names the folder of all jobs. `held`
in it keeps new jobs pending, like a full cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

JOBS = Path(os.environ["TUNER_FAKE_SLURM"])


def sbatch(arguments: list[str]) -> int:
    options = dict(argument.removeprefix("--").partition("=")[::2] for argument in arguments)
    if (JOBS / "down").exists():
        print(
            "sbatch: error: Unable to contact slurm controller (connect failure)", file=sys.stderr
        )
        return 1
    if options.get("gres") == "gpu:99":
        print("sbatch: error: Requested node configuration is not available", file=sys.stderr)
        return 1
    script = sys.stdin.read()
    number = sum(path.is_dir() for path in JOBS.iterdir()) + 1
    while True:
        try:
            (JOBS / str(number)).mkdir()
            break
        except FileExistsError:
            number += 1
    job = JOBS / str(number)
    (job / "script").write_text(script)
    (job / "options").write_text("\n".join(arguments))
    if not (JOBS / "held").exists():
        with Path(options["output"]).open("ab") as output:
            process = subprocess.Popen(
                ["/bin/sh", str(job / "script")],
                env=os.environ | {"SLURM_JOB_ID": str(number)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        (job / "pid").write_text(str(process.pid))
    print(f"{number};fake")
    return 0


def squeue(_arguments: list[str]) -> int:
    for job in JOBS.iterdir():
        if not job.is_dir() or (job / "cancelled").exists():
            continue
        if not (job / "pid").exists():
            print(f"{job.name}|Resources")
        elif _alive(int((job / "pid").read_text())):
            print(f"{job.name}|None")
    return 0


def scancel(arguments: list[str]) -> int:
    job = JOBS / arguments[-1]
    if not (job / "pid").exists():
        (job / "cancelled").touch()
    elif _alive(pid := int((job / "pid").read_text())):
        os.kill(pid, signal.SIGTERM)
    else:
        print(
            f"scancel: error: Kill job error on job id {job.name}: Invalid job id specified",
            file=sys.stderr,
        )
        return 1
    return 0


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    sys.exit({"sbatch": sbatch, "squeue": squeue, "scancel": scancel}[sys.argv[1]](sys.argv[2:]))
