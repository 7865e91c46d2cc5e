"""What pruning saves on the CIFAR-10 sweep and search: epochs, seconds, and what it costs in accuracy.

Runs the examples in reduced form on the processor, each without pruning and with the median rule, with one seed, and
writes the table and the sweep's results to docs/benchmarks.md. By hand, with the data: `CIFAR10_DATA=… python
bench/cifar10_pruning.py`; half an hour of a processor. What has run stays in `--state-dir`, and is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import record

TUNER = Path(sys.executable).parent / "tuner"
EXAMPLES = record.ROOT / "examples" / "cifar10"
EPOCHS = 6
SMALL = f"spec.trial.args=[--device=cpu, --width=4, --epochs={EPOCHS}, --train-images=4000, --valid-images=1000]"
ALSO = ("spec.trial.resources.gpu=0", "spec.parallelism=1", "spec.final=null")
FEWER = ("spec.parameters.batch=[64, 128, 256]", "spec.initial=[]", "spec.budget.trials=20")
RULE = "spec.pruning={name: median, warmupSteps: 2, minTrials: 4}"
FORMS = {"sweep": (SMALL, *ALSO), "search": (SMALL, *ALSO, *FEWER)}


@dataclass(frozen=True, slots=True)
class Run:
    best: float
    trials: int
    pruned: int
    epochs: int
    seconds: float

    @classmethod
    def of(cls, export: dict[str, Any]) -> Run:
        trials = export["trials"]
        won = [trial["value"] for trial in trials if trial["state"] == "succeeded"]
        measured = [{m["step"] for m in trial["measurements"] if m["metric"] == "accuracy"} for trial in trials]
        spent = [tuner_seconds(trial) for trial in trials]
        pruned = sum(trial["state"] == "pruned" for trial in trials)
        return cls(max(won), len(trials), pruned, sum(len(steps & set(range(1, EPOCHS + 1))) for steps in measured),
                   sum(spent))  # fmt: skip


def tuner_seconds(trial: dict[str, Any]) -> float:
    from datetime import datetime

    def at(text: str) -> datetime:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))

    return sum((at(each["endTime"]) - at(each["startTime"])).total_seconds() for each in trial["attempts"])


def tuner(*arguments: str, state: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = ["nice", str(TUNER), *arguments, "--state-dir", str(state)]
    done = subprocess.run(command, cwd=EXAMPLES, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    return done.stdout


def run(which: str, *, pruning: bool, state: Path) -> tuple[Run, str]:
    """What it came to, and its report."""
    name = f"cifar10-{which}-{'pruned' if pruning else 'whole'}"
    settings = [*FORMS[which], f"metadata.name={name}", RULE if pruning else "spec.pruning=null"]
    tuner("run", f"{which}.yaml", *(word for setting in settings for word in ("--set", setting)), state=state)
    export = json.loads(tuner("export", name, "--format", "json", state=state))
    return Run.of(export), tuner("report", name, state=state)


def main() -> None:
    parser = argparse.ArgumentParser(description="What pruning saves on the CIFAR-10 examples in reduced form.")
    parser.add_argument("--state-dir", type=Path, default=Path(tempfile.gettempdir()) / "tuner-bench-cifar10")
    parser.add_argument("--only", choices=tuple(FORMS), help="run this one and write nothing")
    options = parser.parse_args()
    chosen = [options.only] if options.only else list(FORMS)
    runs = {(which, pruning): run(which, pruning=pruning, state=options.state_dir)
            for which in chosen for pruning in (False, True)}  # fmt: skip
    rows = []
    for (which, pruning), (it, _) in runs.items():
        whole = runs[which, False][0]
        rows.append([
            f"{which}, {'median rule' if pruning else 'no pruning'}", str(it.trials), str(it.pruned),
            f"{it.epochs} ({it.epochs / whole.epochs:.0%})", f"{it.seconds:.0f} s ({it.seconds / whole.seconds:.0%})",
            f"{it.best:.4f}", f"{whole.best - it.best:+.4f}" if pruning else "",
        ])  # fmt: skip
    header = ("experiment", "trials", "pruned", "epochs", "seconds of trials", "best accuracy", "regret")
    table = record.table(header, rows)
    if options.only:
        print(table)
        return
    sweep = runs["sweep", False][1].rstrip()
    record.keep("cifar10-pruning", f"{table}\n\n```\n{sweep}\n```\n\n{record.machine()}")


if __name__ == "__main__":
    main()
