"""Overhead of a search: 200 random digits trials with `tuner run`,
`xargs -P 2`, and a loop with Optuna.

All run the same command lines, two at a time, in alternating blocks of forty, because the speed of
a machine may drift within half a minute by more than the differences. Also measured: the time to
the first trial, the idle time of slots, and the memory of Tuner. `make bench` runs this; `--quick`
is a smoke test that keeps no results.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from processes import TUNER, peak_mb
from record import ROOT, figure, figures, keep, median, quantile, table, verdict

PYTHON = Path(sys.executable)
DIGITS = ROOT / "examples" / "digits"
SLOTS = 2
PLAIN, SESSIONS, OURS = "xargs -P 2", "xargs -P 2, a session each", "tuner run"
OPTUNA = {f"Optuna's loop, {kind}": kind for kind in ("SQLite", "journal file", "in memory")}
SEARCH, PORTION = 200, 40  # trials of a search and of a block
SEARCHES = 3
PAIRS = 6

OVER_XARGS, FIRST_TRIAL_S, SLOT_IDLE_MS, HELP_S, MEMORY_MB = 1.10, 0.7, 20.0, 0.12, 150.0


@dataclass(frozen=True, slots=True)
class Span:
    """Start and end of a trial's process, in seconds since the epoch."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Run:
    """One `tuner run`: its trials, the time to the first trial's process,
    and the peak memory in MB.
    """

    spans: list[Span]
    command_lines: list[list[str]]
    first_trial_s: float
    memory_mb: float
    supervisor_mb: float


def wall(spans: list[Span]) -> float:
    """Return the seconds from the start of the first process to the exit of the last."""
    return max(span.end for span in spans) - min(span.start for span in spans)


def idle(spans: list[Span]) -> list[float]:
    """Return the seconds from each exit to the next start in the slot.

    Exits and starts are paired in order.
    """
    starts = sorted(span.start for span in spans)
    ends = sorted(span.end for span in spans)
    # The first two starts wait for no exit: the slots were empty, or the second waited for the
    # canary's first line.
    return [max(0.0, start - end) for start, end in zip(starts[SLOTS:], ends, strict=False)]


def command_line(parameters: dict[str, Any]) -> list[str]:
    """Return the command line that random.yaml has for the parameters."""
    return [
        "train.py",
        *(f"--{name.replace('_', '-')}={value}" for name, value in parameters.items()),
    ]


class Memory(threading.Thread):
    """Watches the peak memory of a process and of its experiment's
    supervisor, on systems with /proc.
    """

    def __init__(self, pid: int, state: Path) -> None:
        super().__init__(daemon=True)
        self.pid, self.state = pid, str(state).encode()
        self.peak_mb = self.supervisor_mb = 0.0
        self.supervisor: int | None = None

    def _find_supervisor(self) -> int | None:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if (
                b"supervisor" in command
                and self.state in command + str((entry / "cwd").resolve()).encode()
            ):
                return int(entry.name)
        return None

    def run(self) -> None:
        while now := peak_mb(self.pid):
            self.peak_mb = now
            self.supervisor = self.supervisor or self._find_supervisor()
            if self.supervisor:
                self.supervisor_mb = peak_mb(self.supervisor) or self.supervisor_mb
            time.sleep(0.05)


def tuner_run(
    trials: int, folder: Path, *, seed: int = 7, canary: bool = True, watch: bool = False
) -> Run:
    """Run `tuner run`.

    `canary`: the first trial runs alone until its first line, as set in the file. `watch`: measure
    memory, which slows the run a little.
    """
    state = folder / "state"
    shutil.rmtree(state, ignore_errors=True)
    command = [
        str(TUNER),
        "run",
        "random.yaml",
        "--set",
        f"spec.budget.trials={trials}",
        "--set",
        f"spec.algorithm.seed={seed}",
        *(() if canary else ("--set", "spec.canary=0s")),
        "--state-dir",
        str(state),
        "-q",
    ]
    with (folder / "tuner.log").open("wb") as log:
        asked = time.time()
        process = subprocess.Popen(
            command, cwd=DIGITS, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        memory = Memory(process.pid, state)
        if watch:
            memory.start()
        if process.wait() != 0:
            sys.exit(
                f"tuner run ended with {process.returncode}:\n{(folder / 'tuner.log').read_text()}"
            )
    asking = [str(TUNER), "get", "trials", "digits-random", "-o", "json", "--state-dir", str(state)]
    answer = json.loads(subprocess.run(asking, check=True, capture_output=True, text=True).stdout)
    spans = [
        Span(
            *(datetime.fromisoformat(attempt[key]).timestamp() for key in ("startTime", "endTime"))
        )
        for trial in answer
        for attempt in trial["attempts"]
    ]
    if len(spans) != trials:
        sys.exit(f"{trials} trials were asked for, {len(spans)} attempts ran")
    lines = [
        command_line(trial["parameters"])
        for trial in sorted(answer, key=lambda trial: trial["number"])
    ]
    first_s = min(span.start for span in spans) - asked
    return Run(spans, lines, first_s, memory.peak_mb, memory.supervisor_mb)


def xargs_run(lines: list[list[str]], folder: Path, *, sessions: bool = False) -> float:
    """Run the command lines with xargs and return the seconds.

    `sessions`: start each command in its own session, as Tuner does. On a busy machine Linux
    divides CPU time by session (autogroup), so that the plain form would look slower than it is.
    """
    (folder / "lines").write_text("".join(" ".join(line) + "\n" for line in lines))
    with (folder / "lines").open("rb") as source, (folder / "xargs.log").open("wb") as log:
        start = time.perf_counter()
        command = [
            "xargs",
            "-P",
            str(SLOTS),
            "-L",
            "1",
            *(["setsid", "--wait"] if sessions else []),
            str(PYTHON),
        ]
        done = subprocess.run(
            command, cwd=DIGITS, stdin=source, stdout=log, stderr=log, check=False
        )
        seconds = time.perf_counter() - start
    # 123: a command failed, such as a trial with infeasible parameters
    if done.returncode not in (0, 123):
        sys.exit(f"xargs ended with {done.returncode}:\n{(folder / 'xargs.log').read_text()}")
    return seconds


def optuna_run(kind: str, lines: list[list[str]], folder: Path) -> float:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for leftover in folder.glob("optuna.*"):
        leftover.unlink()
    storages: dict[str, Callable[[], optuna.storages.BaseStorage]] = {
        "SQLite": lambda: optuna.storages.RDBStorage(f"sqlite:///{folder}/optuna.db"),
        "journal file": lambda: optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(f"{folder}/optuna.log")
        ),
        "in memory": optuna.storages.InMemoryStorage,
    }
    spans: list[Span] = []

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_float("lr", 1e-4, 1.0, log=True)
        trial.suggest_float("momentum", 0, 0.95)
        trial.suggest_int("batch", 8, 128, step=8)
        trial.suggest_int("width", 16, 128, step=16)
        trial.suggest_float("weight_decay", 1e-6, 1e-2, log=True)
        if trial.suggest_categorical("activation", ["relu", "tanh", "sigmoid"]) == "relu":
            trial.suggest_float("dropout", 0, 0.7)
        start = time.time()
        # Ignore the drawn parameters and run the same command lines as the others.
        command = [str(PYTHON), *lines[trial.number]]
        done = subprocess.run(command, cwd=DIGITS, capture_output=True, text=True, check=False)
        spans.append(Span(start, time.time()))
        return (
            float(done.stdout.rsplit("accuracy=", 1)[-1].split()[0])
            if done.returncode == 0
            else 0.0
        )

    sampler = optuna.samplers.RandomSampler(seed=7)
    study = optuna.create_study(storage=storages[kind](), sampler=sampler, direction="maximize")
    study.optimize(objective, n_trials=len(lines), n_jobs=SLOTS)
    return wall(spans)


def time_of(command: list[str], repeats: int) -> float:
    """Return the median wall seconds of a command, after one run that warms the page cache."""
    taken = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
    return median(taken[1:])


def contestants() -> dict[str, Callable[[list[list[str]], Path], float]]:
    """Return the contestants by name: functions that run command lines and return the seconds."""
    found: dict[str, Callable[[list[list[str]], Path], float]] = {PLAIN: xargs_run}
    if shutil.which("setsid"):
        found[SESSIONS] = partial(xargs_run, sessions=True)
    return found | {who: partial(optuna_run, kind) for who, kind in OPTUNA.items()}


def play(rounds: int, searches: int, folder: Path) -> tuple[dict[str, list[float]], list[float]]:
    """Return the seconds of each round by contestant, and the idle times of Tuner's slots."""
    seconds: dict[str, list[float]] = {}
    gaps: list[float] = []
    others = list(contestants().items())
    for turn in range(rounds):
        print(f"round {turn + 1} of {rounds}", file=sys.stderr)
        # Only some blocks have a canary, because an experiment has one canary,
        # not one per forty trials.
        run = tuner_run(PORTION, folder, seed=7 + turn, canary=turn % (rounds // searches) == 0)
        seconds.setdefault(OURS, []).append(wall(run.spans))
        gaps += idle(run.spans)
        # rotate, so that no contestant always follows the same one
        for place in range(len(others)):
            who, race = others[(place + turn) % len(others)]
            seconds.setdefault(who, []).append(race(run.command_lines, folder))
    return seconds, gaps


def whole_searches(pairs: int, folder: Path) -> str:
    """Measure complete searches of 200 trials, with one start
    and one canary each, alternating with xargs.
    """
    ours: list[float] = []
    bare: list[float] = []
    for turn in range(pairs):
        print(f"pair {turn + 1} of {pairs}", file=sys.stderr)
        run = tuner_run(SEARCH, folder, seed=107 + turn)
        ours.append(wall(run.spans))
        bare.append(xargs_run(run.command_lines, folder))
    ratios = sorted(a / b for a, b in zip(ours, bare, strict=True))
    over = sum(ours) / sum(bare)
    rows = [
        ["xargs -P 2", f"{sum(bare) / pairs:.2f}", "1.000", "", ""],
        [
            "tuner run",
            f"{sum(ours) / pairs:.2f}",
            f"{over:.3f}",
            f"{ratios[0]:.3f} to {ratios[-1]:.3f}",
            f"at most {OVER_XARGS:.2f}: {verdict(over, OVER_XARGS)}",
        ],
    ]
    return table(
        [
            "who",
            f"seconds for {SEARCH} trials, mean of {pairs}",
            "ratio of sums",
            "each pair",
            "claim",
        ],
        rows,
    )


def compared(seconds: dict[str, list[float]], searches: int) -> tuple[list[list[str]], float]:
    """Return the rows of the table, and Tuner's ratio to the faster form of xargs,
    which the claim is about.
    """
    fastest = min(
        (who for who in (PLAIN, SESSIONS) if who in seconds), key=lambda who: sum(seconds[who])
    )

    def ratio(who: str, over: str, rounds: slice = slice(None)) -> float:
        return sum(seconds[who][rounds]) / sum(seconds[over][rounds])

    size = len(seconds[OURS]) // searches
    parts = [slice(begin, begin + size) for begin in range(0, size * searches, size)]
    rows = []
    for who in (PLAIN, SESSIONS, OURS, *OPTUNA):
        if who in seconds:
            alone = sorted(ratio(who, fastest, part) for part in parts)
            spread = f"{alone[0]:.3f} to {alone[-1]:.3f}"
            each = sum(seconds[who]) / searches
            rows.append(
                [who, f"{each:.2f}", f"{ratio(who, fastest):.3f}", "" if who == fastest else spread]
            )
    return rows, ratio(OURS, fastest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one round of forty trials; keeps nothing"
    )
    parser.add_argument("--whole", action="store_true", help="only the searches of 200 as they are")
    arguments = parser.parse_args()
    quick = arguments.quick
    if not quick:
        with tempfile.TemporaryDirectory() as name:
            keep("whole-searches", whole_searches(PAIRS, Path(name)))
    if arguments.whole:
        return
    searches, rounds = (1, 1) if quick else (SEARCHES, SEARCHES * SEARCH // PORTION)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        firsts = [tuner_run(1, folder).first_trial_s for _ in range(2 if quick else 8)][1:]
        whole = tuner_run(PORTION if quick else SEARCH, folder, watch=True)
        seconds, gaps = play(rounds, searches, folder)
    empty = os.devnull
    help_s, bare_python_s = time_of([str(TUNER), "--help"], 11), time_of([str(PYTHON), empty], 11)

    rows, over = compared(seconds, searches)
    trials = PORTION * rounds // searches
    first = table(
        [
            "who",
            f"seconds for {trials} trials, mean of {searches}",
            "over the faster xargs",
            "each of them alone",
        ],
        rows,
    )
    gaps_ms = [1e3 * gap for gap in gaps]
    first_s, gap_ms = median(firsts), median(gaps_ms)
    rows = [
        figure("over the faster xargs", over, ".3f", OVER_XARGS),
        figure("from the command to the first trial's process", first_s, ".2f s", FIRST_TRIAL_S),
        figure("a slot empty between two trials, median", gap_ms, ".1f ms", SLOT_IDLE_MS),
        figure("the same, 90 % of them", quantile(gaps_ms, 0.9), ".1f ms"),
        figure("`tuner --help`", help_s, ".3f s", HELP_S),
        figure("an empty Python program, for comparison", bare_python_s, ".3f s"),
        figure(
            "peak memory of controller and service, one process",
            whole.memory_mb,
            ".0f MB",
            MEMORY_MB,
        ),
        figure("peak memory of the supervisor beside it", whole.supervisor_mb, ".0f MB"),
    ]
    keep("throughput", f"{first}\n\n{figures(rows)}", quick=quick)


if __name__ == "__main__":
    main()
