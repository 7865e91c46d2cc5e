"""Train a small network on CIFAR-10: one trial, alone or as one of several workers. The command line, and how it ends.

What a trial owes to the tuner is one printed line an epoch, and an exit code: 42 says that these parameters cannot be
tried, 75 that another worker was lost, 2 that the command is wrong, 1 that something else is, with a sentence on each.
Nothing is imported before the command line is read that takes longer than reading it.
"""

from __future__ import annotations

import time

STARTED = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402
from typing import TYPE_CHECKING, NoReturn  # noqa: E402

from recipe import PRECISIONS, Infeasible, Recipe, add_knobs, chosen, whole  # noqa: E402

if TYPE_CHECKING:
    from life import Life

INFEASIBLE_EXIT_CODE = 42
TERMINATED_EXIT_CODE = 128 + signal.SIGTERM
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, not under thirty others."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def parser() -> argparse.ArgumentParser:
    parser = Parser(prog="cifar10.py", description="Train a small network on CIFAR-10.")
    knobs = parser.add_argument_group("knobs")
    add_knobs(knobs)
    data = parser.add_argument_group("data")
    data.add_argument("--data", metavar="PATH", help="CIFAR-10 as it is published, or a pack (default: CIFAR10_DATA)")
    data.add_argument("--no-verify", action="store_true", help="take copies and stand-ins that have other hashes")
    data.add_argument("--download", action="store_true", help="fetch the data with torchvision if they are not there")
    count = whole("a number of images from 1", 1, 1_000_000)
    data.add_argument("--train-images", type=count, metavar="N", help="learn from so many (default: all not held out)")
    data.add_argument("--valid-images", type=count, metavar="N", help="hold out so many (default: a tenth)")
    data.add_argument("--final", action="store_true", help="learn from all, hold out none, read the test set once")
    run = parser.add_argument_group("how it runs")
    run.add_argument("--device", default="auto", help="auto | cpu | cuda | cuda:N (default: a GPU if there is one)")
    run.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="auto",
        help="of the images inside the network; weights are float32 (default: float16 on a GPU, else float32)",
    )
    run.add_argument("--tta", action="store_true", help="judge the trained network on six views of each image as well")
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
    """That this process may use: a container's limit, else the machine's. More threads would wait for each other."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:  # noqa: PTH123
            quota, period = file.read().split()
        allowed = min(allowed, max(1, int(quota) // int(period))) if quota != "max" else allowed
    except (OSError, ValueError):
        pass
    workers = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, allowed // max(1, int(workers) if workers.isdecimal() else 1))


def keep_memory() -> None:
    """What a step frees the next one takes again: to give it back in between, page by page, is a quarter of a step."""
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt  # glibc's
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def main() -> int:
    options = parser().parse_args()
    # A container's first process hears SIGTERM only if it has a handler. All lines are flushed already.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED_EXIT_CODE))
    os.environ.setdefault("OMP_NUM_THREADS", str(processors()))  # before torch reads it
    keep_memory()
    try:
        recipe = chosen(options)
    except Infeasible as reason:
        return infeasible(str(reason))
    try:
        began = time.perf_counter()
        from life import Life
    except ModuleNotFoundError as missing:
        return trouble(f"{missing.name} is not installed: pip install {missing.name}", 1)
    life = Life(options, recipe, started=STARTED)
    life.seconds["imports"] = time.perf_counter() - began
    return lived(life, recipe)


def lived(life: Life, recipe: Recipe) -> int:
    from data import DataError
    from device import NoDevice
    from memory import out_of_memory
    from world import LOST_EXIT_CODE, Lost, Refused

    try:
        result = life.live()
    except Infeasible as reason:
        return infeasible(str(reason))  # every worker: whichever ends first is the one that is asked why
    except (DataError, NoDevice) as error:
        return trouble(str(error), 1)
    except Refused as error:
        return trouble(str(error), 2)
    except Lost as error:
        return trouble(str(error), LOST_EXIT_CODE)
    except (MemoryError, RuntimeError) as error:
        sentence = out_of_memory(error, recipe)
        if sentence is None:
            raise
        return trouble(sentence, 1)
    if result:
        print(json.dumps(result), flush=True)
    return trouble(life.trouble, 1) if life.trouble else 0


def infeasible(reason: str) -> int:
    print(reason, flush=True)
    return INFEASIBLE_EXIT_CODE


def trouble(sentence: str, code: int) -> int:
    print(f"cifar10.py: {sentence}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    # torch takes a fifth of a second to say goodbye, and where another worker is lost it waits for that.
    os._exit(code)
