"""One training from start to end: device, data, other workers, epochs with a line each,
checkpoints, the result.

Only the first of several workers prints and writes. All of them train, and each evaluates a part of
the held-out images.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import torch
from augment import split
from checkpoints import Keeper
from data import Dataset, load
from device import DTYPES, chosen_device, chosen_precision, gpu_of
from errors import ConfigurationError, Infeasible
from export import export
from memory import is_lacking, out_of_memory, peak_memory_bytes
from recipe import Recipe
from training import Captured, Images, TrainingRun
from world import Worker, World, worker_of


class Trial:
    def __init__(self, options: argparse.Namespace, recipe: Recipe, *, started: float) -> None:
        self.options, self.recipe, self.started = options, recipe, started
        self.worker = Worker()
        folder = os.environ.get("TUNER_CHECKPOINT_DIR")
        self.keeper = Keeper(Path(folder)) if folder else None
        self.missing = ""  # a sentence about what is missing although the training succeeded
        self.seconds: dict[str, float] = {}
        self.lines: list[str] = []
        self.resumed = 0  # epochs done by an earlier attempt
        self.speed = 0.0
        # accuracy and loss of the last epoch
        self.measured: tuple[float, float] = (math.nan, math.nan)

    def run(self) -> dict[str, Any]:
        """Run the training and return the result, which is empty for all workers but the first.

        Raises:
            TrialError: the training cannot run, or did not end.
        """
        try:
            return self._run()
        except (MemoryError, RuntimeError) as error:
            if is_lacking(error):
                raise out_of_memory(self.recipe, error) from error
            raise

    def _run(self) -> dict[str, Any]:
        options, recipe = self.options, self.recipe
        self.worker = worker_of(os.environ)
        world = World(self.worker)
        if recipe.batch % world.size:
            raise Infeasible(
                f"--batch {recipe.batch} cannot be shared by {world.size} workers; use a multiple "
                f"of {world.size}"
            )
        with self._timed("context"):
            device = chosen_device(options.device, self.worker.local)
        precision = chosen_precision(options.precision, device)
        with self._timed("data"):
            data = load(options.data, verify=not options.no_verify, test=options.final)
        learn, judge = self._rows(data)
        recipe.steps(len(learn))  # check feasibility before waiting for other workers
        identity = self._identity(data, learn, judge)
        if not world.alone:
            about = {
                "parameters": identity,
                "data": fingerprint(data),
                "device": device.type,
                "precision": precision,
            }
            with self._timed("joining"):
                world.join(about, device, gpu_of(device), patience_s=options.join_seconds)
        with self._timed("data"):
            images = Images.on(device, data.images, data.labels)
        with self._timed("network"):
            training = TrainingRun(
                recipe, images, learn, world=world, dtype=DTYPES[precision], sync_bn=options.sync_bn
            )
        self._resume(training, identity)
        try:
            while training.done < training.epochs:
                self._epoch(training, judge, identity)
        finally:
            self._wait_for_checkpoint()
        result = self._result(training, data, learn, judge)
        world.leave()
        return result if self.worker.first else {}

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._add(part, time.perf_counter() - began)

    def _add(self, part: str, seconds: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def _rows(self, data: Dataset) -> tuple[np.ndarray, np.ndarray]:
        """Return (training rows, evaluation rows)."""
        options = self.options
        valid = 0 if options.final else options.valid_images or min(5_000, data.train // 10)
        train = options.train_images or data.train - valid
        if valid + train > data.train:
            held_out = f" and --valid-images {valid}" if valid else ""
            raise ConfigurationError(
                f"--train-images {train}{held_out} are more than the {data.train} images of the "
                f"training set"
            )
        learn, held = split(data.labels[: data.train], valid, train)
        if not options.final:
            return learn, held
        return learn, np.arange(data.train, len(data.labels))

    def _identity(self, data: Dataset, learn: np.ndarray, judge: np.ndarray) -> str:
        """Return a text that must be equal in all workers, and in a checkpoint to be used."""
        options = self.options
        flags = f"final={options.final} precision={options.precision} sync_bn={options.sync_bn}"
        return f"{self.recipe.fingerprint} {flags}, {data.name}, {len(learn)} + {len(judge)} images"

    def _resume(self, training: TrainingRun, identity: str) -> None:
        """Distribute the first worker's checkpoint to all workers, or else its weights."""
        if self.keeper and self.worker.first:
            state = checkpoints.load(self.keeper.folder, fingerprint=identity)
            if state is not None:
                training.restore(state)
                self.lines, self.measured = state["lines"], tuple(state["measured"])
                # print them again, so that this attempt reports all measurements
                for line in self.lines:
                    print(line, flush=True)
        done = torch.tensor([float(training.done)], device=training.device)
        training.world.from_first([done, *training.tensors()])
        training.done = self.resumed = int(done.item())

    def _epoch(self, training: TrainingRun, judge: np.ndarray, identity: str) -> None:
        began = time.perf_counter()
        mean_loss, images_seen = training.epoch()
        learned = time.perf_counter()
        last = training.done == training.epochs
        if last and self.options.final and self.worker.first:
            print(f"the test set is read now, and only once: {len(judge)} images", flush=True)
        measured = training.accuracy(judge) if last or not self.options.final else None
        ended = time.perf_counter()
        self._add("training", learned - began)
        self._add("evaluation", ended - learned)
        if not math.isfinite(mean_loss + (measured[1] if measured else 0)):
            raise Infeasible(
                f"the loss is no longer finite in epoch {training.done}: --lr "
                f"{self.recipe.number('lr'):g} is too large with --momentum "
                f"{self.recipe.number('momentum'):g} and --batch {self.recipe.batch}"
            )
        self.measured = measured or self.measured
        self.speed = images_seen / (learned - began)
        result = (
            f"accuracy={measured[0]:.5f} loss={measured[1]:.5f}"
            if measured
            else f"train_loss={mean_loss:.5f}"
        )
        self.lines.append(
            f"epoch={training.done} {result} seconds={ended - began:.3f} "
            f"images_per_second={self.speed:.0f}"
        )
        if self.worker.first:
            # Before the line is printed, which thus implies that the previous epoch is saved.
            self._wait_for_checkpoint()
            print(self.lines[-1], flush=True)
            self._save_checkpoint(training, identity)

    def _save_checkpoint(self, training: TrainingRun, identity: str) -> None:
        if self.keeper:
            about = {"fingerprint": identity, "lines": [*self.lines], "measured": self.measured}
            with self._timed("checkpoints"):
                self.keeper.save({**training.state(), **about})

    def _wait_for_checkpoint(self) -> None:
        if self.keeper:
            with self._timed("checkpoints"):
                self.keeper.wait()

    def _result(
        self, training: TrainingRun, data: Dataset, learn: np.ndarray, judge: np.ndarray
    ) -> dict[str, Any]:
        options, device = self.options, training.device
        views = model = None
        if options.tta:
            with self._timed("views"):
                views = training.accuracy(judge, views=6)
        if not self.worker.first:
            return {}
        if options.final:
            with self._timed("export"):
                model = self._export(training)
        accuracy, loss = self.measured
        judged = f"{len(judge)} held-out images"
        if options.final:
            judged = f"the test set, read once: {len(judge)} images"
        self.seconds["firstStep"] = training.first_step_s or 0.0  # included in training
        self.seconds["total"] = time.perf_counter() - self.started
        on_gpu = device.type == "cuda"
        hardware = f"cpu, {torch.get_num_threads()} threads"
        if on_gpu:
            hardware = torch.cuda.get_device_name(device)
        result = {
            # Tuner reads numbers on this level as measurements, so repeat those of the last line
            # and add no others.
            "epoch": training.done,
            "accuracy": round(accuracy, 5),
            "loss": round(loss, 5),
            "accuracySixViews": round(views[0], 5) if views else None,
            "of": judged,
            "data": data.name,
            "model": str(model) if model else None,
            "training": {
                "recipe": self.recipe.name,
                "knobs": dict(self.recipe.knobs),
                "seed": self.recipe.seed,
                "images": len(learn),
                "steps": training.total,
                "weights": sum(weight.numel() for weight in training.network.parameters()),
                "resumedAfterEpoch": self.resumed,
            },
            "machine": {
                "device": hardware,
                "precision": str(training.views.dtype).removeprefix("torch."),
                "captured": isinstance(training.step, Captured) and training.step.graph is not None,
                "workers": training.world.size,
                "imagesPerSecond": round(self.speed),
                "peakMemoryBytes": peak_memory_bytes(),
                "peakGpuMemoryBytes": torch.cuda.max_memory_allocated(device) if on_gpu else 0,
            },
            "seconds": {part: round(seconds, 4) for part, seconds in self.seconds.items()},
        }
        return {name: value for name, value in result.items() if value is not None}

    def _export(self, training: TrainingRun) -> Path | None:
        """Export to the output and beside the checkpoints.

        The output of a pod is lost when the pod ends.
        """
        names = ("TUNER_OUTPUT_DIR", "TUNER_CHECKPOINT_DIR")
        folders = [Path(folder) for folder in map(os.environ.get, names) if folder]
        if not folders:
            print(
                f"cifar10.py: {' and '.join(names)} are not set: the model is not exported",
                file=sys.stderr,
            )
            return None
        try:
            return export(self.recipe, training.network.state_dict(), folders)
        except (OSError, RuntimeError, MemoryError) as error:
            message = next(iter(str(error).splitlines()), type(error).__name__)
            self.missing = f"the training has ended well, but its model is not exported: {message}"
            return None


def fingerprint(data: Dataset) -> str:
    """Return a quick hash by which data sets are told apart.

    It is of the name, the size, all labels and the first images.
    """
    check = zlib.crc32(data.images[:64], zlib.crc32(data.labels))
    return f"{data.name}, {data.train} + {len(data.labels) - data.train} images, {check:08x}"
