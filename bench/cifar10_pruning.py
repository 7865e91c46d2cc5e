"""Savings by pruning on the CIFAR-10 sweep and search, in epochs and CPU seconds,
and the loss of accuracy.

Runs reduced forms of the examples on the CPU, without pruning and with the median rule, with one
seed, and writes the table to docs/benchmarks.md. Run it manually, with the data or a copy:
`CIFAR10_DATA=… python bench/cifar10_pruning.py`. It takes a quarter of an hour on one CPU, and
needs Linux, since it reads CPU seconds from /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import record
from processes import TUNER, cpu_s

EXAMPLES = record.ROOT / "examples" / "cifar10"
EPOCHS = 6
SMALL = (
    f"spec.trial.args=[--no-verify, --device=cpu, --width=4, --epochs={EPOCHS}, "
    "--train-images=4000, --valid-images=1000]"
)
ALSO = ("spec.trial.resources.gpu=0", "spec.parallelism=1", "spec.final=null")
FEWER = ("spec.parameters.batch=[64, 128, 256]", "spec.initial=[]", "spec.budget.trials=20")
RULE = "spec.pruning={name: median, warmupSteps: 2, minTrials: 4}"
FORMS = {"sweep": (SMALL, *ALSO), "search": (SMALL, *ALSO, *FEWER)}


class Meter(threading.Thread):
    """Samples the CPU time of the trials under a state directory while they run.

    Each trial is one process.
    """

    def __init__(self, state: Path) -> None:
        super().__init__(daemon=True)
        self._state = state
        self._over = threading.Event()
        self.seconds: dict[Path, float] = {}

    def run(self) -> None:
        while not self._over.wait(0.1):
            for written in self._state.glob("experiments/*/trials/*/*/process.json"):
                try:
                    used_s = cpu_s(json.loads(written.read_text())["pid"])
                except (OSError, ValueError):
                    continue  # the trial has ended, or its file is being written
                if not written.with_name("exit.json").exists():
                    self.seconds[written] = used_s

    def stop(self) -> float:
        self._over.set()
        self.join()
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class Run:
    best: float
    trials: int
    pruned: int
    epochs: int
    cpu_s: float

    @classmethod
    def of(cls, export: dict[str, Any], cpu_s: float) -> Run:
        trials = export["trials"]
        won = [trial["value"] for trial in trials if trial["state"] == "succeeded"]
        measured = [
            {m["step"] for m in trial["measurements"] if m["metric"] == "accuracy"}
            for trial in trials
        ]
        pruned = sum(trial["state"] == "pruned" for trial in trials)
        epochs = sum(len(steps & set(range(1, EPOCHS + 1))) for steps in measured)
        return cls(max(won), len(trials), pruned, epochs, cpu_s)


def tuner(*arguments: str, state: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = ["nice", str(TUNER), *arguments, "--state-dir", str(state)]
    done = subprocess.run(
        command, cwd=EXAMPLES, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    return done.stdout


def run(which: str, *, pruning: bool, state: Path) -> tuple[Run, str]:
    """Run an example and return its figures and its report."""
    name = f"cifar10-{which}-{'pruned' if pruning else 'whole'}"
    settings = [*FORMS[which], f"metadata.name={name}", RULE if pruning else "spec.pruning=null"]
    meter = Meter(state)
    meter.start()
    tuner(
        "run",
        f"{which}.yaml",
        *(word for setting in settings for word in ("--set", setting)),
        state=state,
    )
    cpu_s = meter.stop()
    export = json.loads(tuner("export", name, "--format", "json", state=state))
    return Run.of(export, cpu_s), tuner("report", name, state=state)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="What pruning saves on the CIFAR-10 examples in reduced form."
    )
    parser.add_argument("--only", choices=tuple(FORMS), help="run this one and write nothing")
    options = parser.parse_args()
    chosen = [options.only] if options.only else list(FORMS)
    runs = {}
    for which, pruning in product(chosen, (False, True)):
        with tempfile.TemporaryDirectory() as state:
            runs[which, pruning] = run(which, pruning=pruning, state=Path(state))
    rows = []
    for (which, pruning), (it, _) in runs.items():
        whole = runs[which, False][0]
        rows.append(
            [
                f"{which}, {'median rule' if pruning else 'no pruning'}",
                str(it.trials),
                str(it.pruned),
                f"{it.epochs} ({it.epochs / whole.epochs:.0%})",
                f"{it.cpu_s:.0f} s ({it.cpu_s / whole.cpu_s:.0%})",
                f"{it.best:.4f}",
                f"{whole.best - it.best:+.4f}" if pruning else "",
            ]
        )
    header = (
        "experiment",
        "trials",
        "pruned",
        "epochs",
        "processor seconds",
        "best accuracy",
        "regret",
    )
    table = record.table(header, rows)
    if options.only:
        print(f"{table}\n\n{runs[options.only, False][1]}")
        return
    record.keep("cifar10-pruning", table)


if __name__ == "__main__":
    main()
