"""The life of one training: device, data, the other workers, epochs with a line each, checkpoints, the result.

Only the first of several workers prints and writes; all of them learn, and look at a part of the held-out images.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import torch
from augment import split
from data import Dataset, load
from recipe import Infeasible, Recipe
from training import Captured, Images, Training
from world import Place, Refused, World, place_of

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# What torch and the libraries under it say; of these only the first is a class of its own.
NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "_STATUS_ALLOC_FAILED")


class NoDevice(Exception):
    """The device that was asked for is not there. Its text is one sentence."""


class Life:
    def __init__(self, options: argparse.Namespace, recipe: Recipe, *, started: float) -> None:
        self.options, self.recipe, self.started = options, recipe, started
        self.place = Place()
        self.seconds: dict[str, float] = {}
        self.lines: list[str] = []
        self.resumed = 0  # epochs that an earlier attempt had done
        self.speed = 0.0
        self.measured: tuple[float, float] = (math.nan, math.nan)  # accuracy and loss, of the last epoch

    def live(self) -> dict[str, Any]:
        """The result; empty for all workers but the first."""
        self.place = place_of(dict(os.environ))
        world = World(self.place)
        if self.recipe.batch % world.size:
            raise Infeasible(
                f"--batch {self.recipe.batch} cannot be shared by {world.size} workers; use a multiple of {world.size}"
            )
        device = self._timed("context", lambda: chosen_device(self.options.device, self.place))
        data = self._timed("data", self._data)
        learn, judge = self._rows(data)
        self.recipe.steps(len(learn))  # whether it is feasible is known before others are waited for
        identity = self._identity(data, learn, judge)
        if not world.alone:
            about = {"parameters": identity, "data": fingerprint(data)}
            self._timed("joining", lambda: world.join(about, device, patience_s=self.options.join_seconds))
        images = self._timed("data", lambda: Images.on(device, data.images, data.labels))
        training = self._timed("network", lambda: self._training(images, learn, world))
        self._resume(training, identity)
        while training.done < training.epochs:
            self._epoch(training, judge, identity)
        result = self._result(training, data, learn, judge)
        world.leave()
        return result if self.place.first else {}

    def _timed(self, part: str, action: Any) -> Any:
        began = time.perf_counter()
        outcome = action()
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began
        return outcome

    def _data(self) -> Dataset:
        options = self.options
        return load(options.data, verify=not options.no_verify, download=options.download)

    def _rows(self, data: Dataset) -> tuple[np.ndarray, np.ndarray]:
        """(to learn from, to judge by)"""
        options = self.options
        valid = 0 if options.final else options.valid_images or min(5_000, data.train // 10)
        train = options.train_images or data.train - valid
        if valid + train > data.train:
            held_out = f" and --valid-images {valid}" if valid else ""
            raise Refused(f"--train-images {train}{held_out} are more than the {data.train} images of the training set")
        learn, held = split(np.asarray(data.labels[: data.train]), valid, train)
        if not options.final:
            return learn, held
        test = np.arange(data.train, len(data.labels))
        if not len(test):
            raise Refused(f"--final: {data.name} has no test images here")
        return learn, test

    def _identity(self, data: Dataset, learn: np.ndarray, judge: np.ndarray) -> str:
        """What a checkpoint has to have been made with, and the other workers have to be started with."""
        options = self.options
        flags = f"final={options.final} precision={options.precision} sync_bn={options.sync_bn}"
        return f"{self.recipe.fingerprint} {flags}, {data.name}, {len(learn)} + {len(judge)} images"

    def _training(self, images: Images, learn: np.ndarray, world: World) -> Training:
        device, precision = images.pixels.device, self.options.precision
        if precision == "auto":
            precision = "float16" if device.type == "cuda" else "float32"
        return Training(self.recipe, images, learn, world=world, dtype=DTYPES[precision], sync_bn=self.options.sync_bn)

    def _resume(self, training: Training, identity: str) -> None:
        """The first worker's checkpoint is everybody's; without one, its weights are."""
        folder = os.environ.get("TUNER_CHECKPOINT_DIR")
        if folder and self.place.first:
            state = checkpoints.load(Path(folder), fingerprint=identity)
            if state is not None:
                training.restore(state)
                self.lines, self.measured = state["lines"], tuple(state["measured"])
                for line in self.lines:  # they belong to this attempt as well: what was measured is told whole
                    print(line, flush=True)
        done = torch.tensor([float(training.done)], device=training.device)
        training.world.from_first([done, *training.tensors()])
        training.done = self.resumed = int(done.item())

    def _epoch(self, training: Training, judge: np.ndarray, identity: str) -> None:
        began = time.perf_counter()
        mean_loss, seen = training.epoch()
        learnt = time.perf_counter()
        last = training.done == training.epochs
        if last and self.options.final and self.place.first:
            print(f"the test set is read now, and only once: {len(judge)} images", flush=True)
        measured = training.accuracy(judge) if last or not self.options.final else None
        ended = time.perf_counter()
        self._add("training", learnt - began)
        self._add("evaluation", ended - learnt)
        if not math.isfinite(mean_loss + (measured[1] if measured else 0)):
            raise Infeasible(
                f"the loss is no longer finite in epoch {training.done}: --lr {self.recipe.number('lr'):g} is too "
                f"large with --momentum {self.recipe.number('momentum'):g} and --batch {self.recipe.batch}"
            )
        self.measured = measured or self.measured
        self.speed = seen / (learnt - began)
        said = f"accuracy={measured[0]:.5f} loss={measured[1]:.5f}" if measured else f"train_loss={mean_loss:.5f}"
        self.lines.append(
            f"epoch={training.done} {said} seconds={ended - began:.3f} images_per_second={self.speed:.0f}"
        )
        if self.place.first:
            print(self.lines[-1], flush=True)
            self._keep(training, identity)

    def _keep(self, training: Training, identity: str) -> None:
        folder = os.environ.get("TUNER_CHECKPOINT_DIR")
        if not folder:
            return
        state = {**training.state(), "fingerprint": identity, "lines": self.lines, "measured": self.measured}
        self._timed("checkpoints", lambda: checkpoints.save(Path(folder), state))

    def _add(self, part: str, seconds: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def _result(self, training: Training, data: Dataset, learn: np.ndarray, judge: np.ndarray) -> dict[str, Any]:
        views = self._timed("views", lambda: training.accuracy(judge, views=6)) if self.options.tta else None
        if not self.place.first:
            return {}
        options, device = self.options, training.device
        accuracy, loss = self.measured
        model = self._timed("export", lambda: self._export(training)) if options.final else None
        self.seconds["firstStep"] = training.first_step_s or 0.0  # is part of training
        self.seconds["total"] = time.perf_counter() - self.started
        on_gpu = device.type == "cuda"
        result = {
            # Numbers on this level are what the tuner takes for measurements: those of the last line again, no others.
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

    def _export(self, training: Training) -> Path | None:
        from export import export

        folder = os.environ.get("TUNER_OUTPUT_DIR")
        if not folder:
            print("cifar10.py: TUNER_OUTPUT_DIR is not set: the model is not exported", file=sys.stderr, flush=True)
            return None
        return export(training.network, Path(folder))


def chosen_device(name: str, place: Place) -> torch.device:
    """Ready to be used: a GPU's context is there. Raises NoDevice."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and (kind == "cpu" or not number.isdecimal())):
        raise Refused(f"--device {name} is not allowed; it is auto, cpu, cuda or cuda:N")
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = "it is built without CUDA" if torch.version.cuda is None else "see nvidia-smi and CUDA_VISIBLE_DEVICES"
        raise NoDevice(f"--device {name}: torch {torch.__version__} finds no GPU here ({why}); use --device cpu")
    count = torch.cuda.device_count()
    index = int(number) if number else place.local % count
    if index >= count:
        raise NoDevice(f"--device {name}: there are {count} GPUs here, counted from 0")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True  # all steps have the same shapes
    torch.zeros(1, device=device)
    torch.cuda.synchronize()
    return device


def fingerprint(data: Dataset) -> str:
    """Of its name, its size, all labels and the first images: enough to tell two data sets apart, and at once done."""
    check = zlib.crc32(np.ascontiguousarray(data.images[:64]), zlib.crc32(np.ascontiguousarray(data.labels)))
    return f"{data.name}, {data.train} + {len(data.labels) - data.train} images, {check:08x}"


def out_of_memory(error: BaseException, recipe: Recipe) -> str | None:
    """One sentence, if that is what it says. Its first words are how the tuner knows the class of this failure."""
    said = str(error)
    if not isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) and not any(
        words in said for words in NO_MEMORY
    ):
        return None
    place = "this machine"
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        free, whole = torch.cuda.mem_get_info()
        place = f"the GPU, of whose {whole / 2**30:.1f} GiB {free / 2**30:.1f} are free,"
    return (
        f"out of memory: {place} has no room for --batch {recipe.batch} and --width {recipe.whole('width')}; "
        "use smaller ones, or fewer trials beside it"
    )


def peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
