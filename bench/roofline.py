"""Roofline of a recipe: the operations and bytes of a training step per image, and the peak rates of the GPU.

Operations and bytes read and written are counted for each operation of a step separately. The peak rates are measured
with a large matrix product in half precision and a large copy, because programs do not reach those of data sheets. This
is a separate process, so that it holds no GPU memory during other measurements. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trial_image"))

import numpy as np
import torch
from recipe import add_knobs, chosen
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from training import Images, TrainingRun
from world import World

SIDE, REPEATS = 8192, 20
COPIED = 1 << 30  # bytes of the copy


class Moved(TorchDispatchMode):
    """Sums the bytes that operations read and write. Views do neither."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = operation(*args, **(kwargs or {}))
        if not operation.is_view:
            leaves = tree_leaves((args, kwargs, found))
            self.bytes += sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))
        return found


def step_of(recipe: str, images: int, dtype: torch.dtype) -> tuple[float, float]:
    """Return (floating-point operations, bytes) of one step with this many images, on the CPU."""
    parser = argparse.ArgumentParser()
    add_knobs(parser)
    knobs = chosen(parser.parse_args([f"--recipe={recipe}", f"--batch={images}"]))
    pixels = np.random.default_rng(0).integers(0, 256, (images, 32, 32, 3), np.uint8)
    data = Images.on(torch.device("cpu"), pixels, np.zeros(images, np.uint8))
    training = TrainingRun(knobs, data, np.arange(images), world=World(), dtype=dtype)
    moved = Moved()
    with FlopCounterMode(display=False) as calculated, moved:
        training.compute()
    return float(calculated.get_total_flops()), float(moved.bytes)


def per_image(recipe: str, *, images: int = 2, dtype: torch.dtype = torch.float16) -> tuple[float, float]:
    """Return (floating-point operations, bytes) per image.

    They are computed from the difference between two batch sizes, because the weights are read once for all images.
    """
    few, many = step_of(recipe, images, dtype), step_of(recipe, 2 * images, dtype)
    return (many[0] - few[0]) / images, (many[1] - few[1]) / images


def fastest(action: Any) -> float:
    """Return the least seconds of one call."""
    best = float("inf")
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPEATS):
            action()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3 / REPEATS)
    return best


def peaks() -> tuple[float, float]:
    """Return (operations per second in float16, bytes per second)."""
    left, right = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.float16) for _ in range(2))
    product = torch.empty_like(left)
    source = torch.zeros(COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    flops = 2 * SIDE**3 / fastest(lambda: torch.mm(left, right, out=product))
    return flops, 2 * COPIED / fastest(lambda: target.copy_(source))


def main() -> None:
    asked = {recipe: per_image(recipe) for recipe in ("fast", "sweep")}
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "peaks": peaks(), "perImage": asked}))


if __name__ == "__main__":
    main()
