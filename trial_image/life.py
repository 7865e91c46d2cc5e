"""One training from start to end: device, data, other workers, epochs with a line each, checkpoints, the result.

Only the first of several workers prints and writes. All of them train, and each evaluates a part of the held-out
images.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import checkpoints
import numpy as np
import torch
from augment import split
from checkpoints import Keeper
from data import Dataset, load
from device import DTYPES, chosen_device, chosen_precision, gpu_of
from memory import peak_memory_bytes
from recipe import Infeasible, Recipe
from training import Captured, Images, TrainingRun
from world import ConfigurationError, Place, World, place_of

Outcome = TypeVar("Outcome")


class Life:
    def __init__(self, options: argparse.Namespace, recipe: Recipe, *, started: float) -> None:
        self.options, self.recipe, self.started = options, recipe, started
        self.place = Place()
        self.precision = options.precision
        folder = os.environ.get("TUNER_CHECKPOINT_DIR")
        self.keeper = Keeper(Path(folder)) if folder else None
        self.trouble = ""  # a sentence about what is missing although the training succeeded
        self.seconds: dict[str, float] = {}
        self.lines: list[str] = []
        self.resumed = 0  # epochs done by an earlier attempt
        self.speed = 0.0
        self.measured: tuple[float, float] = (math.nan, math.nan)  # accuracy and loss of the last epoch

    def live(self) -> dict[str, Any]:
        """Run the training and return the result, which is empty for all workers but the first."""
        options = self.options
        self.place = place_of(dict(os.environ))
        world = World(self.place)
        if self.recipe.batch % world.size:
            raise Infeasible(
                f"--batch {self.recipe.batch} cannot be shared by {world.size} workers; use a multiple of {world.size}"
            )
        device = self._timed("context", lambda: chosen_device(options.device, self.place.local))
        self.precision = chosen_precision(options.precision, device)
        data = self._timed("data", lambda: load(options.data, verify=not options.no_verify, download=options.download))
        learn, judge = self._rows(data)
        self.recipe.steps(len(learn))  # check feasibility before waiting for other workers
        identity = self._identity(data, learn, judge)
        if not world.alone:
            about = {"parameters": identity, "data": fingerprint(data)}
            about |= {"device": device.type, "precision": self.precision}
            patience_s = options.join_seconds
            self._timed("joining", lambda: world.join(about, device, gpu_of(device), patience_s=patience_s))
        images = self._timed("data", lambda: Images.on(device, data.images, data.labels))
        dtype, sync_bn = DTYPES[self.precision], options.sync_bn
        training = self._timed(
            "network", lambda: TrainingRun(self.recipe, images, learn, world=world, dtype=dtype, sync_bn=sync_bn)
        )
        self._resume(training, identity)
        try:
            while training.done < training.epochs:
                self._epoch(training, judge, identity)
        finally:
            self._kept()
        result = self._result(training, data, learn, judge)
        world.leave()
        return result if self.place.first else {}

    def _timed(self, part: str, action: Callable[[], Outcome]) -> Outcome:
        began = time.perf_counter()
        outcome = action()
        self._add(part, time.perf_counter() - began)
        return outcome

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
                f"--train-images {train}{held_out} are more than the {data.train} images of the training set"
            )
        learn, held = split(np.asarray(data.labels[: data.train]), valid, train)
        if not options.final:
            return learn, held
        test = np.arange(data.train, len(data.labels))
        if not len(test):
            raise ConfigurationError(f"--final: {data.name} has no test images here")
        return learn, test

    def _identity(self, data: Dataset, learn: np.ndarray, judge: np.ndarray) -> str:
        """Return a text that must be equal for a checkpoint to be used, and for all workers of a training."""
        options = self.options
        flags = f"final={options.final} precision={options.precision} sync_bn={options.sync_bn}"
        return f"{self.recipe.fingerprint} {flags}, {data.name}, {len(learn)} + {len(judge)} images"

    def _resume(self, training: TrainingRun, identity: str) -> None:
        """Distribute the first worker's checkpoint to all workers, or its weights if it has no checkpoint."""
        if self.keeper and self.place.first:
            state = checkpoints.load(self.keeper.folder, fingerprint=identity)
            if state is not None:
                training.restore(state)
                self.lines, self.measured = state["lines"], tuple(state["measured"])
                for line in self.lines:  # print them again, so that this attempt reports all measurements
                    print(line, flush=True)
        done = torch.tensor([float(training.done)], device=training.device)
        training.world.from_first([done, *training.tensors()])
        training.done = self.resumed = int(done.item())

    def _epoch(self, training: TrainingRun, judge: np.ndarray, identity: str) -> None:
        began = time.perf_counter()
        mean_loss, images_seen = training.epoch()
        learned = time.perf_counter()
        last = training.done == training.epochs
        if last and self.options.final and self.place.first:
            print(f"the test set is read now, and only once: {len(judge)} images", flush=True)
        measured = training.accuracy(judge) if last or not self.options.final else None
        ended = time.perf_counter()
        self._add("training", learned - began)
        self._add("evaluation", ended - learned)
        if not math.isfinite(mean_loss + (measured[1] if measured else 0)):
            raise Infeasible(
                f"the loss is no longer finite in epoch {training.done}: --lr {self.recipe.number('lr'):g} is too "
                f"large with --momentum {self.recipe.number('momentum'):g} and --batch {self.recipe.batch}"
            )
        self.measured = measured or self.measured
        self.speed = images_seen / (learned - began)
        result = f"accuracy={measured[0]:.5f} loss={measured[1]:.5f}" if measured else f"train_loss={mean_loss:.5f}"
        self.lines.append(
            f"epoch={training.done} {result} seconds={ended - began:.3f} images_per_second={self.speed:.0f}"
        )
        if self.place.first:
            self._kept()  # before the line is printed, which thus implies that the previous epoch is saved
            print(self.lines[-1], flush=True)
            self._timed("checkpoints", lambda: self._keep(training, identity))

    def _keep(self, training: TrainingRun, identity: str) -> None:
        if self.keeper:
            about = {"fingerprint": identity, "lines": [*self.lines], "measured": self.measured}
            self.keeper.save({**training.state(), **about})

    def _kept(self) -> None:
        if self.keeper:
            self._timed("checkpoints", self.keeper.wait)

    def _result(self, training: TrainingRun, data: Dataset, learn: np.ndarray, judge: np.ndarray) -> dict[str, Any]:
        views = self._timed("views", lambda: training.accuracy(judge, views=6)) if self.options.tta else None
        if not self.place.first:
            return {}
        options, device = self.options, training.device
        accuracy, loss = self.measured
        model = self._timed("export", lambda: self._export(training)) if options.final else None
        self.seconds["firstStep"] = training.first_step_s or 0.0  # included in training
        self.seconds["total"] = time.perf_counter() - self.started
        on_gpu = device.type == "cuda"
        result = {
            # Tuner reads numbers on this level as measurements, so repeat those of the last line and add no others.
            "epoch": training.done,
            "accuracy": round(accuracy, 5),
            "loss": round(loss, 5),
            "accuracySixViews": round(views[0], 5) if views else None,
            "of": f"the test set, read once: {len(judge)} images" if options.final else f"{len(judge)} held-out images",
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
                "device": torch.cuda.get_device_name(device) if on_gpu else f"cpu, {torch.get_num_threads()} threads",
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
        """Export to the output and beside the checkpoints, because the output of a pod is lost when the pod ends."""
        from export import export

        names = ("TUNER_OUTPUT_DIR", "TUNER_CHECKPOINT_DIR")
        folders = [Path(folder) for folder in map(os.environ.get, names) if folder]
        if not folders:
            print(f"cifar10.py: {' and '.join(names)} are not set: the model is not exported", file=sys.stderr)
            return None
        try:
            return export(self.recipe, training.network.state_dict(), folders)
        except (OSError, RuntimeError, MemoryError) as error:
            message = next(iter(str(error).splitlines()), type(error).__name__)
            self.trouble = f"the training has ended well, but its model is not exported: {message}"
            return None


def fingerprint(data: Dataset) -> str:
    """Return a quick hash of the name, the size, all labels and the first images, which tells data sets apart."""
    check = zlib.crc32(np.ascontiguousarray(data.images[:64]), zlib.crc32(np.ascontiguousarray(data.labels)))
    return f"{data.name}, {data.train} + {len(data.labels) - data.train} images, {check:08x}"
