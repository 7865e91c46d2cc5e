"""Benchmark of trainings: seconds per epoch, memory, and start-up time; on a GPU also the final accuracy.

    python bench/cifar10_trainings.py --data PATH [--seeds 3]

Each figure is measured on whole processes, like trials. On the CPU the trainings are reduced; on a GPU, if there is
one, they are complete, and include the sweep of sixteen trials through `tuner run`. The results are written to
docs/benchmarks.md, with the kind of the data.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from record import ROOT, keep, machine, median, table

PROGRAM = ROOT / "trial_image" / "cifar10.py"
REDUCED = ("--device=cpu", "--width=16", "--batch=256", "--train-images=5000", "--valid-images=1000", "--epochs=3")
FORMS = {"fast": (*REDUCED,), "sweep": (*REDUCED, "--recipe=sweep", "--width=8")}
TUNER = Path(sys.executable).parent / "tuner"
AT_ONCE = (1, 2, 4)  # numbers of trainings that share the GPU


@dataclass(frozen=True, slots=True)
class Run:
    result: dict[str, Any]
    epochs: list[float]  # seconds of each epoch
    cpu_s: float
    wall_s: float


def run(data: str, *flags: str, workers: int = 1, threads: int = 1) -> Run:
    """Run a training and return the first worker's figures, with the CPU seconds of all workers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1]), "WORLD_SIZE": str(workers)}
    began, before = time.perf_counter(), os.times()
    command = [sys.executable, str(PROGRAM), "--data", data, *flags]
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, **world, "RANK": str(rank), "OMP_NUM_THREADS": str(threads)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(workers)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"{' '.join(command)} ended with {[process.returncode for process in processes]}")
    after = os.times()
    *lines, result = outputs[0].splitlines()
    epochs = [float(line.partition(" seconds=")[2].split()[0]) for line in lines if line.startswith("epoch=")]
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(json.loads(result), epochs, cpu_s, time.perf_counter() - began)


def on_cpu(data: str, seeds: int) -> tuple[str, str]:
    """Return the table and the kind of the data."""
    cases = [
        ("fast, one thread", FORMS["fast"], 1, 1),
        ("fast, two threads", FORMS["fast"], 1, 2),
        ("fast, two workers of one thread", FORMS["fast"], 2, 1),
        ("fast, two workers, `--sync-bn`", (*FORMS["fast"], "--sync-bn"), 2, 1),
        ("sweep, one thread", FORMS["sweep"], 1, 1),
    ]
    rows, word = [], ""
    for name, flags, workers, threads in cases:
        runs = [run(data, *flags, f"--seed={seed}", workers=workers, threads=threads) for seed in range(seeds)]
        word = runs[0].result["data"]
        rows.append(
            [
                name,
                f"{median([median(run_result.epochs[1:]) for run_result in runs]):.2f}",
                f"{median([run_result.cpu_s for run_result in runs]):.1f}",
                f"{median([run_result.wall_s for run_result in runs]):.1f}",
                f"{max(run_result.result['machine']['peakMemoryBytes'] for run_result in runs) / 2**20:.0f}",
                _accuracies(runs),
            ]
        )
    header = ["5,000 images, 3 epochs", "s an epoch", "CPU s in all", "s in all", "MB a process", "accuracy, held out"]
    return table(header, rows), word


def starts(data: str, device: str) -> str:
    """Return a table of the time before and after training, for a second start, when files are in the page cache."""
    parts = ("imports", "context", "data", "network", "training", "firstStep", "evaluation", "total")
    rows = []
    for recipe, flags in FORMS.items():
        flags = flags if device == "cpu" else (f"--recipe={recipe}",)
        run(data, *flags)
        seconds = run(data, *flags).result["seconds"]
        rows.append([recipe, *(f"{seconds[part]:.2f}" for part in parts)])
    names = ["of it the first step" if part == "firstStep" else part for part in parts]
    return table(["seconds", *names], rows)


def on_gpu(data: str, seeds: int) -> str:
    """Return a table of complete trainings. The measure is the accuracy, so all seeds are used."""
    roofline = json.loads(subprocess.check_output([sys.executable, str(ROOT / "bench" / "roofline.py")], text=True))
    peaks: list[float] = roofline["peaks"]
    rows = []
    for recipe, needs in roofline["perImage"].items():
        runs = [run(data, f"--recipe={recipe}", "--tta", f"--seed={seed}") for seed in range(seeds)]
        training = [run_result.result["seconds"]["training"] for run_result in runs]
        speed = median([run_result.result["machine"]["imagesPerSecond"] for run_result in runs])
        rows.append(
            [
                recipe,
                f"{median(training):.2f} ({min(training):.2f} to {max(training):.2f})",
                f"{median([each.wall_s for each in runs]):.2f}",
                f"{speed:,.0f}",
                *(f"{speed * need / peak:.0%}" for need, peak in zip(needs, peaks, strict=True)),
                f"{max(run_result.result['machine']['peakGpuMemoryBytes'] for run_result in runs) / 2**30:.1f}",
                _accuracies(runs),
                _accuracies(runs, "accuracySixViews"),
            ]
        )
    header = ["recipe", "s of training", "s in all", "images/s", "of the matrix peak", "of the memory peak", "GiB"]
    tables = table([*header, "accuracy, held out", "six views"], rows)
    flops, bandwidth = (f"{peak / 1e12:.3g}" for peak in peaks)
    return f"{tables}\n\nPeaks, measured here: {flops} Tflop/s in float16, {bandwidth} TB/s ({roofline['gpu']})."


def sweeps(data: str) -> str:
    """Return a table of sixteen trials on one GPU, one at a time and several at once."""
    wall_s_by_share = {at_once: sweep(data, f"spec.trial.resources.gpu={1 / at_once:g}") for at_once in AT_ONCE}
    alone_s = wall_s_by_share[1][0]
    rows = [
        [str(at_once), f"{wall_s:.0f}", f"{alone_s / wall_s:.2f}", f"{best:.4f}"]
        for at_once, (wall_s, best) in wall_s_by_share.items()
    ]
    return table(["trainings at once", "s for all sixteen", "times as fast", "best accuracy, held out"], rows)


def sweep(data: str, *settings: str) -> tuple[float, float]:
    """Return (seconds, best accuracy) of a `tuner run`."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    environment = {**os.environ, "CIFAR10_DATA": str(Path(data).absolute()), "CUDA_VISIBLE_DEVICES": gpu}
    folder = ROOT / "examples" / "cifar10"
    with tempfile.TemporaryDirectory() as state:

        def tuner(*words: str) -> str:
            command = [str(TUNER), *words, "--state-dir", state]
            return subprocess.check_output(command, cwd=folder, env=environment, text=True)

        began = time.perf_counter()
        tuner("run", "sweep.yaml", *(word for setting in ("spec.final=null", *settings) for word in ("--set", setting)))
        wall_s = time.perf_counter() - began
        trials = json.loads(tuner("export", "cifar10-sweep", "--format", "json"))["trials"]
    return wall_s, max(trial["value"] for trial in trials if trial["state"] == "succeeded")


def _accuracies(runs: Sequence[Run], name: str = "accuracy") -> str:
    accuracies = sorted(run_result.result[name] for run_result in runs)
    return (
        f"{median(accuracies):.3f} ({accuracies[0]:.3f} to {accuracies[-1]:.3f})"
        if len(accuracies) > 1
        else f"{accuracies[0]:.3f}"
    )


def there_is_a_gpu() -> bool:
    code = "import torch; raise SystemExit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("CIFAR10_DATA"), help="default: CIFAR10_DATA")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if not options.data:
        sys.exit("cifar10_trainings.py: neither --data nor CIFAR10_DATA names the data")
    hardware = f"{machine()[:-1]}, torch {importlib.metadata.version('torch')}."
    cpu, word = on_cpu(options.data, options.seeds)
    start = starts(options.data, "cpu")
    keep("cifar10-cpu", f"{word}, in a reduced form, on the CPU:\n\n{cpu}\n\n{start}\n\n{hardware}")
    if there_is_a_gpu():
        parts = [on_gpu(options.data, options.seeds), sweeps(options.data), starts(options.data, "cuda")]
        keep("cifar10-gpu", "\n\n".join([f"{word}, on a GPU:", *parts, hardware]))


if __name__ == "__main__":
    main()
