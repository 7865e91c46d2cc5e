"""Augmentation: shift, mirror, cut out and normalize images on the device, in a single gather.

Pixels stay bytes (image, row, column, color), so that all images fit on a device and a batch is
read once. torchvision's transforms draw once for a whole batch; applied to each image, they add
18 to 41 % to a step on a CPU (docs/benchmarks.md). The augmentation of an epoch is drawn on the
CPU, from only the seed and the epoch, so that all workers draw the same, and a training that
resumes after a kill draws what it would have drawn.
"""

from __future__ import annotations

import numpy as np
import torch
from recipe import Recipe
from torch import Tensor

SIDE = 32
# rows of a plan: image, down, right, mirrored, and the row and column of the cutout's corner
ROWS = 6
MEAN = (0.4914, 0.4822, 0.4465)  # published values of the whole training set
STD = (0.2470, 0.2435, 0.2616)
COINS = 1 << 31  # in place of an epoch, for draws that hold for all epochs


class Views:
    """Images on a device. pixels: (n, 32, 32, 3) bytes, contiguous."""

    def __init__(self, pixels: Tensor, *, dtype: torch.dtype, cutout: int = 0) -> None:
        self.flat = pixels.view(-1, 3)
        self.dtype, self.cutout = dtype, cutout
        device = pixels.device
        self.line = torch.arange(SIDE, device=device)
        self.mean = torch.tensor(MEAN, device=device) * 255
        self.scale = 1 / (torch.tensor(STD, device=device) * 255)

    def __call__(self, plan: Tensor) -> Tensor:
        """(n, 3, 32, 32), channels last. plan: (6, n) int64, the rows as above."""
        image, down, right, mirrored, top, left = plan.unsqueeze(2)
        # Reflect positions beyond the edge, which gives the same pixels
        # as a padded copy of all images.
        rows = _reflected(self.line + down)
        line = torch.where(mirrored > 0, SIDE - 1 - self.line, self.line)
        columns = _reflected(line + right)
        row_starts = (image * SIDE + rows) * SIDE
        pixels = row_starts.unsqueeze(2) + columns.unsqueeze(1)
        x = (self.flat[pixels].float() - self.mean) * self.scale
        if self.cutout:
            hole = _square(self.line, top, left, self.cutout)
            x.masked_fill_(hole.unsqueeze(3), 0.0)
        return x.to(self.dtype).permute(0, 3, 1, 2)


def _reflected(lines: Tensor) -> Tensor:
    return (SIDE - 1) - ((SIDE - 1) - lines.abs()).abs()


def _square(line: Tensor, top: Tensor, left: Tensor, side: int) -> Tensor:
    down = (line >= top) & (line < top + side)
    across = (line >= left) & (line < left + side)
    return down.unsqueeze(2) & across.unsqueeze(1)


def drawn(recipe: Recipe, epoch: int, images: int) -> Tensor:
    """Draw the plan of an epoch, counted from 0: (steps, 6, batch) int64."""
    rng = np.random.default_rng([recipe.seed, epoch])
    steps, reach = images // recipe.batch, recipe.whole("translate")
    count = steps * recipe.batch
    plan = np.zeros((ROWS, count), np.int64)
    plan[0] = rng.permutation(images)[:count]
    if reach:
        plan[1:3] = rng.integers(-reach, reach + 1, (2, count))
    match recipe.knobs["flip"]:
        case "random":
            plan[3] = rng.integers(0, 2, count)
        # one random bit per image, inverted each epoch, so that successive epochs differ
        case "alternate":
            coins = np.random.default_rng([recipe.seed, COINS]).integers(0, 2, images)
            plan[3] = coins[plan[0]] ^ (epoch & 1)
    if recipe.cutout:
        plan[4:] = rng.integers(0, SIDE - recipe.cutout + 1, (2, count))
    by_step = plan.reshape(ROWS, steps, recipe.batch).transpose(1, 0, 2)
    return torch.from_numpy(np.ascontiguousarray(by_step))


def plain(images: Tensor, *, down: int = 0, right: int = 0, mirrored: bool = False) -> Tensor:
    """Return a plan that leaves images as they are, or changes all in the same way.

    images: (n,) int64.
    """
    plan = torch.zeros(ROWS, len(images), dtype=torch.int64, device=images.device)
    plan[0] = images
    plan[1] = down
    plan[2] = right
    plan[3] = int(mirrored)
    return plan


def split(labels: np.ndarray, valid: int, train: int) -> tuple[np.ndarray, np.ndarray]:
    """Split the rows of the training set into (training, held-out) rows.

    The split is fixed, with balanced classes. Held-out rows are taken from one end of a fixed order
    and training rows from the other, so that smaller trainings never learn from rows that larger
    ones hold out, as far as there is room.
    """
    shuffled = np.random.default_rng(0).permutation(len(labels))
    rank = np.empty(len(labels), np.int64)  # the rank of each row within its class
    for label in np.unique(labels):
        members = shuffled[labels[shuffled] == label]
        rank[members] = np.arange(len(members))
    order = np.lexsort((labels, rank))
    return order[len(order) - train :], order[:valid]
