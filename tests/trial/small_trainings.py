"""Trainings of about a second on random images, for tests of internals.

It imports torch: import it inside a test.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from recipe import Recipe, add_knobs, chosen
from training import Images, TrainingRun
from world import World

from tests.trial.stand_ins import stand_in

SMALL = stand_in(per_class=12)
LEARN = np.arange(96)
JUDGE = np.arange(96, 120)


def recipe(*flags: str) -> Recipe:
    parser = argparse.ArgumentParser()
    add_knobs(parser)
    return chosen(parser.parse_args(flags))


def training(
    *flags: str, dtype: torch.dtype = torch.float32, world: World | None = None
) -> TrainingRun:
    torch.set_num_threads(1)
    images = Images.on(torch.device("cpu"), SMALL.images, SMALL.labels.astype(np.int64))
    return TrainingRun(recipe(*flags), images, LEARN, world=world or World(), dtype=dtype)


def seen_slowly(plan: np.ndarray, cutout: int) -> torch.Tensor:
    """Return the images of a plan, built one by one from padded copies. plan: (6, n)."""
    exact = torch.zeros(()).numpy().dtype  # torch's default
    mean, std = (
        np.array(three, exact) * 255
        for three in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    )
    images = []
    for number, down, right, mirrored, top, left in plan.T:
        padded = np.pad(SMALL.images[number], ((16, 16), (16, 16), (0, 0)), mode="reflect")
        image = padded[16 + down : 48 + down, 16 + right : 48 + right]
        if mirrored:
            image = image[:, ::-1]
        pixels = (image.astype(exact) - mean) * (1 / std)
        pixels[top : top + cutout, left : left + cutout] = 0
        images.append(pixels.transpose(2, 0, 1))
    return torch.from_numpy(np.stack(images))
