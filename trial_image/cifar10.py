"""Train a small network on CIFAR-10 as one trial, alone or as one of several workers:
command line and exit codes.

For Tuner, a trial only has to print one line per epoch and return an exit code: 42 if these
parameters cannot be used, 75 if another worker was lost, 2 for an invalid command, 1 for other
errors, each with a sentence.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from errors import Infeasible, TrialError
from recipe import PRECISIONS, add_knobs, chosen, whole

STARTED = time.perf_counter()
TERMINATED_EXIT_CODE = 128 + signal.SIGTERM
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h


class Parser(argparse.ArgumentParser):
    """Prints errors in one line, without thirty lines of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def parser() -> argparse.ArgumentParser:
    parser = Parser(prog="cifar10.py", description="Train a small network on CIFAR-10.")
    knobs = parser.add_argument_group("knobs")
    add_knobs(knobs)
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data", metavar="PATH", help="folder with cifar-10-batches-py (default: CIFAR10_DATA)"
    )
    data.add_argument(
        "--no-verify", action="store_true", help="accept copies of the data, which are unpickled"
    )
    count = whole("a number of images from 1", 1, 1_000_000)
    data.add_argument(
        "--train-images",
        type=count,
        metavar="N",
        help="learn from so many (default: all not held out)",
    )
    data.add_argument(
        "--valid-images", type=count, metavar="N", help="hold out so many (default: a tenth)"
    )
    data.add_argument(
        "--final", action="store_true", help="learn from all, hold out none, read the test set once"
    )
    run = parser.add_argument_group("how it runs")
    run.add_argument(
        "--device",
        default="auto",
        help="auto | cpu | cuda | cuda:N (default: a GPU if there is one)",
    )
    run.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="auto",
        help="of the images inside the network; weights are float32 (default: float16 on a GPU, "
        "else float32)",
    )
    run.add_argument(
        "--tta",
        action="store_true",
        help="judge the trained network on six views of each image as well",
    )
    run.add_argument("--sync-bn", action="store_true", help="batch norm over all workers' images")
    run.add_argument(
        "--join-seconds",
        type=whole("a number of seconds from 1", 1, 86_400),
        default=300,
        metavar="S",
        help="wait so long for the other workers (default: 300)",
    )
    return parser


def processors() -> int:
    """Return the number of CPUs for this process: the container's limit, else the machine's."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            allowed = min(allowed, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    workers = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, allowed // max(1, int(workers) if workers.isdecimal() else 1))


def keep_memory() -> None:
    """Keep freed memory for the next step: returning it to the system takes a quarter of a step."""
    try:
        mallopt = ctypes.CDLL(None).mallopt  # glibc's
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def main() -> int:
    options = parser().parse_args()
    # A container's first process gets SIGTERM only if it has a handler.
    # All output is already flushed.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED_EXIT_CODE))
    os.environ.setdefault("OMP_NUM_THREADS", str(processors()))  # before torch reads it
    keep_memory()
    try:
        recipe = chosen(options)
        began = time.perf_counter()
        try:
            # Only now: torch and torchvision take seconds to import,
            # and errors of the command line need neither.
            from trial import Trial
        except ModuleNotFoundError as missing:
            raise TrialError(
                f"{missing.name} is not installed: pip install {missing.name}"
            ) from missing
        trial = Trial(options, recipe, started=STARTED)
        trial.seconds["imports"] = time.perf_counter() - began
        result = trial.run()
    except Infeasible as reason:
        # in every worker, because the reason is read from the one that ends first
        print(reason, flush=True)
        return reason.exit_code
    except TrialError as error:
        print(f"cifar10.py: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    if result:
        print(json.dumps(result), flush=True)
    if trial.missing:
        print(f"cifar10.py: {trial.missing}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    # torch takes a fifth of a second to shut down, and waits for a worker that is lost.
    os._exit(code)
