"""Time of a training step, of its augmentation, and of the same augmentation
by torchvision's transforms.

    python bench/cifar10_transforms.py

One thread, random images, CPU time. torchvision's transforms draw once for a batch, so they are
applied to each image; "in part" applies only what is drawn to each image, and converts and
normalizes the batch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from record import table
from torchvision.transforms import v2

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "trial_image"))
from augment import MEAN, STD, drawn
from recipe import Recipe, add_knobs, chosen
from training import Images, TrainingRun
from world import World

IMAGES = 4_000
REPEATS = 8
RECIPES = (
    "--recipe=sweep --width=4 --batch=128 --cutout=0",
    "--recipe=fast --width=16 --batch=256",
)


def recipe_of(flags: str) -> Recipe:
    parser = argparse.ArgumentParser()
    add_knobs(parser)
    return chosen(parser.parse_args(flags.split()))


def cpu_ms(action: Callable[[], object]) -> float:
    action()
    began = time.process_time()
    for _ in range(REPEATS):
        action()
    return (time.process_time() - began) / REPEATS * 1e3


def measured(flags: str) -> list[str]:
    recipe = recipe_of(flags)
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (IMAGES, 32, 32, 3), np.uint8)
    images = Images.on(torch.device("cpu"), pixels, draw.integers(0, 10, IMAGES))
    run = TrainingRun(recipe, images, np.arange(IMAGES), world=World(), dtype=torch.float32)
    plan = drawn(recipe, 0, IMAGES)[0]
    run.plan.copy_(plan)
    batch = images.pixels[plan[0]].permute(0, 3, 1, 2).contiguous()
    crop = v2.RandomCrop(32, padding=recipe.whole("translate"), padding_mode="reflect")
    shift = v2.Compose([crop, v2.RandomHorizontalFlip()])
    convert = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    step = cpu_ms(run.compute)
    gather = cpu_ms(lambda: run.views(plan))
    each = cpu_ms(lambda: torch.stack([convert(shift(image)) for image in batch]))
    part = cpu_ms(lambda: convert(torch.stack([shift(image) for image in batch])))
    shares = (f"{ms:.1f} ({(ms - gather) / step:+.0%})" for ms in (part, each))
    return [f"`{flags}`", f"{step:.1f}", f"{gather:.1f}", *shares]


def main() -> None:
    torch.set_num_threads(1)
    header = ("recipe", "step, ms", "of it the gather", "transforms, in part", "transforms")
    print(table(header, [measured(flags) for flags in RECIPES]))


if __name__ == "__main__":
    main()
