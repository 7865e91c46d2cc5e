"""How long a line takes from a trial's file to the study's store, and what the sidecar costs.

    python bench/collectors.py    # needs Go, for the sidecar

Each trial writes the time, as the value of the objective, at random intervals;
the store is looked at every two milliseconds. The experiment prunes, so that
measurements are uploaded when they are read.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import peak_mb
from record import ROOT, keep, median, quantile, table, verdict

LINES = 150
TO_STORE_MS, SIDECAR_MB = 100.0, 20.0
WRITES = """
import json, os, random, sys, time
chance = random.Random(1)
place = os.environ.get("TUNER_METRICS_FILE", "")
{open}
for step in range({lines}):
    time.sleep(chance.uniform(0.02, 0.1))
    now = time.time()
    {write}
"""
WAYS = {
    "standard output": ("", "", "print(f'step={step} score={now!r}', flush=True)"),
    "file, text": (
        "file: m.txt",
        "file = open(place, 'a', buffering=1)",
        "file.write(f'step={step} score={now!r}\\n')",
    ),
    "file, json": (
        "file: m.json, format: json",
        "file = open(place, 'a', buffering=1)",
        "file.write(json.dumps({'step': step, 'score': now}) + '\\n')",
    ),
}


def experiment(metrics: str) -> str:
    return f"""\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {{name: tiny}}
spec:
  objective: {{metric: score, direction: maximize}}
  metrics: {{{metrics}}}
  parameters: {{x: {{type: float, min: 0, max: 1}}}}
  algorithm: {{name: random, seed: 1}}
  pruning: {{name: median}}
  budget: {{trials: 1}}
  trial: {{command: [python, train.py, "${{x}}"]}}
"""


def delays_ms(metrics: str, opening: str, writing: str) -> list[float]:
    """Return, for each line, the milliseconds from just before its writing
    to its measurement in the store.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(WRITES.format(open=opening, write=writing, lines=LINES))
        (folder / "experiment.yaml").write_text(experiment(metrics))
        env = {**os.environ, "TUNER_STATE_DIR": str(folder / "state")}
        tuner = [sys.executable, "-m", "controller", "run", "experiment.yaml", "-q"]
        with subprocess.Popen(tuner, cwd=folder, env={**env, "PYTHONPATH": str(ROOT)}) as process:
            found = _watch(folder / "state" / "studies.db", process)
        assert len(found) == LINES, f"{len(found)} of {LINES} lines arrived"
        return found


def _watch(path: Path, process: subprocess.Popen[bytes]) -> list[float]:
    delays: list[float] = []
    while process.poll() is None and not path.exists():
        time.sleep(0.05)
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        over = False
        while not over:
            over = process.poll() is not None
            try:
                query = (
                    "SELECT value FROM measurements WHERE metric = 'score' ORDER BY step "
                    "LIMIT -1 OFFSET ?"
                )
                rows = database.execute(query, [len(delays)]).fetchall()
            except sqlite3.OperationalError:
                rows = []  # the tables are being made
            now = time.time()
            delays += [(now - value) * 1000 for (value,) in rows]
            time.sleep(0.002)
    return delays


def sidecar_mb(folder: Path) -> float:
    """Return the largest memory of the sidecar, which copies a file with a line of 10 MB."""
    program = folder / "collector"
    build = ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", str(program), "."]
    source = ROOT / "trial_image" / "collector"
    subprocess.run(build, cwd=source, env={**os.environ, "CGO_ENABLED": "0"}, check=True)
    path = folder / "metrics.txt"
    path.write_text(
        "".join(f"step={n} score=0.5\n" for n in range(200_000)) + "x" * 10_000_000 + "\n"
    )
    with subprocess.Popen([program, "file", path], stdout=subprocess.DEVNULL) as process:
        time.sleep(2)
        found = peak_mb(process.pid)
        process.terminate()
    return found


def main() -> None:
    rows = []
    for name, (metrics, opening, writing) in WAYS.items():
        found = delays_ms(metrics, opening, writing)
        middle, late = median(found), quantile(found, 0.95)
        rows.append([name, f"{middle:.0f} ms", f"{late:.0f} ms", verdict(middle, TO_STORE_MS)])
    head = ["a line in", "is stored after (p50)", "p95", f"p50 at most {TO_STORE_MS:.0f} ms"]
    with tempfile.TemporaryDirectory() as name:
        mb = sidecar_mb(Path(name))
    memory = (
        f"The sidecar takes at most {mb:.1f} MB while it copies a file of 14 MB with a line "
        f"of 10 MB"
    )
    limit = f"(at most {SIDECAR_MB:.0f} MB: {verdict(mb, SIDECAR_MB)})"
    keep("collectors", f"{table(head, rows)}\n\n{memory} {limit}.")


if __name__ == "__main__":
    main()
