"""This checkout beside another one, by turns: what a command,
a suggestion and a trial cost in each.

    python bench/versions.py OTHER_CHECKOUT [--rounds 3]

Each checkout has its own `.venv`. Processor time is that of the command and of the processes it
waited for. Ratios are of pairs that ran one after the other, because these machines are noisy.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from processes import cpu_s, serving
from record import ROOT, machine, median, table

SUGGESTIONS = 1500
EMPTY = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: empty}
spec:
  objective: {metric: loss, direction: minimize}
  parameters: {x: {type: float, min: 0, max: 1}}
  algorithm: {name: tpe, seed: 1}
  parallelism: 2
  budget: {trials: TRIALS}
  canary: 0s
  trial: {command: [sh, -c, "date +%s.%N >> started; echo loss=${x}"]}
"""
CALLS = f"""
import sys
from suggest.client import Choice, Client, Float, minimize
with Client(sys.argv[1]) as client:
    space = {{"x": Float(0, 1), "c": Choice(["a", "b"])}}
    search = client.study("s", space, minimize("loss"), algorithm="random")
    for trial in search.trials({SUGGESTIONS}):
        trial.report(loss=trial.parameters["x"])
        trial.complete()
"""
FUNCTION = """
import sys, tuner
tuner.minimize(
    lambda trial: trial["x"], {"x": tuner.Float(0, 1)}, trials=60, algorithm="random",
    state_dir=sys.argv[1], name="f", progress=False,
)
"""


class Version:
    """One checkout, with a folder for its state."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.checkout = checkout
        self.folder = folder
        folder.mkdir()
        (folder / "empty.yaml").write_text(EMPTY.replace("TRIALS", "200"))
        (folder / "one.yaml").write_text(EMPTY.replace("TRIALS", "1"))

    def program(self, name: str) -> str:
        return str(self.checkout / ".venv" / "bin" / name)

    def call(self, *words: str) -> tuple[float, float]:
        """Run a program of the checkout. Return its wall time and its processor time in seconds."""
        used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [self.program(words[0]), *words[1:]]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            sys.exit(f"{command}: {done.stderr}")
        return wall_s, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime

    def search(self, file: str) -> tuple[float, float]:
        shutil.rmtree(self.folder / "state", ignore_errors=True)
        return self.call("tuner", "run", file, "--state-dir", "state", "-q")


def help_cpu_s(version: Version) -> float:
    return version.call("tuner", "--help")[1]


def get_trials_cpu_s(version: Version) -> float:
    return version.call("tuner", "get", "trials", "empty", "--state-dir", "state")[1]


def first_process_s(version: Version) -> float:
    started = version.folder / "started"
    started.unlink(missing_ok=True)
    asked_s = time.time()
    version.search("one.yaml")
    return float(started.read_text().split()[0]) - asked_s


def empty_trial_s(version: Version) -> float:
    return version.search("empty.yaml")[0] / 200


def function_trial_s(version: Version) -> float:
    shutil.rmtree(version.folder / "functions", ignore_errors=True)
    return version.call("python", "-c", FUNCTION, "functions")[0] / 60


def suggestion_cpu_s(version: Version) -> float:
    """Return the processor time of server and client for a suggestion and its completion."""
    store = version.folder / "served.db"
    store.unlink(missing_ok=True)
    url, tuner = f"sqlite:///{store}", Path(version.program("tuner"))
    with serving(version.folder, url, tuner=tuner) as (address, server):
        before_s = cpu_s(server)
        client_s = version.call("python", "-c", CALLS, address)[1]
        return (client_s + cpu_s(server) - before_s) / SUGGESTIONS


# Each figure with its unit, the factor to it, and the pairs per round.
FIGURES: tuple[tuple[str, Callable[[Version], float], str, float, int], ...] = (
    ("`tuner --help`, processor time", help_cpu_s, "ms", 1000, 5),
    ("from the command to the first trial's process", first_process_s, "s", 1, 3),
    ("a trial of `sh`, 200 trials with `tpe`, two at a time, wall", empty_trial_s, "ms", 1000, 1),
    ("`tuner get trials` of 200 trials, processor time", get_trials_cpu_s, "ms", 1000, 5),
    (
        "a suggestion and its completion, processor time of server and client",
        suggestion_cpu_s,
        "ms",
        1000,
        1,
    ),
    ("a trial of an empty function, wall", function_trial_s, "ms", 1000, 1),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        before = Version(arguments.other.resolve(), Path(temporary, "before"))
        now = Version(ROOT, Path(temporary, "now"))
        rows = []
        for name, measure, unit, factor, times in FIGURES:
            pairs = [(measure(before), measure(now)) for _ in range(arguments.rounds * times)]
            rows.append(_row(name, pairs, unit, factor))
    print(machine(), end="\n\n")
    print(table(("figure", "before", "now", "now over before, median (least to most)"), rows))


def _row(
    name: str, pairs: list[tuple[float, float]], unit: str, factor: float
) -> tuple[str, str, str, str]:
    ratios = [now / before for before, now in pairs]
    shown = [f"{median(values) * factor:.3g} {unit}" for values in zip(*pairs, strict=True)]
    spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), {len(pairs)} pairs"
    return name, shown[0], shown[1], spread


if __name__ == "__main__":
    main()
